"""What scoring costs, against the execution pattern of the 2020 test-suite evaluator and against the floor.

    NL2SQL_BENCHMARKS=... python scripts/bench_eval.py [--json] [--questions 500] [--replicas 20]

On the same golds and replicas: (a) predictions = golds, (b) half of them differ, (c) ten prediction files. The
contestants (``bench_eval_rivals.py``) take turns, ``--repeats`` times each; the median counts, all times are reported:

- *reference*: the published execution pattern;
- *ours*: ``score_many`` with rule bag; *causes*: the same, finding out why wrong items are wrong (the default of the
  command line);
- *floor of all*: each distinct statement once per database, without sandbox and comparison, on persistent connections
  in as many processes; *floor*: of these only what ours executes (it stops at the first replica that decides).

Verdicts of ours and of the reference are compared item by item; every difference is explained by execution
(``explain_difference``) or counted as unexplained, and then the exit status is 1. Only ratios within one run mean
anything: the machine may be busy.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import multiprocessing
import os
import random
import re
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench_eval_rivals import execute_all, explain_difference, floor, reference_verdict

WORKERS = 2
LARGEST_BYTES = 4 * 2**20  # of a database in the benchmark, so that SQLite itself does not hide what is measured

Given = dict[str, dict[str, str]]  # prediction file -> question id -> SQL


# ----------------------------------------------------------------------------------------------------------- memory


@contextmanager
def peak_memory(found: dict[str, float]) -> Iterator[None]:
    """The most resident memory of this process and its children so far (MiB), sampled."""
    stop = threading.Event()
    found.setdefault("peak_mib", 0.0)

    def watch() -> None:
        while not stop.wait(0.05):
            found["peak_mib"] = max(found["peak_mib"], _resident_mib())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _cpu_s() -> float:
    """Processor time so far of this process and the children it has now."""
    total = time.process_time()
    for pid in _children():
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _children() -> list[str]:
    found: list[str] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += task.read_text().split()
    return found


def _resident_mib() -> float:
    total = 0
    for pid in (str(os.getpid()), *_children()):
        with suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * resource.getpagesize() / 2**20


# ------------------------------------------------------------------------------------------------------ predictions


def differing(sql: str, others: Sequence[str], rng: random.Random) -> str:
    """Another statement that a model could have written instead."""
    kinds = [
        lambda: re.sub(r"(?i)\bselect\b", "SELECT DISTINCT", sql, count=1) if "distinct" not in sql.lower() else "",
        lambda: re.sub(r"(\d+)", lambda m: str(int(m[1]) + 1), sql, count=1),
        lambda: re.sub(r"(?i)\bdesc\b", "ASC", sql) if re.search(r"(?i)\bdesc\b", sql) else "",
        lambda: re.sub(r"(?i)\bwhere\b.*?(?=\bgroup by\b|\border by\b|$)", "", sql, count=1, flags=re.S),
        lambda: re.sub(r"(?i)\bcount\(\*\)", "count(*) + 1", sql),
        lambda: rng.choice(others),
    ]
    rng.shuffle(kinds)
    for kind in kinds:
        found = kind()
        if found and found != sql:
            return found
    return "SELECT 1"


def load(count: int) -> tuple[Any, list[Any], str]:
    from nl2sql.benchmarks import load_benchmark, scorable

    name = "spider" if os.environ.get("NL2SQL_BENCHMARKS") else "packaged"
    benchmark = load_benchmark(name)
    small: dict[str, bool] = {}

    def fits(db_id: str) -> bool:
        if db_id not in small:
            database: Any = benchmark.database(db_id)
            small[db_id] = database.path.stat().st_size <= LARGEST_BYTES
        return small[db_id]

    by_database: dict[str, list[Any]] = {}
    for question in benchmark.questions:
        if scorable(question) and fits(question.db_id):
            by_database.setdefault(question.db_id, []).append(question)
    names = sorted(by_database)
    random.Random(0).shuffle(names)
    chosen: list[Any] = []
    while names and len(chosen) < count:  # whole databases, as benchmarks are: about 50 questions on each
        chosen += by_database[names.pop()]
    return benchmark, chosen, name


def prediction_file(questions: list[Any], seed: int, part: float) -> dict[str, str]:
    """question id -> SQL, of which ``part`` differs from the gold."""
    by_database: dict[str, list[str]] = {}
    for question in questions:
        by_database.setdefault(question.db_id, []).append(question.gold[0])

    rng = random.Random(seed)
    return {
        q.id: differing(q.gold[0], by_database[q.db_id], rng) if rng.random() < part else q.gold[0] for q in questions
    }


def several_files(questions: list[Any], count: int) -> Given:
    return {f"c{n}": prediction_file(questions, n, 0.5) for n in range(count)}


# ---------------------------------------------------------------------------------------------------- measuring


class Variant:
    """One set of prediction files over the questions, and who scores it how fast."""

    def __init__(self, benchmark: Any, questions: list[Any], files: Given, replicas: int, pool: Any) -> None:
        from nl2sql.eval.replicas import perturbed_replicas

        self.benchmark, self.questions, self.files, self.replicas = benchmark, questions, files, replicas
        self.pool = pool
        paths = {q.db_id: Path(benchmark.database(q.db_id).path) for q in questions}
        self.suites = {db: [path, *perturbed_replicas(path, replicas)] for db, path in paths.items()}
        self.texts = {q.id: q.gold[0] for q in questions}
        self.memory: dict[str, float] = {}

    def ours(self, *, causes: bool = False) -> dict[str, Any]:
        from nl2sql.eval import score_many

        _forget_parsed()
        options: dict[str, Any] = {"replicas": self.replicas, "pool": self.pool}
        with peak_memory(self.memory):
            cpu, began = _cpu_s(), time.perf_counter()
            scored = score_many(self.benchmark, self.questions, self.files, causes=causes, **options)
            seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "cpu": _cpu_s() - cpu,
            "verdicts": {(name, item.id): bool(item.ts) for name, scores in scored.items() for item in scores.items},
        }

    def reference(self) -> dict[str, Any]:
        began = time.perf_counter()
        found = {
            (name, q.id): reference_verdict(self.suites[q.db_id], q.gold[0], given[q.id])
            for name, given in self.files.items()
            for q in self.questions
        }
        return {"seconds": time.perf_counter() - began, "found": found}

    def executed(self) -> dict[str, list[str]]:
        """File -> the distinct statements that ours executes on it; those that look for ties included."""

        from nl2sql.eval import pairs as judging

        found: dict[str, set[str]] = {}
        count = 0
        real = judging.run_pairs

        def noted(pool: Any, files: Sequence[Path], sql: Sequence[str], pairs: Sequence[Any], **bounds: Any) -> Any:
            nonlocal count
            result = real(pool, files, sql, pairs, **bounds)
            tried = [(file, k) for file, right in result.right.items() for k in right]
            ran = {(file, n) for file, k in [*tried, *result.verdicts] for n in pairs[k][:2] if n >= 0}
            count += len(ran)
            for file, n in ran:
                found.setdefault(str(files[file]), set()).add(sql[n])
            assert len(ran) == result.executed, "the floor is to execute what ours does"
            return result

        judging.run_pairs = noted
        try:
            self.ours()
        finally:
            judging.run_pairs = real
        return {file: sorted(statements) for file, statements in found.items()}

    def everything(self) -> dict[str, list[str]]:
        found: dict[str, set[str]] = {}
        for question in self.questions:
            statements = {question.gold[0], *(given[question.id] for given in self.files.values())}
            for file in self.suites[question.db_id]:
                found.setdefault(str(file), set()).update(statements)
        return {file: sorted(statements) for file, statements in found.items()}

    def explained(self, ours: dict, reference: dict) -> list[dict[str, Any]]:
        """Every item on which the verdicts differ, with the reason why, or None for it."""
        entries = []
        by_id = {q.id: q for q in self.questions}
        for key, (verdict, number) in reference.items():
            if verdict == ours[key]:
                continue
            name, id_ = key
            gold, predicted = self.texts[id_], self.files[name][id_]
            file = self.suites[by_id[id_].db_id][min(number, self.replicas)]
            why = explain_difference(file, gold, predicted) if ours[key] else None
            about = {
                "file": name,
                "id": id_,
                "ours": ours[key],
                "reference": verdict,
                "on": f"{file.parent.name}/{file.name}",
            }
            entries.append({**about, "gold": gold, "predicted": predicted, "why": why})
        return entries


def measure(variant: Variant, repeats: int, processes: Any) -> dict[str, Any]:
    """One variant: all contestants in turn, ``repeats`` times; medians, ratios, verdicts."""
    needed, everything = variant.executed(), variant.everything()
    contestants: dict[str, Callable[[], dict[str, Any]]] = {
        "reference": variant.reference,
        "ours": variant.ours,
        "floor": lambda: _floor(needed, processes),
        "causes": lambda: variant.ours(causes=True),
        "floor_all": lambda: _floor(everything, processes),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for repeat in range(repeats):
        for name in sorted(contestants, key=lambda name: (list(contestants).index(name) + repeat) % len(contestants)):
            runs[name].append(contestants[name]())
    times = {name: [run["seconds"] for run in found] for name, found in runs.items()}
    median = {name: statistics.median(found) for name, found in times.items()}
    ours, reference = runs["ours"][0]["verdicts"], runs["reference"][0]["found"]
    cpu = {name: statistics.median(run["cpu"] for run in runs[name]) for name in ("ours", "floor")}
    return {
        "items": len(ours),
        "right": sum(ours.values()),
        "seconds": median,
        "all_seconds": times,
        "cpu_seconds": cpu,
        "statements": {"floor": sum(map(len, needed.values())), "floor_all": sum(map(len, everything.values()))},
        "times_faster": median["reference"] / median["ours"],
        "times_faster_causes": median["reference"] / median["causes"],
        "times_floor": median["ours"] / median["floor"],
        "times_floor_all": median["ours"] / median["floor_all"],
        "times_floor_cpu": cpu["ours"] / cpu["floor"] if cpu["floor"] else None,
        "same_in_all_our_runs": all(run["verdicts"] == ours for name in ("ours", "causes") for run in runs[name]),
        "different_verdicts": variant.explained(ours, reference),
        **variant.memory,
    }


def _floor(statements: dict[str, list[str]], processes: Any) -> dict[str, Any]:
    cpu = _cpu_s()
    seconds, _ = floor(statements, processes, WORKERS)
    return {"seconds": seconds, "cpu": _cpu_s() - cpu}


def _forget_parsed() -> None:
    """Empty our caches of parsed statements, so that a repeat is a run like the first."""
    ours = ("nl2sql.eval", "nl2sql.sql", "nl2sql.databases")
    for found in gc.get_objects():
        if isinstance(found, functools._lru_cache_wrapper) and (found.__module__ or "").startswith(ours):
            found.cache_clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--replicas", type=int, default=20)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    from nl2sql.databases.sqlite.database import QueryPool

    benchmark, questions, name = load(options.questions)
    report: dict[str, Any] = {"benchmark": name, "questions": len(questions), "replicas": options.replicas}
    if name != "spider":
        report["note"] = "NL2SQL_BENCHMARKS is not set: packaged questions instead of Spider's"
    report["databases"] = len({q.db_id for q in questions})
    variants = {
        "a: predictions = golds": {"a": prediction_file(questions, 0, 0.0)},
        "b: half differ": {"b": prediction_file(questions, 1, 0.5)},
        f"c: {options.files} files": several_files(questions, options.files),
    }
    with QueryPool(WORKERS) as pool, multiprocessing.get_context("spawn").Pool(WORKERS) as processes:
        pool.run(Path(benchmark.database(questions[0].db_id).path), "SELECT 1")
        processes.map(execute_all, [[], []])
        report["variants"] = {
            label: measure(Variant(benchmark, questions, files, options.replicas, pool), options.repeats, processes)
            for label, files in variants.items()
        }
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.json else _table(report))
    unexplained = [d for row in report["variants"].values() for d in row["different_verdicts"] if d["why"] is None]
    return 1 if unexplained or not all(row["same_in_all_our_runs"] for row in report["variants"].values()) else 0


def _table(report: dict[str, Any]) -> str:
    columns = ("reference", "ours", "causes", "floor", "floor_all")
    lines = [
        f"{report['questions']} questions of {report['benchmark']}, {report['databases']} databases, "
        f"{report['replicas']} replicas each; medians. {report.get('note', '')}",
        f"{'':24}" + "".join(f"{name:>11}" for name in columns) + "   faster x floor   x all  x cpu   MiB  other",
    ]
    for label, row in report["variants"].items():
        shown = "".join(f"{row['seconds'][name]:10.3f}s" for name in columns)
        different = row["different_verdicts"]
        ratios = f"{row['times_faster']:7.1f}x {row['times_floor']:7.2f} {row['times_floor_all']:7.2f} "
        ratios += f"{row['times_floor_cpu'] or 0:6.2f}"
        other = f"{len(different)}/{row['items']}"
        lines.append(f"{label:24}{shown} {ratios} {row['peak_mib']:5.0f}  {other}")
        for name in ("reference", "ours", "floor"):
            lines.append(f"    {name}: " + ", ".join(f"{seconds:.3f}" for seconds in row["all_seconds"][name]) + " s")
        for entry in different:
            lines.append(
                f"    {entry['id']} in {entry['file']}: ours {entry['ours']}, reference {entry['reference']}: "
                f"{entry['why'] or 'UNEXPLAINED'}\n        gold {entry['gold']}\n        predicted {entry['predicted']}"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
