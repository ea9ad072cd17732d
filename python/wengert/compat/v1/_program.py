"""What programs of TensorFlow 1 have around them: `tf.app`, `tf.logging`, `tf.gfile`, `tf.errors`,
and the names under `tf.math`, `tf.random`, `tf.initializers`."""

from __future__ import annotations

import argparse
import glob
import logging as _logging
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import wengert as wg
from wengert.compat.v1 import _scopes
from wengert.compat.v1._spaces import Space, nn, top

# Flags of the command line.


class _Flags:
    """The values of flags, read from the command line when one is first asked for."""

    def __init__(self) -> None:
        self.__dict__["_parser"] = argparse.ArgumentParser(allow_abbrev=False)
        self.__dict__["_values"] = None
        self.__dict__["rest"] = []

    def _define(self, name: str, default: Any, text: str, read: Any) -> None:
        self._parser.add_argument(f"--{name}", default=default, help=text, type=read)
        self.__dict__["_values"] = None

    def _read(self, argv: list[str] | None = None) -> None:
        values, rest = self._parser.parse_known_args(argv)
        self.__dict__.update(_values=vars(values), rest=rest)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._values is None:
            self._read()
        if name not in self._values:
            raise AttributeError(f"tf.app.flags.FLAGS: no flag is called {name!r}")
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        getattr(self, name)
        self._values[name] = value


FLAGS = _Flags()


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(f"expected true or false, got {text!r}")
    return text.lower() in ("true", "1")


flags = Space("flags")
flags.FLAGS = FLAGS


def _defines(word: str, read: Callable[[str], Any]) -> None:
    def define(name: str, default_value: Any, docstring: str = "") -> None:
        FLAGS._define(name, default_value, docstring, read)

    define.__name__, define.__doc__ = f"DEFINE_{word}", "Add a flag of the command line."
    setattr(flags, define.__name__, define)


for _word, _reader in (("string", str), ("integer", int), ("float", float), ("boolean", _truth),
                       ("bool", _truth)):  # fmt: skip
    _defines(_word, _reader)

app = Space("app")
app.flags = flags


def run(main: Callable[[list[str]], Any] | None = None, argv: list[str] | None = None) -> None:
    """Read the flags, call `main` with the other arguments, and end the program."""
    argv = sys.argv if argv is None else argv
    FLAGS._read(argv[1:])
    main = vars(sys.modules["__main__"])["main"] if main is None else main
    sys.exit(main([argv[0], *FLAGS.rest]))


app.run = run

# Logs.

logging = Space("logging")
_log = _logging.getLogger("wengert.compat.v1")
for _word in ("debug", "info", "warning", "error", "fatal"):
    setattr(logging, _word, getattr(_log, _word))
logging.warn, logging.log = _log.warning, _log.log
for _word in ("DEBUG", "INFO", "WARN", "ERROR", "FATAL"):
    setattr(logging, _word, getattr(_logging, _word))


def _set_verbosity(level: int) -> None:
    """What is logged: this level, and above."""
    if not _log.handlers:
        _log.addHandler(_logging.StreamHandler())
    _log.setLevel(level)


logging.set_verbosity = _set_verbosity

# Files.

gfile = Space("gfile")
gfile.Exists, gfile.IsDirectory, gfile.ListDirectory = os.path.exists, os.path.isdir, os.listdir
gfile.MakeDirs = lambda path: os.makedirs(path, exist_ok=True)
gfile.MkDir, gfile.Remove, gfile.DeleteRecursively = os.mkdir, os.remove, shutil.rmtree
gfile.Glob, gfile.GFile, gfile.FastGFile, gfile.Open = glob.glob, open, open, open

# Tests.

test = Space("test")
test.is_gpu_available = lambda *args, **options: "gpu" in str(wg.asarray(0).device)
test.is_built_with_cuda = lambda: False

# Errors: those that sessions raise here.

errors = Space("errors")
errors.FailedPreconditionError = wg.GraphError
errors.InvalidArgumentError = ValueError
errors.NotFoundError = FileNotFoundError
errors.OpError = wg.Error

# Names that are elsewhere too.


class _Alias(Space):
    """A namespace whose names are others' too: some under words of their own."""

    def __init__(self, name: str, own: dict[str, Any], rest: Any = None) -> None:
        super().__init__(name)
        vars(self).update(own)
        vars(self)["_rest"] = rest or {}

    def __getattr__(self, name: str) -> Any:
        found = self._rest.get(name) if not name.startswith("_") else None
        return super().__getattr__(name) if found is None else found


def namespaces() -> dict[str, Any]:
    """`tf.math` and others, whose functions stand elsewhere too."""
    random = {
        "normal": top["random_normal"],
        "uniform": top["random_uniform"],
        "truncated_normal": top["truncated_normal"],
        "shuffle": top["random_shuffle"],
        "multinomial": top["multinomial"],
    }
    inits = {
        "zeros": _scopes.zeros_initializer,
        "ones": _scopes.ones_initializer,
        "constant": _scopes.constant_initializer,
        "random_normal": _scopes.random_normal_initializer,
        "random_uniform": _scopes.random_uniform_initializer,
        "truncated_normal": _scopes.truncated_normal_initializer,
        "variance_scaling": _scopes.variance_scaling_initializer,
        "glorot_normal": _scopes.glorot_normal_initializer,
        "glorot_uniform": _scopes.glorot_uniform_initializer,
        "he_normal": _scopes.he_normal,
        "he_uniform": _scopes.he_uniform,
        "lecun_normal": _scopes.lecun_normal,
        "lecun_uniform": _scopes.lecun_uniform,
        "identity": _scopes.identity_initializer,
    }
    math = {"l2_normalize": nn.l2_normalize, "softplus": nn.softplus, "top_k": nn.top_k}
    linalg = {"l2_normalize": nn.l2_normalize, "transpose": top["matrix_transpose"]}
    words = ("matmul", "norm", "einsum", "tensordot", "eye", "trace", "cross", "diag_part")
    linalg |= {word: top[word] for word in words}
    return {
        "random": _Alias("random", random),
        "initializers": _Alias("initializers", inits),
        "math": _Alias("math", math, top),
        "linalg": _Alias("linalg", linalg),
        "manip": _Alias("manip", {w: top[w] for w in ("reshape", "tile", "roll", "reverse")}),
    }
