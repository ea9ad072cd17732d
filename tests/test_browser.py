"""Headless Chromium: every shader compiles there without a message, and programs give the numbers
of the CPU.

Its compiler is another one than that of the adapters here, and refuses more: barriers where
invocations may part, and constants that overflow.
"""

import base64
from pathlib import Path

import browser as browsers
import numpy as np
import pytest
from kernels import strided
from test_modes import program_of
from test_ops_values import samples

import wengert as wg
from wengert import _core, nn, optim, webgpu

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
                    try:
                        dispatches = _core._kernels(str(graph), layouts)[0]
                    except wg.InternalError as error:
                        # A composite that only formulas call.
                        assert "was not expanded" in str(error), error
                        break
                    for dispatch in dispatches:
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


# Runs a program with each list of inputs; an error stands for the outputs of its run.
PLAY = """async (path, runs) => {
  const {Program, Player} = await import('/player/player.js');
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const lost = [];
  device.onuncapturederror = event => lost.push(event.error.message);
  const player = new Player(await Program.load(path), device);
  const decoded = ([type, text]) => new globalThis[type](
    Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
  const encoded = x => {
    const bytes = new Uint8Array(x.buffer, x.byteOffset, x.byteLength);
    let text = '';
    for (const byte of bytes) text += String.fromCharCode(byte);
    return [x.constructor.name, x.shape, btoa(text)];
  };
  const results = [];
  for (const [inputs, sizes] of runs) {
    const run = player.run(inputs.map(decoded), sizes);
    results.push(await run.then(outputs => outputs.map(encoded), error => String(error)));
  }
  await player.destroy();
  device.destroy();
  return lost.length ? lost : results;
}"""
ARRAY = {"bool": "Uint8Array", "float16": "Uint16Array", "bfloat16": "Uint16Array",
         "int64": "BigInt64Array", "uint64": "BigUint64Array"}


@pytest.fixture(scope="module")
def play(browser, tmp_path_factory):
    """Runs a program in the page, with lists of tensors; gives lists of tensors, or errors."""
    folder = tmp_path_factory.mktemp("programs")
    browser.files |= {"/programs": folder, "/player": Path(webgpu.__file__).parent}
    count = iter(range(1000))

    def run(program, *runs, sizes=None):
        name = f"{next(count)}.safetensors"
        program.save(folder / name)
        browser.open("/")
        sizes = sizes if isinstance(sizes, list) else [sizes or {}] * len(runs)
        pairs = zip(runs, sizes, strict=True)
        given = [([encoded(x) for x in inputs], size) for inputs, size in pairs]
        found = browser.evaluate(PLAY, f"/programs/{name}", given, seconds=120)
        assert not browser.complaints()
        return [x if isinstance(x, str) else
                [decoded(y, out.dtype) for y, out in zip(x, program.outputs, strict=True)]
                for x in found]

    return run


def array_of(dtype):
    return ARRAY.get(dtype) or f"{dtype.title()}Array"


def encoded(x):
    return array_of(x.dtype.name), base64.b64encode(_core._to_bytes(x)).decode()


def decoded(found, dtype):
    kind, shape, text = found
    assert kind == array_of(dtype)
    return _core._from_bytes(getattr(wg, dtype), tuple(shape), base64.b64decode(text))


def random_of(dtype, *shape):
    rng = np.random.default_rng(len(dtype))
    if dtype == "bool":
        return wg.tensor(rng.integers(0, 2, shape).astype(bool))
    if "float" in dtype:
        return wg.tensor(rng.uniform(-2, 2, shape).astype("f")).astype(getattr(wg, dtype))
    return wg.tensor(rng.integers(0, 100, shape).astype(dtype))


def assert_near(got, want, facts, ulps=64):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), facts
    if not want.dtype.is_floating:
        assert _core._to_bytes(got) == _core._to_bytes(want), facts
        return
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}[want.dtype.name]
    a, b = (x.astype(wg.float64).numpy() for x in (got, want))
    np.testing.assert_allclose(a, b, rtol=ulps * eps, atol=ulps * eps, err_msg=facts)


FUNCTIONS = {
    "elementwise": lambda x: (wg.where(x > x.mean(), x * x + 1, -x), x.max()),
    "moves": lambda x: (x.T, wg.concat([x[::-1], x[:, :0].sum(axis=1, keepdims=True) + x])),
    "orders": lambda x: (wg.sort(x, axis=1), wg.argmax(x, axis=0), wg.cumulative_sum(x, axis=0)),
    "product": lambda x: x @ x.T,
}
DTYPES = ["int8", "uint16", "int32", "int64", "uint64", "float16", "bfloat16", "float32"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_give_the_numbers_of_the_cpu(name, play):
    f = FUNCTIONS[name]
    for dtype in DTYPES:
        if name == "elementwise" and "int" in dtype:
            continue  # a mean of integers is float64 for some
        x = random_of(dtype, 5, 7)
        want = f(x)
        want = want if isinstance(want, tuple) else (want,)
        if any(y.dtype == wg.float64 for y in want):
            continue
        (found,) = play(webgpu.export(f, x), [x])
        for got, y in zip(found, want, strict=True):
            assert_near(got, y, f"{name} {dtype}", 256)


def test_sizes_may_be_open(play):
    n = wg.Dim("n")
    program = webgpu.export(lambda x: (nn.softmax(x), x.mean(axis=0)), wg.Spec((n, 5)))
    inputs = [random_of("float32", rows, 5) for rows in (1, 3, 200, 3, 7, 8, 9, 10)]
    for x, found in zip(inputs, play(program, *[[x] for x in inputs]), strict=True):
        for got, want in zip(found, (nn.softmax(x), x.mean(axis=0)), strict=True):
            assert_near(got, want, f"{x.shape}")


def test_a_training_step_keeps_its_state(play):
    wg.random.seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = random_of("float32", 16, 1, 8, 8), wg.arange(16) % 10

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step(x, y)
    program = webgpu.export(step, x, y)
    wrong = wg.where(wg.arange(16) == 3, wg.asarray(12), y)
    first, refused, *others = play(program, [x, y], [x, wrong], *[[x, y]] * 6)
    want = [step(x, y) for _ in range(7)]
    assert "12" in refused and "test_browser.py" in refused
    for (got,), loss in zip([first, *others], want, strict=True):
        assert_near(got, loss.detach(), "loss", 1 << 12)
    assert want[-1].item() < want[0].item() / 2


def test_loops_and_random_numbers_run_in_a_page(play):
    """A training step of a scan with dropout in its body, and an order along an open size."""
    wg.random.seed(0)
    cell, n = nn.Linear(3 + 4, 4), wg.Dim("n")
    optimizer = optim.Adam(cell.parameters(), lr=0.05)

    @wg.compile
    def step(xs):
        def body(h, x):
            h = wg.tanh(cell(wg.concat([x, h], axis=1)))
            return nn.dropout(h, 0.25, training=True), (h > 0).sum(axis=0).astype(wg.int8)

        optimizer.zero_grad()
        h, counts = wg.scan(body, wg.zeros((xs.shape[1], 4)), xs)
        loss = (h - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss, counts, wg.argsort(xs[0, :, 0])

    program = webgpu.export(step, wg.Spec((wg.Dim("t"), n, 3)))
    assert len(program.repeats) == 3 and program.generator is not None
    calls = [[random_of("float32", t, n, 3)] for t, n in ((3, 2), (5, 70), (1, 33), (3, 2))]
    sizes = [{"t": x.shape[0]} for (x,) in calls]
    for got, (x,) in zip(play(program, *calls, sizes=sizes), calls, strict=True):
        assert not isinstance(got, str), got
        want = step(x)
        assert_near(got[0], want[0].detach(), "loss", 1 << 14)
        for g, w in zip(got[1:], want[1:], strict=True):
            assert g.tolist() == w.tolist()


def test_branches_and_what_they_refuse_run_in_a_page(play):
    def f(x, i):
        def body(c, k):
            return wg.cond(k[0] < 9, lambda k: c + x[k], lambda k: c - 1, k), (c > 0).any()

        return wg.scan(body, x[:1] * 0, i)

    x, n = random_of("float32", 5), wg.Dim("n")
    program = webgpu.export(f, x, wg.Spec((n, 1), wg.int64))
    good = wg.asarray(np.array([[1], [9], [4], [70], [0]]))
    bad = wg.asarray(np.array([[1], [7], [9]]))
    found, refused, again = play(program, [x, good], [x, bad], [x, good])
    for got in (found, again):
        for g, w in zip(got, f(x, good), strict=True):
            assert_near(g, w, "branches", 4)
    assert "index 7 is out of bounds" in refused and "test_browser.py" in refused


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_checks_say_in_a_page_what_they_say_here(shape, play):
    def f(x):
        wg.check(x > 0, "must be positive")
        return x * 2

    x = np.ones(shape, "f")
    x[(-1,) * len(shape)] = -1
    with pytest.raises(wg.ArgumentError) as want:
        f(wg.asarray(x))
    (refused,) = play(webgpu.export(f, wg.Spec(shape)), [wg.asarray(x)])
    assert str(want.value).splitlines()[0] in refused


# A run in an encoder of the page, on buffers of the page; its outputs, refusals and state.
ENCODE = """async path => {
  const {Program, Player} = await import('/player/player.js');
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const lost = [];
  device.onuncapturederror = event => lost.push(event.error.message);
  const player = new Player(await Program.load(path), device);
  const {STORAGE, COPY_SRC, COPY_DST, MAP_READ} = GPUBufferUsage;
  const buffer = (data, more = 0) => {
    const made = device.createBuffer({size: data.byteLength + more, usage: STORAGE | COPY_DST});
    device.queue.writeBuffer(made, 0, data);
    return made;
  };
  const read = async (from, size) => {
    const to = device.createBuffer({size, usage: COPY_DST | MAP_READ});
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(from, 0, to, 0, size);
    device.queue.submit([encoder.finish()]);
    await to.mapAsync(GPUMapMode.READ);
    return [...new Float32Array(to.getMappedRange())];
  };
  const said = [], x = Float32Array.of(1, 2, 3, 4), i = BigInt64Array.of(3n, 0n);
  const early = () => player.encode(device.createCommandEncoder(), [x, i]);
  try { early(); } catch (error) { said.push(String(error)); }
  await player.ready();
  // Exactly as long as what they hold, long enough to be bound, one buffer of another kind.
  for (const [more, index] of [[0, i], [64, i], [64, BigInt64Array.of(9n, 0n)], [0, i]]) {
    const encoder = device.createCommandEncoder();
    player.encode(encoder, [buffer(x, more), buffer(index, more)], {n: 2});
    device.queue.submit([encoder.finish()]);
    const refused = await player.check().then(() => null, error => String(error));
    said.push([await read(player.outputs[0], 8), refused, [...(await player.state())[0]]]);
  }
  const [last] = await player.run([buffer(x), i]);
  said.push([...last]);
  for (const wrong of [device.createBuffer({size: 64, usage: COPY_DST}), buffer(x.slice(1))]) {
    said.push(await player.run([wrong, i]).then(() => null, error => error.name));
  }
  await player.destroy();
  device.destroy();
  return lost.length ? lost : said;
}"""


def test_buffers_and_encoders_of_the_page_are_taken(browser, play, tmp_path):
    total = wg.zeros((2,))

    def f(x, i):
        y = x[i]
        total.assign(total + y[:2])
        return y * 2

    program = webgpu.export(f, wg.Spec((4,)), wg.Spec((wg.Dim("n"),), wg.int64))
    assert len(program.state) == 1
    program.save(tmp_path / "it.safetensors")
    browser.files["/encoded"] = tmp_path
    browser.open("/")
    early, first, second, refused, third, last, *wrong = browser.evaluate(
        ENCODE, "/encoded/it.safetensors")
    assert "ready" in early
    assert first == [[8, 2], None, [4, 1]] and second == [[8, 2], None, [8, 2]]
    assert "index 9 is out of bounds" in refused[1] and refused[2] == [8, 2]
    assert third == [[8, 2], None, [12, 3]] and last == [8, 2]
    assert wrong == ["PlayerError"] * 2


# Files that are not as they must be, and what is said.
HOSTILE = """async (path, changes) => {
  const {Program} = await import('/player/player.js');
  const file = await (await fetch(path)).arrayBuffer();
  const length = Number(new DataView(file).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, length)));
  const key = 'wengert.webgpu', said = [];
  for (const change of [null, ...changes]) {
    const root = JSON.parse(header.__metadata__[key]);
    if (change) new Function('root', change)(root);
    const all = {...header, __metadata__: {[key]: JSON.stringify(root)}};
    const text = new TextEncoder().encode(JSON.stringify(all));
    const bytes = new Uint8Array(8 + text.length + file.byteLength - 8 - length);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
    bytes.set(text, 8);
    bytes.set(new Uint8Array(file, 8 + length), 8 + text.length);
    said.push(await Program.load(bytes.buffer).then(() => null, error => error.name));
  }
  for (const end of [0, 7, 8, 100, file.byteLength - 1]) {
    said.push(await Program.load(file.slice(0, end)).then(() => null, error => error.name));
  }
  return said;
}"""
CHANGES = [
    "root.version = 3", "root.shaders = [1]", "root.buffers[0] = 33", "root.buffers[0] = -32",
    "root.buffers[0] = 'n +'", "root.buffers[0] = 'm'", "root.buffers[0] = '('.repeat(99)",
    "root.inputs[0].buffer = 99", "root.inputs[0].dtype = 'toString'", "root.inputs[0].shape = 3",
    "root.outputs[0].buffer = 1.5", "root.dispatches[0].shader = 99",
    "root.dispatches[0].bind = []",
    "root.dispatches[0].bind[0] = -1", "root.dispatches[0].words = [2 ** 32]",
    "root.dispatches[0].words = [{number: 0, dtype: 'int8'}]", "delete root.dispatches",
    "root.constants = [{tensor: 99, buffer: 0}]", "root.numbers = [{do: 'valueOf', of: [0, 0]}]",
    "root.conditions = [[1, '>', 2, null]]", "root.refusals = [{kind: 'other'}]",
    "root.dispatches[0].bind.push(root.dispatches[0].bind[0])",
    "root.features = ['toString']", "root.features = 'shader-f16'",
    "root.repeats = {}", "root.generator = 7", *(f"root.repeats = [{loop}]" for loop in (
        "{}", "{from: 0, to: 1, times: 2}", "{from: 0, to: 99, times: 2, round: 'r'}",
        "{from: 0, to: 0, times: 2, round: 'r'}", "{from: 0, to: 1, times: 2, round: 'r + 1'}",
        "{from: 0, to: 1, times: 'r', round: 'r'}", "{from: 0, to: 1, times: -2, round: 'r'}",
        "{from: 0, to: 1, times: {log: 1, of: 2}, round: 'r'}",
        "{from: 0, to: 1, times: 2, round: 'r'}, {from: 0, to: 1, times: 2, round: 'r'}",
        "...Array.from({length: 17}, (_, i) => ({from: 0, to: 1, times: 1, round: `r${i}`}))")),
]


def test_hostile_files_are_refused(browser, play, tmp_path):
    w = random_of("float32", 5, 3)
    webgpu.export(lambda x: x @ w, random_of("float32", 4, 5)).save(tmp_path / "it.safetensors")
    browser.files["/hostile"] = tmp_path
    browser.open("/")
    first, *said = browser.evaluate(HOSTILE, "/hostile/it.safetensors", CHANGES)
    assert first is None
    for change, name in zip([*CHANGES, *["cut"] * 5], said, strict=True):
        assert name == "PlayerError", change
