"""Files that a stranger may have laid: which of them are opened, and how.

    with open_regular(folder / "predictions.jsonl") as file: ...
    manifest = read_bytes(folder / "manifest.json", most=16 * MEGABYTE)

Whatever is opened here is a regular file under its own name: no link, pipe, device or socket, so that nothing hangs and
nothing elsewhere is read or changed. What is written has no second name (a hard link) either. ``most`` bounds the bytes
that a file may have on opening and the bytes that are read of it.

Raises ``NotOpened`` for what is refused, and OSError where the system refuses (FileNotFoundError among them). Not
covered: a link among the folders above ``path``, which whoever typed the path may have chosen.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from nl2sql.errors import UsageError, one_line

MEGABYTE = 1 << 20
_FLAGS = {  # of os.open, by the mode of open
    "rb": os.O_RDONLY,
    "rb+": os.O_RDWR,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "xb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotOpened(UsageError):
    """A file that is none of its own, or larger than what it is read for may be."""


def kind_of(mode: int) -> str:
    """What a file of that ``st_mode`` is, in words; "" for a regular file."""
    return next((words for is_one, words in _KINDS if is_one(mode)), "")


def open_regular(path: Path, mode: str = "rb", *, most: int | None = None, buffering: int = -1) -> IO[Any]:
    """The regular file at ``path``; modes: rb, rb+, ab (made where it is missing), xb (made, and never there before).

    most: bytes that it may have. Raises NotOpened, OSError.
    """
    flags = _FLAGS[mode] | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        kind = ""
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            with suppress(OSError):
                kind = kind_of(os.lstat(path).st_mode)
        if not kind:
            raise
        raise _not_regular(path, kind) from None
    try:
        found = os.fstat(handle)
        if kind := kind_of(found.st_mode):
            raise _not_regular(path, kind)
        if mode != "rb" and found.st_nlink > 1:
            raise NotOpened(f"{_named(path)} has {found.st_nlink} names (hard links), so it is not written; copy it")
        if most is not None and found.st_size > most:
            raise NotOpened(f"{_named(path)} has {found.st_size:,} bytes; expected at most {most:,}")
        os.set_blocking(handle, True)
        return os.fdopen(handle, mode.replace("x", "w"), buffering)
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: Path, most: int) -> bytes:
    """What the regular file at ``path`` holds; at most ``most`` bytes. Raises NotOpened, OSError."""
    with open_regular(path, most=most) as file:
        data: bytes = file.read(most + 1)
    if len(data) > most:  # it grew meanwhile
        raise NotOpened(f"{_named(path)} has more than {most:,} bytes; expected at most {most:,}")
    return data


def _not_regular(path: Path, kind: str) -> NotOpened:
    return NotOpened(f"{_named(path)} is {kind}, and is not opened; expected a file: copy what it stands for there")


def _named(path: Path) -> str:
    """A path in a message: a stranger chose the name."""
    return one_line(path, 300)
