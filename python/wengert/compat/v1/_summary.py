"""`tf.summary`: what a run tells TensorBoard, in event files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import wengert as wg
from wengert.compat.v1._graph import (
    GraphKeys,
    add_to_collections,
    get_collection,
    in_graph,
    name_scope,
)
from wengert.compat.v1._order import Fetch
from wengert.compat.v1._spaces import summary
from wengert.compat.v1._table import as_tensor
from wengert.io import _events


class Summary(Fetch):
    """What a session gives as the bytes of a `Summary` message."""

    def __init__(
        self, tensors: Sequence[wg.Tensor], made: Callable[[list[Any]], bytes], name: str
    ) -> None:
        super().__init__(tensors)
        self._count, self._made, self.name = len(tensors), made, name

    @property
    def op(self) -> Summary:
        """Itself."""
        return self

    def finish(self, values: list[Any]) -> bytes:
        """The message."""
        return self._made(values[: self._count])

    def eval(self, feed_dict: Any = None, session: Any = None) -> bytes:
        """The message, in a session or in the one that is open."""
        from wengert.compat.v1._session import current_session

        return (session or current_session("Summary.eval")).run(self, feed_dict)


def _tag(name: str, family: str | None) -> str:
    """A tag with the scopes before it, `name_1` where it was given before."""
    plain = name.replace(" ", "_")
    with name_scope(plain if family is None else f"{family}/{plain}") as scope:
        return scope.removesuffix("/")


def _kept(made: Summary, collections: Any) -> Summary:
    add_to_collections([GraphKeys.SUMMARIES] if collections is None else collections, made)
    return made


@in_graph
def scalar(name: str, tensor: Any, collections: Any = None, family: str | None = None) -> Summary:
    """A summary of one number."""
    tag, x = _tag(name, family), as_tensor(tensor)
    if x.shape is not None and any(n != 1 for n in x.shape if isinstance(n, int)):
        raise wg.ShapeError(f"tf.summary.scalar: {name} is no scalar, its shape is {x.shape}")
    found = Summary([x], lambda v: _events.scalar(tag, float(np.reshape(v[0], ()))), tag)
    return _kept(found, collections)


@in_graph
def histogram(
    name: str, values: Any, collections: Any = None, family: str | None = None
) -> Summary:
    """A summary of how often values fall into buckets."""
    tag, x = _tag(name, family), as_tensor(values)
    return _kept(Summary([x], lambda v: _events.histogram(tag, v[0]), tag), collections)


@in_graph
def image(
    name: str,
    tensor: Any,
    max_outputs: int = 3,
    collections: Any = None,
    family: str | None = None,
) -> Summary:
    """A summary of the first images of (n, height, width, channels): uint8, or floats, of which the
    largest becomes white, and where some are negative, 0 grey."""
    tag, x = _tag(name, family), as_tensor(tensor)
    if x.shape is not None and len(x.shape) != 4:
        raise wg.ShapeError(f"tf.summary.image: {name} has four axes, its shape is {x.shape}")

    def made(values: list[Any]) -> bytes:
        images = values[0][:max_outputs]
        single = max_outputs == 1
        return b"".join(
            _events.image(
                f"{tag}/image" if single else f"{tag}/image/{k}", _events.grid(pixels, True)
            )
            for k, pixels in enumerate(images)
        )

    return _kept(Summary([x[:max_outputs]], made, tag), collections)


@in_graph
def merge(inputs: Any, collections: Any = None, name: str | None = None) -> Summary:
    """Several summaries as one."""
    parts = list(inputs)

    def made(values: list[Any]) -> bytes:
        at, found = 0, b""
        for part in parts:
            found += part.finish(values[at : at + len(part.tensors)])
            at += len(part.tensors)
        return found

    joined = Summary([t for part in parts for t in part.tensors], made, name or "Merge")
    add_to_collections([] if collections is None else collections, joined)
    return joined


def merge_all(
    key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None
) -> Summary | None:
    """All summaries of the collection as one, or `None` where there is none."""
    found = get_collection(key, scope)
    return merge(found) if found else None


class FileWriter:
    """Writes summaries and a graph into a new event file in a folder."""

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        graph: Any = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,
    ) -> None:
        self._logdir = os.fspath(logdir)
        self._file = _events.EventFile(logdir, filename_suffix or "")
        if graph is not None:
            self.add_graph(graph)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def get_logdir(self) -> str:
        """The folder."""
        return self._logdir

    def add_summary(self, summary: bytes, global_step: Any = None) -> None:
        """Write what a session gave for a summary."""
        if not isinstance(summary, bytes):
            raise TypeError(
                "FileWriter.add_summary: expected the bytes that a session gives for a summary, "
                f"got {type(summary).__name__}"
            )
        self._file.summary(summary, None if global_step is None else int(global_step))

    def add_graph(self, graph: Any, global_step: Any = None) -> None:
        """Write a graph, which TensorBoard draws."""
        self._file.graph(graph)

    def flush(self) -> None:
        """See that what was written can be read."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


for _thing in (scalar, histogram, image, merge, merge_all, FileWriter):
    setattr(summary, _thing.__name__, _thing)
