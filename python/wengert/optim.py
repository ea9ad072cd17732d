"""Optimizers, schedules of the learning rate, and gradient clipping.

An optimizer updates parameters in place, under `no_grad`; parameters without a gradient and
frozen ones are left alone. Names, defaults and formulas are PyTorch's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from wengert import _core, _steps, _touched
from wengert._core import (
    CaptureError,
    Tensor,
    asarray,
    float32,
    float64,
    no_grad,
    sqrt,
    stack,
    zeros,
    zeros_like,
)
from wengert._steps import Group as Group

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CosineSchedule",
    "LambdaSchedule",
    "Optimizer",
    "Schedule",
    "StepSchedule",
    "adam",
    "clip_grad_norm",
    "clip_grad_value",
    "sgd",
    "sgd_momentum",
]

# Steps as functions of values: new parameters from old ones, with a gradient of their own.
adam, sgd, sgd_momentum = _core.optim.adam, _core.optim.sgd, _core.optim.sgd_momentum


Parameters = Iterable[Tensor] | Iterable[dict[str, Any]]

class Optimizer:
    """What optimizers share. A subclass passes its hyperparameters on and defines `update`.

    `params` are tensors, or groups: dicts with `"params"` and the hyperparameters that differ for
    them. `param_groups` holds the complete groups; what is written there counts at the next step.
    """

    def __new__(cls, *_args: Any, **_options: Any) -> Self:
        self = super().__new__(cls)
        _touched.made(self)
        return self

    def __init__(self, params: Parameters, **defaults: Any) -> None:
        given: list[Any] = list(params)
        if not given:
            raise ValueError(f"{type(self).__name__}: there are no parameters")
        groups: list[Any] = given if isinstance(given[0], dict) else [{"params": given}]
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: Group) -> None:
        """Add parameters with hyperparameters of their own."""
        name = type(self).__name__
        if not isinstance(group, dict) or "params" not in group:
            raise TypeError(f'{name}: a group is a dict with "params", got {group!r}')
        params = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        unknown = [k for k in group if k != "params" and k not in self.defaults]
        if unknown:
            raise ValueError(
                f"{name}: unknown hyperparameters {', '.join(unknown)}; "
                f"known are {', '.join(self.defaults)}"
            )
        known = {id(p) for g in self.param_groups for p in g["params"]}
        added: list[Tensor] = []
        for p in params:
            _check_parameter(name, p)
            if id(p) in known:
                raise ValueError(f"{name}: a parameter of shape {tuple(p.shape)} is given twice")
            known.add(id(p))
            added.append(p)
        complete = Group({**self.defaults, **group, "params": added})
        _check_hyperparameters(name, complete)
        self.param_groups.append(complete)
        _core.tick()

    @property
    def lr(self) -> float:
        """The learning rate of the first group; setting it sets that of every group."""
        return self.param_groups[0]["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.param_groups:
            group["lr"] = value

    def zero_grad(self) -> None:
        """Drop the gradient of every parameter."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def __setattr__(self, name: str, value: Any) -> None:
        _touched.assigning(self, name)
        object.__setattr__(self, name, value)
        _core.tick()

    @no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient and is not frozen.

        A step that fails changes nothing. The updates of `SGD`, `Adam` and `AdamW` are one program,
        which works in the memory that is there; those of other classes leave the values before
        alone until all are done.
        """
        record = _touched.here.record
        if record is not None:
            if any(schedule.optimizer is self for schedule in record.after):
                name = type(self).__name__
                raise CaptureError(f"{name}: a captured function steps its schedule before it")
            record.active.append(self)
        made: list[Tensor] = []
        try:
            work = list(self._work(made))
            if record is not None:
                record.created.extend((self.state, p) for p in made)
                _steps.update_all(self, work, record.runtime)
            elif _core.is_tracing():
                _steps.update_all(self, work, dict)
            else:
                self._step(work)
        except BaseException:
            if record is None:
                for p in made:
                    self.state.pop(p, None)
            raise

    def _work(self, made: list[Tensor]) -> Iterable[_steps.Work]:
        """What there is to update. State that has to be made goes to `made` as well."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.requires_grad:
                    state = self.state.get(p)
                    if state is None:
                        # State is made outside a capture, so that it lives on after it.
                        make = functools.partial(self.initial_state, p, group)
                        made.append(p)
                        state = self.state[p] = _core.outside_trace(make)
                    yield p, state, group

    def _step(self, work: list[_steps.Work]) -> None:
        """Make all updates, or none."""
        programs = _steps.programs_of(self)
        plain = type(self) in (SGD, Adam, AdamW)
        program = _steps.Program.of(self, work, programs) if plain else None
        if program is None or not program.executable.update():
            if program is not None:
                programs.remove(program)
            _steps.update_or_restore(self, work)

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """What is remembered about a parameter from its first update on."""
        raise NotImplementedError(f"{type(self).__qualname__}: initial_state is not defined")

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """Update one parameter, whose gradient is `g`, in place."""
        raise NotImplementedError(f"{type(self).__qualname__}: update is not defined")

    def state_dict(self) -> dict[str, Any]:
        """State and hyperparameters, parameters named by their position, as they are now."""
        groups, state, i = [], {}, 0
        for group in self.param_groups:
            for n, p in enumerate(group["params"], start=i):
                if p in self.state:
                    state[n] = {k: t.detach() for k, t in self.state[p].items()}
            size = len(group["params"])
            groups.append({**group, "params": list(range(i, i + size))})
            i += size
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned.

        All problems are listed in one `ValueError`, and then nothing is changed.
        """
        params = [p for g in self.param_groups for p in g["params"]]
        groups, state = state_dict["param_groups"], state_dict["state"]
        problems = list(self._problems(groups, state, params))
        if problems:
            name = type(self).__name__
            head = f"load_state_dict: {name} refuses the state:"
            raise ValueError("\n  ".join([head, *problems]))
        for own, group in zip(self.param_groups, groups, strict=True):
            own.update({k: v for k, v in group.items() if k != "params"})
        self.state = {
            params[i]: {
                k: asarray(t, device=params[i].device).detach() for k, t in entries.items()
            }
            for i, entries in state.items()
        }

    def _problems(self, groups: Any, state: Any, params: list[Tensor]) -> Iterable[str]:
        sizes, own = ([len(g["params"]) for g in gs] for gs in (groups, self.param_groups))
        if sizes != own:
            yield f"groups of {sizes} parameters, wanted {own}"
            return
        for i, (given, group) in enumerate(zip(groups, self.param_groups, strict=True)):
            if set(given) != set(group):
                yield f"group {i}: hyperparameters {sorted(given)}, wanted {sorted(group)}"
                return
        group_of = [g for g in groups for _ in g["params"]]
        for i, entries in state.items():
            if not 0 <= i < len(params):
                yield f"parameter {i}: there are {len(params)}"
                continue
            wanted = self.initial_state(params[i], group_of[i])
            if set(entries) != set(wanted):
                yield f"parameter {i}: state {sorted(entries)}, wanted {sorted(wanted)}"
                continue
            for k, t in wanted.items():
                got = entries[k]
                if got.shape != t.shape or got.dtype != t.dtype:
                    yield (
                        f"parameter {i}: {k} is {tuple(got.shape)} {got.dtype}, "
                        f"wanted {tuple(t.shape)} {t.dtype}"
                    )

    def __repr__(self) -> str:
        lines = []
        for group in self.param_groups:
            size = sum(math.prod(p.shape) for p in group["params"])
            words = [f"{k}={v!r}" for k, v in group.items() if k != "params"]
            lines.append(f"  {len(group['params'])} tensors, {size:,} numbers: {', '.join(words)}")
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


def _check_parameter(name: str, p: Any) -> None:
    from wengert.nn.module import Parameter

    if not isinstance(p, Tensor):
        raise TypeError(f"{name}: a parameter is a tensor, got {type(p).__name__}")
    # A frozen parameter of a module may be thawed; a plain tensor never gets a gradient.
    if not p.requires_grad and not isinstance(p, Parameter):
        raise _core.ArgumentError(
            f"{name}: a parameter must require a gradient: got {p.dtype} {tuple(p.shape)}; "
            "make it with requires_grad=True"
        )
    if not p.is_leaf:
        raise ValueError(
            f"{name}: a parameter of shape {tuple(p.shape)} was computed from others; "
            "only leaves can be optimised"
        )


# What a hyperparameter must satisfy, and how that is said.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lr": (lambda v: v >= 0, "not negative"),
    "eps": (lambda v: v >= 0, "not negative"),
    "weight_decay": (lambda v: v >= 0, "not negative"),
    "momentum": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "betas": (lambda v: len(v) == 2 and all(0 <= b < 1 for b in v), "a pair in [0, 1)"),
}


def _check_hyperparameters(name: str, group: Group) -> None:
    for key, (holds, text) in _RULES.items():
        if key in group and not holds(group[key]):
            raise ValueError(f"{name}: {key} must be {text}, got {group[key]!r}")
    if group.get("nesterov") and not group["momentum"]:
        raise ValueError(f"{name}: nesterov needs a momentum")


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum and weight decay λ (an L2 penalty).

        g ← g + λ p;  b ← momentum · b + g;  p ← p − lr · b

    With `nesterov` the step is `g + momentum · b`.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
        )

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The running sum of gradients, when there is momentum."""
        return {"momentum_buffer": zeros_like(p)} if group["momentum"] else {}

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        if not momentum:
            p.assign(sgd(p, g, lr=lr, weight_decay=decay))
            return
        b = state["momentum_buffer"]
        new, after = sgd_momentum(
            p, g, b, lr=lr, momentum=momentum, weight_decay=decay, nesterov=group["nesterov"]
        )
        p.assign(new)
        b.assign(after)


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015), with weight decay λ as an L2 penalty.

        g ← g + λ p;  m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²
        p ← p − lr · m̂ / (√v̂ + ε),  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)

    The t of a parameter counts its own updates, in float32, for float64 parameters in float64.
    """

    _decoupled = False

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def initial_state(self, p: Tensor, group: Group) -> dict[str, Tensor]:
        """The moments, and the number of steps (a tensor, so that it is state like any other)."""
        count = float64 if p.dtype == float64 else float32
        return {
            "step": zeros((), dtype=count, device=p.device),
            "exp_avg": zeros_like(p),
            "exp_avg_sq": zeros_like(p),
        }

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: Group) -> None:
        """One step."""
        (beta1, beta2), step = group["betas"], state["step"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        step += 1.0
        new, m_after, v_after = adam(
            p, g, m, v, step, lr=group["lr"], beta1=beta1, beta2=beta2, eps=group["eps"],
            weight_decay=group["weight_decay"], decoupled=self._decoupled,
        )
        p.assign(new)
        m.assign(m_after)
        v.assign(v_after)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019): p ← (1 − lr · λ) p before
    each step, and nothing added to the gradient."""

    _decoupled = True

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class Schedule:
    """Sets the learning rates of an optimizer's groups as a function of the number of steps.

    Making a schedule sets the rates of step 0; call `step()` after each `optimizer.step()`. A
    subclass defines `rate`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            kind = type(optimizer).__name__
            raise TypeError(f"{type(self).__name__}: expected an optimizer, got {kind}")
        self.optimizer = optimizer
        self.base = [g["lr"] for g in optimizer.param_groups]
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
            group["lr"] = self.rate(base, self.count)

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


class LambdaSchedule(Schedule):
    """The groups' own rates times `factor(step)`."""

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float]) -> None:
        self.factor = factor
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """`base · factor(step)`."""
        return base * self.factor(step)


def _warm_up(step: int, steps: int) -> float:
    """1/(n+1), 2/(n+1), …, then 1 from step n on."""
    return min(1.0, (step + 1) / (steps + 1))


class StepSchedule(Schedule):
    """The rate times `gamma` every `step_size` steps, after a linear warm-up."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, warmup_steps: int = 0
    ) -> None:
        if step_size < 1:
            raise ValueError(f"StepSchedule: step_size must be positive, got {step_size}")
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
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
        return self.min_lr + (base - self.min_lr) * cosine


@no_grad()
def clip_grad_norm(params: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients together so that their Euclidean norm is at most `max_norm`.

    Returns the norm before scaling, a scalar tensor. A norm that is not finite makes the
    gradients NaN, as their sum is; check the returned norm to skip such a step.
    """
    grads = [p.grad for p in _tensors("clip_grad_norm", params) if p.grad is not None]
    if not grads:
        return zeros(())
    norm = sqrt(stack([(g * g).sum() for g in grads]).sum())
    scale = (max_norm / norm).clip(max=1.0)
    for g in grads:
        g *= scale.astype(g.dtype)
    return norm


@no_grad()
def clip_grad_value(params: Tensor | Iterable[Tensor], max_value: float) -> None:
    """Clip every element of every gradient to [−max_value, max_value]."""
    for p in _tensors("clip_grad_value", params):
        if p.grad is not None:
            p.grad.assign(p.grad.clip(-max_value, max_value))


def _tensors(name: str, params: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """The tensors among which gradients are looked for."""
    found = [params] if isinstance(params, Tensor) else list(params)
    for p in found:
        if not isinstance(p, Tensor):
            raise TypeError(f"{name}: expected tensors, got {type(p).__name__}")
    return found


TYPE_CHECKING = False

if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown('optim', name))
