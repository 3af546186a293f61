"""Results of golds, remembered on disk as digests, so that a second run does not execute them.

One file per original database under ``cache_dir("gold")``, named by the content of the database. An entry is found by
the database file it was executed on, the statement, and the bounds of time and rows. What cannot be read is forgotten;
a cache that cannot be written costs time, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

from nl2sql.errors import Nl2SqlError
from nl2sql.machine import cache_dir

VERSION = f"gold-1/sqlite-{sqlite3.sqlite_version}"  # change it whenever a digest is computed in another way
WORTH_S = 0.01  # a gold that takes less is executed again sooner than looked up
LARGEST_BYTES = 256 * 2**20  # of a database whose content is worth hashing for this
CHANGING = re.compile(  # statements whose answer is another one at another time
    r"random|current_|'\s*now|\"\s*now|\b(?:date|time|datetime|julianday|unixepoch|timediff)\s*\(\s*\)"
    r"|\bstrftime\s*\([^,)]*\)|changes|last_insert",
    re.IGNORECASE,
)


class GoldCache:
    """The digests of one database and its replicas. ``save`` writes what was added."""

    def __init__(self, path: Path) -> None:
        from nl2sql.databases.sqlite.files import fingerprint_sqlite

        self._original = path
        self._names: dict[Path, str] = {path: "original"}
        self._file = cache_dir("gold") / f"{fingerprint_sqlite(path)}.json"
        self._entries = _read(self._file)
        self._added = False
        self._lock = threading.Lock()

    def key(self, sql: str, timeout_s: float, max_rows: int) -> str | None:
        """The name of a statement under its bounds; None for one whose answer changes by itself."""
        if CHANGING.search(sql):
            return None
        text = f"{timeout_s:g}|{max_rows}|{sql}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def entries(self, file: Path) -> dict[str, list[Any]]:
        """key -> digest, of the statements known on ``file``."""
        with self._lock:
            return dict(self._entries.get(self._name(file), {}))

    def add(self, file: Path, key: str | None, digest: list[Any]) -> None:
        if key:
            with self._lock:
                self._entries.setdefault(self._name(file), {})[key] = digest
                self._added = True

    def save(self) -> None:
        """Write the file anew, together with what other processes have added."""
        with self._lock:
            if not self._added:
                return
            for name, entries in _read(self._file).items():
                self._entries[name] = {**entries, **self._entries.get(name, {})}
            payload = json.dumps(self._entries, separators=(",", ":"))
            scratch = self._file.with_name(f".{self._file.name}.{os.getpid()}.{threading.get_ident()}")
            with contextlib.suppress(OSError):
                scratch.write_text(f"{_checksum(payload)}\n{payload}", encoding="utf-8")
                scratch.replace(self._file)
            self._added = False

    def _name(self, file: Path) -> str:
        """What identifies the content of a file: replicas in our own cache are named by content already."""
        if file not in self._names:
            from nl2sql.databases.sqlite.files import fingerprint_sqlite

            try:
                where = file.relative_to(cache_dir())
                stat = file.stat()
                self._names[file] = f"{where}:{stat.st_mtime_ns}:{stat.st_size}"
            except ValueError:
                self._names[file] = fingerprint_sqlite(file)
            except OSError:
                self._names[file] = f"unreadable {file}"
        return self._names[file]


def gold_cache(path: Path) -> GoldCache | None:
    """The cache for the database at ``path``; None where the file is too large or cannot be read."""
    with contextlib.suppress(OSError, Nl2SqlError):
        if path.stat().st_size <= LARGEST_BYTES:
            return GoldCache(path)
    return None


def _checksum(payload: str) -> str:
    return hashlib.sha256(f"{VERSION}\n{payload}".encode()).hexdigest()


def _read(file: Path) -> dict[str, dict[str, list[Any]]]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        checksum, _, payload = file.read_text(encoding="utf-8").partition("\n")
        if checksum == _checksum(payload):
            found: dict[str, dict[str, list[Any]]] = json.loads(payload)
            return found
    return {}
