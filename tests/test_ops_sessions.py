"""Every op in a graph defined by hand: the bits of eager code for sizes that are given, sizes that
are open, and ranks that are unknown; gradients too."""

import numpy as np
import pytest
from test_ops_values import outputs, samples

import wengert as wg

from support import TABLE, Operands, differentiable, domain_of, dtypes_of, function, label

OPS = [op for op in TABLE if op["function"] and op["kind"] not in ("create", "host")]
SHAPES = {
    "given": lambda shape: shape,
    "open": lambda shape: (None,) * len(shape),
    "unknown": lambda shape: None,
}
# An op whose count of results depends on a size of its operand cannot be written before the size is
# known.
COUNTS = {"unstack", "broadcast_arrays", "meshgrid", "split", "chunk"}
REFUSED = (wg.GraphError, wg.ShapeError, wg.CaptureError)


def eager(op, operands, sample, dtype):
    made = []

    def wrap(kind, array):
        x = wg.asarray(array)
        if kind == "x" or array.dtype.kind == "f":
            x = x.astype(getattr(wg, dtype if kind == "x" else "float32"))
        if x.dtype in (wg.float32, wg.float64) and differentiable(op):
            x.requires_grad = True
        made.append(x)
        return x

    args, kwargs = operands.evaluate(sample, wrap)
    return outputs(function(op)(*args, **kwargs)), made


def defined(op, operands, sample, given, shape):
    """The results as tensors of a graph, and its placeholders."""
    values, inputs = iter(given), []

    def wrap(kind, array):
        x = next(values)
        p = wg.placeholder(f"p{len(inputs)}", SHAPES[shape](x.shape), x.dtype)
        inputs.append(p)
        return p

    args, kwargs = operands.evaluate(sample, wrap)
    return outputs(function(op)(*args, **kwargs)), inputs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", OPS, ids=label)
def test_a_session_computes_the_bits_of_eager_code(op, shape):
    for sample in samples(op):
        dtypes = dtypes_of(op, sample)
        dtype = "float32" if "float32" in dtypes else dtypes[-1]
        operands = Operands((label(op), sample, dtype), dtype, domain_of(op))
        want, made = eager(op, operands, sample, dtype)
        with wg.Graph() as g:
            try:
                got, inputs = defined(op, operands, sample, made, shape)
            except REFUSED:
                assert shape == "unknown" or op["name"] in COUNTS, (
                    "refused although ranks are known"
                )
                continue
            feeds = {p: x.detach() for p, x in zip(inputs, made, strict=True)}
            if len(got) != len(want):
                # The count was taken for likely: the run says that it is another.
                assert op["name"] in COUNTS
                with pytest.raises(wg.GraphError, match="how many results"):
                    wg.Session(g).run(got, feeds)
                continue
            ys = [(y, x) for y, x in zip(got, want, strict=True) if x.requires_grad]
            xs = [(p, x) for p, x in zip(inputs, made, strict=True) if x.requires_grad]
            found = [None] * len(xs)
            if ys and xs:
                seeds = [wg.ones_like(y) for y, _ in ys]
                found = wg.gradients(
                    [y for y, _ in ys], [p for p, _ in xs], seeds, allow_unused=True
                )
        s = wg.Session(g)
        results = s.run([got, [d for d in found if d is not None]], feeds)
        for a, b in zip(results[0], want, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_array_equal(a.numpy(), b.detach().numpy())
        if ys and xs:
            wanted = wg.gradients(
                [x for _, x in ys],
                [x for _, x in xs],
                [wg.ones_like(x) for _, x in ys],
                allow_unused=True,
            )
            grads = iter(results[1])
            for d, b in zip(found, wanted, strict=True):
                a = None if d is None else next(grads).numpy()
                if a is None or b is None:
                    assert (a is None or not a.any()) and (b is None or not b.numpy().any())
                else:
                    np.testing.assert_array_equal(a, b.numpy())
