"""Random numbers of further laws, `wengert.distributions`, `special`, `linalg` and `fft`: against
closed forms and numpy."""

import inspect
import math

import numpy as np
import pytest

import wengert as wg
from wengert import distributions as ds
from wengert import random, special

COUNT = 40_000


def upper_gamma(a, x):
    """The regularised upper incomplete gamma function for a multiple of 1/2, by its recurrence."""
    x = np.asarray(x, float)
    term = np.exp(-x)
    if a % 1:
        value = wg.erfc(wg.asarray(np.sqrt(x))).numpy()
        step = 0.5
        term = np.exp(-x) * np.sqrt(x) / math.gamma(1.5)
    else:
        value, step = term.copy(), 1.0
        term = term * x
    while step < a:
        value = value + term
        step += 1
        term = term * x / step
    return value


def student(x):
    """The distribution function for 3 degrees of freedom."""
    t = x / math.sqrt(3)
    return 0.5 + (np.arctan(t) + t / (1 + t * t)) / math.pi


def normal(x):
    return 0.5 * wg.erfc(wg.asarray(-np.asarray(x) / math.sqrt(2))).numpy()


LAWS = {
    "laplace": ({"loc": 1.0, "scale": 2.0},
                lambda x: np.where(x < 1, np.exp((x - 1) / 2) / 2, 1 - np.exp((1 - x) / 2) / 2)),
    "cauchy": ({"loc": 1.0, "scale": 2.0}, lambda x: np.arctan((x - 1) / 2) / math.pi + 0.5),
    "lognormal": ({"mean": 0.3, "sigma": 0.7}, lambda x: normal((np.log(x) - 0.3) / 0.7)),
    "truncated_normal": ({"low": -0.5, "high": 2.0},
                         lambda x: (normal(x) - normal(-0.5)) / (normal(2.0) - normal(-0.5))),
    "gamma": ({"a": 3.0, "scale": 2.0}, lambda x: 1 - upper_gamma(3, x / 2)),
    "gamma of half": ({"a": 0.5}, lambda x: 1 - upper_gamma(0.5, x)),
    "gamma of much": ({"a": 200.5}, lambda x: 1 - upper_gamma(200.5, x)),
    "beta": ({"a": 2.0, "b": 1.0}, lambda x: x * x),
    "beta of little": ({"a": 0.05, "b": 1.0}, lambda x: x**0.05),
    "student_t": ({"df": 3.0}, student),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [wg.float32, wg.float64])
@pytest.mark.parametrize("name", LAWS)
def test_numbers_follow_their_law(name, dtype):
    """Kolmogorov's distance, at a level far below chance."""
    options, law = LAWS[name]
    draw = getattr(random, name.split()[0])
    x = draw((COUNT,), dtype=dtype, key=random.key(5), **options)
    assert x.dtype == dtype
    got = np.sort(x.numpy().astype("d"))
    assert np.isfinite(got).all()
    ranks = np.arange(COUNT + 1) / COUNT
    values = law(got)
    distance = max((ranks[1:] - values).max(), (values - ranks[:-1]).max())
    assert distance * math.sqrt(COUNT) < 2.2


def poisson(lam):
    return lambda k: math.exp(k * math.log(lam) - lam - math.lgamma(k + 1))


def binomial(n, p):
    return lambda k: math.comb(n, k) * p**k * (1 - p) ** (n - k)


COUNTS = {
    "poisson of little": ({"lam": 0.05}, poisson(0.05), range(4)),
    "poisson": ({"lam": 7.5}, poisson(7.5), range(30)),
    "poisson at the border": ({"lam": 10.0}, poisson(10.0), range(40)),
    "poisson of much": ({"lam": 300.0}, poisson(300.0), range(200, 400)),
    "binomial": ({"n": 12, "p": 0.3}, binomial(12, 0.3), range(13)),
    "binomial of failures": ({"n": 40, "p": 0.9}, binomial(40, 0.9), range(41)),
    "binomial of many": ({"n": 100, "p": 0.4}, binomial(100, 0.4), range(101)),
    "binomial of many failures": ({"n": 100, "p": 0.8}, binomial(100, 0.8), range(101)),
    "geometric": ({"p": 0.2}, lambda k: 0.8 ** (k - 1) * 0.2 if k else 0.0, range(60)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_follow_their_law(name):
    """Pearson's statistic over all counts of which five or more are expected."""
    options, law, support = COUNTS[name]
    x = getattr(random, name.split()[0])((COUNT // 4, 4), key=random.key(6), **options)
    assert x.dtype == wg.int64 and x.shape == (COUNT // 4, 4)
    got = np.bincount(x.numpy().ravel(), minlength=support.stop)
    assert got.sum() == COUNT
    want = np.array([law(k) * COUNT for k in support])
    common = want >= 5
    inside = got[support.start : support.stop][common]
    statistic = ((inside - want[common]) ** 2 / want[common]).sum()
    rest, expected = COUNT - inside.sum(), COUNT - want[common].sum()
    assert statistic < common.sum() + 5 * math.sqrt(2 * common.sum())
    assert abs(rest - expected) < 6 * math.sqrt(expected + 1)


def test_ends_of_laws():
    key = random.key(1)
    assert random.poisson((5,), lam=0.0, key=key).tolist() == [0] * 5
    assert random.binomial((3,), n=0, p=0.5, key=key).tolist() == [0] * 3
    assert random.binomial((3,), n=7, p=1.0, key=key).tolist() == [7] * 3
    assert random.binomial((3,), n=70, p=wg.tensor([0.0, 1.0, math.nan]), key=key).tolist() == [
        0, 70, -1]  # fmt: skip
    assert random.geometric((3,), p=1.0, key=key).tolist() == [1] * 3
    assert random.poisson((2,), lam=wg.tensor([-1.0, math.nan]), key=key).tolist() == [-1, -1]
    assert random.gamma((2,), a=wg.tensor([-1.0, math.nan]), key=key).isnan().all()
    wide = random.binomial((1000,), n=10**6, p=0.25, key=key).numpy()
    assert abs(wide.mean() - 250_000) < 5 * math.sqrt(187.5) and 300 < wide.std() < 600
    many = random.poisson((1000,), lam=1e6, key=key).numpy()
    assert abs(many.mean() - 1e6) < 200 and 900 < many.std() < 1100
    near = random.truncated_normal((1000,), low=3.0, high=3.5, key=key).numpy()
    assert near.min() >= 3 and near.max() <= 3.5


def test_parameters_are_arrays():
    key = random.key(2)
    a = wg.tensor([1.0, 10.0, 100.0])
    rows = random.gamma((2000, 3), a=a, scale=wg.tensor([[2.0]]), key=key).numpy().mean(0)
    np.testing.assert_allclose(rows, [2, 20, 200], rtol=0.1)
    lam = wg.tensor([0.5, 9.0, 11.0, 90.0])
    rows = random.poisson((4000, 4), lam=lam, key=key).numpy()
    np.testing.assert_allclose(rows.mean(0), lam.numpy(), rtol=0.1)
    np.testing.assert_allclose(rows.var(0), lam.numpy(), rtol=0.15)
    alpha = np.array([0.5, 2.0, 3.0])
    shares = random.dirichlet((COUNT,), alpha=wg.tensor(alpha), key=key).numpy()
    assert shares.dtype == np.float64 and np.allclose(shares.sum(1), 1)
    mean = alpha / alpha.sum()
    np.testing.assert_allclose(shares.mean(0), mean, atol=0.01)
    np.testing.assert_allclose(shares.var(0), mean * (1 - mean) / (alpha.sum() + 1), atol=0.005)
    draws = wg.vmap(lambda k, a: random.gamma((), a=a, key=k))(random.split(key, 3), a)
    assert draws.shape == (3,) and (draws > 0).all()


REFUSED = [
    (lambda: random.gamma((2,), a=0.0), "gamma: a must be positive: got 0"),
    (lambda: random.beta((2,), a=1.0, b=-1.0), "beta: b must be positive"),
    (lambda: random.student_t((2,), df=-2.0), "student_t: df must be positive"),
    (lambda: random.poisson((2,), lam=-1.0), "poisson: lam must be not negative"),
    (lambda: random.binomial((2,), n=3, p=1.5), r"binomial: p must be in \[0, 1\]"),
    (lambda: random.binomial((2,), n=-3, p=0.5), "binomial: n must be not negative"),
    (lambda: random.geometric((2,), p=0.0), r"geometric: p must be in \(0, 1\]"),
    (lambda: random.truncated_normal((2,), low=1.0, high=0.0), "truncated_normal: low"),
    (lambda: random.gamma((2,), a=wg.ones(3)), "gamma"),
    (lambda: random.dirichlet((2,), alpha=wg.tensor(1.0)), "dirichlet: alpha"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_parameters_out_of_range_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_gradients_of_draws():
    key = random.key(3)
    x, pull = wg.vjp(lambda s: random.gamma((5,), a=2.0, scale=s, key=key), wg.full((5,), 3.0))
    np.testing.assert_allclose(pull(wg.ones(5))[0].numpy(), x.numpy() / 3, rtol=1e-6)
    loc, scale = wg.tensor(1.0), wg.tensor(2.0)
    for name in ("laplace", "cauchy", "gumbel"):
        draw = getattr(random, name)
        by = wg.grad(lambda a, b, f=draw: f((7,), loc=a, scale=b, key=key).sum(), argnums=(0, 1))
        standard = draw((7,), key=key).numpy()
        np.testing.assert_allclose(
            [g.item() for g in by(loc, scale)], [7, standard.sum()], rtol=1e-5
        )
    calls = [
        lambda a: random.gamma((2,), a=a), lambda a: random.beta((2,), a=a, b=1.0),
        lambda a: random.beta((2,), a=1.0, b=a), lambda a: random.student_t((2,), df=a),
        lambda a: random.dirichlet((2,), alpha=a * wg.ones(3)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(wg.GradientError, match="no gradient for"):
            wg.grad(lambda a, f=call: f(a).sum())(wg.tensor(2.0))
        assert call(wg.tensor(2.0)).shape[0] == 2  # without one, all is well


@pytest.mark.parametrize("name", ["gamma", "poisson", "binomial"])
def test_draws_in_every_mode(name):
    options = {"gamma": {"a": 0.7}, "poisson": {"lam": 30.0}, "binomial": {"n": 50, "p": 0.5}}[name]
    draw = getattr(random, name)
    f = wg.compile(lambda: draw((50,), **options))
    random.seed(3)
    seen = [f().tolist(), f().tolist()]
    random.seed(3)
    assert seen == [draw((50,), **options).tolist() for _ in range(2)] and seen[0] != seen[1]


# --- special functions

X = np.array([-3.2, -1.0, -0.3, 0.0, 1e-9, 0.2, 0.5, 0.9, 1.0, 4.0])


def quiet(f):
    with np.errstate(all="ignore"):
        return f()


SPECIAL = {
    "entr": lambda x: np.where(x > 0, -x * np.log(x), np.where(x == 0, 0.0, -np.inf)),
    "ndtr": normal,
    "logit": lambda x: np.log(x / (1 - x)),
    "sinc": np.sinc,
    "expit": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name):
    want = quiet(lambda: SPECIAL[name](X))
    got = getattr(special, name)(wg.tensor(X)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)


def test_special_functions_of_two():
    x, y = wg.tensor([0.0, 0.0, 1.5, 1.5, -2.0]), wg.tensor([0.0, math.nan, 0.0, 2.0, 3.0])
    want = [0, math.nan, -math.inf, 1.5 * math.log(2), -2 * math.log(3)]
    np.testing.assert_allclose(special.xlogy(x, y).numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(special.xlog1py(x, y - 1.0).numpy(), want, rtol=1e-6)
    assert np.isnan(special.entr(wg.tensor(math.nan)).item())
    half = special.xlogy(1.5, wg.tensor([2.0, 3.0], dtype=wg.float16))
    assert half.dtype == wg.float16
    np.testing.assert_allclose(half.numpy(), 1.5 * np.log([2, 3]), rtol=1e-3)


def test_derivatives_of_sinc_at_nothing():
    first = wg.grad(special.sinc)
    second, fourth = wg.grad(first), wg.grad(wg.grad(wg.grad(first)))
    zero = wg.tensor(0.0, dtype=wg.float64)
    got = [f(zero).item() for f in (first, second, fourth)]
    np.testing.assert_allclose(got, [0, -(math.pi**2) / 3, math.pi**4 / 5], atol=1e-12)


# --- distributions

F = {"dtype": wg.float64}
CLASSES = {
    "Normal": (ds.Normal(wg.tensor(0.4, **F), 1.5), ds.Normal(wg.tensor(-0.2, **F), 0.8)),
    "LogNormal": (ds.LogNormal(wg.tensor(0.1, **F), 0.5), ds.LogNormal(wg.tensor(0.3, **F), 0.6)),
    "Laplace": (ds.Laplace(wg.tensor(0.4, **F), 1.5), ds.Laplace(wg.tensor(-0.2, **F), 0.8)),
    "Gumbel": (ds.Gumbel(wg.tensor(0.4, **F), 1.5), None),
    "Cauchy": (ds.Cauchy(wg.tensor(0.5, **F), 2.0), ds.Cauchy(wg.tensor(0.0, **F), 1.0)),
    "Uniform": (ds.Uniform(wg.tensor(-1.0, **F), 2.0), ds.Uniform(wg.tensor(-2.0, **F), 4.0)),
    "Exponential": (ds.Exponential(wg.tensor(2.0, **F)), ds.Exponential(wg.tensor(0.7, **F))),
}


@pytest.mark.parametrize("name", CLASSES)
def test_densities_agree_with_their_integrals(name):
    """Probabilities, moments, entropy and divergence by the trapezoid rule over the density."""
    p, q = CLASSES[name]
    wide = {"Cauchy": 4000.0, "LogNormal": 60.0, "Uniform": 2.0}.get(name, 60.0)
    x = np.linspace(-1.0 if name == "Uniform" else -wide, wide, 2_000_001)[:-1]
    log = p.log_prob(wg.tensor(x)).numpy()
    density = np.exp(log)
    tail = {"Cauchy": 2e-3, "Exponential": 1e-4, "Uniform": 1e-4}.get(name, 1e-5)
    assert abs(np.trapezoid(density, x) - 1) < tail
    at = np.searchsorted(x, [-0.7, 0.3, 1.1])
    below = [np.trapezoid(density[: i + 1], x[: i + 1]) for i in at]
    np.testing.assert_allclose(p.cdf(wg.tensor(x[at])).numpy(), below, atol=tail)
    if name == "Cauchy":
        assert np.isnan(p.mean.item()) and p.variance.item() == math.inf
    else:
        mean = np.trapezoid(density * x, x)
        assert p.mean.item() == pytest.approx(mean, abs=1e-4)
        spread = np.trapezoid(density * (x - mean) ** 2, x)
        assert p.variance.item() == pytest.approx(spread, rel=1e-4)
        assert p.stddev.item() == pytest.approx(math.sqrt(spread), rel=1e-4)
    inside = density > 0
    plain = np.where(inside, log, 0.0)
    rough = 3e-2 if name == "Cauchy" else 1e-4
    assert p.entropy().item() == pytest.approx(-np.trapezoid(density * plain, x), abs=rough)
    if q is not None:
        other = np.where(inside, q.log_prob(wg.tensor(x)).numpy(), 0.0)
        want = np.trapezoid(density * (plain - other), x)
        assert ds.kl_divergence(p, q).item() == pytest.approx(want, abs=rough)
        assert ds.kl_divergence(p, p).item() == pytest.approx(0, abs=1e-12)
    drawn = np.sort(p.sample((COUNT,), key=random.key(8)).numpy())
    ranks = np.arange(COUNT + 1) / COUNT
    values = p.cdf(wg.tensor(drawn)).numpy()
    distance = max((ranks[1:] - values).max(), (values - ranks[:-1]).max())
    assert distance * math.sqrt(COUNT) < 2.2


@pytest.mark.parametrize("logits", [False, True])
def test_trials(logits):
    def made(law, p):
        x = wg.tensor(p, **F)
        return law(logits=special.logit(x)) if logits else law(x)

    b, other = made(ds.Bernoulli, 0.2), made(ds.Bernoulli, 0.5)
    np.testing.assert_allclose(b.log_prob([0.0, 1.0, 0.5]).numpy(), [*np.log([0.8, 0.2]), -np.inf])
    assert b.mean.item() == pytest.approx(0.2) and b.variance.item() == pytest.approx(0.16)
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    assert b.entropy().item() == pytest.approx(entropy)
    assert ds.kl_divergence(b, other).item() == pytest.approx(math.log(2) - entropy)
    g = made(ds.Geometric, 0.2)
    k = np.arange(400)
    p = 0.2 * 0.8**k
    np.testing.assert_allclose(g.log_prob(wg.tensor(k)).numpy(), np.log(p))
    assert g.mean.item() == pytest.approx((p * k).sum())
    assert g.variance.item() == pytest.approx((p * k**2).sum() - (p * k).sum() ** 2)
    assert g.entropy().item() == pytest.approx(-(p * np.log(p)).sum())
    q = 0.5 * 0.5**k
    want = (p * (np.log(p) - np.log(q)))[:300].sum()
    assert ds.kl_divergence(g, made(ds.Geometric, 0.5)).item() == pytest.approx(want)
    assert g.log_prob([-1.0, 0.5]).tolist() == [-math.inf, -math.inf]
    drawn = g.sample((COUNT,), key=random.key(9)).numpy()
    assert drawn.min() == 0 and abs(drawn.mean() - 4) < 0.15
    assert ds.Bernoulli(1.0).log_prob(1.0).item() == 0.0
    assert ds.Geometric(1.0).log_prob(0.0).item() == 0.0


def test_classes_of_a_law():
    logits = np.array([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for c in (ds.Categorical(logits=wg.tensor(logits)), ds.Categorical(wg.tensor(p * 7))):
        assert c.batch_shape == (2,) and c.event_shape == ()
        np.testing.assert_allclose(c.log_prob([2, 0]).numpy(), np.log(p[[0, 1], [2, 0]]))
        np.testing.assert_allclose(c.log_prob([[1], [2]]).numpy(), np.log(p[:, [1, 2]]).T)
        np.testing.assert_allclose(c.entropy().numpy(), -(p * np.log(p)).sum(-1))
    even = ds.Categorical(probs=wg.full((3,), 1.0, **F))
    np.testing.assert_allclose(ds.kl_divergence(c, even).numpy(), (p * np.log(3 * p)).sum(-1))
    drawn = c.sample((COUNT,), key=random.key(1)).numpy()
    assert drawn.shape == (COUNT, 2)
    for i in range(2):
        share = np.bincount(drawn[:, i], minlength=3) / COUNT
        np.testing.assert_allclose(share, p[i], atol=0.01)
    o = ds.OneHotCategorical(probs=wg.tensor(p))
    assert o.event_shape == (3,) and o.sample((5,)).shape == (5, 2, 3)
    np.testing.assert_allclose(o.log_prob(np.eye(3)[[2, 0]]).numpy(), np.log(p[[0, 1], [2, 0]]))
    np.testing.assert_allclose(o.mean.numpy(), p)
    certain = ds.Categorical(wg.tensor([0.0, 1.0]))
    assert certain.entropy().item() == 0.0 and ds.kl_divergence(certain, certain).item() == 0.0


def test_independent_parts():
    base = ds.Normal(wg.zeros((4, 3)), wg.ones(3))
    d = ds.Independent(base, 1)
    assert d.batch_shape == (4,) and d.event_shape == (3,)
    x = d.rsample((2,))
    assert x.shape == (2, 4, 3) and d.log_prob(x).shape == (2, 4)
    np.testing.assert_allclose(d.entropy().numpy(), base.entropy().numpy().sum(1))
    assert ds.kl_divergence(d, d).tolist() == [0.0] * 4
    assert repr(d) == "Independent(Normal(loc=shape (4, 3), scale=shape (4, 3)), 1)"
    with pytest.raises(wg.ArgumentError, match="2 axes: got 3"):
        ds.Independent(base, 3)


def test_gradients_reach_parameters_through_rsample_alone():
    loc, scale = wg.tensor(1.0, requires_grad=True), wg.tensor(2.0, requires_grad=True)
    d = ds.Normal(loc, scale)
    assert not d.sample((3,)).requires_grad
    x = d.rsample((3,), key=random.key(0))
    x.sum().backward()
    assert loc.grad.item() == 3.0
    assert scale.grad.item() == pytest.approx((x.detach() - 1).sum().item() / 2, rel=1e-5)
    with pytest.raises(wg.GradientError, match="Bernoulli"):
        ds.Bernoulli(0.5).rsample()
    score = wg.grad(lambda m: ds.Normal(m, 2.0).log_prob(3.0))(wg.tensor(1.0))
    assert score.item() == pytest.approx(0.5)


def test_a_law_under_compile_and_vmap():
    @wg.compile
    def step(loc, scale, x):
        q = ds.Normal(loc, scale)
        return q.log_prob(x) + ds.kl_divergence(q, ds.Normal(0.0, 1.0))

    x = wg.linspace(-1.0, 1.0, 5)
    args = (wg.tensor(0.5), wg.tensor(2.0), x)
    assert (step(*args) == step.__wrapped__(*args)).all() and step.traces == 1
    f = wg.vmap(lambda s: ds.Normal(0.0, s).log_prob(1.0))
    np.testing.assert_allclose(
        f(wg.tensor([1.0, 2.0])).numpy(),
        [ds.Normal(0.0, s).log_prob(1.0).item() for s in (1.0, 2.0)], rtol=1e-6)  # fmt: skip


BAD_LAWS = [
    (lambda: ds.Normal(0.0, -1.0), ValueError, "Normal: scale must be positive: got -1.0"),
    (lambda: ds.Normal(0.0, wg.tensor([1.0, math.nan])), ValueError, "scale must be positive$"),
    (lambda: ds.Uniform(1.0, 1.0), ValueError, "low must be below high"),
    (lambda: ds.Exponential(0.0), ValueError, "rate must be positive"),
    (lambda: ds.Bernoulli(1.5), ValueError, r"probs must be in \[0, 1\]"),
    (lambda: ds.Bernoulli(), TypeError, "either probs or logits"),
    (lambda: ds.Bernoulli(0.5, logits=0.0), TypeError, "either probs or logits"),
    (lambda: ds.Categorical(0.5), wg.ShapeError, "an axis of classes"),
    (lambda: ds.Normal(wg.zeros(2), wg.ones(3)), wg.ShapeError, "2"),
    (lambda: ds.kl_divergence(ds.Normal(0.0, 1.0), ds.Cauchy(0.0, 1.0)), TypeError,
     "Normal and Cauchy"),
    (lambda: ds.Categorical(wg.ones(2)).mean, TypeError, "mean: Categorical does not have it"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), BAD_LAWS)
def test_laws_that_are_none_are_refused(call, kind, text):
    with pytest.raises(kind, match=text) as caught:
        call()
    assert isinstance(caught.value, wg.Error)


def test_rules_of_divergence_can_be_added():
    class Mine(ds.Normal):
        pass

    assert ds.kl_divergence(Mine(0.0, 1.0), ds.Normal(0.0, 1.0)).item() == 0.0

    @ds.register_kl(Mine, ds.Cauchy)
    def rule(p, q):
        return wg.tensor(7.0)

    assert ds.kl_divergence(Mine(0.0, 1.0), ds.Cauchy(0.0, 1.0)).item() == 7.0


# --- linalg and fft

A = np.random.default_rng(0).standard_normal((2, 3, 4))


@pytest.mark.parametrize("ord", ["fro", 1, -1, math.inf, -math.inf])
@pytest.mark.parametrize("keepdims", [False, True])
def test_matrix_norms(ord, keepdims):
    got = wg.linalg.matrix_norm(wg.tensor(A), ord=ord, keepdims=keepdims)
    want = np.linalg.matrix_norm(A, ord=ord, keepdims=keepdims)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)


@pytest.mark.parametrize("options", [
    {}, {"axis": 1}, {"axis": (0, 2)}, {"ord": 1, "axis": (2, 0)}, {"ord": 3, "axis": 0},
    {"ord": math.inf, "axis": -1}, {"ord": "fro", "axis": (1, 2)}, {"axis": (0, 1), "ord": -1},
    {"ord": 1, "axis": (0, 1), "keepdims": True}, {"axis": 2, "keepdims": True},
])  # fmt: skip
def test_norms(options):
    got = wg.linalg.norm(wg.tensor(A), **options).numpy()
    want = np.linalg.norm(A, **options)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_powers_and_chains_of_matrices():
    m = A[:, :, :3]
    for n in (0, 1, 2, 7):
        got = wg.linalg.matrix_power(wg.tensor(m), n).numpy()
        np.testing.assert_allclose(got, np.linalg.matrix_power(m, n), rtol=1e-12, atol=1e-12)
    chain = [A[0, 0], A[0].T, A[1], A[1].T, A[0]]
    for xs in (chain, chain[1:], chain[1:3], [*chain, A[0, 1]]):
        got = wg.linalg.multi_dot([wg.tensor(x) for x in xs]).numpy()
        want = np.linalg.multi_dot(xs)
        assert got.shape == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize(("call", "kind", "text"), [
    (lambda: wg.linalg.matrix_norm(wg.ones(3)), wg.ShapeError, "rank 2 or more"),
    (lambda: wg.linalg.matrix_norm(wg.ones((2, 2)), ord=2), ValueError, "singular values"),
    (lambda: wg.linalg.norm(wg.ones((2, 2, 2)), ord=1), ValueError, "got 3 axes"),
    (lambda: wg.linalg.matrix_power(wg.ones((2, 3)), 2), wg.ShapeError, "square"),
    (lambda: wg.linalg.matrix_power(wg.ones((2, 2)), -1), ValueError, "negative"),
    (lambda: wg.linalg.multi_dot([wg.ones(2)]), ValueError, "got 1"),
    (lambda: wg.linalg.multi_dot([wg.ones(2), wg.ones(2), wg.ones(2)]), wg.ShapeError, "array 1"),
    (lambda: wg.fft.fftfreq(0), ValueError, "got 0"),
    (lambda: wg.fft.fftshift(wg.ones(3), axes=1), wg.AxisError, "fftshift: axis 1"),
])  # fmt: skip
def test_what_linalg_and_fft_refuse(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies(n):
    for name in ("fftfreq", "rfftfreq"):
        got = getattr(wg.fft, name)(n, d=0.3, dtype=wg.float64).numpy()
        np.testing.assert_allclose(got, getattr(np.fft, name)(n, 0.3), rtol=1e-15)
    x = np.arange(n * 3).reshape(n, 3)
    for axes in (None, 0, (1, 0), -1):
        for name in ("fftshift", "ifftshift"):
            got = getattr(wg.fft, name)(wg.tensor(x), axes=axes).numpy()
            assert (got == getattr(np.fft, name)(x, axes)).all()


def test_what_is_not_there_yet_says_so():
    for home, name in (("linalg", "solve"), ("fft", "rfft"), ("special", "lgamma")):
        with pytest.raises(AttributeError, match=rf"'{name}': use wg\.custom_op .*not there yet"):
            getattr(getattr(wg, home), name)
    with pytest.raises(AttributeError, match=r"use wg\.random\.gamma for draws"):
        ds.Gamma
    for module in (wg.linalg, wg.fft, special, ds):
        assert all(hasattr(module, name) for name in module.__all__)
    first, *rest = inspect.signature(random.gamma).parameters.values()
    assert first.name == "shape" and all(p.kind is p.KEYWORD_ONLY for p in rest)
