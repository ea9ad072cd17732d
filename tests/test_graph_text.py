"""The text of graphs: complete, stable, and read back to an equal graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wengert as wg


def same(g):
    text = str(g)
    back = wg.parse_graph(text)
    assert back == g, text
    plain = [line.split("  # ")[0] for line in text.splitlines()]
    assert str(back).splitlines() == plain
    return text


def test_a_graph_reads_back_with_names_constants_and_lines():
    k = wg.asarray(np.arange(200.0).reshape(10, 20))
    with wg.Graph() as g:
        x = wg.placeholder("x", (None, 10), dtype=wg.float64)
        y = x @ k + wg.asarray([1.0, float("nan"), -0.0, 0.1] * 5, dtype=wg.float64)
        wg.nn.gelu(y, approximate="tanh").sum(axis=0)
    text = same(g)
    assert 'input "x"' in text and "base64=" in text and "nan" in text
    assert "test_graph_text.py:" in text and 'approximate="tanh"' in text


def test_a_captured_graph_with_its_gradient_reads_back():
    w = wg.ones((3, 2), requires_grad=True)

    @wg.compile
    def step(x):
        loss = (wg.nn.softmax(x @ w, axis=-1) ** 2).mean()
        loss.backward()
        return loss

    same(step.graph(wg.ones((4, 3))))


UNARY = ["exp", "tanh", "abs", "negative", "sqrt"]
BINARY = ["add", "multiply", "maximum", "subtract"]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_graphs_read_back(data):
    with wg.Graph() as g:
        values = [wg.placeholder("x", (2, 3)), wg.placeholder("y", (3,))]
        for _ in range(data.draw(st.integers(1, 12))):
            a = data.draw(st.sampled_from(values))
            kind = data.draw(st.sampled_from(["unary", "binary", "number", "sum", "reshape"]))
            if kind == "unary":
                values.append(getattr(wg, data.draw(st.sampled_from(UNARY)))(a))
            elif kind == "binary":
                f = getattr(wg, data.draw(st.sampled_from(BINARY)))
                values.append(f(a, data.draw(st.sampled_from(values[:2]))))
            elif kind == "number":
                values.append(a * data.draw(st.floats(allow_nan=False)))
            elif kind == "sum":
                values.append(a.sum(axis=-1, keepdims=True))
            else:
                values.append(a.reshape(a.shape[::-1]).reshape(a.shape))
    same(g)


@pytest.mark.parametrize("text, message", [
    ("nonsense", "line 1: expected a node, return or a closing brace: got nonsense"),
    ("%0: float32 (2,) = input\n%1: float32 (2,) = frob(%0)", "line 2: expected the name of an op"),
    ("%0: float32 (2,) = input\n%1: float32 (3,) = exp(%0)", "node %1 \\(exp\\) breaks the law"),
    ("%0: float32 (2,) = exp(%0)", "does not stand before it"),
    ("%0: float32 (2, 2) = constant([1.0])", "line 1: expected the elements of"),
])  # fmt: skip
def test_what_says_no_graph_is_refused(text, message):
    with pytest.raises(wg.GraphError, match=message):
        wg.parse_graph(text)


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet='%0123456789:=(),.[]{}# \n"abcdefiloprstuxy_->', max_size=200))
def test_any_text_is_a_graph_or_a_refusal(text):
    try:
        graph = wg.parse_graph(text)
    except wg.Error as error:
        assert str(error).startswith("parse_graph: ")
    else:
        assert wg.parse_graph(str(graph)) == graph
