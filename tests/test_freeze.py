"""`wg.compile(f, freeze=True)`: constants are worked into what reads them. Values are those of the
function itself within rounding; the frozen graph keeps its bits in every mode."""

import copy
import gc
import pickle

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim

from support import array, generator


def normal(*shape, seed=0, dtype="float64"):
    return array(*shape, seed=seed, dtype=dtype)


def leaf(x):
    return wg.tensor(x.numpy(), requires_grad=True)


def settled(model, dtype=wg.float64):
    """The model in evaluation, in a dtype, with statistics and parameters that are not those of the
    start."""
    for i, (name, t) in enumerate([*model.named_parameters(), *model.named_buffers()]):
        x = generator("settled", i).standard_normal(t.shape) * 0.5
        if name.endswith("num_batches_tracked"):
            continue
        if name.endswith("running_var"):
            x = np.abs(x) + 0.1
        with wg.no_grad():
            t.assign(wg.asarray(x).astype(t.dtype))
    return model.to(dtype).eval()


def ops(f, *args, **options):
    return [node.op for node in f.graph(*args, **options).nodes]


def assert_near(got, want, rtol=1e-12):
    got, want = got.detach().numpy(), want.detach().numpy()
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


def frozen_is_near(f, *args, rtol=1e-12):
    """The frozen function, whose results are those of the function itself within rounding."""
    frozen = wg.compile(f, freeze=True)
    with wg.no_grad():
        want = f(*args)
        assert_near(frozen(*args), want, rtol)
        assert_near(frozen(*args), want, rtol)
    return frozen


# What is worked into constants.

FOLDED = {
    "conv1d": (lambda: [nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6)], (2, 3, 9)),
    "conv2d": (lambda: [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)], (2, 3, 7, 7)),
    "conv2d without bias": (
        lambda: [nn.Conv2d(3, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6)], (2, 3, 7, 7)),
    "conv3d": (lambda: [nn.Conv3d(2, 4, 2), nn.BatchNorm(4)], (1, 2, 4, 4, 4)),
    "groups": (lambda: [nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)], (2, 4, 7, 7)),
    "depthwise": (
        lambda: [nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.BatchNorm2d(6)], (2, 6, 7, 7)),
    "transposed": (
        lambda: [nn.ConvTranspose2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)], (2, 3, 5, 5)),
    "transposed groups": (
        lambda: [nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)], (2, 4, 5, 5)),
    "linear": (lambda: [nn.Linear(5, 6), nn.BatchNorm1d(6)], (4, 5)),
    "linear without bias": (lambda: [nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6)], (4, 5)),
    "twice": (
        lambda: [nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.BatchNorm2d(6)], (2, 3, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDED)
def test_batch_norm_goes_into_the_weights_before_it(case):
    make, shape = FOLDED[case]
    model = settled(nn.Sequential(*make(), nn.ReLU()))
    frozen = frozen_is_near(model, normal(*shape))
    found = ops(frozen, normal(*shape))
    assert not {"multiply", "subtract", "rsqrt", "divide"} & set(found)
    assert found.count("add") == 1
    assert "batch_norm" in ops(frozen, normal(*shape), optimized=False)


@pytest.mark.parametrize("case", ["conv2d", "depthwise", "linear", "transposed groups"])
def test_float32_is_near_too(case):
    make, shape = FOLDED[case]
    model = settled(nn.Sequential(*make()), wg.float32)
    frozen_is_near(model, normal(*shape, dtype="float32"), rtol=1e-5)


def test_scales_of_scores_go_into_the_weights_of_queries():
    w = {k: normal(8, 8, seed=i) for i, k in enumerate("qkv")}
    b = normal(8, seed=9)

    def heads(x, k):
        return (x @ w[k] + b).reshape((2, 5, 2, 4)).permute_dims((0, 2, 1, 3))

    def before(x):
        scores = (heads(x, "q") * 0.5) @ heads(x, "k").permute_dims((0, 1, 3, 2))
        return nn.softmax(scores, -1) @ heads(x, "v")

    def behind(x):
        scores = heads(x, "q") @ heads(x, "k").permute_dims((0, 1, 3, 2)) / 2.0
        return nn.softmax(scores, -1) @ heads(x, "v")

    for f in (before, behind):
        frozen = frozen_is_near(f, normal(2, 5, 8, seed=5))
        assert "multiply" not in ops(frozen, normal(2, 5, 8))


def test_factors_of_operands_go_into_the_weights():
    mean, std = normal(3, 1, 1), normal(3, 1, 1, seed=1)
    conv = settled(nn.Conv2d(3, 4, 3, padding=1))
    frozen = frozen_is_near(lambda x: conv((x - mean) / std), normal(2, 3, 5, 5))
    assert {"multiply", "divide"}.isdisjoint(ops(frozen, normal(2, 3, 5, 5)))
    up, w, c = settled(nn.ConvTranspose2d(3, 4, 2, groups=1)), normal(5, 6), normal(5, seed=3)
    frozen_is_near(lambda x: up(x * std), normal(2, 3, 5, 5))
    assert "multiply" not in ops(frozen_is_near(lambda x: (x * c) @ w, normal(4, 5)), normal(4, 5))
    two = normal(2, 5, 6)
    each = normal(2, 1, 1, seed=7)
    frozen = frozen_is_near(lambda x: (x @ two) * each, normal(2, 4, 5))
    assert "multiply" not in ops(frozen, normal(2, 4, 5))


def test_summands_are_joined_and_order_of_operands_does_not_matter():
    w, a, b, c = normal(5, 6), normal(6, seed=1), normal(6, seed=2), normal(6, seed=3)
    for f in (
        lambda x: c * (b + (x @ w - a)),
        lambda x: ((x @ w) * c + a) + b,
        lambda x: b + (a + (x @ w)) / c,
    ):
        found = ops(frozen_is_near(f, normal(4, 5)), normal(4, 5))
        assert found.count("add") == 1 and "multiply" not in found and "divide" not in found


def test_what_somebody_else_reads_stays():
    w, c = normal(5, 6), normal(6, seed=1)

    def f(x):
        y = x @ w
        return y * c + y.exp()

    assert "multiply" in ops(frozen_is_near(f, normal(4, 5)), normal(4, 5))
    g = wg.compile(lambda x: ((y := x @ w), y * c), freeze=True)
    y, z = g(normal(4, 5))
    assert_near(y * c, z)


def test_factors_that_are_not_finite_stay():
    w = normal(5, 6)
    for c in (np.inf, np.nan, 1e300):
        factor = wg.asarray(np.r_[1.0, c, 2.0, 3.0, 4.0, 5.0])
        big = w * 1e10
        f = wg.compile(lambda x, c=factor, w=big: (x @ w) * c, freeze=True)
        x = normal(4, 5)
        np.testing.assert_array_equal(f(x).numpy(), ((x @ big) * factor).numpy())
        assert "multiply" in ops(f, x)


def test_what_follows_from_constants_is_computed_once():
    table, w = normal(600, 64), normal(64, 300, seed=1)
    rows = wg.asarray(np.arange(0, 600, 2))
    frozen = frozen_is_near(lambda x: x @ (table[rows].tanh() @ w).T, normal(2, 300))
    assert sorted(ops(frozen, normal(2, 300))) == ["constant", "input", "matmul"]
    # What would be much larger than what it comes from is left for the run.
    a, b = normal(4096, 1), normal(1, 4096)
    wide = wg.compile(lambda x: (a + b) * x, freeze=True)
    assert "add" in ops(wide, normal(1))


def test_constants_reach_the_bodies_of_control_flow():
    w, b = normal(4, 4), normal(4, seed=1)

    def f(x):
        start = wg.zeros((4,), dtype=wg.float64)
        return wg.scan(lambda h, t: ((h @ (w * 0.5) + t * b).tanh(),) * 2, start, x)[1]

    frozen = frozen_is_near(f, normal(7, 4))
    (scan,) = (node for node in frozen.graph(normal(7, 4)).nodes if node.op == "scan")
    assert "constant" in str(frozen.graph(normal(7, 4)))
    assert len(scan.inputs) == 2


# The frozen graph.


def model_and_input(dtype="float32"):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 36, 5), nn.BatchNorm1d(5),
    )  # fmt: skip
    return settled(model, getattr(wg, dtype)), normal(4, 3, 6, 6, dtype=dtype)


def test_without_the_pass_bits_are_those_of_the_function():
    model, x = model_and_input()
    with wg.config(passes={"freeze": False}):
        f = wg.compile(model, freeze=True)
        assert f(x).tolist() == model(x).tolist()
    frozen = wg.compile(model, freeze=True)
    assert [p.name for p in frozen.graph(x).passes][:2] == ["freeze", "expand"]
    text = str(frozen.explain(x))
    assert "pass freeze" in text and "constants: " in text and "0 tensors reached" in text


@pytest.mark.parametrize("check", [True, "reference"])
def test_the_graph_keeps_its_bits(check):
    model, x = model_and_input()
    frozen = wg.compile(model, freeze=True)
    want = frozen(x).tolist()
    with wg.config(check=check):
        checked = wg.compile(model, freeze=True)
        for _ in range(3):
            assert checked(x).tolist() == want
    with wg.no_grad():
        assert wg.compile(model, freeze=True)(x).tolist() == want
    with wg.config(passes={"fuse": False}):
        assert wg.compile(model, freeze=True)(x).tolist() == want
    # Through which gradients flow, the same list runs.
    assert frozen(leaf(x)).tolist() == want
    # As a graph, as text, and node by node.
    graph = frozen.graph(x)
    back = wg.parse_graph(str(graph))
    assert back == graph
    assert wg.Session(back).run(back.outputs[0], {back.inputs[0]: x}).tolist() == want
    assert frozen.interpreter(x).finish()[0].tolist() == want


def test_several_sizes_and_rows_alone():
    model, _ = model_and_input()
    frozen = wg.compile(model, freeze=True)
    x = normal(9, 3, 6, 6, dtype="float32")
    want = frozen(x).tolist()
    for n in (1, 2, 5, 9):
        assert frozen(x[:n]).tolist() == want[:n]
    assert frozen.traces == 2
    n = wg.Dim("n")
    declared = wg.compile(model, signature=[wg.Spec((n, 3, 6, 6))], freeze=True)
    assert declared(x).tolist() == want and declared.traces == 1


def test_control_flow_functions_and_calls():
    w = normal(5, 5)

    def f(x):
        y = x @ w * 2.0
        return wg.cond(y.sum() > 0, lambda: y @ w, lambda: y * 3.0)

    for seed in (0, 1, 2):
        frozen_is_near(f, normal(5, 5, seed=seed))


@pytest.mark.parametrize("make", [
    lambda: nn.LSTM(4, 6), lambda: nn.MultiHeadAttention(8, 2), lambda: nn.LayerNorm(4),
    lambda: nn.Embedding(9, 4), lambda: nn.GroupNorm(2, 4)])  # fmt: skip
def test_other_layers(make):
    model = settled(make())
    ids = isinstance(model, nn.Embedding)
    wide = 8 if isinstance(model, nn.MultiHeadAttention) else 4
    x = wg.asarray([[1, 2], [8, 0]]) if ids else normal(3, wide, wide)

    def f(x):
        y = model(x)
        return y[0] if isinstance(y, tuple) else y

    frozen_is_near(f, x)


# Changes.


def test_a_tensor_with_another_value_makes_a_new_trace():
    model, x = model_and_input()
    frozen = wg.compile(model, freeze=True)
    frozen(x)
    with wg.no_grad():
        model[0].weight[0] = 0.0
    assert_near(frozen(x), model(x), 1e-5)
    assert frozen.traces == 2 and "another value" in frozen.explain().traces[-1].reason
    state = {k: v * 0.5 + 0.25 for k, v in model.state_dict().items() if v.dtype.is_floating}
    model.load_state_dict(state, strict=False)
    assert_near(frozen(x), model(x), 1e-5)
    for _ in range(4):
        frozen(x)
    assert frozen.traces == 3 and len(frozen.explain().traces) == 1
    thrash = wg.compile(model, freeze=True, limit=2)
    with pytest.raises(wg.CaptureError, match="another value"), wg.no_grad():
        for _ in range(3):
            thrash(x)
            model[0].bias *= 2.0


def test_traces_of_other_values_leave_with_their_memory():
    w = nn.Parameter(wg.ones((512, 512)))
    frozen = wg.compile(lambda x: x @ (w * 2.0).exp(), freeze=True)
    x = wg.ones((1, 512))
    frozen(x)
    gc.collect()
    before = wg.memory_stats()["live_bytes"]
    for _ in range(5):
        with wg.no_grad():
            w.assign(w + 1.0)
        frozen(x)
    gc.collect()
    assert wg.memory_stats()["live_bytes"] <= before + (1 << 20)


def test_constants_are_not_written_over():
    w = nn.Parameter(normal(6, 6, dtype="float32"))
    frozen = wg.compile(lambda x: x @ w, freeze=True)
    x = normal(2, 6, dtype="float32")
    first = frozen(x).tolist()
    opt = optim.SGD([w], lr=0.5)
    (x @ w).sum().backward()
    opt.step()
    assert frozen(x).tolist() == (x @ w).tolist() != first


def test_copies_and_pickles_stay_frozen():
    model, x = model_and_input()
    frozen = wg.compile(model, freeze=True)
    want = frozen(x).tolist()
    for other in (copy.copy(frozen), copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
        assert repr(other).startswith("<frozen") and other(x).tolist() == want
        assert other.explain(x).plan is not None and "freeze" in str(other.explain(x))


# Gradients.


def test_gradients_by_inputs_flow_and_parameters_are_constants():
    model, x = model_and_input("float64")
    frozen = wg.compile(model, freeze=True)
    a, b = leaf(x), leaf(x)
    (frozen(a) ** 2).sum().backward()
    (model(b) ** 2).sum().backward()
    assert_near(a.grad, b.grad)
    assert all(p.grad is not None for p in model.parameters())
    model.zero_grad()
    (frozen(a) ** 2).sum().backward()
    assert all(p.grad is None for p in model.parameters())
    assert not frozen(x).requires_grad
    with pytest.raises(wg.GradientError):
        frozen(x).sum().backward()
    with pytest.raises(wg.GradientError, match="frozen"):
        wg.gradients(frozen(a).sum(), [model[0].weight])


def test_gradients_of_gradients():
    w, c = normal(4, 4), normal(4, seed=1)

    def f(x):
        return ((x @ w) * c).tanh().sum()

    def penalty(f, x):
        (g,) = wg.gradients(f(x), [x], create_graph=True)
        return wg.gradients((g ** 2).sum(), [x])[0]

    x = leaf(normal(3, 4, seed=2))
    assert_near(penalty(wg.compile(f, freeze=True), x), penalty(f, x))


def test_no_grad_and_detached_parts():
    w = normal(4, 4)

    def f(x):
        with wg.no_grad():
            y = x @ w * 2.0
        return (x * y).sum() + (x.detach() @ w).sum()

    frozen, grads = wg.compile(f, freeze=True), []
    for g in (f, frozen):
        x = leaf(normal(4, 4, seed=2))
        g(x).backward()
        grads.append(x.grad)
    assert_near(*grads)


# Refusals.


def test_modules_in_training_mode_are_refused():
    bn = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    with pytest.raises(wg.CaptureError, match=r"BatchNorm1d \(and 1 more modules\).*eval\(\)"):
        wg.compile(bn, freeze=True)(wg.ones((2, 4)))
    drop = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    with pytest.raises(wg.CaptureError, match=r"Dropout is in training mode; call eval\(\)"):
        wg.compile(drop, freeze=True)(wg.ones((2, 4)))
    # Nothing in it depends on the mode.
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    frozen = wg.compile(plain, freeze=True)
    frozen(wg.ones((2, 4)))
    frozen = wg.compile(drop.eval(), freeze=True)
    frozen(wg.ones((2, 4)))
    drop.train()
    with pytest.raises(wg.CaptureError, match="Dropout"):
        frozen(wg.ones((2, 4)))

    class Own(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x

    with pytest.raises(wg.CaptureError, match="Own is in training mode"):
        wg.compile(Own(), freeze=True)(wg.ones(2))


def test_updates_and_gradients_inside_are_refused_by_name():
    class Counter(nn.Module):
        def __init__(self):
            self.count, self.weight = nn.Buffer(wg.zeros(())), nn.Parameter(wg.ones(3))

        def forward(self, x):
            self.count += 1.0
            return x * self.weight

    counter = Counter()
    with pytest.raises(wg.CaptureError, match=r"frozen: it updates Counter\.count"):
        wg.compile(counter, freeze=True)(wg.ones(3))
    assert counter.count.item() == 0.0
    lone = nn.Parameter(wg.ones(3))

    def step(x):
        loss = (x * lone).sum()
        loss.backward()
        return loss

    with pytest.raises(wg.CaptureError, match=r"takes the gradient of a tensor outside, float32"):
        wg.compile(step, freeze=True)(wg.ones(3))
    assert lone.grad is None
    with pytest.raises(TypeError, match="freeze: expected a bool, got int"):
        wg.compile(step, freeze=1)


def test_arguments_may_be_updated_and_random_numbers_drawn():
    w = normal(3, 3)

    @wg.compile(freeze=True)
    def f(x, total):
        total += (x @ w).sum()
        return x + wg.random.normal(x.shape) * 0.0

    total, x = wg.zeros((), dtype=wg.float64), normal(2, 3)
    f(x, total)
    f(x, total)
    assert_near(total, (x @ w).sum() * 2.0)
    # A tensor that is an argument and reached by itself is an argument.
    g = wg.compile(lambda x: x @ w, freeze=True)
    assert_near(g(w), w @ w)
    assert_near(g(x), x @ w)
    assert_near(g(w), w @ w)


# Devices and memory.


def test_on_the_reference():
    model, x = model_and_input()
    want = wg.compile(model, freeze=True)(x)
    there = copy.deepcopy(model).to("reference")
    frozen = wg.compile(there, freeze=True)
    y = frozen(x.to("reference"))
    assert str(y.device) == "reference"
    assert_near(y.to("cpu"), want, 1e-5)
    assert {"multiply", "rsqrt"}.isdisjoint(ops(frozen, x.to("reference")))


def test_on_a_gpu(gpu):
    model, x = model_and_input()
    want = wg.compile(model, freeze=True)(x)
    frozen = wg.compile(copy.deepcopy(model).to("gpu"), freeze=True)
    assert_near(frozen(x.to("gpu")).to("cpu"), want, 1e-4)


def test_a_steady_call_allocates_its_results_alone():
    model, x = model_and_input()
    frozen = wg.compile(model, freeze=True)
    y = frozen(x)
    stats = wg.memory_stats()
    for _ in range(20):
        y = frozen(x)
    after = wg.memory_stats()
    assert after["live_bytes"] == stats["live_bytes"]
    assert after["peak_bytes"] <= stats["peak_bytes"] + y.nbytes
