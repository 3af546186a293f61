"""Distilled test suites: few small databases that tell a gold from queries that are nearly right [18].

``suite_databases(path, golds, n, seed)`` gives at most ``n`` databases for the accepted golds of one question. They
are generated from the schema, the database's own values and the constants of the golds and their neighbours, and
chosen greedily by what they kill, which ``check_strength`` measures. How it works: ``docs/suites.md``.

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
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import sqlglot
from tqdm.auto import tqdm

from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.databases.sqlite.process import FramedChild
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.eval.replicas import content, perturbed_replicas
from nl2sql.interfaces import Benchmark, Question
from nl2sql.machine import cache_dir, from_json, in_threads, write_whole

__all__ = ["METHOD", "Suite", "SuiteOrder", "build_suites", "suite_databases", "suite_fingerprint"]

METHOD = "suite-10"  # part of every cache key: change it whenever the same input is to give another suite


@dataclass(frozen=True)
class SuiteOrder:
    """The order of a suite: the accepted golds of a question, over the database at ``path``."""

    path: Path
    golds: tuple[str, ...]
    n: int = 10
    seed: int = 0

    def folder(self) -> Path:
        """The folder of the suite in the cache, whether or not it is built yet. Raises DatabaseError without a file."""
        given = [content(self.path), sorted(set(self.golds)), self.n, self.seed]
        parts = json.dumps([METHOD, sqlglot.__version__, *given])  # sqlglot writes the neighbours
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
    order = sorted(range(len(tasks)), key=lambda index: tasks[index][0])  # database by database
    local = threading.local()
    made: list[FramedChild] = []
    stopped = threading.Event()

    def run(path: Path, request: dict[str, Any]) -> dict[str, Any]:
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

    try:
        jobs = [partial(run, *tasks[index]) for index in order]
        for number, reply in in_threads(jobs, workers, stopped):
            yield order[number], reply
    finally:
        stopped.set()
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
    files: dict[str, list[Path] | None] = {}
    warnings: list[str] = []
    paths = {question.id: path for question in questions if (path := path_of(question.db_id))}
    without = 0
    for id_, _, suite in _built_for(questions, paths, n, seed, workers, progress):
        files[id_] = None if suite.error else list(suite.databases)
        if suite.error:
            warnings.append(f"no suite for question {id_!r}, TS counts as failed there: {suite.error}")
        elif not suite.databases:
            without += 1
    if without:
        warnings.append(
            f"{without} of {len(paths)} questions have no suite (their golds do not parse or run, or rest on the "
            "order of rows): TS rests on the original alone there"
        )
    return files, warnings


def _built_for(
    questions: Sequence[Question], paths: dict[str, Path], n: int, seed: int, workers: int, progress: bool
) -> Iterator[tuple[str, SuiteOrder, Suite]]:
    """(question id, order, suite) of the questions whose ids have a path, as they are ready."""
    asked = [question for question in questions if question.id in paths]
    orders = [SuiteOrder(paths[question.id], tuple(question.gold), n, seed) for question in asked]
    building = build_suites(orders, workers=workers)
    for at, suite in tqdm(building, total=len(orders), desc="building suites", disable=not progress):
        yield asked[at].id, orders[at], suite


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


# --------------------------------------------------------- the strength of suites, and of replicas

METHODS = ("suite", "perturb")
REQUIRED = 50  # neighbours per gold, below which a gold is counted as having few


@dataclass
class Strength:
    """Kill rates over all neighbours, the equivalent ones among them too. ``items``: one entry per question."""

    method: str
    n: int
    items: list[dict[str, Any]] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)  # reason -> questions
    build_seconds: float = 0.0  # wall clock; nothing for what the cache had
    check_seconds: float = 0.0
    built: int = 0  # suites (or databases with replicas) that were not in the cache

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``micro`` over neighbours, ``macro`` over golds, ``fully_killed`` share of golds, by kind."""
        killed = Counter(kind for item in self.items for kind, _ in item["killed"])
        total = killed + Counter(kind for item in self.items for kind, _ in item["survivors"])
        sizes = [len(item["killed"]) + len(item["survivors"]) for item in self.items]
        pairs = zip(self.items, sizes, strict=True)
        rates = [len(item["killed"]) / size for item, size in pairs if size]
        golds, databases = len(self.items), [len(item["databases"]) for item in self.items]
        killed_plain, plain = (of.total() - of["added condition"] for of in (killed, total))
        survivors = [
            {"id": item["id"], "db_id": item["db_id"], "gold": item["sql"], "kind": kind, "sql": sql}
            for item in self.items
            for kind, sql in item["survivors"]
        ]
        return {
            "method": self.method,
            "n_databases": self.n,
            "n": golds,
            "left_out": self.excluded,
            "neighbours": total.total(),
            "neighbours_per_gold_least": min(sizes, default=0),
            "golds_with_few_neighbours": sum(size < REQUIRED for size in sizes),
            "killed": killed.total(),
            "micro": _share(killed.total(), total.total()),
            "macro": _share(sum(rates), len(rates)),
            "fully_killed": _share(sum(not item["survivors"] for item in self.items), golds),
            "micro_without_added_conditions": _share(killed_plain, plain),
            "by_kind": {
                kind: {"n": total[kind], "killed": killed[kind], "rate": _share(killed[kind], total[kind])}
                for kind in sorted(total)
            },
            "databases_per_gold": _share(sum(databases), golds),
            "databases_per_gold_most": max(databases, default=0),
            "usable_databases_per_gold": _share(sum(item["usable"] for item in self.items), golds),
            "build_seconds": round(self.build_seconds, 3),
            "built": self.built,
            "check_seconds": round(self.check_seconds, 3),
            "survivors": survivors,
        }


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def check_strength(
    benchmark: Benchmark,
    questions: Sequence[Question],
    *,
    method: str = "suite",
    n: int = 10,
    seed: int = 0,
    workers: int = 2,
    progress: bool = False,
) -> Strength:
    """Build what is missing, then execute every neighbour of each question's first gold on its databases.

    The verdict is that of TS on the replicas alone: the original is not asked. Golds that do not parse or run, and
    databases that cannot be read, are counted in ``excluded``. Raises UsageError for an unknown method.
    """
    if method not in METHODS:
        raise UsageError(f"method {method!r} is not known; expected one of {', '.join(METHODS)}")
    strength = Strength(method, n)
    started = time.perf_counter()
    files = build_replicas(benchmark, questions, strength, seed=seed, workers=workers, progress=progress)
    strength.build_seconds = time.perf_counter() - started
    started = time.perf_counter()
    asked = [(question, *files[question.id]) for question in questions if question.id in files]
    tasks: list[Task] = [
        (path, {"task": "check", "golds": [question.gold[0]], "files": list(map(str, databases)), "seed": seed})
        for question, path, databases in asked
    ]
    checking = tqdm(run_tasks(tasks, workers), total=len(tasks), desc="checking", disable=not progress)
    replies = dict(checking)
    for index, (question, _, databases) in enumerate(asked):
        reply = replies[index]
        problem = reply.get("error") or reply["golds"][0]["problem"]
        if problem:
            strength.excluded[problem.split(":")[0]] += 1
            continue
        entry = {"id": question.id, "db_id": question.db_id, "databases": [str(f) for f in databases]}
        strength.items.append({**entry, **reply["golds"][0]})
    strength.check_seconds = time.perf_counter() - started
    return strength


def build_replicas(
    benchmark: Benchmark,
    questions: Sequence[Question],
    strength: Strength,
    *,
    seed: int,
    workers: int = 2,
    progress: bool = False,
) -> dict[str, tuple[Path, list[Path]]]:
    """Question id -> (original, replicas) by ``strength.method``; notes in ``strength`` what was left out or built."""
    paths: dict[str, Path] = {}
    for question in questions:
        try:
            path = sqlite_file(benchmark.database(question.db_id))
        except DatabaseError:
            strength.excluded["the database cannot be read"] += 1
            continue
        if path is None:
            strength.excluded["the database is no SQLite file"] += 1
        else:
            paths[question.id] = path
    if strength.method == "perturb":
        made: dict[Path, list[Path]] = {}
        for path in tqdm(sorted(set(paths.values())), desc="building", disable=not progress):
            try:
                made[path] = perturbed_replicas(path, strength.n, seed=seed)
            except DatabaseError:
                strength.excluded["no replicas could be built"] += 1
        strength.built = len(made)
        return {id_: (path, made[path]) for id_, path in paths.items() if path in made}
    files: dict[str, tuple[Path, list[Path]]] = {}
    new: set[Path] = set()
    for id_, order, suite in _built_for(questions, paths, strength.n, seed, workers, progress):
        if suite.error:
            strength.excluded[suite.error.split(":")[0]] += 1
            continue
        files[id_] = (order.path, list(suite.databases))
        if suite.built:
            new.add(order.folder())
    strength.built = len(new)
    return files
