"""Graphs for TensorBoard: event files that its graph page shows.

The package `tensorboard` writes them: `pip install wengert[tensorboard]`.
"""

from __future__ import annotations

import os
import re
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wengert.graph import Graph

__all__ = ["graph_def", "write_graph"]

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
    """A name as TensorFlow wants it, which no other node has."""
    plain = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", node.name or f"{node.op}_{node.id}")
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
