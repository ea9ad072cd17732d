"""Pictures of tapes and graphs: Graphviz source, SVG, HTML, TensorBoard."""

import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

import wengert as wg
from wengert import drawing as pictures

GRAPHVIZ = shutil.which("dot")


def test_the_tape_is_drawn_with_leaves_links_and_saved_values():
    w = wg.ones((3, 2), requires_grad=True)
    b = wg.zeros((2,), requires_grad=True)
    x = wg.ones((4, 3))
    y = (x @ w + b).exp()
    dot = wg.draw(y.sum(), params={"w": w, 'the "b"\n': b}).dot
    named = ("w\\nfloat32 (3, 2)", 'the \\"b\\"\\n', "test_pictures.py")
    for want in ("matmul", "exp", "sum", "add", *named):
        assert want in dot, (want, dot)
    assert dot.count("accumulate") == 2
    assert "saved result\\nfloat32 (4, 2)" in dot, "exp keeps its result"
    assert dot.startswith("digraph") and dot.count("{") == dot.count("}")


def test_a_leaf_and_a_plain_tensor_are_drawn():
    leaf = wg.ones(3, requires_grad=True)
    assert "leaf0 -> root" in wg.draw(leaf).dot
    assert "-> root" not in wg.draw(wg.ones(3)).dot


def test_shared_values_are_drawn_once_and_what_was_freed_is_gone():
    x = wg.ones(3, requires_grad=True)
    y = x.exp()
    z = (y * y + y).sum()
    dot = wg.draw(z).dot
    assert dot.count('label="exp\\n') == 1 and "saved" in dot
    z.backward()
    after = wg.draw(z).dot
    assert "saved" not in after and "freed by a backward" in after


def test_modules_name_their_parameters():
    model = wg.nn.Linear(3, 2)
    loss = model(wg.ones((1, 3))).sum()
    dot = wg.draw(loss, params=model).dot
    assert "weight" in dot and "bias" in dot
    with pytest.raises(TypeError, match="dictionary of tensors or a module"):
        wg.draw(loss, params=3)


def test_a_long_tape_is_drawn_without_recursion():
    x = wg.ones(2, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + 1.0
    assert len(re.findall(r"^  \w+ -> \w+", wg.draw(y).dot, re.M)) == 5001


def test_without_graphviz_there_is_a_remedy_and_html(monkeypatch):
    monkeypatch.setattr(pictures.shutil, "which", lambda _: None)
    picture = wg.draw(wg.ones(2, requires_grad=True).exp())
    with pytest.raises(RuntimeError, match="install Graphviz"):
        picture.to_svg()
    assert picture._repr_svg_() is None
    assert "exp" in picture._repr_html_() and "title=" in picture._repr_html_()


def test_what_dot_refuses_is_said(monkeypatch, tmp_path):
    fake = tmp_path / "dot"
    fake.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(pictures.shutil, "which", lambda _: str(fake))
    with pytest.raises(RuntimeError, match="status 3: no such thing"):
        pictures.svg_of("digraph {}")


@pytest.mark.skipif(GRAPHVIZ is None, reason="Graphviz is not installed")
def test_graphviz_reads_the_source(tmp_path):
    picture = wg.draw((wg.ones((2, 2), requires_grad=True).exp() * 2).sum())
    svg = picture.to_svg(tmp_path / "tape.svg")
    assert "<svg" in svg and (tmp_path / "tape.svg").read_text() == svg
    assert picture._repr_svg_() == svg
    done = subprocess.run([GRAPHVIZ, "-Tplain"], input=picture.dot.encode(), capture_output=True)
    assert done.returncode == 0 and not done.stderr


def node(id, op, inputs=(), name=None, shape=(2, None), dtype=wg.float32, line=None):
    site = line and SimpleNamespace(filename="model.py", lineno=line)
    return SimpleNamespace(
        id=id, op=op, inputs=list(inputs), name=name, shape=shape, dtype=dtype, site=site,
        attributes=f"{op}(...)", scope=None, is_backward=False,
    )  # fmt: skip


def small_graph():
    x = node(0, "input", name="the x", line=3)
    y = node(1, "input", name="the_x", shape=None, dtype=wg.bfloat16)
    z = node(2, "add", [x, y], shape=(2, 3))
    return SimpleNamespace(nodes=[x, y, z])


def test_tensorboard_reads_what_is_written(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    path = wg.io.tensorboard.write_graph(tmp_path / "logs", small_graph())
    assert path.startswith(str(tmp_path / "logs")) and "tfevents" in path
    events = accumulators.EventAccumulator(path)
    events.Reload()
    read = events.Graph()
    assert [n.name for n in read.node] == ["the_x", "the_x_1", "add_2"], "names are made unique"
    assert list(read.node[2].input) == ["the_x", "the_x_1"] and read.node[2].op == "add"
    assert read.node[0].attr["site"].s == b"model.py:3"
    assert [d.size for d in read.node[0].attr["_output_shapes"].list.shape[0].dim] == [2, -1]
    assert read.node[1].attr["_output_shapes"].list.shape[0].unknown_rank
    again = wg.io.tensorboard.write_graph(tmp_path / "logs", small_graph())
    assert again != path


def test_every_dtype_has_a_name_in_tensorflow():
    types = pytest.importorskip("tensorboard.compat.proto.types_pb2")
    from wengert.io import tensorboard

    names = {str(getattr(wg, name)).removeprefix("wengert.") for name in tensorboard._TYPES}
    assert names == set(tensorboard._TYPES)
    assert all(hasattr(types, name) for name in tensorboard._TYPES.values())


def test_without_tensorboard_there_is_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(ImportError, match=r"pip install 'wengert\[tensorboard\]'"):
        wg.io.tensorboard.write_graph(tmp_path, small_graph())


def captured():
    with wg.Graph() as g:
        x = wg.placeholder("x", (4, 3))
        y = (x * 2.0 + 1.0).exp()
        wg.nn.softmax(y, axis=-1)
    return g


def test_graphs_are_drawn_with_lines_costs_and_groups():
    g = captured()
    dot = g.to_dot()
    for want in ('input \\"x\\"\\nfloat32 (4, 3)', "softmax", "test_pictures.py:", "operations"):
        assert want in dot, (want, dot)
    assert "cluster_group" not in dot, "softmax is one node, which no plan has"
    with wg.Graph() as g:
        x = wg.placeholder("x", (4, 3))
        (x * 2.0 + 1.0).exp()
    drawn = g.optimize(outputs=g.nodes[-1]).to_dot()
    assert "cluster_group_0" in drawn and "multiply, add, exp" in drawn
    assert "cluster_group" not in g.optimize(outputs=g.nodes[-1]).to_dot(groups=False)


def test_graphs_in_notebooks(monkeypatch):
    g = captured()
    monkeypatch.setattr(pictures.shutil, "which", lambda _: None)
    assert g._repr_svg_() is None
    text = g._repr_html_()
    assert "softmax" in text and "title=" in text and "test_pictures.py" in text
    with pytest.raises(RuntimeError, match="install Graphviz"):
        g.to_svg()


@pytest.mark.skipif(GRAPHVIZ is None, reason="Graphviz is not installed")
def test_graphviz_reads_graphs(tmp_path):
    g = captured()
    svg = g.to_svg(tmp_path / "graph.svg")
    assert "softmax" in svg and g._repr_svg_() == svg
    assert g._repr_html_() == svg[svg.index("<svg") :] + g.to_html()


def test_tensorboard_reads_graphs(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    g = captured()
    events = accumulators.EventAccumulator(wg.io.tensorboard.write_graph(tmp_path, g))
    events.Reload()
    read = {n.name: n for n in events.Graph().node}
    assert len(read) == len(g) and read["x"].op == "input"
    assert any(n.op == "softmax" and b"test_pictures.py" in n.attr["site"].s for n in read.values())


FUSSY = """#!{python}
import sys
text = sys.stdin.read()
if "subgraph \\"cluster_" in text:
    sys.stderr.write("Error: trouble in init_rank\\n" + "\\t%0 1\\n" * 1000)
    sys.exit(1)
print("<svg>" + text + "</svg>")
"""


def test_a_graph_whose_boxes_graphviz_refuses_is_drawn_without_them(monkeypatch, tmp_path):
    fake = tmp_path / "dot"
    fake.write_text(FUSSY.format(python=sys.executable))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    def f(x):
        return wg.cond(x.sum() > 0, lambda v: (v * 2).exp(), lambda v: v.tanh(), x)

    graph = wg.compile(f).graph(wg.ones(3))
    assert 'subgraph "cluster_' in graph.to_dot()
    svg = graph.to_svg()
    assert "boxes around nodes are left out" in svg and "exp" in svg and "cluster_" not in svg
    plain = wg.draw(wg.ones(2, requires_grad=True).exp()).to_svg()
    assert "left out" not in plain


def test_an_error_of_dot_is_one_line(monkeypatch, tmp_path):
    fake = tmp_path / "dot"
    fake.write_text("#!/bin/sh\nfor i in 1 2 3; do echo trouble $i >&2; done\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(pictures.shutil, "which", lambda _: str(fake))
    with pytest.raises(RuntimeError) as error:
        pictures.svg_of("digraph {}")
    assert str(error.value) == "to_svg: dot failed with status 1: trouble 1 (2 more lines)"


def training_graph():
    """The list of a training step of two transformer blocks: groups that depend on each other."""
    nn = wg.nn

    class Block(nn.Module):
        def __init__(self):
            self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
            self.attend = nn.MultiHeadAttention(8, 2)
            self.mix = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

        def forward(self, x):
            y = self.first(x)
            x = x + self.attend(y, y, y)
            return x + self.mix(self.second(x))

    model = nn.Sequential(Block(), Block(), nn.Linear(8, 5))
    opt = wg.optim.Adam(model.parameters())

    @wg.compile
    def step(x, y):
        opt.zero_grad()
        loss = nn.cross_entropy(model(x).reshape(-1, 5), y)
        loss.backward()
        opt.step()
        return loss

    return step.graph(wg.ones((2, 6, 8)), wg.zeros(12, dtype=wg.int64))


def test_large_graphs_are_drawn_so_that_a_layout_ends():
    graph = training_graph()
    dot = graph.to_dot(groups=True)
    assert len(graph) > 800 and "cluster_group" in dot and "newrank=true" in dot
    arrows = re.findall(r"n\d+ -> n\d+.*", dot)
    assert arrows and not any("label" in arrow for arrow in arrows) and "nslimit" in dot
    if GRAPHVIZ:
        svg = graph.to_svg(groups=True)
        assert "left out" not in svg and svg.count('class="cluster"') > 10
