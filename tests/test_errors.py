"""Every entry of the error catalogue is provoked, with its class, its code and its form."""

import re
from pathlib import Path

import numpy as np
import pytest

import wengert as wg
from wengert import _core
from wengert.webgpu import export

CATALOGUE = {code: (kind, template) for code, kind, template in _core._error_catalogue()}
# What only a Rust test provokes: no Python call makes a graph as a value yet.
IN_RUST = {
    "beyond_limits": "src/schedule/tests/target.rs",
    "no_kernel": "src/schedule/tests/target.rs",
    "bad_text": "src/graph/parse/tests.rs",
    "no_data": "src/memory/data.rs",
}

# Entries about a GPU, provoked where one is.
ON_A_GPU = {"no_float64", "device_lost", "device_memory", "too_many_elements", "not_compared"}
# No call provokes these: a defect of the engine, and the carrier of an exception that the user's
# own code raised, which arrives as itself (`test_a_failed_backward_leaves_every_gradient`).
UNREACHABLE = {"internal", "foreign"}


def freed():
    x = wg.tensor([1.0], requires_grad=True)
    y = x.exp().sum()
    y.backward()
    y.backward()


def leaf_update():
    w = wg.ones(3, requires_grad=True)
    w += 1.0


def integer_quotient_in_place():
    x = wg.asarray([1, 2])
    x /= 2


def unseen_write():
    x = wg.zeros((2, 3))
    x[0][1] = 5.0


def finalized():
    with wg.Graph() as g:
        x = wg.placeholder("x", (2,))
    g.finalize()
    x + 1


def unknown_size():
    with wg.Graph():
        len(wg.placeholder("x", (None, 3)))


def fed(value):
    with wg.Graph() as g:
        x = wg.placeholder("x", (4, 3))
    g.function([x], x)(value)


def out_of_memory():
    wg.set_memory_limit(wg.memory_stats()["live_bytes"] + 1000)
    try:
        wg.zeros((1 << 20,))
    finally:
        wg.set_memory_limit(None)


def not_finite():
    with wg.check_finite():
        wg.tensor([-1.0]).log()


def over_budget():
    with wg.config(memory_budget=1000):
        wg.compile(lambda x: (x @ x).tanh())(wg.ones((50, 50)))


def state_from_outside():
    state = wg.random.get_state()
    wg.compile(lambda: wg.random.set_state(state))()


def escaped():
    kept = []
    wg.compile(lambda x: kept.append(x * 2) or x)(wg.ones(3))
    kept[0] + 1


def untraceable():
    wg.compile(lambda x: x if x.sum() > 0 else -x)(wg.ones(3))


def body_updates():
    outside = wg.zeros(())
    wg.cond(wg.tensor(True), lambda v: outside.__iadd__(v), lambda v: v, wg.tensor(1.0))


def settings(**names):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        wg._core._check_settings()


def open_rule():
    scale = wg.ones(2)
    op = wg.custom_op(infer=lambda x: x, vjp=lambda g, x, y: (g * scale,))(lambda x: x)
    wg.jvp(op, (wg.ones(2),), (wg.ones(2),))


def impure():
    calls = []
    op = wg.custom_op(infer=lambda x: x)(lambda x: (calls.append(x), x + len(calls))[1])
    with wg.config(check=True):
        wg.compile(lambda x: op(x))(wg.ones(2))


def in_use():
    w = wg.zeros(2)

    @wg.compile
    def step(x):
        wg.host_call(lambda _: w.tolist(), x)
        w[...] = w + x

    step(wg.ones(2))


PROVOKED = {
    "broadcast": lambda: wg.ones((2, 3)) + wg.ones((4,)),
    "bad_shape": lambda: wg.concat([wg.ones((2, 3)), wg.ones((2, 4))], axis=0),
    "bad_rank": lambda: wg.nn.conv2d(wg.ones((3, 3)), wg.ones((1, 1, 1, 1))),
    "size_mismatch": lambda: wg.ones((2, 3)) @ wg.ones((4, 5)),
    "reshape_count": lambda: wg.ones((2, 3)).reshape(4, 2),
    "negative_size": lambda: wg.zeros((-1,)),
    "too_large": lambda: wg.zeros((2**40, 2**40)),
    "too_many_axes": lambda: wg.zeros((1,) * 100),
    "empty_reduction": lambda: wg.zeros((0, 3)).max(),
    "not_scalar": lambda: wg.tensor([1.0, 2.0]).item(),
    "ragged": lambda: wg.tensor([[1.0], [1.0, 2.0]]),
    "bad_dtype": lambda: wg.sin(wg.tensor([1])),
    "not_taken": lambda: wg.tensor([1.0]) << 1,
    "no_promotion": lambda: wg.ones(2, dtype=wg.uint64) + wg.ones(2, dtype=wg.int64),
    "unknown_dtype": lambda: wg.zeros(3, dtype="float33"),
    "dtype_mismatch": integer_quotient_in_place,
    "no_complex": lambda: wg.asarray(0j),
    "bad_class": lambda: wg.nn.cross_entropy(wg.ones((2, 3)), wg.tensor([0, 3])),
    "bad_target": lambda: wg.nn.cross_entropy(wg.ones((2, 3)), wg.tensor([0.0, 1.0])),
    "bad_setting": lambda: settings(WENGERT_ISA="nonsense"),
    "unknown_setting": lambda: settings(WENGERT_NO_SUCH_THING="1"),
    "gradient_dtype": lambda: wg.tensor([1, 2], requires_grad=True),
    "bad_axis": lambda: wg.ones((2, 3)).sum(axis=2),
    "repeated_axis": lambda: wg.ones((2, 3)).sum(axis=(0, 0)),
    "too_many_indices": lambda: wg.ones((2, 3))[0, 0, 0],
    "mask_shape": lambda: wg.ones((2, 3))[wg.asarray([True, False, True])],
    "index_out_of_bounds": lambda: wg.ones((2, 3))[5],
    "unknown_device": lambda: wg.asarray([1.0], device="tpu"),
    "no_gpu": lambda: wg.asarray([1.0], device="gpu:99"),
    "not_exported": lambda: export(lambda x: x.astype(wg.float64).exp(), wg.ones(2)),
    "devices_differ": lambda: wg.ones(2, device="reference") + wg.ones(2),
    "one_device": lambda: wg.compile(lambda x: x.to("reference") + 1.0)(wg.ones(2)),
    "not_on_host": lambda: memoryview(wg.ones(2, device="reference")),
    "gradient": lambda: wg.tensor([1.0, 2.0], requires_grad=True).backward(),
    "no_rule": lambda: wg.grad(wg.custom_op(infer=lambda x: x)(lambda x: x))(wg.tensor(1.0)),
    "open_rule": open_rule,
    "impure": impure,
    "freed": freed,
    "leaf_update": leaf_update,
    "unseen_write": unseen_write,
    "host_dtype": lambda: wg.custom_op(infer=lambda x: x)(lambda x: x.astype("d"))(wg.ones(2)),
    "in_use": in_use,
    "bad_value": lambda: wg.arange(0, 5, 0),
    "bad_type": lambda: wg.tensor([object()]),
    "not_finite": not_finite,
    "overflow": lambda: wg.tensor(300, dtype=wg.int8),
    "out_of_memory": out_of_memory,
    "bad_graph": finalized,
    "bad_feed": lambda: fed(wg.ones((2, 3))),
    "bad_feed_dtype": lambda: fed(wg.ones((4, 3), dtype=wg.float64)),
    "unknown_size": unknown_size,
    "over_budget": over_budget,
    "bad_capture": state_from_outside,
    "escaped": escaped,
    "untraceable": untraceable,
    "body_updates": body_updates,
}

CLASSES = {
    "ShapeError": (wg.ShapeError, ValueError),
    "DTypeError": (wg.DTypeError, TypeError),
    "AxisError": (wg.AxisError, IndexError),
    "DeviceError": (wg.DeviceError, RuntimeError),
    "GradientError": (wg.GradientError, RuntimeError),
    "GraphError": (wg.GraphError, RuntimeError),
    "CaptureError": (wg.CaptureError, RuntimeError),
    "BoundsError": (wg.BoundsError, IndexError),
    "ArgumentError": (wg.ArgumentError, ValueError),
    "ArgumentTypeError": (wg.ArgumentTypeError, TypeError),
    "RangeError": (wg.RangeError, OverflowError),
    "OutOfMemoryError": (wg.OutOfMemoryError, MemoryError),
}


def test_the_catalogue_is_covered():
    assert set(PROVOKED) | set(IN_RUST) | ON_A_GPU | UNREACHABLE == set(CATALOGUE)


@pytest.mark.parametrize("code", IN_RUST)
def test_provoked_in_rust(code):
    text = (Path(__file__).parent.parent / IN_RUST[code]).read_text()
    assert f'assert_eq!(error.code(), "{code}")' in text


@pytest.mark.parametrize("code", sorted(PROVOKED))
def test_provoked(code):
    kind, template = CATALOGUE[code]
    with pytest.raises(Exception) as caught:
        PROVOKED[code]()
    error = caught.value
    assert error.code == code
    assert type(error).__name__ == kind
    first = str(error).splitlines()[0]
    assert re.fullmatch(pattern_of(template), first), (first, template)
    assert not first.endswith(".")


def pattern_of(template):
    """A template as a regular expression; an op's message may be led by the caller's name."""
    parts = re.split(r"\{\w+\}", template)
    return r"(?:\w+: )*" + ".*".join(map(re.escape, parts))


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_an_error_and_what_python_calls_it(name):
    ours, theirs = CLASSES[name]
    assert issubclass(ours, wg.Error) and issubclass(ours, theirs) and ours.__name__ == name


# Entries about the process, not about one op.
EXEMPT = {"out_of_memory", "over_budget", "internal", "foreign"}


def test_templates_follow_the_style():
    for code, (_, template) in CATALOGUE.items():
        assert not template.endswith("."), code
        assert template.startswith("{op}: ") or code in EXEMPT, code


def test_an_error_inside_a_composite_names_the_op_that_was_called():
    with pytest.raises(wg.ShapeError, match=r"^layer_norm: "):
        wg.nn.layer_norm(wg.ones((2, 3)), weight=wg.ones(4))


def test_a_failed_call_changes_nothing():
    x = wg.arange(6.0).reshape(2, 3)
    kept = x.numpy().copy()
    for write in (
        lambda: x.__setitem__((slice(None), slice(2)), wg.ones(5)),
        lambda: x.__setitem__(wg.asarray([0, 9]), 1.0),
        lambda: x.__iadd__(wg.ones((4, 3))),
    ):
        with pytest.raises((wg.ShapeError, IndexError)):
            write()
        np.testing.assert_array_equal(x.numpy(), kept)


def test_a_failed_backward_leaves_every_gradient():
    x = wg.tensor([1.0, 2.0], requires_grad=True)
    w = wg.ones(2, requires_grad=True)
    (x * x).sum().backward()
    y = x * 3

    def refuse(g):
        raise RuntimeError("mine")

    y.register_hook(refuse)
    with pytest.raises(RuntimeError, match="mine"):
        (y.sum() + (w * 5).sum()).backward()
    assert x.grad.tolist() == [2.0, 4.0] and w.grad is None


def test_an_error_in_backward_names_the_line_that_made_the_node():
    x = wg.tensor([1.0], requires_grad=True)
    y = x.exp().sum()  # the line to name
    y.backward()
    with pytest.raises(wg.GradientError) as error:
        y.backward()
    assert "test_errors.py" in str(error.value)


OF_THE_WRONG_KIND = {
    "Schedule": lambda thing: wg.optim.LambdaSchedule(thing, lambda step: 1.0),
    "clip_grad_norm": lambda thing: wg.optim.clip_grad_norm([thing], 1.0),
    "clip_grad_value": lambda thing: wg.optim.clip_grad_value([thing], 1.0),
    "ModuleDict": lambda thing: wg.nn.ModuleDict(thing),
    "unflatten": lambda thing: wg.pytree.unflatten(thing, []),
}


@pytest.mark.parametrize("name", OF_THE_WRONG_KIND)
@pytest.mark.parametrize("thing", [3, "text", (1, 2), np.float64(1.0), object()])
def test_a_thing_of_the_wrong_kind_is_refused_by_name(name, thing):
    """Not by the name of an attribute that it lacks."""
    with pytest.raises(TypeError, match=rf"{name}: expected .*, got {type(thing).__name__}"):
        OF_THE_WRONG_KIND[name](thing)
