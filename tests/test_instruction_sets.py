"""docs/numerics.md: bits depend on the instruction set in products and convolutions only."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from test_ops_values import OPS, outputs, samples

import wengert as wg

from support import Operands, domain_of, dtypes_of, function, label, to_numpy

ROOT = Path(__file__).parent.parent
# Nodes whose kernels are sums of products.
PRODUCTS = (" matmul(", " conv", " scaled_dot_product_attention(", " lstm(", " gru(", " rnn(")


def prepared(op, sample):
    """A function of an op's tensors, and these."""
    dtype = dtypes_of(op, sample)[-1]
    operands = Operands((label(op), sample), dtype, domain_of(op))
    operands.evaluate(sample, lambda kind, array: wg.asarray(array))
    values = [wg.asarray(array) for _, array in operands.drawn]

    def call(*tensors):
        left = iter(tensors)
        args, kwargs = operands.evaluate(sample, lambda kind, array: next(left))
        return outputs(function(op)(*args, **kwargs))

    return call, values


def results():
    """For each op and sample the checksum of its results' bits."""
    found = {}
    for op in OPS:
        for n, sample in enumerate(samples(op)):
            call, values = prepared(op, sample)
            data = b"".join(to_numpy(y).tobytes() for y in call(*values))
            found[f"{label(op)} {n}"] = zlib.crc32(data)
    return found


def multiplies(op, sample):
    """Whether the op's list has a product or convolution in it."""
    call, values = prepared(op, sample)
    with wg.Graph() as graph:
        given = [wg.placeholder(f"x{i}", x.shape, x.dtype) for i, x in enumerate(values)]
        fetches = call(*given)
    lines = str(graph.optimize(fetches))
    return any(name in lines for name in PRODUCTS)


def run(isa):
    command = [sys.executable, "-c", "import json, test_instruction_sets as t; "
               "print(json.dumps(t.results()))"]
    paths = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, env=os.environ | {"WENGERT_ISA": isa, "PYTHONPATH": paths},
                          cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("isa", ["v3", "v4"])
def test_only_products_depend_on_the_instruction_set(isa):
    base, other = run("base"), run(isa)
    assert base.keys() == other.keys() and len(base) > 300
    differ = {name for name in base if base[name] != other[name]}
    of = {f"{label(op)} {n}": (op, s) for op in OPS for n, s in enumerate(samples(op))}
    wrong = [name for name in sorted(differ) if not multiplies(*of[name])]
    assert not wrong, wrong
