"""Kernels of graphs, run on an adapter one op a step: a graph's text, its results, its refusals."""

import re

import numpy as np

import wengert as wg
from wengert import _core

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "bfloat16", "float32"]


class Text:
    """A graph as text, written line by line."""

    def __init__(self):
        self.lines, self.results, self.inputs = [], [], []

    def add(self, dtype, shape, call, *, fetch=True):
        """A node; gives its name."""
        name = f"%{len(self.lines)}"
        self.lines.append(f"{name}: {dtype} {tuple(shape)} = {call}")
        if fetch:
            self.results.append(name)
        return name

    def input(self, x):
        """An input with a value; gives its name."""
        self.inputs.append(x)
        return self.add(x.dtype, x.shape, "input", fetch=False)

    def __str__(self):
        return "\n".join([*self.lines, f"return {', '.join(self.results)}"])


def tensor(dtype, array):
    """A tensor of the bits of an array of unsigned integers."""
    dtype = getattr(wg, dtype) if isinstance(dtype, str) else dtype
    return _core._from_bytes(dtype, array.shape, np.ascontiguousarray(array).tobytes())


def random_bits(rng, dtype, shape):
    """A tensor of any bits."""
    width = getattr(wg, dtype).itemsize
    most = 2 if dtype == "bool" else 1 << 8 * width
    return tensor(dtype, rng.integers(0, most, shape, f"u{width}"))


def raw(x):
    """The bits of a tensor as an array of unsigned integers."""
    return np.frombuffer(_core._to_bytes(x), f"u{x.dtype.itemsize}").reshape(x.shape)


def strided(x):
    """The memory of a tensor whose elements lie backwards, transposed and apart; its layout."""
    array = raw(x)
    base = np.full([2 * n + 1 for n in array.shape[::-1]], 0x5A, array.dtype)
    view = base.T[(..., *(slice(1, None, 2) for _ in array.shape))]
    view = view[::-1] if array.ndim else view
    view[...] = array
    size = base.itemsize
    offset = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return base.tobytes(), (array.shape, tuple(s // size for s in view.strides), offset // size)


def play(adapter, text, layout=None):
    """The results of a graph on an adapter. A refusal raises its error. `layout` gives the memory
    and the layout of an input."""
    memory, layouts = {}, []
    for i, x in enumerate(text.inputs):
        memory[f"input{i}"], found = layout(x) if layout else (_core._to_bytes(x), None)
        layouts.append(found)
    dispatches, sizes, constants, outputs, slots = _core._kernels(str(text), layouts)
    faults = bytes([255]) * 16 * max(slots, 1)
    memory |= constants | {"faults": faults}
    wanted = [name for name, _, _ in outputs]
    *found, faults = adapter.play(dispatches, memory, sizes, [*wanted, "faults"])
    _core._kernels(str(text), layouts, faults=faults)
    return [_core._from_bytes(getattr(wg, dtype), shape, data)
            for (_, dtype, shape), data in zip(outputs, found, strict=True)]


def expected(text):
    """The results on the CPU."""
    graph = wg.parse_graph(str(text))
    nodes = list(graph.nodes)
    inputs = [node for node in nodes if node.op == "input"]
    fetches = [nodes[int(i)] for i in re.findall(r"%(\d+)", str(text).splitlines()[-1])]
    return wg.Session(graph).run(fetches, dict(zip(inputs, text.inputs, strict=True)))


def assert_same_bits(adapter, text, layout=None):
    """The adapter and the CPU give the same bits."""
    lines = dict(line.split(": ", 1) for line in text.lines)
    found = zip(text.results, play(adapter, text, layout), expected(text), strict=True)
    for name, got, want in found:
        facts = f"{name}: {lines[name]}\n{text}"
        assert (got.dtype, got.shape) == (want.dtype, want.shape), facts
        apart = np.flatnonzero(raw(got).reshape(-1) != raw(want).reshape(-1))
        assert not apart.size, (apart[:9], raw(got).reshape(-1)[apart[:9]],
                                raw(want).reshape(-1)[apart[:9]], facts)
