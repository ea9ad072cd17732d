"""Programs for WebGPU: exported without a GPU, saved, loaded, and played through wgpu-py against
the CPU. Files are changed in all ways, and refused."""

import contextlib
import json
import random
import re
from pathlib import Path

import adapter as adapters
import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim, webgpu
from wengert.webgpu import _sizes

from support import missing

rng = np.random.default_rng(0)
N = wg.Dim("n")


@pytest.fixture(scope="module")
def adapter():
    found = adapters.start()
    if isinstance(found, str):
        missing(found)
    yield found
    found.close()


def normal(*shape):
    return rng.standard_normal(shape).astype("f")


def perform(adapter, tmp_path, program, *calls):
    """The outputs of calls of a program that was saved and loaded."""
    program.save(tmp_path / "p.wgprog")
    calls = [("arrays", call, None) if isinstance(call, tuple) else call for call in calls]
    calls = [tuple(call) if isinstance(call, list) else call for call in calls]
    return adapter.perform(tmp_path / "p.wgprog", calls)


def assert_near(got, want, rtol=3e-4, atol=3e-5):
    assert len(got) == len(want), got
    for g, w in zip(got, want, strict=True):
        w = w.numpy() if isinstance(w, wg.Tensor) else w
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=rtol, atol=atol)


W, B = wg.asarray(normal(16, 8)), wg.asarray(normal(8))


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def attention():
    def f(x):
        q = (x @ W).reshape(x.shape[0], 3, 2, 4).permute_dims((0, 2, 1, 3))
        return nn.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True)

    return f


def conv_net():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(4 * 5 * 5, 10))


FUNCTIONS = {
    "mlp": (mlp, (16,)),
    "softmax": (lambda: lambda x: nn.softmax(nn.gelu(x @ W), axis=-1), (16,)),
    "layer norm": (lambda: lambda x: nn.layer_norm(x @ W + B, axis=-1), (16,)),
    "attention": (attention, (3, 16)),
    "conv net": (conv_net, (1, 12, 12)),
    "views": (lambda: lambda x: x[:, ::-1][:, 1:].T.reshape(-1)[:7] * 2 + x.mean(), (16,)),
    "a view is a result": (lambda: lambda x: (x.T, x.T, x[1:], x + 1, x), (3, 5)),
    "integers": (lambda: lambda x: (x.argmax(axis=1), (x * 10).astype(wg.int8) // 3,
                                    (x > 0).astype(wg.int64) * 3), (5,)),
    "halves": (lambda: lambda x: (x.astype(wg.float16) * 3).exp(), (5,)),
    "sorted": (lambda: lambda x: (wg.sort(x, axis=1), wg.cumulative_sum(x, axis=1)), (9,)),
}


@pytest.mark.parametrize("open_", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_gives_what_the_cpu_gives(name, open_, adapter, tmp_path):
    make, shape = FUNCTIONS[name]
    wg.random.seed(0)
    f, x = make(), normal(4, *shape)
    program = webgpu.export(f, wg.Spec((N, *shape)) if open_ else wg.asarray(x))
    calls = [(x,), *((normal(n, *shape),) for n in (2, 11) if open_)]
    for call, got in zip(calls, perform(adapter, tmp_path, program, *calls), strict=True):
        want = f(wg.asarray(call[0]))
        want = want if isinstance(want, tuple) else (want,)
        assert_near(got, want, 2e-3 if name == "halves" else 3e-4)


def training(opt=optim.SGD, **options):
    wg.random.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = opt(model.parameters(), **options)

    @wg.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, model


SPECS = wg.Spec((N, 4)), wg.Spec((N,), wg.int64)


def batches(*sizes):
    return [(normal(n, 4), rng.integers(0, 3, n)) for n in sizes]


@pytest.mark.parametrize("options", [
    {"lr": 0.3}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 1e-2},
    {"opt": optim.Adam, "lr": 0.01}, {"opt": optim.AdamW, "lr": 0.01},
], ids=["sgd", "momentum", "adam", "adamw"])
def test_a_training_step_keeps_its_state(options, adapter, tmp_path):
    step, model = training(**options)
    program = webgpu.export(step, *SPECS)
    before = [p.numpy() for p in model.parameters()]
    calls = batches(16, 16, 5, 1, 16, 33)
    *losses, state = perform(adapter, tmp_path, program, *calls, ["state", (), None])
    assert all((p.numpy() == b).all() for p, b in zip(model.parameters(), before, strict=True))
    want = [(step(*map(wg.asarray, call)),) for call in calls]
    for got, loss in zip(losses, want, strict=True):
        assert_near(got, loss)
    for p in model.parameters():
        assert any(s.shape == p.shape and np.allclose(s, p.numpy(), 1e-3, 1e-4) for s in state)


def test_refused_data_change_no_state_and_name_their_line(adapter, tmp_path):
    step, _ = training(lr=0.3)
    program = webgpu.export(step, *SPECS)
    good, bad = batches(6)[0], (normal(6, 4), np.array([0, 1, 2, 3, 0, 0]))
    for way in ("arrays", "encode"):
        first, before, refused, after, second = perform(
            adapter, tmp_path, program, good, ["state", (), None], [way, bad, {"n": 6}],
            ["state", (), None], good)  # fmt: skip
        assert refused[0] == "BoundsError" and "test_webgpu_export.py" in refused[1], refused
        assert "class 3 is out of range: there are 3 classes" in refused[1]
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a, b)
        assert second[0] < first[0]


@pytest.mark.parametrize("n", [1, 3, 8])
def test_buffers_of_the_caller_are_inputs(n, adapter, tmp_path):
    program = webgpu.export(lambda x, y: x * 2 + y, wg.Spec((N, 3)), wg.Spec((N, 3)))
    x, y = normal(n, 3), normal(n, 3)
    calls = [[way, (x, y), {"n": n}] for way in ("exact", "longer", "one", "encode")]
    exact, longer, one, encoded, outputs = perform(
        adapter, tmp_path, program, *calls[:3], calls[3], ["exact", (x, y), None])
    np.testing.assert_array_equal(exact[0], x * 2 + y)
    np.testing.assert_array_equal(longer[0], x * 2 + y)
    np.testing.assert_array_equal(outputs[0], x * 2 + y)
    np.testing.assert_array_equal(one[0], x * 3)
    np.testing.assert_array_equal(np.frombuffer(encoded[0], "f")[: 3 * n].reshape(n, 3), x * 2 + y)


def test_outputs_are_inputs_of_the_next_run(adapter, tmp_path):
    program = webgpu.export(lambda x: x * 2, wg.Spec((9,)))
    x = normal(9)
    outputs = ["outputs", (), None]
    found = perform(adapter, tmp_path, program, (x,), outputs, outputs)
    for times, got in zip((2, 4, 8), found, strict=True):
        np.testing.assert_array_equal(got[0], x * times)


def test_arguments_in_trees_numbers_and_bfloat16_are_taken(adapter, tmp_path):
    def f(x, k):
        return {"a": x["u"] * 2, "b": [x["v"] + k]}

    u, v = wg.ones(3), wg.ones(2, dtype=wg.bfloat16)
    program = webgpu.export(f, {"u": u, "v": v}, 2.5)
    assert [x.name for x in program.inputs] == ["x['u']", "x['v']"]
    ones = np.full(2, 0x3F80, "uint16")
    (a, b), again = perform(adapter, tmp_path, program, (np.ones(3, "f"), ones),
                            ([1, 1, 1], ones.tolist()))  # fmt: skip
    assert a.tolist() == [2] * 3 and b.dtype == "uint16"
    assert wg._core._from_bytes(wg.bfloat16, (2,), b.tobytes()).tolist() == [3.5] * 2
    np.testing.assert_array_equal(again[1], b)


REFUSED_CALLS = [
    ("arrays", (np.zeros((3, 4)),), None, "DTypeError"),
    ("arrays", (np.zeros((3, 5), "f"),), None, "ShapeError"),
    ("arrays", (np.zeros(3, "f"),), None, "ShapeError"),
    ("arrays", (), None, "ArgumentTypeError"),
    ("arrays", (np.zeros((3, 4), "f"),), {"k": 3}, "ArgumentError"),
    ("arrays", (np.zeros((3, 4), "f"),), {"n": -1}, "ArgumentError"),
    ("arrays", (np.zeros((3, 4), "f"),), {"n": 4}, "ShapeError"),
    ("exact", (np.zeros(5, "f"),), None, "ShapeError"),
    ("exact", (np.zeros(5, "f"),), {"n": 7}, "ArgumentError"),
    ("arrays", (np.zeros((0, 4), "f"),), None, None),
]


def test_calls_that_do_not_fit_are_refused(adapter, tmp_path):
    program = webgpu.export(lambda x: x + 1, wg.Spec((N, 4)))
    found = perform(adapter, tmp_path, program, *[list(call[:3]) for call in REFUSED_CALLS])
    for got, (*call, want) in zip(found, REFUSED_CALLS, strict=True):
        found = None if isinstance(got[0], np.ndarray) else got[0]
        assert found == want, (call, got)
    assert found is None and got[0].shape == (0, 4)


def test_conditions_on_sizes_are_checked(adapter, tmp_path):
    program = webgpu.export(lambda x, y: x + y, wg.Spec((None, 3)), wg.Spec((None, 3)))
    assert program.conditions and len(program.symbols) == 2
    good, bad = perform(adapter, tmp_path, program, (normal(2, 3), normal(2, 3)),
                        (normal(2, 3), normal(1, 3)))  # fmt: skip
    assert good[0].shape == (2, 3) and bad[0] == "ShapeError" and "does not hold" in bad[1], bad


def test_what_shaders_cannot_compute_is_refused_at_once():
    def f(x):
        y = x.astype(wg.float64).exp()
        wg.print("{}", x)
        return y.astype(wg.float32)

    with pytest.raises(wg.DeviceError) as error:
        webgpu.export(f, wg.ones(3))
    text = str(error.value)
    assert "float64" in text and "print" in text and text.count("test_webgpu_export.py") >= 2


def test_what_python_does_beside_tensors_is_refused():
    def update(x):
        x += 1

    with pytest.raises(wg.DeviceError, match="argument 0"):
        webgpu.export(update, wg.ones(3))
    w = wg.ones(3, requires_grad=True)
    with pytest.raises(wg.DeviceError, match="zero_grad"):
        webgpu.export(lambda x: (w * x).sum().backward(), wg.ones(3))
    with pytest.raises(wg.ArgumentError, match="shader-f16"):
        webgpu.export(lambda x: x, wg.ones(3), features=["f16"])
    with pytest.raises(wg.ArgumentError, match="limits"):
        webgpu.export(lambda x: x, wg.ones(3), limits={"buffers": 3})


def test_limits_decide_where_groups_end():
    def f(x):
        ys = [x[i] for i in range(12)]
        return sum(ys[1:], ys[0]) * 2

    def most(program):
        return max(len(d.bind) for d in program.dispatches)

    x = wg.ones((12, 5))
    args = [wg.ones(5) for _ in range(12)]
    few = webgpu.export(lambda *xs: sum(xs[1:], xs[0]), *args)
    many = webgpu.export(lambda *xs: sum(xs[1:], xs[0]), *args,
                         limits={"max-storage-buffers-per-shader-stage": 16})  # fmt: skip
    assert most(few) <= 8 < most(many) and webgpu.export(f, x).dispatches
    with pytest.raises(wg.DeviceError, match="limits"):
        webgpu.export(lambda x: x + 1, wg.ones(1 << 20),
                      limits={"max-storage-buffer-binding-size": 1 << 20})  # fmt: skip


def test_a_program_describes_itself(tmp_path):
    step, _ = training(lr=0.3)
    program = webgpu.export(step, *SPECS)
    assert [x.name for x in program.inputs] == ["x", "y"] and program.symbols == {"n"}
    assert [x.dtype for x in program.inputs] == ["float32", "int64"]
    text = repr(program)
    assert f"{len(program.dispatches)} dispatches" in text and "(n, 4)" in text
    explained = program.explain()
    assert "test_webgpu_export.py" in explained and "@compute" in explained
    program.save(tmp_path / "p")
    assert webgpu.load(tmp_path / "p").explain() == explained
    assert all(d.line is None or "test_webgpu" in d.line for d in program.dispatches)


# Files of strangers.


def changed(value, dice):
    """The same with one thing changed somewhere."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(sorted(value))
        if dice.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        kind = dice.random()
        if kind < 0.05:
            return value[:at] + value[at + 1 :]
        if kind < 0.1:
            return [*value, value[at]]
        return [*value[:at], changed(value[at], dice), *value[at + 1 :]]
    return dice.choice([None, True, -1, 0, 1, 7, 33, 2**31, 2**53, 10**30, 1.5, "", "n", "n*n*n",
                        "m", "n//0", "-n", "(" * 500, "1" * 5000, [], {}, [[]], {"bits": "0"},
                        "exp", "float64", "x" * 100_000])  # fmt: skip


def test_changed_descriptions_are_refused_or_programs(tmp_path, full):
    step, _ = training(lr=0.3, momentum=0.9)
    program = webgpu.export(step, *SPECS)
    tensors, refused, dice = program._tensors, 0, random.Random(0)
    for _ in range(20_000 if full else 1500):
        described = changed(program._described, dice)
        try:
            made = webgpu.Program(json.loads(json.dumps(described)), tensors)
        except wg.ArgumentError:
            refused += 1
            continue
        for d in made.dispatches:
            assert all(0 <= b < len(made.buffers) for b in d.bind) and d.shader < len(made.shaders)
        repr(made), made.explain()
    assert refused > 300


def test_changed_bytes_of_files_are_refused_or_programs(tmp_path, full):
    path, other = tmp_path / "p", tmp_path / "q"
    webgpu.export(lambda x: x @ W, wg.Spec((N, 16))).save(path)
    data, dice = path.read_bytes(), random.Random(1)
    for _ in range(3000 if full else 300):
        piece = bytearray(data)
        for _ in range(dice.randrange(1, 4)):
            piece[dice.randrange(len(piece))] = dice.randrange(256)
        other.write_bytes(piece[: dice.choice([len(piece), dice.randrange(len(piece))])])
        with contextlib.suppress(wg.ArgumentError):
            webgpu.load(other)
    wg.io.save({"a": wg.ones(2)}, other)
    with pytest.raises(wg.ArgumentError, match="not a program"):
        webgpu.load(other)
    with pytest.raises(FileNotFoundError):
        webgpu.load(tmp_path / "nowhere")


def test_json_that_is_too_deep_or_odd_is_refused(tmp_path):
    for text in ("[" * 100_000, '{"version": NaN}', "1" * 10_000, "{", "[]", '{"version": 3}',
                 '{"version": true}'):
        wg.io.save({}, tmp_path / "p", {"wengert.webgpu": text})
        with pytest.raises(wg.ArgumentError, match="not a program"):
            webgpu.load(tmp_path / "p")


SIZES = ["n", "2*n + 3", "(n + 3)//4", "max(32, 32*((n + 7)//8))", "-(n*2) % 7", "min(n, m) - 1",
         "n*n*m - m", "(n % 3)*2", "-n + 50"]


@pytest.mark.parametrize("text", SIZES)
def test_sizes_are_read_as_python_reads_them(text):
    for n in (0, 1, 7, 1000):
        assert _sizes.Size(text).at({"n": n, "m": 5}) == eval(text, {"n": n, "m": 5})


@pytest.mark.parametrize("text", ["", "n +", "(n", "n)", "n n", "2n", "n**2", "n/2", "min(n)",
                                  "a.b", "n; m", "max(1, 2, 3)", "__import__('os')", "n" * 65,
                                  "+" * 9, "(" * 33 + "n" + ")" * 33, "-" * 40 + "n",
                                  "1" * 17, "n\n"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(wg.ArgumentError):
        _sizes.Size(text)


def test_sizes_beyond_what_floats_hold_are_refused():
    for text in ("n*n*n", "n//(n - n)", "n % 0"):
        with pytest.raises(wg.ShapeError):
            _sizes.Size(text).at({"n": 1 << 20})


DTYPES = ["float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint32", "int64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_round_as_casts_do(dtype):
    from wengert.webgpu._numbers import bits_of

    values = [0.0, -0.0, 1.0, -1.5, 1 / 3, 2.5, 3.5, 1e-40, 6e-8, 65519.9, 65520.0, 1e300,
              -1e300, 127.5, 200.0, 1 + 2**-8, 1 + 2**-8 + 2**-30, 3e38, 3.4e38,
              np.inf]  # fmt: skip
    if not dtype.startswith(("float", "bf")):
        values = [v for v in values if abs(v) < 100]
    t = wg.asarray(np.array(values)).astype(getattr(wg, dtype))
    width = t.dtype.itemsize
    want = np.frombuffer(wg._core._to_bytes(t), f"u{width}").tolist()
    assert [bits_of(v, dtype) for v in values] == want


def test_the_example_of_the_page_runs(adapter):
    page = (Path(__file__).parent.parent / "docs" / "webgpu.md").read_text()
    example, = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
    assert adapter.execute(example) == "True\n"
