"""Schedules of the learning rate."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wengert import _core, _touched
from wengert._core import CaptureError, Tensor
from wengert._steps import Group
from wengert.optim.optimizer import Optimizer


class Schedule:
    """Sets the learning rates of an optimizer's groups as a function of the number of steps.

    Making a schedule sets the rates of step 0; call `step()` after each `optimizer.step()`. A
    subclass defines `rate`. The own rate of a group is its learning rate, or, where a schedule set
    that, the one before all schedules.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            kind = type(optimizer).__name__
            raise TypeError(f"{type(self).__name__}: expected an optimizer, got {kind}")
        self.optimizer = optimizer
        self.base = [_own_rate(g) for g in optimizer.param_groups]
        self.count = 0
        self._set()

    def rate(self, base: float, step: int) -> float:
        """The learning rate at a step, for a group whose own rate is `base`."""
        raise NotImplementedError(f"{type(self).__qualname__}: rate is not defined")

    def step(self) -> None:
        """Go on to the next step; inside a captured function, after each of its calls."""
        record = _touched.here.record
        if record is not None:
            record.active.append(self.optimizer)
            record.after.append(self)
            return
        self.count += 1
        self._set()

    def _set(self) -> None:
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            _set_rate(group, self.rate(base, self.count), base)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and the groups' own rates."""
        return {"count": self.count, "base": list(self.base)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; `ValueError` for another number of groups."""
        if len(state["base"]) != len(self.base):
            raise ValueError(
                f"load_state_dict: the schedule has {len(self.base)} groups, "
                f"the state {len(state['base'])}"
            )
        self.count, self.base = state["count"], list(state["base"])
        self._set()


def _own_rate(group: Group) -> Any:
    now, (scheduled, own) = group["lr"], group.scheduled
    return own if scheduled is not None and now == scheduled else now


def _set_rate(group: Group, rate: Any, own: Any) -> None:
    group["lr"] = rate
    group.scheduled = rate, own


def _positive(name: str, **values: float) -> None:
    """Refuse what is not positive."""
    for key, value in values.items():
        if not value > 0:
            raise ValueError(f"{name}: {key} must be positive, got {value!r}")


class LambdaSchedule(Schedule):
    """The groups' own rates times `factor(step)`."""

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float]) -> None:
        self.factor = factor
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """`base · factor(step)`."""
        return base * self.factor(step)


def _cosine(start: float, end: float, done: float) -> float:
    """Half a cosine from one value to another, of which a part is done."""
    return end + (start - end) * (1.0 + math.cos(math.pi * done)) / 2.0


def _line(start: float, end: float, done: float) -> float:
    """A line from one value to another, of which a part is done."""
    return start + (end - start) * done


def _warm_up(step: int, steps: int) -> float:
    """1/(n+1), 2/(n+1), …, then 1 from step n on."""
    return min(1.0, (step + 1) / (steps + 1))


class StepSchedule(Schedule):
    """The rate times `gamma` every `step_size` steps, after a linear warm-up."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, warmup_steps: int = 0
    ) -> None:
        _positive("StepSchedule", step_size=step_size)
        self.step_size, self.gamma, self.warmup_steps = step_size, gamma, warmup_steps
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """`base · gamma ** (step // step_size)`, less during the warm-up."""
        return base * self.gamma ** (step // self.step_size) * _warm_up(step, self.warmup_steps)


class CosineSchedule(Schedule):
    """A linear warm-up, then half a cosine from the groups' own rates down to `min_lr` at
    `total_steps`, where it stays."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, min_lr: float = 0.0
    ) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"CosineSchedule: wanted 0 <= warmup_steps < total_steps, got {warmup_steps} and "
                f"{total_steps}"
            )
        self.total_steps, self.warmup_steps, self.min_lr = total_steps, warmup_steps, min_lr
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """The rate of the warm-up or of the cosine."""
        if step < self.warmup_steps:
            return base * _warm_up(step, self.warmup_steps)
        done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return _cosine(base, self.min_lr, min(done, 1.0))


class ExponentialSchedule(Schedule):
    """The rate times `gamma` after every step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """`base · gamma ** step`."""
        return base * self.gamma**step


class MultiStepSchedule(Schedule):
    """The rate times `gamma` at each of the steps `milestones`."""

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """`base · gamma ** n`, where n milestones are reached."""
        return base * self.gamma ** bisect.bisect_right(self.milestones, step)


class LinearSchedule(Schedule):
    """The rate times a factor that goes along a line from `start_factor` to `end_factor` at
    `total_steps`, where it stays. With its defaults, a warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_steps: int = 5,
    ) -> None:
        _positive("LinearSchedule", total_steps=total_steps)
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_steps = total_steps
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """The groups' own rate times the factor."""
        done = min(step, self.total_steps) / self.total_steps
        return base * _line(self.start_factor, self.end_factor, done)


class PolynomialSchedule(Schedule):
    """The rate falls to 0 at `total_steps`, as a power of what is left, and stays there."""

    def __init__(self, optimizer: Optimizer, total_steps: int, power: float = 1.0) -> None:
        _positive("PolynomialSchedule", total_steps=total_steps)
        self.total_steps, self.power = total_steps, power
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """`base · (1 - step / total_steps) ** power`."""
        left = 1.0 - min(step, self.total_steps) / self.total_steps
        return float(base * left**self.power)


class CyclicSchedule(Schedule):
    """The rate of every group goes from `base_lr` to `max_lr` in `step_size_up` steps and back in
    `step_size_down` (as many, if it is not given), again and again (Smith, 2017).

    `mode`: `"triangular"`; `"triangular2"`, where each cycle is half as high as the one before; or
    `"exp_range"`, where the height is multiplied by `gamma ** step`. Momentum is left alone.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float,
        max_lr: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
    ) -> None:
        down = step_size_up if step_size_down is None else step_size_down
        _positive("CyclicSchedule", step_size_up=step_size_up, step_size_down=down)
        if mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(
                "CyclicSchedule: mode must be 'triangular', 'triangular2' or 'exp_range', "
                f"got {mode!r}"
            )
        self.base_lr, self.max_lr, self.mode, self.gamma = base_lr, max_lr, mode, gamma
        self.step_size_up, self.step_size_down = step_size_up, down
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """The rate of the cycle; `base` takes no part."""
        cycle, at = divmod(step, self.step_size_up + self.step_size_down)
        rest = self.step_size_up + self.step_size_down - at
        height = at / self.step_size_up if at < self.step_size_up else rest / self.step_size_down
        if self.mode == "triangular2":
            height /= 2.0**cycle
        elif self.mode == "exp_range":
            height *= self.gamma**step
        return _line(self.base_lr, self.max_lr, height)


class OneCycleSchedule(Schedule):
    """One cycle (Smith & Topin, 2018): every group's rate rises from `max_lr / div_factor` to
    `max_lr` during the first `pct_start` of `total_steps`, and falls to the initial rate over
    `final_div_factor` at the last, where it stays.

    With `three_phase` it falls to the initial rate first, as fast as it rose. `anneal` is `"cos"`
    or `"linear"`. Momentum is left alone.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        name = "OneCycleSchedule"
        _positive(name, total_steps=total_steps, div_factor=div_factor)
        _positive(name, final_div_factor=final_div_factor)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"{name}: pct_start must be in [0, 1], got {pct_start!r}")
        if anneal not in ("cos", "linear"):
            raise ValueError(f"{name}: anneal must be 'cos' or 'linear', got {anneal!r}")
        first = max_lr / div_factor
        last = first / final_div_factor
        top, end = pct_start * total_steps - 1.0, total_steps - 1.0
        self._anneal = _cosine if anneal == "cos" else _line
        self._points = [(0.0, first), (top, max_lr), (end, last)]
        if three_phase:
            self._points.insert(2, (2.0 * pct_start * total_steps - 2.0, first))
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """The rate of the cycle; `base` takes no part."""
        for (start, low), (end, high) in zip(self._points, self._points[1:], strict=False):
            if step <= end:
                return self._anneal(low, high, (step - start) / (end - start))
        return self._points[-1][1]


class WarmRestartSchedule(Schedule):
    """Half a cosine from the groups' own rates down to `min_lr` within `period` steps, again and
    again; each is `growth` times as long as the one before (Loshchilov & Hutter, 2017)."""

    def __init__(
        self, optimizer: Optimizer, period: int, growth: int = 1, min_lr: float = 0.0
    ) -> None:
        _positive("WarmRestartSchedule", period=period)
        if growth < 1:
            raise ValueError(f"WarmRestartSchedule: growth must be at least 1, got {growth!r}")
        self.period, self.growth, self.min_lr = period, growth, min_lr
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """The rate of the cosine."""
        length: float = self.period
        if self.growth == 1:
            return _cosine(base, self.min_lr, step % length / length)
        at: float = step
        while at >= length:
            at, length = at - length, length * self.growth
        return _cosine(base, self.min_lr, at / length)


class _Combined(Schedule):
    """Schedules of one optimizer, as one."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.schedules = list(schedules)
        name = type(self).__name__
        if not self.schedules:
            raise ValueError(f"{name}: there are no schedules")
        for s in self.schedules:
            if not isinstance(s, Schedule) or isinstance(s, PlateauSchedule):
                raise TypeError(
                    f"{name}: expected schedules by number of steps, got {type(s).__name__}"
                )
        if len({id(s.optimizer) for s in self.schedules}) > 1:
            raise ValueError(f"{name}: the schedules are of several optimizers")
        super().__init__(self.schedules[0].optimizer)


class ChainedSchedule(_Combined):
    """Several schedules at once: each gets what the one before gives as the groups' own rates, so
    factors are multiplied. Step this one, and not its parts."""

    def rate(self, base: float, step: int) -> float:
        """What the last of them gives."""
        for schedule in self.schedules:
            base = schedule.rate(base, step)
        return base


class SequentialSchedule(_Combined):
    """Schedules one after another: each from one of `milestones` on, where it begins with its own
    step 0. Step this one, and not its parts.

    >>> p = wg.ones(2, requires_grad=True)
    >>> optimizer = optim.SGD([p], lr=1.0)
    >>> warm_up = optim.LinearSchedule(optimizer, start_factor=0.5, total_steps=2)
    >>> fall = optim.ExponentialSchedule(optimizer, gamma=0.5)
    >>> schedule = optim.SequentialSchedule([warm_up, fall], milestones=[2])
    >>> rates = []
    >>> for _ in range(5):
    ...     rates.append(optimizer.lr)
    ...     schedule.step()
    >>> rates
    [0.5, 0.75, 1.0, 0.5, 0.25]
    """

    def __init__(self, schedules: Sequence[Schedule], milestones: Sequence[int]) -> None:
        self.milestones = list(milestones)
        if len(self.milestones) != len(schedules) - 1 or self.milestones != sorted(milestones):
            raise ValueError(
                f"SequentialSchedule: {len(schedules)} schedules need {len(schedules) - 1} rising "
                f"milestones, got {self.milestones}"
            )
        super().__init__(schedules)

    def rate(self, base: float, step: int) -> float:
        """That of the schedule whose turn it is."""
        i = bisect.bisect_right(self.milestones, step)
        start = self.milestones[i - 1] if i else 0
        return self.schedules[i].rate(base, step - start)


class PlateauSchedule(Schedule):
    """Multiplies all rates by `factor` when a metric was not better for more than `patience`
    steps; then waits `cooldown` steps before it counts again.

    `step(metric)` takes a number, or a tensor of one element, which it reads; so it is no part of a
    captured function. `mode` says whether lower (`"min"`) or higher (`"max"`) is better. It is
    better by more than `threshold`: that part of the best so far (`"rel"`) or that much (`"abs"`).
    No rate falls below `min_lr`, and none is changed by less than `eps`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not 0 <= factor < 1:
            raise ValueError(f"PlateauSchedule: factor must be in [0, 1), got {factor!r}")
        for key, value, known in (
            ("mode", mode, ("min", "max")),
            ("threshold_mode", threshold_mode, ("rel", "abs")),
        ):
            if value not in known:
                words = " or ".join(map(repr, known))
                raise ValueError(f"PlateauSchedule: {key} must be {words}, got {value!r}")
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.bad_steps = self.cooling = 0
        super().__init__(optimizer)

    def _set(self) -> None:
        """The rates stay until the metric does."""

    def step(self, metric: float | Tensor) -> None:  # type: ignore[override]
        """Look at the metric after another step."""
        if _touched.here.record is not None or _core.is_tracing():
            raise CaptureError(
                "PlateauSchedule: step reads its metric; call it outside the captured function"
            )
        now = float(metric)
        self.count += 1
        if self._is_better(now):
            self.best, self.bad_steps = now, 0
        else:
            self.bad_steps += 1
        if self.cooling > 0:
            self.cooling, self.bad_steps = self.cooling - 1, 0
        if self.bad_steps > self.patience:
            for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
                rate = max(group["lr"] * self.factor, self.min_lr)
                if group["lr"] - rate > self.eps:
                    _set_rate(group, rate, base)
            self.cooling, self.bad_steps = self.cooldown, 0

    def _is_better(self, now: float) -> bool:
        part = abs(self.best) if self.threshold_mode == "rel" else 1.0
        margin = self.threshold * part if math.isfinite(self.best) else 0.0
        return now < self.best - margin if self.mode == "min" else now > self.best + margin

    def state_dict(self) -> dict[str, Any]:
        """What was counted, the best metric, and the rates."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        counts = {"best": self.best, "bad_steps": self.bad_steps, "cooling": self.cooling}
        return {**super().state_dict(), **counts, "lr": rates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; `ValueError` for another number of groups."""
        rates, best = list(state["lr"]), state["best"]
        bad_steps, cooling = state["bad_steps"], state["cooling"]
        super().load_state_dict(state)
        self.best, self.bad_steps, self.cooling = best, bad_steps, cooling
        for group, rate, base in zip(self.optimizer.param_groups, rates, self.base, strict=True):
            _set_rate(group, rate, base)
