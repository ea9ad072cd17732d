"""One program in three modes: eager, captured by `compile`, and run by a `Session`.

A program is a function of tensors that returns tensors, alone or in tuples, lists and dicts.
`outcomes` runs it in every mode; `assert_same` compares bits.
"""

import wengert as wg

MODES = ("eager", "compiled", "session")


class Modes:
    """A program prepared for every mode; traces and sessions are kept from call to call."""

    def __init__(self, program, shapes=None):
        """`shapes` are those of the placeholders, with open sizes; else they are the arguments'."""
        self.program, self.shapes = program, shapes
        self.compiled = wg.compile(program)
        self.graphs = {}

    def run(self, mode, *args):
        """Its results on `args`, tensors, in a mode."""
        if mode == "eager":
            return self.program(*args)
        if mode == "compiled":
            return self.compiled(*args)
        return self.session(*args)

    def session(self, *args):
        """Its results on `args` through a session; one graph for each kind of arguments."""
        shapes = self.shapes or [tuple(x.shape) for x in args]
        key = tuple((str(x.dtype), str(shape)) for x, shape in zip(args, shapes, strict=True))
        if key not in self.graphs:
            self.graphs[key] = self.define(args, shapes)
        session, placeholders, fetches = self.graphs[key]
        return session.run(fetches, dict(zip(placeholders, args, strict=True)))

    def define(self, args, shapes):
        with wg.Graph() as graph:
            placeholders = [
                wg.placeholder(f"x{i}", shape, x.dtype)
                for i, (x, shape) in enumerate(zip(args, shapes, strict=True))
            ]
            fetches = self.program(*placeholders)
        return wg.Session(graph), placeholders, fetches


def bits(result):
    """What a result is, to the bit; numbers that are not tensors as they are."""
    leaves, structure = wg.pytree.flatten(result)
    return repr(structure), [
        (str(x.dtype), tuple(x.shape), raw(x)) if isinstance(x, wg.Tensor) else x for x in leaves
    ]


def raw(x):
    """The bytes of a tensor, every NaN the same: their payloads are not promised."""
    x = x.detach()
    if x.dtype == wg.bfloat16:
        x = x.astype(wg.float32)
    array = x.numpy()
    if array.dtype.kind == "f":
        array = array.copy()
        array[array != array] = float("nan")
    return array.tobytes()


def assert_same(program, *args, modes=MODES[1:]):
    """The bits of the program in every mode are those of eager code, also in a second call."""
    prepared = Modes(program)
    want = bits(program(*args))
    for mode in modes:
        for call in range(2):
            got = bits(prepared.run(mode, *args))
            assert got == want, f"{mode}, call {call}"
