"""Ctrl-C ends every long call, in every mode, and long calls let other threads of Python run.

Each program runs without end, or far longer than a test may take, in a child process that gets the
signal: what does not obey runs into the limit of the child.
"""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, threading, time
import wengert as wg
{setup}
def press():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press, daemon=True).start()
try:
    {call}
except KeyboardInterrupt:
    print("obeyed")
assert (wg.ones(3) + 1).tolist() == [2, 2, 2]
"""

ENDLESS = """
def loop(x):
    return wg.while_loop(lambda i, x: i >= 0, lambda i, x: (i + 1, x * 0.5), (wg.tensor(0), x))
x = wg.ones(1000)
"""

SESSION = ENDLESS + """
g = wg.Graph()
with g:
    p = wg.placeholder("p", (1000,))
    y = loop(p)[1]
session = wg.Session(g)
"""

WIDE = """
def wide(*shape):
    return wg.ones(()).broadcast_to(shape)
"""

CALLS = {
    "while_loop, eager": (ENDLESS, "loop(x)"),
    "while_loop, compiled": (ENDLESS + "f = wg.compile(loop)", "f(x)"),
    "while_loop, session": (SESSION, "session.run(y, {p: x})"),
    "one kernel": ("x = wg.ones(1).broadcast_to((2 * 10**12,))", "x.sum()"),
    "one kernel, compiled": (WIDE + "f = wg.compile(lambda x: x.max())", "f(wide(2 * 10**12))"),
    "product": (WIDE, "wide(4, 10**12) @ wide(10**12)"),
    "many long rows": (WIDE, "wide(32, 10**12).sum(axis=1)"),
    "many long columns": (WIDE, "wide(10**12, 10**5).sum(axis=0)"),
    "numbers of a list": ("data = [1.0] * 1000\nclass Endless(list):\n"
                          "    def __iter__(self):\n"
                          "        while True: yield 1.0", "wg.asarray(Endless([1.0]))"),
}  # fmt: skip


def run(program):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=40)


@pytest.mark.parametrize("name", CALLS)
def test_a_long_call_obeys_ctrl_c(name):
    setup, call = CALLS[name]
    done = run(PROGRAM.format(setup=setup, call=call))
    assert done.returncode == 0 and done.stdout == "obeyed\n", done.stderr


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
