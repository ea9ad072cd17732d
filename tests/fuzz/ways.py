"""What a case can name besides `wg` and `np`: tensors of known values, and ways to run a function.

Every way either gives a result or raises. Those listed in `SAME` give the bits of eager code, and
raise `Differs` where they do not.
"""

import zlib
from copy import copy  # noqa: F401

import numpy as np
import test_laws_modes as laws  # noqa: F401

import wengert as wg

from modes import bits

LARGEST = 1 << 20
"""Of more elements than this only the text is looked at."""


class Differs(Exception):
    """Two ways gave different bits."""


# Tensors. The same shape has the same values in every process.


def rng(*key):
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def x(*shape, low=-2.0, high=2.0, dtype="float32"):
    """Numbers of a dtype; beyond the floats they are small whole numbers."""
    return wg.asarray(rng(shape).uniform(low or -2.0, high or 2.0, shape)).astype(dtype)


def f(*shape, low=-2.0, high=2.0):
    return x(*shape, low=low, high=high, dtype="float64")


def i(*shape, n=3, low=0):
    return wg.asarray(rng(shape).integers(low, n, shape))


def b(*shape):
    return wg.asarray(rng(shape).integers(0, 2, shape).astype(bool))


def wide(*shape):
    """A view of one element that looks as large as it is asked to."""
    return wg.zeros((1,) * len(shape)).broadcast_to(shape)


def recorded(*shape):
    """A tensor with a history."""
    return wg.tensor(x(*shape), requires_grad=True) * 2.0


def foreign(*shape):
    """A tensor of a graph that is not open."""
    with wg.Graph():
        return wg.placeholder("foreign", shape)


def escaped(*shape):
    """A tensor that left the function it was traced in."""
    kept = []
    wg.compile(lambda v: kept.append(v * 2.0) or v)(x(*shape))
    return kept[0]


def fit(value, *shape):
    """A tensor of this shape made of another."""
    return x(*shape) * 0.5 + (value.astype("float32").sum() * 0.1).tanh()


def squeezed(value):
    """Into (-1, 1), the domain of most ops."""
    return value if value.dtype == wg.bool else (value * 0.5).tanh()


# Things that are not tensors.


class Index:
    """An integer by its method alone."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Long:
    """A sequence that says how long it is, and is not."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return 1


class Angry:
    """An object that refuses everything."""

    def __getattr__(self, name):
        raise ValueError(f"angry about {name}")

    def __index__(self):
        raise ValueError("angry about being an index")

    def __len__(self):
        raise ValueError("angry about having a length")

    __iter__ = __float__ = __bool__ = __eq__ = __hash__ = __index__


def cyclic():
    """A list that holds itself."""
    items = [1.0]
    items.append(items)
    return items


def deep(depth):
    """A list in a list in a list."""
    items = [1.0]
    for _ in range(depth):
        items = [items]
    return items


def mutated(data, seed, changes=3):
    """Text or bytes with a few places changed."""
    random, items = rng(seed), list(data)
    for _ in range(changes):
        if not items:
            break
        at, other = random.integers(len(items), size=2)
        kind = random.integers(4)
        if kind == 0:
            del items[at]
        elif kind == 1:
            items[at] = items[other]
        elif kind == 2:
            items[at:at] = items[other : other + 8]
        elif isinstance(data, str):
            items[at] = "0123456789()[]{}%,:=-"[random.integers(21)]
        else:
            items[at] = int(random.integers(256))
    return "".join(items) if isinstance(data, str) else bytes(items)


def graph():
    """A graph with an open size, a movement, a reduction and control flow."""
    with wg.Graph() as g:
        p = wg.placeholder("p", (None, 3))
        q = wg.placeholder("q", (2, 3))
        y = wg.concat([p, q]).exp()
        wg.cond(y.sum() > 0, lambda v: v + 1.0, lambda v: v * 2.0, y.sum(axis=0))
    return g


def graph_function():
    g = graph()
    return g.function([g.nodes[0], g.nodes[1]], g.nodes[-1])


def session():
    return wg.Session(graph())


def traced():
    """A compiled function that has a trace."""
    g = wg.compile(lambda v, w: (v @ w).tanh().sum())
    g(x(2, 3), x(3, 2))
    return g


def module():
    return wg.nn.Sequential(wg.nn.Linear(3, 4), wg.nn.ReLU(), wg.nn.LayerNorm(4))


def optimizer():
    return wg.optim.Adam(module().parameters())


# Ways to run a function of tensors.


def touch(result):
    """Looks at everything in a result that has data."""
    leaves, _ = wg.pytree.flatten(result)
    for leaf in leaves:
        repr(leaf)
        if isinstance(leaf, wg.Tensor) and has_data(leaf) and leaf.size <= LARGEST:
            leaf.detach().astype("float64").numpy().tobytes()
    return result


def has_data(t):
    return wg._core._traced_text(t) is None


def total(result):
    """The sum of all floats in a result."""
    leaves, _ = wg.pytree.flatten(result)
    kept = [y for y in leaves if isinstance(y, wg.Tensor) and wg.isdtype(y.dtype, "real floating")]
    return sum((y.astype("float32").sum() for y in kept), wg.zeros(()))


def eager(f, *args):
    wg.random.seed(0)
    return f(*args)


def compiled(f, *args):
    g = wg.compile(f)
    eager(g, *args)
    return eager(g, *args)


def optimized(f, *args):
    """All that `compile` may do, checked against the list."""
    with wg.config(check=True):
        return eager(wg.compile(f), *args)


def opened(f, args, shapes):
    with wg.Graph() as g:
        inputs = [
            wg.placeholder(f"x{n}", shape, a.dtype)
            for n, (a, shape) in enumerate(zip(args, shapes, strict=True))
        ]
        fetches = f(*inputs)
    return g, inputs, fetches


def in_session(f, *args, shapes=None, feeds=()):
    """Fed with the arguments, and then with each of `feeds`, which may not fit."""
    g, inputs, fetches = opened(f, args, shapes or [a.shape for a in args])
    s = wg.Session(g)
    result = s.run(fetches, dict(zip(inputs, args, strict=True)))
    for fed in feeds:
        attempt(lambda fed=fed: s.run(fetches, dict(zip(inputs, fed, strict=False))))
    return result


def as_function(f, *args, shapes=None, feeds=()):
    g, inputs, fetches = opened(f, args, shapes or [a.shape for a in args])
    call = g.function(inputs, fetches)
    result = call(*args)
    for fed in feeds:
        attempt(lambda fed=fed: call(*fed))
        attempt(lambda fed=fed: wg.compile(call)(*fed))
    return result


def from_text(f, *args):
    """Through the text of its graph."""
    g, inputs, fetches = opened(f, args, [a.shape for a in args])
    leaves, structure = wg.pytree.flatten(fetches)
    again = wg.parse_graph(str(g))
    inputs, outputs = [
        [again.nodes[g._id("from_text", t)] for t in tensors] for tensors in (inputs, leaves)
    ]
    return wg.pytree.unflatten(structure, again.function(inputs, outputs)(*args))


def branched(f, *args):
    return wg.cond(wg.tensor(True), lambda: f(*args), lambda: f(*args))


def scanned(f, *args):
    """As the body of a loop over two equal examples."""
    return wg.scan(lambda c, v: (c, f(*v)), wg.zeros(()), [wg.stack([a, a]) for a in args])[1]


def looped(f, *args):
    return wg.fori_loop(0, 2, lambda n, c: c + total(f(*args)), wg.zeros(()))


def batched(f, *args):
    return wg.vmap(f)(*[wg.stack([a, a]) for a in args])


def batched_in_part(f, *args):
    """The first argument has examples, the others are shared."""
    axes = (0, *[None] * (len(args) - 1))
    return wg.vmap(f, in_axes=axes)(wg.stack([args[0], args[0]]), *args[1:])


def sloped(f, *args):
    places = tuple(range(len(args)))
    return wg.grad(lambda *v: total(f(*v)), argnums=places)(*args)


def sloped_twice(f, *args):
    return sloped(lambda *v: sloped(f, *v), *args)


def backward(f, *args):
    leaves = [wg.tensor(a, requires_grad=True) for a in args]
    total(f(*leaves)).backward()
    return [v.grad for v in leaves]


def tangent(f, *args):
    return wg.jvp(f, args, args)


def jacobian(f, *args):
    return wg.jacobian(f)(*args)


def checkpointed(f, *args):
    return backward(wg.checkpoint(f), *args)


def batch_of_slopes(f, *args):
    return batched(lambda *v: sloped(f, *v), *args)


def compiled_slope(f, *args):
    return compiled(lambda *v: sloped(f, *v), *args)


SAME = [compiled, optimized, in_session, as_function, from_text, branched]
OTHER = [
    scanned, looped, batched, batched_in_part, sloped, sloped_twice, backward, tangent, jacobian,
    checkpointed, batch_of_slopes, compiled_slope,
]  # fmt: skip


def attempt(call):
    """What a call gives, or None where it refuses as the documents say."""
    from outcome import refuses

    try:
        return touch(call())
    except Exception as error:
        if not refuses(error):
            raise
        return None


def run(way, f, *args, **options):
    """The result of a function by a way; where it is one of `SAME`, held against eager code."""
    result = touch(way(f, *args, **options))
    if way in SAME:
        want = attempt(lambda: eager(f, *args))
        if want is not None and bits(result) != bits(want):
            raise Differs(f"{way.__name__} gives {result!r}, eager code {want!r}")
    return result


def first(result):
    """The first floating tensor of a result, squeezed."""
    leaves, _ = wg.pytree.flatten(result)
    kept = [y for y in leaves if isinstance(y, wg.Tensor) and wg.isdtype(y.dtype, "real floating")]
    return squeezed(kept[0]) if kept else wg.ones((2,))


# Text and files from outside.


def run_parsed(g):
    """Runs a graph that was read from text, on inputs of its types."""
    args = [x(*(2 if n is None else min(n, 5) for n in node.shape or ()), dtype=node.dtype)
            for node in g.inputs]
    touch(g.function(g.inputs, g.outputs or g.nodes[-1])(*args))


def saved():
    """The bytes of a file of tensors."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.safetensors")
        wg.save({"a": x(2, 3), "b": i(4)}, str(path))
        return path.read_bytes()


def loaded(data):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.safetensors")
        path.write_bytes(data)
        return wg.load(str(path))
