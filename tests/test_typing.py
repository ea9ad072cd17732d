"""What a type checker sees: every public name is exported, and stubs take what the engine takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import wengert as wg

CALLS = """
x: wg.Tensor = wg.ones((2, 3))
y = x.reshape(3, 2), x.reshape((3, 2)), x.reshape(3, 2, copy=True), wg.reshape(x, shape=(6,))
z: wg.Tensor = wg.einsum("ij,kj->ik", x, x)
a, b = wg.meshgrid(x[0], x[1], indexing="ij")
c = wg.broadcast_arrays(x, x[0])
d: tuple[int, ...] = wg.broadcast_shapes((2, 1), (3,))
n: wg.Tensor = wg.random.uniform((2,), low=0.0, high=1.0)
g = wg.grad(lambda v: (v * v).sum())(x)
f = wg.compile(lambda v: v * 2)
wg.save({"x": x}, "file")
w: wg.Tensor = wg.full((2,), fill_value=3) + wg.nextafter(x[0, :2], 2.0)
s: str = wg.__array_api_version__
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What `mypy --strict` says of a program that uses every public name."""
    folder = tmp_path_factory.mktemp("typing")
    lines = ["import wengert as wg", "from wengert import nn, optim"]
    spaces = {"wg": wg, "wg.nn": wg.nn, "wg.optim": wg.optim, "wg.random": wg.random}
    for name, space in spaces.items():
        lines += [f"{name}.{word}" for word in sorted(set(space.__all__))]
    program = folder / "program.py"
    program.write_text("\n".join(lines) + "\n" + CALLS)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"),
               "--no-error-summary", str(program)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return [line for line in done.stdout.splitlines() if line.startswith("program.py")], done


def test_a_strict_program_with_every_public_name_passes(checked):
    lines, done = checked
    assert not lines, "\n".join(lines)
    assert not done.stderr


# What a checker must find of signatures: an error at each line marked with its code, at no other.
SIGNATURES = """
from typing import assert_type

import wengert as wg
from wengert import nn


def loss(w: wg.Tensor, x: wg.Tensor, *, rate: float = 0.5) -> wg.Tensor:
    return (w * x * rate).sum()


@wg.compile
def step(x: wg.Tensor) -> wg.Tensor:
    return x * 2


@wg.compile(limit=3)
def pair(x: wg.Tensor, n: int = 1) -> tuple[wg.Tensor, int]:
    return x * 2, n


@wg.no_grad()
def quiet(x: wg.Tensor, n: int) -> wg.Tensor:
    return x * n


class Net(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)

    def forward(self, x: wg.Tensor, *, deep: bool = False) -> tuple[wg.Tensor, int]:
        return self.layer(x), int(deep)


x = wg.ones(2)
assert_type(step(x), wg.Tensor)
assert_type(pair(x, n=2), tuple[wg.Tensor, int])
assert_type(quiet(x, 2), wg.Tensor)
assert_type(wg.vmap(loss)(x, x, rate=1.0), wg.Tensor)
assert_type(wg.checkpoint(loss)(x, x), wg.Tensor)
assert_type(wg.value_and_grad(loss)(x, x)[0], wg.Tensor)
assert_type(Net()(x, deep=True), tuple[wg.Tensor, int])
assert_type(wg.compile(Net())(x), tuple[wg.Tensor, int])
assert_type(nn.Linear(2, 2)(x), wg.Tensor)
assert_type(nn.functional.relu(x), wg.Tensor)
assert_type(wg.cat([x, x], axis=0), wg.Tensor)
assert_type(x.permute(0).unsqueeze(0).requires_grad_(), wg.Tensor)
assert_type(step.traces, int)
flat, back = wg.pytree.ravel({"x": x})
assert_type(flat, wg.Tensor)
modules: list[nn.Module] = [Net()]
modules[0](1, 2, anything=3)
step(3)  # arg-type
pair(x, m=2)  # call-arg
quiet(x)  # call-arg
wg.grad(loss)(x, x, rat=1.0)  # call-arg
wg.vmap(loss)(x)  # call-arg
Net()(x, shallow=True)  # call-arg
wg.compile(Net())("x")  # arg-type
nn.Linear(2, 2)("x")  # arg-type
"""


def strict(folder, program, *options):
    """The lines that `mypy --strict` says of a program (not those of the package itself, which it
    may find by a path)."""
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"),
               "--no-error-summary", *options, *map(str, program)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert not done.stderr
    lines, paths = done.stdout.splitlines(), [path.resolve() for path in program]
    return [line for line in lines if (folder / line.partition(":")[0]).resolve() in paths]


def marked(text):
    """The lines of a program that a checker must refuse, with the code that mypy gives."""
    numbered = enumerate(text.splitlines(), 1)
    return {n: line.rpartition("# ")[2] for n, line in numbered if "  # " in line}


def test_wrappers_and_modules_keep_the_users_signature(tmp_path):
    program = tmp_path / "signatures.py"
    program.write_text(SIGNATURES)
    found = [line for line in strict(tmp_path, [program]) if ": error:" in line]
    got = {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in found}
    assert got == marked(SIGNATURES), "\n".join(found)


EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("digits/*.py"), *EXAMPLES.glob("cookbook/*.py")]


def test_the_examples_pass(tmp_path, monkeypatch):
    """Each as a program of its own, which finds its neighbours as it does when it runs."""
    monkeypatch.setenv("MYPYPATH", str(EXAMPLES))
    found = strict(tmp_path, PROGRAMS, "--ignore-missing-imports")
    assert not found, "\n".join(found)


def pyright(folder, programs, **options):
    """What pyright refuses in programs: (path, line, message)."""
    pytest.importorskip("basedpyright", reason="needs basedpyright: pyright as a wheel")
    settings = folder / "pyrightconfig.json"
    paths = [str(Path(wg.__file__).parent.parent), str(EXAMPLES)]
    settings.write_text(json.dumps({
        "include": [str(path) for path in programs], "extraPaths": paths,
        "pythonVersion": "3.11", "reportMissingImports": False, **options,
    }))  # fmt: skip
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(settings),
               "--pythonpath", sys.executable]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] == len(programs), done.stderr
    return [(entry["file"], entry["range"]["start"]["line"] + 1, entry["message"])
            for entry in said["generalDiagnostics"] if entry["severity"] == "error"]  # fmt: skip


def test_pyright_says_the_same(tmp_path):
    """Of the examples and of every public name nothing, of signatures what mypy says."""
    names = [f"wg{space}.{word}" for space in ("", ".nn", ".optim", ".random")
             for word in getattr(wg, space[1:], wg).__all__ if word != "_next_of"]  # fmt: skip
    public, signatures = tmp_path / "public.py", tmp_path / "signatures.py"
    public.write_text("import wengert as wg\n" + "\n".join(f"print({name})" for name in names))
    signatures.write_text(SIGNATURES)
    found = pyright(tmp_path, [*PROGRAMS, public, signatures], typeCheckingMode="standard")
    refused = [entry for entry in found if Path(entry[0]).name != "signatures.py"]
    assert not refused, refused
    assert {line for _, line, _ in found} == set(marked(SIGNATURES)), found
