"""Linear algebra of products and norms.

Names and arguments are the Array API standard's and NumPy's. What the whole package has under the
same name (`matmul`, `vecdot` …) is the same function here. Solutions, decompositions and what
follows from them (determinants, inverses, singular values) are not here yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wengert._core import (
    ArgumentError,
    ShapeError,
    Tensor,
    asarray,
    broadcast_to,
    cross,
    diagonal,
    eye,
    matmul,
    matrix_transpose,
    outer,
    tensordot,
    trace,
    vecdot,
    vector_norm,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "cross", "diagonal", "matmul", "matrix_norm", "matrix_power", "matrix_transpose", "multi_dot",
    "norm", "outer", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def matrix_norm(
    x: Tensor | ArrayLike, *, keepdims: bool = False, ord: float | str = "fro"
) -> Tensor:
    """Norms of the matrices in the last two axes of `x` (…, M, N).

    `ord`: `"fro"`, the root of the sum of squares; 1 or -1, the largest or smallest sum of
    absolute values of a column; `inf` or `-inf`, of a row. Raises ValueError for others, which
    need singular values, ShapeError for rank 0 or 1.

    >>> wg.linalg.matrix_norm(wg.tensor([[1.0, -2.0], [3.0, 4.0]]), ord=wg.inf).item()
    7.0
    """
    x = _matrices("matrix_norm", asarray(x))
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(
            f"matrix_norm: ord must be 'fro', 1, -1, inf or -inf: got {ord!r}; norms of singular "
            "values are not there yet"
        )
    along, over = (-2, -1) if abs(ord) == 1 else (-1, -2)
    sums = x.abs().sum(axis=along, keepdims=True)
    largest = sums.max if ord > 0 else sums.min
    most = largest(axis=over, keepdims=True)
    return most if keepdims else most.reshape(most.shape[:-2])


def norm(
    x: Tensor | ArrayLike,
    ord: float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Tensor:
    """NumPy's norm: of vectors along an axis, or of matrices in two axes.

    Without `ord` it is the root of the sum of squares over `axis` (of all elements, where None).
    With `ord`, one axis or rank 1 gives `vector_norm`, two axes or rank 2 `matrix_norm`.
    Raises ValueError for other ranks.
    """
    x = asarray(x)
    if ord is None:
        return vector_norm(x, axis=axis, keepdims=keepdims)
    axes = axis if isinstance(axis, tuple) else tuple(range(x.ndim)) if axis is None else (axis,)
    if len(axes) == 2:
        y = matrix_norm(x.moveaxis(axes, (-2, -1)), ord=ord, keepdims=keepdims)
        return y.moveaxis((-2, -1), axes) if keepdims else y
    if len(axes) != 1 or isinstance(ord, str):
        raise ArgumentError(
            f"norm: ord={ord!r} is of vectors or matrices: got {len(axes)} axes; pass axis="
        )
    return vector_norm(x, axis=axes, keepdims=keepdims, ord=ord)


def matrix_power(x: Tensor | ArrayLike, n: int) -> Tensor:
    """The product of `n` times the square matrices `x` (…, M, M); for 0 the identity.

    By repeated squaring. Raises ValueError where `n` is negative (inverses are not there yet),
    ShapeError for matrices that are not square.

    >>> wg.linalg.matrix_power(wg.tensor([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    x = _matrices("matrix_power", asarray(x))
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"matrix_power: matrices must be square: got shape {x.shape}")
    if n < 0:
        raise ArgumentError(
            f"matrix_power: n must not be negative, since inverses are not there yet: got {n}"
        )
    if n == 0:
        one = eye(x.shape[-1], dtype=x.dtype, device=x.device)
        return broadcast_to(one, x.shape)
    # The product of the squares that the digits of n name, from the lowest on.
    while not n & 1:
        x, n = matmul(x, x), n >> 1
    power = x
    while n := n >> 1:
        x = matmul(x, x)
        if n & 1:
            power = matmul(power, x)
    return power


def multi_dot(arrays: Sequence[Tensor | ArrayLike]) -> Tensor:
    """The product of two or more matrices, in the order that takes the fewest multiplications.

    The first and the last may be vectors. Raises ValueError for fewer than two, ShapeError for
    other ranks and for sizes that do not fit.

    >>> wg.linalg.multi_dot([wg.ones(2), wg.ones((2, 3)), wg.ones((3, 4))]).tolist()
    [6.0, 6.0, 6.0, 6.0]
    """
    xs = [asarray(x) for x in arrays]
    if len(xs) < 2:
        raise ArgumentError(f"multi_dot: at least two arrays are multiplied: got {len(xs)}")
    for i, x in enumerate(xs):
        if x.ndim != 2 and not (x.ndim == 1 and i in (0, len(xs) - 1)):
            raise ShapeError(f"multi_dot: array {i} must be a matrix: got shape {x.shape}")
    drop_first, drop_last = xs[0].ndim == 1, xs[-1].ndim == 1
    if drop_first:
        xs[0] = xs[0].reshape((1, -1))
    if drop_last:
        xs[-1] = xs[-1].reshape((-1, 1))
    product = _chained(xs)
    shape = product.shape[1 if drop_first else 0 : 1 if drop_last else 2]
    return product.reshape(shape)


def _chained(xs: list[Tensor]) -> Tensor:
    """The matrix chain by dynamic programming (Cormen et al., Introduction to Algorithms)."""
    sizes = [int(x.shape[0]) for x in xs] + [int(xs[-1].shape[1])]
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i): (0, i) for i in range(len(xs))}
    for length in range(1, len(xs)):
        for i in range(len(xs) - length):
            j = i + length
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )

    def product(i: int, j: int) -> Tensor:
        if i == j:
            return xs[i]
        k = best[i, j][1]
        return matmul(product(i, k), product(k + 1, j))

    return product(0, len(xs) - 1)


def _matrices(name: str, x: Tensor) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"{name}: x must have rank 2 or more: got shape {x.shape}")
    return x


if not TYPE_CHECKING:

    def __getattr__(name):
        from wengert._words import unknown

        raise AttributeError(unknown("linalg", name))
