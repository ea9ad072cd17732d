"""Assertions for tests: closeness, and gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wengert import _core, pytree
from wengert._core import (
    Tensor,
    asarray,
    bfloat16,
    enable_grad,
    float16,
    float32,
    float64,
    isdtype,
    no_grad,
)

__all__ = ["assert_close", "gradcheck", "gradgradcheck"]

# Relative and absolute tolerance: some tens of units in the last place, and what sums need.
_TOLERANCES = {
    float16: (1e-3, 1e-5),
    bfloat16: (1.6e-2, 1e-5),
    float32: (1.3e-6, 1e-5),
    float64: (1e-7, 1e-7),
}


def assert_close(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
) -> None:
    """`AssertionError` unless `|actual − expected| ≤ atol + rtol |expected|` everywhere.

    Takes tensors, arrays, numbers, or pytrees of them. Shapes must be equal, and dtypes where both
    are tensors or arrays, unless `check_dtype=False`. The default tolerances are those of the less
    precise dtype; integers must be equal.
    """
    (a, ours), (b, theirs) = pytree.flatten_with_paths(actual), pytree.flatten_with_paths(expected)
    if ours != theirs:
        raise AssertionError(f"the structures differ: {ours} and {theirs}")
    for (path, x), (_, y) in zip(a, b, strict=True):
        _assert_close(path, x, y, rtol, atol, equal_nan, check_dtype)


def _assert_close(
    path: str,
    actual: Any,
    expected: Any,
    rtol: float | None,
    atol: float | None,
    equal_nan: bool,
    check_dtype: bool,
) -> None:
    import numpy as np

    both_typed = hasattr(actual, "dtype") and hasattr(expected, "dtype")
    a, b = asarray(actual, device="cpu"), asarray(expected, device="cpu")
    at = f" at {path}" if path else ""
    if a.shape != b.shape:
        raise AssertionError(f"shapes differ{at}: {tuple(a.shape)} and {tuple(b.shape)}")
    if check_dtype and both_typed and a.dtype != b.dtype:
        raise AssertionError(f"dtypes differ{at}: {a.dtype} and {b.dtype}")
    default = [max(t) for t in zip(_tolerance(a), _tolerance(b), strict=True)]
    rtol = default[0] if rtol is None else rtol
    atol = default[1] if atol is None else atol
    if rtol == atol == 0.0:  # integers, which float64 need not hold
        x, y = (t.detach().to("cpu").numpy() for t in (a, b))
        good = x == y
    else:
        x, y = (t.detach().astype(float64).to("cpu").numpy() for t in (a, b))
        good = np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if good.all():
        return
    with np.errstate(invalid="ignore"):
        error = np.abs(x.astype(np.float64) - y.astype(np.float64))
    size = np.where(good, -1.0, np.nan_to_num(error, nan=np.inf))
    worst = tuple(int(i) for i in np.unravel_index(size.argmax(), size.shape))
    p, q = x[worst].item(), y[worst].item()
    raise AssertionError(
        f"{(~good).sum()} of {good.size} elements differ{at} (rtol={rtol}, atol={atol}); worst at "
        f"{worst}: {p} and {q}, difference {abs(p - q):.3g}"
    )


def _tolerance(t: Tensor) -> tuple[float, float]:
    return _TOLERANCES.get(t.dtype, (0.0, 0.0))


def _floating(t: Tensor) -> bool:
    return isdtype(t.dtype, "real floating")


def gradcheck(
    f: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    eps: float = 1e-6,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    seed: int = 0,
) -> bool:
    """Compare the gradients of `f` with central differences.

    Floating inputs must be float64, and all of them are checked; others are passed on. Each output
    is projected onto random numbers (from `seed`), so every element of the Jacobian counts and one
    backward pass is enough. Returns `True`, or raises `AssertionError` naming the input and element
    that is worst.
    """
    args = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor) and _floating(x)]
    for i in places:
        if args[i].dtype != float64:
            raise TypeError(f"gradcheck: input {i} is {args[i].dtype}, wanted float64")
    weights = _Weights(seed)
    for i in places:
        args[i] = _leaf(args[i])
    with enable_grad():
        y = weights.project(f(*args))
    if not y.requires_grad:
        raise AssertionError("gradcheck: the result depends on no floating input")
    found = _core.gradients([y], [args[i] for i in places], allow_unused=True)
    for i, g in zip(places, found, strict=True):
        numeric = _differences(lambda: weights.project(f(*args)), args, i, eps)
        analytic = 0.0 * args[i].detach() if g is None else g.detach()
        _compare(i, analytic.to("cpu").numpy(), numeric, rtol, atol)
    return True


def gradgradcheck(
    f: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    eps: float = 1e-6,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    seed: int = 0,
) -> bool:
    """`gradcheck` of the gradient of `f`: checks second derivatives, also by the cotangents."""
    args = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor) and _floating(x)]
    weights = _Weights(seed)
    with no_grad():
        cotangents = [weights.like(y) for y in _outputs(f(*args))]

    def gradients(*both: Any) -> list[Tensor]:
        xs, gs = list(both[: len(args)]), both[len(args) :]
        for i in places:
            # Central differences move plain values; the inner gradient needs leaves.
            xs[i] = xs[i] if xs[i].requires_grad else _leaf(xs[i])
        with enable_grad():
            ys = _outputs(f(*xs))
            pairs = [(y, g) for y, g in zip(ys, gs, strict=True) if y.requires_grad]
            found = _core.gradients(
                [y for y, _ in pairs],
                [xs[i] for i in places],
                [g for _, g in pairs],
                create_graph=True,
                allow_unused=True,
            )
            return [g for g in found if g is not None]

    return gradcheck(gradients, [*args, *cotangents], eps, rtol, atol, seed + 1)


def _leaf(x: Tensor) -> Tensor:
    x = x.detach()
    x.requires_grad = True
    return x


def _outputs(result: Any) -> list[Tensor]:
    leaves, _ = pytree.flatten(result)
    return [y for y in leaves if isinstance(y, Tensor) and _floating(y)]


class _Weights:
    """The same random weights for the outputs of every call."""

    def __init__(self, seed: int) -> None:
        import numpy as np

        self._random = np.random.default_rng(seed)
        self._known: list[Tensor] = []

    def like(self, y: Tensor) -> Tensor:
        """Random numbers of the shape of `y`, away from zero."""
        r = self._random
        numbers = r.uniform(0.5, 1.5, y.shape) * r.choice([-1.0, 1.0], y.shape)
        return asarray(numbers).astype(y.dtype)

    def project(self, result: Any) -> Tensor:
        """The weighted sum of all floating outputs."""
        outputs = _outputs(result)
        if not outputs:
            raise AssertionError("gradcheck: the function returned no floating tensor")
        if not self._known:
            self._known = [self.like(y) for y in outputs]
        total = None
        for y, w in zip(outputs, self._known, strict=True):
            part = (y * w).sum()
            total = part if total is None else total + part
        assert total is not None
        return total


def _differences(f: Callable[[], Tensor], args: list[Any], i: int, eps: float) -> Any:
    """(f(x + eps) − f(x − eps)) / 2 eps for each element x of input `i`."""
    import numpy as np

    original = args[i]
    base = original.detach().to("cpu").numpy()
    result = np.zeros(base.shape)
    with no_grad():
        for at in np.ndindex(base.shape):
            ends = []
            for step in (eps, -eps):
                moved = base.copy()
                moved[at] += step
                args[i] = asarray(moved, device=original.device)
                ends.append(f().item())
            result[at] = (ends[0] - ends[1]) / (2.0 * eps)
    args[i] = original
    return result


def _compare(i: int, analytic: Any, numeric: Any, rtol: float, atol: float) -> None:
    import numpy as np

    error = np.abs(analytic - numeric)
    bad = ~(error <= atol + rtol * np.abs(numeric))
    if not bad.any():
        return
    size = np.where(bad, np.nan_to_num(error, nan=np.inf), -1.0)
    worst = tuple(int(k) for k in np.unravel_index(size.argmax(), bad.shape))
    raise AssertionError(
        f"gradcheck: input {i}, element {worst}: gradient {analytic[worst]:.9g}, "
        f"central difference {numeric[worst]:.9g} ({bad.sum()} of {bad.size} differ)"
    )
