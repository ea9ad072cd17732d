"""Ints beyond every size: wherever the op table takes an int, a list of ints or a number, values
around the limits of machine words give the right result or an exception with words, in eager code,
in a graph whose sizes are open, and in a compiled function.

Sizes that are not known yet are expressions. The graphs here have some, so that a number taken for
one of them would show.
"""

import struct

import numpy as np
import pytest
from test_ops_values import outputs, samples

import wengert as wg

from support import TABLE, Operands, domain_of, dtypes_of, function, label

DOCUMENTED = (wg.Error, TypeError, ValueError, IndexError, OverflowError, MemoryError)
INTS = [2**31, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64, -(2**62), -(2**63)]
KINDS = {
    "Int": [lambda n: n],
    "MaybeInt": [lambda n: n],
    "Number": [lambda n: n],
    "MaybeNumber": [lambda n: n],
    "Ints": [lambda n: n, lambda n: (n, 1)],
    "Shape": [lambda n: n, lambda n: (2, n), lambda n: (n, 0)],
    "Pairs": [lambda n: n, lambda n: ((0, 1), (n, 0))],
}
OPS = [
    op for op in TABLE
    if op["function"] and any(p["kind"] in KINDS for p in op["params"])
]
# Required arguments of ops that make tensors: what else a call needs.
STARTS = {
    "linspace": {"start": 0, "stop": 1, "num": 3},
    "arange": {"start": 0, "stop": 3},
    "empty": {},
    "full": {"shape": (2,), "fill_value": 1},
    "ones": {},
    "zeros": {},
    "eye": {"n": 2},
    "random.integers": {"low": 3},
    "random.permutation": {"n": 3},
}


@pytest.fixture(autouse=True)
def bounded_memory():
    wg.set_memory_limit(1 << 27)
    yield
    wg.set_memory_limit(None)


def calls(op):
    """The arguments of calls with one huge int each: positional ones, and ones by name."""
    wanted = [p for p in op["params"] if p["kind"] in KINDS]
    for sample in samples(op)[:1]:
        for p in wanted:
            for form in KINDS[p["kind"]]:
                for n in INTS:
                    yield sample, p["name"], form(n)


def arguments(op, sample, name, value, wrap):
    dtypes = dtypes_of(op, sample)
    dtype = "float32" if "float32" in dtypes else dtypes[-1]
    operands = Operands((label(op), sample), dtype, domain_of(op))
    args, kwargs = operands.evaluate(sample, wrap)
    args = list(args)
    names = [p["name"] for p in op["params"]]
    if label(op) in STARTS:
        args, kwargs = [], dict(STARTS[label(op)])
    if name in names[: len(args)]:
        args[names.index(name)] = value
    else:
        kwargs[name] = value
    return args, kwargs


def attempt(run):
    """Results, or the exception."""
    try:
        return run(), None
    except DOCUMENTED as error:
        assert getattr(error, "code", "") != "internal", error
        assert str(error).strip()
        return None, error


def tensor(kind, array):
    x = wg.asarray(array)
    return x if kind != "x" else x.astype(wg.float32) if array.dtype.kind == "f" else x


@pytest.mark.parametrize("op", OPS, ids=label)
def test_huge_ints(op):
    is_random = op["namespace"] == "random" or op["name"] == "dropout"
    for sample, name, value in calls(op):
        facts = (sample, name, value)

        def eager(wrap=tensor, facts=facts):
            args, kwargs = arguments(op, *facts, wrap)
            return outputs(function(op)(*args, **kwargs))

        want, refused = attempt(lambda eager=eager: [to_numpy(y) for y in eager()])
        if refused is None and not is_random:
            check_reference(op, facts, want)

        def session(facts=facts):
            feeds = {}

            def wrap(kind, array):
                x = tensor(kind, array)
                p = wg.placeholder(f"p{len(feeds)}", (None,) * x.ndim, x.dtype)
                feeds[p] = x
                return p

            with wg.Graph() as g:
                # Sizes that are expressions, older than those of the operands.
                q = wg.placeholder("q", (None, None))
                _ = wg.concat([q, q.reshape(-1, q.shape[1])])
                args, kwargs = arguments(op, *facts, wrap)
                ys = outputs(function(op)(*args, **kwargs))
                one = q.sum() * 0
                ys = [y if y.dtype == wg.bool else y + one.astype(y.dtype) for y in ys]
            feeds[q] = wg.ones((2, 3))
            return [to_numpy(y) for y in wg.Session(g).run(ys, feeds)]

        compare(facts, want, refused, *attempt(session), is_random)

        def compiled(facts=facts):
            given = []
            arguments(op, *facts, lambda kind, array: given.append(tensor(kind, array)))

            def f(q, *tensors):
                _ = wg.concat([q, q.reshape(-1, q.shape[1])])
                it = iter(tensors)
                args, kwargs = arguments(op, *facts, lambda kind, array: next(it))
                return [y + 0 if y.dtype != wg.bool else y
                        for y in outputs(function(op)(*args, **kwargs))]

            n = wg.Dim("n")
            specs = [wg.Spec((n, wg.Dim("m")))]
            specs += [
                wg.Spec(tuple(wg.Dim(f"d{i}_{k}") for k in range(x.ndim)), x.dtype)
                for i, x in enumerate(given)
            ]
            return [to_numpy(y) for y in wg.compile(f, signature=specs)(wg.ones((2, 3)), *given)]

        if value in (2**31, (2**62 + 1,), 2**62 + 1, 2**63 - 1, -(2**62), (0, 2**62 + 1)):
            compare(facts, want, refused, *attempt(compiled), is_random)


def to_numpy(t):
    return (t.astype(wg.float32) if t.dtype == wg.bfloat16 else t.detach()).numpy()


def compare(facts, want, refused, got, error, is_random):
    """The other modes refuse what eager code refuses, and give its bits otherwise. A mode may
    refuse more: a list of tensors whose length a size decides, for one."""
    if refused is not None:
        assert error is not None, f"{facts}: accepted, though eager code says {refused}"
        return
    if error is not None or is_random:
        return
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, facts
        np.testing.assert_array_equal(a, b, err_msg=str(facts))


# Shifts and offsets may be any number. (NumPy's own `diagonal` and `trace` crash for some.)
REFERENCES = {
    "roll": lambda x, shift, axis=None: np.roll(
        x, shift % x.size if np.isscalar(shift) else [s % x.size for s in shift], axis
    ),
    "tril": lambda x, k: x if k > 0 else np.zeros_like(x),
    "triu": lambda x, k: np.zeros_like(x) if k > 0 else x,
    "eye": lambda n, k: np.zeros((n, n), "float32"),
    "diagonal": lambda x, offset: np.zeros((*x.shape[2:], 0), x.dtype),
    "trace": lambda x, offset: np.zeros(x.shape[2:], x.dtype),
}


def check_reference(op, facts, got):
    """What a shift or an offset beyond every size gives."""
    _, name, _ = facts
    if op["name"] not in REFERENCES or name not in ("shift", "k", "offset"):
        return
    args, kwargs = arguments(op, *facts, lambda kind, array: array)
    want = REFERENCES[op["name"]](*args, **kwargs)
    np.testing.assert_array_equal(got[0], want, err_msg=str(facts))


BOUNDS = [None, 0, 2, -2, *INTS]


@pytest.mark.parametrize("start", BOUNDS)
def test_slices_are_those_of_lists(start):
    numbers = list(range(5))
    x = wg.tensor(numbers)
    with wg.Graph() as g:
        p = wg.placeholder("p", (None,), wg.int64)
    for stop in BOUNDS:
        for step in (None, 1, -1, 2, -2, 2**62, -(2**62), 2**64, -(2**64)):
            want = numbers[start:stop:step]
            assert x[start:stop:step].tolist() == want, (start, stop, step)
            with g:
                y = p[start:stop:step]
            assert wg.Session(g).run(y, {p: x}).tolist() == want, (start, stop, step)


@pytest.mark.parametrize("i", INTS)
def test_no_index_is_huge(i):
    x = wg.tensor([1, 2, 3])
    indices = [i, np.array([i])] if -(2**63) <= i < 2**63 else [i]
    for index in indices:
        with pytest.raises(DOCUMENTED) as eager:
            x[index]
        with pytest.raises(DOCUMENTED) as session, wg.Graph() as g:
            p = wg.placeholder("p", (None,), wg.int64)
            wg.Session(g).run(p[index], {p: x})
        for caught in (eager, session):
            assert getattr(caught.value, "code", "") != "internal"


@pytest.mark.parametrize("n", [2**62, 2**63 - 1, 2**63, 2**64])
def test_arithmetic_of_sizes_does_not_wrap(n):
    size = wg.Dim("n")
    for f in (lambda: size + n, lambda: size * n, lambda: n * size, lambda: size * (n // 2) * 4):
        with pytest.raises(DOCUMENTED):
            f()
    with wg.Graph():
        p = wg.placeholder("p", (None, 3))
        for shape in ((n,), (p.shape[0], n), (n, p.shape[0])):
            with pytest.raises(DOCUMENTED):
                wg.placeholder("q", shape)
            with pytest.raises(DOCUMENTED):
                wg.zeros(shape) + p.sum()


@pytest.mark.parametrize("n", [2**62, 2**62 + 1, 2**63 - 1])
def test_numbers_in_the_text_of_a_graph_are_numbers(n):
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        wg.nn.softmax(x, axis=1)
    text = str(g)
    assert "axis=1" in text
    with pytest.raises(DOCUMENTED):
        back = wg.parse_graph(text.replace("axis=1", f"axis={n}"))
        wg.Session(back)


def test_nan_is_a_number_whatever_its_payload():
    """No pattern of bits stands for a number of a graph."""
    f = wg.compile(lambda x, a: x * a + payload)
    for low in range(3):
        payload = struct.unpack("<d", struct.pack("<Q", 0x7FFA_0000_0000_0000 + low))[0]
        assert np.isnan(f(wg.ones(2), 2.0).numpy()).all()
        assert np.isnan(f(wg.ones(2), 3.0).numpy()).all()
        assert np.isnan((wg.ones(2) * payload).numpy()).all()


@pytest.mark.parametrize("op", OPS, ids=label)
def test_ints_that_64_bits_do_not_hold_are_refused_and_not_clipped(op):
    """A clipped int gives what another int means: `roll` by 2⁶³ − 1 is not `roll` by 2⁶³."""
    wanted = [p for p in op["params"] if p["kind"] in ("Int", "MaybeInt", "Ints", "Shape", "Pairs")]
    for sample in samples(op)[:1]:
        for p in wanted:
            for form in KINDS[p["kind"]]:
                for n in (2**63, 2**64 + 1, -(2**63) - 1, -(2**80)):
                    args, kwargs = arguments(op, sample, p["name"], form(n), tensor)
                    with pytest.raises(wg.RangeError, match=f"{n} does not fit int64"):
                        function(op)(*args, **kwargs)


def test_bounds_of_slices_are_clipped_and_indices_refused():
    x, huge = wg.arange(5), 2**70
    assert x[:huge].tolist() == x[-huge:].tolist() == [0, 1, 2, 3, 4]
    assert x[huge:].tolist() == []
    for i in (huge, -huge, 2**63):
        with pytest.raises(IndexError, match=str(i)):
            x[i]
    with wg.Graph() as graph:
        p = wg.placeholder("p", (None,))
        y = p[p.shape[0] - 2 : huge]
    assert wg.Session(graph).run(y, {p: x.astype(wg.float32)}).tolist() == [3.0, 4.0]
