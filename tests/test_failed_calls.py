"""Calls that fail change nothing: no key of a generator is used up, and what would make a list
longer than memory is refused before it starts."""

import sys

import pytest

import wengert as wg

from support import live_bytes

# Random generators.


def draws(shape=(3,)):
    return wg.random.normal(shape)


def by_index(v, i):
    return (v + draws())[i]


def by_check(v, i):
    wg.check(i < 3, "too large")
    return v + draws()


def after_control_flow(v, i):
    y = wg.scan(lambda c, x: (c + draws(), c), v, v)[0]
    return wg.cond(i >= 0, lambda: y + draws(), lambda: y)[i]


FUNCTIONS = [by_index, by_check, after_control_flow]


def runners(f):
    """The function compiled, and in sessions: of the global generator, and of their own."""
    with wg.Graph() as g:
        v, i = wg.placeholder("v", (3,)), wg.placeholder("i", (), dtype=wg.int64)
        y = f(v, i)
    shared, own = wg.Session(g), wg.Session(g, seed=5)
    return {
        "compiled": wg.compile(f),
        "differentiated": wg.compile(wg.value_and_grad(lambda v, i: f(v, i).sum())),
        "function": g.function([v, i], y),
        "session": lambda a, b: shared.run(y, {v: a, i: b}),
        "own": lambda a, b: own.run(y, {v: a, i: b}),
    }


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mode", ["compiled", "differentiated", "function", "session", "own"])
def test_a_failed_call_uses_up_no_random_keys(f, mode):
    good, bad = wg.tensor(1), wg.tensor(7)

    def results(failures):
        wg.random.seed(3)
        run, found = runners(f)[mode], []
        for count in failures:
            before = wg.random.get_state()
            for _ in range(count):
                with pytest.raises((ValueError, IndexError)):
                    run(wg.ones(3), bad)
            assert wg.random.get_state() == before
            y = run(wg.ones(3), good)
            found.append(y[0].tolist() if mode == "differentiated" else y.tolist())
        return found

    first = results([0, 0, 0])
    assert results([1, 3, 2]) == first
    assert first[0] != first[1] != first[2]


@pytest.mark.parametrize(
    "call",
    [
        lambda: wg.random.normal((1 << 50,)),
        lambda: wg.random.uniform((2, -3)),
        lambda: wg.random.permutation(1 << 50),
        lambda: wg.random.normal((3,), dtype=wg.int32),
    ],
)
def test_an_eager_draw_that_fails_uses_up_no_key(call):
    wg.random.seed(3)
    before = wg.random.get_state()
    with pytest.raises((ValueError, MemoryError, TypeError)):
        call()
    assert wg.random.get_state() == before


def test_memory_that_is_refused_uses_up_no_key():
    f = wg.compile(lambda v: wg.random.normal((1 << 20,)) + v)
    f(wg.ones(()))
    before = wg.random.get_state()
    wg.release_cached_memory()
    wg.set_memory_limit(wg.memory_stats()["live_bytes"] + 1000)
    try:
        with pytest.raises(MemoryError):
            f(wg.ones(()))
    finally:
        wg.set_memory_limit(None)
    assert wg.random.get_state() == before


# Lists as long as a user says.

MANY = 10**12


def repeated(n=MANY):
    return wg.zeros(1).broadcast_to((n,))


LONG = {
    "unstack": lambda: repeated().unstack(),
    "unstack without elements": lambda: wg.zeros((0, 1)).broadcast_to((0, MANY)).unstack(axis=1),
    "chunk": lambda: repeated().chunk(MANY),
    "split": lambda: repeated().split(MANY),
    "split without elements": lambda: wg.zeros(0).split(MANY),
    "tolist": lambda: repeated().tolist(),
    "tolist without elements": lambda: wg.zeros((1, 0)).broadcast_to((MANY, 0)).tolist(),
    "tolist of two axes": lambda: wg.zeros((1, 1)).broadcast_to((10**6, 10**6)).tolist(),
    "scan": lambda: wg.scan(lambda c, x: (c, c), wg.zeros(()), length=MANY),
    "map": lambda: wg.map(lambda x: x * 2, repeated()),
    "compiled unstack": lambda: wg.compile(lambda x: x.unstack()[0])(repeated()),
    "compiled scan": lambda: wg.compile(lambda x: wg.map(lambda y: y * 2, x))(repeated()),
    "permutation": lambda: wg.random.permutation(MANY),
    "keys": lambda: wg.random.split(wg.random.key(0), MANY),
}


@pytest.mark.parametrize("name", LONG)
def test_lists_longer_than_memory_are_refused(name):
    live = live_bytes()
    with pytest.raises(MemoryError):
        LONG[name]()
    assert live_bytes() <= live


def test_a_limit_on_memory_holds_for_lists_as_well():
    x = wg.zeros(1).broadcast_to((100_000,))
    wg.set_memory_limit(wg.memory_stats()["live_bytes"] + 50_000)
    try:
        for call in (x.unstack, x.tolist, lambda: x.split(100_000), lambda: x.chunk(100_000)):
            with pytest.raises(MemoryError):
                call()
    finally:
        wg.set_memory_limit(None)
    assert len(x.tolist()) == 100_000


def test_more_parts_than_there_are_elements_make_no_list():
    assert [part.tolist() for part in wg.arange(3).chunk(sys.maxsize >> 8)] == [[0], [1], [2]]


def test_sums_in_parts_that_memory_cannot_hold_are_refused():
    """What a compiled sum keeps of each block of rows is asked for before the first is summed."""
    f = wg.compile(lambda x: (x * 2).sum(axis=0))
    live = live_bytes()
    with pytest.raises(MemoryError):
        f(wg.zeros((1, 4)).broadcast_to((MANY, 4)))
    assert live_bytes() <= live
