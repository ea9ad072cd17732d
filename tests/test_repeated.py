"""`wg.repeat` by counts in a tensor: eager, captured, differentiated, batched, and refused."""

import numpy as np
import pytest

import wengert as wg

X = np.arange(6.0, dtype=np.float32).reshape(3, 2)
COUNTS = [2, 0, 3]


def test_eager_code_reads_the_length():
    x = wg.asarray(X)
    for counts in (COUNTS, [0, 0, 0], [2]):
        for dtype in (wg.int64, wg.int32, wg.uint8):
            got = wg.repeat(x, wg.tensor(counts, dtype=dtype), axis=0)
            np.testing.assert_array_equal(got.numpy(), np.repeat(X, counts, axis=0))
    np.testing.assert_array_equal(x.repeat(wg.tensor([1, 4]), axis=-1).numpy(),
                                  np.repeat(X, [1, 4], axis=-1))
    six = [1, 0, 2, 0, 0, 1]
    np.testing.assert_array_equal(wg.repeat(x, wg.tensor(six)).numpy(), np.repeat(X, six))
    np.testing.assert_array_equal(wg.repeat_interleave(x, wg.tensor(2)).numpy(), np.repeat(X, 2))
    assert wg.repeat(wg.zeros((0, 2)), wg.zeros(0, dtype=wg.int64), axis=0).shape == (0, 2)


@pytest.mark.parametrize(("total", "places"), [
    (5, [0, 0, 2, 2, 2]), (3, [0, 0, 2]), (7, [0, 0, 2, 2, 2, 2, 2]), (0, []),
])
def test_a_length_cuts_and_fills(total, places):
    x, counts = wg.asarray(X), wg.tensor(COUNTS)

    def f(x, counts):
        return wg.repeat(x, counts, axis=0, total_repeat_length=total)

    for g in (f, wg.compile(f)):
        np.testing.assert_array_equal(g(x, counts).numpy(), X[places])
    # A number of repeats too.
    y = wg.repeat(x, 2, axis=0, total_repeat_length=total)
    np.testing.assert_array_equal(y.numpy(), X[np.minimum(np.arange(total) // 2, 2)])


def test_gradients_add_up():
    x, counts = wg.asarray(X).requires_grad_(), wg.tensor(COUNTS)
    by = wg.asarray(np.arange(10.0, dtype=np.float32).reshape(5, 2))
    (wg.repeat(x, counts, axis=0) * by).sum().backward()
    want = [[2.0, 4.0], [0.0, 0.0], [18.0, 21.0]]
    assert x.grad.tolist() == want

    def loss(x, counts):
        return (wg.repeat(x, counts, axis=0, total_repeat_length=5) * by).sum()

    assert wg.grad(loss)(x.detach(), counts).tolist() == want
    _, dy = wg.jvp(lambda x: loss(x, counts), (x.detach(),), (wg.ones((3, 2)),))
    assert dy.item() == 45.0


def test_examples_have_counts_of_their_own():
    counts = wg.tensor([[2, 0, 3], [1, 1, 1]])

    def f(x, counts):
        return wg.repeat(x, counts, total_repeat_length=4)

    got = wg.vmap(f)(wg.asarray(X.T.copy()), counts)
    assert got.tolist() == [[0.0, 0.0, 4.0, 4.0], [1.0, 3.0, 5.0, 5.0]]
    same = wg.vmap(f, in_axes=(0, None))(wg.asarray(X.T.copy()), counts[1])
    assert same.tolist() == [[0.0, 2.0, 4.0, 4.0], [1.0, 3.0, 5.0, 5.0]]


def test_what_is_refused():
    x, counts = wg.asarray(X), wg.tensor(COUNTS)
    with pytest.raises(wg.CaptureError, match=r"repeat: .*pass total_repeat_length="):
        wg.compile(lambda x, n: wg.repeat(x, n, axis=0))(x, counts)
    with pytest.raises(wg.CaptureError, match=r"repeat: .*pass total_repeat_length="):
        wg.vmap(lambda x, n: wg.repeat(x, n))(x, wg.ones((3, 2), dtype=wg.int64))
    for call, kind, what in (
        (lambda: wg.repeat(x, wg.tensor([1, -1, 2]), axis=0), ValueError, "not be negative"),
        (lambda: wg.repeat(x, counts, axis=1), wg.ShapeError, "repeat"),
        (lambda: wg.repeat(x, wg.ones((3, 1), dtype=wg.int64)), wg.ShapeError, "rank"),
        (lambda: wg.repeat(x, wg.ones(3), axis=0), wg.DTypeError, "float32"),
        (lambda: wg.repeat(x, 2.0, axis=0), TypeError, "repeat"),
        (lambda: wg.repeat(x, -1), ValueError, "at least 0"),
        (lambda: wg.repeat(x, counts, axis=0, total_repeat_length=-1), ValueError, "at least 0"),
        (lambda: wg.repeat(wg.zeros(0), wg.zeros(0, dtype=wg.int64), total_repeat_length=1),
         ValueError, "nothing to repeat"),
    ):
        with pytest.raises(kind, match=what):
            call()
