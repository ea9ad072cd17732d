"""Modules as functions and stacks; hooks, summaries, computed parameters, lazy layers, tables."""

import copy
import pickle

import numpy as np
import pytest

import wengert as wg
from wengert import nn

from support import array, same


def near(got, want, tolerance=1e-5):
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=tolerance, atol=tolerance)


def mlp(inputs=3):
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, 2))


def test_a_module_as_a_function_of_its_state():
    net, x = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), array(5, 3)
    net[0].twin = net[1]  # one tensor under two names
    mean = {"0.running_mean": wg.ones(3)}
    net.eval()
    want = nn.functional_call(net, mean, x)
    near(want, (net[1](net[0](x - 1.0))).detach().numpy())
    net.train()
    nn.functional_call(net, mean, x)
    assert int(net[0].num_batches_tracked) == 1  # what is not named is the module's own
    assert net[0].running_mean.tolist() == [0.0] * 3
    same(nn.functional_call(net.eval(), {"0.twin.bias": wg.zeros(2)}, x),
         nn.functional_call(net, {"1.bias": wg.zeros(2)}, x))  # fmt: skip
    hessian = wg.hessian(lambda b: (nn.functional_call(net, {"1.bias": b}, x) ** 2).sum())
    near(hessian(wg.zeros(2)), 10 * np.eye(2))
    captured = wg.compile(lambda w: nn.functional_call(net, {"1.weight": w}, x))
    near(captured(wg.zeros((2, 3))), np.broadcast_to(net[1].bias.detach().numpy(), (5, 2)))
    with pytest.raises(ValueError, match=r"Sequential has no state.*nope, 7"):
        nn.functional_call(net, {"nope": wg.ones(1), "7": wg.ones(1), "1.bias": wg.ones(2)}, x)


def test_a_stack_trains_as_its_members():
    wg.random.seed(0)
    members, x, y = [mlp() for _ in range(3)], array(6, 3), array(6, 2, seed=1)
    many = nn.stack(members)
    assert [n for n, _ in many.named_parameters()] == [n for n, _ in members[0].named_parameters()]
    run = wg.vmap(lambda m, x, y: ((m(x) - y) ** 2).mean(), in_axes=(0, None, None))
    optimizers = [wg.optim.SGD(m.parameters(), lr=0.1) for m in (many, *members)]
    for _ in range(3):
        for opt in optimizers:
            opt.zero_grad()
        run(many, x, y).sum().backward()
        for m in members:
            ((m(x) - y) ** 2).mean().backward()
        for opt in optimizers:
            opt.step()
    for name, p in many.state_dict().items():
        near(p, np.stack([m.state_dict()[name].numpy() for m in members]))
    for other, words in ((mlp(4), r"0\.weight.*\(4, 3\).*\(4, 4\)"), (nn.Tanh(), "structure")):
        with pytest.raises(ValueError, match=words):
            nn.stack([members[0], other])
    with pytest.raises(ValueError, match="none"):
        nn.stack([])


class Two(nn.Module):
    def forward(self, a, b, scale=1.0):
        return {"sum": (a + 2.0 * b) * scale, "count": wg.tensor(3)}, a * b


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_backward_hooks_see_and_change_what_flows(mode):
    module, seen = Two(), []

    def look(m, given, found):
        seen.append((m, given, found))

    hooks = (look, lambda m, a, b: (a[0] * 10, a[1]))
    handles = [module.register_full_backward_hook(hook) for hook in hooks]

    def f(a, b):
        y, z = module(a, b, scale=3.0)
        return (y["sum"] * wg.tensor([1.0, 2.0])).sum() + z.sum()

    grad = wg.grad(f, argnums=(0, 1))
    grad = wg.compile(grad) if mode == "compiled" else grad
    a, b = wg.tensor([1.0, 2.0]), wg.tensor([5.0, 7.0])
    da, db = grad(a, b)
    assert da.tolist() == [80.0, 130.0] and db.tolist() == [7.0, 14.0]
    (m, given, found), = seen
    assert m is module and [x.shape for x in given] == [(2,)] * 2 and len(found) == 2
    if mode == "eager":
        assert given[0].tolist() == [8.0, 13.0] and found[1].tolist() == [1.0, 1.0]
    handles[1].remove()
    grad = wg.grad(f)
    assert grad(a, b).tolist() == [8.0, 13.0]
    assert seen[-1][1][1] is None  # no gradient of that was asked for
    handles[0].remove()
    count = len(seen)
    grad(a, b)
    assert len(seen) == count
    module.register_full_backward_hook(lambda m, a, b: a[:1])
    with pytest.raises(ValueError, match="1 gradients for 2"):
        grad(a, b)


def test_hooks_of_parameters_alone_and_second_derivatives():
    layer, seen = nn.Linear(3, 2), []
    layer.register_full_backward_hook(lambda m, a, b: seen.append((a, b[0].shape)))
    layer(wg.ones((4, 3))).sum().backward()
    assert seen == [((None,), (4, 2))]
    with wg.no_grad():
        layer(wg.ones((4, 3)))
    cube = Two()
    cube.register_full_backward_hook(lambda m, a, b: None)
    second = wg.grad(wg.grad(lambda x: (cube(x, x)[1] * x).sum()))
    assert second(wg.tensor(2.0)).item() == 12.0


def test_a_summary_tells_shapes_counts_and_costs_and_changes_nothing():
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Sequential(nn.Linear(8, 2)))
    net[0].weight.requires_grad = False
    before = {n: t.numpy().copy() for n, t in net.state_dict().items()}
    found = nn.summary(net, wg.Spec((4, 3)))
    rows = {row.name: row for row in found.rows}
    assert list(rows) == ["", "0", "1", "2", "2.0"]
    assert (rows["0"].kind, rows["0"].shape, rows["0"].parameters) == ("Linear", "(4, 8)", 32)
    assert rows["0"].flops == 2 * 4 * 3 * 8 + 4 * 8  # products, sums and the bias
    assert rows["2"].flops is None and rows["2"].parameters == 0
    assert (found.parameters, found.frozen) == (66, 24) and found.flops > rows["0"].flops
    assert "66 parameters, 24 of them frozen" in str(found)
    assert all(np.array_equal(t.numpy(), before[n]) for n, t in net.state_dict().items())
    assert not net[0]._hooks
    assert str(nn.summary(nn.LSTM(3, 4), wg.ones((5, 2, 3)))).count("(5, 2, 4), (1, 2, 4)") == 1


def test_weight_norm_is_a_length_and_a_direction():
    layer = nn.Conv1d(2, 3, 2)
    weight, x = layer.weight.detach(), array(1, 2, 5)
    want = layer(x)
    assert nn.weight_norm(layer) is layer
    names = ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]
    assert list(layer.state_dict()) == names
    near(layer.weight, weight.numpy())
    assert layer.parametrizations["weight"].original0.shape == (3, 1, 1)
    near(layer(x), want.detach().numpy())
    with wg.no_grad():
        layer.parametrizations["weight"].original0 *= 2.0
    near(layer.weight, 2 * weight.numpy())
    (layer(x) ** 2).sum().backward()
    v = layer.parametrizations["weight"].original1
    assert abs((v.grad * v).sum().item()) < 1e-4  # the length of a direction does not matter
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        same(twin(x), layer(x))
    same(wg.compile(layer)(x), layer(x))
    nn.remove_parametrizations(layer)
    assert list(layer.state_dict()) == ["bias", "weight"] and isinstance(layer.weight, nn.Parameter)
    whole = nn.weight_norm(nn.Linear(2, 3), dim=None)
    assert whole.parametrizations["weight"].original0.shape == ()
    with pytest.raises(ValueError, match="no parameter 'scale'"):
        nn.weight_norm(layer, "scale")
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'wieght'"):
        whole.wieght
    with pytest.raises(ValueError, match="no parametrised 'bias'"):
        nn.remove_parametrizations(whole, "bias")


def test_spectral_norm_divides_by_the_largest_singular_value():
    wg.random.seed(0)
    layer = nn.spectral_norm(nn.Conv2d(2, 4, 3), n_power_iterations=5)
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original",
        "parametrizations.weight.0._u", "parametrizations.weight.0._v"]  # fmt: skip
    original = layer.state_dict()["parametrizations.weight.original"].numpy()
    for _ in range(20):
        layer.weight
    top = np.linalg.svd(original.reshape(4, -1), compute_uv=False)[0]
    near(layer.weight, original / top, 1e-4)
    layer.eval()
    u = layer.state_dict()["parametrizations.weight.0._u"].numpy().copy()
    same(layer.weight, layer.weight)
    np.testing.assert_array_equal(layer.state_dict()["parametrizations.weight.0._u"].numpy(), u)
    step = wg.compile(lambda x: layer.train()(x).sum())
    x = array(1, 2, 5, 5)
    assert np.isfinite(step(x).item())
    assert nn.spectral_norm(nn.ConvTranspose1d(3, 2, 2)).parametrizations["weight"].axis == 1
    with pytest.raises(wg.ShapeError, match=r"bias has shape \(4,\)"):
        nn.spectral_norm(nn.Linear(2, 4), "bias")


LAZY = {
    "LazyLinear": ((4,), (2, 5), 5),
    "LazyConv1d": ((4, 2), (2, 3, 5), 3),
    "LazyConv2d": ((4, 2), (2, 3, 5, 5), 3),
    "LazyConv3d": ((4, 2), (2, 3, 4, 4, 4), 3),
    "LazyConvTranspose1d": ((4, 2), (2, 3, 5), 3),
    "LazyConvTranspose2d": ((4, 2), (2, 3, 5, 5), 3),
    "LazyConvTranspose3d": ((4, 2), (2, 3, 4, 4, 4), 3),
    "LazyBatchNorm1d": ((), (6, 3), 3),
    "LazyBatchNorm2d": ((), (2, 3, 5, 5), 3),
    "LazyBatchNorm3d": ((), (2, 3, 4, 4, 4), 3),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_layer_becomes_the_layer(name):
    args, shape, size = LAZY[name]
    kind = getattr(nn, name.removeprefix("Lazy"))
    wg.random.seed(1)
    plain = kind(size, *args)
    lazy = nn.Sequential(getattr(nn, name)(*args))
    assert list(lazy.parameters()) == []
    with pytest.raises(wg.Error, match="captured"):
        wg.compile(lazy)(wg.ones(shape))
    wg.random.seed(1)
    x = array(*shape)
    same(lazy(x), plain(x))
    assert type(lazy[0]) is kind and lazy[0].state_dict().keys() == plain.state_dict().keys()
    assert repr(lazy[0]) == repr(plain)


def test_a_lazy_layer_that_fails_stays_lazy():
    layer = nn.LazyConv2d(4, 3, groups=3).eval()
    with pytest.raises(ValueError, match="groups"):
        layer(wg.ones((1, 3, 5, 5)))
    assert type(layer) is nn.LazyConv2d and repr(layer) == "LazyConv2d(4, 3, groups=3)"
    with pytest.raises(wg.ShapeError, match="rank 3"):
        layer(wg.ones((3, 5)))


def test_lists_and_dictionaries_of_parameters():
    some = nn.ParameterList([wg.ones(2), nn.Parameter(wg.zeros(1), requires_grad=False)])
    some.append(wg.ones(3))
    named = nn.ParameterDict({"a": wg.ones(2)})
    named["b"] = wg.zeros(1)
    net = nn.Module()
    net.some, net.named = some, named
    names = ["some.0", "some.1", "some.2", "named.a", "named.b"]
    assert [n for n, _ in net.named_parameters()] == names
    assert [p.requires_grad for p in some] == [True, False, True] and len(named) == 2
    del named["a"]
    assert list(named) == ["b"] and "a" not in named
    with pytest.raises(TypeError, match="ParameterList: a parameter is Linear, wanted a tensor"):
        some.append(nn.Linear(1, 1))


def test_padding_and_longest_rows_of_an_embedding():
    wg.random.seed(0)
    layer = nn.Embedding(5, 3, padding_idx=-1)
    assert layer.weight[4].tolist() == [0.0] * 3 and layer.padding_idx == 4
    layer(wg.tensor([[4, 1], [-1, 2]])).sum().backward()
    assert layer.weight.grad.sum(axis=1).tolist() == [0.0, 3.0, 3.0, 0.0, 0.0]
    short = nn.Embedding(4, 3, max_norm=1.0)
    before = short.weight.detach().numpy().copy()
    y = short(wg.tensor([2, 0, 2]))
    lengths = np.linalg.norm(before, axis=1)
    want = before / np.maximum(lengths, 1.0)[:, None]
    near(y, want[[2, 0, 2]])
    np.testing.assert_array_equal(short.weight.numpy()[[1, 3]], before[[1, 3]])
    fixed = nn.Embedding.from_pretrained(np.eye(3, dtype="f"))
    assert fixed(wg.tensor(1)).tolist() == [0.0, 1.0, 0.0] and not fixed.weight.requires_grad
    with pytest.raises(ValueError, match="padding_idx 5"):
        nn.Embedding(5, 3, padding_idx=5)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows(mode):
    table, rng = array(6, 3), np.random.default_rng(0)
    indices, starts = rng.integers(0, 6, 9), [0, 2, 2, 5]
    reduce = {"sum": np.sum, "mean": np.mean, "max": np.max}[mode]

    def want(bags, skip=None):
        rows = [table.numpy()[[i for i in bag if i != skip]] for bag in bags]
        return np.stack([reduce(r, axis=0) if len(r) else np.zeros(3) for r in rows])

    bags = np.split(indices, starts[1:])
    options = {"offsets": wg.tensor(starts), "mode": mode}
    near(nn.embedding_bag(wg.asarray(indices), table, **options), want(bags))
    near(nn.embedding_bag(wg.asarray(indices), table, padding_idx=int(indices[0]), **options),
         want(bags, indices[0]))  # fmt: skip
    ends = {**options, "offsets": wg.tensor([*starts, 7]), "include_last_offset": True}
    shorter = want(np.split(indices[:7], starts[1:]))
    near(nn.embedding_bag(wg.asarray(indices), table, **ends), shorter)
    square = indices.reshape(3, 3)
    near(nn.embedding_bag(wg.asarray(square), table, mode=mode), want(square))
    layer = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=2)
    layer.load_state_dict({"weight": table})
    near(layer(wg.asarray(square)), want(square, 2))
    grad = wg.grad(lambda t: nn.embedding_bag(wg.asarray(indices), t, **options).sum())(table)
    counts = np.zeros((6, 3))
    for bag in bags:
        for column in range(3):
            if mode == "max" and len(bag):
                counts[bag[table.numpy()[bag, column].argmax()], column] += 1
            elif mode != "max" and len(bag):
                np.add.at(counts[:, column], bag, 1 / len(bag) if mode == "mean" else 1)
    if mode != "max" or len(set(indices)) == 9:
        near(grad, counts)


def test_weighted_bags_and_what_they_refuse():
    table, indices = array(4, 2), wg.tensor([[0, 1], [2, 3]])
    weights = wg.tensor([[1.0, 2.0], [3.0, 4.0]])
    got = nn.embedding_bag(indices, table, mode="sum", per_sample_weights=weights)
    near(got, np.einsum("bn,bnd->bd", weights.numpy(), table.numpy()[indices.numpy()]))
    for call, words in [
        (lambda: nn.embedding_bag(indices, table, mode="prod"), "mode must be"),
        (lambda: nn.embedding_bag(indices, table, per_sample_weights=weights), "of mode 'sum'"),
        (lambda: nn.embedding_bag(indices[0], table), r"\(2,\) and no offsets"),
        (lambda: nn.EmbeddingBag(4, 2, mode="prod"), "mode must be"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_unflatten():
    x = array(2, 6, 3)
    same(nn.Unflatten(1, (2, -1))(x), x.reshape(2, 2, 3, 3))
    same(nn.Unflatten(-1, (3, 1))(x), x.reshape(2, 6, 3, 1))
    with pytest.raises(wg.ShapeError, match="size 6 does not divide"):
        nn.Unflatten(1, (4, -1))(x)
    with pytest.raises(IndexError, match="rank 3"):
        nn.Unflatten(3, (4, -1))(x)
