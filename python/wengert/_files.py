"""Files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator

from wengert._core import ArgumentError, Error

__all__ = ["of_zip", "regular", "replacing", "write_text"]


def regular(op: str, path: str | os.PathLike[str]) -> None:
    """Refuse devices, sockets and FIFOs: opening one may wait for ever."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ArgumentError(f"{op}: not a regular file: got {os.fspath(path)}")


# What the library raises for an archive that is none, or is broken; besides, it seeks where nothing
# is.
_BROKEN = (
    zipfile.BadZipFile, EOFError, NotImplementedError, OverflowError, RuntimeError, ValueError,
    struct.error, zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def of_zip(op: str, path: str) -> Iterator[None]:
    """What the reading of a zip archive raises for a broken one, as an error of ours."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ArgumentError(f"{op}: the archive is broken\n  {path}") from error
    except _BROKEN as error:
        raise ArgumentError(f"{op}: the archive is broken: {error}\n  {path}") from error


@contextlib.contextmanager
def replacing(op: str, path: str | os.PathLike[str]) -> Iterator[str]:
    """The path of a new file to write, which takes the place of `path` when the block has ended.

    It lies in the same folder under a name that nobody else has, so that writers of one path do not
    meet. What is written is on the disk before the old file goes. A link stays and its target is
    replaced; modes are kept. Folders, devices, sockets and FIFOs are refused.
    """
    target = os.path.realpath(path)
    try:
        old: os.stat_result | None = os.stat(target)
    except FileNotFoundError:
        old = None
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(21, "Is a directory", os.fspath(path))
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise ArgumentError(f"{op}: not a regular file: got {os.fspath(path)}")
    folder = os.path.dirname(target)
    part = os.path.join(folder, f".wengert-{secrets.token_hex(8)}.part")
    try:
        file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except OSError as error:
        # Named as the caller knows it.
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
    try:
        try:
            if old is not None:
                with contextlib.suppress(OSError):  # as on file systems without modes
                    os.chmod(part, stat.S_IMODE(old.st_mode))
            yield part
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)
        raise
    _keep_entry(folder)


def _keep_entry(folder: str) -> None:
    """Have the new entry of a folder on the disk, where the system can."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def write_text(op: str, path: str | os.PathLike[str], text: str) -> None:
    """Text as a file; what is no file (`/dev/stdout`, a FIFO) is written to as it stands."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return
    with replacing(op, path) as part, open(part, "w", encoding="utf-8") as file:
        file.write(text)
