"""A database file through everything that opens one: it is read or refused in time, and nothing changes beside it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from nl2sql.databases.sqlite.database import QueryPool, SqliteDatabase
from nl2sql.databases.sqlite.disk import BYTES_PER_S, stored_bytes
from nl2sql.databases.sqlite.files import fingerprint_sqlite
from nl2sql.databases.sqlite.process import PATIENCE
from nl2sql.errors import Nl2SqlError
from nl2sql.eval.replicas import perturbed_replicas, shuffled_copies
from nl2sql.interfaces import RunResult
from nl2sql.machine import cores

LIMIT_S = 5.0
STATEMENT_S = 1.0  # what a statement may take here; elsewhere its caller says

Door = Callable[["Visit"], "RunResult | None"]


class Visit:
    """One file at its doors."""

    def __init__(self, path: Path, sql: str, pool: QueryPool) -> None:
        self.path, self.sql, self.pool = path, sql, pool
        self._database: SqliteDatabase | None = None

    def database(self) -> SqliteDatabase | None:
        """The opened database; None where it was refused."""
        return self._database

    def open(self) -> None:
        self._database = SqliteDatabase(self.path, pool=self.pool)

    def sample(self) -> None:
        if self._database:
            self._database.sample(self._database.schema().tables[0].name)

    def explain(self) -> RunResult | None:
        return self._database.explain(self.sql, timeout_s=STATEMENT_S) if self._database else None

    def run(self) -> RunResult:
        return self.pool.run(self.path, self.sql, timeout_s=STATEMENT_S)


DOORS: dict[str, Door] = {
    "schema": lambda visit: visit.open(),
    "sample": lambda visit: visit.sample(),
    "explain": lambda visit: visit.explain(),
    "run": lambda visit: visit.run(),
    "fingerprint": lambda visit: fingerprint_sqlite(visit.path) and None,
    "replicas": lambda visit: perturbed_replicas(visit.path, 1) and None,
    "shuffled copy": lambda visit: shuffled_copies(visit.path, [0]) and None,
}


def wrong_at_the_doors(path: Path, sql: str, pool: QueryPool, limit_s: float = LIMIT_S) -> list[str]:
    """What breaks a promise when one file goes through all doors."""
    wrong, visit = [], Visit(path, sql, pool)
    limit_s = limit_s * busy() + _stored(path) / BYTES_PER_S  # what is really there is read
    before = _listing(path)
    for name, door in DOORS.items():
        started = time.monotonic()
        try:
            result = door(visit)
            error = None if result is None or result.success else result.error
        except Nl2SqlError as refusal:
            error = str(refusal)
        except Exception as escaped:  # noqa: BLE001 - whatever escapes to the caller is a finding
            error = repr(escaped)
            wrong.append(f"{name} raised {type(escaped).__name__}")
        seconds = time.monotonic() - started
        if seconds > limit_s:
            wrong.append(f"{name} took {seconds:.1f} s")
        if error is not None and (not error.isprintable() or not error):
            wrong.append(f"the error of {name} is not one printable line")
    if _listing(path) != before:
        wrong.append("files changed beside it")
    return wrong


def busy() -> float:
    """How many times as long everything takes because others have the processor; readers are waited for that long."""
    return min(PATIENCE, max(1.0, os.getloadavg()[0] / cores()))


def _stored(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return stored_bytes(path)
    return 0


def _listing(path: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return sorted(entry.name for entry in path.parent.iterdir())
    return []
