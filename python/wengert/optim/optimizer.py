"""What optimizers share: groups of parameters, their state, steps that are made or not made."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from wengert import _core, _steps, _touched
from wengert._core import (
    CaptureError,
    GradientError,
    Tensor,
    asarray,
    enable_grad,
    no_grad,
)
from wengert._rows import RowSparse
from wengert._steps import Group, Work

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
        if not isinstance(params, Iterable):
            kind, name = type(params).__qualname__, type(self).__name__
            hint = "; write model.parameters()" if hasattr(params, "parameters") else ""
            raise TypeError(f"{name}: params is an iterable of parameters, got a {kind}{hint}")
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
        lr: float = self.param_groups[0]["lr"]
        return lr

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
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient and is not frozen.

        A closure, which computes gradients, is called before; what it returned is returned.

        A step that fails changes nothing. The updates of the classes of `wengert.optim` are one
        program, which works in the memory that is there; those of other classes leave the values
        before alone until all are done.
        """
        if closure is None:
            return self._steps(None)
        with enable_grad():
            loss = closure()
        self._steps(None)
        return loss

    def _steps(self, skip: Tensor | None) -> None:
        """Make all updates, or none; with `skip`, which only a trace has, they are not made where
        it holds when the trace runs."""
        record = _touched.here.record
        if record is not None:
            if any(schedule.optimizer is self for schedule in record.after):
                name = type(self).__name__
                raise CaptureError(f"{name}: a captured function steps its schedule before it")
            record.active.append(self)
        made: list[Tensor] = []
        rows: list[Work] = []
        try:
            work = list(self._work(made, rows))
            if record is not None:
                record.created.extend((self.state, p) for p in made)
                with _touched.inside(type(self).__name__):
                    _steps.update_all(self, work, record.runtime, skip)
            elif _core.is_tracing():
                _steps.update_all(self, work, dict, skip)
            elif rows:
                _steps.update_rows(self, rows, lambda: self._step(work))
            else:
                self._step(work)
        except BaseException:
            if record is None:
                for p in made:
                    self.state.pop(p, None)
            raise

    def _work(self, made: list[Tensor], rows: list[Work]) -> Iterable[Work]:
        """What there is to update: by row-sparse gradients, which no trace has, in `rows`, all else
        yielded. State that has to be made goes to `made` as well."""
        for group in self.param_groups:
            for p in group["params"]:
                g: Any = p.grad
                if g is None or not p.requires_grad:
                    continue
                is_sparse = type(g) is RowSparse
                if is_sparse:
                    self._check_rows(p, group)
                state = self.state.get(p)
                if state is None:
                    # State is made outside a capture, so that it lives on after it.
                    make = functools.partial(self.initial_state, p, group)
                    made.append(p)
                    state = self.state[p] = _core.outside_trace(make)
                if is_sparse:
                    rows.append((p, state, group))
                else:
                    yield p, state, group

    def _check_rows(self, p: Tensor, group: Group) -> None:
        why = self._refuses_rows(group)
        if why:
            raise GradientError(
                f"{type(self).__name__}: the gradient of a parameter of shape {tuple(p.shape)} is "
                f"row-sparse: {why}; or write p.grad = p.grad.to_dense()"
            )

    def _refuses_rows(self, _group: Group) -> str:
        """Why it takes no row-sparse gradients, if it takes none. A class that does updates nothing
        where a gradient is zero, and each element by itself."""
        return "use SGD, Adagrad or SparseAdam, which take such"

    def _step(self, work: list[Work]) -> None:
        """Make all updates, or none."""
        programs = _steps.programs_of(self)
        # Updates of other classes may do anything, which a trace would fix.
        ours = type(self).__module__.startswith("wengert.optim.")
        program = _steps.Program.of(self, work, programs) if ours else None
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
    "lr_decay": (lambda v: v >= 0, "not negative"),
    "initial_accumulator_value": (lambda v: v >= 0, "not negative"),
    "rho": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "alpha": (lambda v: v >= 0, "not negative"),
    "lambd": (lambda v: v >= 0, "not negative"),
    "momentum_decay": (lambda v: v >= 0, "not negative"),
    "etas": (lambda v: len(v) == 2 and 0 < v[0] < 1 < v[1], "a pair around 1, above 0"),
    "step_sizes": (lambda v: len(v) == 2 and 0 <= v[0] <= v[1], "a pair that rises from 0 on"),
}


def _check_hyperparameters(name: str, group: Group) -> None:
    for key, (holds, text) in _RULES.items():
        if key in group and not holds(group[key]):
            raise ValueError(f"{name}: {key} must be {text}, got {group[key]!r}")
    if group.get("nesterov") and not group["momentum"]:
        raise ValueError(f"{name}: nesterov needs a momentum")
    if group.get("nesterov") and group["dampening"]:
        raise ValueError(f"{name}: nesterov takes no dampening, got {group['dampening']!r}")
