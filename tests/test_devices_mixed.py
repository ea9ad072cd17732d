"""Tensors of two devices meet nowhere: in no op, write, seed, list, transform, compiled function or
graph. The refusal names both devices.
"""

import copy

import numpy as np
import pytest
from test_modes import program_of
from test_ops_values import OPS, samples

import wengert as wg
from wengert import nn, optim

from support import dtypes_of, label

REF, CPU = wg.device("reference"), wg.device("cpu")
MIXED = "(?s)reference.*cpu|cpu.*reference"


@pytest.mark.parametrize("op", OPS, ids=label)
def test_every_op_refuses_operands_of_two_devices(op):
    """Where it is recorded, in every mode, with the op and both devices in the words."""
    for sample in samples(op):
        dtypes = dtypes_of(op, sample)
        program, values = program_of(op, sample, dtypes[-1])
        if len(values) < 2:
            continue
        for k in range(len(values)):
            mixed = [x.detach().to(REF if i == k else CPU) for i, x in enumerate(values)]
            with pytest.raises(wg.DeviceError, match=MIXED) as refused:
                program(*mixed)
            assert str(refused.value).startswith(op["name"] + ":")
            with pytest.raises(wg.DeviceError, match=MIXED):
                wg.compile(program)(*mixed)


WRITES = {
    "setitem": lambda x, y: x.__setitem__(0, y[0]),
    "setitem by tensor": lambda x, y: x.__setitem__(y.astype(wg.int64)[0], 1.0),
    "setitem by mask": lambda x, y: x.__setitem__(y > 0, 1.0),
    "getitem": lambda x, y: x[:, y.astype(wg.int64)[0]],
    "getitem by mask": lambda x, y: x[y > 0],
    "add": lambda x, y: x.__iadd__(y),
    "divide": lambda x, y: x.__itruediv__(y),
    "assign": lambda x, y: x.assign(y),
    "grad": lambda x, y: setattr(wg.tensor(x, requires_grad=True), "grad", y),
    "gradients": lambda x, y: seeded(x, lambda z, w: wg.gradients(z, [w], grad_outputs=[y])),
    "backward": lambda x, y: seeded(x, lambda z, w: z.backward(y)),
    "register_hook": lambda x, y: hooked(x, lambda g: y),
}


def seeded(x, f):
    w = wg.tensor(x, requires_grad=True)
    return f(w * 2.0, w)


def hooked(x, hook):
    w = wg.tensor(x, requires_grad=True)
    w.register_hook(hook)
    (w * 2.0).sum().backward()


@pytest.mark.parametrize("name", WRITES)
def test_writes_and_seeds_of_another_device_are_refused(name):
    for a, b in ((REF, CPU), (CPU, REF)):
        x, y = wg.full((2, 2), 3.0, device=a), wg.ones((2, 2), device=b)
        with pytest.raises(wg.DeviceError, match=MIXED) as refused:
            WRITES[name](x, y)
        assert str(refused.value).startswith(name.split()[0])
        assert x.tolist() == [[3.0, 3.0]] * 2 and x.device == a


WITHIN = {
    "an op": lambda x: x.to(REF) + 1.0,
    "an op of both": lambda x: x + x.to(REF),
    "a source": lambda x: wg.zeros_like(x.to(REF)),
    "a body": lambda x: wg.scan(lambda c, a: (c + a, a.to(REF)), wg.tensor(0.0), x)[1],
    "an operand of a body": lambda x: wg.scan(lambda c, a: (c, a), wg.tensor(0.0), x.to(REF))[1],
    "a batch": lambda x: wg.vmap(lambda a: a.to(REF))(x),
    "a tangent": lambda x: wg.jvp(lambda a: a.to(REF), (x,), (x,)),
}


@pytest.mark.parametrize("name", WITHIN)
def test_what_is_moved_inside_a_compiled_function_is_no_operand_there(name):
    with pytest.raises(wg.DeviceError, match=MIXED):
        wg.compile(WITHIN[name])(wg.ones(3))


def test_transfers_are_refused_in_graphs_and_transforms():
    with wg.Graph():
        x = wg.placeholder("x", (2,))
        with pytest.raises(wg.DeviceError, match="to: a graph computes on one device"):
            x.to(REF)
    with pytest.raises(wg.DeviceError, match="to: a graph computes on one device"):
        wg.vmap(lambda a: a.to(REF))(wg.ones(3))


@pytest.mark.parametrize("make", [wg.tensor, wg.asarray, lambda x, **kw: wg.stack(x)])
def test_tensors_in_lists_stay_where_they_are(make):
    """Numbers and arrays go to them; tensors of two devices are refused; `device=` moves all."""
    x, y = wg.ones(2), wg.ones(2, device=REF)
    for default in (CPU, REF):
        with wg.default_device(default):
            assert make([x, x]).device == make([x, np.zeros(2)]).device == CPU
            assert make([y, y]).device == make([np.zeros(2), y]).device == REF
            with pytest.raises(wg.DeviceError, match=MIXED):
                make([x, y])
    if make is wg.stack:
        return
    assert make([y[0], 2.0]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("make", [wg.tensor, wg.asarray])
def test_a_device_that_is_asked_for_takes_the_tensors_of_a_list(make):
    x, y = wg.ones(2), wg.ones(2, device=REF)
    for device in (CPU, REF):
        for parts in ([x, x], [y, y], [x, y], [[x[0], 2.0], y], [y, [1.0, 2.0]]):
            got = make(parts, device=device)
            assert got.device == device and got.shape == (2, 2)
    nested = make([[y[0], 2.0], [3.0, 4.0]])
    assert nested.device == REF and nested.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_lists_of_tensors_as_operands_are_not_moved():
    x, y = wg.ones(2), wg.ones(2, device=REF)
    assert wg.add(y, [1.0, 2.0]).device == REF
    calls = {
        "op": lambda: wg.add(y, [x[0], 1.0]),
        "setitem": lambda: copy.copy(y).__setitem__(slice(None), [x[0], 1.0]),
        "assign": lambda: copy.copy(y).assign([x[0], 1.0]),
        "index": lambda: y[[wg.tensor(0), 1]],
    }
    for name, call in calls.items():
        with pytest.raises(wg.DeviceError, match=MIXED):
            call()
            pytest.fail(name)


def test_a_graph_computes_on_one_device():
    x, y = wg.ones(3, device=REF), wg.ones(3)
    with pytest.raises(wg.DeviceError, match=MIXED):
        wg.compile(lambda x: x.to("cpu") * 2.0)(x)
    with pytest.raises(wg.DeviceError, match=r"add.*(?s:reference.*cpu|cpu.*reference)"):
        wg.compile(lambda x: x + y)(x)
    with pytest.raises(wg.DeviceError, match=MIXED):
        wg.compile(lambda x: x + wg.zeros(3))(x)
    with pytest.raises(wg.DeviceError, match=MIXED):
        wg.compile(lambda x, y: (x + 1.0, y + 1.0))(x, y)
    assert wg.compile(lambda x, y: (x + 1.0, y))(x, y)[1] is y
    assert wg.compile(lambda x: x.to(REF) * 2.0)(x).device == REF


def in_graph(f):
    with wg.Graph(device=REF):
        return f(wg.placeholder("p", (3,)))


def half_moved():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[1].to(REF)
    return model


@wg.custom_op(infer=lambda x, y: x)
def both(x, y):
    return x + y


# Of `r` on the reference and `c` on the CPU, some place where both meet.
MEETINGS = {
    "cond, the predicate": lambda r, c: wg.cond(c.sum() > 0, lambda a: a, lambda a: a, r),
    "cond, operands": lambda r, c: wg.cond(r.sum() > 0, lambda a, b: a, lambda a, b: b, r, c),
    "cond, a branch": lambda r, c: wg.cond(r.sum() > 0, lambda a: a + c, lambda a: a, r),
    "cond, results": lambda r, c: wg.cond(r.sum() > 0, lambda a: a, lambda a: c, r),
    "switch, the index": lambda r, c: wg.switch(c[0] > 0, [lambda a: a, lambda a: a * 2], r),
    "while, the condition": lambda r, c: wg.while_loop(lambda y: c.sum() < 3, lambda y: y, (r,)),
    "while, the carry": lambda r, c: wg.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, c), (0, r)),
    "fori, the body": lambda r, c: wg.fori_loop(0, 3, lambda i, y: y + c, r),
    "fori, the carry": lambda r, c: wg.fori_loop(0, 3, lambda i, y: c, r),
    "scan, the carry": lambda r, c: wg.scan(lambda s, a: (s + a, s), c[0], r),
    "scan, what is stacked": lambda r, c: wg.scan(lambda s, a: (s, c), r[0], r),
    "map": lambda r, c: wg.map(lambda p: p[0] + p[1], (r, c)),
    "map, results": lambda r, c: wg.map(lambda a: c, r),
    "vmap": lambda r, c: wg.vmap(lambda a, b: a + b)(r, c),
    "vmap, outside": lambda r, c: wg.vmap(lambda a: a + c[0])(r),
    "vmap, results": lambda r, c: wg.vmap(lambda a: (a, c))(r),
    "jvp": lambda r, c: wg.jvp(lambda a: a * a, (r,), (c,)),
    "vjp": lambda r, c: wg.vjp(lambda a: a * a, r)[1](c),
    "a custom op": both,
    "host_call": lambda r, c: wg.host_call(lambda a, b: None, r, c),
    "a module": lambda r, c: half_moved()(c),
    "a module, the other part": lambda r, c: half_moved()(r),
    "a mask": lambda r, c: r[c > 0],
    "an index": lambda r, c: r[wg.asarray([0, 1])],
    "+=": lambda r, c: (r * 1.0).__iadd__(c),
    "assign": lambda r, c: (r * 1.0).assign(c),
    "print": lambda r, c: wg.print("{} {}", r, c),
}
GRAPHS = {
    "an op": lambda p, c: p + c,
    "a branch": lambda p, c: wg.cond(p.sum() > 0, lambda a: a + c, lambda a: a, p),
    "results": lambda p, c: wg.cond(p.sum() > 0, lambda a: c, lambda a: a, p),
    "a custom op": both,
    "vmap": lambda p, c: wg.vmap(lambda a, b: a + b)(p, c),
    "a variable": lambda p, c: wg.Variable(c),
    "assign": lambda p, c: wg.Variable(wg.zeros(3, device=REF)).assign(c),
}


# What these make lies on the default device.
MAKING = {"a module", "a module, the other part", "an index"}
WAYS = [(name, way) for name in MEETINGS for way in ("eager", "compiled")]
WAYS += [(name, "default") for name in MEETINGS if name not in MAKING]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_tensors_of_two_devices_meet_nowhere(name, way):
    f, r, c = MEETINGS[name], wg.ones(3, device=REF), wg.ones(3, device=CPU)
    default = REF if way == "default" else CPU
    with wg.default_device(default), pytest.raises(wg.DeviceError, match=MIXED):
        (wg.compile(f) if way == "compiled" else f)(r, c)


@pytest.mark.parametrize("name", GRAPHS)
def test_tensors_of_another_device_enter_no_graph(name):
    with pytest.raises(wg.DeviceError, match=MIXED):
        in_graph(lambda p: GRAPHS[name](p, wg.ones(3)))


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam], ids=lambda kind: kind.__name__)
def test_an_optimizer_keeps_parameters_of_two_devices_apart(kind):
    pair = [wg.ones(3, device=device, requires_grad=True) for device in (REF, CPU)]
    optimizer = kind(pair, lr=0.1)
    for w in pair:
        (w * w).sum().backward()
    optimizer.step()
    assert [w.device for w in pair] == [REF, CPU] and pair[0].tolist() == pair[1].tolist()
    with pytest.raises(wg.DeviceError, match=MIXED):
        pair[0].grad = pair[1].grad


def test_numbers_are_drawn_where_the_call_runs():
    """The key of a draw goes to the tensors beside it or to the device that is asked for, not to
    the current device."""
    x = wg.ones((4, 4))
    wg.random.seed(3)
    want = [nn.dropout(x, 0.5), wg.random.normal((3,)), wg.random.uniform((2, 2))]
    with wg.default_device("reference"):
        wg.random.seed(3)
        found = [nn.dropout(x, 0.5), wg.random.normal((3,), device="cpu"),
                 wg.random.uniform((2, 2), device="cpu")]
    for got, wanted in zip(found, want, strict=True):
        assert got.device == CPU
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())
    assert wg.random.normal((3,), device="reference").device == REF
    far = wg.ones((4, 4), device="reference")
    assert nn.dropout(far, 0.5).device == REF
    assert wg.compile(lambda x: nn.dropout(x, 0.5))(far).device == REF
    with wg.default_device("reference"):
        drop = wg.compile(lambda x: nn.dropout(x, 0.5))
        assert drop(x).device == CPU and drop(x).device == CPU


def test_a_body_draws_where_it_computes():
    def body(total, x):
        return total + nn.dropout(x, 0.5), total

    with wg.default_device("reference"):
        total, _ = wg.scan(body, wg.zeros((3,), device="cpu"), wg.ones((4, 3), device="cpu"))
    assert total.device == CPU


@pytest.mark.parametrize("tree", [lambda x, a: (x, a), lambda x, a: ({"a": [a], "x": x},),
                                  lambda x, a: (a, [x])])
def test_arrays_of_others_go_to_the_tensors_of_a_compiled_call(tree):
    def add(*given):
        leaves, _ = wg.pytree.flatten(given)
        return leaves[0] + leaves[1]

    x, a = wg.ones((2,), device="reference"), np.ones((2,), "float32")
    y = wg.compile(add)(*tree(x, a))
    assert y.device == REF and y.tolist() == [2.0, 2.0]


def test_a_copy_that_is_forbidden_is_refused_away_from_the_host():
    x = wg.ones((2,), device="reference")
    with pytest.raises(ValueError, match="copy=False, but the elements lie on reference"):
        np.asarray(x, copy=False)
    assert np.asarray(x).tolist() == [1.0, 1.0]
