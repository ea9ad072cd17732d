"""What the Array API's inspection asks of a namespace."""

from __future__ import annotations

from typing import Any

from wengert import _core
from wengert._core import Device, DType

__all__ = ["__array_namespace_info__"]


class NamespaceInfo:
    """What this namespace can do: the Array API's inspection."""

    def capabilities(self) -> dict[str, Any]:
        """What is optional in the standard."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": _core._MAX_RANK,
        }

    def default_device(self) -> Device:
        """Where new tensors lie."""
        return _core._current_device()

    def devices(self) -> tuple[Device, ...]:
        """Where tensors can lie."""
        return _core.devices()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes of new tensors, by kind."""
        _check(device)
        return {"real floating": _core.float32, "integral": _core.int64, "indexing": _core.int64}

    def dtypes(
        self, *, device: Any = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The dtypes of a kind (see `isdtype`) by name; all of them if none is given."""
        _check(device)
        every = {name: ty for name, ty in vars(_core).items() if isinstance(ty, DType)}
        if kind is None:
            return every
        return {name: ty for name, ty in every.items() if _core.isdtype(ty, kind)}


def _check(device: Any) -> None:
    if device is not None:
        _core.device(device)


def __array_namespace_info__() -> NamespaceInfo:
    """What this namespace can do: the Array API's inspection.

    >>> wg.__array_namespace_info__().default_dtypes()["integral"]
    wengert.int64
    """
    return NamespaceInfo()
