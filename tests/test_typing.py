"""What a type checker sees: every public name is exported, and stubs take what the engine takes."""

import subprocess
import sys

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
