"""Devices: every op of the table on the reference, transfers, and what works there as on the CPU.

The reference keeps its values behind buffers of its own, so whatever reads host memory in their
place fails here by name. `test_devices_mixed.py` has the refusals of tensors of two devices.
"""

import copy
import pickle

import numpy as np
import pytest
from test_modes import program_of
from test_ops_gradients import OPS as DIFFERENTIABLE
from test_ops_gradients import directions_like, scalar_of, setup
from test_ops_values import OPS, samples

import wengert as wg
from wengert import nn, optim

from modes import Modes, bits
from support import dtypes_of, label

REF, CPU = wg.device("reference"), wg.device("cpu")
MIXED = "(?s)reference.*cpu|cpu.*reference"


def leaves(result):
    return [x for x in wg.pytree.flatten(result)[0] if isinstance(x, wg.Tensor)]


def home(x):
    """A tensor as NumPy's, for which devices are left."""
    x = x.detach().to("cpu")
    return (x.astype(wg.float32) if x.dtype == wg.bfloat16 else x).numpy()


EPS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}


def assert_near(got, want, terms=64):
    """The same but for the order in which up to `terms` products are summed, and rounding after."""
    assert got.dtype == want.dtype and got.shape == want.shape
    eps = EPS.get(str(want.dtype))
    a, b = home(got), home(want)
    if eps is None:
        np.testing.assert_array_equal(a, b)
        return
    finite = np.abs(b[np.isfinite(b)].astype(float))
    atol = terms * eps * max(1.0, finite.max(initial=0.0))
    np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=terms * eps, atol=atol)


def on(device, values):
    return [x.detach().to(device) for x in values]


@pytest.mark.parametrize("op", OPS, ids=label)
def test_every_op_on_the_reference(op):
    """Its results lie there, are those of the CPU within rounding, and the same bits in a compiled
    function and a session of that device."""
    for sample in samples(op):
        dtypes = dtypes_of(op, sample)
        dtype = "float32" if "float32" in dtypes else dtypes[-1]
        program, values = program_of(op, sample, dtype)
        with wg.default_device(REF):
            moved = on(REF, values)
            got = program(*moved)
            compiled = wg.compile(program)(*moved)
            ran = Modes(program).run("session", *moved)
        want = program(*values)
        assert all(x.device == REF for x in leaves((got, compiled, ran))), f"{label(op)}({sample})"
        for x, y in zip(leaves(got), leaves(want), strict=True):
            assert_near(x, y)
        back = [wg.pytree.map(lambda x: x.to("cpu"), result) for result in (got, compiled, ran)]
        assert bits(back[1]) == bits(back[0]) and bits(back[2]) == bits(back[0])


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=label)
def test_gradients_on_the_reference(op):
    """By the tape and by transforms: they lie there, and are those of the CPU within rounding."""
    for sample in samples(op)[:2]:
        call, values = setup(op, sample)
        here = [wg.tensor(x, requires_grad=True) for x in values]
        if not call(*here):
            continue
        f, ways = scalar_of(call, label(op)), directions_like(values, "v")
        there = [wg.tensor(x, requires_grad=True, device=REF) for x in values]
        aim = {CPU: ways, REF: [w.to(REF) if isinstance(w, wg.Tensor) else w for w in ways]}

        def along(xs, f=f, aim=aim):
            with wg.default_device(xs[0].device):
                first = wg.gradients(f(*xs), xs, create_graph=True, allow_unused=True)
                total = 0.0 * xs[0].sum()
                for g, w in zip(first, aim[xs[0].device], strict=True):
                    total = total if g is None else total + (g * w).sum()
                second = wg.gradients(total, xs, allow_unused=True)
            pairs = zip(xs * 2, first + second, strict=True)
            return [wg.zeros_like(x) if g is None else g for x, g in pairs]

        for x, y in zip(along(there), along(here), strict=True):
            assert x.device == REF
            assert_near(x, y, 1 << 12)


def test_numbers_and_arrays_go_to_the_tensor():
    x = wg.ones((2, 3), device=REF)
    a = np.arange(3, dtype="f")
    for y in (x + 1, 2.0 * x, x + a, a + x, x / a, x @ a, x == a, wg.concat([x, a[None]]),
              wg.where(x > 0, a, 0.0), wg.maximum(a, x), x[:, np.array([0, 2])], x**a):
        assert y.device == REF
    x[0] = a
    x += a
    x[:, [1]] = 5.0
    x[np.array([False, True])] = a
    assert x.device == REF
    np.testing.assert_array_equal(home(x), [[0, 5, 4], [0, 1, 2]])
    assert x[1, 2].item() == 2.0 and x.tolist()[0] == [0.0, 5.0, 4.0]
    assert bool(x[0, 1] == 5.0) and float(x[0, 1]) == 5.0 and int(x[0, 1].astype(wg.int64)) == 5
    assert repr(x[0]) == 'tensor([0., 5., 4.], device="reference")'


def test_an_update_keeps_the_device():
    x = wg.zeros(3, device=REF)
    w = wg.zeros(3, device=REF, requires_grad=True)
    for tensor in (x, w):
        with wg.no_grad():
            tensor[...] = 1.0
            tensor += 1.0
            tensor *= np.full(3, 2, "f")
        assert tensor.device == REF and tensor.tolist() == [4.0] * 3
        with wg.no_grad():
            tensor.assign([1.0, 2.0, 3.0])
        assert tensor.device == REF and tensor.tolist() == [1.0, 2.0, 3.0]


def test_names_and_objects():
    assert str(REF) == "reference" and REF.type == "reference"
    assert pickle.loads(pickle.dumps(REF)) == REF and hash(REF) != hash(CPU)
    assert wg.device(REF) == REF and repr(REF) == 'device("reference")'
    with pytest.raises(wg.DeviceError, match=r"tpu.*cpu(,| and) reference"):
        wg.zeros(2, device="tpu")
    info = wg.__array_namespace_info__()
    assert info.default_device() == CPU


def test_the_default_device():
    with wg.default_device("reference") as device:
        assert device == REF and wg.__array_namespace_info__().default_device() == REF
        made = [wg.zeros(2), wg.tensor([1.0]), wg.asarray(np.ones(2)), wg.arange(3), wg.eye(2),
                wg.random.normal((2,)), wg.random.key(0), wg.linspace(0, 1, 3), wg.full(2, 1.0)]
        with wg.default_device("cpu"):
            made_here = wg.zeros(2), wg.random.normal((2,))
        layers = [nn.Linear(2, 2), nn.BatchNorm2d(2), nn.LSTM(2, 2), nn.Embedding(3, 2)]
        of_others = wg.zeros_like(made_here[0]), made_here[0] + 1, wg.asarray(made_here[0])
    assert all(x.device == REF for x in made)
    assert all(x.device == CPU for x in (*made_here, *of_others, wg.zeros(2)))
    for layer in layers:
        assert all(p.device == REF for p in [*layer.parameters(), *layer.buffers()])
    with pytest.raises(ValueError), wg.default_device(REF):
        raise ValueError
    assert wg.zeros(2).device == CPU


def test_random_numbers_depend_on_the_key_alone():
    key = wg.random.key(7)
    here = wg.random.normal((5,), key=key)
    there = wg.random.normal((5,), key=key, device=REF)
    assert there.device == REF
    assert_near(there, here)
    wg.random.seed(3)
    here = nn.dropout(wg.ones(50), 0.5)
    wg.random.seed(3)
    there = nn.dropout(wg.ones(50, device=REF), 0.5)
    assert there.device == REF and there.tolist() == here.tolist()


def test_a_transfer_is_differentiable():
    x = wg.tensor([1.0, 2.0], requires_grad=True)
    y = x.to(REF)
    assert y.device == REF and y.requires_grad and x.to("cpu") is x and y.to(REF) is y
    z = (y * y).cpu() * x
    (g,) = wg.gradients(z.sum(), [x], create_graph=True)
    assert g.device == CPU and g.tolist() == [3.0, 12.0]
    (h,) = wg.gradients(g.sum(), [x])
    assert h.device == CPU and h.tolist() == [6.0, 12.0]
    assert x.to(REF, wg.float64).dtype == wg.float64 and x.to(wg.float64).device == CPU
    assert x.astype(wg.float64, device=REF).device == REF and x.to_device(REF).device == REF
    assert wg.asarray(x, device=REF).requires_grad and not wg.tensor(x, device=REF).requires_grad
    with wg.no_grad():
        assert not x.to(REF).requires_grad


def test_a_copy_shares_nothing():
    a = np.arange(4, dtype="f")
    x = wg.asarray(a, device=REF)
    back = x.to("cpu")
    a[:] = 9
    assert x.tolist() == back.tolist() == [0, 1, 2, 3]
    back += 1.0
    assert x.tolist() == [0, 1, 2, 3]


def test_what_needs_the_bytes_of_the_host():
    x = wg.arange(3.0, device=REF)
    shared = (lambda: memoryview(x), lambda: x.__dlpack__(), lambda: x.__dlpack_device__(),
              lambda: np.from_dlpack(x))
    for share in shared:
        with pytest.raises(wg.DeviceError, match=r"reference.*to\("):
            share()
    assert x.numpy().tolist() == np.asarray(x).tolist() == [0, 1, 2]
    assert wg.from_dlpack(x).device == REF
    for again in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert again.device == REF and again.tolist() == [0, 1, 2]
    assert [int(i) for i in x] == [0, 1, 2] and 2.0 in x and f"{x[1]:.1f}" == "1.0"
    assert [i.device for i in wg.nonzero(x)] == [REF] and x[x > 0].tolist() == [1, 2]
    wg.testing.assert_close(x, np.arange(3, dtype="f"))


def test_saved_values_come_back_to_the_cpu(tmp_path):
    wg.save({"x": wg.arange(3.0, device=REF)}, tmp_path / "x.safetensors")
    x = wg.load(tmp_path / "x.safetensors")["x"]
    assert x.device == CPU and x.tolist() == [0, 1, 2]


def test_modules_move():
    wg.random.seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 2))
    x = wg.random.normal((5, 3))
    want = model(x)
    assert model.to(REF) is model
    assert all(t.device == REF for t in [*model.parameters(), *model.buffers()])
    with pytest.raises(wg.DeviceError, match=MIXED):
        model(x)
    model.train(True)
    assert_near(model(x.to(REF)), want)
    state = {name: t.to("cpu") for name, t in model.state_dict().items()}
    model.load_state_dict(state)
    assert all(t.device == REF for t in model.parameters())
    assert model.to("cpu", wg.float64)[0].weight.dtype == wg.float64
    assert model[0].weight.device == CPU


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize(
    "optimizer", [lambda p: optim.SGD(p, 0.1, momentum=0.9), lambda p: optim.Adam(p, 0.1)]
)
def test_training(mode, optimizer):
    results = []
    for device in (CPU, REF):
        wg.random.seed(1)
        layers = nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2)
        model = nn.Sequential(*layers).to(device)
        opt = optimizer(model.parameters())
        x, t = wg.random.normal((16, 3)).to(device), (wg.arange(16) % 2).to(device)

        def step(x, t, model=model, opt=opt):
            opt.zero_grad()
            loss = nn.cross_entropy(model(x), t)
            loss.backward()
            optim.clip_grad_norm(model.parameters(), 1.0)
            opt.step()
            return loss

        run = wg.compile(step) if mode == "compiled" else step
        losses = [run(x, t) for _ in range(4)]
        assert all(y.device == device for y in [*losses, *model.parameters()])
        results.append([y.item() for y in losses])
        again = optimizer(model.parameters())
        again.load_state_dict(opt.state_dict())
    np.testing.assert_allclose(*results, rtol=1e-4)
    assert results[0][-1] < results[0][0]


def test_a_captured_function_is_traced_for_each_device():
    f = wg.compile(lambda x: (x * 2.0).sum() + wg.zeros_like(x)[0])
    for device in (CPU, REF, CPU, REF):
        y = f(wg.arange(3.0, device=device))
        assert y.device == device and y.item() == 6.0
    made = wg.compile(lambda: wg.arange(3.0) * 2.0)
    for device in (CPU, REF, CPU, REF):
        with wg.default_device(device):
            assert made().device == device
    w = wg.ones(3, device=REF)
    assert wg.compile(lambda: w * 2.0)().device == REF
    assert wg.compile(lambda x: nn.dropout(x, 0.5))(w).device == REF


def test_a_compiled_function_moves_what_it_returns():
    """Its results lie where the function moved them, with the gradients of eager code."""

    def f(x, w):
        y = (x * w).exp()
        return y.to(REF), y, x.to(REF), (y + 1.0).to(REF).to("cpu") * 2.0

    x = wg.random.normal((3,))
    for wants in (False, True):
        w = wg.tensor([0.5, -1.0, 2.0], requires_grad=wants)
        found = {}
        for name, run in (("eager", f), ("compiled", wg.compile(f))):
            for _ in range(2):
                w.grad = None
                results = run(x, w)
                if wants:
                    seed = wg.tensor([1.0, 2.0, 3.0], device=REF)
                    results[0].backward(seed, retain_graph=True)
                    results[3].sum().backward()
            grad = home(w.grad).tolist() if wants else None
            devices = [y.device for y in results]
            found[name] = devices, [home(y).tolist() for y in results], grad
        assert found["eager"] == found["compiled"]
        assert found["eager"][0] == [REF, CPU, REF, CPU]


def test_a_compiled_function_that_moves_results_still_updates():
    total = wg.zeros(2)

    @wg.compile
    def add(x):
        nonlocal total
        total += x
        return total.to(REF)

    for i in range(3):
        assert add(wg.ones(2)).tolist() == [i + 1.0] * 2
    assert total.tolist() == [3.0] * 2 and total.device == CPU


def test_the_text_of_a_graph_says_its_device():
    graphs = {}
    for device in (CPU, REF):
        with wg.Graph(device=device) as graph:
            wg.placeholder("x", (2,)) + 1.0
        graphs[device] = graph
        for other in (CPU, REF):
            with wg.default_device(other):
                read = wg.parse_graph(str(graph))
                again = pickle.loads(pickle.dumps(graph))
            assert read == graph == again and read.device == again.device == device
    assert graphs[CPU] != graphs[REF]
    assert str(graphs[REF]) == "device reference\n" + str(graphs[CPU])
    for text in ("device tpu\nreturn", "device\nreturn", "device cpu\ndevice cpu\nreturn"):
        with pytest.raises(wg.GraphError, match="parse_graph"):
            wg.parse_graph(text)
    captured = wg.compile(lambda x: x * 2.0)
    captured(wg.ones(2, device=REF))
    assert captured.graph(wg.ones(2, device=REF)).device == REF


def test_what_is_written_to_a_variable_may_be_data():
    with wg.Graph(device=REF) as graph:
        v = wg.Variable(wg.zeros(2, device=REF))
        new = v.assign(np.array([1.0, 2.0], "f"))
    assert wg.Session(graph).run(new).tolist() == [1.0, 2.0]


def test_sessions():
    with wg.Graph(device=REF) as graph:
        p = wg.placeholder("p", (None,))
        count = wg.Variable(0.0)
        total = count.assign_add((p * wg.asarray([1.0], device=REF)).sum())
        noise = wg.random.uniform((2,), device=REF)
        with pytest.raises(wg.DeviceError, match=MIXED):
            p + wg.ones(3)
    assert graph.device == p.device == REF and wg.Graph().device == CPU
    session = wg.Session(graph)
    for feed in (np.ones(2, "f"), [1.0, 1.0], wg.ones(2, device=REF)):
        value, drawn = session.run([total, noise], {p: feed})
        assert value.device == drawn.device == REF
    assert value.item() == 6.0
    with pytest.raises(wg.DeviceError, match=MIXED):
        session.run(total, {p: wg.ones(2)})
    assert session.run(count).item() == 6.0
    with wg.Graph(device=REF) as graph:
        y = wg.placeholder("x", (2,)).exp() + 1.0
    for derived in (graph.optimize(y), copy.copy(graph)):
        assert derived.device == REF


def test_control_flow_and_transforms():
    x = wg.arange(1.0, 5.0, device=REF)
    results = {
        "cond": wg.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x),
        "cond of a bool": wg.cond(True, lambda x: x * 2, lambda x: x - 1, x),
        "switch": wg.switch(1, [lambda x: x, lambda x: x * x], x),
        "while": wg.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x))[1],
        "fori": wg.fori_loop(0, 3, lambda i, y: y + i, x),
        "scan": wg.scan(lambda c, v: (c + v, c * v), x[0], x)[1],
        "random": wg.fori_loop(0, 2, lambda i, y: nn.dropout(y, 0.5), x),
        "vmap": wg.vmap(lambda v: v * v + 1)(x),
        "jacobian": wg.jacobian(lambda v: v * v)(x),
        "hessian": wg.hessian(lambda v: (v * v * v).sum())(x),
        "jvp": wg.jvp(lambda v: v * v, (x,), (wg.ones_like(x),)),
        "grad": wg.grad(lambda v: (v * v).sum())(x),
        "vjp": wg.vjp(lambda v: v * v, x)[1](wg.ones_like(x)),
        "grad of scan": wg.grad(
            lambda v: wg.compile(lambda v: wg.scan(lambda c, a: (c * a, c), v[0], v)[0])(v)
        )(x),
    }
    for name, result in results.items():
        assert all(y.device == REF for y in leaves(result)), name
    assert results["fori"].tolist() == [4, 5, 6, 7]
    for mode in (lambda f: f, wg.compile):
        y = mode(lambda x: wg.scan(lambda c, v: (c + v, c * v), x[0], x))(x)
        assert [y[0].item(), y[1].tolist()] == [11.0, [1.0, 4.0, 12.0, 28.0]]
    with pytest.raises(wg.DeviceError, match=MIXED):
        wg.scan(lambda c, v: (c + v, c), wg.zeros(()), x)


def test_errors_and_checks_on_a_device(monkeypatch):
    x, i = wg.arange(3.0, device=REF), wg.asarray([0, 7], device=REF)
    for f in (lambda: x[i], lambda: wg.take(x, i), lambda: wg.compile(lambda x, i: x[i])(x, i)):
        with pytest.raises(IndexError, match="7"):
            f()
    with pytest.raises(wg.Error, match="log"), wg.check_finite():
        (x - 1.0).log()
    with wg.profile() as profile:
        (x + 1.0).exp()
    assert any(event["name"] == "exp" for event in profile.events)
    wg.compile(lambda x: wg.check(x >= 0, "negative"))(x)


@pytest.fixture
def deferred():
    before = wg._core._defer(True)
    yield
    wg._core._defer(before)


def test_work_in_flight(deferred):
    """Ops return before they ran; what they refuse comes at the next wait, and only there."""
    a = np.arange(6, dtype="f").reshape(2, 3)
    x = wg.asarray(a, device=REF)
    w = wg.tensor(a, device=REF, requires_grad=True)
    y = nn.softmax((x * 2.0).exp().log() @ wg.matrix_transpose(x), axis=-1)
    (w * w).sum().backward()
    a[:] = 0
    i = wg.asarray([5], device=REF)
    bad = wg.take(x[0], i) + 1.0  # nothing is raised here
    np.testing.assert_allclose(home(y).sum(axis=-1), [1, 1], rtol=1e-6)
    assert w.grad.tolist() == [[0, 2, 4], [6, 8, 10]]
    for _ in range(2):
        with pytest.raises(IndexError, match="5"):
            bad.tolist()
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    for _ in range(20000):
        x = x + 1.0  # a long queue is no deep recursion
    assert x[0, 0].item() == 20000.0


@pytest.mark.parametrize("device", [CPU, REF], ids=str)
def test_constants_of_a_graph_keep_their_values_when_their_tensors_are_gone(device):
    """A tensor made later may lie at the address of one that is gone."""
    with wg.Graph(device=device) as graph:
        x = wg.placeholder("x", (2,))
    results = []
    for i in range(100):
        value = wg.tensor([float(i), 1.0], device=device)
        with graph:
            results.append(x + value)
        del value
    with wg.Session(graph) as session:
        got = session.run(results, {x: wg.zeros(2, device=device)})
    assert [y.tolist() for y in got] == [[float(i), 1.0] for i in range(100)]
