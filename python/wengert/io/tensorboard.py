"""Event files for TensorBoard: numbers, histograms, images, text and graphs.

`Writer` writes them by itself; `graph_def` and `write_graph` need the package `tensorboard`:
`pip install wengert[tensorboard]`.
"""

from __future__ import annotations

import os
import re
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wengert.io import _events

if TYPE_CHECKING:
    from wengert.graph import Graph

__all__ = ["Writer", "graph_def", "write_graph"]

# The dtypes that TensorFlow has, by the names of its enumeration.
_TYPES = {
    "bool": "DT_BOOL",
    "int8": "DT_INT8",
    "int16": "DT_INT16",
    "int32": "DT_INT32",
    "int64": "DT_INT64",
    "uint8": "DT_UINT8",
    "uint16": "DT_UINT16",
    "uint32": "DT_UINT32",
    "uint64": "DT_UINT64",
    "float16": "DT_HALF",
    "bfloat16": "DT_BFLOAT16",
    "float32": "DT_FLOAT",
    "float64": "DT_DOUBLE",
}


def _protobufs() -> Any:
    try:
        proto = import_module("tensorboard.compat.proto")
        for part in ("event_pb2", "graph_pb2", "types_pb2"):
            import_module(f"tensorboard.compat.proto.{part}")
    except ImportError as error:
        raise ImportError(
            "wengert.io.tensorboard needs the package 'tensorboard':"
            " pip install tensorboard, or pip install 'wengert[tensorboard]'"
        ) from error
    return proto


def _name(node: Any, taken: set[str]) -> str:
    """A name as TensorFlow wants it, which no other node has. It begins with the modules in whose
    calls the node was traced, by which the page of graphs folds."""
    place = ["backward"] if node.is_backward else []
    place += [node.scope] if node.scope else []
    own = "/".join([*place, node.name or f"{node.op}_{node.id}"])
    plain = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", own)
    name = plain if re.match(r"[A-Za-z0-9.]", plain) else f"n{plain}"
    if name in taken:
        name = f"{name}_{node.id}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def graph_def(graph: Graph) -> Any:
    """The graph as a `GraphDef` message: names, ops, inputs, types, shapes, Python lines."""
    proto = _protobufs()
    message = proto.graph_pb2.GraphDef()
    message.versions.producer = 22
    names: dict[int, str] = {}
    taken: set[str] = set()
    for node in graph.nodes:
        names[node.id] = _name(node, taken)
        made = message.node.add(name=names[node.id], op=node.op)
        made.input.extend(names[other.id] for other in node.inputs)
        made.attr["dtype"].type = getattr(proto.types_pb2, _TYPES[node.dtype.name])
        shape = made.attr["_output_shapes"].list.shape.add()
        if node.shape is None:
            shape.unknown_rank = True
        else:
            for size in node.shape:
                shape.dim.add(size=-1 if size is None else size)
        made.attr["attributes"].s = str(node.attributes).encode()
        if node.site is not None:
            made.attr["site"].s = f"{node.site.filename}:{node.site.lineno}".encode()
    return message


def write_graph(directory: str | os.PathLike[str], graph: Graph) -> str:
    """Write a graph into a new event file in a directory of logs; the path of the file.

    `tensorboard --logdir DIRECTORY` shows it. The package `tensorboard` is needed.
    """
    proto = _protobufs()
    writers = import_module("tensorboard.summary.writer.event_file_writer")

    definition = graph_def(graph).SerializeToString()
    directory = os.fspath(directory)
    before = set(os.listdir(directory)) if os.path.isdir(directory) else set()
    writer = writers.EventFileWriter(directory)
    try:
        event = proto.event_pb2.Event(wall_time=time.time(), graph_def=definition)
        writer.add_event(event)
    finally:
        writer.close()
    made = sorted(set(os.listdir(directory)) - before)
    return os.path.join(directory, made[-1] if made else "")


class Writer:
    """Writes what TensorBoard shows into a new event file in a folder of logs.

    `tensorboard --logdir DIRECTORY` shows it while it is written. No package is needed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._file = _events.EventFile(directory)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._file.path

    def add_scalar(self, tag: str, value: Any, step: int | None = None) -> None:
        """Write a number: a Python number, or a tensor or array of one element."""
        import numpy as np

        self._file.summary(_events.scalar(tag, np.asarray(_array(value)).item()), step)

    def add_histogram(self, tag: str, values: Any, step: int | None = None) -> None:
        """Write how often values fall into buckets. ValueError where one is not finite."""
        self._file.summary(_events.histogram(tag, _array(values)), step)

    def add_image(self, tag: str, image: Any, step: int | None = None) -> None:
        """Write an image (channels, height, width) of 1, 3 or 4 channels, or (height, width):
        uint8, or floats in [0, 1]."""
        import numpy as np

        pixels = np.asarray(_array(image))
        if pixels.ndim == 2:
            pixels = pixels[None]
        if pixels.ndim != 3:
            raise ValueError(
                f"add_image: {tag} has shape {pixels.shape}, wanted (channels, height, width)"
            )
        shown = _events.grid(np.moveaxis(pixels, 0, -1), False)
        self._file.summary(_events.image(tag, shown), step)

    def add_text(self, tag: str, words: str, step: int | None = None) -> None:
        """Write text, which is shown as Markdown."""
        self._file.summary(_events.note(tag, words), step)

    def add_graph(self, graph: Graph) -> None:
        """Write a graph, which the graph page draws."""
        self._file.graph(graph)

    def flush(self) -> None:
        """See that what was written can be read."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _array(x: Any) -> Any:
    """The data of a tensor, wherever it lies; other values as they are."""
    from wengert import Tensor

    return x.detach().to("cpu").numpy() if isinstance(x, Tensor) else x
