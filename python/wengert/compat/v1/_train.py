"""Optimizers under TensorFlow's names: one step of each is a formula of parameter, gradient and
slots. Learning rates that fall, moving averages, the global step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import wengert as wg
from wengert.compat.v1._graph import (
    GraphKeys,
    add_to_collection,
    get_collection,
    in_graph,
    name_scope,
)
from wengert.compat.v1._order import current
from wengert.compat.v1._scopes import get_variable
from wengert.compat.v1._spaces import formula, train
from wengert.compat.v1._state import (
    Operation,
    Variable,
    global_variables,
    gradients,
    trainable_variables,
)
from wengert.compat.v1._table import as_tensor


class Optimizer:
    """Changes variables along the gradient of a loss."""

    GATE_NONE, GATE_OP, GATE_GRAPH = 0, 1, 2
    slots: tuple[tuple[str, float], ...] = ()
    """Each parameter's slots and the values that they begin with."""
    counts = False
    """Whether steps are counted."""

    def __init__(self, learning_rate: Any, name: str | None = None) -> None:
        self.learning_rate = learning_rate
        self._name = name or type(self).__name__.removesuffix("Optimizer")
        self._made: dict[Any, dict[str, Any]] = {}
        self._count: Any = None

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The new parameter and slots."""
        raise NotImplementedError

    def minimize(
        self,
        loss: wg.Tensor,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: Any = 1,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: Any = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Operation:
        """The operation that takes one step. It adds 1 to `global_step`."""
        pairs = self.compute_gradients(loss, var_list, grad_loss=grad_loss)
        if all(g is None for g, _ in pairs):
            raise ValueError(
                f"{self._name}.minimize: the loss depends on none of {[v.name for _, v in pairs]}"
            )
        return self.apply_gradients(pairs, global_step, name)

    def compute_gradients(
        self,
        loss: wg.Tensor,
        var_list: Any = None,
        gate_gradients: Any = 1,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: Any = False,
        grad_loss: Any = None,
    ) -> list[tuple[Any, Any]]:
        """Pairs of gradient and variable; the gradient is `None` where the loss does not depend
        on the variable."""
        variables = trainable_variables() if var_list is None else list(_listed(var_list))
        if not variables:
            raise ValueError(f"{self._name}: there are no variables to optimize")
        seeds = None if grad_loss is None else [grad_loss]
        return list(zip(gradients(loss, variables, seeds), variables, strict=True))

    @in_graph
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Operation:
        """The operation that takes one step along these gradients."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise ValueError(f"{self._name}: there are no gradients")
        new: list[wg.Tensor] = []
        count: Any = None
        if self.counts:
            if self._count is None:
                self._count = Variable(0.0, trainable=False, name=f"{self._name}/step")
            count = self._count.assign_add(1.0)
            new.append(count)
        for g, v in pairs:
            new += self._update(v, as_tensor(g), count)
        if global_step is not None:
            new.append(global_step.assign_add(1))
        made = Operation(new, name or self._name)
        add_to_collection(GraphKeys.TRAIN_OP, made)
        return made

    def _update(self, p: Any, g: wg.Tensor, count: Any) -> list[wg.Tensor]:
        kept = self._made.setdefault(p, {})
        for word, start in self.slots:
            if word not in kept:
                with name_scope(None):
                    kept[word] = Variable(
                        lambda start=start: wg.full(p.shape, start, dtype=p.dtype),
                        False,
                        name=f"{p.name.removesuffix(':0')}/{word}",
                    )
        slots = [kept[word] for word, _ in self.slots]
        new, *rest = self.step(p, g, slots, count)
        if getattr(p, "constraint", None) is not None:
            new = p.constraint(new)
        return [v.assign(x) for v, x in zip([p, *slots], [new, *rest], strict=True)]

    def get_name(self) -> str:
        """The name."""
        return self._name

    def get_slot_names(self) -> list[str]:
        """The names of the slots."""
        return [word for word, _ in self.slots]

    def get_slot(self, var: Any, name: str) -> Any:
        """A slot of a variable, or `None`."""
        return self._made.get(var, {}).get(name)

    def variables(self) -> list[Any]:
        """The variables that it keeps its state in."""
        every = [v for kept in self._made.values() for v in kept.values()]
        return every if self._count is None else [*every, self._count]

    def _rate(self, p: Any) -> Any:
        """The learning rate in a parameter's dtype."""
        rate = self.learning_rate() if callable(self.learning_rate) else self.learning_rate
        return rate.reshape(()).astype(p.dtype) if isinstance(rate, wg.Tensor) else rate


def _listed(variables: Any) -> Iterable[Any]:
    return [variables] if isinstance(variables, wg.Tensor) else variables


def _optimizer(cls: type[Optimizer]) -> type[Optimizer]:
    setattr(train, cls.__name__, cls)
    return cls


train.Optimizer = Optimizer


@_optimizer
class GradientDescentOptimizer(Optimizer):
    """`p - lr g`."""

    def __init__(
        self, learning_rate: Any, use_locking: Any = False, name: str = "GradientDescent"
    ) -> None:
        super().__init__(learning_rate, name)

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """`wengert.optim`'s step."""
        return [wg.optim.sgd(p, g, lr=self._rate(p))]


@_optimizer
class MomentumOptimizer(Optimizer):
    """`b = momentum b + g`, `p - lr b`; with Nesterov's correction if asked."""

    slots = (("Momentum", 0.0),)

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any,
        use_locking: Any = False,
        name: str = "Momentum",
        use_nesterov: Any = False,
    ) -> None:
        super().__init__(learning_rate, name)
        self.momentum, self.use_nesterov = momentum, bool(use_nesterov)

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """`wengert.optim`'s step."""
        return wg.optim.sgd_momentum(
            p, g, *slots, lr=self._rate(p), momentum=self.momentum, nesterov=self.use_nesterov
        )


@_optimizer
class AdamOptimizer(Optimizer):
    """Adam, as the paper has it before section 2.1: `m = β₁ m + (1 - β₁) g`,
    `v = β₂ v + (1 - β₂) g²`, `p - lr √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + epsilon)`.

    So epsilon is divided by `√(1 - β₂ᵗ)` in comparison with `wengert.optim.Adam`.
    """

    slots = (("Adam", 0.0), ("Adam_1", 0.0))
    counts = True

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: Any = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(learning_rate, name)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The formula."""
        m = self.beta1 * slots[0] + (1.0 - self.beta1) * g
        v = self.beta2 * slots[1] + (1.0 - self.beta2) * g * g
        t = count.astype(p.dtype)
        scale = wg.sqrt(1.0 - wg.pow(self.beta2, t)) / (1.0 - wg.pow(self.beta1, t))
        return p - self._rate(p) * scale * m / (wg.sqrt(v) + self.epsilon), m, v


@_optimizer
class AdagradOptimizer(Optimizer):
    """`a = a + g²`, `p - lr g / √a`."""

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        use_locking: Any = False,
        name: str = "Adagrad",
    ) -> None:
        super().__init__(learning_rate, name)
        if not initial_accumulator_value > 0:
            raise ValueError(
                f"Adagrad: initial_accumulator_value must be positive, got "
                f"{initial_accumulator_value}"
            )
        self.slots = (("Adagrad", initial_accumulator_value),)

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The formula."""
        a = slots[0] + g * g
        return p - self._rate(p) * g / wg.sqrt(a), a


@_optimizer
class AdadeltaOptimizer(Optimizer):
    """`a = rho a + (1 - rho) g²`, `d = √(u + epsilon) / √(a + epsilon) · g`,
    `u = rho u + (1 - rho) d²`, `p - lr d`."""

    slots = (("Adadelta", 0.0), ("Adadelta_1", 0.0))

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: Any = 0.95,
        epsilon: Any = 1e-8,
        use_locking: Any = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(learning_rate, name)
        self.rho, self.epsilon = rho, epsilon

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The formula."""
        a = self.rho * slots[0] + (1.0 - self.rho) * g * g
        d = wg.sqrt(slots[1] + self.epsilon) * wg.rsqrt(a + self.epsilon) * g
        u = self.rho * slots[1] + (1.0 - self.rho) * d * d
        return p - self._rate(p) * d, a, u


@_optimizer
class RMSPropOptimizer(Optimizer):
    """`a = decay a + (1 - decay) g²`, `b = momentum b + lr g / √(a + epsilon)`, `p - b`; `a` begins
    at 1. `centered` takes the square of the mean gradient from `a` under the root."""

    def __init__(
        self,
        learning_rate: Any,
        decay: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: Any = 1e-10,
        use_locking: Any = False,
        centered: Any = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(learning_rate, name)
        self.decay, self.momentum, self.epsilon = decay, momentum, epsilon
        self.centered = bool(centered)
        self.slots = (("RMSProp", 1.0), ("RMSProp_1", 0.0))
        if centered:
            self.slots = (*self.slots, ("RMSProp_2", 0.0))

    def step(self, p: Any, g: Any, slots: list[Any], count: Any) -> Sequence[Any]:
        """The formula."""
        a = self.decay * slots[0] + (1.0 - self.decay) * g * g
        mean = []
        spread = a
        if self.centered:
            mean = [self.decay * slots[2] + (1.0 - self.decay) * g]
            spread = a - mean[0] * mean[0]
        b = self.momentum * slots[1] + self._rate(p) * g * wg.rsqrt(spread + self.epsilon)
        return p - b, a, b, *mean


# Learning rates.


def _steps(global_step: Any) -> wg.Tensor:
    return as_tensor(global_step).astype(wg.float32)


@formula(train)
def exponential_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: Any = False,
    name: str | None = None,
) -> wg.Tensor:
    """`learning_rate * decay_rate ** (global_step / decay_steps)`, in whole steps if asked."""
    exponent = _steps(global_step) / decay_steps
    return learning_rate * wg.pow(decay_rate, wg.floor(exponent) if staircase else exponent)


@formula(train)
def natural_exp_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: Any = False,
    name: str | None = None,
) -> wg.Tensor:
    """`learning_rate * exp(-decay_rate * global_step / decay_steps)`, in whole steps if asked."""
    exponent = _steps(global_step) / decay_steps
    return learning_rate * wg.exp(-decay_rate * (wg.floor(exponent) if staircase else exponent))


@formula(train)
def inverse_time_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: Any = False,
    name: str | None = None,
) -> wg.Tensor:
    """`learning_rate / (1 + decay_rate * global_step / decay_steps)`, in whole steps if asked."""
    part = _steps(global_step) / decay_steps
    return learning_rate / (1.0 + decay_rate * (wg.floor(part) if staircase else part))


@formula(train)
def polynomial_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    end_learning_rate: Any = 0.0001,
    power: float = 1.0,
    cycle: Any = False,
    name: str | None = None,
) -> wg.Tensor:
    """`(learning_rate - end) (1 - step / decay_steps) ** power + end`. Beyond `decay_steps` it
    stays at the end; with `cycle` the span grows to the next multiple."""
    step = _steps(global_step)
    span: Any = decay_steps
    if cycle:
        span = decay_steps * wg.maximum(wg.ceil(step / decay_steps), 1.0)
    else:
        step = wg.minimum(step, float(decay_steps))
    return (learning_rate - end_learning_rate) * wg.pow(
        1.0 - step / span, power
    ) + end_learning_rate


@formula(train)
def cosine_decay(
    learning_rate: Any,
    global_step: Any,
    decay_steps: Any,
    alpha: float = 0.0,
    name: str | None = None,
) -> wg.Tensor:
    """Half a cosine from `learning_rate` to `alpha` times it."""
    part = wg.minimum(_steps(global_step), float(decay_steps)) / decay_steps
    return learning_rate * ((1.0 - alpha) * 0.5 * (1.0 + wg.cos(math.pi * part)) + alpha)


@formula(train)
def piecewise_constant(x: Any, boundaries: Any, values: Any, name: str | None = None) -> wg.Tensor:
    """The first value up to the first boundary, itself included, then the next."""
    boundaries, values = list(boundaries), list(values)
    if len(values) != len(boundaries) + 1:
        raise ValueError(
            f"tf.train.piecewise_constant: {len(boundaries)} boundaries have "
            f"{len(boundaries) + 1} values, got {len(values)}"
        )
    x = as_tensor(x)
    y = as_tensor(values[0])
    for edge, value in zip(boundaries, values[1:], strict=True):
        y = wg.where(x > edge, value, y)
    return y


# The global step.


@formula(train)
def get_global_step(graph: Any = None) -> Any:
    """The global step of the default graph, or `None`."""
    found = get_collection(GraphKeys.GLOBAL_STEP)
    if found:
        return found[0]
    named = [v for v in global_variables() if v.name == "global_step:0"]
    return named[0] if len(named) == 1 else None


@formula(train)
def create_global_step(graph: Any = None) -> Any:
    """A new global step: an int64 that begins at 0."""
    if get_global_step() is not None:
        raise ValueError("tf.train.create_global_step: there is one")
    return get_variable(
        "global_step", [], wg.int64, _zero, trainable=False,
        collections=[GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP],
    )  # fmt: skip


def _zero(shape: Any, dtype: Any) -> wg.Tensor:
    return wg.zeros((), dtype=dtype)


@formula(train)
def get_or_create_global_step(graph: Any = None) -> Any:
    """The global step of the default graph, made if there is none."""
    found = get_global_step()
    return create_global_step() if found is None else found


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The global step of a session as an int."""
    return int(sess.run(global_step_tensor))


train.global_step = global_step


class ExponentialMovingAverage:
    """Averages of variables: `average -= (1 - decay) (average - value)`. They begin with the
    variables' initial values; those of other tensors begin at 0, and are corrected for that.

    With `num_updates` the decay is at most `(1 + num_updates) / (10 + num_updates)`.
    """

    def __init__(
        self,
        decay: float,
        num_updates: Any = None,
        zero_debias: Any = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self.decay, self.num_updates, self._name = decay, num_updates, name
        self._averages: dict[Any, Any] = {}

    @in_graph
    def apply(self, var_list: Any = None) -> Operation:
        """The operation that takes in the values."""
        values = trainable_variables() if var_list is None else list(var_list)
        decay: Any = self.decay
        if self.num_updates is not None:
            n = _steps(self.num_updates)
            decay = wg.minimum(decay, (1.0 + n) / (10.0 + n))
        new = []
        for x in values:
            if x not in self._averages:
                of = x.name.removesuffix(":0") if isinstance(x, wg.Variable) else "average"
                with name_scope(None):
                    self._averages[x] = self._average(x, of)
            average = self._averages[x]
            value = current(x) if isinstance(x, wg.Variable) else x.detach()
            if isinstance(average, tuple):
                total, weight = average
                new += [
                    total.assign_sub((1.0 - decay) * (total - value)),
                    weight.assign_sub((1.0 - decay) * (weight - 1.0)),
                ]
            else:
                new.append(average.assign_sub((1.0 - decay) * (average - value)))
        return Operation(new, self._name)

    def _average(self, x: Any, of: str) -> Any:
        keys = [GraphKeys.GLOBAL_VARIABLES, GraphKeys.MOVING_AVERAGE_VARIABLES]
        name = f"{of}/{self._name}"
        if isinstance(x, wg.Variable):
            return Variable(x.initial, False, collections=keys, name=name)
        if x.shape is None or not all(isinstance(n, int) for n in x.shape):
            raise ValueError(f"{self._name}: the shape of {x!r} must be known")
        return (
            Variable(lambda: wg.zeros(x.shape, dtype=x.dtype), False, collections=keys, name=name),
            Variable(
                lambda: wg.zeros((), dtype=x.dtype), False, collections=keys, name=f"{name}/weight"
            ),
        )

    def average(self, var: Any) -> Any:
        """The average of a variable or tensor, or `None`."""
        found = self._averages.get(var)
        if not isinstance(found, tuple):
            return found
        total, weight = (current(v) for v in found)
        return total / wg.where(wg.equal(weight, 0), 1.0, weight)

    def average_name(self, var: Any) -> str:
        """The name of the average in files."""
        return f"{var.name.removesuffix(':0')}/{self._name}"

    def variables_to_restore(self, moving_avg_variables: Any = None) -> dict[str, Any]:
        """For a `Saver` that gives variables their averages: name in the file, variable."""
        moving = trainable_variables() if moving_avg_variables is None else moving_avg_variables
        found = {self.average_name(v): v for v in moving}
        own = {id(v) for v in moving}
        averages = {id(a) for a in self._averages.values()}
        for v in global_variables():
            if id(v) not in own and id(v) not in averages:
                found.setdefault(v.name.removesuffix(":0"), v)
        return found


train.ExponentialMovingAverage = ExponentialMovingAverage
