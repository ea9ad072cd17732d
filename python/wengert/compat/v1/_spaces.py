"""The namespaces, which functions put themselves into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wengert.compat.v1._missing import remedy
from wengert.compat.v1._order import reading


class Space:
    """A namespace of TensorFlow's, such as `tf.nn`. An unknown name gives an error that says what
    to write."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(remedy(f"{self.__name__}.{name}"))

    def __repr__(self) -> str:
        return f"<namespace tf.{self.__name__}>"


nn, layers, losses, metrics = Space("nn"), Space("layers"), Space("losses"), Space("metrics")
train, summary = Space("train"), Space("summary")
top: dict[str, Any] = {}
"""The functions without a namespace."""


def formula(space: Space | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function into a namespace, as one that runs with the graph open."""

    def put(f: Callable[..., Any]) -> Callable[..., Any]:
        f = reading(f)
        if space is None:
            top[f.__name__] = f
        else:
            setattr(space, f.__name__, f)
        return f

    return put
