"""The text of every op's graph reads back to an equal graph that computes the same bits: as
written, for open sizes, as the compiler runs it; gradients, control flow and batches too."""

import pytest
from test_laws_modes import FLOWS, STEPS
from test_laws_modes import operands as floats
from test_modes import program_of
from test_modes_laws import CREATED
from test_ops_gradients import OPS as DIFFERENTIABLE
from test_ops_gradients import scalar_of, setup
from test_ops_sessions import COUNTS, REFUSED
from test_ops_values import OPS, samples

import wengert as wg

from modes import bits
from support import dtypes_of, label

# Their formulas need the number of elements: a call is kept for the run, which has no text.
KEPT = {"quantile", "trace"}


def assert_reads_back(graph):
    """The graph that the text gives is equal, and its text is the same but for lines of Python."""
    text = str(graph)
    back = wg.parse_graph(text)
    assert back == graph, text
    assert str(back).splitlines() == [line.split("  # ")[0] for line in text.splitlines()], text
    return back


def results(graph, fetches, feeds):
    """What the nodes at these places compute; inputs without a feed start random numbers."""
    nodes = list(graph.nodes)
    rest = [n.id for n in nodes if n.op == "input" and n.id not in feeds]
    feeds = feeds | {i: wg.zeros(nodes[i].shape, dtype=nodes[i].dtype) for i in rest}
    run = wg.Session(graph).run
    return bits(run([nodes[i] for i in fetches], {nodes[i]: x for i, x in feeds.items()}))


def check(program, args, shapes):
    """The graph of a program over placeholders of these shapes, then its optimised form."""
    with wg.Graph() as graph:
        inputs = [
            wg.placeholder(f"x{i}", shape, x.dtype)
            for i, (x, shape) in enumerate(zip(args, shapes, strict=True))
        ]
        made = wg.pytree.flatten(program(*inputs))[0]
    back = assert_reads_back(graph)
    made = [graph._core.id_of(x) for x in made if isinstance(x, wg.Tensor)]
    feeds = {graph._core.id_of(p): x for p, x in zip(inputs, args, strict=True)}
    assert results(back, made, feeds) == results(graph, made, feeds)
    if made:
        assert_reads_back(graph.optimize([graph.nodes[i] for i in made]))


def known(x):
    return tuple(x.shape)


@pytest.mark.parametrize("op", OPS, ids=label)
def test_ops(op):
    for sample in samples(op):
        program, values = program_of(op, sample, dtypes_of(op, sample)[-1])
        check(program, values, [known(x) for x in values])


@pytest.mark.parametrize("op", OPS, ids=label)
def test_ops_over_open_sizes(op):
    sample = samples(op)[0]
    program, values = program_of(op, sample, dtypes_of(op, sample)[-1])
    with wg.Graph() as graph:
        try:
            program(*[
                wg.placeholder(f"x{i}", (None,) * x.ndim, x.dtype) for i, x in enumerate(values)
            ])  # fmt: skip
        except REFUSED:
            assert op["name"] in COUNTS
            return
    kept = op["name"] in KEPT
    if kept or any(node.shape is None for node in graph.nodes):
        call = r"the name of an op|argument q of quantile"
        words = call if kept else r"a type such as .*: got \w+ \?"
        with pytest.raises(wg.GraphError, match=rf"line \d: expected ({words})"):
            wg.parse_graph(str(graph))
    else:
        assert_reads_back(graph)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=label)
def test_gradients(op):
    sample = samples(op)[0]
    call, values = setup(op, sample)
    f = scalar_of(call, label(op))
    if call(*values):
        gradient = wg.compile(wg.grad(f, argnums=tuple(range(len(values)))))
        assert_reads_back(gradient.graph(*values))
        check(lambda *xs: wg.grad(f)(*xs), values, [known(x) for x in values])


@pytest.mark.parametrize("name", CREATED)
def test_numbers_made_from_nothing(name):
    names = {k: getattr(wg, k) for k in dir(wg) if not k.startswith("_")} | {"wg": wg}
    check(lambda x: (eval(f"({CREATED[name]},)", names), x * 2), [wg.ones(3)], [(3,)])


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("open_sizes", [False, True], ids=["given", "open"])
def test_steps_and_control_flow(step, open_sizes):
    args = floats((3, 4))
    shapes = [(None, None) if open_sizes and step not in FLOWS else (3, 4)] * 2
    check(lambda x, y: step(x, y, 1, 2), args, shapes)
    f = wg.compile(lambda x, y: wg.grad(lambda v: step(v, y, 1, 2).sum())(x))
    assert_reads_back(f.graph(*args))
    assert_reads_back(wg.compile(lambda x, y: wg.vmap(lambda a: step(a, y, 1, 2))(x)).graph(
        wg.stack([args[0], args[1]]), args[1]
    ))  # fmt: skip
