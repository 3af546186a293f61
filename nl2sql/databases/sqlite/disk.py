"""What lies on the disk under a database's name, looked at before SQLite opens it, and files of our own.

A pipe waits for its writer, a device has no end, and a file of a terabyte may hold a kilobyte: what
is no regular file is refused, and time and copies are measured by the bytes that are really stored.
Not covered: a file system that itself does not answer.

>>> notes = OwnFile("notebook", "--notes", 1, 0x6E6C3271, "CREATE TABLE notes (text TEXT)")
>>> notes.tables
frozenset({'notes'})
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from nl2sql.errors import DatabaseError, UsageError, one_line

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


# --------------------------------------------------------------------------------- files of our own
# Several processes may write at once: each write is one transaction that waits for its turn. A
# damaged file, one of a newer nl2sql, or one that is none of ours is an error that leaves it as it
# is; so is one that holds more than our statements made (a trigger runs whenever we write).
# ``write_ahead`` waits, too: SQLite itself refuses the change of a journal at once where another
# connection reads at that moment.
#
# Not covered: files on network drives, where SQLite's locks do not hold.

WAIT_S = 20.0  # for another process's transaction
CHECK_S, CHECKED_PER_S = 1.0, 50 * 2**20  # what the look at a file may take, and a second more for so many bytes
LONGEST = 16 * 2**20  # characters of one value
_MADE = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"


def write_ahead(connection: sqlite3.Connection) -> None:
    """Give the connection's file a write-ahead log. Raises sqlite3.Error where others use it for over ``WAIT_S``."""
    ends = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > ends:
                raise
        time.sleep(0.01)


@dataclass(frozen=True)
class OwnFile:
    """A kind of file: what it is called, the option that names one, and the statements that make a new one.

    application: SQLite's mark of the kind, 32 bits. hint: what to type for another file of the kind. upgrades: the
    statements that make the next version of version 1, 2, ...
    """

    noun: str
    option: str
    version: int
    application: int
    statements: str
    hint: str = ""
    upgrades: Sequence[str] = ()

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(re.findall(r"CREATE TABLE (\w+)", self.statements))

    def open(self, path: Path) -> sqlite3.Connection:
        """A connection to the file, made where it is missing; for all threads, without implicit transactions.

        Raises UsageError for a path that can be no file and a database that is none of ours, DatabaseError for a file
        that is damaged, newer, or locked for too long."""
        if path.is_dir() or not path.parent.is_dir():
            raise UsageError(
                f"{self.noun} {path} is not a file that can be made; give {self.option} FILE in an existing folder"
            )
        try:
            if path.exists():
                read_head(path, 0)  # a pipe or a device, there or beside it, would be waited for
            connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"{self.noun} {path} cannot be opened: {getattr(error, 'strerror', error)}") from None
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            self._prepare(connection, path)
        except sqlite3.Error as error:
            connection.close()
            raise self.error(path, error) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, path: Path) -> None:
        connection.execute("BEGIN IMMEDIATE")  # one process prepares, the others wait and then find it done
        ends = time.monotonic() + CHECK_S + stored_bytes(path) / CHECKED_PER_S
        connection.set_progress_handler(lambda: int(time.monotonic() > ends), 10_000)
        rows = connection.execute("SELECT lower(name) FROM sqlite_master WHERE type = 'table'").fetchall()
        names = {row[0] for row in rows}
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > self.version:
            made = f"version {version}, made by a newer nl2sql; this one knows {self.version}"
            raise DatabaseError(f"{self.noun} {path} has {made}")
        if names and (version < 1 or not self.tables <= names):
            raise UsageError(
                f"{path} is a SQLite database but no {self.noun} of nl2sql (its tables: "
                f"{', '.join(sorted(names)[:5])}); give {self.option} another file{self.hint}"
            )
        upgrades = self.upgrades[version - 1 :] if names else [self.statements]
        for statement in ";".join(upgrades).split(";"):
            connection.execute(statement)
        if odd := _written(connection) ^ self._made():
            kind, name, _ = min(odd)
            what = f"{kind} {one_line(name, 60)} is not as nl2sql makes it"
            raise UsageError(f"{self.noun} {path} is not used: its {what}; give {self.option} another file{self.hint}")
        if upgrades:
            connection.execute(f"PRAGMA user_version = {self.version}")
            connection.execute(f"PRAGMA application_id = {self.application}")
        if (problem := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(f"database disk image is malformed: {problem}")
        connection.set_progress_handler(None, 0)
        connection.execute("COMMIT")

    def _made(self) -> set[tuple[str, str, str]]:
        """What a new file holds."""
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(self.statements)
            return _written(connection)

    def error(self, path: Path, error: sqlite3.Error) -> DatabaseError:
        """SQLite's error about such a file, as one line with what to do next."""
        text, subject = one_line(error), f"{self.noun} {path}"
        if "interrupted" in text:
            return DatabaseError(f"{subject} takes too long to look through; give {self.option} another file")
        if "locked" in text or "busy" in text:
            return DatabaseError(f"{subject} is being written by another process for over {WAIT_S:g} s; try again")
        if "not a database" in text or "malformed" in text:
            return DatabaseError(f"{subject} is damaged ({text}); nothing was changed: restore it, or move it away")
        if "readonly" in text:
            return DatabaseError(f"{subject} cannot be written: it, or its folder, is read-only")
        return DatabaseError(f"{subject}: {text}")


def _written(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """(type, name, statement) of all that a database holds, however the statement is laid out."""
    return {(kind, name, "".join(sql.split())) for kind, name, sql in connection.execute(_MADE)}
