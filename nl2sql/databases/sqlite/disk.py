"""What lies on the disk under a database's name, looked at before SQLite opens it and may wait for it.

A pipe waits for its writer, a device has no end, and a file of a terabyte may hold a kilobyte: what
is no regular file is refused, and time and copies are measured by the bytes that are really stored.
Not covered: a file system that itself does not answer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

SIDECARS = ("-journal", "-wal", "-shm")
_PIECE = 2**20
_BLOCK = 512  # what st_blocks counts in, whatever the file system
_QUICK = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # a pipe opens without a writer


def sidecar(file: Path, suffix: str) -> Path:
    """The path of one of SQLite's files beside ``file``."""
    return file.with_name(file.name + suffix)


def resolved(path: Path) -> Path:
    """The real file behind a path. Raises OSError, also for symbolic links that run in a circle."""
    try:
        return path.resolve(strict=True)
    except RuntimeError:  # what pathlib raises for such links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
    except ValueError:  # a NUL in its name
        raise OSError(errno.EINVAL, "no file can have this name") from None


def read_head(file: Path, size: int) -> bytes:
    """The first bytes of a regular file.

    Raises OSError for anything else, and where one of its sidecars is something else or a link.
    """
    _check_regular(file.stat())
    with os.fdopen(os.open(file, _QUICK), "rb") as stream:
        _check_regular(os.fstat(stream.fileno()))  # it may have been exchanged
        _check_sidecars(file)
        return stream.read(size) or b""


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _check_sidecars(file: Path) -> None:
    for suffix in SIDECARS:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(sidecar(file, suffix)).st_mode):
                raise OSError(errno.EINVAL, f"its {suffix} beside it is not a regular file")


def stored_bytes(file: Path) -> int:
    """Bytes of a file that lie on the disk: a sparse file is as large as what was written to it."""
    status = file.stat()
    return min(status.st_size, getattr(status, "st_blocks", 1 << 62) * _BLOCK)


def copy_stored(source: Path, target: Path, deadline: float) -> None:
    """Copy ``source`` as long as it is now, holes as holes; ``deadline`` is of ``time.monotonic``.

    Raises OSError, TimeoutError among them; ``target`` is gone then.
    """
    try:
        with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
            size = os.fstat(reader.fileno()).st_size
            os.truncate(writer.fileno(), size)
            at = 0
            while at < size:
                first, last = _next_data(reader.fileno(), at, size)
                at = _copy_range(reader.fileno(), writer.fileno(), (first, last), deadline)
    except OSError:
        target.unlink(missing_ok=True)
        raise


def _next_data(file: int, at: int, size: int) -> tuple[int, int]:
    """Where the next written bytes lie; an empty range at the end where there are none left."""
    try:
        first = os.lseek(file, at, os.SEEK_DATA)
        return first, min(os.lseek(file, first, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return size, size
        return at, size  # a file system that does not know its holes


def _copy_range(reader: int, writer: int, place: tuple[int, int], deadline: float) -> int:
    """Copy the bytes of one range; where to go on."""
    at, last = place
    while at < last:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "copying it took too long")
        piece = os.pread(reader, min(_PIECE, last - at), at)
        if not piece:  # it became shorter meanwhile
            return 1 << 62
        os.pwrite(writer, piece, at)
        at += len(piece)
    return at
