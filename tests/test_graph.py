"""Graphs defined by hand: nodes, shapes known and open, parts, passes, functions."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wengert as wg
from wengert import nn


def model():
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        w = wg.placeholder("w", (3, 2))
        h = (x @ w).tanh()
        loss = (h * h).sum()
    return g, x, w, h, loss


def test_nodes_say_what_they_are():
    g, x, _w, h, _loss = model()
    assert [n.op for n in g.nodes] == ["input", "input", "matmul", "tanh", "multiply", "sum"]
    assert [n.name for n in g.inputs] == ["x", "w"]
    tanh = g.nodes[3]
    assert tanh.op == "tanh" and tanh.shape == (None, 2) and tanh.dtype == wg.float32
    assert tanh.site.filename == __file__ and tanh.site.lineno > 0
    assert tanh.inputs == [g.nodes[2]] and hash(tanh) == hash(g.nodes[3])
    assert tanh != g.nodes[2] and tanh.id == 3 and "tanh(%2" in tanh.attributes
    assert "tanh" in repr(tanh) and g.tensor(tanh).shape[1] == 2
    assert repr(h) == "tensor(%3, shape=(None, 2), dtype=float32)"
    assert repr(x) == str(x) == 'tensor("x", shape=(None, 3), dtype=float32)'
    assert g.tensor("w").shape == (3, 2)


def test_what_is_wrong_for_every_size_is_refused_where_it_is_written():
    with wg.Graph():
        x, y = wg.placeholder("x", (None, 3)), wg.placeholder("y", (4, 5))
        with pytest.raises(wg.ShapeError, match="matmul"):
            x @ y
        with pytest.raises(wg.ShapeError):
            wg.concat([x, y], axis=0)
        with pytest.raises(wg.AxisError):
            x.sum(axis=2)
        with pytest.raises(wg.DTypeError, match="floating"):
            wg.placeholder("i", None, wg.int64).erf()
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        before = len(g)
        with pytest.raises(wg.ShapeError):
            x @ wg.ones((4, 4))
        assert len(g) <= before + 2


def test_names_are_told_apart():
    with wg.Graph() as g:
        wg.placeholder("x", (2,))
        with pytest.raises(wg.GraphError, match='"x"'):
            wg.placeholder("x", (2,))
        with pytest.raises(wg.GraphError, match="nosuch"):
            g.tensor("nosuch")


def test_tensors_of_two_graphs_do_not_mix():
    with wg.Graph():
        a = wg.placeholder("a", (2,))
    with wg.Graph():
        b = wg.placeholder("b", (2,))
        with pytest.raises(wg.GraphError, match="different graphs"):
            a + b
    with pytest.raises(wg.GraphError, match="different graphs"):
        a + b


def test_a_graph_goes_on_outside_its_block():
    g, x, w, h, _loss = model()
    y = h * 2 + wg.ones(2)
    out = wg.Session(g).run(y, {x: np.zeros((4, 3), "f"), w: np.ones((3, 2), "f")})
    assert out.tolist() == [[1.0, 1.0]] * 4


def test_a_finalized_graph_takes_no_nodes_and_runs():
    g, x, w, h, loss = model()
    g.finalize()
    assert g.finalized
    for change in (lambda: h + 1, lambda: wg.gradients(loss, w), lambda: h.mean(axis=1)):
        with pytest.raises(wg.GraphError, match="finalized"):
            change()
    with g, pytest.raises(wg.GraphError, match="finalized"):
        wg.placeholder("more", (1,))
    count = len(g)
    assert wg.Session(g).run(h, {x: np.zeros((1, 3), "f"), w: np.ones((3, 2), "f")}).shape == (1, 2)
    c = g.clone()
    with c:
        c.tensor(3) + 1
    assert len(g) == count and len(c) == count + 1 and not c.finalized


def test_equality_is_of_nodes_not_of_lines():
    (a, *_), (b, *_) = model(), model()
    assert a == b and a == a.clone() and a == b
    with b:
        wg.ones(3) + 1
    assert a != b and a != 3


def test_text_reads_back():
    with wg.Graph() as g:
        x = wg.placeholder("x", (2, 3))
        nn.softmax((x * 2).sum(axis=0, keepdims=True))
    assert wg.parse_graph(str(g)) == g
    g, *_ = model()
    text = str(g)
    assert '"x"' in text and "float32 (3, 2)" in text and "test_graph.py" in text
    with wg.Graph() as g:
        a = wg.placeholder("a")
        a + 1
    assert "add(%0, 1)" in str(g) and "float32 ?" in str(g)


def test_a_part_is_a_graph_of_its_own():
    g, x, w, h, loss = model()
    sub = g.extract([h], inputs=[x, w])
    assert [n.op for n in sub.nodes] == ["input", "input", "matmul", "tanh"]
    assert [n.id for n in sub.outputs] == [3]
    feeds = {"x": np.ones((4, 3), "f"), "w": np.ones((3, 2), "f")}
    whole = wg.Session(g).run(h, feeds)
    assert (wg.Session(sub).run(sub.outputs[0], feeds).numpy() == whole.numpy()).all()
    late = g.extract(loss, inputs=h)
    assert [n.op for n in late.nodes] == ["input", "multiply", "sum"]
    assert wg.Session(late).run(late.outputs, {late.inputs[0]: whole})[0].item() == (
        wg.Session(g).run(loss, feeds).item()
    )


def test_optimizing_keeps_values_and_reports():
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3))
        y = (x * 1.0).exp() + (x * 1.0).exp()
        (x @ wg.ones((3, 3))).sum()
    small = g.optimize([y])
    assert len(small) < len(g) and small.passes
    assert all(
        (p.name and p.nodes_after <= p.nodes_before) or p.name == "expand" for p in small.passes
    )
    assert "exp" in [n.op for n in small.nodes] and "matmul" not in [n.op for n in small.nodes]
    for n in (1, 4):
        data = np.random.default_rng(n).standard_normal((n, 3)).astype("f")
        want = wg.Session(g).run(y, {x: data})
        got = wg.Session(small).run(small.outputs, {small.inputs[0]: data})[0]
        assert (want.numpy() == got.numpy()).all()
    with pytest.raises(ValueError, match="nosuch"):
        g.optimize([y], off=["nosuch"])
    with wg.Graph() as g:
        z = wg.placeholder("z") + 1
    with pytest.raises(wg.GraphError, match="unknown"):
        g.optimize([z])


def test_an_optimized_graph_refuses_sizes_it_was_not_made_for():
    with wg.Graph() as g:
        x, y = wg.placeholder("x", (None, 3)), wg.placeholder("y", (None, 3))
        z = x + y
    assert wg.Session(g).run(z, {x: np.ones((1, 3), "f"), y: np.ones((5, 3), "f")}).shape == (5, 3)
    small = g.optimize([z])
    a, b = small.inputs
    run = wg.Session(small).run
    assert run(small.outputs, {a: np.ones((2, 3), "f"), b: np.ones((2, 3), "f")})[0].shape == (2, 3)
    with pytest.raises(wg.Error):
        run(small.outputs, {a: np.ones((2, 3), "f"), b: np.ones((4, 3), "f")})


def test_a_function_of_a_graph_differentiates():
    g, x, w, h, loss = model()
    f = g.function(inputs=[x, w], outputs={"loss": loss, "h": h})
    r = np.random.default_rng(0)
    for n in (2, 5):
        a = wg.tensor(r.standard_normal((n, 3)).astype("f"), requires_grad=True)
        b = wg.tensor(r.standard_normal((3, 2)).astype("f"), requires_grad=True)
        out = f(a, b)
        out["loss"].backward()
        c, d = a.detach(), b.detach()
        c.requires_grad = d.requires_grad = True
        k = (c @ d).tanh()
        (k * k).sum().backward()
        assert (out["h"].detach().numpy() == k.detach().numpy()).all()
        np.testing.assert_array_equal(a.grad.numpy(), c.grad.numpy())
        np.testing.assert_array_equal(b.grad.numpy(), d.grad.numpy())
    with pytest.raises(TypeError, match="2 tensors"):
        f(a)
    with pytest.raises(wg.GraphError, match="not given"):
        g.function([x], [loss])(wg.ones((2, 3)))


def test_gradients_by_any_node():
    g, x, w, h, loss = model()
    with g:
        dh, dx = wg.gradients(loss, [h, x])
        unrelated = wg.placeholder("u", (2,))
        with pytest.raises(wg.GradientError, match="depends"):
            wg.gradients(loss, unrelated)
        assert wg.gradients(loss, [unrelated], allow_unused=True) == [None]
        with pytest.raises(wg.GradientError, match="scalar"):
            wg.gradients(wg.ones(3) * unrelated.sum(), unrelated)
    assert g._core.node(g._core.id_of(dx)).shape == (None, 3)
    s = wg.Session(g)
    feeds = {x: np.ones((2, 3), "f"), w: np.full((3, 2), 0.1, "f")}
    value, got = s.run([h, dh], feeds)
    np.testing.assert_array_equal(got.numpy(), 2 * value.numpy())
    # A second derivative is the gradient of a gradient.
    with g:
        second = wg.gradients(dx.sum(), w)
    ew = wg.tensor(feeds[w], requires_grad=True)
    ex = wg.tensor(feeds[x], requires_grad=True)
    (d,) = wg.gradients(((ex @ ew).tanh() ** 2).sum(), [ex], create_graph=True)
    want = wg.gradients(d.sum(), ew)
    np.testing.assert_allclose(s.run(second, feeds).numpy(), want.numpy(), rtol=1e-5)


def test_an_unknown_rank_is_found_when_it_is_fed():
    with wg.Graph() as g:
        a, b = wg.placeholder("a"), wg.placeholder("b")
        assert a.shape is None and (a + b).shape is None
        c = nn.softmax(a @ b, axis=-1)
        total = c.sum(axis=0)
        row = a[0]
        da = wg.gradients((a * a).sum(), a)
    s = wg.Session(g)
    r = np.random.default_rng(1)
    for shape, other in (((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((3,), (3, 2))):
        x, y = r.standard_normal(shape).astype("f"), r.standard_normal(other).astype("f")
        want = nn.softmax(wg.asarray(x) @ wg.asarray(y), axis=-1)
        got = s.run([c, total, row, da], {a: x, b: y})
        assert (got[0].numpy() == want.numpy()).all()
        assert (got[1].numpy() == want.sum(axis=0).numpy()).all()
        assert (got[2].numpy() == x[0]).all() and (got[3].numpy() == 2 * x).all()
    with pytest.raises(wg.ShapeError, match=r"(?s)matmul.*made at .*test_graph\.py:\d+"):
        s.run(c, {a: np.ones((2, 3), "f"), b: np.ones((2, 3), "f")})


def test_data_is_asked_for_in_vain():
    with wg.Graph():
        x = wg.placeholder("x", (None,))
        y = wg.placeholder("y")
        for t in (x, y, x.sum()):
            for look in (
                bool,
                float,
                int,
                lambda t: t.numpy(),
                lambda t: t.tolist(),
                lambda t: t.item(),
            ):
                with pytest.raises(wg.CaptureError):
                    look(t)
        with pytest.raises(wg.GraphError, match="not known"):
            len(x)


def test_tensors_from_outside_enter_by_value():
    k = wg.tensor([1.0, 2.0])
    with wg.Graph() as g:
        y = wg.placeholder("x", (2,)) * k
    k += 10.0
    with g:
        z = wg.placeholder("z", (2,)) * k
    s = wg.Session(g)
    one = np.ones(2, "f")
    assert s.run(y, {"x": one}).tolist() == [1.0, 2.0]
    assert s.run(z, {"z": one}).tolist() == [11.0, 12.0]
    with g, pytest.raises(wg.GraphError, match="Variable"):
        k += y


def test_a_graph_is_freed():
    g, x, w, h, loss = model()
    with g:
        nn.dropout(x, 0.5)
        wg.gradients(loss, w)
        big = wg.ones((1 << 18,)) + w.sum()
    live = wg.memory_stats()["live_bytes"]
    kept = wg.asarray(np.ones(1 << 18, "f"))
    with g:
        big = big * kept
    del kept
    gone = weakref.ref(g)
    del g, x, w, h, loss, big
    gc.collect()
    assert gone() is None
    assert wg.memory_stats()["live_bytes"] <= live


OPS = ["add", "mul", "matmul", "tanh", "sum", "mean", "T", "slice", "softmax", "max", "exp", "norm"]


def program(steps, values):
    """A random program on matrices of one row size: what a list of steps makes of some values."""
    values = list(values)
    for op, i, j in steps:
        a, b = values[i % len(values)], values[j % len(values)]
        if op == "add":
            y = a + b
        elif op == "mul":
            y = a * b
        elif op == "matmul":
            y = a @ b.T @ (b * 0.1)
        elif op == "tanh":
            y = a.tanh()
        elif op == "sum":
            y = a + b.sum(axis=0)
        elif op == "mean":
            y = a - b.mean(axis=0, keepdims=True)
        elif op == "T":
            y = (a.T + b.T).T
        elif op == "slice":
            y = a + b[:, 1:2]
        elif op == "softmax":
            y = nn.softmax(a, axis=-1)
        elif op == "max":
            y = wg.maximum(a, b.max(axis=1, keepdims=True))
        elif op == "exp":
            y = (a - a.max(axis=1, keepdims=True)).exp()
        else:
            y = nn.layer_norm(a, axis=-1)
        values.append(y)
    return values


STEPS = st.lists(
    st.tuples(st.sampled_from(OPS), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8
)


@given(STEPS, st.sampled_from([(None, 4), None, (3, 4)]), st.integers(0, 9))
def test_a_session_computes_what_eager_code_computes(steps, shape, seed):
    """Same bits, gradients included, for sizes that are open, unknown ranks and fixed sizes."""
    with wg.Graph() as g:
        inputs = [wg.placeholder("x", shape), wg.placeholder("y", shape)]
        made = program(steps, inputs)
        grads = wg.gradients(
            [made[-1]], inputs, grad_outputs=[wg.ones_like(made[-1])], allow_unused=True
        )
    s = wg.Session(g)
    r = np.random.default_rng(seed)
    for n in (3,) if shape == (3, 4) else (3, 1, 6):
        data = [r.standard_normal((n, 4)).astype("f") for _ in inputs]
        feeds = dict(zip(inputs, data, strict=True))
        eager = [wg.tensor(x, requires_grad=True) for x in data]
        want = program(steps, eager)
        out = s.run([*made[2:], *(d for d in grads if d is not None)], feeds)
        for a, b in zip(out, want[2:], strict=False):
            np.testing.assert_array_equal(a.numpy(), b.detach().numpy())
        if want[-1].requires_grad:
            want[-1].backward(wg.ones_like(want[-1]))
            found = iter(out[len(made) - 2 :])
            for d, x in zip(grads, eager, strict=True):
                got = None if d is None else next(found).numpy()
                if x.grad is None:
                    assert got is None or not got.any()
                else:
                    np.testing.assert_array_equal(got, x.grad.numpy())


@pytest.mark.parametrize("op", [wg.less_equal, wg.equal, wg.isclose, wg.logical_and])
@pytest.mark.parametrize("dtype", [wg.float32, wg.int64, wg.bool])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_result_has_its_dtype_whatever_sizes_an_open_one_must_have(op, dtype, n):
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 3), dtype)
        try:
            want = op(wg.ones((n, 3), dtype=dtype), wg.ones((n, 3), dtype=dtype)).dtype
        except wg.DTypeError:
            return
        y = op(x, wg.ones((n, 3), dtype=dtype))
        chosen = wg.where(y, 1.0, 2.0)
    assert y.dtype == want
    fed = {x: wg.ones((n, 3), dtype=dtype)}
    assert wg.Session(g).run([y, chosen], fed)[1].shape == (n, 3)


def test_calls_with_several_results_rest_on_no_invented_size():
    with wg.Graph() as g:
        a, b, c = (
            wg.placeholder(name, shape)
            for name, shape in (("a", (None,)), ("b", (3,)), ("c", None))
        )
        joined = wg.broadcast_arrays([a, b])
        parts = wg.split(a, (1, 2))
        unranked = wg.split(c, (1, 2))
        sevenths = wg.split(a, 7)
        halves = a.chunk(2)
    s, one, three = wg.Session(g), wg.tensor([2.0]), wg.tensor([1.0, 2.0, 3.0])
    assert [y.tolist() for y in s.run(joined, {a: one, b: three})] == [[2.0] * 3, three.tolist()]
    assert [y.tolist() for y in s.run(joined, {a: three, b: three})] == [three.tolist()] * 2
    for x, ys in ((a, parts), (c, unranked)):
        assert [y.tolist() for y in s.run(ys, {x: three})] == [[1.0], [2.0, 3.0]]
        with pytest.raises(wg.ShapeError, match="add up to 3"):
            s.run(ys, {x: wg.ones(4)})
    assert [y.tolist() for y in s.run(sevenths, {a: wg.arange(7.0)})] == [[k] for k in range(7)]
    assert [y.tolist() for y in s.run(halves, {a: three})] == [[1.0, 2.0], [3.0]]
    with pytest.raises(wg.GraphError, match="how many results"):
        s.run(halves, {a: one})
    with pytest.raises(wg.ShapeError, match="no equal parts"):
        s.run(sevenths, {a: three})
    with pytest.raises(wg.ShapeError, match="do not broadcast"):
        s.run(joined, {a: wg.ones(2), b: three})


def test_refusals_name_no_invented_size():
    with wg.Graph():
        x = wg.placeholder("x", (None,))
        for call in (x.unstack, lambda: x.chunk(5)):
            with pytest.raises(wg.Error) as refusal:
                call()
            assert "12" not in str(refusal.value) and "20" not in str(refusal.value)


def test_several_ellipses_are_refused_whatever_the_rank():
    index = (..., ..., [True, False])
    for shape in ((None,), (2,), None, (None, None), (2, 2)):
        with wg.Graph():
            x = wg.placeholder("x", shape)
            with pytest.raises(wg.ShapeError, match="one ellipsis"):
                x[index]
            with pytest.raises(wg.ShapeError, match="one ellipsis"):
                x[index] = 1.0
