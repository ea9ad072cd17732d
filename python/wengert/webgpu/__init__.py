"""Programs of compute shaders, for any WebGPU device: of a page, a game, a notebook.

`export` makes one of a function, without a GPU; `Program.save` and `load` keep it in one file;
`Player` runs it on a device of the package wgpu.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wengert import _core
from wengert._core import ArgumentError, ArgumentTypeError, DeviceError, Tensor
from wengert.capture import CompiledFunction, Spec
from wengert.webgpu._player import Player
from wengert.webgpu._program import FEATURES, Array, Dispatch, Program, load, named

__all__ = ["Array", "Dispatch", "Player", "Program", "export", "load"]

LIMITS = {"maxstoragebufferspershaderstage": 8, "maxstoragebufferbindingsize": 128 << 20}
"""What every WebGPU device allows, by the names of limits without signs between words."""


def _features(features: Iterable[str]) -> tuple[str, ...]:
    """Names of features that programs can use."""
    if isinstance(features, str):
        raise ArgumentTypeError(f"export: features: expected a list of names, got {features!r}")
    found = tuple(features)
    for name in found:
        if not isinstance(name, str) or name not in FEATURES:
            known = ", ".join(FEATURES)
            raise ArgumentError(f"export: features: expected some of: {known}; got {name!r}")
    return found


class _Captured(CompiledFunction[..., Any]):
    """A function that is captured to be exported: it keeps what Python does beside the tensors."""

    made: Any = None
    _exported = True

    def _capture(self, *args: Any, **kwargs: Any) -> Any:
        self.made = super()._capture(*args, **kwargs)
        return self.made


def export(
    function: Callable[..., Any],
    *args: Any,
    limits: Mapping[str, int] | None = None,
    features: Iterable[str] = (),
) -> Program:
    """The program that computes what `function` returns for arguments like these.

    Arguments are `wengert.Spec`s, whose sizes may be open (`wengert.Dim`), or example tensors. The
    function may be compiled. Tensors that it reaches by itself are held by the program with their
    values of now; those that it updates, such as the parameters of a training step, are state of
    the program, which each run updates. `limits` are those of the device that will run it, where
    they are not WebGPU's defaults: `device.limits` of wgpu. `features` are optional features that
    it was opened with and shaders may use, by WebGPU's names: "shader-f16", with which products of
    float16 read their operands faster. `program.features` are those that the program needs.

    No adapter is needed. `DeviceError` names all places that shaders cannot compute.
    """
    if isinstance(function, CompiledFunction):
        function = function._function
    wanted = _features(features)
    allowed = _limits(limits)
    captured, specs = None, any(isinstance(x, Spec) for x in args)
    if specs:
        wrong = [type(x).__name__ for x in args if not isinstance(x, (Spec, Tensor))]
        if wrong:
            raise ArgumentTypeError(f"export: expected Specs beside Specs: got {', '.join(wrong)}")
        declared = [x if isinstance(x, Spec) else Spec(x.shape, x.dtype) for x in args]
        captured = _Captured(function, declared)
        tensors: list[Any] = [spec.stand_in() for spec in declared]
        executable, leaves = captured._traces[-1].executable, tensors
    else:
        captured = _Captured(function)
        executable, tensors, leaves = captured._prepared(*args)
    trace, made = captured._traces[-1], captured.made
    if made.changes or made.record.after:
        what = [str(a.slot.key) for a in made.changes.made] or ["the step of a schedule"]
        raise DeviceError(
            f"export: a program cannot assign what Python holds: {', '.join(what)}; return it"
        )
    text, held = _core._export(executable, tensors, leaves, allowed, "shader-f16" in wanted)
    is_tensor = [isinstance(x, Tensor) for x in leaves]
    names = [path for (path, _), is_ in zip(trace.signature, is_tensor, strict=True) if is_]
    return Program(named(json.loads(text), names), held)


def _limits(limits: Mapping[str, int] | None) -> tuple[int, int]:
    """Storage buffers of a shader, and bytes of a binding."""
    found = dict(LIMITS)
    if limits is not None:
        given = {key.replace("-", "").replace("_", "").lower(): n for key, n in limits.items()}
        if not set(given) & set(LIMITS):
            known = "max-storage-buffers-per-shader-stage, max-storage-buffer-binding-size"
            raise ArgumentError(f"export: limits: expected {known}: got {', '.join(limits)}")
        found |= {key: n for key, n in given.items() if key in LIMITS}
    buffers, largest = found.values()
    for n in (buffers, largest):
        if isinstance(n, bool) or not isinstance(n, int) or n < 4:
            raise ArgumentError(f"export: limits: expected whole numbers of at least 4: got {n!r}")
    return min(buffers, 64), min(largest, 1 << 31)
