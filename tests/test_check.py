"""Self-check: wrong passes and Python values that change unseen are found; right programs run."""

import re
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import wengert as wg
from wengert import _core, nn

from support import training_step


@pytest.fixture(autouse=True)
def checked():
    with wg.config(check=True):
        yield


@pytest.fixture
def spoiled(request):
    before = _core._configure(spoiled=request.param)
    yield request.param
    before.restore()


PASSES = ["expand", "dead", "fold", "simplify", "sink", "cse"]


def program(x, w):
    return (wg.tanh(x @ w) * 2.0 + 1.0).sum(axis=0)


def report(error):
    path = Path(re.search(r"is in (\S+\.txt)", str(error.value)).group(1))
    text = path.read_text()
    path.unlink()
    return text


@pytest.mark.parametrize("spoiled", PASSES, indirect=True)
def test_a_wrong_pass_is_named_and_the_program_made_small(spoiled):
    f = wg.compile(program)
    with pytest.raises(_core.InternalError, match=f"pass {spoiled} changes bits") as error:
        f(wg.ones((3, 4)), wg.ones((4, 5)))
    small = wg.parse_graph(report(error))
    assert 2 <= len(list(small.nodes)) <= 3


@pytest.mark.parametrize("spoiled", ["schedule"], indirect=True)
def test_a_wrong_schedule_is_named_and_the_program_made_small(spoiled):
    """No pass is at fault: what is left is how steps were made of the nodes."""
    f = wg.compile(program)
    with pytest.raises(_core.InternalError, match="the schedule changes bits") as error:
        f(wg.ones((3, 4)), wg.ones((4, 5)))
    small = wg.parse_graph(report(error))
    assert [node.op for node in small.nodes if node.op != "input"] == ["multiply"]


@pytest.mark.parametrize("spoiled", ["kernels"], indirect=True)
@pytest.mark.parametrize("fast_math", [False, True])
def test_a_wrong_kernel_is_found_by_the_reference(spoiled, fast_math):
    f = wg.compile(lambda x, w: nn.softmax(x @ w, axis=-1))
    args = wg.ones((3, 4)), wg.ones((4, 5))
    f(*args)  # By the list alone nothing is wrong: it runs by the same kernels.
    with wg.config(check="reference", fast_math=fast_math):
        g = wg.compile(lambda x, w: nn.softmax(x @ w, axis=-1))
        op = r"the cpu and the reference differ: matmul at .*test_check\.py:\d+"
        values = r"element \[0, 0\]: got 5\.0, wanted 4\.0, from 3\.99\d* to 4\.00\d*"
        with pytest.raises(_core.InternalError, match=f"{op}: {values}"):
            g(*args)


@pytest.mark.parametrize("spoiled", ["kernels"], indirect=True)
def test_a_wrong_kernel_inside_control_flow_is_found(spoiled):
    with wg.config(check="reference"):
        f = wg.compile(lambda c, x: wg.scan(lambda c, row: (c * 0.5, row.exp()), c, x)[1])
        with pytest.raises(_core.InternalError, match=r"differ: (multiply|exp) at"):
            f(wg.zeros(2), wg.zeros((3, 2)))


def test_what_is_right_passes_the_reference():
    with wg.config(check="reference"):
        wg.random.seed(0)
        convolution = nn.Conv2d(2, 3, 3, padding=1)
        model = nn.Sequential(convolution, nn.GELU(), nn.Flatten(), nn.Linear(48, 4))
        optimizer = wg.optim.SGD(model.parameters(), lr=0.1)

        step = wg.compile(training_step(optimizer, lambda x, y: nn.cross_entropy(model(x), y)))
        batches = [(wg.ones((n, 2, 4, 4)), wg.zeros(n, dtype=wg.int64)) for n in (2, 2, 3)]
        losses = [step(x, y).item() for x, y in batches]
        assert losses[2] < losses[0]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
def test_a_check_that_is_broken_off_changes_nothing():
    state = wg.ones((200, 200))

    @wg.compile
    def update(x):
        y = state
        for _ in range(30):
            y = x @ y * 0.01
        state[...] = y

    main = threading.get_ident()
    press = threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with wg.config(check="reference"), pytest.raises(KeyboardInterrupt):
            press.start()
            update(wg.ones((200, 200)))
    finally:
        press.join()
        signal.signal(signal.SIGINT, before)
    assert (state == 1.0).all()


def test_checks_have_names():
    what = 'check is a truth value or "reference": got nonsense'
    with pytest.raises(ValueError, match=what), wg.config(check="nonsense"):
        pass


@pytest.mark.parametrize("spoiled", ["schedule"], indirect=True)
def test_a_wrong_schedule_of_control_flow_or_open_sizes_is_found(spoiled):
    def f(x):
        return wg.scan(lambda c, row: (c * 0.5 + row, c), x[0], x)[1] * 3.0

    g = wg.compile(f)
    for n in (3, 4):
        with pytest.raises(_core.InternalError, match="the schedule changes bits") as error:
            g(wg.ones((n, 2)))
        report(error)


@pytest.mark.parametrize("spoiled", ["simplify"], indirect=True)
def test_a_failed_check_changes_nothing(spoiled):
    w = wg.ones(3)

    @wg.compile
    def update(x):
        w[...] = w * 3.0 + x

    with pytest.raises(_core.InternalError) as error:
        update(wg.ones(3))
    report(error)
    assert w.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("spoiled", ["simplify"], indirect=True)
def test_sessions_are_checked(spoiled):
    with wg.Graph() as g:
        x = wg.placeholder("x", (3,))
        y = x * 3.0
    with wg.Session(g) as s, pytest.raises(_core.InternalError, match="simplify") as error:
        s.run(y, {x: [1.0, 2.0, 3.0]})
    report(error)


def test_a_list_element_that_changes_unseen_is_found():
    scale = [2.0]
    f = wg.compile(lambda x: x * scale[0])
    x = wg.ones(3)
    f(x)
    scale[0] = 3.0
    with pytest.raises(wg.CaptureError, match=r"not looked at.*test_check\.py:\d+"):
        f(x)


def test_a_tensor_in_a_list_that_is_replaced_is_found():
    weights = [wg.ones(3)]
    f = wg.compile(lambda x: x * weights[0])
    f(wg.ones(3))
    weights[0] = wg.zeros(3)
    with pytest.raises(wg.CaptureError, match="another tensor"):
        f(wg.ones(3))


def test_a_training_step_of_random_numbers_and_updates_passes():
    def make():
        wg.random.seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer = wg.optim.AdamW(model.parameters(), lr=1e-2)

        return training_step(optimizer, lambda x: (model(x) ** 2).mean())

    x = wg.arange(12.0).reshape(3, 4)
    eager, compiled = make(), None
    wanted = [eager(x).item() for _ in range(5)]
    compiled = wg.compile(make())
    assert [compiled(x).item() for _ in range(5)] == wanted


@pytest.mark.parametrize("check", [True, "reference"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_ordered_calls_happen_once(check, device):
    """The repetition of a checked run gets the results of its calls; here each gives another."""
    calls = []

    @wg.custom_op(infer=lambda x: x, effect="ordered", vjp=lambda g, x, y: (g * y,))
    def numbered(x):
        calls.append(x.tolist())
        return x * 0 + len(calls)

    def f(x):
        wg.host_call(lambda x: calls.append(x.tolist()), x)
        y = numbered(x) + numbered(x)
        rows = wg.scan(lambda c, v: (c, numbered(v)), x[0], x)[1]
        numbered(y)
        return wg.cond(y.sum() > 0, numbered, lambda y: y, y + rows)

    want = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], 1.0, 1.0, [5.0, 5.0], [9.0, 10.0]]
    state = wg.zeros(2, device=device)

    def update(x):
        state[...] = f(x)

    with wg.config(check=check):
        for run in (wg.compile(f), wg.compile(update), wg.compile(wg.grad(lambda x: f(x).sum()))):
            for _ in range(5):
                calls.clear()
                run(wg.ones(2, device=device))
                assert calls == want
        with wg.Graph(device=device) as graph:
            p = wg.placeholder("p", (2,))
            y = f(p)
        with wg.Session(graph) as session:
            calls.clear()
            assert session.run(y, {p: wg.ones(2, device=device)}).tolist() == [7.0, 7.0]
            assert calls == want
    assert state.tolist() == [7.0, 7.0]


def test_an_op_that_is_not_pure_is_named():
    calls = []

    @wg.custom_op(infer=lambda x: x)
    def counts(x):
        calls.append(x)
        return x + len(calls)

    state = wg.zeros(2)

    @wg.compile
    def update(x):
        state[...] = state + counts(x)

    with pytest.raises(wg.CaptureError, match=r"counts: .*declared pure.*result 0, element 0"):
        update(wg.ones(2))
    assert state.tolist() == [0.0, 0.0]


def test_a_call_in_code_of_the_host_is_checked_by_itself():
    seen = []
    inner = wg.compile(lambda x: (wg.host_call(lambda v: seen.append(v.item()), x), x * 2.0)[1])

    @wg.custom_op(infer=lambda x: x, effect="ordered")
    def outer(x):
        return inner(wg.tensor(x)).numpy()

    f = wg.compile(lambda x: outer(x) + outer(x * 3.0))
    assert f(wg.tensor(1.0)).item() == 8.0 and seen == [1.0, 3.0]


def test_random_programs_of_another_device_are_checked():
    """Random keys lie on the host, and travel for the list as for its plan."""
    for check in (True, "reference"):
        with wg.config(check=check), wg.default_device("reference"):
            f = wg.compile(lambda x: nn.dropout(x, 0.5) * wg.random.uniform(x.shape))
            assert f(wg.ones(8)).device.type == "reference"
            stepper = f.interpreter(wg.ones(8))
            assert [y.device.type for y in stepper.finish()] == ["reference"]
    with wg.check_finite():
        assert f(wg.ones(8, device="reference")).device.type == "reference"


def test_prints_happen_once(capfd):
    def f(x):
        wg.print("x is {}", x)
        return x + 1

    wg.compile(f)(wg.ones(1))
    assert "".join(capfd.readouterr()).count("x is") == 1


def test_symbolic_sizes_pass():
    f = wg.compile(lambda x: (x.mean(axis=0) * x).reshape(-1))
    for n in (2, 3, 4, 5):
        x = wg.arange(float(n * 3)).reshape(n, 3)
        np.testing.assert_array_equal(f(x).numpy(), (x.mean(axis=0) * x).reshape(-1).numpy())
    assert f.traces == 2
