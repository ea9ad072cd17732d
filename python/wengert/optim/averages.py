"""Averages of the weights of a model, beside the model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from wengert import _core
from wengert._core import Tensor, no_grad, zeros
from wengert._steps import Routine
from wengert.nn.module import Module


class _Average:
    """A copy of a model for evaluation, whose parameters are averages."""

    def __init__(self, model: Module) -> None:
        if not isinstance(model, Module):
            kind = type(model).__name__
            raise TypeError(f"{type(self).__name__}: expected a module, got {kind}")
        self._source = model
        self.model = copy.deepcopy(model).eval()
        for p in self.model.parameters():
            p.requires_grad = False
        self._routine = Routine()

    def _next(self, average: Tensor, now: Tensor) -> Tensor:
        """The average after another value."""
        raise NotImplementedError

    def _count(self) -> list[Tensor]:
        """Counts of updates, each of which rises by 1."""
        return []

    @no_grad()
    def update(self) -> None:
        """Take the parameters as they are now into the average; buffers are copied.

        All of it is one program. In a captured function it is part of that function.
        """
        tensors = self._tensors()
        name = f"{type(self).__name__}.update"
        self._routine.run(name, tensors, lambda: self._update(tensors))

    def _tensors(self) -> list[Tensor]:
        """Counts; then pairs of averages and what goes into them, floating or not."""
        found = self._count()
        for ours, its in ((self.model.named_parameters(), self._source.named_parameters()),
                          (self.model.named_buffers(), self._source.named_buffers())):  # fmt: skip
            theirs = dict(its)
            for name, x in ours:
                if name not in theirs:
                    raise ValueError(f"{type(self).__name__}: the model has no {name} any more")
                found += (x, theirs[name])
        return found

    def _update(self, tensors: list[Tensor]) -> None:
        counts = len(self._count())
        pairs = zip(tensors[counts::2], tensors[counts + 1 :: 2], strict=True)
        parameters = {id(p) for p in self.model.parameters()}
        for average, now in pairs:
            value = now.detach()
            if id(average) in parameters:
                value = self._next(average, value)
            average.assign(value)
        for count in tensors[:counts]:
            count += 1.0

    def state_dict(self) -> dict[str, Any]:
        """The averages."""
        return {"model": self.model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; what does not fit the model raises, and then
        nothing is changed."""
        self.model.load_state_dict(state["model"])


class EMA(_Average):
    """The exponential moving average of a model's parameters: `model` is a copy for evaluation.

        average ← decay · average + (1 − decay) · parameter

    Call `update()` after each step of the optimizer.

    >>> net = nn.Linear(2, 1)
    >>> ema = optim.EMA(net, decay=0.5)
    >>> with wg.no_grad():
    ...     net.bias[...] = ema.model.bias + 1.0
    >>> ema.update()
    >>> bool(wg.all(wg.abs(net.bias - ema.model.bias - 0.5) < 1e-6))
    True
    """

    def __init__(self, model: Module, decay: float = 0.999) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"EMA: decay must be in [0, 1], got {decay!r}")
        super().__init__(model)
        self._decay = float(decay)

    @property
    def decay(self) -> float:
        """How much of the average stays at an update."""
        return self._decay

    def _next(self, average: Tensor, now: Tensor) -> Tensor:
        after: Tensor = average * self._decay + now * (1.0 - self._decay)
        return after


class SWA(_Average):
    """The mean of a model's parameters over all updates (Izmailov et al.: Averaging weights leads
    to wider optima, 2018): `model` is a copy for evaluation.

    Before the first update it is the model as it was. Statistics of batch norms are the model's
    own at the last update, which are not those of the averaged weights.
    """

    def __init__(self, model: Module) -> None:
        super().__init__(model)
        devices = {p.device for p in self.model.parameters()}
        device = devices.pop() if len(devices) == 1 else "cpu"
        self._updates = zeros((), device=device)

    def _count(self) -> list[Tensor]:
        return [self._updates]

    def _next(self, average: Tensor, now: Tensor) -> Tensor:
        part = (1.0 / (self._updates + 1.0)).to(average.device).astype(average.dtype)
        return average + (now - average) * part

    def state_dict(self) -> dict[str, Any]:
        """The averages, and of how many updates they are."""
        return {**super().state_dict(), "updates": self._updates.detach()}

    @no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; what does not fit the model raises, and then
        nothing is changed."""
        updates = _core.asarray(state["updates"], device=self._updates.device)
        if updates.shape != () or updates.dtype != self._updates.dtype:
            raise ValueError(
                f"load_state_dict: updates is {updates.dtype} {tuple(updates.shape)}, wanted a "
                "float32 of shape ()"
            )
        super().load_state_dict(state)
        self._updates.assign(updates.detach())
