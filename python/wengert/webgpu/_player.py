"""Programs on the caller's own device, through the package wgpu."""

from __future__ import annotations

import collections
import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wengert import _core
from wengert._core import (
    ArgumentError,
    ArgumentTypeError,
    BoundsError,
    DeviceError,
    DTypeError,
    ShapeError,
    Tensor,
)
from wengert.webgpu._loops import played, unrolled
from wengert.webgpu._numbers import FUNCTIONS, bits_of, float_of
from wengert.webgpu._program import BYTES, ROUNDS, Array, Program
from wengert.webgpu._sizes import Size

if TYPE_CHECKING:
    import numpy

__all__ = ["Player"]

GROUP = 64
"""Invocations of a workgroup."""

MOST_GROUPS = 65_535
"""The most workgroups along one dimension."""

KEPT = 4
"""Of how many sizes buffers are kept, and for how many sets of the caller's buffers."""

COPY = """
@group(0) @binding(0) var<storage, read> from_: array<u32>;
@group(0) @binding(1) var<storage, read_write> to: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let id = at.y * groups.x * 64u + at.x;
    if id < min(arrayLength(&from_), arrayLength(&to)) { to[id] = from_[id]; }
}
"""
"""Copies as much as there is of a buffer of the caller's that is too short to be bound."""


def _groups(invocations: int) -> tuple[int, int]:
    """Workgroups along x and y."""
    groups = -(-invocations // GROUP)
    rows = max(-(-groups // MOST_GROUPS), 1)
    return -(-groups // rows), rows


class Player:
    """Runs a program on a `wgpu.GPUDevice`.

    `player(*inputs)` gives the outputs as a tuple of NumPy arrays (bfloat16 as the bits in uint16).
    Inputs are NumPy arrays and what NumPy makes arrays of, or `GPUBuffer`s of the device, which are
    bound as they are: with `STORAGE` in their usage, and as long as the array rounded up to 32
    bytes, because invocations read and write whole vectors; a shorter one is copied first.

    The state of a program lies on the device and belongs to the player. A run that refuses its data
    raises the error, and leaves state as it was.
    """

    def __init__(self, program: Program, device: Any) -> None:
        import wgpu  # type: ignore[import-untyped]

        if not isinstance(program, Program):
            raise ArgumentTypeError(f"Player: expected a Program, got {type(program).__name__}")
        if not isinstance(device, wgpu.GPUDevice):
            what = type(device).__name__
            raise ArgumentTypeError(f"Player: expected a wgpu.GPUDevice, got {what}")
        self.program, self.device, self._wgpu = program, device, wgpu
        missing = [name for name in program.features if name not in device.features]
        if missing:
            raise DeviceError(
                f"Player: the program needs {', '.join(missing)}, the device was opened without; "
                f"request_device_sync(required_features={missing}), or export without features"
            )
        most = device.limits["max-storage-buffers-per-shader-stage"]
        needed = max((len(d.bind) for d in program.dispatches), default=0)
        if needed > most:
            raise DeviceError(
                f"Player: a shader binds {needed} buffers, the device allows {most}; export with "
                "its limits"
            )
        bound = {d.shader: len(d.bind) for d in program.dispatches}
        self._layouts: dict[int, Any] = {}
        try:
            self._pipelines = {i: self._pipeline(program.shaders[i], n) for i, n in bound.items()}
        except wgpu.GPUError as error:
            raise DeviceError(f"Player: the device refuses a shader: {error}") from error
        self._copy: Any = None
        self._outputs = [x.buffer for x in program.outputs if x.buffer is not None]
        self._held: dict[int, Any] = {}
        for tensor, buffer in (*program.constants, *program.state):
            length = self._length(buffer, program.buffers[buffer], {})
            self._held[buffer] = made = self._buffer(length)
            data = _core._to_bytes(program.tensor(tensor))
            device.queue.write_buffer(made, 0, data + bytes(-len(data) % 4))
        self._sets: collections.OrderedDict[tuple[int, ...], _Sizes] = collections.OrderedDict()
        self._latest: _Sizes | None = None

    def __repr__(self) -> str:
        return f"<Player of {self.program!r}>"

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The `GPUBuffer`s of the outputs of the latest run; the next run of the same sizes writes
        over them. Each begins with the elements in C order."""
        if self._latest is None:
            raise ArgumentError("outputs: the player has not run yet")
        return tuple(self._latest.buffers[i] for i in self._outputs)

    def __call__(self, *inputs: Any, sizes: Mapping[str, int] | None = None) -> tuple[Any, ...]:
        """Run it, and wait for the outputs."""
        latest, encoder = self._recorded(inputs, sizes, None)
        places, end = [], 0
        faults = self.program.faults
        for buffer in self._outputs if faults is None else [*self._outputs, faults]:
            length = latest.lengths[buffer]
            encoder.copy_buffer_to_buffer(latest.buffers[buffer], 0, latest.room(), end, length)
            places.append(end)
            end += length
        self.device.queue.submit([encoder.finish()])
        data = self._read(latest.room(), end) if end else b""
        if faults is not None:
            self._raise(data[places.pop() :], latest.symbols)
        pairs = zip(self.program.outputs, places, strict=True)
        return tuple(_array(x, latest.shape(x), data, at) for x, at in pairs)

    def encode(self, encoder: Any, *buffers: Any, sizes: Mapping[str, int] | None = None) -> None:
        """Record a run into an encoder of the caller's, who submits it; inputs are `GPUBuffer`s.

        Nothing is waited for: `outputs` hold the values once the commands have run, and `check`
        raises what they refused. A run that refuses its data leaves state as it was.
        """
        if not all(isinstance(x, self._wgpu.GPUBuffer) for x in buffers):
            raise ArgumentTypeError("encode: expected buffers; call the player with arrays")
        self._recorded(buffers, sizes, encoder)

    def check(self) -> None:
        """Raise what the latest run refused, if it did. The device is waited for."""
        if self._latest is None or self.program.faults is None:
            return
        faults = self._latest.buffers[self.program.faults]
        self._raise(bytes(self.device.queue.read_buffer(faults)), self._latest.symbols)

    def state(self) -> tuple[Tensor, ...]:
        """The values of the state of now, in the order of `program.state`."""
        found = []
        for tensor, buffer in self.program.state:
            like = self.program.tensor(tensor)
            data = bytes(self.device.queue.read_buffer(self._held[buffer]))[: like.nbytes]
            found.append(_core._from_bytes(like.dtype, like.shape, data))
        return tuple(found)

    def seed(self, seed: int) -> None:
        """Start the generator of the program's random numbers again, as `wengert.random.seed`."""
        at = self.program.generator
        if at is None:
            raise ArgumentError("seed: the program draws no random numbers")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise ArgumentError(f"seed: expected a whole number below 2**64: got {seed!r}")
        words = struct.pack("<4I", seed >> 32, seed & 0xFFFFFFFF, 0, 0)
        self.device.queue.write_buffer(self._held[self.program.state[at].buffer], 0, words)

    # One run.

    def _recorded(
        self, inputs: Sequence[Any], sizes: Mapping[str, int] | None, encoder: Any
    ) -> tuple[_Sizes, Any]:
        """A run, recorded: its sizes, and the encoder."""
        declared = self.program.inputs
        if len(inputs) != len(declared):
            raise ArgumentTypeError(f"player: {len(declared)} inputs, got {len(inputs)}")
        arrays = [
            x if isinstance(x, self._wgpu.GPUBuffer) else _given(want, x)
            for want, x in zip(declared, inputs, strict=True)
        ]
        symbols = self._bound(arrays, sizes)
        latest = self._at(symbols)
        uploads, copies, bound = [], [], {}
        own = {id(buffer) for buffer in latest.buffers}
        for want, x in zip(declared, arrays, strict=True):
            if want.buffer is None:
                continue
            if not isinstance(x, self._wgpu.GPUBuffer):
                uploads.append((latest.buffers[want.buffer], x))
                continue
            needed = math.prod(latest.shape(want)) * BYTES[want.dtype]
            if not x.usage & self._wgpu.BufferUsage.STORAGE or x.size < needed:
                raise ArgumentError(
                    f"player: {want.name} is {needed} bytes of a buffer with usage STORAGE: got "
                    f"{x.size} bytes, {x.usage:#x}"
                )
            if x.size >= latest.lengths[want.buffer] and id(x) not in own:
                own.add(id(x))
                bound[want.buffer] = x
            elif x.size // 4 * 4 < needed:
                raise ArgumentError(
                    f"player: {want.name}: the length of a buffer is a multiple of 4: got {x.size}"
                )
            else:
                copies.append((x, latest.buffers[want.buffer]))
        for buffer, x in uploads:
            data = x.tobytes() or bytes(4)
            self.device.queue.write_buffer(buffer, 0, data + bytes(-len(data) % 4))
        encoder = encoder or self.device.create_command_encoder()
        run = encoder.begin_compute_pass()
        for source, to in copies:
            self._copied(run, source, to)
        groups = latest.bind_groups(bound)
        for i, at, count in latest.played:
            if count[0]:
                run.set_pipeline(self._pipelines[self.program.dispatches[i].shader])
                run.set_bind_group(0, groups[i], [at])
                run.dispatch_workgroups(*count)
        run.end()
        self._latest = latest
        return latest, encoder

    def _bound(self, arrays: list[Any], sizes: Mapping[str, int] | None) -> dict[str, int]:
        """Sizes for the symbols: of arrays, of `sizes`, then of the lengths of buffers."""
        bound: dict[str, int] = {}
        program = self.program
        for name, n in (sizes or {}).items():
            if name not in program.symbols:
                raise ArgumentError(f"player: sizes: the program has no size {name}")
            if isinstance(n, bool) or not isinstance(n, int) or n < 0:
                raise ArgumentError(f"player: sizes: {name}: expected a size, got {n!r}")
            bound[name] = n
        is_buffer = [isinstance(x, self._wgpu.GPUBuffer) for x in arrays]
        pairs = list(zip(program.inputs, arrays, is_buffer, strict=True))
        for want, x, on_device in pairs:
            if not on_device and len(want.shape) != x.ndim:
                raise ShapeError(f"player: expected {want}: got shape {x.shape}")
            for dim, n in zip(want.shape, () if on_device else x.shape, strict=not on_device):
                if isinstance(dim, Size) and dim.is_symbol:
                    bound.setdefault(dim.text, n)
        for want, x, on_device in pairs:
            if on_device:
                _solve(want, x.size, bound)
        missing = sorted(program.symbols - set(bound))
        if missing:
            raise ShapeError(
                f"player: the lengths of buffers do not tell {', '.join(missing)}; say sizes="
                f"{{{missing[0]!r}: …}}"
            )
        for want, x, on_device in pairs:
            shape = tuple(_value(dim, bound) for dim in want.shape)
            if not on_device and shape != x.shape:
                raise ShapeError(f"player: expected {want}: got shape {x.shape}")
        for left, relation, right, line in program.conditions:
            a, b = _value(left, bound), _value(right, bound)
            if not {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b}[relation]:
                at = f" (asked at {line})" if line else ""
                raise ShapeError(f"player: {left} {relation} {right} does not hold{at}")
        return bound

    def _at(self, symbols: dict[str, int]) -> _Sizes:
        """The buffers of these sizes."""
        key = tuple(n for _, n in sorted(symbols.items()))
        found = self._sets.pop(key, None) or _Sizes(self, symbols)
        while len(self._sets) >= KEPT:
            self._sets.popitem(last=False)
        self._sets[key] = found
        return found

    # Parts of the device.

    def _layout(self, count: int) -> Any:
        """So many storage bindings, and behind them the uniform buffer at an offset that each
        dispatch says."""
        if count not in self._layouts:
            stage = self._wgpu.ShaderStage.COMPUTE
            kinds: list[dict[str, Any]] = [{"type": "storage"}] * count
            kinds.append({"type": "uniform", "has_dynamic_offset": True})
            entries = [
                {"binding": i, "visibility": stage, "buffer": kind} for i, kind in enumerate(kinds)
            ]
            self._layouts[count] = self.device.create_bind_group_layout(entries=entries)
        return self._layouts[count]

    def _pipeline(self, text: str, count: int | None) -> Any:
        """The pipeline of a text with so many storage bindings; of any others where that is not
        said."""
        module = self.device.create_shader_module(code=text)
        layout = "auto"
        if count is not None:
            layouts = [self._layout(count)]
            layout = self.device.create_pipeline_layout(bind_group_layouts=layouts)
        compute = {"module": module, "entry_point": "main"}
        return self.device.create_compute_pipeline(layout=layout, compute=compute)

    def _buffer(self, length: int, more: int = 0) -> Any:
        usage = self._wgpu.BufferUsage
        usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST | more
        return self.device.create_buffer(size=length, usage=usage)

    def _length(self, buffer: int, length: int | Size, symbols: Mapping[str, int]) -> int:
        """The bytes of a buffer, within the limits of the device."""
        bytes_ = _value(length, symbols)
        limits = self.device.limits
        most = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
        if bytes_ < 32 or bytes_ % 32:
            raise ShapeError(f"player: buffer {buffer} has {bytes_} bytes, no multiple of 32")
        if bytes_ > most:
            raise DeviceError(f"player: a buffer needs {bytes_} bytes, the device binds {most}")
        return bytes_

    def _copied(self, run: Any, source: Any, to: Any) -> None:
        """Record the copy of a buffer that is too short, or bound elsewhere."""
        if self._copy is None:
            self._copy = self._pipeline(COPY, None)
        length = min(source.size // 4 * 4, to.size)
        entries = [
            {"binding": 0, "resource": {"buffer": source, "offset": 0, "size": length}},
            {"binding": 1, "resource": {"buffer": to, "offset": 0, "size": to.size}},
        ]
        if length:
            layout = self._copy.get_bind_group_layout(0)
            run.set_pipeline(self._copy)
            run.set_bind_group(0, self.device.create_bind_group(layout=layout, entries=entries))
            run.dispatch_workgroups(*_groups(length // 4))

    def _read(self, room: Any, length: int) -> bytes:
        room.map_sync(self._wgpu.MapMode.READ, 0, length)
        try:
            return bytes(room.read_mapped(0, length))
        finally:
            room.unmap()

    def _raise(self, faults: bytes, symbols: Mapping[str, int]) -> None:
        """Raise the error of the first slot that refuses something."""
        for slot, refusal in enumerate(self.program.refusals):
            a, axis, low, high = struct.unpack_from("<4I", faults, 16 * slot)
            if a == 0xFFFFFFFF:
                continue
            made = f"\n  made at {refusal.line}" if refusal.line else ""
            if refusal.kind == "false":
                what = refusal.false(a, [_value(dim, symbols) for dim in refusal.sizes])
                raise ArgumentError(f"check: {refusal.message}: {what}{made}")
            sizes = [_value(dim, symbols) for dim in refusal.sizes]
            size = sizes[axis] if axis < len(sizes) else 0
            index = (low | high << 32) - (1 << 64 if high >> 31 else 0)
            if refusal.says == "index":
                axis = refusal.axes[axis] if axis < len(refusal.axes) else axis
                what = f"index {index} is out of bounds for axis {axis} with size {size}"
            else:
                # Negative labels were moved below every index.
                shown = index + size if refusal.says == "label" and index < 0 else index
                what = f"class {shown} is out of range: there are {size} classes"
            raise BoundsError(f"{refusal.op}: {what}{made}")


def _value(dim: int | Size, symbols: Mapping[str, int]) -> int:
    return dim if isinstance(dim, int) else dim.at(symbols)


def _solve(want: Array, length: int, bound: dict[str, int]) -> None:
    """Binds the one symbol that is left of a shape, where the length of a buffer tells it."""
    rest, symbol = BYTES.get(want.dtype, 8), None
    for dim in want.shape:
        if isinstance(dim, int) or dim.symbols <= set(bound):
            rest *= _value(dim, bound)
        elif symbol is None and dim.is_symbol:
            symbol = dim.text
        else:
            return
    if symbol is not None and rest and length % rest == 0:
        bound[symbol] = length // rest


def _given(want: Array, x: Any) -> numpy.ndarray[Any, Any]:
    """An input as an array of its dtype; what has no dtype takes it."""
    import numpy

    if isinstance(x, Tensor):
        if x.dtype.name != want.dtype:
            raise DTypeError(f"player: expected {want}: got {x.dtype}")
        x = numpy.frombuffer(_core._to_bytes(x), _numpy(want.dtype)).reshape(x.shape)
    elif not hasattr(x, "dtype"):
        try:
            x = numpy.asarray(x, _numpy(want.dtype))
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentTypeError(f"player: expected {want}: {error}") from None
    x = numpy.asarray(x)
    if x.dtype.newbyteorder("=") != _numpy(want.dtype) and x.dtype.name != want.dtype:
        raise DTypeError(f"player: expected {want}: got {x.dtype}")
    return numpy.ascontiguousarray(x.astype(x.dtype.newbyteorder("<"), copy=False)).reshape(x.shape)


def _numpy(dtype: str) -> str:
    """The dtype of NumPy with the bits of ours."""
    return "uint16" if dtype == "bfloat16" else dtype


def _array(x: Array, shape: tuple[int, ...], data: bytes, at: int) -> Any:
    import numpy

    count = math.prod(shape)
    return numpy.frombuffer(data, _numpy(x.dtype), count, at).reshape(shape).copy()


class _Sizes:
    """A program at some sizes: buffers, words and counts, kept for the next run of these sizes."""

    def __init__(self, player: Player, symbols: dict[str, int]) -> None:
        program, device = player.program, player.device
        self.player, self.symbols = player, symbols
        self.lengths = [player._length(i, n, symbols) for i, n in enumerate(program.buffers)]
        for x in (*program.inputs, *program.outputs):
            bytes_ = math.prod(self.shape(x)) * BYTES.get(x.dtype, 8)
            if x.buffer is not None and bytes_ > self.lengths[x.buffer]:
                raise ShapeError(f"player: {x} does not fit its buffer of {self.lengths[x.buffer]}")
        words = self.laid_out()
        more = player._wgpu.BufferUsage.VERTEX | player._wgpu.BufferUsage.INDEX
        outputs = set(player._outputs)
        self.buffers = [
            player._held.get(i) or player._buffer(length, more if i in outputs else 0)
            for i, length in enumerate(self.lengths)
        ]
        usage = player._wgpu.BufferUsage
        self.words = device.create_buffer_with_data(
            data=words or bytes(16), usage=usage.UNIFORM
        )
        self.reading: Any = None
        self.bound: collections.OrderedDict[Any, tuple[dict[int, Any], list[Any]]] = (
            collections.OrderedDict()
        )

    def laid_out(self) -> bytes:
        """The words of all dispatches; sets those that run in order, each with the place of its
        words and its workgroups."""
        program, words = self.player.program, bytearray()
        step = self.player.device.limits["min-uniform-buffer-offset-alignment"]
        numbers = self.numbers()
        self.lengths_of = [4 * max(4, -(-len(d.words) // 4) * 4) for d in program.dispatches]
        self.played: list[tuple[int, int, tuple[int, int]]] = []
        # What no round changes is there once.
        known: dict[tuple[int, ...], tuple[int, int, tuple[int, int]]] = {}
        played(program.order, self.symbols)
        varies = [d.varies(program.symbols) for d in program.dispatches]
        for i, sizes in unrolled(program.order, dict(self.symbols)):
            d = program.dispatches[i]
            key = (i, *(sizes[name] for name in varies[i]))
            if key not in known:
                rounds, invocations = _value(d.rounds, sizes), _value(d.invocations, sizes)
                if rounds > ROUNDS:
                    what = f"{rounds} rounds of a loop, at most {ROUNDS}; export known sizes"
                    raise ShapeError(f"player: {d.name}: {what}")
                groups = _groups(max(invocations, 0))
                if groups[1] > MOST_GROUPS:
                    raise ShapeError(f"player: {d.name}: {invocations} invocations are too many")
                own = [self.word(word, numbers, sizes) for word in d.words]
                known[key] = (i, len(words), groups)
                words += struct.pack(f"<{len(own)}I", *own)
                words += bytes(self.lengths_of[i] - 4 * len(own))
                words += bytes(-len(words) % step)
            self.played.append(known[key])
        return bytes(words)

    def numbers(self) -> list[float]:
        """The values of the numbers that sizes decide."""
        found: list[float] = []
        for what, arg in self.player.program.numbers:
            if what == "bits":
                found.append(float_of(arg))
            elif what == "size":
                found.append(float(_value(arg, self.symbols)))
            else:
                a, b = (found[x] if isinstance(x, int) else float_of(x[1]) for x in arg)
                found.append(FUNCTIONS[what](a, b))
        return found

    def word(self, word: Any, numbers: list[float], sizes: Mapping[str, int]) -> int:
        """A word of a uniform buffer."""
        if isinstance(word, tuple):
            number, dtype, high = word
            bits = bits_of(numbers[number], dtype)
            return bits >> 32 if high else bits & 0xFFFFFFFF
        return _value(word, sizes) & 0xFFFFFFFF

    def shape(self, x: Array) -> tuple[int, ...]:
        """The shape of an array."""
        found = tuple(_value(dim, self.symbols) for dim in x.shape)
        if any(n < 0 for n in found):
            raise ShapeError(f"player: a size of {x} is negative: {found}")
        return found

    def room(self) -> Any:
        """The buffer in which outputs are read back."""
        if self.reading is None:
            program, usage = self.player.program, self.player._wgpu.BufferUsage
            wanted = [*self.player._outputs]
            wanted += [] if program.faults is None else [program.faults]
            size = sum(self.lengths[buffer] for buffer in wanted)
            self.reading = self.player.device.create_buffer(
                size=size, usage=usage.COPY_DST | usage.MAP_READ
            )
        return self.reading

    def bind_groups(self, given: dict[int, Any]) -> list[Any]:
        """The bind groups of all dispatches, with buffers of the caller's in some places."""
        key = tuple((i, id(buffer)) for i, buffer in given.items())
        found = self.bound.pop(key, None)
        if found is None:
            found = (given, self.make_groups(given))
            while len(self.bound) >= KEPT:
                self.bound.popitem(last=False)
        self.bound[key] = found
        return found[1]

    def make_groups(self, given: dict[int, Any]) -> list[Any]:
        player = self.player
        groups: list[Any] = []
        used = {i for i, _, _ in self.played}
        for i, d in enumerate(player.program.dispatches):
            if i not in used:
                groups.append(None)
                continue
            resources = [
                {"buffer": given.get(k) or self.buffers[k], "offset": 0, "size": self.lengths[k]}
                for k in d.bind
            ]
            resources.append({"buffer": self.words, "offset": 0, "size": self.lengths_of[i]})
            entries = [{"binding": k, "resource": r} for k, r in enumerate(resources)]
            layout = player._layout(len(d.bind))
            groups.append(player.device.create_bind_group(layout=layout, entries=entries))
        return groups
