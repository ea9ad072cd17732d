"""Scaling of losses, so that gradients in float16 do not vanish."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, TypeVar

from wengert import _core, _touched, pytree
from wengert._core import CaptureError, Tensor, full, int32, isfinite, no_grad, where, zeros
from wengert._core import bool as bool_
from wengert._rows import rows_of
from wengert._steps import Routine
from wengert.optim.lbfgs import LBFGS
from wengert.optim.optimizer import Optimizer

T = TypeVar("T")


class _Stage:
    """How far the step of an optimizer is: its gradients are divided, or it is made."""

    def __init__(self, record: Any, found: Tensor) -> None:
        self.record, self.found, self.is_done = record, found, False


class GradScaler:
    """Multiplies a loss so that gradients of float16 keep their small elements; skips steps whose
    gradients overflow, and then multiplies by less.

        scaler.scale(loss).backward()
        scaler.unscale(optimizer)  # only if gradients are clipped or looked at
        scaler.step(optimizer)
        scaler.update()

    After a step that overflowed `update` multiplies the scale by `backoff_factor`; after
    `growth_interval` steps in a row that did not, by `growth_factor`. Eager code reads whether a
    gradient overflowed; a captured function reads nothing and leaves parameters and the state of
    the optimizer as they were. With `enabled=False` losses and steps are what they are without.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        for key, value, holds, text in (
            ("init_scale", init_scale, init_scale > 0, "positive"),
            ("growth_factor", growth_factor, growth_factor > 1, "above 1"),
            ("backoff_factor", backoff_factor, 0 < backoff_factor < 1, "in (0, 1)"),
            ("growth_interval", growth_interval, growth_interval >= 1, "at least 1"),
        ):
            if not holds:
                raise ValueError(f"GradScaler: {key} must be {text}, got {value!r}")
        self._growth, self._backoff = float(growth_factor), float(backoff_factor)
        self._interval, self._enabled = growth_interval, enabled
        self._scale = full((), float(init_scale))
        self._good = zeros((), dtype=int32)
        self._stages: weakref.WeakKeyDictionary[Optimizer, _Stage] = weakref.WeakKeyDictionary()
        # For each optimizer how its gradients are divided, and whether they overflowed.
        self._checks: weakref.WeakKeyDictionary[Optimizer, tuple[Routine, Tensor]] = (
            weakref.WeakKeyDictionary()
        )

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale now. A captured function cannot read it."""
        return float(self._scale.item()) if self._enabled else 1.0

    def scale(self, outputs: T) -> T:
        """A loss, or all tensors of a tree, times the scale; in float32 where they are narrower."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return self._scaled(outputs)  # type: ignore[return-value]
        return pytree.map(self._scaled, outputs)  # type: ignore[no-any-return]

    def _scaled(self, x: Any) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"GradScaler.scale: expected tensors, got {type(x).__name__}")
        if x.device != self._scale.device:
            self._move(x.device)
        return x * self._scale

    def _move(self, device: Any) -> None:
        def moved() -> tuple[Tensor, Tensor]:
            return self._scale.to(device), self._good.to(device)

        self._scale, self._good = _core.outside_trace(moved)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, once before its step."""
        if not self._enabled:
            return
        if self._stage(optimizer) is not None:
            raise RuntimeError(
                "GradScaler.unscale: the gradients were divided already since the last update"
            )
        self._unscale(optimizer)

    def _stage(self, optimizer: Optimizer) -> _Stage | None:
        """How far an optimizer is, in this capture or outside all."""
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"GradScaler: expected an optimizer, got {type(optimizer).__name__}")
        if isinstance(optimizer, LBFGS):
            raise TypeError("GradScaler: LBFGS computes gradients in its step")
        stage, record = self._stages.get(optimizer), _touched.here.record
        if stage is None or stage.record is record:
            return stage
        if stage.record is None:
            raise CaptureError(
                "GradScaler: the gradients were divided outside the captured function; call "
                "unscale, step and update in one"
            )
        # A capture that failed.
        del self._stages[optimizer]
        return None

    @no_grad()
    def _unscale(self, optimizer: Optimizer) -> _Stage:
        params = [
            p for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        device = self._scale.device
        check = self._checks.get(optimizer)
        if check is None or check[1].device != device:
            flag = _core.outside_trace(lambda: zeros((), dtype=bool_, device=device))
            check = self._checks[optimizer] = Routine(), flag
        routine, found = check
        sparse = [p for p in params if rows_of(p) is not None]
        if sparse:
            params = [p for p in params if rows_of(p) is None]
        routine.run("GradScaler.unscale", params, lambda: self._divide(params, found))
        self._divide_rows(sparse, found)
        record = _touched.here.record
        stage = self._stages[optimizer] = _Stage(record, found)
        if record is not None:
            record.unfinished[id(self)] = (
                "GradScaler: a captured function that divides gradients calls step and update too"
            )
        return stage

    def _divide(self, params: list[Tensor], flag: Tensor) -> None:
        """Divide gradients; `flag` says whether some element is not finite."""
        found = self._scale < 0.0
        inverse = 1.0 / self._scale
        for p in params:
            assert p.grad is not None
            g = (p.grad * inverse.to(p.device)).astype(p.grad.dtype)
            p.grad.assign(g)
            found = found | (~isfinite(g).all()).to(found.device)
        flag.assign(found)

    def _divide_rows(self, params: list[Tensor], flag: Tensor) -> None:
        """The same of row-sparse gradients: their rows change from step to step, so this is no
        routine."""
        for p in params:
            g: Any = p.grad
            g = g.coalesce()
            g = g._with((g.values * (1.0 / self._scale).to(p.device)).astype(g.dtype))
            p.grad = g
            flag.assign(flag | (~isfinite(g.values).all()).to(flag.device))

    def step(self, optimizer: Optimizer) -> None:
        """The optimizer's step, unless a gradient is not finite. Gradients that `unscale` has not
        divided are divided before."""
        if not self._enabled:
            optimizer.step()
            return
        stage = self._stage(optimizer)
        if stage is not None and stage.is_done:
            raise RuntimeError("GradScaler.step: it was called already since the last update")
        stage = stage or self._unscale(optimizer)
        if _core.is_tracing():
            with no_grad():
                optimizer._steps(stage.found)
        elif not stage.found.item():
            optimizer.step()
        stage.is_done = True

    @no_grad()
    def update(self) -> None:
        """The next scale. Call it after the steps of all optimizers."""
        if not self._enabled:
            return
        record = _touched.here.record
        stages = [x for x in self._stages.values() if x.record is record]
        if not stages:
            raise RuntimeError("GradScaler.update: no step was made since the last one")
        self._stages.clear()
        if record is not None:
            record.unfinished.pop(id(self), None)
        found = stages[0].found
        for stage in stages[1:]:
            found = found | stage.found.to(found.device)
        good = self._good + 1
        grown = self._scale * self._growth
        grows = (good >= self._interval) & isfinite(grown)
        scale = where(grows, grown, self._scale)
        self._good.assign(where(found | (good >= self._interval), 0, good).astype(int32))
        self._scale.assign(where(found, self._scale * self._backoff, scale))

    def state_dict(self) -> dict[str, Any]:
        """The scale, and how many steps in a row were made: plain numbers."""
        return {"scale": float(self._scale.item()), "good_steps": int(self._good.item())}

    @no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned. Factors are those that it was made with."""
        scale, good = float(state["scale"]), int(state["good_steps"])
        if not scale > 0:
            raise ValueError(f"load_state_dict: the scale must be positive, got {scale!r}")
        self._scale.assign(full((), scale, device=self._scale.device))
        self._good.assign(full((), good, dtype=int32, device=self._good.device))
