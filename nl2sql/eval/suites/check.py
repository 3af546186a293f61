"""The strength of replicas: the share of neighbours of each gold that they tell from it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.eval.suites import SuiteOrder, Task, build_suites, run_tasks
from nl2sql.interfaces import Benchmark, Question

METHODS = ("suite", "perturb")
REQUIRED = 50  # neighbours per gold, below which a gold is counted as having few


@dataclass
class Strength:
    """Kill rates over all neighbours, the equivalent ones among them too. ``items``: one entry per question."""

    method: str
    n: int
    items: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # reason -> questions
    build_seconds: float = 0.0  # wall clock; nothing for what the cache had
    check_seconds: float = 0.0
    built: int = 0  # suites (or databases with replicas) that were not in the cache

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``micro`` over neighbours, ``macro`` over golds, ``fully_killed`` share of golds, by kind."""
        killed = Counter(kind for item in self.items for kind, _ in item["killed"])
        total = killed + Counter(kind for item in self.items for kind, _ in item["survivors"])
        rates = [len(item["killed"]) / _size(item) for item in self.items if _size(item)]
        golds = len(self.items)
        survivors = [
            {"id": item["id"], "db_id": item["db_id"], "gold": item["sql"], "kind": kind, "sql": sql}
            for item in self.items
            for kind, sql in item["survivors"]
        ]
        return {
            "method": self.method,
            "n_databases": self.n,
            "n": golds,
            "left_out": self.left_out,
            "neighbours": sum(total.values()),
            "neighbours_per_gold_least": min((_size(item) for item in self.items), default=0),
            "golds_with_few_neighbours": sum(_size(item) < REQUIRED for item in self.items),
            "killed": sum(killed.values()),
            "micro": _share(sum(killed.values()), sum(total.values())),
            "macro": sum(rates) / len(rates) if rates else None,
            "fully_killed": _share(sum(not item["survivors"] for item in self.items), golds),
            "micro_without_added_conditions": _share(
                sum(killed.values()) - killed["added condition"], sum(total.values()) - total["added condition"]
            ),
            "by_kind": {
                kind: {"n": total[kind], "killed": killed[kind], "rate": _share(killed[kind], total[kind])}
                for kind in sorted(total)
            },
            "databases_per_gold": sum(len(item["databases"]) for item in self.items) / golds if golds else None,
            "databases_per_gold_most": max((len(item["databases"]) for item in self.items), default=0),
            "usable_databases_per_gold": sum(item["usable"] for item in self.items) / golds if golds else None,
            "build_seconds": round(self.build_seconds, 3),
            "built": self.built,
            "check_seconds": round(self.check_seconds, 3),
            "survivors": survivors,
        }


def _size(item: dict[str, Any]) -> int:
    return len(item["killed"]) + len(item["survivors"])


def _share(part: int, whole: int) -> float | None:
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
    databases that cannot be read, are counted in ``left_out``. Raises UsageError for an unknown method.
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
    replies = dict(_progress(run_tasks(tasks, workers), len(tasks), "checking", progress))
    for index, (question, _, databases) in enumerate(asked):
        reply = replies[index]
        problem = reply.get("error") or reply["golds"][0]["problem"]
        if problem:
            strength.left_out[problem.split(":")[0]] += 1
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
            strength.left_out["the database cannot be read"] += 1
            continue
        if path is None:
            strength.left_out["the database is no SQLite file"] += 1
        else:
            paths[question.id] = path
    if strength.method == "perturb":
        return _perturbed(questions, paths, strength, seed, progress)
    kept = [question for question in questions if question.id in paths]
    orders = [SuiteOrder(paths[question.id], tuple(question.gold), strength.n, seed) for question in kept]
    files: dict[str, tuple[Path, list[Path]]] = {}
    new: set[Path] = set()
    for index, suite in _progress(build_suites(orders, workers=workers), len(orders), "building", progress):
        if suite.error:
            strength.left_out[suite.error.split(":")[0]] += 1
            continue
        files[kept[index].id] = (orders[index].path, list(suite.databases))
        if suite.built:
            new.add(orders[index].folder())
    strength.built = len(new)
    return files


def _perturbed(
    questions: Sequence[Question], paths: dict[str, Path], strength: Strength, seed: int, progress: bool
) -> dict[str, tuple[Path, list[Path]]]:
    from nl2sql.eval.replicas import perturbed_replicas

    originals = sorted(set(paths.values()))
    made: dict[Path, list[Path]] = {}
    for path in _progress(iter(originals), len(originals), "building", progress):
        try:
            made[path] = perturbed_replicas(path, strength.n, seed=seed)
        except DatabaseError:
            strength.left_out["no replicas could be built"] += 1
    strength.built = len(made)
    return {q.id: (paths[q.id], made[paths[q.id]]) for q in questions if paths.get(q.id) in made}


def _progress(iterator: Any, total: int, what: str, shown: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(iterator, total=total, desc=what, disable=not shown)
