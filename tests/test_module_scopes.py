"""Nodes know the modules in whose calls they were traced; pictures are drawn by these."""

import re

import pytest

import wengert as wg
from wengert import nn, optim


class Block(nn.Module):
    def __init__(self, width):
        self.norm = nn.LayerNorm(width)
        wide = 2 * width
        self.mix = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        return x + self.mix(self.norm(x))


class Model(nn.Module):
    def __init__(self, blocks=4, width=8):
        self.enter = nn.Linear(3, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def training(blocks=4):
    """A training step, and arguments."""
    wg.random.seed(0)
    model = Model(blocks)
    optimizer = optim.AdamW(model.parameters())

    @wg.compile
    def step(x, classes):
        loss = nn.cross_entropy(model(x), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, (wg.ones((2, 3)), wg.zeros(2, dtype=wg.int64))


@pytest.fixture(scope="module")
def graph():
    step, args = training()
    return step.graph(*args)


def places(graph):
    return {(node.scope, node.is_backward) for node in graph.nodes}


# What nodes know.


def test_nodes_know_the_modules_in_whose_calls_they_were_traced():
    model = Model(2)
    graph = wg.compile(lambda x: model(x).exp()).graph(wg.ones((2, 3)), optimized=False)
    found = {}
    for node in graph.nodes:
        found.setdefault(node.scope, []).append(node.op)
    assert found[None] == ["input", "exp"]
    assert found["Model/enter"].count("linear") == 1
    assert found["Model/blocks.1"] == ["add"]
    assert found["Model/blocks.1/mix/1"] == ["gelu"]
    assert "layer_norm" in found["Model/blocks.0/norm"]


def test_inputs_have_names_and_parameters_belong_where_they_are_first_read(graph):
    inputs = {node.name: node.scope for node in graph.inputs}
    assert None not in inputs and len(inputs) == len(graph.inputs)
    assert inputs["x"] is None and inputs["classes"] is None
    assert inputs["model.blocks.2.mix.0.weight"] == "Model/blocks.2/mix/0"
    assert inputs["model.head.bias.exp_avg"] == "AdamW/head.bias"


def test_modules_that_are_arguments_give_names_too():
    step = wg.compile(lambda model, x: model(x))
    inputs = step.graph(nn.Linear(3, 2), wg.ones((1, 3))).inputs
    assert {node.name for node in inputs} == {"model.weight", "model.bias", "x"}


@pytest.mark.parametrize("optimized", [True, False])
def test_gradients_belong_to_the_scope_of_what_they_are_of(optimized):
    step, args = training(2)
    found = places(step.graph(*args, optimized=optimized))
    for scope in ("Model/enter", "Model/blocks.0/mix/0", "Model/blocks.1/norm", "Model/head"):
        assert {(scope, False), (scope, True)} <= found, scope
    assert {("AdamW/head.weight", False)} <= found
    assert not any(scope and scope.startswith("AdamW") and back for scope, back in found)
    assert (None, True) in found, "the gradient of the loss is of no module"


def test_gradients_of_wg_grad_and_of_second_order():
    layer = nn.Linear(3, 1)
    g = wg.grad(lambda x: layer(x).tanh().sum())
    second = wg.grad(lambda x: (g(x) ** 2).sum())
    graph = wg.compile(second).graph(wg.ones((2, 3)))
    assert ("Linear", True) in places(graph)


def test_bodies_of_control_flow_are_in_the_scope_of_their_modules():
    layer = nn.Linear(3, 3)
    f = wg.compile(lambda x: wg.fori_loop(0, 3, lambda i, v: layer(v), x).sum())
    assert f(wg.ones((1, 3))).shape == ()
    assert f.graph(wg.ones((1, 3))).to_html()


def test_a_node_that_is_computed_once_for_several_modules_belongs_to_their_caller():
    class Angle(nn.Module):
        def forward(self, x):
            return x * angles.exp()

    angles = wg.arange(4.0)
    model = nn.Sequential(Angle(), Angle())
    graph = wg.compile(lambda x: model(x)).graph(wg.ones(4))
    (shared,) = (node for node in graph.nodes if node.op == "exp")
    assert shared.scope == "Sequential"
    assert [n.scope for n in graph.nodes if n.op == "multiply"] == ["Sequential/0", "Sequential/1"]


def test_modules_of_one_class_that_nobody_holds_are_told_apart():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    graph = wg.compile(lambda x: b(a(x)) + a(x)).graph(wg.ones((1, 3)), optimized=False)
    assert [n.scope for n in graph.nodes if n.op == "linear"] == ["Linear", "Linear 2", "Linear"]


def test_named_scopes_are_as_modules():
    w = wg.ones((3, 3), requires_grad=True)

    @wg.compile
    def step(x):
        for i in range(4):
            with wg.named_scope(f"decoder/layers.{i}"):
                x = (x @ w).tanh()
        return wg.gradients(x.sum(), [w])[0]

    graph = step.graph(wg.ones((1, 3)))
    assert ("decoder/layers.3", True) in places(graph)
    assert {n.scope for n in graph.inputs if n.name == "w"} == {"decoder/layers.0"}
    assert "layers.1–3 ×3" in boxes(graph.to_dot(depth=1))
    with wg.Graph() as by_hand:
        x = wg.placeholder("x", (3,))
        with wg.named_scope("twice"):
            x * 2.0
    assert [n.scope for n in by_hand.nodes][-1] == "twice"
    with pytest.raises(TypeError, match="the name must be a string: got int"), wg.named_scope(3):
        pass
    with pytest.raises(ValueError, match="must not be empty: got 'a/'"), wg.named_scope("a/"):
        pass


def test_a_call_that_fails_leaves_no_scope():
    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError("broken")

    broken = Broken()

    @wg.compile
    def f(x):
        with pytest.raises(KeyError):
            broken(x)
        return x.exp()

    graph = f.graph(wg.ones(2))
    assert {node.scope for node in graph.nodes} == {None}
    with pytest.raises(KeyError):
        wg.compile(lambda x: broken(x))(wg.ones(2))
    assert {n.scope for n in wg.compile(lambda x: x.exp()).graph(wg.ones(2)).nodes} == {None}


def test_scopes_change_nothing_that_is_computed():
    step, args = training()
    eager, _ = training()
    for _ in range(2):
        assert step(*args).tolist() == eager.__wrapped__(*args).tolist()


# Pictures.


def clusters(dot):
    return re.findall(r'subgraph "cluster_p\d+" { label="([^"]*)"', dot)


def boxes(dot):
    """The first lines of what boxes say."""
    return re.findall(r'^ *[np]\d+ \[label="(.*?)(?:\\n|")', dot, re.M)


def test_equal_modules_are_drawn_once(graph):
    dot = graph.to_dot()
    found = clusters(dot) + boxes(dot)
    assert {"Model", "backward"} <= set(clusters(dot))
    assert any(re.fullmatch(r"blocks\.\d–\d ×\d", name) for name in found), found
    assert len(boxes(dot)) < 60 < len(graph) // 4
    assert dot.count("{") == dot.count("}")
    drawn = set(re.findall(r"^ *([np]\d+) \[", dot, re.M))
    arrows = re.findall(r"^ *([np]\d+) -> ([np]\d+)", dot, re.M)
    assert arrows and {end for arrow in arrows for end in arrow} <= drawn
    assert len(set(arrows)) >= len(drawn) - 20


def test_forward_blocks_of_a_model_are_all_equal():
    model = Model(5)
    graph = wg.compile(lambda x: model(x)).graph(wg.ones((2, 3)))
    dot = graph.to_dot(depth=1)
    assert boxes(dot).count("blocks.0–4 ×5") == 1 and "each 1" in dot
    opened = graph.to_dot(depth=2)
    assert "blocks.0–4 ×5" in clusters(opened)
    again = [line for line in opened.splitlines() if "->" in line and "style=dashed" in line]
    assert len(again) == 1, "the residual of one block goes into the next"


def test_depth_and_expand_open_modules():
    model = Model(3)
    graph = wg.compile(lambda x: model(x)).graph(wg.ones((2, 3)))
    closed = graph.to_dot(depth=0)
    assert clusters(closed) == [] and boxes(closed) == ["input x", "Model"]
    assert clusters(graph.to_dot(depth=1)) == ["Model"]
    opened = clusters(graph.to_dot(depth=1, expand="Model/blocks.2/mix"))
    assert opened == ["Model", "blocks.0–2 ×3", "mix"], "equal modules are drawn as one"
    assert "1: " not in opened
    every = graph.to_dot(depth=9)
    assert "gelu" not in boxes(graph.to_dot(depth=1)) and clusters(every).count("mix") == 1


def test_what_to_dot_refuses(graph):
    with pytest.raises(ValueError, match=r"expand: 'Model/block' is no part: Model has enter, bl"):
        graph.to_dot(expand="Model/block")
    with pytest.raises(ValueError, match="depth must not be negative: got -1"):
        graph.to_dot(depth=-1)
    with pytest.raises(ValueError, match="groups shows all nodes"):
        graph.to_dot(groups=True, depth=1)
    assert len(boxes(graph.to_dot(groups=False))) > 200


def test_the_tree_in_html_says_what_modules_hold(graph):
    page = graph.to_html()
    assert page.count("<details") == page.count("</details>") > 10
    assert page.count("<div") == page.count("</div>") < len(graph)
    for want in ("Model", "backward", "AdamW", "blocks.0", "×", "FLOP", "inputs of", "result"):
        assert want in page, want
    assert "model.blocks.0.mix.0.weight: float32 (16, 8)" in page
    assert "model.blocks.2.mix.0.weight: float32" not in page, "folded"
    assert graph._repr_html_().endswith(page)


def test_what_a_module_holds_adds_up():
    layer = nn.Linear(8, 4, bias=False)
    graph = wg.compile(lambda x: layer(x)).graph(wg.ones((2, 8)))
    dot = graph.to_dot(depth=0)
    # 2 · 2 · 8 · 4 operations on 2 · 8 + 8 · 4 numbers that give 2 · 4.
    assert "128 FLOP" in dot and "1 input of 128 B" in dot


def test_many_nodes_of_a_line_outside_modules_are_one_box(graph):
    def f(x):
        for _ in range(200):
            x = (x * 1.5).exp()
        return x

    dot = wg.compile(f).graph(wg.ones(3)).to_dot()
    (name,) = (name for name in boxes(dot) if name.startswith("test_module_scopes.py:"))
    assert name.endswith("x = (x * 1.5).exp()") and "400 ops" in dot


def test_small_graphs_without_modules_show_what_a_plan_runs_as_one():
    dot = wg.compile(lambda x: (x * 2 + 1).exp()).graph(wg.ones(3)).to_dot()
    assert "cluster_group_0" in dot


# Other pages.


def test_explain_names_modules_with_lines():
    step, args = training(1)
    step(*args)
    explanation = step.explain(*args)
    text = str(explanation)
    assert re.search(r"# .*test_module_scopes\.py:\d+ in Model/head$", text, re.M)
    assert re.search(r" in Model/blocks\.0/\S+, backward$", text, re.M)
    page = explanation._repr_html_()
    assert "<th" in page and "Model/head, backward" in page
    steps = step.plan(*args).steps
    assert {"Model/enter", "AdamW/head.bias"} <= {s.scope for s in steps}
    assert any(s.is_backward for s in steps)


def test_tensorboard_folds_by_modules(graph):
    from wengert.io._events import graph_bytes

    assert b"backward/Model/blocks.1/mix/0/" in graph_bytes(graph)
