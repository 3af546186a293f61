"""SQLite files as they lie on disk: opening them so that nothing is left behind, and fingerprints of their content.

The SQL executed here is the package's own; what models and users write goes through ``database``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nl2sql.databases.sqlite.disk import (
    BUSY_S,
    Unreadable,
    bound,
    content_digest,
    copy_stored,
    read_head,
    resolved,
    rows_deadline,
    sidecar,
    stored_bytes,
    vet,
)
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.machine import cache_dir

if TYPE_CHECKING:
    from nl2sql.interfaces import Database

FRESH_S = 2.0  # a file changed this recently may change again within one tick of its time stamp


def sqlite_file(database: Database) -> Path | None:
    """The file of a database that is one; None for another engine's."""
    path = getattr(database, "path", None)
    return Path(path) if path is not None and database.dialect == "sqlite" else None


@dataclass(frozen=True)
class _Opened:
    path: Path  # as given
    file: Path  # symbolic links resolved: SQLite puts -wal and -shm next to the real file
    wal_mode: bool
    version: str
    uri: str


class WalCopies:
    """The file to open for a database path, so that reading leaves no file behind.

    A database in WAL mode needs a ``-shm`` file next to it even to be read, which a reader would have to create.
    Unless a writer keeps that file there, we read a private copy (database and ``-wal``, turned into rollback
    mode), made again whenever one of the two changes. Every other database is opened in place.
    Not covered: a WAL database that is written by another process while it is being copied.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._known: dict[str, _Opened] = {}

    def readable(self, path: str | Path) -> tuple[str, str]:
        """``(uri, version)`` of what to open; the version changes with the file. Raises OSError, sqlite3.Error."""
        name = os.fspath(path)
        known = self._known.get(name)
        if known is None or known.version != _version(known.path, known.file if known.wal_mode else None):
            with self._lock:
                known = self._known[name] = self._open(Path(name))
        return known.uri, known.version

    def _open(self, path: Path) -> _Opened:
        file = resolved(path)
        header = read_head(file, 20)
        if header and not header.startswith(b"SQLite format 3\0"):
            raise sqlite3.DatabaseError("file is not a database")
        wal_mode = header[18:20] == b"\x02\x02"
        version = _version(path, file if wal_mode else None)
        served = sidecar(file, "-wal").exists() and sidecar(file, "-shm").exists()
        if not wal_mode:
            return _Opened(path, file, False, version, file.as_uri() + "?mode=ro")
        # readonly_shm: take part in the writer's locks without touching its -shm file
        uri = file.as_uri() + "?mode=ro&readonly_shm=1" if served else self._copy(file).as_uri() + "?mode=ro"
        return _Opened(path, file, True, version, uri)

    def _copy(self, file: Path) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="nl2sql-wal-"))
            weakref.finalize(self, _remove_folder, self._folder, os.getpid())
        copy = self._folder / hashlib.sha256(os.fsencode(file)).hexdigest()[:16]
        parts = [(file, copy), (sidecar(file, "-wal"), sidecar(copy, "-wal"))]
        stored = sum(stored_bytes(source) for source, _ in parts if source.exists())
        deadline = time.monotonic() + rows_deadline(stored)
        for source, target in parts:
            target.unlink(missing_ok=True)
            if source.exists():
                copy_stored(source, target, deadline)
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA journal_mode=delete").fetchall()
        return copy

    def close(self) -> None:
        """Remove the copies; usable again afterwards."""
        with self._lock:
            folder, self._folder = self._folder, None
            self._known.clear()
        if folder is not None:
            _remove_folder(folder, os.getpid())


def _remove_folder(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must leave its parent's copies alone
        shutil.rmtree(folder, ignore_errors=True)


def _version(path: Path, wal_of: Path | None) -> str:
    """Size, time and inode of the file, and of its ``-wal`` where the mode asks for one."""
    stat = path.stat()
    version = f"{stat.st_mtime_ns}:{stat.st_size}:{stat.st_ino}"
    if wal_of is None:
        return version
    for suffix in ("-wal", "-shm"):
        try:
            stat = sidecar(wal_of, suffix).stat()
            version += f":{stat.st_mtime_ns}:{stat.st_size}" if suffix == "-wal" else ":served"
        except FileNotFoundError:
            version += ":none"
    return version


@contextlib.contextmanager
def read_only(path: str | Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection in this process, for SQL of our own. Raises OSError, sqlite3.Error.

    The schema was read in another process before (``vetting.vet``). Single values are limited in size, and what
    executes longer than a file of this size can need is interrupted.
    """
    copies = WalCopies()
    seconds = 0.0
    try:
        uri, version = copies.readable(path)
        vet(uri, version)
        seconds = rows_deadline(stored_bytes(Path(path)))
        deadline = time.monotonic() + seconds
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as connection:
            connection.execute("PRAGMA query_only=on")
            bound(connection)
            connection.set_progress_handler(lambda: int(time.monotonic() > deadline), 100_000)
            yield connection
    except sqlite3.OperationalError as error:
        if str(error) == "interrupted":
            raise Unreadable(f"reading it took more than {seconds:.0f} s") from None
        raise
    finally:
        copies.close()


def reason(error: BaseException) -> str:
    """Why an operation failed, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]


def check_is_file(path: Path) -> None:
    """Raises UsageError unless ``path`` is a regular file, DatabaseError when the system does not let us look."""
    try:
        exists, regular = path.exists(), path.is_file()
    except OSError as error:
        raise unusable(path, error) from None
    name = shown_path(path)
    if not exists:
        raise UsageError(f"database file {name} does not exist; give the path of a SQLite file")
    if not regular:
        what = "a directory" if path.is_dir() else "not a regular file"
        raise UsageError(f"{name} is {what}; give the path of a SQLite file, or of a folder with CSV files")


def unusable(path: Path, error: BaseException) -> DatabaseError:
    """The error to raise when SQLite or the system refused ``path``."""
    name = shown_path(path)
    if "not a database" in str(error):
        return DatabaseError(f"{name} is not a SQLite database; expected a file that sqlite3 can open")
    return DatabaseError(f"database {name} cannot be read: {reason(error)}")


def shown_path(path: str | Path) -> str:
    """A path as one line of an error may show it: quoted where it holds what does not print."""
    text = os.fspath(path)
    return text if text.isprintable() else ascii(text)


def fingerprint_sqlite(path: str | Path) -> str:
    """SHA-256 (hex) of what a SQLite file holds: schema as introspected, collations, view texts, and all rows.

    Independent of the file's bytes (page size, free pages, VACUUM, WAL) and of the physical order of rows: a
    table's rows enter as the sum of their hashes, so duplicates count. Types count: 1, 1.0 and '1' differ.
    Not covered: indexes, triggers, defaults, CHECKs. Cached by path, size and time of change.
    Raises UsageError for a path that is no file, DatabaseError for a file that cannot be read.
    """
    file = Path(path)
    check_is_file(file)
    real = file.resolve()
    cached = cache_dir("fingerprints") / hashlib.sha256(os.fsencode(f"1:{real}:{_version(real, real)}")).hexdigest()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = cached.read_text(encoding="ascii")
        if re.fullmatch(r"[0-9a-f]{64}", text):
            return text
    try:
        copies = WalCopies()
        try:
            digest = content_digest(copies.readable(real)[0], stored_bytes(real))
        finally:
            copies.close()
    except (OSError, sqlite3.Error) as error:
        raise unusable(file, error) from None
    if time.time() - real.stat().st_mtime > FRESH_S:
        scratch = cached.with_name(f"{cached.name}.{os.getpid()}.{threading.get_ident()}")
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
            scratch.write_text(digest, encoding="ascii")
            scratch.replace(cached)
    return digest
