"""Distilled test suites: few small databases that tell a gold from queries that are nearly right [18].

``suite_databases(path, golds, n, seed)`` gives at most ``n`` databases for the accepted golds of one question. They
are generated from the schema, the database's own values and the constants of the golds and their neighbours, and
chosen greedily by what they kill; ``check.py`` measures that. How it works, and how strong it is: ``docs/suites.md``.

SQL is executed in sandboxed child processes only. Suites are kept in the cache under the content of the original, the
golds, ``n``, the seed and ``METHOD``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from nl2sql.errors import DatabaseError, UsageError
from nl2sql.machine import cache_dir

METHOD = "suite-8"  # part of every cache key: change it whenever the same input is to give another suite

__all__ = ["METHOD", "Suite", "SuiteOrder", "build_suites", "suite_databases", "suite_fingerprint"]


@dataclass(frozen=True)
class SuiteOrder:
    """The order of a suite: the accepted golds of a question, over the database at ``path``."""

    path: Path
    golds: tuple[str, ...]
    n: int = 10
    seed: int = 0

    def folder(self) -> Path:
        """The folder of the suite in the cache, whether or not it is built yet. Raises DatabaseError without a file."""
        parts = json.dumps([METHOD, _library(), content(self.path), sorted(set(self.golds)), self.n, self.seed])
        return cache_dir("suites") / hashlib.sha256(parts.encode("utf-8", "replace")).hexdigest()[:24]


@dataclass(frozen=True)
class Suite:
    """A built suite. ``golds``: per gold what its databases kill (as in ``suite.json``). ``built``: just now."""

    databases: tuple[Path, ...]
    golds: tuple[dict[str, Any], ...]
    seconds: float
    built: bool = False
    error: str | None = None


def suite_databases(path: str | Path, golds: Sequence[str], n: int = 10, seed: int = 0) -> list[Path]:
    """At most ``n`` databases that tell ``golds`` from their neighbours, built on first use.

    Meant for the accepted golds of one question; many golds share the ``n`` databases. Empty where no gold can be
    used (it does not parse or run): a caller treats that as "no suite". ``build_suites`` builds many at once, in
    parallel. Raises UsageError for a negative ``n``, DatabaseError where the original cannot be read or the building
    process failed.
    """
    if n < 0:
        raise UsageError(f"{n} databases asked for; expected 0 or more")
    order = SuiteOrder(Path(path), tuple(golds), n, seed)
    ((_, suite),) = build_suites([order], workers=1)
    if suite.error:
        raise DatabaseError(f"no suite for {order.path} could be built: {suite.error}")
    return list(suite.databases)


def suite_fingerprint(databases: Iterable[str | Path]) -> str:
    """SHA-256 (hex) of a suite's files in any order, and of the method: for manifests."""
    parts = sorted(hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in databases)
    return hashlib.sha256("|".join([METHOD, *parts]).encode()).hexdigest()


def build_suites(orders: Sequence[SuiteOrder], *, workers: int = 2) -> Iterator[tuple[int, Suite]]:
    """(index, suite) of every order as it is ready; what the cache has comes first. Errors are in ``Suite.error``.

    Raises DatabaseError where an original cannot be read.
    """
    from nl2sql.eval.suites.workshop import SuiteTask, run_tasks

    missing: dict[Path, list[int]] = {}
    for index, order in enumerate(orders):
        folder = order.folder()
        known = _read(folder)
        if known is not None:
            yield index, known
        else:
            missing.setdefault(folder, []).append(index)
    firsts = list(missing.items())
    tasks = []
    for _, indices in firsts:
        order = orders[indices[0]]
        request = {"task": "build", "golds": sorted(set(order.golds)), "n": order.n, "seed": order.seed}
        tasks.append(SuiteTask(str(order.path), lambda path=order.path: source_data(path), request))  # type: ignore[misc]
    for number, reply in run_tasks(tasks, workers):
        folder, indices = firsts[number]
        suite = Suite((), (), 0.0, True, reply["error"]) if "error" in reply else _write(folder, reply)
        for index in indices:
            yield index, suite


def content(path: Path) -> str:
    """Fingerprint of the original's content. Raises DatabaseError where there is none."""
    if not path.is_file():
        raise DatabaseError(f"database file {path} does not exist")
    stat = path.stat()
    return _content(path.resolve(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _content(path: Path, modified_ns: int, size: int) -> str:
    from nl2sql.databases.sqlite.files import fingerprint_sqlite

    return fingerprint_sqlite(path)


@lru_cache(maxsize=1)
def _library() -> str:
    """Neighbours are written by sqlglot, so its version is part of a suite's identity."""
    from importlib.metadata import version

    return version("sqlglot")


def source_data(path: Path) -> dict[str, Any]:
    """The original as data for the building process. Raises DatabaseError."""
    from nl2sql.eval.suites.source import read_source

    try:
        return read_source(path).to_json()
    except (OSError, sqlite3.Error) as error:
        raise DatabaseError(f"no suite for {path} could be built: {error}") from error


def _read(folder: Path) -> Suite | None:
    try:
        record = json.loads((folder / "suite.json").read_text(encoding="utf-8"))
        files = tuple(folder / name for name in record["files"])
        return Suite(files, tuple(record["golds"]), record["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, reply: dict[str, Any]) -> Suite:
    """Into a folder of its own first, then moved into place: a suite is in the cache completely or not at all."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        files = [f"{number:03d}.sqlite" for number in range(len(reply["images"]))]
        for name, image in zip(files, reply["images"], strict=True):
            (temporary / name).write_bytes(image)
        record = {
            "method": METHOD,
            "files": files,
            "golds": reply["golds"],
            "candidates": reply["candidates"],
            "seconds": reply.get("seconds", 0.0),
        }
        (temporary / "suite.json").write_text(json.dumps(record), encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:  # somebody else was faster, or the folder holds a broken suite
            if _read(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
                temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Suite(tuple(folder / name for name in files), tuple(reply["golds"]), reply.get("seconds", 0.0), True)
