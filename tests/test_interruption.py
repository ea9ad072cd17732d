"""Ctrl-C ends every long call, in every mode, and long calls let other threads of Python run.

Each program runs without end, or far longer than a test may take, in a child process that gets the
signal: what does not obey runs into the limit of the child.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

#: A call imports nothing: the interpreter drops a signal in its own callbacks while it imports.
PROGRAM = """
import sys
import wengert as wg

def wide(*shape, of=1.0):
    return wg.full((), of).broadcast_to(shape)

wg.set_num_threads({threads})
{setup}
before = {{name: value.tolist() for name, value in globals().items()
          if name[0] != "_" and isinstance(value, wg.Tensor) and value.nbytes < 2**20}}
{names}
_modules = set(sys.modules)
try:
    print("ready", flush=True)
    {call}
except KeyboardInterrupt:
    print("obeyed")
assert set(sys.modules) == _modules, set(sys.modules) - _modules
for name, value in before.items():
    assert value == globals()[name].tolist(), name
    assert globals()[name].grad is None, name
assert (wg.ones(3) + 1).tolist() == [2, 2, 2]
assert wg.ones((300, 300)).sum().item() == 90000
{after}
"""

ENDLESS = """
def loop(x):
    return wg.while_loop(lambda i, x: i >= 0, lambda i, x: (i + 1, x * 0.5), (wg.tensor(0), x))
x = wg.ones(1000)
"""

STUCK = """
def loop(x):
    return wg.while_loop(lambda on, x: on, lambda on, x: (on, x), (wg.tensor(True), x))
x = wg.ones(1000)
"""

SESSION = (
    ENDLESS
    + """
g = wg.Graph()
with g:
    _p = wg.placeholder("p", (1000,))
    _y = loop(_p)[1]
session = wg.Session(g)
"""
)

LEAF = "x = wg.ones((), requires_grad=True)\n"
BACKWARD = LEAF + "y = x.broadcast_to((10**12,))"
COMPILED_BACKWARD = (
    LEAF
    + """
@wg.compile
def step(v):
    (x * v).sum().backward()
"""
)
MANY = "x = wg.arange(10**7)"
INDEXED = "i = wide(10**12, of=1); x = wg.zeros(4)"

#: What runs without end, or far longer than a test may take: set up, and called.
CALLS = {
    "while_loop, eager": (ENDLESS, "loop(x)"),
    "while_loop, compiled": (ENDLESS + "f = wg.compile(loop)", "f(x)"),
    "while_loop, session": (SESSION, "session.run(_y, {_p: x})"),
    "while_loop without steps": (STUCK + "f = wg.compile(loop)", "f(x)"),
    "scan without steps": ("", "wg.scan(lambda c, x: (c, None), wg.tensor(0.0), wide(10**12))"),
    "one kernel": ("", "wide(2 * 10**12).sum()"),
    "one kernel, compiled": ("f = wg.compile(lambda x: x.max())", "f(wide(2 * 10**12))"),
    "blocks of rows": ("f = wg.compile(lambda x: (x * 2).sum())", "f(wide(2 * 10**12))"),
    "blocks of several steps": (
        "f = wg.compile(lambda x: x.softmax(axis=1).sum())",
        "f(wide(2 * 10**9, 1000))",
    ),
    "backward in one kernel": (BACKWARD, "y.backward(wide(10**12))"),
    "gradients in one kernel": (BACKWARD, "wg.gradients(y, [x], grad_outputs=wide(10**12))"),
    "backward, compiled": (COMPILED_BACKWARD, "step(wide(2 * 10**12))"),
    "product": ("", "wide(4, 10**12) @ wide(10**12)"),
    "product of one row": ("", "wide(1, 10**7) @ wide(10**7, 10**7)"),
    "product of few rows": ("", "wide(4, 10**6) @ wg.ones(10**4).broadcast_to((10**6, 10**4))"),
    "product of large tiles": ("", "wide(10**4, 10**8) @ wide(10**8, 10**4)"),
    "product and more, compiled": (
        "f = wg.compile(lambda a, b: (a @ b).relu())",
        "f(wide(10**4, 10**8), wide(10**8, 10**4))",
    ),
    "convolution": ("", "wg.nn.conv1d(wide(1, 64, 10**10), wide(1, 64, 10**9), stride=10**9)"),
    "many long rows": ("", "wide(32, 10**12).sum(axis=1)"),
    "many long columns": ("", "wide(10**12, 10**5).sum(axis=0)"),
    "rows side by side": (
        "x = wg.ones(640)[:, None]",
        "[x.broadcast_to((640, 2**26)).sum(axis=1) for _ in range(99)]",
    ),
    "places in columns": ("x = wg.ones(64)", "x.broadcast_to((10**11, 64)).argmax(axis=0)"),
    "one long sort": (MANY, "[x.sort() for _ in range(999)]"),
    "one long argsort": (MANY, "[x.argsort() for _ in range(999)]"),
    "the first of many": (MANY, "[x.topk(10**5) for _ in range(999)]"),
    "permutations": ("", "[wg.random.permutation(10**7) for _ in range(99)]"),
    "one long scan": ("x = wg.ones(5 * 10**7)", "[x.cumulative_sum(axis=0) for _ in range(99)]"),
    "values put by many indices": (INDEXED, "x[i] = 2.0"),
    "values added by many indices": (INDEXED, "wg.index_add(x, i, wide(10**12))"),
    "positions": ("x = wide(10**9, of=False)", "[wg.nonzero(x) for _ in range(99)]"),
    "elements": ("x = wg.ones(10**7)", "[x**1.5 for _ in range(9999)]"),
    "copies": ("x = wg.ones((3000, 3000))", "[x.T.reshape(-1) for _ in range(9999)]"),
    "vmap": ("f = wg.vmap(lambda x: (x * 2).sum())", "f(wide(10**4, 10**9))"),
    "numbers of a list": (
        "class Endless(list):\n    def __iter__(self):\n        while True: yield 1.0",
        "wg.asarray(Endless([1.0]))",
    ),
}

#: Calls that threads share: what one of them breaks off the others leave too.
SHARED = [name for name in CALLS if "loop" not in name and "list" not in name]


def program_of(setup, call, threads, after=""):
    """The program that makes a call; the names that it takes from the package are loaded before."""
    names = "\n".join(re.findall(r"wg\.\w+(?:\.\w+)?", setup + call))
    return PROGRAM.format(setup=setup, call=call, names=names, threads=threads, after=after)


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run(program):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=40)


def broken_off(program, wait=0.15):
    """What a program prints that gets the signal a while after it is ready, as from a terminal."""
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True) as child:
        try:
            assert child.stdout.readline() == "ready\n", child.stderr.read()
            time.sleep(wait)
            child.send_signal(signal.SIGINT)
            printed, errors = child.communicate(timeout=20)
        finally:
            child.kill()
    assert child.returncode == 0, errors
    return printed


CASES = [(name, 1) for name in CALLS] + [(name, 2) for name in SHARED]


@pytest.mark.parametrize("name, threads", CASES, ids=[f"{name}, {n}" for name, n in CASES])
def test_a_long_call_obeys_ctrl_c(name, threads):
    """And everything is as it was: values, gradients, the threads."""
    setup, call = CALLS[name]
    program = program_of(setup, call, threads)
    assert broken_off(program) == "obeyed\n"


@pytest.mark.parametrize("wait", [0.0, 0.03, 0.06])
def test_a_signal_before_the_first_look_is_not_lost(wait):
    """It waits for the interpreter while the function is compiled, without Python code."""
    setup, call = CALLS["blocks of rows"]
    program = program_of(setup, call, 2)
    assert broken_off(program, wait) == "obeyed\n"


def test_code_called_in_between_is_not_broken_off():
    """A handler of signals that goes on with the work it interrupts, by a write in place."""
    setup = """
import signal
calls, z = [], wg.zeros(10**6)
def handler(*_):
    z[...] = z + 1
    calls.append(z.sum().item())
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
"""
    after = "assert calls == [1e6] and z.sum().item() == 1e6"
    program = program_of(setup, "wide(10**12).sum()", 2, after)
    assert broken_off(program) == "obeyed\n"


def test_differences_of_nothing_end():
    done = run("import wengert as wg; assert wg.ones(2).diff(n=10**12).shape == (0,)")
    assert done.returncode == 0, done.stderr


OTHERS_RUN = """
import sys, threading
import wengert as wg
sys.setswitchinterval(0.001)
{setup}
count, running = 0, True
def other():
    global count
    while running:
        count += 1
thread = threading.Thread(target=other)
thread.start()
before = count
{call}
after, running = count, False
thread.join()
assert after > before, "nobody else ran meanwhile"
"""

LONG = {
    "asarray": ("data = [1.0] * 2_000_000", "wg.asarray(data)"),
    "asarray, nested": ("data = [[1.0] * 10] * 200_000", "wg.asarray(data)"),
    "tolist": ("x = wg.ones(2_000_000)", "x.tolist()"),
    "permutation": ("wg.random.permutation(3)", "wg.random.permutation(1_000_000)"),
    "normal": ("wg.random.normal((3,))", "wg.random.normal((2_000_000,))"),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_call_lets_other_threads_run(name):
    """The other thread counts only if the call gives the interpreter's lock away: the interval of
    switches is far shorter than the call, so that it is asked to."""
    setup, call = LONG[name]
    done = run(OTHERS_RUN.format(setup=setup, call=call))
    assert done.returncode == 0, done.stderr
