"""The device that new tensors lie on."""

from __future__ import annotations

from typing import Any

from wengert import _core
from wengert._core import Device

__all__ = ["default_device"]


class default_device:
    """While it is entered, this thread makes new tensors on `device`.

    So do the layers of `wengert.nn` with their parameters, and `wengert.random`. What is made of
    other tensors lies where they do.

    >>> with wg.default_device("reference"):
    ...     x = wg.zeros(2)
    >>> x.device, wg.zeros(2).device
    (device("reference"), device("cpu"))
    """

    __slots__ = ("_before", "device")

    def __init__(self, device: str | Device) -> None:
        self.device = _core.device(device)
        self._before: list[Device] = []

    def __enter__(self) -> Device:
        """Enter it: the device."""
        self._before.append(_core._set_current_device(self.device))
        return self.device

    def __exit__(self, *exception: Any) -> None:
        _core._set_current_device(self._before.pop())
