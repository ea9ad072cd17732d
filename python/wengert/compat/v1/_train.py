"""Optimizers under TensorFlow's names: one step of each is a formula of parameter, gradient and
slots."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import wengert as wg
from wengert.compat.v1._state import Operation, Variable, gradients
from wengert.graph import default_graph

train = SimpleNamespace()


class _Optimizer:
    """Changes variables along the gradient of a loss."""

    slots: tuple[float, ...] = ()
    """The values that each parameter's slots begin with."""

    def __init__(self, learning_rate: Any) -> None:
        self.learning_rate = learning_rate

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The new parameter and slots."""
        raise NotImplementedError

    def minimize(
        self, loss: wg.Tensor, global_step: Any = None, var_list: Any = None, name: Any = None
    ) -> Operation:
        """The operation that takes one step."""
        graph = default_graph()
        with graph:
            variables = [v for v in graph.variables if v.trainable]
            variables = variables if var_list is None else list(var_list)
            found = gradients(loss, variables)
            count = Variable(0.0, trainable=False, name="step").assign_add(1.0)
            new: list[wg.Tensor] = [count]
            for p, g in zip(variables, found, strict=True):
                if g is not None:
                    new += self._update(p, g, count)
            if global_step is not None:
                new.append(global_step.assign_add(1))
        return Operation(new, name)

    def _update(self, p: wg.Variable, g: wg.Tensor, count: wg.Tensor) -> list[wg.Tensor]:
        name = type(self).__name__.removesuffix("Optimizer")
        slots = [
            Variable(wg.full(p.shape, x, dtype=p.dtype), False, f"{p.name}/{name}")
            for x in self.slots
        ]
        values = self.step(p, g, slots, count)
        return [v.assign(x) for v, x in zip([p, *slots], values, strict=True)]


def _optimizer(cls: type[_Optimizer]) -> type[_Optimizer]:
    setattr(train, cls.__name__, cls)
    return cls


@_optimizer
class GradientDescentOptimizer(_Optimizer):
    """`p - lr g`."""

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """`wengert.optim`'s step."""
        return [wg.optim.sgd(p, g, lr=self.learning_rate)]


@_optimizer
class MomentumOptimizer(_Optimizer):
    """`b = momentum b + g`, `p - lr b`; with Nesterov's correction if asked."""

    slots = (0.0,)

    def __init__(self, learning_rate: Any, momentum: Any, use_nesterov: Any = False) -> None:
        super().__init__(learning_rate)
        self.momentum, self.use_nesterov = momentum, use_nesterov

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """`wengert.optim`'s step."""
        return wg.optim.sgd_momentum(
            p, g, *slots, lr=self.learning_rate, momentum=self.momentum, nesterov=self.use_nesterov
        )


@_optimizer
class AdamOptimizer(_Optimizer):
    """Adam."""

    slots = (0.0, 0.0)

    def __init__(
        self, learning_rate: Any = 0.001, beta1: Any = 0.9, beta2: Any = 0.999, epsilon: Any = 1e-8
    ) -> None:
        super().__init__(learning_rate)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """`wengert.optim`'s step."""
        m, v = slots
        rates = {"lr": self.learning_rate, "beta1": self.beta1, "beta2": self.beta2}
        return wg.optim.adam(p, g, m, v, count, **rates, eps=self.epsilon)


@_optimizer
class AdagradOptimizer(_Optimizer):
    """`a = a + g²`, `p - lr g / √a`."""

    def __init__(self, learning_rate: Any, initial_accumulator_value: float = 0.1) -> None:
        super().__init__(learning_rate)
        self.slots = (initial_accumulator_value,)

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The formula."""
        a = slots[0] + g * g
        return p - self.learning_rate * g / wg.sqrt(a), a


@_optimizer
class RMSPropOptimizer(_Optimizer):
    """`a = decay a + (1 - decay) g²`, `b = momentum b + lr g / √(a + epsilon)`, `p - b`."""

    slots = (1.0, 0.0)

    def __init__(
        self, learning_rate: Any, decay: float = 0.9, momentum: float = 0.0, epsilon: float = 1e-10
    ) -> None:
        super().__init__(learning_rate)
        self.decay, self.momentum, self.epsilon = decay, momentum, epsilon

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The formula."""
        a = self.decay * slots[0] + (1.0 - self.decay) * g * g
        b = self.momentum * slots[1] + self.learning_rate * g / wg.sqrt(a + self.epsilon)
        return p - b, a, b


def exponential_decay(
    learning_rate: float,
    global_step: Any,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
) -> wg.Tensor:
    """`learning_rate * decay_rate ** (global_step / decay_steps)`, in whole steps if asked."""
    with default_graph():
        exponent = global_step.astype(wg.float32) / decay_steps
        return learning_rate * decay_rate ** (wg.floor(exponent) if staircase else exponent)


train.exponential_decay = exponential_decay
