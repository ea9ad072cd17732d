"""Tables and pictures as tensors: npz, CSV, Parquet, images."""

from __future__ import annotations

import csv
import math
import os
import re
import zipfile
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from wengert import _core
from wengert._core import ArgumentError, ArgumentTypeError, Device, DType, Tensor, asarray
from wengert._files import of_zip, regular

__all__ = ["read_csv", "read_image", "read_npz", "read_parquet"]


def read_npz(
    path: str | os.PathLike[str], *, device: str | Device | None = None
) -> dict[str, Tensor]:
    """The arrays of a `.npz` file by their names, with their dtypes.

    Nothing in the file is executed, and nothing is allocated that the file is too short for. Arrays
    of objects, texts, structures and complex numbers are refused, all of them listed. `ValueError`
    for what is no such file.
    """
    name = os.fspath(path)
    regular("read_npz", name)
    with open(name, "rb") as file:
        if file.read(2) != b"PK":
            raise ArgumentError(f"read_npz: not a zip archive\n  {name}")
    with of_zip("read_npz", name), zipfile.ZipFile(name) as archive:
        entries = archive.infolist()
        problems = [p for e in entries if (p := _problem(archive, e)) is not None]
        if problems:
            listed = "; ".join(problems)
            raise ArgumentTypeError(f"read_npz: cannot be read: {listed}\n  {name}")
        found = {}
        for entry in entries:
            with archive.open(entry) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            array = array.astype(array.dtype.newbyteorder("="), copy=False)
            found[entry.filename.removesuffix(".npy")] = asarray(array, device=_place(device))
        return found


def _place(device: str | Device | None) -> Device:
    return _core.device("cpu" if device is None else device)


def _problem(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str | None:
    """Why an entry of an archive is not read."""
    label = repr(entry.filename)
    if not entry.filename.endswith(".npy"):
        return f"{label} is no array"
    # No deflated data grow by more than 1032.
    if entry.file_size > 1100 * entry.compress_size:
        return f"{label} is larger than its data"
    formats = np.lib.format
    with archive.open(entry) as file:
        version = formats.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = formats.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = formats.read_array_header_2_0(file)
        else:
            return f"{label} has format {version}"
        start = file.tell()
    if dtype.hasobject or dtype.kind not in "?biuf" or dtype.itemsize > 8:
        return f"{label} has dtype {dtype}"
    if start + math.prod(shape) * dtype.itemsize != entry.file_size:
        return f"{label} of shape {shape} is cut off"
    return None


_INT = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf(inity)?)", re.I)


def read_csv(
    path: str | os.PathLike[str],
    *,
    delimiter: str = ",",
    header: bool = True,
    columns: Sequence[str] | None = None,
    dtype: DType | None = None,
    device: str | Device | None = None,
) -> dict[str, Any]:
    """The columns of a table of text, by the names in its first row.

    A column of whole numbers is int64, one of other numbers float32, one of `true` and `false`
    bool; with `dtype`, all numbers have it. An empty field among numbers is NaN, so that the column
    is floating. A column with other text is a list of strings. Without `header`, names are "0",
    "1", …; `columns` picks some. `ValueError` for a row of another length, with its line.
    """
    name = os.fspath(path)
    with open(name, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=delimiter)
        try:
            rows = [(reader.line_num, row) for row in reader if row]
        except csv.Error as error:
            raise ArgumentError(f"read_csv: {error}\n  {name}, line {reader.line_num}") from error
    if not rows:
        raise ArgumentError(f"read_csv: the file is empty\n  {name}")
    first = rows[0][1]
    names = [cell.strip() for cell in first] if header else [str(k) for k in range(len(first))]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise ArgumentError(f"read_csv: names of columns come twice: {sorted(twice)}\n  {name}")
    for line, row in rows:
        if len(row) != len(names):
            raise ArgumentError(
                f"read_csv: a row of {len(row)} fields, wanted {len(names)}\n  {name}, line {line}"
            )
    missing = sorted(set(columns or ()) - set(names))
    if missing:
        raise ArgumentError(f"read_csv: there are no columns {missing}, got {names}\n  {name}")
    found: dict[str, Any] = {}
    for k, column in enumerate(names):
        if columns is None or column in columns:
            cells = [row[k].strip() for _, row in rows[header:]]
            try:
                found[column] = _column(cells, dtype, _place(device))
            except (OverflowError, ValueError) as error:
                raise ArgumentError(f"read_csv: column {column!r}: {error}\n  {name}") from error
    return found


def _column(cells: list[str], dtype: DType | None, place: Device) -> Any:
    given = [c for c in cells if c]
    values: Any
    if given and all(map(_INT.fullmatch, given)):
        values, usual = list(map(int, given)), _core.int64
    elif given and all(map(_FLOAT.fullmatch, given)):
        values, usual = list(map(float, given)), _core.float32
    elif given and {c.lower() for c in given} <= {"true", "false"} and len(given) == len(cells):
        values, usual = [c.lower() == "true" for c in cells], _core.bool
        return asarray(np.array(values), dtype=dtype or usual, device=place)
    else:
        return cells
    if len(given) < len(cells):
        rest = iter(values)
        values = [float(next(rest)) if c else math.nan for c in cells]
        usual = _core.float32
    kind = np.int64 if isinstance(values[0], int) else np.float64
    return asarray(np.array(values, kind), dtype=dtype or usual, device=place)


def _needed(op: str, module: str, package: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{op} needs the package {package!r}: pip install {package},"
            f" or pip install 'wengert[{extra}]'"
        ) from error


def read_parquet(
    path: str | os.PathLike[str],
    *,
    columns: Iterable[str] | None = None,
    device: str | Device | None = None,
) -> dict[str, Any]:
    """The columns of a Parquet file by their names, with their dtypes.

    Numbers and truth values become tensors of shape (rows,), lists of a fixed length tensors of
    shape (rows, length), text a list of strings. Missing floats are NaN; other missing values, and
    columns of other kinds, are refused, all of them listed. The package `pyarrow` is needed:
    `pip install wengert[parquet]`.
    """
    parquet = _needed("read_parquet", "pyarrow.parquet", "pyarrow", "parquet")
    arrow = import_module("pyarrow")
    name = os.fspath(path)
    wanted = None if columns is None else list(columns)
    try:
        there = parquet.read_schema(name).names
        missing = sorted(set(wanted or ()) - set(there))
        if missing:
            raise ArgumentError(f"read_parquet: there are no columns {missing}, got {there}")
        table = parquet.read_table(name, columns=wanted)
    except arrow.ArrowInvalid as error:
        raise ArgumentError(f"read_parquet: {error}\n  {name}") from error
    found: dict[str, Any] = {}
    problems = []
    for column, chunks in zip(table.column_names, table.columns, strict=True):
        values = chunks.combine_chunks()
        if isinstance(values, arrow.ChunkedArray):
            values = arrow.concat_arrays(values.chunks) if values.num_chunks else values.chunk(0)
        read = _arrow_column(arrow, values)
        if read is None:
            nulls = f" with {values.null_count} missing values" if values.null_count else ""
            problems.append(f"{column!r} is of type {values.type}{nulls}")
        else:
            text = isinstance(read, list)
            found[column] = read if text else asarray(read, device=_place(device))
    if problems:
        raise ArgumentTypeError(f"read_parquet: cannot be read: {'; '.join(problems)}\n  {name}")
    return found


def _arrow_column(arrow: Any, values: Any) -> Any:
    """A column as a NumPy array or a list of strings; None for what is neither."""
    types, kind = arrow.types, values.type
    if types.is_string(kind) or types.is_large_string(kind):
        return values.to_pylist()
    if types.is_floating(kind):
        return values.to_numpy(zero_copy_only=False)
    if values.null_count:
        return None
    if types.is_integer(kind) or types.is_boolean(kind):
        return values.to_numpy(zero_copy_only=False)
    if types.is_fixed_size_list(kind):
        inner = _arrow_column(arrow, values.flatten())
        if isinstance(inner, np.ndarray):
            return inner.reshape(len(values), kind.list_size, *inner.shape[1:])
    return None


# How an image of each mode of pillow is kept; others become RGB.
_MODES = {"1": "L", "L": "L", "LA": "LA", "RGB": "RGB", "RGBA": "RGBA", "I;16": "I;16"}


def read_image(
    path: str | os.PathLike[str],
    *,
    mode: str | None = None,
    device: str | Device | None = None,
) -> Tensor:
    """An image as uint8 of shape (channels, height, width), or uint16 for 16 bits of grey.

    `mode` is one of pillow's: "L" for grey, "RGB", "RGBA"; without it an image has the channels
    that its file has, and those of a palette or other colours are converted to RGB. The package
    `pillow` is needed: `pip install wengert[images]`.
    """
    images = _needed("read_image", "PIL.Image", "pillow", "images")
    name = os.fspath(path)
    try:
        with images.open(name) as image:
            alpha = image.mode in ("P", "PA") and "transparency" in image.info
            wanted = mode or _MODES.get(image.mode, "RGBA" if alpha else "RGB")
            array = np.asarray(image if image.mode == wanted else image.convert(wanted))
    except (images.UnidentifiedImageError, images.DecompressionBombError, ValueError) as error:
        raise ArgumentError(f"read_image: {error}\n  {name}") from error
    if array.dtype not in (np.uint8, np.uint16):
        raise ArgumentError(f"read_image: mode {wanted!r} has elements of {array.dtype}\n  {name}")
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return asarray(np.ascontiguousarray(array), device=_place(device))
