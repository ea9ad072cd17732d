"""Arguments of modules and optimizers that are PyTorch's, in its order and with its defaults."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim


def values(*shape):
    return np.cos(np.arange(np.prod(shape, dtype=int), dtype="f") * 1.7).reshape(shape)


@pytest.mark.parametrize("kind", ["Avg", "Max"])
def test_none_in_the_size_of_an_adaptive_pool_is_the_inputs(kind):
    x = values(2, 3, 6, 4)
    y = getattr(nn, f"Adaptive{kind}Pool2d")((None, 2))(wg.asarray(x))
    reduce = np.mean if kind == "Avg" else np.max
    np.testing.assert_allclose(y.numpy(), reduce(x.reshape(2, 3, 6, 2, 2), axis=-1), rtol=1e-6)
    with pytest.raises(wg.ShapeError, match="wanted 2 axes or more"):
        getattr(nn, f"Adaptive{kind}Pool2d")((None, 2))(wg.ones(4))


def test_batch_norm_without_running_statistics_uses_those_of_the_batch():
    x = values(5, 3, 4)
    norm = nn.BatchNorm1d(3, 1e-3, 0.1, False, False)
    wanted = (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True) + 1e-3)
    for mode in (True, False):
        norm.train(mode)
        np.testing.assert_allclose(norm(wg.asarray(x)).numpy(), wanted, rtol=1e-4, atol=1e-6)
    assert not norm.state_dict()
    assert norm.eval()(wg.ones((1, 3))).tolist() == [[0.0] * 3]  # evaluation takes single values
    with pytest.raises(wg.ShapeError, match="got one;"):
        norm.train()(wg.ones((1, 3)))
    with pytest.raises(wg.ShapeError, match="got none;"):
        norm(wg.ones((0, 3)))


def test_arguments_that_stand_elsewhere_in_pytorch_are_keywords():
    x, row = wg.ones((2, 3, 4)), wg.ones(3)
    with pytest.raises(TypeError, match="instance_norm"):
        nn.instance_norm(x, row)  # there a running mean
    with pytest.raises(TypeError, match="binary_cross_entropy_with_logits"):
        nn.binary_cross_entropy_with_logits(row, row, row, row)  # there whether a mean is taken
    scores, target = wg.tensor(values(2, 3)), wg.tensor([2, 0])
    by_place = nn.multi_margin_loss(scores, target, 2, 0.5, row)
    named = nn.multi_margin_loss(scores, target, weight=row, margin=0.5, p=2)
    assert by_place.item() == named.item() != nn.multi_margin_loss(scores, target).item()


@pytest.mark.parametrize("make", [
    lambda: nn.BatchNorm2d(4, bias=False), lambda: nn.GroupNorm(2, 4, bias=False),
    lambda: nn.InstanceNorm2d(4, affine=True, bias=False),
])  # fmt: skip
def test_norms_without_a_bias(make):
    norm = make()
    assert [n for n, _ in norm.named_parameters()] == ["weight"]
    x = values(2, 4, 3, 3)
    before = norm(wg.asarray(x)).numpy()
    norm.load_state_dict({**norm.state_dict(), "weight": wg.full(4, 3.0)})
    np.testing.assert_allclose(norm(wg.asarray(x)).numpy(), 3 * before, rtol=1e-4, atol=1e-5)


def test_rms_norm_adds_the_distance_from_one_to_the_next_number():
    x = values(2, 5) * 1e-4
    for dtype, eps in (("f", np.finfo("f").eps), ("d", np.finfo("d").eps)):
        mean = (x.astype("d") ** 2).mean(-1, keepdims=True)
        norm = nn.RMSNorm(5, elementwise_affine=False)
        assert not list(norm.parameters())
        wanted = x / np.sqrt(mean + eps)
        for y in (norm(wg.asarray(x.astype(dtype))), nn.rms_norm(wg.asarray(x.astype(dtype)))):
            np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5)


def test_the_order_of_the_arguments_of_mean_pooling():
    x = np.arange(5, dtype="f")[None, None]
    # Windows at -1, 1, 3; the last reaches beyond the end, so that only `ceil_mode` has it.
    y = nn.avg_pool1d(wg.asarray(x), 3, 3, 1, True, False)
    np.testing.assert_allclose(y.numpy(), [[[0.5, 3.0]]])
    y = nn.avg_pool1d(wg.asarray(x), 2, 2, 0, True)
    np.testing.assert_allclose(y.numpy(), [[[0.5, 2.5, 4.0]]])
    y = nn.avg_pool2d(wg.asarray(x[..., None]), (2, 1), (2, 1), 0, False, True, 4)
    np.testing.assert_allclose(y.numpy()[0, 0, :, 0], [0.25, 1.25])


def test_no_differences_are_the_tensor_alone():
    x, more = values(2, 3), values(2, 4)
    y = wg.diff(wg.asarray(x), n=0, prepend=wg.asarray(more), append=1.0)
    assert y.tolist() == np.diff(x, n=0, prepend=more, append=1.0).tolist() == x.tolist()
    with pytest.raises(wg.ShapeError, match="fit the other axes"):
        wg.diff(wg.asarray(x), n=0, prepend=wg.ones((3, 1)))


def test_the_order_of_sgds_arguments():
    p = wg.tensor([2.0], requires_grad=True)
    optimizer = optim.SGD([p], 0.1, 0.9, 0.25, 0.5)
    for _ in range(2):
        optimizer.zero_grad()
        (p * 1.0).sum().backward()
        optimizer.step()
    b = 1.0 + 0.5 * 2.0  # the first buffer is the gradient, whatever the dampening
    after = 2.0 - 0.1 * b
    b = 0.9 * b + 0.75 * (1.0 + 0.5 * after)
    assert p.item() == pytest.approx(after - 0.1 * b)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_goes_up(search):
    p = wg.tensor([3.0, -2.0], requires_grad=True)
    optimizer = optim.LBFGS([p], line_search_fn=search, maximize=True)

    def closure():
        optimizer.zero_grad()
        height = 5.0 - ((p - wg.tensor([1.0, 2.0])) ** 2).sum()
        height.backward()
        return height

    assert optimizer.step(closure).item() == pytest.approx(-15.0)
    np.testing.assert_allclose(p.tolist(), [1.0, 2.0], atol=1e-4)
