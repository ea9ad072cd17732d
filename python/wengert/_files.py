"""Files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator

from wengert._core import ArgumentError

__all__ = ["replacing", "write_text"]


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
