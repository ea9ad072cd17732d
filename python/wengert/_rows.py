"""Row-sparse gradients: the rows of a table that lookups reached, by their index."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from wengert import _core
from wengert._core import Tensor, no_grad

__all__ = ["RowSparse"]


class RowSparse:
    """A row-sparse gradient: `values[i]` belongs to row `indices[i]`; all other rows are zero.

    `indices`: integers (n,), negative ones count from the end; `values`: (n, …); `shape`: that of
    the whole, (rows, …). Rows of one index count as their sum. `nn.Embedding(sparse=True)` has such
    a gradient after an eager `backward()`.

    >>> table = wg.zeros((4, 1), requires_grad=True)
    >>> nn.embedding(wg.tensor([2, 0, 2]), table, sparse=True).sum().backward()
    >>> table.grad
    RowSparse(indices=[2, 0, 2], values=[[1.0], [1.0], [1.0]], shape=(4, 1))
    >>> table.grad.coalesce()
    RowSparse(indices=[0, 2], values=[[1.0], [2.0]], shape=(4, 1))
    """

    __slots__ = ("_is_coalesced", "indices", "shape", "values")

    indices: Tensor
    values: Tensor
    shape: tuple[int, ...]
    _is_coalesced: bool

    def __init__(self, indices: Any, values: Any, shape: tuple[int, ...]) -> None:
        values = _core.asarray(values).detach()
        indices = _core.asarray(indices, device=values.device).detach()
        shape = tuple(shape)
        if not _core.isdtype(indices.dtype, "integral") or indices.ndim != 1:
            got = f"{indices.dtype} {tuple(indices.shape)}"
            raise _core.ShapeError(f"RowSparse: indices are integers (n,), got {got}")
        wanted = (indices.shape[0], *shape[1:])
        if not shape or tuple(values.shape) != wanted:
            got = f"values {tuple(values.shape)} for indices {tuple(indices.shape)} and {shape}"
            raise _core.ShapeError(f"RowSparse: values are (n, …) of a shape (rows, …), got {got}")
        indices = indices.astype(_core.int64)
        if bool(((indices < -shape[0]) | (indices >= shape[0])).any()):
            raise IndexError(f"RowSparse: an index is outside of {shape[0]} rows")
        self.indices, self.values, self.shape = indices % max(shape[0], 1), values, shape
        self._is_coalesced = False

    @classmethod
    def _of(
        cls, indices: Tensor, values: Tensor, shape: tuple[int, ...], is_coalesced: bool = False
    ) -> RowSparse:
        """One whose parts are known to fit."""
        self = cls.__new__(cls)
        self.indices, self.values, self.shape = indices, values, shape
        self._is_coalesced = is_coalesced
        return self

    def _with(self, values: Tensor) -> RowSparse:
        return RowSparse._of(self.indices, values, self.shape, self._is_coalesced)

    @property
    def dtype(self) -> _core.DType:
        """The element type."""
        return self.values.dtype

    @property
    def device(self) -> Any:
        """Where the rows lie."""
        return self.values.device

    @property
    def ndim(self) -> int:
        """The number of axes of the whole."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of rows and indices."""
        return int(self.values.nbytes) + int(self.indices.nbytes)

    def coalesce(self) -> RowSparse:
        """The same with rising indices, each once: rows of one index are added in their order, as
        `to_dense` adds them."""
        if self._is_coalesced:
            return self
        with no_grad():
            if not self.indices.shape[0]:
                return RowSparse._of(self.indices, self.values, self.shape, True)
            ordered = _core.sort(self.indices)
            first = ordered[1:] != ordered[:-1]
            indices = _core.concat([ordered[:1], ordered[1:][first]])
            if indices.shape[0] == ordered.shape[0]:
                values = self.values[_core.argsort(self.indices)]
            else:
                places = _core.searchsorted(indices, self.indices)
                sums = (indices.shape[0], *self.shape[1:])
                zero = _core.zeros(sums, dtype=self.dtype, device=self.device)
                values = _core.index_add(zero, places, self.values)
            return RowSparse._of(indices, values, self.shape, True)

    def to_dense(self) -> Tensor:
        """The whole gradient."""
        with no_grad():
            zero = _core.zeros(self.shape, dtype=self.dtype, device=self.device)
            return _core.index_add(zero, self.indices, self.values)

    def to(self, device: Any) -> RowSparse:
        """The same on a device."""
        indices, values = self.indices.to(device), self.values.to(device)
        return RowSparse._of(indices, values, self.shape, self._is_coalesced)

    def astype(self, dtype: Any) -> RowSparse:
        """The same in another dtype."""
        return self._with(self.values.astype(dtype))

    def detach(self) -> RowSparse:
        """The same; it has no history."""
        return self

    def __add__(self, other: Any) -> RowSparse:
        if not isinstance(other, RowSparse):
            return NotImplemented
        if other.shape != self.shape:
            raise _core.ShapeError(f"RowSparse: shapes {self.shape} and {other.shape} differ")
        indices = _core.concat([self.indices, other.indices])
        return RowSparse._of(indices, _core.concat([self.values, other.values]), self.shape)

    def __mul__(self, factor: Any) -> RowSparse:
        return self._with(self.values * self._factor(factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> RowSparse:
        return self._with(self.values / self._factor(divisor))

    def __neg__(self) -> RowSparse:
        return self._with(-self.values)

    def _factor(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            if x.ndim:
                raise _core.ShapeError(
                    f"RowSparse: a factor is a number, got shape {tuple(x.shape)}; "
                    "call to_dense() first"
                )
            return x.astype(self.dtype)
        return x

    def __repr__(self) -> str:
        count, size = self.indices.shape[0], math.prod(self.shape[1:])
        if count * size <= 24:
            parts = f"indices={self.indices.tolist()}, values={self.values.tolist()}"
        else:
            parts = f"{count} rows"
        dtype = "" if self.dtype == _core.float32 else f", dtype={self.dtype}"
        return f"RowSparse({parts}, shape={self.shape}{dtype})"

    def __array__(self, *_args: Any, **_options: Any) -> NoReturn:
        raise TypeError("RowSparse: a row-sparse gradient is no array; call to_dense() first")

    def __getattr__(self, name: str) -> NoReturn:
        hint = ""
        if not name.startswith("_") and hasattr(Tensor, name):
            hint = "; to_dense() gives a tensor, and values holds the rows"
        raise AttributeError(f"RowSparse: a row-sparse gradient has no {name!r}{hint}")


def rows_of(p: Tensor) -> RowSparse | None:
    """The gradient of a parameter, if it is row-sparse."""
    g: Any = p.grad
    return g if isinstance(g, RowSparse) else None
