"""`tf.train.Saver`: values of variables in safetensors files.

`save` writes `PATH-STEP.safetensors`, whose tensors have the variables' names, and beside it a text
file `checkpoint` in TensorFlow's form, which names the last file and those that are kept. Paths are
given and taken without the ending, as TensorFlow does.
"""

from __future__ import annotations

import os
import re
import time
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wengert as wg
from wengert._files import replacing
from wengert.compat.v1._spaces import train
from wengert.compat.v1._state import global_variables

_ENDING = ".safetensors"

CheckpointState = namedtuple("CheckpointState", "model_checkpoint_path all_model_checkpoint_paths")


class Saver:
    """Writes and reads the values of variables: all of the graph, a list, or a dict that gives them
    other names in the file.

    The last `max_to_keep` files that it wrote are kept, all with None or 0, and beside them one for
    every `keep_checkpoint_every_n_hours`.
    """

    def __init__(
        self,
        var_list: Any = None,
        reshape: Any = False,
        sharded: Any = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self._variables = _named(global_variables() if var_list is None else var_list)
        if not self._variables:
            raise ValueError("tf.train.Saver: there are no variables to save")
        self._reshape = bool(reshape)
        self._count = max_to_keep or 0
        self._every = 3600.0 * keep_checkpoint_every_n_hours
        self._next = time.time() + self._every
        self._written: list[tuple[str, float]] = []

    @property
    def last_checkpoints(self) -> list[str]:
        """The paths of the files that are kept, oldest first."""
        return [path for path, _ in self._written]

    def save(
        self,
        sess: Any,
        save_path: str | os.PathLike[str],
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: Any = True,
        write_state: Any = True,
        **options: Any,
    ) -> str:
        """Write the values that variables have in a session; the path, without its ending.

        Raises GraphError where a variable has no value there, OSError where nothing can be written.
        """
        path = os.fspath(save_path)
        if global_step is not None:
            is_number = isinstance(global_step, int) or not isinstance(global_step, wg.Tensor)
            path = f"{path}-{int(global_step if is_number else sess.run(global_step))}"
        names = list(self._variables)
        values = sess.run([self._variables[n] for n in names])
        tensors = {n: wg.tensor(x, device="cpu") for n, x in zip(names, values, strict=True)}
        wg.save(tensors, path + _ENDING)
        now = time.time()
        self._written = [(p, t) for p, t in self._written if p != path] + [(path, now)]
        while self._count and len(self._written) > self._count:
            old, made = self._written.pop(0)
            if made > self._next:
                self._next += self._every
            else:
                Path(old + _ENDING).unlink(missing_ok=True)
        if write_state:
            _write_state(path, self.last_checkpoints, latest_filename)
        return path

    def restore(self, sess: Any, save_path: str | os.PathLike[str] | None) -> None:
        """Give variables in a session the values of a file. They need no initializer then.

        Raises ValueError where there is no such file, where a name is not in it, and where a shape
        is another; nothing is changed then.
        """
        if save_path is None:
            raise ValueError("tf.train.Saver.restore: there is no checkpoint: got None")
        path = os.fspath(save_path)
        if not checkpoint_exists(path):
            raise ValueError(f"tf.train.Saver.restore: there is no file {path}{_ENDING}")
        found = wg.load(path + _ENDING)
        missing = [n for n in self._variables if n not in found]
        if missing:
            raise ValueError(
                f"tf.train.Saver.restore: {path}{_ENDING} has no {', '.join(missing)}; it has "
                f"{', '.join(sorted(found))}"
            )
        values = {}
        for n, v in self._variables.items():
            value = found[n]
            if tuple(value.shape) != tuple(v.shape):
                if not self._reshape or value.size != v.size:
                    raise wg.ShapeError(
                        f"tf.train.Saver.restore: {n} has shape {tuple(value.shape)} in "
                        f"{path}{_ENDING}, and {tuple(v.shape)} here"
                    )
                value = value.reshape(v.shape)
            if value.dtype != v.dtype:
                raise wg.DTypeError(
                    f"tf.train.Saver.restore: {n} is {value.dtype} in {path}{_ENDING}, and "
                    f"{v.dtype} here"
                )
            values[v] = value.to(sess.device)
        sess._load(values)


def _named(variables: Any) -> dict[str, Any]:
    if isinstance(variables, Mapping):
        return dict(variables)
    found: dict[str, Any] = {}
    for v in variables:
        name = v.name.removesuffix(":0")
        if name in found and found[name] is not v:
            raise ValueError(f"tf.train.Saver: two variables are called {name}")
        found[name] = v
    return found


def _write_state(path: str, kept: list[str], latest: str | None) -> None:
    folder = os.path.dirname(path)

    def said(p: str) -> str:
        p = os.path.basename(p) if os.path.dirname(p) == folder else os.path.abspath(p)
        return p.replace("\\", "\\\\").replace('"', '\\"')

    lines = [f'model_checkpoint_path: "{said(path)}"']
    lines += [f'all_model_checkpoint_paths: "{said(p)}"' for p in kept]
    with replacing("tf.train.Saver.save", os.path.join(folder, latest or "checkpoint")) as part:
        Path(part).write_text("\n".join(lines) + "\n")


def get_checkpoint_state(
    checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
) -> CheckpointState | None:
    """What the file `checkpoint` of a folder says, with the folder before its paths; `None` where
    there is none."""
    folder = os.fspath(checkpoint_dir)
    file = Path(folder, latest_filename or "checkpoint")
    if not file.is_file():
        return None
    last, every = "", []
    for key, text in re.findall(r'^(\w+): "((?:\\.|[^"\\])*)"$', file.read_text(), re.M):
        path = os.path.join(folder, re.sub(r"\\(.)", r"\1", text))
        if key == "model_checkpoint_path":
            last = path
        elif key == "all_model_checkpoint_paths":
            every.append(path)
    return CheckpointState(last, every) if last else None


def latest_checkpoint(
    checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
) -> str | None:
    """The path that was written last into a folder, or `None`."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None or not checkpoint_exists(state.model_checkpoint_path):
        return None
    return state.model_checkpoint_path


def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """Whether there is a file of this path."""
    return os.path.isfile(checkpoint_prefix + _ENDING)


def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, list[int]]]:
    """Names and shapes in a file."""
    path = latest_checkpoint(ckpt_dir_or_file) or ckpt_dir_or_file
    return [(n, list(x.shape)) for n, x in sorted(wg.load(path + _ENDING).items())]


for _thing in (
    Saver,
    get_checkpoint_state,
    latest_checkpoint,
    checkpoint_exists,
    list_variables,
):
    setattr(train, _thing.__name__, _thing)
