"""Every kind of hostile database file through everything that opens one: each is read or refused in time.

``scripts/fuzz_sandbox.py`` runs this without ``--seconds``. The files are made by ``tests/hostile_files.py``
and ``tests/hostile_places.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.databases.sqlite.disk import stored_bytes
from nl2sql.databases.sqlite.files import fingerprint_sqlite
from nl2sql.databases.sqlite.framed_child import PATIENCE
from nl2sql.databases.sqlite.pool import QueryPool
from nl2sql.databases.sqlite.vetting import BYTES_PER_S
from nl2sql.errors import Nl2SqlError
from nl2sql.eval.replicas import perturbed_replicas, shuffled_copies
from nl2sql.interfaces import RunResult
from nl2sql.machine import cores

TESTS = Path(__file__).resolve().parent.parent / "tests"
LIMIT_S = 5.0
STATEMENT_S = 4.0  # what a statement may take here; elsewhere its caller says

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


@dataclass
class Line:
    """What came of one kind. refused: door -> the error. wrong: what broke a promise."""

    kind: str
    slowest_s: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        first = next(iter(self.refused.values()), "")
        outcome = f"refused by {', '.join(self.refused)}: {first}" if self.refused else "read"
        if len(self.refused) == len(DOORS):
            outcome = f"refused: {first}"
        outcome = "; ".join([*self.wrong, outcome])
        return f"{'WRONG' if self.wrong else 'ok   '} {self.slowest_s:4.1f} s  {self.kind:<46} {outcome[:160]}"


def look(kind: str, path: Path, sql: str, pool: QueryPool, limit_s: float = LIMIT_S) -> Line:
    """Take one file through all doors."""
    line, visit = Line(kind), Visit(path, sql, pool)
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
            line.wrong.append(f"{name} raised {type(escaped).__name__}")
        seconds = time.monotonic() - started
        line.slowest_s = max(line.slowest_s, seconds)
        if seconds > limit_s:
            line.wrong.append(f"{name} took {seconds:.1f} s")
        if error is not None:
            line.refused[name] = error
            if not error.isprintable() or not error:
                line.wrong.append(f"the error of {name} is not one printable line")
    if _listing(path) != before:
        line.wrong.append("files changed beside it")
    return line


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


def made(folder: Path) -> tuple[dict[str, tuple[Path, str]], dict[str, Any]]:
    """All kinds: name -> (path, statement), and what goes on meanwhile at some of them."""
    sys.path.insert(0, str(TESTS))
    import hostile_files
    import hostile_places

    zoo = hostile_places.build(folder / "places")
    simple = {kind: (path, sql) for kind, path, sql in hostile_files.build(folder / "files")}
    return {**simple, **zoo.kinds}, dict(zoo.meanwhile)


def walk(only: str = "", limit_s: float = LIMIT_S, show: Callable[[Line], object] = print) -> list[Line]:
    """All kinds whose name has ``only`` in it, one after the other."""
    lines = []
    with tempfile.TemporaryDirectory(prefix="fuzz-files-") as folder, QueryPool(workers=1) as pool:
        pool.run(Path(folder) / "none", "SELECT 1")
        kinds, meanwhile = made(Path(folder))
        _warm(Path(folder), pool)
        for kind, (path, sql) in kinds.items():
            if only in kind:
                with meanwhile.get(kind, contextlib.nullcontext)():
                    lines.append(look(kind, path, sql, pool, limit_s))
                show(lines[-1])
    return lines


def _warm(folder: Path, pool: QueryPool) -> None:
    """Have all processes started: that is no file's fault."""
    look("warm", folder / "places" / "good.sqlite", "SELECT 1", pool)


def report(lines: Sequence[Line], as_json: bool) -> int:
    """Print the summary; the exit code."""
    wrong = [line for line in lines if line.wrong]
    slowest = max(lines, key=lambda line: line.slowest_s)
    if as_json:
        print(json.dumps({"kinds": len(lines), "wrong": len(wrong), "lines": [asdict(line) for line in lines]}))
    else:
        print(
            f"{len(lines)} kinds of files, {sum(bool(line.refused) for line in lines)} refused somewhere, "
            f"{len(wrong)} wrong; slowest {slowest.slowest_s:.1f} s ({slowest.kind})"
            + (f"; the machine is busy: {LIMIT_S * busy():.0f} s were allowed" if busy() > 1 else "")
        )
    return int(bool(wrong))
