"""Headless Chromium: every shader compiles there without a message.

Its compiler is another one than that of the adapters here, and refuses more: barriers where
invocations may part, and constants that overflow.
"""

import browser as browsers
import pytest
from kernels import strided
from test_modes import program_of
from test_ops_values import samples

import wengert as wg
from wengert import _core

from support import TABLE, dtypes_of, label, missing, wanted_gpu

# Compiles texts, some at a time, and every so manieth to the end; gives the messages.
COMPILE = """async (texts, every) => {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const complaints = [];
  const compile = async (code, i) => {
    device.pushErrorScope('validation');
    const module = device.createShaderModule({code});
    const made = i % every ? null
      : device.createComputePipelineAsync({layout: 'auto', compute: {module}});
    const scope = device.popErrorScope();
    const said = (await module.getCompilationInfo()).messages.map(
      m => `${m.type}: ${m.message}: line ${m.lineNum}: ${code.split('\\n')[m.lineNum - 1]}`);
    await made?.catch(error => said.push(error.message));
    const error = await scope;
    if (error) said.push(error.message);
    if (said.length) complaints.push([code, said]);
  };
  for (let i = 0; i < texts.length; i += 32) {
    await Promise.all(texts.slice(i, i + 32).map((code, k) => compile(code, i + k)));
  }
  device.destroy();
  return complaints;
}"""


@pytest.fixture(scope="module")
def browser():
    wanted_gpu()
    found = browsers.start()
    if isinstance(found, str):
        missing(found)
    yield found
    found.close()


def texts():
    """Every text that kernels of the table's ops give, for every dtype and kind of memory, with
    what it is of. Composites that stay whole in graphs are made of the same kernels."""
    found, whole = {}, {op["name"] for op in TABLE if op["kind"] == "composite"}
    for op in (op for op in TABLE if op["function"]):
        for sample in samples(op):
            for dtype in dtypes_of(op, sample):
                try:
                    program, values = program_of(op, sample, dtype)
                    graph = wg.compile(program).graph(*values, optimized=False)
                except (wg.Error, TypeError):
                    continue  # the sample is not for this dtype
                nodes = list(graph.nodes)
                if nodes[-1].op == "input":
                    continue  # the result is the operand
                if any(node.dtype == wg.float64 or node.op in whole for node in nodes):
                    continue
                for layouts in ([], [strided(x)[1] for x in values]):
                    for dispatch in _core._kernels(str(graph), layouts)[0]:
                        found.setdefault(dispatch[0], f"{label(op)}({sample}) with {dtype}")
    return found


def test_every_shader_compiles(browser, full):
    of = texts()
    assert len(of) > 1000
    complaints = browser.evaluate(COMPILE, list(of), 1 if full else 8, seconds=300)
    assert not complaints, [(of[text], said) for text, said in complaints[:5]]


def test_what_a_browser_refuses_is_seen(browser):
    """The test above would tell: a barrier where invocations part, which others let pass."""
    text = """
        var<workgroup> all: array<u32, 64>;
        @compute @workgroup_size(64)
        fn main(@builtin(local_invocation_id) id: vec3<u32>) {
            if id.x < 7u { workgroupBarrier(); all[id.x] = 1u; }
        }"""
    (_, said), = browser.evaluate(COMPILE, [text], 1)
    assert "uniform control flow" in said[0]
