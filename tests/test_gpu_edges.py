"""What a GPU is asked at the edges: sizes that are operands, checked runs, integers against bounds,
more elements than it counts."""

import numpy as np
import pytest

import wengert as wg
from wengert import nn, optim, webgpu

N = wg.Dim("n")
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]

# Sizes beside integers, which are integers of their dtype.
SIZED = {
    "remainder": lambda i: i % i.shape[0],
    "reflected": lambda i: i.shape[0] - i,
    "comparison": lambda i: i < i.shape[0],
    "selection": lambda i: wg.where(i > 1, i, i.shape[0]),
    "bounds": lambda i: wg.clip(i, 0, i.shape[0] - 2),
    "array": lambda i: wg.asarray(i.shape[0], dtype=i.dtype, device=i.device) + i,
    "float": lambda i: wg.asarray(i.shape[0], dtype=wg.float32, device=i.device) / 4,
}


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("name", SIZED)
def test_sizes_beside_integers(name, dtype, gpu):
    f = SIZED[name]
    compiled = wg.compile(f)
    for n in (5, 7, 9):
        x = wg.arange(n, dtype=getattr(wg, dtype))
        got, want = compiled(x.to(gpu)), f(x)
        assert (got.device, got.dtype) == (gpu, want.dtype)
        assert got.tolist() == want.tolist()
    assert compiled.traces == 2


@pytest.mark.parametrize("name", SIZED)
def test_sizes_beside_integers_are_exported(name):
    program = webgpu.export(SIZED[name], wg.Spec((N,), wg.int64))
    assert program.symbols == {"n"}


def test_what_needs_float64_here_is_exported_without():
    whole = wg.Spec((N,), wg.int64)
    assert webgpu.export(wg.isclose, whole, whole).outputs[0].dtype == "bool"
    program = webgpu.export(lambda x: x + wg.linspace(0, 1, x.shape[0]), wg.Spec((N,)))
    assert program.outputs[0].dtype == "float32"


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_integers_that_are_close(dtype, gpu):
    if dtype == "bool":
        a, b = np.array([True, True, False]), np.array([True, False, False])
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        a = np.array([low, low, high, high, 100, 100, 0, high], dtype)
        b = np.array([low, high, low, high - 1, 101, 103, 1, high // 2], dtype)
    x, y = wg.asarray(a), wg.asarray(b)
    for ways in ({}, {"rtol": 0.02}, {"atol": 2.5, "rtol": 0.0}, {"equal_nan": True}):
        got = wg.isclose(x.to(gpu), y.to(gpu), **ways)
        assert got.tolist() == wg.isclose(x, y, **ways).tolist(), ways


def trained(device, **config):
    """The losses of a few compiled steps."""
    wg.random.seed(0)
    model = nn.Sequential(nn.Linear(20, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 10))
    model.to(device)
    optimizer = optim.Adam(model.parameters())
    x = wg.random.normal((64, 20), device=device)
    y = wg.asarray(np.arange(64) % 10, device=device)
    with wg.config(**config):

        @wg.compile
        def step(x, y):
            optimizer.zero_grad()
            loss = nn.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return [step(x, y).item() for _ in range(3)]


def test_checked_runs_take_the_bits_of_a_gpu(gpu):
    """A plan adds in another order than its ops do, which is no defect of it."""
    assert trained(gpu, check=True) == trained(gpu)


def test_checked_runs_see_what_changed_unseen_on_a_gpu(gpu):
    box = {"deep": [[2.0]]}

    with wg.config(check=True):

        @wg.compile
        def f(x):
            return x * box["deep"][0][0]

        x = wg.ones(3, device=gpu)
        f(x)
        box["deep"][0][0] = 3.0
        with pytest.raises(wg.CaptureError, match="a Python value changed"):
            f(x)


def test_the_reference_is_no_measure_of_a_gpu(gpu):
    with wg.config(check="reference"):
        f = wg.compile(wg.sin)
        with pytest.raises(wg.DeviceError, match=r"check=True.*x\.to"):
            f(wg.ones(3, device=gpu))
        assert f(wg.ones(3)).shape == (3,)


@pytest.mark.parametrize("f", [wg.sum, wg.max, wg.argmax, lambda x: x.mean()])
def test_more_elements_than_positions_are_refused(f, gpu):
    """Repeated elements take no memory, and are counted all the same."""
    x = wg.broadcast_to(wg.ones((), device=gpu), (1 << 20, 1 << 12))
    with pytest.raises(MemoryError, match="got 4294967296, at most 2147483648; take parts"):
        f(x)
    with pytest.raises(MemoryError, match="got 4294967296, at most 2147483648; take parts"):
        wg.compile(f)(x)
    assert x[3, ::1024].tolist() == [1.0] * 4


def test_inputs_that_repeat_elements_take_the_bytes_that_lie_there(gpu):
    """Written out they are above what a shader binds; a plan refused them by that."""
    x = wg.broadcast_to(wg.asarray([1.0, 2.0], device=gpu)[:, None], (2, 1 << 28))
    assert wg.device_info(gpu)["limits"]["max_storage_buffer_binding_size"] < 4 << 29
    for f in (lambda x: x[1, :3] * 2, lambda x: x.max(axis=1), lambda x: x[:, ::7].sum()):
        assert wg.compile(f)(x).tolist() == f(x).tolist()
    with pytest.raises(wg.DeviceError, match="takes 2147483648 bytes"):
        wg.compile(lambda x: x * 2)(x)


def squares(x):
    return wg.broadcast_to(x, (x.shape[0], x.shape[0]))


REPEATED = {
    "sum": lambda x: squares(x).sum(),
    "rows": lambda x: squares(x).max(axis=1),
    "product": lambda x: squares(x) @ x,
}


@pytest.mark.parametrize("name", REPEATED)
def test_programs_refuse_sizes_by_the_elements_that_they_count(name, adapter, tmp_path):
    program = webgpu.export(REPEATED[name], wg.Spec((N,)))
    program.save(tmp_path / "p.wgprog")
    few, many = np.ones(9, "f"), np.ones(46_341, "f")
    good, bad = adapter.perform(
        tmp_path / "p.wgprog", [("arrays", (few,), None), ("arrays", (many,), None)]
    )
    assert good[0].max() in (1, 9, 81)
    kind, text = bad
    assert kind == "ShapeError" and "<= 2147483648 does not hold" in text and __file__ in text


def test_programs_refuse_sizes_that_integers_cannot_hold(adapter, tmp_path):
    program = webgpu.export(lambda i: i + i.shape[0], wg.Spec((N,), wg.int8))
    program.save(tmp_path / "p.wgprog")
    calls = [("arrays", (np.ones(n, "int8"),), None) for n in (127, 128)]
    good, (kind, text) = adapter.perform(tmp_path / "p.wgprog", calls)
    assert (good[0] == np.int8(127) + np.ones(127, "int8")).all()
    assert kind == "ShapeError" and "n <= 127 does not hold" in text


def test_programs_have_linspace_of_any_size(adapter, tmp_path):
    program = webgpu.export(lambda x: x + wg.linspace(2, 5, x.shape[0]), wg.Spec((N,)))
    program.save(tmp_path / "p.wgprog")
    sizes = (1, 2, 3, 7)
    calls = [("arrays", (np.zeros(n, "f"),), None) for n in sizes]
    for n, (got,) in zip(sizes, adapter.perform(tmp_path / "p.wgprog", calls), strict=True):
        assert got == pytest.approx(np.linspace(2, 5, n), rel=1e-6) and got[0] == 2
        assert n == 1 or got[-1] == 5


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_checks_say_the_same_on_every_device(shape, gpu, adapter, tmp_path):
    def f(x):
        wg.check(x > 0, "must be positive")
        return x * 2

    x = np.ones(shape, "f")
    x[(-1,) * len(shape)] = -1
    texts = set()
    for device in ("cpu", "reference", gpu):
        with pytest.raises(wg.ArgumentError, match="must be positive") as refusal:
            wg.compile(f)(wg.asarray(x, device=device)).tolist()
        texts.add(str(refusal.value).splitlines()[0])
    webgpu.export(f, wg.Spec(shape)).save(tmp_path / "p.wgprog")
    ((kind, text),) = adapter.perform(tmp_path / "p.wgprog", [("arrays", (x,), None)])
    texts.add(text.splitlines()[0])
    what = f"element {x.size - 1} (in C order) of shape {shape} is false" if shape else "got false"
    assert kind == "ArgumentError" and texts == {f"check: must be positive: {what}"}


@pytest.mark.parametrize("number", [2.5, 2])
def test_numbers_made_tensors_lie_on_the_current_device_in_every_mode(number, gpu):
    def f(x):
        return x + wg.asarray(number, dtype=wg.float32)

    x = wg.ones(3, device=gpu)
    for run in (f, wg.compile(f)):
        with pytest.raises(wg.DeviceError, match="different devices"):
            run(x)
        with wg.default_device(gpu):
            assert run(x).tolist() == [1 + number] * 3


OUTSIDE = {
    "cross_entropy": (nn.cross_entropy, [0, 1, 2, 3]),
    "cross_entropy below": (nn.cross_entropy, [0, 1, 2, -2]),
    "embedding": (lambda x, i: nn.embedding(i, x), [0, 1, 2, 4]),
    "second axis": (lambda x, i: x[:, i], [0, 1, 2, -4]),
    "along": (lambda x, i: wg.take_along_axis(x, i[:, None], axis=1), [0, 1, 2, 3]),
    "one_hot": (lambda x, i: wg.one_hot(i, 3), [0, 1, 2, 3]),
    "index_add": (lambda x, i: wg.index_add(x, i, x), [0, 1, 2, 5]),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_programs_refuse_indexes_in_the_words_of_the_call(name, adapter, tmp_path):
    f, wrong = OUTSIDE[name]
    x, i = np.ones((4, 3), "f"), np.array(wrong)
    program = webgpu.export(f, wg.Spec((4, 3)), wg.Spec((4,), wg.int64))
    program.save(tmp_path / "p.wgprog")
    (got,) = adapter.perform(tmp_path / "p.wgprog", [("arrays", (x, i), None)])
    with pytest.raises(wg.BoundsError) as want:
        f(wg.asarray(x), wg.asarray(i))
    kind, text = got
    assert kind == "BoundsError" and text.startswith(f"{want.value}\n  made at {__file__}")


COLLECTED = {
    "sum": lambda x: x.sum(axis=-1),
    "sum of columns": lambda x: x.T.sum(axis=0),
    "mean": lambda x: x.mean(axis=-1) * x.shape[-1],
    "rows": wg.compile(lambda x: 1 / (x / x.sum(axis=-1, keepdims=True))[:, 0] * 2.0**24),
    "running sum": lambda x: wg.cumulative_sum(x[:3], axis=-1)[:, -1],
    "exported": "sum",
}


@pytest.mark.parametrize("name", COLLECTED)
def test_what_additions_lose_is_kept(name, gpu, adapter, tmp_path):
    """Compilers take `(a + b) - a` for `b`. A large term first, and then many sums of blocks
    each of which is at most half a unit of its last place."""
    rows, value = (1000, 0.25) if name == "rows" else (5000, 2.0**-7)
    row = np.full(1 << 14, value, np.float32)
    row[0] = 2.0**24
    want = row.astype(np.float64).sum()
    if name == "exported":
        program = webgpu.export(COLLECTED["sum"], wg.Spec((2000, row.size)))
        program.save(tmp_path / "p.wgprog")
        many = np.broadcast_to(row, (2000, row.size)).copy()
        ((got,),) = adapter.perform(tmp_path / "p.wgprog", [("arrays", (many,), None)])
    else:
        x = wg.broadcast_to(wg.asarray(row, device=gpu), (rows, row.size))
        got = COLLECTED[name](x).numpy()
    assert np.abs(got - want).max() <= 8, (got[0], want)


@pytest.mark.parametrize("value", [0.1, 0.7, 5.3])
def test_long_sums_of_like_terms(value, gpu):
    """Roundings of like terms are alike, so that their errors add up."""
    value, n = np.float32(value), 1 << 27
    got = wg.broadcast_to(wg.asarray(value, device=gpu), (n,)).sum().item()
    assert got == pytest.approx(float(value) * n, rel=20 * 2.0**-24)
