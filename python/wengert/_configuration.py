"""`show_config`: version, build, instruction sets, devices, threads and settings."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator

from wengert import _core

__all__ = ["show_config"]


def show_config() -> None:
    """Print what reports of mistakes should say: the version and build, instruction sets, devices,
    threads, and the settings read from the environment. `python -m wengert` does the same.

    >>> wg.show_config()  # doctest: +ELLIPSIS
    wengert ...
    """
    print("\n".join(_lines()))


def _lines() -> Iterator[str]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield f"wengert {_core.__version__}, {python}, {platform.platform()}"
    yield from _rows("build", [*_core._build(), ("library", str(_core.__file__))])
    sets = _core._instruction_sets()
    yield f"instruction sets: {', '.join(sets)} (in use: {sets[-1]})"
    yield from _rows("devices", _devices())
    yield f"threads: {_core.get_num_threads()}"
    versions = [
        (name, str(getattr(sys.modules[name], "__version__", "?")))
        for name in ("numpy", "pyarrow", "wgpu", "torch", "jax")
        if name in sys.modules
    ]
    if versions:
        yield from _rows("imported beside it", versions)
    settings = _core._settings()
    shown = [(name, f"{value or 'not set'} (takes {what})") for name, value, what in settings]
    yield from _rows("settings", shown)


def _devices() -> Iterator[tuple[str, str]]:
    default = str(_core._current_device())
    about = {"cpu": "this processor", "reference": "plain loops, to hold the others against"}
    for device in _core.devices():
        name = str(device)
        yield name, about.get(name, "an adapter") + (", default" if name == default else "")


def _rows(title: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = list(pairs)
    width = max(len(name) for name, _ in rows)
    yield f"{title}:"
    for name, text in rows:
        yield f"  {name.ljust(width)}  {text}"
