"""Modules: what belongs to them, their state, and layers against NumPy."""

import copy
import pickle

import numpy as np
import pytest

import wengert as wg
from wengert import nn


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(t, a, tolerance=1e-5):
    np.testing.assert_allclose(t.detach().numpy(), a, rtol=tolerance, atol=tolerance)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Block(nn.Module):
    """State in every place where it is found: attributes, a list, a dict, a nested module."""

    def __init__(self):
        self.many = [nn.Linear(2, 3), nn.Identity()]
        self.scale = nn.Parameter(wg.ones(3))
        self.named = {"a": nn.Buffer(wg.zeros(2)), "b": nn.Buffer(wg.zeros(1), persistent=False)}
        self.label = "text"

    def forward(self, x):
        return self.many[0](x) * self.scale


def test_state_is_found_in_the_order_of_definition():
    block = Block()
    names = ["many.0.weight", "many.0.bias", "scale"]
    assert [n for n, _ in block.named_parameters()] == names
    assert [n for n, _ in block.named_buffers()] == ["named.a", "named.b"]
    assert list(block.state_dict()) == [*names, "named.a"]
    assert [n for n, _ in block.named_children()] == ["many.0", "many.1"]
    assert [n for n, _ in block.named_modules()] == ["", "many.0", "many.1"]
    assert [type(m) for m in block.children()] == [nn.Linear, nn.Identity]


def test_shared_and_cyclic_modules():
    pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    pair[1].weight = pair[0].weight
    pair[0].parent = pair
    assert [n for n, _ in pair.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert list(pair.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    twin = copy.deepcopy(pair)
    assert twin[1].weight is twin[0].weight and twin[0].weight is not pair[0].weight
    assert twin[0].parent is twin


def test_containers():
    layers = nn.ModuleList([nn.Linear(2, 2)])
    layers.append(nn.Identity())
    layers.extend([nn.ReLU()])
    assert len(layers) == 3 and isinstance(layers[-1], nn.ReLU) and len(layers[1:]) == 2
    assert list(layers.state_dict()) == ["0.weight", "0.bias"]
    table = nn.ModuleDict({"x": nn.Linear(1, 1)})
    table["y"] = nn.ReLU()
    assert list(table) == ["x", "y"] and "y" in table and len(table.state_dict()) == 2
    with pytest.raises(TypeError, match="function"):
        nn.Sequential(nn.Linear(1, 1), lambda x: x)
    assert isinstance(nn.Sequential(nn.ReLU(), nn.ReLU())[:1], nn.Sequential)


def test_a_loaded_state_is_complete_or_refused():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3))
    before = {n: t.tolist() for n, t in net.state_dict().items()}
    bad = net.state_dict()
    del bad["0.weight"]
    bad["0.bias"] = wg.ones(4)
    bad["1.num_batches_tracked"] = wg.ones(())
    bad["extra"] = wg.ones(1)
    with pytest.raises(ValueError) as error:
        net.load_state_dict(bad)
    text = str(error.value)
    for words in (
        "0.weight: missing",
        "(4,)",
        "(3,)",
        "1.num_batches_tracked",
        "extra: unexpected",
    ):
        assert words in text, text
    assert {n: t.tolist() for n, t in net.state_dict().items()} == before
    some = {"0.bias": np.full(3, 7.0, np.float32), "extra": 1.0}
    missing, unexpected = net.load_state_dict(some, strict=False)
    assert net[0].bias.tolist() == [7.0] * 3
    assert "0.weight" in missing and unexpected == ["extra"]


def test_a_state_dict_is_a_snapshot():
    net = nn.Linear(2, 1)
    state = net.state_dict()
    kept = state["weight"].tolist()
    with wg.no_grad():
        net.weight += 1.0
    assert state["weight"].tolist() == kept != net.weight.tolist()


def test_copies_and_pickles():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3))
    net[0].bias.requires_grad = False
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert isinstance(twin[0].weight, nn.Parameter) and not twin[0].bias.requires_grad
        assert isinstance(twin[1].running_mean, nn.Buffer) and twin[1].running_mean.persistent
        with wg.no_grad():
            twin[0].weight += 1.0
        assert twin[0].weight.tolist() != net[0].weight.tolist()


def test_conversion():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm(2))
    net[0].bias.requires_grad = False
    assert net.to(wg.float64) is net
    assert {t.dtype for t in net.parameters()} == {wg.float64}
    assert net[1].num_batches_tracked.dtype == wg.int64 and not net[0].bias.requires_grad
    same = net[0].weight
    assert net.to(wg.float64)[0].weight is same


def test_modes_freezing_and_apply():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()))
    assert net.eval() is net and not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())
    assert not any(p.requires_grad for p in net.requires_grad_(False).parameters())
    seen = []
    net.apply(lambda m: seen.append(type(m)))
    assert seen[-1] is nn.Sequential and set(seen) == {nn.Sequential, nn.Linear, nn.Dropout}


def test_a_parameter_is_not_lost_by_assignment():
    net = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="assign"):
        net.weight = wg.ones((2, 2))
    net.weight = nn.Parameter(wg.ones((2, 2)))
    net.bias = None
    assert [n for n, _ in net.named_parameters()] == ["weight"]


def test_assignments_are_counted():
    net = nn.BatchNorm(2)
    versions = [net._version]
    for change in (
        lambda: setattr(net, "eps", 1e-3),
        lambda: net.eval(),
        lambda: delattr(net, "eps"),
    ):
        change()
        versions.append(net._version)
    assert versions == sorted(set(versions))
    net.eps = 1e-3
    net.train()
    before = net._version
    net(wg.asarray(array(4, 2)))
    net.train()
    assert net._version == before, "running statistics are values, not attributes"


def test_hooks():
    net = nn.Linear(2, 2)
    x = wg.ones((1, 2))
    plain = net(x).tolist()
    calls = []
    first = net.register_forward_pre_hook(lambda m, args: calls.append(args) or (args[0] * 2,))
    second = net.register_forward_hook(lambda m, args, y: y * 0)
    assert net(x).tolist() == [[0.0, 0.0]] and calls[0][0] is x
    second.remove()
    close(net(x), np.asarray(plain) + x.numpy() @ net.weight.detach().numpy().T)
    first.remove()
    first.remove()
    assert net(x).tolist() == plain


def test_repr_shows_the_tree_with_sizes():
    text = repr(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Linear(4, 2, bias=False)))
    assert text.splitlines() == [
        "Sequential(  # 88 parameters",
        "  (0): Conv2d(1, 8, 3, padding=1)  # 80 parameters: weight (8, 1, 3, 3), bias (8,)",
        "  (1): Linear(4, 2, bias=False)  # 8 parameters: weight (2, 4)",
        ")",
    ]


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4), (2, 3, 4, 5)])
def test_batch_norm(shape):
    norm = nn.BatchNorm(3)
    mean, var = np.zeros(3), np.ones(3)
    axes = (0, *range(2, len(shape)))
    per_channel = (1, 3, *[1] * (len(shape) - 2))
    for seed in range(3):
        x = array(*shape, seed=seed) * 2 + 1
        m, v = x.mean(axes, dtype=np.float64), x.var(axes, dtype=np.float64)
        y = (x - m.reshape(per_channel)) / np.sqrt(v.reshape(per_channel) + 1e-5)
        close(norm(wg.asarray(x)), y, 1e-4)
        n = x.size // 3
        mean, var = 0.9 * mean + 0.1 * m, 0.9 * var + 0.1 * v * n / (n - 1)
    close(norm.running_mean, mean)
    close(norm.running_var, var)
    assert norm.num_batches_tracked.item() == 3
    norm.eval()
    y = (x - mean.reshape(per_channel)) / np.sqrt(var.reshape(per_channel) + 1e-5)
    close(norm(wg.asarray(x)), y, 1e-4)
    with pytest.raises(wg.ShapeError, match="3"):
        norm(wg.ones((2, 4)))
    with pytest.raises(wg.ShapeError, match="one"):
        norm.train()(wg.ones((1, 3)))


def test_batch_norm_averages_without_momentum():
    norm = nn.BatchNorm(2, momentum=None)
    batches = [array(5, 2, seed=s) for s in range(4)]
    for x in batches:
        norm(wg.asarray(x))
    close(norm.running_mean, np.mean([x.mean(0) for x in batches], axis=0))
    close(norm.running_var, np.mean([x.var(0, ddof=1) for x in batches], axis=0))


def test_layer_group_and_rms_norm():
    x = array(2, 4, 3, 5)
    t = wg.asarray(x)

    def normal(a, axes, eps=1e-5):
        return (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + eps)

    close(nn.LayerNorm(5)(t), normal(x, -1), 1e-4)
    close(nn.LayerNorm((3, 5))(t), normal(x, (-2, -1)), 1e-4)
    grouped = normal(x.reshape(2, 2, -1), -1).reshape(x.shape)
    close(nn.GroupNorm(2, 4)(t), grouped, 1e-4)
    close(nn.RMSNorm(5)(t), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), 1e-4)
    with pytest.raises(wg.ShapeError, match="5"):
        nn.LayerNorm(5)(wg.ones((5, 4)))
    with pytest.raises(ValueError, match="groups"):
        nn.GroupNorm(3, 4)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (3, 5), (6, 6)])
def test_adaptive_average_pool(size):
    x = array(2, 3, 5, 7)
    want = np.empty((2, 3, *size))
    for i in range(size[0]):
        for j in range(size[1]):
            a, b = i * 5 // size[0], -(-(i + 1) * 5 // size[0])
            c, d = j * 7 // size[1], -(-(j + 1) * 7 // size[1])
            want[:, :, i, j] = x[:, :, a:b, c:d].mean((2, 3))
    close(nn.AdaptiveAvgPool2d(size)(wg.asarray(x)), want)


def test_convolutions_have_the_layouts_of_pytorch():
    shapes = {
        nn.Conv1d(4, 6, 3): (6, 4, 3),
        nn.Conv2d(4, 6, (3, 5), groups=2): (6, 2, 3, 5),
        nn.Conv3d(4, 6, 2): (6, 4, 2, 2, 2),
        nn.ConvTranspose2d(4, 6, 3, groups=2): (4, 3, 3, 3),
    }
    for layer, shape in shapes.items():
        assert layer.weight.shape == shape and layer.bias.shape == (6,)
    # Downsampling and its transpose are adjoint: ⟨A x, y⟩ = ⟨x, Aᵀ y⟩.
    down = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False)
    up = nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1, bias=False)
    up.load_state_dict(down.state_dict())
    x, y = wg.asarray(array(1, 2, 8, 8)), wg.asarray(array(1, 3, 4, 4, seed=1))
    assert abs((down(x) * y).sum().item() - (x * up(y)).sum().item()) < 1e-3
    with pytest.raises(ValueError, match="groups"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ValueError, match="kernel_size"):
        nn.Conv2d(3, 4, (3, 3, 3))


def test_flatten_dropout_and_activations():
    x = wg.asarray(array(2, 3, 4))
    assert nn.Flatten()(x).shape == (2, 12) and nn.Flatten(0, 1)(x).shape == (6, 4)
    with pytest.raises(wg.AxisError):
        nn.Flatten(5)(x)
    drop = nn.Dropout(0.5)
    wg.random.seed(0)
    y = drop(wg.ones((100, 100))).numpy()
    assert set(np.unique(y)) == {0.0, 2.0} and abs(y.mean() - 1) < 0.05
    assert drop.eval()(x).tolist() == x.tolist()
    n = x.numpy()
    for layer, want in (
        (nn.ReLU(), np.maximum(n, 0)),
        (nn.LeakyReLU(0.2), np.where(n > 0, n, 0.2 * n)),
        (nn.SiLU(), n * sigmoid(n)),
        (nn.Softplus(), np.log1p(np.exp(n))),
        (nn.Sigmoid(), sigmoid(n)),
        (nn.Tanh(), np.tanh(n)),
        (nn.Softmax(-1), softmax(n)),
        (nn.LogSoftmax(-1), np.log(softmax(n))),
        (nn.GELU("tanh"), 0.5 * n * (1 + np.tanh(np.sqrt(2 / np.pi) * (n + 0.044715 * n**3)))),
    ):
        close(layer(x), want)


def lstm_by_hand(x, w, u, b, h, c):
    """One layer over x (T, N, inputs), gates in the order i f g o."""
    out = []
    for t in range(len(x)):
        i, f, g, o = np.split(x[t] @ w.T + h @ u.T + b, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out), h, c


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_lstm(both, batch_first):
    net = nn.LSTM(3, 4, num_layers=2, bidirectional=both, batch_first=batch_first)
    p = {n: t.numpy() for n, t in net.state_dict().items()}
    x = array(5, 2, 3)
    suffixes = ["", "_reverse"][: 1 + both]
    start = array(2, 2 * len(suffixes), 2, 4, seed=1)
    steps, k, h, c = x, 0, [], []
    for layer in range(2):
        outs = []
        for suffix in suffixes:
            name = f"l{layer}{suffix}"
            flip = slice(None, None, -1 if suffix else 1)
            w, u, b1, b2 = (
                p[f"{part}_{name}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            y, hk, ck = lstm_by_hand(steps[flip], w, u, b1 + b2, start[0, k], start[1, k])
            outs.append(y[flip])
            h.append(hk)
            c.append(ck)
            k += 1
        steps = np.concatenate(outs, axis=-1)
    given = wg.asarray(x.swapaxes(0, 1) if batch_first else x)
    y, (hn, cn) = net(given, (wg.asarray(start[0]), wg.asarray(start[1])))
    close(y, steps.swapaxes(0, 1) if batch_first else steps)
    close(hn, np.stack(h))
    close(cn, np.stack(c))
    single, (hs, _) = net(wg.asarray(x[:, 0]))
    assert single.shape == (5, 4 * len(suffixes)) and hs.shape == (2 * len(suffixes), 4)


def test_multi_head_attention():
    net = nn.MultiHeadAttention(6, 2)
    p = {n: t.numpy() for n, t in net.state_dict().items()}
    q, kv = array(2, 4, 6), array(2, 5, 6, seed=1)

    def attend(q, k, v, allowed=None):
        parts = []
        for i, x in enumerate((q, k, v)):
            rows = slice(6 * i, 6 * i + 6)
            y = x @ p["in_proj_weight"][rows].T + p["in_proj_bias"][rows]
            parts.append(y.reshape(2, -1, 2, 3).transpose(0, 2, 1, 3))
        a, b, c = parts
        scores = a @ b.swapaxes(-1, -2) / np.sqrt(3)
        scores = scores if allowed is None else np.where(allowed, scores, -np.inf)
        y = (softmax(scores) @ c).transpose(0, 2, 1, 3).reshape(2, -1, 6)
        return y @ p["out_proj.weight"].T + p["out_proj.bias"]

    tq, tkv = wg.asarray(q), wg.asarray(kv)
    close(net(tq), attend(q, q, q))
    close(net(tq, tkv), attend(q, kv, kv))
    causal = np.tril(np.ones((4, 4), bool))
    close(net(tq, is_causal=True), attend(q, q, q, causal))
    close(net(tq, mask=wg.asarray(causal)), attend(q, q, q, causal))
    with pytest.raises(ValueError, match="heads"):
        nn.MultiHeadAttention(6, 4)


def test_losses_are_their_functions():
    x, target = wg.asarray(array(4, 3)), wg.asarray(np.array([0, 2, 1, 1]))
    same = nn.CrossEntropyLoss(label_smoothing=0.1)(x, target)
    assert same.item() == nn.cross_entropy(x, target, label_smoothing=0.1).item()
    y = wg.asarray(array(4, 3, seed=1))
    assert nn.MSELoss("none")(x, y).shape == (4, 3)
    close(nn.MSELoss()(x, y), ((x.numpy() - y.numpy()) ** 2).mean())
    half = wg.ones((4, 3)) * 0.5
    n = x.numpy()
    close(nn.BCEWithLogitsLoss()(x, half), (np.log1p(np.exp(n)) - 0.5 * n).mean())


def test_initial_values():
    wg.random.seed(0)
    shape = (300, 200)
    for name, std in (
        ("kaiming_uniform", np.sqrt(2 / 200)),
        ("kaiming_normal", np.sqrt(2 / 200)),
        ("xavier_uniform", np.sqrt(2 / 500)),
        ("xavier_normal", np.sqrt(2 / 500)),
    ):
        value = getattr(nn.init, name)(shape).numpy()
        assert abs(value.std() / std - 1) < 0.02 and abs(value.mean()) < 0.01 * std + 1e-3
    t = nn.init.trunc_normal((10_000,), mean=1.0, std=2.0, low=0.0, high=3.0).numpy()
    assert t.min() >= 0 and t.max() <= 3 and abs(t.mean() - 1.4) < 0.1
    key = wg.random.key(3)
    a, b = (nn.init.trunc_normal((100,), key=key).tolist() for _ in range(2))
    assert a == b
    weight = nn.Linear(50, 40).weight.numpy()
    assert np.abs(weight).max() <= 1 / np.sqrt(50)
    with pytest.raises(ValueError, match="trunc_normal"):
        nn.init.trunc_normal((3,), low=8.0, high=9.0)
    with pytest.raises(ValueError, match="rank"):
        nn.init.xavier_normal((3,))
    for shape in (wg.zeros(1).broadcast_to((10**12,)), "ab", 3):
        for init in (nn.init.xavier_uniform, nn.init.kaiming_normal):
            with pytest.raises(TypeError):
                init(shape)


# Layers, with shapes that they take and shapes that they do not.
RANKS = {
    "BatchNorm": (lambda: nn.BatchNorm(3), [(4, 3), (4, 3, 5, 5, 5, 5)], [(3,), (4, 2)]),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), [(4, 3), (4, 3, 5)], [(3,), (4, 3, 5, 5), (4, 2)]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), [(4, 3, 5, 5)], [(2, 3), (4, 3, 5), (4, 2, 5, 5)]),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(3), [(4, 3, 5, 5, 5)], [(2, 3), (4, 3, 5, 5)]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4, affine=False), [(2, 4), (2, 4, 5)], [(4,), (2, 6)]),
    "LayerNorm": (lambda: nn.LayerNorm((2, 3)), [(2, 3), (4, 2, 3)], [(3,), (2, 4)]),
    "RMSNorm": (lambda: nn.RMSNorm(3), [(3,), (2, 3)], [(), (2, 4)]),
    "Linear": (lambda: nn.Linear(3, 2), [(3,), (2, 2, 3)], [(), (2, 4)]),
    "Conv1d": (lambda: nn.Conv1d(3, 2, 3), [(4, 3, 5), (3, 5)], [(5,), (4, 3, 5, 5), (4, 2, 5)]),
    "Conv2d": (lambda: nn.Conv2d(3, 2, 3), [(4, 3, 5, 5), (3, 5, 5)], [(4, 3, 5), (4, 2, 5, 5)]),
    "Conv3d": (lambda: nn.Conv3d(3, 2, 3), [(4, 3, 5, 5, 5)], [(4, 3, 5, 5)]),
    "ConvTranspose1d": (
        lambda: nn.ConvTranspose1d(3, 2, 3), [(4, 3, 5), (3, 5)], [(5,), (4, 2, 5)]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 2, 3), [(4, 3, 5, 5)], [(4, 3, 5)]),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(3, 2, 3), [(1, 3, 5, 5, 5)], [(4, 3, 5, 5)]),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), [(5,), (4, 3, 5)], [()]),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), [(3, 5, 5), (4, 3, 5, 5)], [(5,)]),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), [(4, 3, 5, 5, 5)], [(5, 5)]),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), [(5,), (4, 3, 5)], [()]),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), [(3, 5, 5), (4, 3, 5, 5)], [(5,)]),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), [(4, 3, 5, 5, 5)], [(5, 5)]),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), [(3, 5, 5)], [(5,)]),
    "LSTM": (lambda: nn.LSTM(3, 2), [(5, 3), (5, 4, 3)], [(3,), (5, 4, 3, 3), (5, 4)]),
    "MultiHeadAttention": (
        lambda: nn.MultiHeadAttention(4, 2), [(2, 5, 4), (5, 4)], [(4,), (2, 5, 3)]),
}


@pytest.mark.parametrize("name", RANKS)
def test_a_layer_takes_the_ranks_and_sizes_that_it_documents(name):
    make, taken, refused = RANKS[name]
    for shape in taken:
        make()(wg.ones(shape))
    for shape in refused:
        layer = make()
        with pytest.raises(wg.ShapeError):
            layer(wg.ones(shape))
        if hasattr(layer, "num_batches_tracked"):
            assert layer.num_batches_tracked.item() == 0


@pytest.mark.parametrize("call", [
    lambda: nn.functional_call(0, {}), lambda: nn.functional_call(nn.Linear(1, 1), 0),
    lambda: nn.stack([0]), lambda: nn.summary(0), lambda: nn.weight_norm(0),
    lambda: nn.spectral_norm(0), lambda: nn.remove_parametrizations(0), lambda: nn.ModuleDict(0),
    lambda: nn.ParameterDict(0), lambda: nn.ParameterList([0]), lambda: nn.ModuleList([0]),
    lambda: nn.length_mask([1], 2), lambda: nn.pad_sequence([0]),
    lambda: nn.pack_padded_sequence(0, [1]), lambda: nn.pad_packed_sequence(0),
])  # fmt: skip
def test_what_is_no_module_and_no_tensor_is_refused_by_name(call):
    with pytest.raises(TypeError, match=r"^\w+: .*(wanted|expected)"):
        call()
