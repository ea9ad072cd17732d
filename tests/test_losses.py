"""Losses and activations at their edges: corners, infinities, weights, refusals, and their modules.

Values over ordinary arguments are derived from `references.py`. Constants are PyTorch's, or closed
forms.
"""

import math

import numpy as np
import pytest

import wengert as wg
from wengert import nn
from wengert.testing import gradcheck, gradgradcheck

INF, NAN = math.inf, math.nan
rng = np.random.default_rng(5)


def f64(*values):
    return wg.tensor(list(values), dtype=wg.float64)


def slopes(f, *values):
    return wg.grad(lambda x: f(x).sum())(f64(*values)).tolist()


# The function, and its gradient at -1, 0, 1 and at its corners.
CORNERS = {
    "elu": (lambda x: nn.elu(x, 0.5), [(0.0, 0.5), (1e4, 1.0), (-1e4, 0.0)]),
    "celu": (lambda x: nn.celu(x, 0.5), [(0.0, 1.0), (1e4, 1.0), (-1e4, 0.0)]),
    "selu": (nn.selu, [(0.0, 1.7580993408473766), (1e4, 1.0507009873554805), (-1e4, 0.0)]),
    "relu6": (nn.relu6, [(0.0, 0.0), (6.0, 0.0), (3.0, 1.0), (7.0, 0.0)]),
    "hardtanh": (nn.hardtanh, [(-1.0, 0.0), (1.0, 0.0), (0.5, 1.0)]),
    "hardsigmoid": (nn.hardsigmoid, [(-3.0, 0.0), (3.0, 0.0), (0.0, 1 / 6)]),
    "hardswish": (nn.hardswish, [(-3.0, 0.0), (3.0, 1.0), (0.0, 0.5), (9.0, 1.0)]),
    "softshrink": (nn.softshrink, [(-0.5, 0.0), (0.5, 0.0), (0.6, 1.0)]),
    "hardshrink": (nn.hardshrink, [(-0.5, 0.0), (0.5, 0.0), (0.6, 1.0)]),
    "threshold": (lambda x: nn.threshold(x, 1.0, 9.0), [(1.0, 0.0), (1.5, 1.0)]),
    "prelu": (lambda x: nn.prelu(x, f64(0.25)), [(0.0, 0.25), (2.0, 1.0)]),
    "rrelu": (nn.rrelu, [(0.0, 11 / 48), (2.0, 1.0)]),
    "softsign": (nn.softsign, [(0.0, 1.0), (-1e200, 0.0), (1.0, 0.25)]),
    "tanhshrink": (nn.tanhshrink, [(0.0, 0.0), (1e4, 1.0)]),
    "mish": (nn.mish, [(0.0, 0.6), (1e4, 1.0), (-1e4, 0.0)]),
    "hinge": (lambda x: nn.hinge_embedding_loss(x, f64(-1.0), reduction="none"), [(1.0, -1.0)]),
    "huber": (lambda x: nn.huber_loss(x, f64(0.0), delta=2.0), [(2.0, 2.0), (0.0, 0.0)]),
    "smooth": (lambda x: nn.smooth_l1_loss(x, f64(0.0), beta=2.0), [(2.0, 1.0), (1.0, 0.5)]),
    "ranking": (lambda x: nn.margin_ranking_loss(x, x.detach(), f64(1.0)), [(3.0, -1.0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_gradients_at_corners(name):
    f, cases = CORNERS[name]
    for x, want in cases:
        assert abs(slopes(f, x)[0] - want) < 1e-15, x


@pytest.mark.parametrize("name", sorted(set(CORNERS) - {"hinge", "huber", "smooth", "ranking"}))
def test_nan_stays_nan(name):
    y = CORNERS[name][0](f64(NAN)).tolist()
    assert math.isnan(y[0])


def test_random_slopes_and_classes():
    key = wg.random.key(3)
    x = wg.tensor(rng.standard_normal((50, 40)))
    y, pull = wg.vjp(lambda x: nn.rrelu(x, 0.1, 0.3, training=True, key=key), x)
    share = (y / x).numpy()[x.numpy() < 0]
    assert share.min() >= 0.1 and share.max() < 0.3 and abs(share.mean() - 0.2) < 0.01
    np.testing.assert_allclose(pull(wg.ones_like(x))[0].numpy(), (y / x).numpy(), rtol=1e-12)
    layer = nn.RReLU()
    assert layer(x).min().item() < 0 and len(np.unique((layer(x) / x).numpy())) > 100
    mean = np.where(x.numpy() > 0, 1, 11 / 48)
    np.testing.assert_allclose((layer.eval()(x) / x).numpy(), mean, rtol=1e-12)

    # The noise is what the softmax of zeros shows.
    noise = nn.gumbel_softmax(wg.zeros_like(x), key=key).log()
    want = nn.softmax((x + noise) / 0.7)
    np.testing.assert_allclose(nn.gumbel_softmax(x, 0.7, key=key).numpy(), want.numpy(), rtol=1e-9)
    hard, pull = wg.vjp(lambda x: nn.gumbel_softmax(x, 0.7, True, key=key), x)
    np.testing.assert_array_equal(hard.numpy(), np.eye(40)[want.numpy().argmax(1)])
    soft = wg.vjp(lambda x: nn.gumbel_softmax(x, 0.7, key=key), x)[1]
    g = wg.tensor(rng.standard_normal(x.shape))
    np.testing.assert_allclose(pull(g)[0].numpy(), soft(g)[0].numpy(), rtol=1e-9, atol=1e-12)
    wg.random.seed(0)
    shares = nn.gumbel_softmax(wg.tensor([[0.0, 1.0]] * 400), hard=True).numpy()
    assert abs(shares[:, 1].mean() - 1 / (1 + math.exp(-1))) < 0.1


def test_binary_cross_entropy_at_its_ends():
    """PyTorch's values: a logarithm is -100 at the least, and x (1 - x) is 1e-12."""
    x, t = f64(0.0, 1.0, 0.0, 1.0), f64(0.0, 1.0, 1.0, 0.0)
    values = nn.binary_cross_entropy(x, t, reduction="none")
    assert values.tolist() == [0.0, 0.0, 100.0, 100.0]
    g = wg.grad(lambda x: nn.binary_cross_entropy(x, t, reduction="sum"))(x)
    assert g.tolist() == [0.0, 0.0, -1e12, 1e12]
    assert math.isnan(nn.binary_cross_entropy(f64(1.5), f64(1.0)).item())


def test_divergence_of_nothing():
    """0 log 0 is 0."""
    t = f64(0.0, 1.0)
    x = f64(-1.0, -2.0)
    assert nn.kl_div(x, t, reduction="sum").item() == 2.0
    assert wg.grad(lambda x: nn.kl_div(x, t, reduction="sum"))(x).tolist() == [0.0, -1.0]
    assert nn.kl_div(x.reshape(1, 2), t.reshape(1, 2), reduction="batchmean").item() == 2.0
    with pytest.raises(wg.ShapeError, match="batchmean"):
        nn.kl_div(f64(1.0)[0], f64(1.0)[0], reduction="batchmean")


def test_a_variance_below_eps_has_the_gradient_at_eps():
    x, t = f64(0.0), f64(1e-3)
    g = wg.grad(lambda v: nn.gaussian_nll_loss(x, t, v))(f64(0.0)).item()
    assert abs(g - (1 / 1e-6 - 1e-6 / 1e-12) / 2) < 1e-3


def test_equal_vectors_have_finite_gradients():
    x = f64(1.0, 2.0)
    for f in (
        lambda x: nn.pairwise_distance(x, x.detach(), eps=0.0),
        lambda x: wg.cdist(x.reshape(1, 2), x.detach().reshape(1, 2)).sum(),
        lambda x: nn.cosine_similarity(x * 0.0, x, axis=0),
    ):
        g = wg.grad(f)(x)
        assert wg.isfinite(g).all()
    assert wg.cdist(wg.ones((3, 2)), wg.ones((0, 2))).shape == (3, 0)


CTC = {"input_lengths": wg.tensor([6, 5, 4]), "target_lengths": wg.tensor([3, 2, 0])}
CTC_LOSSES = [4.762561804014566, 3.889635037974387, 3.116926348175799]
# Of the first two steps of the first sample.
CTC_GRADIENT = [
    [0.06225834921099732, -0.2509097344901897, 0.12067087118936701, 0.0679805140898254],
    [0.1232617573147461, -0.18727766647700292, -0.008878882785338498, 0.07289479194759532],
]
TARGETS = np.array([[1, 2, 2], [3, 1, 0], [0, 0, 0]])


def ctc_logits():
    return np.cos(np.arange(6 * 3 * 4, dtype="d")).reshape(6, 3, 4)


def test_ctc_loss():
    """PyTorch's values and gradient for the same logits."""
    x = wg.tensor(ctc_logits())

    def f(x, **options):
        return nn.ctc_loss(nn.log_softmax(x), wg.tensor(TARGETS), **CTC, **options)

    np.testing.assert_allclose(f(x, reduction="none").numpy(), CTC_LOSSES, rtol=1e-12)
    np.testing.assert_allclose(
        f(x).item(), np.mean(np.array(CTC_LOSSES) / [3, 2, 1]), rtol=1e-12)
    g = wg.grad(lambda x: f(x, reduction="sum"))(x).numpy()
    np.testing.assert_allclose(g[:2, 0], CTC_GRADIENT, rtol=1e-9)
    assert (g[5, 1] == 0).all() and (g[4:, 2] == 0).all()
    joined = wg.tensor([1, 2, 2, 3, 1])
    same = nn.ctc_loss(nn.log_softmax(x), joined, **CTC, reduction="none")
    np.testing.assert_allclose(same.numpy(), CTC_LOSSES, rtol=1e-12)
    one = nn.ctc_loss(nn.log_softmax(x)[:, 0], wg.tensor([1, 2, 2]), wg.tensor(6), wg.tensor(3),
                      reduction="none")
    assert one.shape == () and abs(one.item() - CTC_LOSSES[0]) < 1e-12
    assert gradcheck(lambda x: f(x, reduction="sum"), [x])
    assert gradgradcheck(lambda x: f(x), [x])
    rows = wg.vmap(lambda x: f(x, reduction="none"))(wg.stack([x, 2.0 * x]))
    np.testing.assert_allclose(rows[1].numpy(), f(2.0 * x, reduction="none").numpy(), rtol=1e-12)
    compiled = wg.compile(wg.grad(lambda x: f(x, reduction="sum")))
    np.testing.assert_allclose(compiled(x).numpy(), g, rtol=1e-12)


def test_ctc_loss_without_an_alignment():
    x = wg.tensor(ctc_logits())
    lengths = {"input_lengths": wg.tensor([3, 5, 4]), "target_lengths": wg.tensor([3, 2, 0])}

    def f(x, zero):
        return nn.ctc_loss(nn.log_softmax(x), wg.tensor(TARGETS), **lengths, reduction="none",
                           zero_infinity=zero)

    assert f(x, False).tolist()[0] == INF and f(x, True).tolist()[0] == 0.0
    np.testing.assert_allclose(f(x, False).numpy()[1:], CTC_LOSSES[1:], rtol=1e-12)
    g = wg.grad(lambda x: f(x, True).sum())(x).numpy()
    assert (g[:, 0] == 0).all() and np.isfinite(g).all()
    g = wg.grad(lambda x: f(x, False).sum())(x).numpy()
    assert not np.isfinite(g[:3, 0]).any() and np.isfinite(g[:, 1:]).all()


def test_ctc_loss_refuses():
    x = nn.log_softmax(wg.zeros((4, 2, 3)))
    two = wg.tensor([2, 2])
    with pytest.raises(IndexError, match="ctc_loss"):
        nn.ctc_loss(x, wg.tensor([[1, 3], [1, 2]]), two, two)
    with pytest.raises(IndexError, match="ctc_loss"):
        nn.ctc_loss(x, wg.tensor([[1, -1], [1, 2]]), two, two)
    with pytest.raises(ValueError, match=r"ctc_loss.*blank"):
        nn.ctc_loss(x, wg.tensor([[1, 2], [1, 2]]), two, two, blank=3)
    with pytest.raises(wg.ShapeError, match=r"ctc_loss.*input_lengths"):
        nn.ctc_loss(x, wg.tensor([[1, 2], [1, 2]]), wg.tensor([2]), two)
    # What stands behind a target's length is never looked at.
    nn.ctc_loss(x, wg.tensor([[1, -100], [1, 99]]), two, wg.tensor([1, 1]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nn.celu(wg.ones(2), 0.0), "celu.*alpha"),
        (lambda: nn.hardtanh(wg.ones(2), 1.0, -1.0), "hardtanh.*min_val"),
        (lambda: nn.softshrink(wg.ones(2), -1.0), "softshrink.*lambd"),
        (lambda: nn.prelu(wg.ones((2, 3)), wg.ones(2)), r"prelu.*\(3,\)"),
        (lambda: nn.rrelu(wg.ones(2), 0.5, 0.1), "rrelu.*lower"),
        (lambda: nn.glu(wg.ones((2, 3))), "glu.*even"),
        (lambda: nn.gumbel_softmax(wg.ones(3), 0.0), "gumbel_softmax.*tau"),
        (lambda: nn.huber_loss(wg.ones(2), wg.ones(2), delta=0.0), "huber_loss.*delta"),
        (lambda: nn.smooth_l1_loss(wg.ones(2), wg.ones((2, 1))), "smooth_l1_loss.*shapes differ"),
        (lambda: nn.kl_div(wg.ones(2), wg.ones(2), reduction="all"), "kl_div.*reduction"),
        (lambda: nn.multi_margin_loss(wg.ones((2, 3)), wg.tensor([0])), "multi_margin.*target"),
        (lambda: nn.multi_margin_loss(wg.ones((2, 3)), wg.tensor([0, 3])), "multi_margin_loss"),
        (lambda: nn.multi_margin_loss(wg.ones((2, 3)), wg.tensor([0, -1])), "multi_margin_loss"),
        (lambda: nn.multilabel_margin_loss(wg.ones((1, 2)), wg.tensor([[2, -1]])), "multilabel"),
        (lambda: nn.cosine_embedding_loss(wg.ones((2, 3)), wg.ones((2, 3)), wg.ones(3)), "target"),
        (lambda: nn.triplet_margin_loss(*[wg.ones((2, 3))] * 3, margin=0.0), "margin"),
        (lambda: nn.triplet_margin_with_distance_loss(*[wg.ones((2, 3))] * 3, reduction="x"), "x"),
        (lambda: nn.gaussian_nll_loss(wg.ones(3), wg.ones(3), wg.ones(2)), "var"),
    ],
)  # fmt: skip
def test_refusals(call, words):
    with pytest.raises((ValueError, IndexError), match=words):
        call()


def test_half_floats_are_calculated_in_float32():
    x = wg.full((3000,), 60.0, dtype=wg.float16)
    zero = wg.zeros_like(x)
    assert nn.huber_loss(x, zero, delta=1000.0, reduction="mean").item() == 1800.0
    assert nn.smooth_l1_loss(x, zero).item() == 59.5
    assert nn.soft_margin_loss(x, -wg.ones_like(x)).dtype == wg.float16


MODULES = [
    (nn.NLLLoss(weight=wg.tensor([1.0, 2.0, 3.0])), lambda x: nn.nll_loss(
        x, wg.tensor([2, 0]), wg.tensor([1.0, 2.0, 3.0])), "classes"),
    (nn.CrossEntropyLoss(wg.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1),
     lambda x: nn.cross_entropy(
         x, wg.tensor([2, 0]), wg.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1), "classes"),
    (nn.MultiMarginLoss(p=2, margin=0.5), lambda x: nn.multi_margin_loss(
        x, wg.tensor([2, 0]), p=2, margin=0.5), "classes"),
    (nn.L1Loss("sum"), lambda x: nn.l1_loss(x, wg.ones((2, 3)), reduction="sum"), "like"),
    (nn.BCEWithLogitsLoss(pos_weight=wg.tensor(2.0)), lambda x: nn.binary_cross_entropy_with_logits(
        x, wg.ones((2, 3)), pos_weight=wg.tensor(2.0)), "like"),
    (nn.MultiLabelSoftMarginLoss(), lambda x: nn.multilabel_soft_margin_loss(
        x, wg.ones((2, 3))), "like"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(MODULES)))
def test_modules_of_losses(case):
    layer, want, kind = MODULES[case]
    x = wg.tensor(rng.standard_normal((2, 3)).astype("f"))
    target = wg.tensor([2, 0]) if kind == "classes" else wg.ones((2, 3))
    assert layer(x, target).item() == want(x).item()
    assert set(layer.state_dict()) <= {"weight", "pos_weight"}


def test_modules_of_several_tensors():
    a, b, c = (wg.tensor(rng.standard_normal((4, 3))) for _ in range(3))
    sign = wg.tensor([1, -1, 1, -1])
    pairs = [
        (nn.CosineEmbeddingLoss(0.2)(a, b, sign), nn.cosine_embedding_loss(a, b, sign, margin=0.2)),
        (nn.MarginRankingLoss(0.2)(a[:, 0], b[:, 0], sign),
         nn.margin_ranking_loss(a[:, 0], b[:, 0], sign, margin=0.2)),
        (nn.TripletMarginLoss(2.0, swap=True)(a, b, c),
         nn.triplet_margin_loss(a, b, c, margin=2.0, swap=True)),
        (nn.TripletMarginWithDistanceLoss(swap=True)(a, b, c),
         nn.triplet_margin_loss(a, b, c, swap=True)),
        (nn.TripletMarginWithDistanceLoss(
            distance_function=lambda x, y: 1.0 - nn.cosine_similarity(x, y), margin=0.5)(a, b, c),
         (nn.cosine_similarity(a, c) - nn.cosine_similarity(a, b) + 0.5).clip(0.0).mean()),
        (nn.GaussianNLLLoss(full=True)(a, b, c * c), nn.gaussian_nll_loss(a, b, c * c, full=True)),
        (nn.CosineSimilarity(1)(a, b).sum(), nn.cosine_similarity(a, b).sum()),
        (nn.PairwiseDistance(1.0)(a, b).sum(), nn.pairwise_distance(a, b, 1.0).sum()),
    ]  # fmt: skip
    for got, want in pairs:
        assert abs(got.item() - want.item()) < 1e-12


ACTIVATIONS = [
    (nn.ELU(0.5), lambda x: nn.elu(x, 0.5), "ELU(alpha=0.5)"),
    (nn.CELU(), nn.celu, "CELU()"),
    (nn.SELU(), nn.selu, "SELU()"),
    (nn.ReLU6(), nn.relu6, "ReLU6()"),
    (nn.Hardtanh(-2.0), lambda x: nn.hardtanh(x, -2.0), "Hardtanh(min_val=-2.0)"),
    (nn.Hardsigmoid(), nn.hardsigmoid, "Hardsigmoid()"),
    (nn.Hardswish(), nn.hardswish, "Hardswish()"),
    (nn.Mish(), nn.mish, "Mish()"),
    (nn.Softsign(), nn.softsign, "Softsign()"),
    (nn.Tanhshrink(), nn.tanhshrink, "Tanhshrink()"),
    (nn.Softshrink(0.2), lambda x: nn.softshrink(x, 0.2), "Softshrink(lambd=0.2)"),
    (nn.Hardshrink(), nn.hardshrink, "Hardshrink()"),
    (nn.Softmin(0), lambda x: nn.softmin(x, 0), "Softmin(axis=0)"),
    (nn.GLU(0), lambda x: nn.glu(x, 0), "GLU(axis=0)"),
    (nn.Threshold(0.5, 2.0), lambda x: nn.threshold(x, 0.5, 2.0), "Threshold(0.5, 2.0)"),
    (nn.LogSigmoid(), nn.log_sigmoid, "LogSigmoid()"),
    (nn.Softplus(2.0), lambda x: nn.softplus(x, beta=2.0), "Softplus(beta=2.0)"),
    (nn.Softmax2d(), lambda x: nn.softmax(x, -3), "Softmax2d()"),
]


@pytest.mark.parametrize(("layer", "f", "text"), ACTIVATIONS)
def test_modules_of_activations(layer, f, text):
    x = wg.tensor(rng.standard_normal((4, 2, 3)))
    assert layer(x).tolist() == f(x).tolist() and repr(layer) == text
    assert wg.compile(layer)(x).tolist() == f(x).tolist()


def test_a_weight_for_each_channel():
    layer = nn.PReLU(3, 0.5)
    x = wg.tensor([[-2.0, 4.0, -6.0]])
    assert layer(x).tolist() == [[-1.0, 4.0, -3.0]] and layer.weight.shape == (3,)
    layer(x).sum().backward()
    assert layer.weight.grad.tolist() == [-2.0, 0.0, -6.0]
