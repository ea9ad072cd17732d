"""Mixed precision: products in a narrow dtype, what needs digits in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from wengert import _core
from wengert._core import DType, bfloat16

__all__ = ["autocast"]

P = ParamSpec("P")
R = TypeVar("R")


class autocast:
    """While it is entered, this thread calls products on `dtype`, bfloat16 or float16, and softmax,
    norms and losses on float32; other ops follow the dtypes of their operands.

    Operands of float32 and of half floats are cast; where one is float64 none is, nor are integers.
    docs/mixed-precision.md has the list of ops, which their declarations decide. Parameters stay
    float32, and so do their gradients. `enabled=False` switches it off inside another block. Also
    a decorator. Compiled functions are traced for the mode they are called in. Rules written in
    Python (`Function.backward`, `custom_op`) compute what they say.

    >>> x = wg.ones((2, 3))
    >>> with wg.autocast(wg.bfloat16):
    ...     y = nn.softmax(x @ x.T)
    >>> (x @ x.T).dtype, y.dtype
    (wengert.float32, wengert.float32)
    """

    __slots__ = ("_before", "dtype", "enabled")

    def __init__(self, dtype: DType = bfloat16, enabled: bool = True) -> None:
        self.dtype, self.enabled = dtype, enabled
        self._before: list[DType | None] = []
        # A dtype that is none of these is refused here, not when it is entered.
        _core._set_autocast(_core._set_autocast(dtype))

    def __enter__(self) -> autocast:
        self._before.append(_core._set_autocast(self.dtype if self.enabled else None))
        return self

    def __exit__(self, *exception: Any) -> None:
        _core._set_autocast(self._before.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, entered at each call."""

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with autocast(self.dtype, self.enabled):
                return function(*args, **kwargs)

        return wrapped
