"""The foundation's laws in three modes: indexing, writes, views, layouts, special values, numbers
made from nothing. `test_modes.py` has the values and gradients of every op.
"""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_laws_arrays import FULL_SHAPES, MOVEMENTS, arrays_and_indices, to_tensors
from test_laws_programs import programs, run, threads  # noqa: F401
from test_modes import DIFFERENTIABLE, program_of
from test_ops_gradients import TYPE_ONLY
from test_ops_values import ELEMENTWISE, FLOATING, LENGTHS, OPS, SPECIAL, samples

import wengert as wg

import support
from modes import Modes, assert_same, bits
from support import LAYOUTS, TABLE, differentiable, domain_of, dtypes_of, function, label

# Each op that makes numbers, as calls. Random ones draw from the global generator.
CREATED = {
    "arange": "arange(2, 11, 3), arange(0.5, -3.0, -0.25), arange(7, dtype=wg.int8)",
    "empty": "zeros_like(empty((2, 3), dtype=wg.float16))",
    "eye": "eye(3, 4, k=1), eye(2, dtype=wg.int64)",
    "full": "full((2, 3), -0.0), full((), 7), full((0, 2), True)",
    "linspace": "linspace(0.0, 1.0, 7), linspace(1, 4, 5, endpoint=False, dtype=wg.float64)",
    "ones": "ones((2, 3)), ones((), dtype=wg.uint8)",
    "zeros": "zeros((2, 3)), zeros((3, 0), dtype=wg.bool)",
    "random.bits": "random.bits((5,)), random.bits((3,), key=random.key(4))",
    "random.exponential": "random.exponential((9,), scale=2.0),"
                          "random.exponential((), dtype=wg.float64)",
    "random.gumbel": "random.gumbel((9,), loc=1.0, scale=2.0),"
                     "random.gumbel((2, 2), dtype=wg.float64)",
    "random.integers": "random.integers(-3, 9, (40,)), random.integers(0, 2, (), dtype=wg.int8)",
    "random.normal": "random.normal((33,), mean=1.0, std=2.0),"
                     "random.normal((4,), dtype=wg.float64)",
    "random.permutation": "random.permutation(20), random.permutation(3, key=random.key(1))",
    "random.laplace": "random.laplace((9,), loc=1.0), random.laplace((2,), dtype=wg.float64)",
    "random.cauchy": "random.cauchy((9,), scale=2.0), random.cauchy((2,), dtype=wg.float16)",
    "random.lognormal": "random.lognormal((9,), sigma=0.5), random.lognormal(())",
    "random.truncated_normal": "random.truncated_normal((9,)),"
                               "random.truncated_normal((4,), low=1.0, dtype=wg.float64)",
    "random.geometric": "random.geometric((9,), p=0.2), random.geometric((), p=1.0)",
    "random.gamma": "random.gamma((9,), a=2.0, scale=3.0),"
                    "random.gamma((5,), a=asarray([0.1, 1.0, 2.0, 3.0, 9.0]), dtype=wg.float64)",
    "random.beta": "random.beta((9,), a=0.5, b=2.0), random.beta((), a=1, b=1, dtype=wg.float64)",
    "random.student_t": "random.student_t((9,), df=3.0), random.student_t((2, 0), df=1.0)",
    "random.dirichlet": "random.dirichlet((4,), alpha=asarray([0.5, 2.0, 3.0]))",
    "random.poisson": "random.poisson((9,), lam=3.0), random.poisson((9,), lam=asarray(50.0))",
    "random.binomial": "random.binomial((9,), n=5, p=0.5), random.binomial((9,), n=90, p=0.7)",
    "random.split": "random.split(random.key(1), 3), random.split(random.key(2))",
    "random.uniform": "random.uniform((17,), low=-2.0, high=3.0),"
                      "random.uniform((2, 2), dtype=wg.float16)",
}


def test_every_op_runs_in_every_mode():
    """No op is left out: its values are compared in `test_modes.py`, or below by name."""
    everything = {label(op) for op in TABLE}
    assert {label(op) for op in OPS} | set(CREATED) == everything
    assert not {label(op) for op in OPS} & set(CREATED)
    without = {label(op) for op in OPS if differentiable(op)} - {label(op) for op in DIFFERENTIABLE}
    without = {name.split(".")[-1] for name in without}
    assert without == set(TYPE_ONLY), "their gradients are compared, except where none is read"


@pytest.mark.parametrize("name", CREATED)
def test_numbers_made_from_nothing(name):
    """Also random ones: each mode draws the numbers that eager code would draw now."""
    names = {k: getattr(wg, k) for k in dir(wg) if not k.startswith("_")} | {"wg": wg}

    def program(x):
        made = eval(f"({CREATED[name]},)", names)
        return made, x + made[0].astype(x.dtype).sum()

    x = wg.ones((3,))
    modes = Modes(program)
    for mode in ("compiled", "session"):
        seen = []
        for run_in in ("eager", mode):
            wg.random.seed(11)
            seen.append([bits(modes.run(run_in, x)) for _ in range(3)])
            seen[-1].append(wg.random.get_state())
        assert seen[0] == seen[1], mode


@pytest.mark.parametrize("op", OPS, ids=label)
def test_layouts(op):
    """Operands that do not lie in C order, in the first dtype of the op."""
    sample = samples(op)[0]
    program, values = program_of(op, sample, dtypes_of(op, sample)[0])
    for layout in LAYOUTS[1:-1]:
        turned = [support.to_tensor(support.to_numpy(v), v.dtype.name, layout) for v in values]
        want = bits(program(*values))
        modes = Modes(program)
        for mode in ("compiled", "session"):
            assert bits(modes.run(mode, *turned)) == want, (mode, layout, sample)


@pytest.mark.parametrize("op", FLOATING, ids=label)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_special_values(op, dtype):
    """Infinities, NaN, zeros of both signs and denormals, alone and in a group of elementwise ops,
    which computes in registers."""
    if dtype not in dtypes_of(op, "x(1)"):
        pytest.skip("not a dtype of this op")
    values = wg.asarray(SPECIAL)
    values = values.astype(getattr(wg, dtype))
    grids = wg.meshgrid(*[values] * len(op["classes"]), indexing="ij")

    def program(*args):
        y = function(op)(*args)
        if y.dtype == wg.bool:
            return y, wg.where(y, args[0], -args[0])
        return y, -y * 0.5 + args[0], y.abs() > 1

    assert_same(program, *grids)


@pytest.mark.parametrize("op", ELEMENTWISE, ids=label)
def test_any_length_in_one_trace(op):
    """Vector bodies and remainders of a plan made for other sizes compute the same."""
    dtype = dtypes_of(op, "x(1)")[-1]
    domain = domain_of(op)
    arrays = []
    for n in range(len(op["classes"])):
        low, high = domain.get(n, (-2.0, 2.0))
        kind = "bool" if op["condition"] and n == 0 else dtype
        rng = support.generator("lengths", label(op), n)
        arrays.append((support.draw(rng, (max(LENGTHS),), kind, low, high), kind))

    def program(*args):
        y = function(op)(*args)
        return y, (y, args[-1])[y.dtype == wg.bool] * 2 if dtype != "bool" else ~y

    modes = Modes(program, [(None,)] * len(arrays))
    for n in LENGTHS:
        args = [support.to_tensor(a[:n].copy(), kind) for a, kind in arrays]
        want = bits(program(*args))
        for mode in ("compiled", "session"):
            assert bits(modes.run(mode, *args)) == want, (mode, n)
    assert modes.compiled.traces <= 2


@given(arrays_and_indices())
def test_reads_and_writes(case):
    """By constants and, where no mask decides about a size, by tensors that are given."""
    a, index = case

    def program(x):
        y = x * 1.0
        y[index] = -1.0
        x = x + 0.0
        kept = x[...]
        x[index] = x[index] * 2.0
        return x, y, kept, x[index], wg.grad(lambda v: (v[index] ** 2).sum())(kept)

    assert_same(program, wg.asarray(a))
    arrays = isinstance(index, tuple) and all(isinstance(i, np.ndarray) for i in index)
    if arrays and index[0].dtype != bool:
        assert_same(lambda x, *i: (x[i], x[i[0]]), wg.asarray(a), *to_tensors(index))


@given(FULL_SHAPES, st.data())
def test_movements_compose(shape, data):
    """A chain of views, with its gradient; the passes may cancel what they like."""
    steps, now = [], np.empty(shape)
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(MOVEMENTS))
        n = now.ndim
        if kind == "permute":
            axes = tuple(data.draw(st.permutations(range(n))))
            steps.append(lambda x, axes=axes: wg.permute_dims(x, axes))
            now = now.transpose(axes)
        elif kind == "flip" and n:
            axis = data.draw(st.integers(-n, n - 1))
            steps.append(lambda x, axis=axis: wg.flip(x, axis=axis))
        elif kind == "slice":
            index = data.draw(hnp.basic_indices(now.shape, allow_newaxis=False))
            steps.append(lambda x, index=index: x[index])
            now = np.asarray(now[index])
        elif kind == "reshape":
            steps.append(lambda x: x.reshape(-1))
            now = now.reshape(-1)
        elif kind == "broadcast":
            steps.append(lambda x, s=(2, *now.shape): wg.broadcast_to(x, s))
            now = np.broadcast_to(now, (2, *now.shape))
        elif kind == "expand":
            axis = data.draw(st.integers(-n - 1, n))
            steps.append(lambda x, axis=axis: wg.expand_dims(x, axis=axis))
            now = np.expand_dims(now, axis)
        if now.ndim > 6:
            break

    def moved(x):
        for step in steps:
            x = step(x)
        return x

    def program(x):
        y = moved(x)
        return y, y + 1.0, y.sum(), wg.grad(lambda v: (moved(v) ** 2).sum())(x)

    x = wg.arange(float(np.prod(shape))).reshape(shape)
    assert_same(program, x)


@given(programs())
def test_any_thread_count(program):
    """Shapes that are cut into chunks; the same plan on one thread, two and five."""
    args = [
        wg.asarray(support.generator("threads", i).uniform(-1, 1, (257, 131)).astype("float32"))
        for i in range(2)
    ]
    f = wg.compile(lambda a, b: run(program, a, b))
    seen = {str(bits(run(program, *args)))}
    for count in (1, 2, 5):
        wg.set_num_threads(count)
        seen.add(str(bits(f(*args))))
    assert len(seen) == 1
