"""Recurrent layers: values against NumPy, the same bits in every mode and company, derivatives."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from references import REFERENCES

KINDS = {"LSTM": (4, 2), "GRU": (3, 1), "RNN": (1, 1)}


def normal(*shape, seed=0, dtype="float32"):
    return wg.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def operands(kind, t, n, i, h, dtype="float32", biases=2):
    gates, parts = KINDS[kind]
    states = [normal(n, h, seed=k + 1, dtype=dtype) for k in range(parts)]
    shapes = [(gates * h, i), (gates * h, h), (gates * h,), (gates * h,)][: 2 + biases]
    weights = [0.4 * normal(*s, seed=k + 5, dtype=dtype) for k, s in enumerate(shapes)]
    return [normal(t, n, i, dtype=dtype), *states, *weights]


def call(kind, **options):
    return lambda *xs: getattr(nn, kind.lower())(*xs, **options)


def loss(kind, **options):
    """A number that every result decides."""
    def f(*xs):
        results = call(kind, **options)(*xs)
        return sum((y * y * (k + 1.5)).sum() for k, y in enumerate(results))
    return f


def layers(kind, net, x, start, lengths):
    """All layers in float64, cell by cell; `start` is (parts, layers, N, hidden)."""
    cell = REFERENCES[f"nn.{kind.lower()}_cell"]
    p = {name: v.numpy().astype("float64") for name, v in net.state_dict().items()}
    last = []
    for k in range(net.num_layers):
        outs = []
        for suffix in [f"_l{k}", f"_l{k}_reverse"][: 1 + net.bidirectional]:
            state = start[:, len(last)]
            weights = [p[f"{name}{suffix}"] for name in ("weight_ih", "weight_hh")]
            if net.bias:
                weights += [p[f"{name}{suffix}"] for name in ("bias_ih", "bias_hh")]
            y = np.zeros((*x.shape[:2], net.hidden_size))
            for t in range(len(x))[:: -1 if suffix.endswith("reverse") else 1]:
                alive = (t < lengths)[:, None]
                found = cell(x[t], *state, *weights)
                found = found if isinstance(found, tuple) else (found,)
                pairs = zip(found, state, strict=True)
                state = np.stack([np.where(alive, a, b) for a, b in pairs])
                y[t] = np.where(alive, state[0], 0)
            outs.append(y)
            last.append(state)
        x = np.concatenate(outs, -1)
    return x, np.stack(last, 1)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_their_cells_step_by_step(kind, bias, both, ends):
    parts = KINDS[kind][1]
    net = getattr(nn, kind)(3, 5, num_layers=2, bias=bias, bidirectional=both)
    x = normal(6, 4, 3)
    start = normal(parts, 2 * (1 + both), 4, 5, seed=1)
    lengths = np.array([6, 1, 3, 0]) if ends else np.full(4, 6)
    state = (start[0], start[1]) if parts == 2 else start[0]
    options = {"lengths": wg.asarray(lengths)} if ends else {}
    y, last = net(x, state, **options)
    want, end = layers(kind, net, x.numpy().astype("d"), start.numpy().astype("d"), lengths)
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-6)
    for k, part in enumerate(last if parts == 2 else [last]):
        np.testing.assert_allclose(part.numpy(), end[k], rtol=1e-5, atol=1e-6)
    first = getattr(nn, kind)(3, 5, num_layers=2, bias=bias, bidirectional=both, batch_first=True)
    first.load_state_dict(net.state_dict())
    swapped, _ = first(wg.permute_dims(x, (1, 0, 2)), state, **options)
    assert np.array_equal(wg.permute_dims(swapped, (1, 0, 2)).numpy(), y.numpy())
    alone, _ = net(x[:, 0])
    np.testing.assert_array_equal(alone.numpy(), net(x[:, :1])[0][:, 0].numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_is_one_step_of_its_layer(kind):
    net, cell = getattr(nn, kind)(3, 5), getattr(nn, f"{kind}Cell")(3, 5)
    state = net.state_dict()
    cell.load_state_dict({name.removesuffix("_l0"): v for name, v in state.items()})
    x = normal(1, 4, 3)
    _, last = net(x)
    found = cell(x[0])
    for a, b in zip(found if kind == "LSTM" else [found], last if kind == "LSTM" else [last],
                    strict=True):
        np.testing.assert_allclose(a.numpy(), b[0].numpy(), rtol=1e-6, atol=1e-7)
    one = cell(x[0, 0])
    np.testing.assert_allclose((one[0] if kind == "LSTM" else one).numpy(),
                               (found[0] if kind == "LSTM" else found)[0].numpy(), atol=1e-6)


OPTIONS = [{}, {"reverse": True}, {"lengths": [3, 0, 4, 1]},
           {"lengths": [2, 4, 1, 4], "reverse": True}]


def options_of(kind, options):
    options = dict(options)
    if "lengths" in options:
        options["lengths"] = wg.asarray(np.array(options["lengths"]))
    if kind == "RNN" and options.get("reverse"):
        options["nonlinearity"] = "relu"
    return options


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("sizes", [(4, 4, 3, 5), (4, 4, 2, 40)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_mode_gives_the_same_bits(kind, sizes, options):
    xs = operands(kind, *sizes)
    options = options_of(kind, options)
    for f in (call(kind, **options),
              wg.grad(loss(kind, **options), argnums=tuple(range(len(xs))))):
        want = f(*xs)
        compiled = wg.compile(f)
        for found in (f(*xs), compiled(*xs), compiled(*xs)):
            for a, b in zip(found, want, strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        with wg.config(check="reference"):
            for a, b in zip(wg.compile(f)(*xs), want, strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_the_formula(kind, options):
    """Kernels on the CPU, formulas on the reference device, to second order; tangents by both."""
    found = []
    for device in ("cpu", "reference"):
        own = {k: v.to(device) if isinstance(v, wg.Tensor) else v
               for k, v in options_of(kind, options).items()}
        xs = [x.to(device).detach() for x in operands(kind, 4, 4, 2, 3, "float64")]
        for x in xs:
            x.requires_grad = True
        first = wg.gradients(loss(kind, **own)(*xs), xs, create_graph=True)
        second = wg.gradients(sum((g * g).sum() for g in first), xs)
        found.append([g.detach().to("cpu").numpy() for g in (*first, *second)])
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-11)
    own = options_of(kind, options)
    xs = operands(kind, 4, 4, 2, 3, "float64")
    ts = [normal(*x.shape, seed=40 + k, dtype="float64") for k, x in enumerate(xs)]
    f = loss(kind, **own)
    _, tangent = wg.jvp(f, tuple(xs), tuple(ts))
    grads = wg.grad(f, argnums=tuple(range(len(xs))))(*xs)
    want = sum((g * t).sum().item() for g, t in zip(grads, ts, strict=True))
    np.testing.assert_allclose(tangent.item(), want, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_mapped_with_their_gradients(kind):
    """Over inputs, and over weights, as an ensemble."""
    xs = operands(kind, 3, 2, 2, 4)
    many = [wg.stack([x, 0.5 * x, -x]) for x in xs]
    grad = wg.grad(loss(kind), argnums=tuple(range(len(xs))))
    for axes in [(0,) + (None,) * (len(xs) - 1), (None,) + (0,) * (len(xs) - 1)]:
        given = [m if a == 0 else x for m, x, a in zip(many, xs, axes, strict=True)]
        for f in (call(kind), grad):
            found = wg.vmap(f, in_axes=axes)(*given)
            compiled = wg.compile(wg.vmap(f, in_axes=axes))(*given)
            for i in range(3):
                one = f(*(x[i] if a == 0 else x for x, a in zip(given, axes, strict=True)))
                for a, b, c in zip(found, compiled, one, strict=True):
                    assert np.array_equal(a.numpy(), b.numpy())
                    np.testing.assert_allclose(a[i].numpy(), c.numpy(), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_one_node_and_its_gradient_another(kind):
    xs = operands(kind, 3, 2, 2, 4)
    grad = wg.grad(loss(kind), argnums=(0, len(xs) - 1))
    ops = [node.op for node in wg.compile(grad).graph(*xs, optimized=False).nodes]
    name = kind.lower()
    assert ops.count(name) == 1 and ops.count(f"{name}_gradients") == 1 and "scan" not in ops


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_mapped_batches_are_rows_of_one_call(kind, ends):
    xs, parts = operands(kind, 3, 2, 2, 20), KINDS[kind][1]
    many = [wg.stack([x, 0.5 * x, -x, x + 1]) for x in xs[: 1 + parts]]
    axes = (0, *(1 if k else None for k in range(parts)), *(None,) * (len(xs) - 1 - parts))
    many = [wg.moveaxis(m, 0, a) if a else (m if a == 0 else x)
            for m, x, a in zip(many, xs, axes, strict=False)]
    given = [*many, *xs[1 + parts :]]
    options = {"lengths": wg.asarray([2, 3])} if ends else {}
    wanted = tuple(range(len(xs)))
    for f, calls in ((call(kind, **options), 1), (wg.grad(loss(kind, **options), wanted), 2)):
        mapped = wg.vmap(f, in_axes=axes)
        ops = [node.op for node in wg.compile(mapped).graph(*given, optimized=False).nodes]
        assert sum(op.startswith(kind.lower()) for op in ops) == calls and "scan" not in ops
        found = mapped(*given)
        for i in range(4):
            one = f(*(x if a is None else wg.moveaxis(x, a, 0)[i]
                      for x, a in zip(given, axes, strict=True)))
            for a, b in zip(found[: 1 + parts], one, strict=False):
                np.testing.assert_array_equal(a[i].numpy(), b.numpy())
            for a, b in zip(found, one, strict=True):
                np.testing.assert_allclose(a[i].numpy(), b.numpy(), rtol=2e-5, atol=1e-5)


def test_half_floats_are_calculated_in_float32():
    for kind in KINDS:
        xs = operands(kind, 5, 3, 4, 6, "float16")
        wide = call(kind)(*(x.astype("float32") for x in xs))
        for a, b in zip(call(kind)(*xs), wide, strict=True):
            assert a.dtype == wg.float16
            np.testing.assert_array_equal(a.numpy(), b.astype("float16").numpy())


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (3, 0, 3, 4), (3, 2, 0, 4)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_do(kind, sizes):
    xs = operands(kind, *sizes)
    y, *last = call(kind)(*xs)
    assert y.shape == (*sizes[:2], 4)
    if sizes[0] == 0:
        for end, start in zip(last, xs[1:], strict=False):
            np.testing.assert_array_equal(end.numpy(), start.numpy())
    grads = wg.grad(loss(kind), argnums=tuple(range(len(xs))))(*xs)
    assert [g.shape for g in grads] == [x.shape for x in xs]
    for _ in range(2):
        found = wg.compile(loss(kind))(*xs)
    assert found.item() == loss(kind)(*xs).item()


def test_what_does_not_fit_is_refused():
    xs = operands("LSTM", 3, 2, 2, 4)
    for k, shape in [(0, (3, 2)), (1, (2, 5)), (2, (3, 4)), (3, (16, 3)), (4, (15, 4)), (5, (4,))]:
        other = [*xs[:k], wg.ones(shape), *xs[k + 1 :]]
        with pytest.raises(wg.ShapeError):
            nn.lstm(*other)
    with pytest.raises(wg.ShapeError, match="lengths"):
        nn.gru(*operands("GRU", 3, 2, 2, 4), lengths=wg.asarray([1, 2, 3]))
    with pytest.raises(wg.DTypeError):
        nn.gru(*operands("GRU", 3, 2, 2, 4), lengths=wg.ones(2))
    with pytest.raises(ValueError, match="nonlinearity"):
        nn.RNN(2, 3, nonlinearity="sigmoid")
    with pytest.raises(ValueError, match="probability"):
        nn.GRU(2, 3, dropout=2.0)
    with pytest.raises(wg.ShapeError, match="lengths"):
        nn.GRU(2, 3)(wg.ones((4, 2)), lengths=wg.asarray([1]))


def test_dropout_is_between_layers_in_training_only():
    net = nn.GRU(3, 4, num_layers=2, dropout=0.5)
    x = normal(5, 2, 3)
    one, two = net(x)[0], net(x)[0]
    assert not np.array_equal(one.numpy(), two.numpy())
    net.eval()
    plain = nn.GRU(3, 4, num_layers=2)
    plain.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(net(x)[0].numpy(), plain(x)[0].numpy())
    single = nn.GRU(3, 4, dropout=0.5)
    np.testing.assert_array_equal(single(x)[0].numpy(), single(x)[0].numpy())


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_the_same_alone_and_beside_others(threads):
    before = wg.get_num_threads()
    wg.set_num_threads(threads)
    try:
        for kind in KINDS:
            xs = operands(kind, 6, 30, 3, 48)
            parts = KINDS[kind][1]
            one = [xs[0][:, 7:8], *(s[7:8] for s in xs[1 : 1 + parts]), *xs[1 + parts :]]
            y, alone = call(kind)(*xs)[0], call(kind)(*one)[0]
            np.testing.assert_array_equal(y[:, 7:8].numpy(), alone.numpy())
    finally:
        wg.set_num_threads(before)
