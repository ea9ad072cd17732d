"""L-BFGS: steps along the gradient, turned by what was learnt of the curvature.

Sources: Nocedal & Wright, Numerical optimization, 2nd edition, algorithms 7.4 and 7.5 (the
directions), 3.5 and 3.6 (the line search), equation 3.59 (the cubic). Safeguards and limits are
those of PyTorch, so that the steps are its steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wengert import _core
from wengert._core import CaptureError, Tensor, concat, enable_grad, no_grad, zeros_like
from wengert._rows import rows_of
from wengert.optim.optimizer import Optimizer, Parameters


class _Point(NamedTuple):
    """A point of a line: how far, the loss, the gradient, its slope along the line."""

    t: float
    loss: float
    g: Tensor
    slope: float


@dataclasses.dataclass
class _Memory:
    """What is known from the steps before."""

    func_evals: int = 0
    n_iter: int = 0
    t: float = 1.0
    scale: float = 1.0
    direction: Tensor | None = None
    before: Tensor | None = None
    ys: list[Tensor] = dataclasses.field(default_factory=list)
    ss: list[Tensor] = dataclasses.field(default_factory=list)


class LBFGS(Optimizer):
    """L-BFGS over all parameters together; one group, and a closure that computes the loss.

    A step makes at most `max_iter` iterations and `max_eval` calls of the closure (5/4 of
    `max_iter`, if it is not given). It ends where no gradient is above `tolerance_grad`, or
    nothing changes by more than `tolerance_change`. Directions are made of the last
    `history_size` ones. `line_search_fn="strong_wolfe"` looks for a point along each direction
    that satisfies Wolfe's conditions; without it each iteration goes `lr` of the way. With
    `maximize` a step goes up.

    The line search reads values, so a captured function has no step of it. Compile what the
    closure calls.

    >>> p = wg.tensor([3.0, -2.0], requires_grad=True)
    >>> optimizer = optim.LBFGS([p], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((p - wg.tensor([1.0, 2.0])) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), (abs(p - wg.tensor([1.0, 2.0])) < 1e-5).tolist()
    (20.0, [True, True])
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
        *,
        maximize: bool = False,
    ) -> None:
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(
                f"LBFGS: line_search_fn must be None or 'strong_wolfe', got {line_search_fn!r}"
            )
        for key, value in {"max_iter": max_iter, "history_size": history_size}.items():
            if value < 1:
                raise ValueError(f"LBFGS: {key} must be positive, got {value!r}")
        super().__init__(
            params, lr=lr, max_iter=max_iter,
            max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
            tolerance_grad=tolerance_grad, tolerance_change=tolerance_change,
            history_size=history_size, line_search_fn=line_search_fn, maximize=maximize,
        )  # fmt: skip
        if len(self.param_groups) != 1:
            raise ValueError(f"LBFGS: there is one group, got {len(self.param_groups)}")
        self._memory = _Memory()

    def _params(self) -> list[Tensor]:
        return [p for p in self.param_groups[0]["params"] if p.requires_grad]

    def _place(self, x: Tensor) -> None:
        """Put a flat vector into the parameters."""
        at = 0
        for p in self._params():
            n = math.prod(p.shape)
            p.assign(x[at : at + n].reshape(p.shape).astype(p.dtype))
            at += n

    def _evaluate(self, closure: Callable[[], Any]) -> tuple[Any, float, Tensor]:
        """What the closure returns, and what goes down, the loss or its negative, with gradient."""
        with enable_grad():
            result = closure()
        self._memory.func_evals += 1
        for p in self._params():
            if rows_of(p) is not None:
                self._check_rows(p, self.param_groups[0])
        grads = [zeros_like(p) if p.grad is None else p.grad.detach() for p in self._params()]
        sign = -1.0 if self.param_groups[0]["maximize"] else 1.0
        return result, sign * float(result), concat([g.reshape(-1) for g in grads]) * sign

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call the closure, which drops gradients, computes a loss and its gradients and returns
        the loss, and go down from there. Returns the first loss. A step that fails changes no
        parameter."""
        if closure is None:
            raise TypeError("LBFGS: step needs a closure, which computes the loss and gradients")
        if _core.is_tracing():
            raise CaptureError("LBFGS: a step reads values; compile what its closure calls")
        if not self._params():
            raise ValueError("LBFGS: all parameters are frozen")
        before = [(p, p.detach()) for p in self._params()]
        m = self._memory
        memory = dataclasses.replace(m, ys=list(m.ys), ss=list(m.ss))
        try:
            return self._descend(closure)
        except BaseException:
            for p, value in before:
                p.assign(value)
            self._memory = memory
            raise

    def _descend(self, closure: Callable[[], Any]) -> Any:
        group, memory = self.param_groups[0], self._memory
        lr, most, tolerance = float(group["lr"]), group["max_iter"], group["tolerance_change"]
        result, loss, g = self._evaluate(closure)
        calls = 1
        if _largest(g) <= group["tolerance_grad"]:
            return result
        for i in range(1, most + 1):
            d = self._direction(g)
            memory.direction, memory.before = d, g
            memory.t = lr * (min(1.0, 1.0 / float(abs(g).sum())) if memory.n_iter == 1 else 1.0)
            slope = _dot(g, d)
            if slope > -tolerance:
                break
            x, loss_before = concat([p.detach().reshape(-1) for p in self._params()]), loss
            if group["line_search_fn"] is None:
                self._place(x + d * memory.t)
                # The last gradient would be that of the next step, which computes it.
                if i < most:
                    _, loss, g = self._evaluate(closure)
                    calls += 1
            else:
                start = memory.func_evals

                def at(t: float, x: Tensor = x, d: Tensor = d) -> _Point:
                    self._place(x + d * t)
                    _, loss, g = self._evaluate(closure)
                    return _Point(t, loss, g, _dot(g, d))

                found = _strong_wolfe(at, memory.t, _Point(0.0, loss, g, slope), _largest(d))
                memory.t, loss, g, _ = found
                self._place(x + d * found.t)
                calls += memory.func_evals - start
            if (
                calls >= group["max_eval"]
                or _largest(g) <= group["tolerance_grad"]
                or _largest(d * memory.t) <= tolerance
                or abs(loss - loss_before) < tolerance
            ):
                break
        return result

    def _direction(self, g: Tensor) -> Tensor:
        """Where to go: the gradient times the inverse Hessian that the history makes."""
        memory = self._memory
        memory.n_iter += 1
        if memory.before is None or memory.direction is None:
            return -g
        y, s = g - memory.before, memory.direction * memory.t
        curvature = _dot(y, s)
        if curvature > 1e-10:
            if len(memory.ys) == self.param_groups[0]["history_size"]:
                del memory.ys[0], memory.ss[0]
            memory.ys.append(y)
            memory.ss.append(s)
            memory.scale = curvature / _dot(y, y)
        rhos = [1.0 / _dot(y, s) for y, s in zip(memory.ys, memory.ss, strict=True)]
        q, parts = -g, []
        for y, s, rho in reversed(list(zip(memory.ys, memory.ss, rhos, strict=True))):
            parts.append(_dot(s, q) * rho)
            q = q - y * parts[-1]
        q = q * memory.scale
        for y, s, rho in zip(memory.ys, memory.ss, rhos, strict=True):
            q = q + s * (parts.pop() - _dot(y, q) * rho)
        return q

    def state_dict(self) -> dict[str, Any]:
        """The history and hyperparameters."""
        m = self._memory
        group = {**self.param_groups[0], "params": list(range(len(self.param_groups[0]["params"])))}
        state: dict[str, Any] = {
            "func_evals": m.func_evals, "n_iter": m.n_iter, "t": m.t, "H_diag": m.scale,
            "old_dirs": list(m.ys), "old_stps": list(m.ss),
        }  # fmt: skip
        if m.direction is not None and m.before is not None:
            state |= {"d": m.direction, "prev_flat_grad": m.before}
        return {"state": {0: state} if m.n_iter else {}, "param_groups": [group]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; what does not fit raises `ValueError`, and then
        nothing is changed."""
        groups, own = state_dict["param_groups"], self.param_groups[0]
        sizes = [len(g["params"]) for g in groups]
        if sizes != [len(own["params"])]:
            wanted = [len(own["params"])]
            raise ValueError(f"load_state_dict: groups of {sizes} parameters, wanted {wanted}")
        state, n = state_dict["state"].get(0, {}), sum(math.prod(p.shape) for p in own["params"])
        vectors = [*state.get("old_dirs", ()), *state.get("old_stps", ())]
        vectors += [state[k] for k in ("d", "prev_flat_grad") if k in state]
        for x in vectors:
            if tuple(x.shape) != (n,):
                raise ValueError(f"load_state_dict: a vector is {tuple(x.shape)}, wanted {(n,)}")
        memory = _Memory()
        if state:
            memory = _Memory(
                state["func_evals"], state["n_iter"], state["t"], state["H_diag"], state.get("d"),
                state.get("prev_flat_grad"), list(state["old_dirs"]), list(state["old_stps"]),
            )  # fmt: skip
        own.update({k: v for k, v in groups[0].items() if k != "params"})
        self._memory = memory


def _dot(x: Tensor, y: Tensor) -> float:
    return float((x * y).sum())


def _largest(x: Tensor) -> float:
    return float(abs(x).max()) if x.size else 0.0


def _cubic(a: _Point, b: _Point, low: float, high: float) -> float:
    """Where the cubic through two points with their slopes is least, within bounds."""
    if a.t > b.t:
        a, b = b, a
    d = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.t - b.t)
    square = d * d - a.slope * b.slope
    if square < 0.0 or math.isnan(square):
        return (low + high) / 2.0
    root = math.sqrt(square)
    below = b.slope - a.slope + 2.0 * root
    if below == 0.0:
        return (low + high) / 2.0
    t = b.t - (b.t - a.t) * ((b.slope + root - d) / below)
    return min(max(t, low), high)


_DECREASE, _CURVATURE = 1e-4, 0.9
"""The constants of Wolfe's conditions."""

_LOOKS = 25
"""How many points a line search tries after its first."""


def _strong_wolfe(at: Callable[[float], _Point], t: float, start: _Point, size: float) -> _Point:
    """A point along a line with less loss and a flat enough slope; or the best that was found.

    `size` is the largest element of the direction: intervals in which no element changes by 1e-9
    are not looked into.
    """

    def is_high(x: _Point) -> bool:
        return not x.loss <= start.loss + _DECREASE * x.t * start.slope

    def is_flat(x: _Point) -> bool:
        return abs(x.slope) <= -_CURVATURE * start.slope

    # Go on until the interval between two points must have a good one in it.
    before, now, looks = start, at(t), 0
    while looks < _LOOKS:
        if is_high(now) or (looks > 1 and now.loss >= before.loss):
            break
        if is_flat(now):
            return now
        if now.slope >= 0.0:
            break
        t = _cubic(before, now, now.t + 0.01 * (now.t - before.t), now.t * 10.0)
        before, now, looks = now, at(t), looks + 1
    else:
        before = start

    # Make the interval smaller; `low` is the end with less loss.
    low, high = (before, now) if before.loss <= now.loss else (now, before)
    is_stuck = False
    while looks < _LOOKS and abs(high.t - low.t) * size >= 1e-9:
        left, right = min(low.t, high.t), max(low.t, high.t)
        t, margin = _cubic(low, high, left, right), 0.1 * (right - left)
        # A point near an end twice in a row, or at it, is moved away from it.
        if min(right - t, t - left) < margin:
            if is_stuck or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                is_stuck = False
            else:
                is_stuck = True
        else:
            is_stuck = False
        now, looks = at(t), looks + 1
        if is_high(now) or now.loss >= low.loss:
            low, high = (low, now) if low.loss <= now.loss else (now, low)
        else:
            if is_flat(now):
                return now
            high = low if now.slope * (high.t - low.t) >= 0.0 else high
            low = now
    return low
