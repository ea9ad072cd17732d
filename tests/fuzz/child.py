"""Cases in processes of their own, with limits.

A case is the source of a program: top-level statements, run one after another. A statement that is
refused is passed over. A child tells each statement before it runs it, so that one which does not
come back is known.
"""

import ast
import faulthandler
import json
import linecache
import os
import re
import resource
import selectors
import signal
import tempfile
import time
import traceback
from dataclasses import dataclass

import numpy as np

import wengert as wg

import outcome
import ways

MEMORY = 4 << 30
"""Bytes of address space that a child may have, its libraries' included."""
TENSORS = 64 << 20
"""Bytes of tensors; beyond them the library refuses."""
PATIENCE = 1.0
"""Seconds after which a case is interrupted, as by Ctrl-C."""
GRACE = 10.0
"""Seconds in which it must obey."""


@dataclass
class Finding:
    """What a case did that it must not do."""

    kind: str
    detail: str
    source: str


def names():
    """The names of a case."""
    return {"wg": wg, "np": np} | {k: v for k, v in vars(ways).items() if k[0] != "_"}


def execute(source, tell):
    """Runs the statements of a case; what is a finding, `tell` hears of."""
    scope = names()
    label = "<case>"
    linecache.cache[label] = (len(source), None, source.splitlines(keepends=True), label)
    for statement in ast.parse(source).body:
        tell({"at": ast.unparse(statement)})
        code = compile(ast.Module([statement], []), label, "exec")
        try:
            exec(code, scope)
            if isinstance(statement, ast.Assign):
                ways.touch(scope[statement.targets[0].id])
        except KeyboardInterrupt:
            return
        except BaseException as error:
            if not outcome.refuses(error):
                tell({"kind": outcome.kind(error), "detail": detail(error)})
                return


def detail(error):
    return "".join(traceback.format_exception(error))[-3000:]


def _child(source, pipe, log):
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(tempfile.gettempdir())
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    os.environ["RUST_BACKTRACE"] = "0"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    wg.set_memory_limit(TENSORS)

    def tell(message):
        os.write(pipe, json.dumps(message).encode() + b"\n")

    try:
        execute(source, tell)
        tell({"done": True})
    except KeyboardInterrupt:
        pass
    os._exit(0)


class Run:
    """A child, from its start to what came of it."""

    def __init__(self, source):
        self.source, self.heard, self.interrupted = source, b"", 0
        self.pipe, writing = os.pipe()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _child(source, writing, self.log.fileno())
            finally:
                os._exit(99)
        os.close(writing)

    def listen(self):
        """Reads what the child says; whether it has ended."""
        data = os.read(self.pipe, 1 << 16)
        self.heard += data
        return not data

    def press(self):
        """Interrupts a child that takes long, and ends one that does not obey."""
        passed = time.monotonic() - self.started
        if passed > PATIENCE + GRACE:
            os.kill(self.pid, signal.SIGKILL)
        elif passed > PATIENCE + self.interrupted:
            self.interrupted += 1
            os.kill(self.pid, signal.SIGINT)

    def end(self):
        """Ends a child that nobody waits for any more."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        self.log.close()

    def finish(self):
        """The finding, if there is one."""
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        told = [json.loads(line) for line in self.heard.split(b"\n") if line.endswith(b"}")]
        at = next((t["at"] for t in reversed(told) if "at" in t), "")
        found = next((t for t in told if "kind" in t), None)
        self.log.seek(0)
        said = self.log.read().decode(errors="replace")
        self.log.close()
        where = panicked(said)
        if found:
            return Finding(f"{found['kind']} {where}".strip(), found["detail"] + said[:2000],
                           self.source)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return None
        if not os.WIFSIGNALED(status):
            return None if self.interrupted else Finding("exit", f"{at}\n{said}", self.source)
        number = os.WTERMSIG(status)
        if number == signal.SIGINT:
            return None
        if number == signal.SIGKILL and self.interrupted:
            return Finding(f"hang: {called(at)}", f"{at}\n{said[:2000]}", self.source)
        name = signal.Signals(number).name
        return Finding(f"crash {name}: {where or called(at)}", f"{at}\n{said[:3000]}", self.source)


def panicked(text):
    """Where the last panic was, in our code if one was, without its column."""
    found = re.findall(r"panicked at (\S+:\d+):\d+", text)
    ours = [place for place in found if not place.startswith("/rustc/")]
    return (ours or found or [""])[-1]


def called(statement):
    """The functions that a statement names."""
    return ", ".join(dict.fromkeys(re.findall(r"[\w.]*\.(\w+)\(", statement)))[:80]


def outcomes(sources, jobs):
    """For each source its finding, or None, as they come; `jobs` children at a time."""
    waiting, running = iter(sources), {}
    ready = selectors.DefaultSelector()
    try:
        while True:
            while len(running) < jobs:
                source = next(waiting, None)
                if source is None:
                    break
                run = Run(source)
                running[run.pipe] = run
                ready.register(run.pipe, selectors.EVENT_READ)
            if not running:
                return
            for key, _ in ready.select(timeout=0.5):
                run = running[key.fd]
                if run.listen():
                    ready.unregister(key.fd)
                    del running[key.fd]
                    yield run.finish()
            for run in running.values():
                run.press()
    finally:
        ready.close()
        for run in running.values():
            run.end()


def outcome_of(source):
    """The finding of one case, or None."""
    return next(outcomes([source], 1))
