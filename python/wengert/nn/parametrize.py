"""Parameters that are computed from others: weights as a length and a direction, or divided by
their spectral norm.

A *parametrisation* of a module is a module below it, in `module.parametrizations[name]`; it holds
the parameters in the place of the one of that name, and calling it gives the value. Reading
`module.weight` calls it. The names of the state are PyTorch's (`torch.nn.utils.parametrizations`).
"""

from __future__ import annotations

from typing import TypeVar

from wengert import _core
from wengert._core import Tensor, no_grad, random
from wengert.nn._wanted import a_module
from wengert.nn.module import Buffer, Module, Parameter

__all__ = ["remove_parametrizations", "spectral_norm", "weight_norm"]

M = TypeVar("M", bound=Module)


def _register(module: Module, name: str, parametrisation: Module) -> None:
    known = dict(module.__dict__.get("parametrizations", {}))
    delattr(module, name)
    setattr(module, "parametrizations", {**known, name: parametrisation})  # noqa: B010


def _parameter(op: str, module: Module, name: str) -> Parameter:
    found = vars(a_module(op, module)).get(name)
    if not isinstance(found, Parameter):
        raise ValueError(f"{op}: {type(module).__name__} has no parameter {name!r} of its own")
    return found


class _WeightNorm(Module):
    """`original0 · original1 / ‖original1‖`, with one length for each slice along an axis."""

    def __init__(self, weight: Tensor, axis: int | None) -> None:
        self.axis = axis
        self.original0 = Parameter(self._length(weight), weight.requires_grad)
        self.original1 = Parameter(weight, weight.requires_grad)

    def _length(self, v: Tensor) -> Tensor:
        if self.axis is None:
            return _core.vector_norm(v)
        axes = tuple(i for i in range(v.ndim) if i != self.axis % v.ndim)
        return _core.vector_norm(v, axis=axes, keepdims=True) if axes else abs(v)

    def forward(self) -> Tensor:
        """The weight."""
        return self.original1 * (self.original0 / self._length(self.original1))


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Makes the parameter `name` of a module the product of lengths and directions.

    There is a length for each slice along axis `dim`, or one for all where it is None. Returns the
    module. Raises ValueError where it has no such parameter.

    Source: Salimans, Kingma: Weight normalization, 2016.

    >>> layer = nn.weight_norm(nn.Linear(2, 3))
    >>> list(layer.state_dict())
    ['bias', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
    """
    weight = _parameter("weight_norm", module, name)
    _register(module, name, _WeightNorm(weight, dim))
    return module


class _Power(Module):
    """The vectors of the power iteration."""

    def __init__(self, rows: Tensor, steps: int, eps: float) -> None:
        self.steps = steps
        self.eps = eps
        h, w = rows.shape
        draw = random.normal
        self._u = Buffer(self._unit(draw((h,), dtype=rows.dtype)))
        self._v = Buffer(self._unit(draw((w,), dtype=rows.dtype)))
        self.iterate(rows, 15)

    def _unit(self, x: Tensor) -> Tensor:
        return x / _core.maximum(_core.vector_norm(x), self.eps)

    def iterate(self, rows: Tensor, steps: int) -> None:
        """Turn the vectors towards those of the largest singular value."""
        with no_grad():
            u, v = self._u.detach(), self._v.detach()
            for _ in range(steps):
                u = self._unit(rows @ v)
                v = self._unit(u @ rows)
            self._u.assign(u)
            self._v.assign(v)


class _SpectralNorm(Module):
    """`original` divided by an estimate of its largest singular value."""

    def __init__(self, weight: Tensor, steps: int, eps: float, axis: int) -> None:
        self.axis = axis
        self.original = Parameter(weight, weight.requires_grad)
        setattr(self, "0", _Power(self._rows(weight.detach()), steps, eps))

    def _rows(self, weight: Tensor) -> Tensor:
        """The weight as a matrix, whose rows are along an axis."""
        return _core.moveaxis(weight, self.axis, 0).reshape((weight.shape[self.axis], -1))

    def forward(self) -> Tensor:
        """The weight. In training, the estimate is made better first."""
        power: _Power = getattr(self, "0")
        rows = self._rows(self.original)
        if self.training:
            power.iterate(rows.detach(), power.steps)
        u, v = power._u.detach(), power._v.detach()
        return self.original / (u @ (rows @ v))


def spectral_norm(
    module: M,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> M:
    """Divides the parameter `name` of a module by its largest singular value.

    The parameter counts as a matrix whose rows are along axis `dim`: by default 0, or 1 for
    transposed convolutions. The singular value is estimated by `n_power_iterations` steps of the
    power iteration each time the weight is read in training. Returns the module. Raises ValueError
    where it has no such parameter.

    Source: Miyato et al.: Spectral normalization for generative adversarial networks, 2018.
    """
    if n_power_iterations < 1:
        got = n_power_iterations
        raise ValueError(f"spectral_norm: n_power_iterations must be positive, got {got}")
    weight = _parameter("spectral_norm", module, name)
    if weight.ndim < 2:
        shape = tuple(weight.shape)
        raise _core.ShapeError(f"spectral_norm: {name} has shape {shape}, wanted a matrix or more")
    if dim is None:
        dim = int("ConvTranspose" in type(module).__name__)
    _register(module, name, _SpectralNorm(weight, n_power_iterations, eps, dim))
    return module


def remove_parametrizations(module: M, name: str = "weight") -> M:
    """Makes the value that a parametrised parameter has now an ordinary parameter again."""
    known = vars(a_module("remove_parametrizations", module)).get("parametrizations", {})
    if name not in known:
        raise ValueError(
            f"remove_parametrizations: {type(module).__name__} has no parametrised {name!r}"
        )
    with no_grad():
        value = getattr(module, name).detach()
    rest = {k: v for k, v in known.items() if k != name}
    if rest:
        setattr(module, "parametrizations", rest)  # noqa: B010
    else:
        delattr(module, "parametrizations")
    setattr(module, name, Parameter(value))
    return module
