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
import hashlib
import math
import os
import re
import signal
import sqlite3
import stat
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nl2sql.databases.schema import introspect, quote_always
from nl2sql.databases.sqlite.process import PATIENCE, Children, reply, requests
from nl2sql.databases.sqlite.worker import restrict_process
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


# ------------------------------------------------------------ what a stranger's file is asked first
# A file can be made such that merely describing it takes hours or gigabytes: views that double,
# generated columns that explode, a full-text table over an endless view. SQLite 3.40 cannot be
# interrupted while it resolves names, so that a deadline within the process would not hold; here
# another process reads it first, and is killed. This module runs as that child, too (``main``).

OPEN_S = 4.0  # for whatever opens a file: to copy, describe or read it, and another second for every ...
BYTES_PER_S = 5 * 2**20  # ... so many bytes that lie on the disk, where rows are read or copied
BUSY_S = 1.0  # to wait for another process that has locked the file
MAX_TABLES = 10_000  # tables and views
MAX_SCHEMA_CHARS = 20_000_000  # of all CREATE statements together
MAX_VALUE_BYTES = 64 * 2**20  # of one text or blob
HEAP_BYTES = 2**30  # SQLite's own memory; twice what a statement gets


class Unreadable(sqlite3.DatabaseError):
    """Reading took too long or too much memory; the text says which bound."""


@lru_cache(maxsize=4096)
def vet(uri: str, version: str) -> None:
    """Have the schema read elsewhere first. Raises sqlite3.Error with one line. Asked once for a ``version``."""
    half = OPEN_S / 2  # the caller describes it once more
    _ask({"what": "schema", "uri": uri}, half, "its tables and views were not described")


def content_digest(uri: str, size: int) -> str:
    """SHA-256 (hex) of schema and rows (``content_hash``). Raises sqlite3.Error with one line."""
    seconds = rows_deadline(size)
    return _ask({"what": "digest", "uri": uri}, seconds, "its rows were not read")


def rows_deadline(size: int) -> float:
    """The seconds that reading or copying a file with ``size`` bytes on the disk may take."""
    return OPEN_S + size / BYTES_PER_S


# ------------------------------------------------------------------------------------------------------ the parent


_readers = Children("nl2sql.databases.sqlite.disk")


def _ask(request: dict[str, str], seconds: float, what: str) -> str:
    try:
        with _readers.lent() as reader:
            answer = reader.ask(request | {"seconds": str(seconds)}, seconds, patience=PATIENCE)
    except TimeoutError:
        raise Unreadable(f"{what} within {round(seconds, 1):g} s") from None
    except ConnectionError:
        raise Unreadable(f"{what}: the process that reads it died, most likely of too much memory") from None
    if "error" in answer:
        raise (Unreadable if answer["bound"] else sqlite3.DatabaseError)(answer["error"])
    digest: str = answer["digest"]  # empty for a schema, which is only looked at
    return digest


# ------------------------------------------------------------------------------------------------------- the child


def main() -> None:
    """Answer requests until the socket closes."""
    restrict_process()
    for request in requests():
        signal.alarm(math.ceil(float(request["seconds"]) * PATIENCE) + 5)  # the end of an orphan
        try:
            answer = {"digest": _read(request)}
        except MemoryError:
            answer = {"error": "reading it takes too much memory", "bound": "yes"}
        except sqlite3.Error as error:
            line = (str(error) or type(error).__name__).splitlines()[0][:300]
            full = "out of memory" in line or "too big" in line
            line = f"reading it takes too much memory ({line})" if full else line
            answer = {"error": line, "bound": "yes" if full or isinstance(error, Unreadable) else ""}
        signal.alarm(0)
        reply(answer)


def _read(request: dict[str, str]) -> str:
    with contextlib.closing(sqlite3.connect(request["uri"], uri=True, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA query_only=on")
        connection.execute("PRAGMA temp_store=memory")  # this process cannot write a file
        connection.execute(f"PRAGMA hard_heap_limit={HEAP_BYTES}").fetchall()
        bound(connection)
        if request["what"] == "digest":
            return content_hash(connection)
        introspect(connection)
        return ""


def bound(connection: sqlite3.Connection) -> None:
    """Limit single values, and refuse a schema without end. Raises Unreadable, sqlite3.Error."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    count, chars = connection.execute(
        "SELECT count(*) FILTER (WHERE type IN ('table', 'view')), total(length(sql)) FROM sqlite_master"
    ).fetchone()
    if count > MAX_TABLES:
        raise Unreadable(f"it has {count} tables and views; at most {MAX_TABLES} are read")
    if chars > MAX_SCHEMA_CHARS:
        raise Unreadable(f"its schema has {chars:.0f} characters; at most {MAX_SCHEMA_CHARS} are read")


def content_hash(connection: sqlite3.Connection) -> str:
    """The hash of schema and rows, as ``fingerprint_sqlite`` gives it. Generated columns follow from the others."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    schema = introspect(connection)
    texts = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    views = sorted((name, " ".join((sql or "").split())) for kind, name, sql in texts if kind == "view")
    collations = sorted((name, re.findall(r"(?i)\bCOLLATE\W+(\w+)", sql or "")) for _, name, sql in texts)
    total = hashlib.sha256(repr((schema, views, collations)).encode("utf-8", "surrogateescape"))
    for table in schema.tables:
        if table.is_view:
            continue
        count = rows = 0
        for row in connection.execute(f"SELECT {_stored(connection, table.name)} FROM {quote_always(table.name)}"):
            digest = hashlib.sha256(repr(row).encode("utf-8", "surrogateescape")).digest()
            rows = (rows + int.from_bytes(digest, "big")) % 2**256
            count += 1
        total.update(f"{table.name}:{count}:{rows:064x}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _stored(connection: sqlite3.Connection, table: str) -> str:
    """The columns to read: all of them, but for those that SQLite computes, which could be of any size."""
    rows = connection.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
    if not any(hidden in (2, 3) for _, hidden in rows):
        return "*"
    return ", ".join(quote_always(name) for name, hidden in rows if not hidden) or "NULL"
