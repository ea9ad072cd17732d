"""What stands between Python and the core: unwinds end there, the interpreter is the one it relies
on.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wengert as wg
from wengert import _core

SOURCE = Path(__file__).parent.parent / "src" / "py"

# How the entries of a class are reached that unwinds in each: as a panic does, or with an error of
# the engine that nobody caught.
ENTRIES = {
    "function": lambda u: _core._unwind(),
    "function, error": lambda u: _core._unwind(with_error=True),
    "constructor": lambda u: type(u)(now=True),
    "method": lambda u: u.method(),
    "static method, error": lambda u: u.static_method(),
    "attribute": lambda u: u.attribute,
    "attribute set, error": lambda u: setattr(u, "attribute", 1),
    "repr, error": repr,
    "length": len,
    "truth, error": bool,
    "hash": hash,
    "operator, error": lambda u: u + 1,
    "item": lambda u: u[0],
    "call, error": lambda u: u(),
    "next": next,
    "loop": list,
    "callback of C code": lambda u: sorted([1, 2], key=lambda _: u.method()),
    "callback of C code, error": lambda u: dict.fromkeys(u() for _ in range(2)),
}


def assert_typed(error, is_error):
    assert type(error) is (wg.ArgumentError if is_error else wg.InternalError)
    assert error.code == ("bad_value" if is_error else "internal")
    assert ("thrown on purpose" if is_error else "a panic on purpose") in str(error)


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_unwind_becomes_a_typed_error_at_every_kind_of_entry(entry):
    with pytest.raises(Exception) as caught:  # a PanicException is none
        ENTRIES[entry](_core._Unwinding())
    assert_typed(caught.value, "error" in entry)


@pytest.mark.parametrize("with_error", [False, True])
def test_an_unwind_below_a_callback_passes_through_the_engine(with_error):
    x = wg.ones(3, requires_grad=True)

    def hook(_):
        _core._unwind(with_error)

    y = x * 2
    y.register_hook(hook)
    with pytest.raises(Exception) as caught:
        y.sum().backward()
    assert_typed(caught.value, with_error)
    assert x.grad is None
    with pytest.raises(Exception) as caught:
        wg.compile(lambda x: hook(x) or x)(x)
    assert_typed(caught.value, with_error)
    with pytest.raises(Exception) as caught:
        wg.scan(lambda c, _: (hook(c) or c, c), x.detach(), length=3)
    assert_typed(caught.value, with_error)
    # An earlier error says nothing of a later panic.
    with pytest.raises(wg.InternalError, match="a panic on purpose"):
        _core._unwind()


@pytest.mark.parametrize("use", [wg.Tensor, memoryview, wg.Tensor.numpy, wg.Tensor.__dlpack__])
def test_a_tensor_of_another_trace_is_refused_by_what_the_interpreter_calls(use):
    kept = []
    wg.compile(lambda x: (kept.append(x * 2), x)[1])(wg.ones(3))
    with pytest.raises(wg.CaptureError, match="escaped"):
        wg.compile(lambda x: (use(kept[0]), x)[1])(wg.ones(3))


C_FUNCTION = r'^( *)(?:pub(?:\(\w+\))? )?unsafe extern "C" fn (\$?\w+)'
# Helpers in which C functions of ours run guarded.
GUARDED = r"\b(guard|contained|enter|setter|number|delete)\("
# The address of an object, the object itself, the collector's walk, which follows pointers.
PLAIN = {"hash", "positive", "traverse"}


def test_every_function_that_the_interpreter_calls_is_guarded():
    """A panic in a C function that is not guarded ends the process."""
    found = {}
    for path in sorted(SOURCE.rglob("*.rs")):
        text = path.read_text()
        for match in re.finditer(C_FUNCTION, text, re.M):
            end = re.compile(rf"^{match[1]}}}", re.M).search(text, match.end())
            one_line = text[match.start() : text.index("\n", match.end())]
            body = one_line if one_line.endswith("}") else text[match.start() : end.end()]
            found[match[2]] = bool(re.search(GUARDED, body))
    assert {"method", "binary", "dealloc", "get_buffer", "$name"} <= set(found)
    assert {name for name, guarded in found.items() if not guarded} == PLAIN


def run(program):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


IN_ANOTHER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
if {first}:
    import wengert
program = '''
try:
    import wengert
except ImportError as error:
    assert "subinterpreters are not supported" in str(error), error
else:
    raise AssertionError("imported")
'''
failed = interpreters.run_string(interpreters.create(), program)
assert failed is None, failed
import wengert
assert wengert.ones(3).sum().item() == 3
"""


@pytest.mark.parametrize("first", [True, False])
def test_subinterpreters_are_refused_by_name_and_do_no_harm(first):
    done = run(IN_ANOTHER.format(first=first))
    assert done.returncode == 0, done.stderr


def test_the_interpreter_keeps_its_lock():
    done = run(
        "import sys, wengert; assert getattr(sys, '_is_gil_enabled', lambda: True)(), 'no lock'"
    )
    assert done.returncode == 0, done.stderr
