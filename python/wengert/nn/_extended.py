"""Functions that add options to the op of the same name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def extends(op: Callable[..., Any]) -> Callable[[F], F]:
    """Puts the op's docstring before that of a function, which is about the further options."""

    def documented(f: F) -> F:
        parts = [inspect.cleandoc(text) for text in (op.__doc__, f.__doc__) if text]
        f.__doc__ = "\n\n".join(parts)
        return f

    return documented
