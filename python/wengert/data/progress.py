"""A progress bar where there is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["progress"]


class _Plain:
    """What `progress` gives without tqdm: the items, and methods that do nothing."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def set_postfix(self, *_: Any, **__: Any) -> None:
        """Where tqdm would show figures."""


def progress(items: Iterable[Any], description: str | None = None, total: int | None = None) -> Any:
    """`items`, with a progress bar on standard error where tqdm is installed.

    The result is iterable; `set_postfix(loss=...)` shows figures beside the bar.
    """
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return _Plain(items)
    return tqdm(items, desc=description, total=total)
