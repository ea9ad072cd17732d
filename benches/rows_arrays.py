"""Groups B and F: what reads and writes memory more than it calculates."""

from case import integers, normal, row

N, SIDE = {"n": 10_000_000}, {"n": 4096}
SMALL = {"n": 130}


def pair(s):
    return normal(s.n), normal(s.n, seed=1)


def square(s):
    return (normal(s.n, s.n),)


def streams(count):
    """The bytes of `count` vectors of float32."""
    return lambda s: 4 * count * s.n


def planes(count):
    """The bytes of `count` squares of float32."""
    return lambda s: 4 * count * s.n * s.n


def twelve_ops(F, s, x, y):
    return F.tanh(x * y + 0.5) * F.exp(-(x * x)) + F.sqrt(F.abs(y)) - 0.1 * y


def twelve_ops_summed(F, s, x, y):
    return F.sum(twelve_ops(F, s, x, F.abs(y) + 0.1))


TWELVE = "tanh(x*y+0.5)*exp(-(x*x))+sqrt(abs(y))-0.1*y"
GELU = "0.5*x*(1+tanh(0.7978845608028654*(x+0.044715*x*x*x)))"

row("B1", "x + y, 1e7", lambda F, s, x, y: x + y, pair, N, SMALL, bytes=streams(3), text="x+y")
row("B2", "gelu (tanh), 1e7", lambda F, s, x: F.gelu(x), lambda s: (normal(s.n),), N, SMALL,
    bytes=streams(2), text=GELU)
row("B3", "chain of 12 ops, 1e7", twelve_ops, pair, N, SMALL, bytes=streams(3), text=TWELVE)
row("B4", "4096² + row", lambda F, s, x, y: x + y,
    lambda s: (normal(s.n, s.n), normal(s.n, seed=1)), SIDE, SMALL, bytes=planes(2))
row("B5", "x + y.T, 4096²", lambda F, s, x, y: x + F.transpose(y, (1, 0)),
    lambda s: (normal(s.n, s.n), normal(s.n, s.n, seed=1)), SIDE, SMALL, bytes=planes(3))
for letter, axis, name in (("a", None, "all"), ("b", 0, "axis 0"), ("c", 1, "axis 1")):
    row(f"B6{letter}", f"sum over {name}, 4096²", lambda F, s, x, axis=axis: F.sum(x, axis),
        square, SIDE, SMALL, bytes=planes(1), tolerance=2e-2)
    row(f"B7{letter}", f"max over {name}, 4096²", lambda F, s, x, axis=axis: F.max(x, axis),
        square, SIDE, SMALL, bytes=planes(1))
row("B8", "mean over axis 1, 4096²", lambda F, s, x: F.mean(x, 1), square, SIDE, SMALL,
    bytes=planes(1))

ROWS, FEW_ROWS = {"rows": 4096, "n": 1024}, {"rows": 9, "n": 130}


def table(s):
    return (normal(s.rows, s.n),)


def normed(s):
    return normal(s.rows, s.n), normal(s.n, seed=1), normal(s.n, seed=2)


def rows_twice(s):
    return 8 * s.rows * s.n


row("B9", "softmax of rows, 4096×1024", lambda F, s, x: F.softmax(x), table, ROWS, FEW_ROWS,
    bytes=rows_twice)
row("B10", "layer norm, 4096×1024", lambda F, s, x, w, b: F.layer_norm(x, w, b), normed, ROWS,
    FEW_ROWS, bytes=rows_twice)
row("B11", "running sum of rows, 4096×1024", lambda F, s, x: F.cumsum(x, 1), table, ROWS, FEW_ROWS,
    bytes=rows_twice, tolerance=5e-3)
row("B12", "argmax over axis 1, 4096²", lambda F, s, x: F.argmax(x, 1), square, SIDE, SMALL,
    bytes=planes(1))
row("B13", "sort, 1e6", lambda F, s, x: F.sort(x), lambda s: (normal(s.n),), {"n": 1_000_000},
    SMALL)

TABLE = {"words": 50_000, "width": 256, "taken": 8192}
FEW_WORDS = {"words": 40, "width": 8, "taken": 30}


def lookup(s):
    return normal(s.words, s.width), integers(s.words, s.taken, seed=1)


row("B14", "8192 rows of 50,000×256", lambda F, s, t, i: F.take(t, i), lookup, TABLE, FEW_WORDS,
    bytes=lambda s: 8 * s.taken * s.width)
row("B15", "8192 rows of 50,000×256, forward + backward",
    lambda F, s, t, i: F.sum(F.take(t, i) * 2.0), lookup, TABLE, FEW_WORDS, kind="gradient",
    wrt=(0,), bytes=lambda s: 4 * s.words * s.width + 4 * s.taken * s.width, tolerance=1e-2)
row("B16", "layer norm, 4096×1024, forward + backward",
    lambda F, s, x, w, b, d: F.sum(F.layer_norm(x, w, b) * d),
    lambda s: (*normed(s), normal(s.rows, s.n, seed=3)), ROWS, FEW_ROWS, kind="gradient",
    wrt=(0, 1, 2), bytes=lambda s: 12 * s.rows * s.n, tolerance=1e-2)
row("B17", "chain of 12 ops, 1e7, forward + backward", twelve_ops_summed, pair, N, SMALL,
    kind="gradient", wrt=(0, 1), bytes=streams(4), tolerance=5e-2)

for n in (1_000, 30_000, 1_000_000, 10_000_000):
    size = {"n": n}
    row(f"F1_{n}", f"chain of 12 ops, {n:,}", twelve_ops, pair, size, SMALL, bytes=streams(3))
    row(f"F2_{n}", f"chain of 12 ops, {n:,}, forward + backward", twelve_ops_summed, pair, size,
        SMALL, kind="gradient", wrt=(0, 1), bytes=streams(4), tolerance=5e-2)
    row(f"F3_{n}", f"x + y, {n:,}", lambda F, s, x, y: x + y, pair, size, SMALL, bytes=streams(3))
