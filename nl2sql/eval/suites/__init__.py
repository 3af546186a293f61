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
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

from nl2sql.databases.sqlite.process import FramedChild
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.interfaces import Question
from nl2sql.machine import cache_dir, from_json, write_whole

__all__ = ["METHOD", "Suite", "SuiteOrder", "build_suites", "suite_databases", "suite_fingerprint"]


METHOD = "suite-9"  # part of every cache key: change it whenever the same input is to give another suite


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

    databases: tuple[Path, ...] = ()
    golds: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0
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
    """(index, suite) of every order as it is ready; what the cache has comes first. Errors are in ``Suite.error``."""
    missing: dict[Path, list[int]] = {}
    for index, order in enumerate(orders):
        try:
            folder = order.folder()
        except DatabaseError as error:
            yield index, Suite(error=str(error))
            continue
        known = _read(folder)
        if known is not None:
            yield index, known
        else:
            missing.setdefault(folder, []).append(index)
    tasks: list[Task] = []
    for first, *_ in missing.values():
        order = orders[first]
        request = {"task": "build", "golds": sorted(set(order.golds)), "n": order.n, "seed": order.seed}
        tasks.append((order.path, request))
    for number, reply in run_tasks(tasks, workers):
        folder, indices = list(missing.items())[number]
        suite = Suite(built=True, error=reply["error"]) if "error" in reply else _write(folder, reply)
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
    from nl2sql.eval.suites.arena import read_source

    try:
        return asdict(read_source(path))
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
        kept = {key: reply[key] for key in ("golds", "candidates", "seconds")}
        record = {"method": METHOD, "files": files, **kept}
        (temporary / "suite.json").write_text(json.dumps(record), encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:  # somebody else was faster, or the folder holds a broken suite
            if _read(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
                temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Suite(tuple(folder / name for name in files), tuple(reply["golds"]), reply["seconds"], built=True)


# --------------------------------------------------------------- the processes that build and check

TASK_S = 120.0  # a task that takes longer is given up and its process killed


Task: TypeAlias = tuple[Path, dict[str, Any]]  # an original, and what is asked about it


def run_tasks(tasks: Sequence[Task], workers: int = 2) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, reply) of every task as they finish; ``{"error": ...}`` for one that failed."""
    groups: dict[Path, list[int]] = {}
    for index, (path, _) in enumerate(tasks):
        groups.setdefault(path, []).append(index)
    # database by database; a large group is cut, so that no process is left with it at the end
    queue = [group[at : at + 12] for group in groups.values() for at in range(0, len(group), 12)]
    local = threading.local()
    made: list[FramedChild] = []
    done: SimpleQueue[tuple[int, dict[str, Any] | BaseException]] = SimpleQueue()
    stopped = threading.Event()

    def run_group(group: list[int]) -> None:
        for index in group:
            if stopped.is_set():
                return
            try:
                done.put((index, run_task(*tasks[index])))
            except BaseException as error:
                done.put((index, error))
                raise

    def run_task(path: Path, request: dict[str, Any]) -> dict[str, Any]:
        worker: FramedChild | None = getattr(local, "worker", None)
        if worker is None:
            worker = local.worker = FramedChild("nl2sql.eval.suites.distil", last_words=True)
            local.path = None  # of the database that it has read
            made.append(worker)
            if stopped.is_set():  # whoever stops closes what is in ``made`` already
                worker.close()
        try:
            data = None if local.path == path else source_data(path)
            reply = worker.ask({"source": str(path), "data": data, **request}, TASK_S)
            local.path = path
            return reply
        except (TimeoutError, ConnectionError) as error:
            local.worker = None
            worker.close()
            died = f"the building process died: {error}".removesuffix(": ")
            return {"error": f"given up after {TASK_S:g} s" if isinstance(error, TimeoutError) else died}
        except DatabaseError as error:  # of the original
            return {"error": str(error)}

    pool = ThreadPoolExecutor(max(1, min(workers, len(queue) or 1)))
    try:
        for group in queue:
            pool.submit(run_group, group)
        for _ in tasks:  # one by one, so that whoever is stopped has kept what was ready
            index, reply = done.get()
            if isinstance(reply, BaseException):
                raise reply
            yield index, reply
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in made:
            worker.close()


# ---------------------------------------------------------------- the databases of single questions

INDEX = "index.json"


def suites_of(
    questions: Sequence[Question],
    path_of: Callable[[str], Path | None],
    n: int,
    *,
    seed: int = 0,
    workers: int = 2,
    progress: bool = False,
) -> tuple[dict[str, list[Path] | None], list[str]]:
    """(databases by question id, what a reader has to know): the suite of every question, for all its accepted golds.

    Built where the cache has none; None where that failed. ``path_of`` gives the file of a database id, None where
    there is none (the question is then left out).
    """
    from tqdm.auto import tqdm

    files: dict[str, list[Path] | None] = {}
    warnings: list[str] = []
    asked = [(question, path) for question in questions if (path := path_of(question.db_id)) is not None]
    orders = [SuiteOrder(path, tuple(question.gold), n, seed) for question, path in asked]
    without = 0
    building = build_suites(orders, workers=workers)
    for index, suite in tqdm(building, total=len(orders), desc="building suites", disable=not progress):
        id_ = asked[index][0].id
        files[id_] = None if suite.error else list(suite.databases)
        if suite.error:
            warnings.append(f"no suite for question {id_!r}, TS counts as failed there: {suite.error}")
        elif not suite.databases:
            without += 1
    if without:
        warnings.append(
            f"{without} of {len(orders)} questions have no suite (their golds do not parse or run, or rest on the "
            "order of rows): TS rests on the original alone there"
        )
    return files, warnings


def write_index(folder: Path, files: dict[str, list[Path]]) -> None:
    """Say which databases under ``folder`` belong to which question."""
    names = {id_: [file.relative_to(folder).as_posix() for file in databases] for id_, databases in files.items()}
    write_whole(folder / INDEX, json.dumps(names, indent=1, ensure_ascii=False))


def read_index(folder: Path) -> dict[str, list[Path] | None] | None:
    """Databases by question id, where ``folder`` has an index; None where it has none.

    Raises UsageError for an index that is damaged, or that names what is not in the folder.
    """
    file = folder / INDEX
    if not file.is_file():
        return None
    try:
        names: Any = from_json(file.read_text(encoding="utf-8"))
        index: dict[str, list[Path] | None] = {
            str(id_): [folder / name for name in databases] for id_, databases in names.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is no index of databases: {str(error).splitlines()[0]}") from None
    inside = folder.resolve()
    for databases in index.values():
        for database in databases or ():
            if inside not in database.resolve().parents or not database.is_file():
                raise UsageError(f"{file} names {database}, which is not there; build the folder again")
    return index
