"""Functions of `nn` beyond their values: extreme arguments, conventions, and refusals."""

import contextlib
import inspect

import numpy as np
import pytest

import wengert as wg
from wengert import nn
from wengert.testing import gradcheck, gradgradcheck

INF = float("inf")


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def leaf(*shape, seed=0):
    return wg.tensor(array(*shape, seed=seed), requires_grad=True)


def gradient(f, values):
    x = wg.tensor(values, requires_grad=True)
    f(x).sum().backward()
    return x.grad.tolist()


def test_activations_far_out():
    x = wg.tensor([-1e4, -200.0, 200.0, 1e4])
    for f in (nn.gelu, nn.silu, nn.softplus, nn.relu, lambda x: nn.gelu(x, approximate="tanh")):
        np.testing.assert_array_equal(f(x).numpy(), [0.0, 0.0, 200.0, 1e4])
        assert gradient(f, [-1e4, -200.0, 200.0, 1e4]) == [0.0, 0.0, 1.0, 1.0]
    # The lower tail keeps its relative accuracy: Φ(-5) = 2.8665157187919392e-7.
    y = nn.gelu(wg.tensor([-5.0], dtype=wg.float64)).item()
    assert abs(y / (-5 * 2.8665157187919392e-7) - 1) < 1e-12


def test_gradients_at_zero():
    assert gradient(nn.relu, [0.0, -0.0, 1.0]) == [0.0, 0.0, 1.0]
    assert gradient(lambda x: nn.leaky_relu(x, 0.25), [0.0, 1.0, -1.0]) == [0.25, 1.0, 0.25]
    assert gradient(lambda x: nn.l1_loss(x, wg.zeros(2)), [0.0, 2.0]) == [0.0, 0.5]
    assert nn.relu(wg.tensor([-1, 2])).tolist() == [0, 2]
    assert np.isnan(nn.relu(wg.tensor([float("nan")])).item())


def test_softmax_of_large_and_infinite_logits():
    x = wg.tensor([[1e4, 1e4 - 1.0], [0.0, -INF]])
    e = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(nn.softmax(x).numpy(), [[e, 1 - e], [1.0, 0.0]], rtol=1e-6)
    assert nn.log_softmax(wg.tensor([0.0, -1e4])).tolist() == [0.0, -1e4]


def test_cross_entropy_of_large_logits():
    x = wg.tensor([[1e5, -1e5, 0.0]], requires_grad=True)
    loss = nn.cross_entropy(x, wg.tensor([1]))
    loss.backward()
    assert loss.item() == 2e5 and x.grad.tolist() == [[1.0, -1.0, 0.0]]


def test_cross_entropy_ignores():
    x, labels = array(4, 3), np.array([0, -100, 2, 7])
    loss = nn.cross_entropy(wg.asarray(x[:3]), wg.asarray(labels[:3]))
    kept = nn.cross_entropy(wg.asarray(x[[0, 2]]), wg.asarray(labels[[0, 2]]))
    np.testing.assert_allclose(loss.item(), kept.item(), rtol=1e-12)
    t = wg.tensor(x, requires_grad=True)
    losses = nn.cross_entropy(t, wg.asarray(labels % 4), ignore_index=3, reduction="none")
    losses.sum().backward()
    assert losses[3].item() == 0.0 and t.grad[3].tolist() == [0.0] * 3
    everything = nn.cross_entropy(wg.asarray(x), wg.asarray([-100] * 4), reduction="sum")
    assert everything.item() == 0.0


@pytest.mark.parametrize("label", [3, 7, -1, -3])
@pytest.mark.parametrize("loss", [nn.cross_entropy, nn.nll_loss])
def test_labels_outside_the_classes_are_refused(loss, label):
    with pytest.raises(IndexError, match=loss.__name__):
        loss(wg.ones((2, 3)), wg.tensor([0, label]))


def test_cross_entropy_of_one_sample_is_that_of_a_batch_of_one():
    x = array(3)
    one = nn.cross_entropy(wg.asarray(x), wg.asarray(1))
    assert one.shape == () and one.item() == nn.cross_entropy(wg.asarray(x[None]), [1]).item()


def test_losses_take_half_floats_without_overflow():
    x = wg.ones((400, 400), dtype=wg.float16) * 16.0
    assert nn.mse_loss(x, wg.zeros_like(x)).item() == 256.0
    y = nn.layer_norm(wg.tensor([[-3e4, 3e4]], dtype=wg.float16))
    assert y.tolist() == [[-1.0, 1.0]]


def test_dropout():
    key = wg.random.key(5)
    x = wg.tensor(array(50, 40).astype(np.float32), requires_grad=True)
    y = nn.dropout(x, 0.25, key=key)
    y.sum().backward()
    kept = y.numpy() != 0
    assert abs(kept.mean() - 0.75) < 0.04
    scale = np.float32(1 / 0.75)
    np.testing.assert_array_equal(y.numpy(), np.where(kept, x.numpy() * scale, 0))
    np.testing.assert_array_equal(x.grad.numpy(), np.where(kept, scale, 0))
    assert nn.dropout(x, 1.0).tolist() == wg.zeros_like(x).tolist()
    assert nn.dropout(x, 0.9, training=False).tolist() == x.tolist()
    with pytest.raises(ValueError, match=r"1\.5"):
        nn.dropout(x, 1.5)


def test_a_dropout_keeps_its_key_alone():
    x = wg.ones(1_000_000, requires_grad=True)
    before = wg.memory_stats()["live_bytes"]
    y = nn.dropout(x, 0.5)
    assert wg.memory_stats()["live_bytes"] - before < 1.1 * y.nbytes


def test_gradients_of_what_the_table_s_samples_leave_out():
    x, w = leaf(2, 4, 5, 5), leaf(6, 2, 3, 3, seed=1)
    assert gradcheck(lambda x, w: nn.conv2d(x, w, stride=2, padding=1, groups=2), [x, w])
    x, w = leaf(2, 4, 3, 3), leaf(4, 3, 3, 3, seed=1)

    def transposed(x, w):
        return nn.conv_transpose2d(x, w, None, 2, 1, 1, 2)

    assert gradcheck(transposed, [x, w]) and gradgradcheck(transposed, [x, w])
    x = leaf(2, 3, 7)
    assert gradcheck(lambda x: nn.max_pool1d(x, 3, 1, 1, 1), x)
    assert gradcheck(lambda x: nn.max_pool1d(x, 2, 2, 0, 3), x)
    assert gradcheck(lambda x: nn.avg_pool1d(x, 3, 2, 1, count_include_pad=False), x)
    q, k, v = leaf(2, 3, 4), leaf(2, 5, 4, seed=1), leaf(2, 5, 2, seed=2)
    mask = wg.asarray(np.tri(3, 5, 1) > 0)

    def masked(q, k, v):
        return nn.scaled_dot_product_attention(q, k, v, mask=mask)

    assert gradcheck(masked, [q, k, v]) and gradgradcheck(masked, [q, k, v])


def test_average_pool_counts_padding_if_asked():
    x = wg.ones((1, 1, 4))
    assert nn.avg_pool1d(x, 3, 1, 1).tolist()[0][0] == pytest.approx([2 / 3, 1, 1, 2 / 3])
    assert nn.avg_pool1d(x, 3, 1, 1, count_include_pad=False).tolist() == [[[1.0] * 4]]


def test_max_pool_shares_ties_and_passes_nan():
    x = wg.tensor([[2.0, 2.0, 1.0, 0.0]], requires_grad=True)
    nn.max_pool1d(x, 2).sum().backward()
    assert x.grad.tolist() == [[0.5, 0.5, 1.0, 0.0]]
    assert np.isnan(nn.max_pool1d(wg.tensor([[float("nan"), 1.0]]), 2).item())


def test_attention_reads_only_what_the_mask_allows():
    q, k, v = (array(2, 3, 4, seed=s) for s in range(3))
    few = [wg.asarray(a[:, :2]) for a in (k, v)]
    full = nn.scaled_dot_product_attention(wg.asarray(q), *few)
    all_of_them = [wg.asarray(a) for a in (q, k, v)]
    masked = nn.scaled_dot_product_attention(*all_of_them, mask=wg.tensor([True, True, False]))
    np.testing.assert_allclose(masked.numpy(), full.numpy(), rtol=1e-12)


ONES = wg.ones
REFUSED = [
    (
        lambda: nn.conv2d(ONES((1, 3, 8, 8)), ONES((4, 2, 3, 3))),
        wg.ShapeError,
        "conv2d: channels differ: input has 3 channels, weight (4, 2, 3, 3) with groups=1 takes 2",
    ),
    (lambda: nn.conv2d(ONES((1, 3, 8, 8)), ONES((4, 3, 9, 3))), wg.ShapeError, "larger"),
    (lambda: nn.conv2d(ONES((8, 8)), ONES((4, 3, 3, 3))), wg.ShapeError, "rank 4"),
    (lambda: nn.conv2d(ONES((1, 3, 8, 8)), ONES((4, 3, 3, 3)), stride=0), ValueError, "stride"),
    (lambda: nn.conv2d(ONES((1, 3, 8, 8)), ONES((4, 3, 3, 3)), stride=(1, 1, 1)), ValueError, "3"),
    (lambda: nn.conv1d(ONES((1, 3, 8)), ONES((4, 3, 3)), ONES(3)), wg.ShapeError, "bias"),
    (lambda: nn.conv_transpose1d(ONES((1, 3, 8)), ONES((4, 3, 3))), wg.ShapeError, "3 channels"),
    (
        lambda: nn.conv_transpose1d(ONES((1, 3, 8)), ONES((3, 3, 3)), output_padding=1),
        ValueError,
        "output_padding",
    ),
    (lambda: nn.max_pool2d(ONES((1, 1, 2, 2)), 3), wg.ShapeError, "larger"),
    (lambda: nn.max_pool2d(ONES((1, 1, 8, 8)), 3, padding=2), ValueError, "half"),
    (lambda: nn.linear(ONES((2, 3)), ONES((4, 5))), wg.ShapeError, "has 3 and 5"),
    (lambda: nn.linear(ONES((2, 3)), ONES((4, 3)), ONES(3)), wg.ShapeError, "bias"),
    (lambda: nn.embedding(wg.tensor([4]), ONES((4, 2))), IndexError, "4"),
    (lambda: nn.embedding(ONES(2), ONES((4, 2))), wg.DTypeError, "integer"),
    (lambda: nn.cross_entropy(ONES((2, 3)), wg.tensor([0, 1, 2])), wg.ShapeError, "(2,)"),
    (lambda: nn.cross_entropy(ONES((2, 3)), wg.tensor([0, 1]), reduction="max"), ValueError, "max"),
    (lambda: nn.cross_entropy(ONES((2, 3)), wg.tensor([True, False])), wg.DTypeError, "bool"),
    (lambda: nn.mse_loss(ONES((2, 1)), ONES(2)), wg.ShapeError, "(2, 1)"),
    (lambda: nn.layer_norm(ONES((2, 3)), weight=ONES(2)), wg.ShapeError, "(3,)"),
    (lambda: nn.batch_norm(ONES((2, 3)), ONES(2), ONES(3)), wg.ShapeError, "mean"),
    (lambda: nn.group_norm(ONES((2, 3)), 2), wg.ShapeError, "groups=2"),
    (lambda: nn.gelu(ONES(2), approximate="erf"), ValueError, "erf"),
    (lambda: nn.softmax(ONES((2, 3)), axis=2), wg.AxisError, "2"),
    (
        lambda: nn.scaled_dot_product_attention(ONES((2, 3)), ONES((2, 4)), ONES((2, 4))),
        wg.ShapeError,
        "has 3 and 4",
    ),
]


@pytest.mark.parametrize("call, kind, words", REFUSED, ids=range(len(REFUSED)))
def test_refusals(call, kind, words):
    with pytest.raises(kind) as error:
        call()
    assert words in str(error.value)


@pytest.mark.parametrize("stride", [7, 10**6, 2**31 - 1])
def test_a_stride_beyond_the_input_has_the_gradient_of_its_one_window(stride):
    x = wg.tensor(wg.arange(30.0).reshape(1, 1, 5, 6), requires_grad=True)
    w = wg.arange(6.0).reshape(1, 1, 2, 3)
    wg.nn.conv2d(x, w, stride=stride).sum().backward()
    assert (x.grad[0, 0, :2, :3] == w[0, 0]).all() and x.grad.sum() == w.sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_class_that_there_is_not_is_refused_where_only_the_gradient_is_wanted(compiled):
    w = wg.tensor(np.zeros((4, 3), "f"), requires_grad=True)

    def step(y):
        w.grad = None
        nn.cross_entropy(w, y).backward()

    run = wg.compile(step) if compiled else step
    run(wg.asarray(np.array([0, 1, 2, -100])))
    with pytest.raises(wg.BoundsError, match="class 3 is out of range"):
        run(wg.asarray(np.array([0, 1, 3, 2])))


FUNCTIONS = sorted(n for n in nn.__all__ if n.islower() and inspect.isroutine(getattr(nn, n)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_tensor_is_refused_as_an_argument(name):
    """Not by an attribute that it does not have, which would be an error of the library's own."""
    function, x = getattr(nn, name), wg.ones((2, 4))
    for odd in (None, "a", object()):
        for arguments in ((odd,), (odd, odd), (odd, odd, odd), (x, odd), (x, x, odd)):
            with contextlib.suppress(TypeError, ValueError, LookupError, wg.ShapeError):
                function(*arguments)


def test_bags_refuse_what_is_no_tensor_by_name():
    i, x = wg.tensor([0, 1]), wg.ones((2, 4))
    for arguments in ((i, x, "a"), (i, x, i, "sum", "a")):
        with pytest.raises(TypeError, match=r"embedding_bag: .* is str, wanted a tensor"):
            nn.embedding_bag(*arguments)
