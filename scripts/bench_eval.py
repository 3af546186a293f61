"""What scoring costs, against the execution pattern of the 2020 test-suite evaluator and against the floor.

    NL2SQL_BENCHMARKS=... python scripts/bench_eval.py [--json] [--plot FILE] [--questions 500] [--replicas 20]

In one run and on the same golds and replicas: (a) predictions = golds, (b) half of them differ, (c) ten prediction
files. *reference*: a re-implementation of the published pattern: per prediction and database a fresh event loop,
coroutine and connection for the gold and again for the prediction, column permutations compared, stop at the first
difference, one process. *floor*: each distinct statement that a verdict needs executed once per database on a
persistent connection, in as many processes as ours, without sandbox and comparison (all distinct statements on all
databases: ``floor_all``). Verdicts of ours (rule bag) and of the reference are compared item by item.
Only ratios within one run mean anything: the machine may be busy.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import itertools
import json
import multiprocessing
import os
import random
import re
import resource
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

WORKERS = 2
REPEATS = 3  # of ours and of the floor, the quickest counts: other work on the machine only ever adds
LARGEST_BYTES = 4 * 2**20  # of a database in the benchmark, so that SQLite itself does not hide what is measured

Answer = tuple[str, Any]


# ---------------------------------------------------------------------------------------------- the reference pattern


async def _exec_on_db(path: str, sql: str) -> Answer:
    try:
        connection = sqlite3.connect(path)
        connection.text_factory = lambda raw: raw.decode(errors="ignore")
        cursor = connection.cursor()
        cursor.execute(sql)
        rows = cursor.fetchall()
        cursor.close()
        connection.close()
        return "result", rows
    except Exception as error:  # noqa: BLE001  the pattern: whatever goes wrong is an answer
        return "exception", error


async def _with_timeout(path: str, sql: str, timeout: float) -> Answer:
    return await asyncio.wait_for(_exec_on_db(path, sql), timeout)


def _result_eq(gold: list[tuple], predicted: list[tuple], ordered: bool) -> bool:
    if not gold and not predicted:
        return True
    if len(gold) != len(predicted) or len(gold[0]) != len(predicted[0]):
        return False
    if not _quick_reject(gold, predicted, ordered):
        return False
    width = len(gold[0])
    columns = [set(column) for column in zip(*gold, strict=True)]
    if width <= 3:
        candidates: Iterator[tuple[int, ...]] = itertools.permutations(range(width))
    else:
        fitting = [set(range(width)) for _ in range(width)]
        for _ in range(20):
            row = random.choice(predicted)
            for i in range(width):
                for j in set(fitting[i]):
                    if row[j] not in columns[i]:
                        fitting[i].remove(j)
        candidates = (p for p in itertools.product(*fitting) if len(set(p)) == width)
    for permutation in candidates:
        permuted = [tuple(row[i] for i in permutation) for row in predicted]
        if gold == permuted if ordered else Counter(gold) == Counter(permuted):
            return True
    return False


def _quick_reject(gold: list[tuple], predicted: list[tuple], ordered: bool) -> bool:
    ours = [tuple(sorted(row, key=lambda x: str(x) + str(type(x)))) for row in gold]
    theirs = [tuple(sorted(row, key=lambda x: str(x) + str(type(x)))) for row in predicted]
    return ours == theirs if ordered else set(ours) == set(theirs)


def reference_verdict(files: Sequence[Path], gold: str, predicted: str, timeout: float = 30.0) -> bool:
    ordered = "order by" in gold.lower()
    for file in files:
        kind, expected = asyncio.run(_with_timeout(str(file), gold, timeout))
        kind_found, found = asyncio.run(_with_timeout(str(file), predicted, timeout))
        if kind == "exception":
            continue  # theirs asserts; golds that fail on a replica say nothing
        if kind_found == "exception" or not _result_eq(expected, found, ordered):
            return False
    return True


# -------------------------------------------------------------------------------------------------------- the floor


def _execute_all(jobs: Sequence[tuple[str, Sequence[str]]]) -> int:
    done = 0
    for path, statements in jobs:
        connection = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for sql in statements:
            with suppress(sqlite3.Error):
                connection.execute(sql).fetchall()
            done += 1
        connection.close()
    return done


def floor(jobs: list[tuple[str, list[str]]], processes: Any) -> tuple[float, int]:
    """(seconds, statements): each (database, statement) once, processes started beforehand."""
    jobs = sorted(jobs)
    size = max(1, len(jobs) // (WORKERS * 12))
    portions = [jobs[n : n + size] for n in range(0, len(jobs), size)]
    began = time.perf_counter()
    done = sum(processes.imap_unordered(_execute_all, portions))
    return time.perf_counter() - began, done


# ----------------------------------------------------------------------------------------------------------- memory


@contextmanager
def peak_memory(found: dict[str, float]) -> Iterator[None]:
    """The most resident memory of this process and its children (MiB), sampled."""
    stop = threading.Event()
    found["peak_mib"] = 0.0

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


# ------------------------------------------------------------------------------------------------------- the variants


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


def measure(benchmark: Any, questions: list[Any], files: dict[str, dict[str, str]], replicas: int, pool: Any) -> dict:
    """One variant: seconds of reference, floor and ours, and whether the verdicts agree."""
    from nl2sql.eval import score_many
    from nl2sql.eval.row_order import order_free
    from nl2sql.replicas import perturbed_replicas

    paths = {q.db_id: Path(benchmark.database(q.db_id).path) for q in questions}
    suites = {db: [path, *perturbed_replicas(path, replicas)] for db, path in paths.items()}
    few = questions[:3]  # imports and the workers' start are not what is measured
    score_many(benchmark, few, {"": {q.id: f"{q.gold[0]} LIMIT 7" for q in few}}, replicas=0, pool=pool, causes=False)
    memory: dict[str, float] = {}
    with peak_memory(memory):
        ours = ours_cpu = float("inf")
        options: dict[str, Any] = {"replicas": replicas, "pool": pool, "causes": False, "cache_golds": False}
        for _ in range(REPEATS):
            _forget_parsed()
            cpu, began = _cpu_s(), time.perf_counter()
            scored = score_many(benchmark, questions, files, **options)
            ours, ours_cpu = min(ours, time.perf_counter() - began), min(ours_cpu, _cpu_s() - cpu)
        with tempfile.TemporaryDirectory() as folder:
            cached, ours_cached = _with_cache(folder, benchmark, questions, files, replicas, pool)
    right = {(name, item.id): bool(item.ts) for name, scores in scored.items() for item in scores.items}
    same = all(right[name, item.id] == bool(item.ts) for name, scores in cached.items() for item in scores.items)
    ex = {(name, item.id): item.ex for name, scores in scored.items() for item in scores.items}
    everything: dict[str, set[str]] = {}
    needed: dict[str, set[str]] = {}
    for question in questions:
        for name, given in files.items():
            statements = {question.gold[0], given[question.id]}
            for number, file in enumerate(suites[question.db_id]):
                everything.setdefault(str(file), set()).update(statements)
                if number == 0 or ex[name, question.id]:
                    needed.setdefault(str(file), set()).update(statements)
    with multiprocessing.get_context("spawn").Pool(WORKERS) as processes:
        processes.map(_execute_all, [[], []])
        needed_jobs = [(file, sorted(sql)) for file, sql in needed.items()]
        floors = []
        floor_cpu = float("inf")
        for _ in range(REPEATS):
            cpu = _cpu_s()
            floors.append(floor(needed_jobs, processes))
            floor_cpu = min(floor_cpu, _cpu_s() - cpu)
        floor_s, floor_n = min(floors)
        floor_all_s, floor_all_n = min(
            floor([(file, sorted(sql)) for file, sql in everything.items()], processes) for _ in range(REPEATS)
        )
    began = time.perf_counter()
    reference = {
        (name, q.id): reference_verdict(suites[q.db_id], q.gold[0], given[q.id])
        for name, given in files.items()
        for q in questions
    }
    reference_s = time.perf_counter() - began
    different = [key for key, verdict in reference.items() if verdict != right[key]]
    executed = next(iter(scored.values())).executed
    texts = {q.id: q.gold[0] for q in questions}
    return {
        "items": len(right),
        "right": sum(right.values()),
        "reference_s": reference_s,
        "floor_s": floor_s,
        "floor_statements": floor_n,
        "floor_all_s": floor_all_s,
        "floor_all_statements": floor_all_n,
        "ours_s": ours,
        "executed": executed,
        "ours_cpu_s": ours_cpu,
        "floor_cpu_s": floor_cpu,
        "times_floor_cpu": ours_cpu / floor_cpu if floor_cpu else None,
        "ours_golds_cached_s": ours_cached,
        "times_faster": reference_s / ours,
        "times_faster_golds_cached": reference_s / ours_cached,
        "times_floor": ours / floor_s,
        "times_floor_all": ours / floor_all_s,
        "same_verdicts_cached": same,
        "different_verdicts": len(different),
        # a gold whose LIMIT or order cuts through ties: that replica says nothing for us, the reference counts it
        "of_these_by_ties": sum(right[key] and not order_free(texts[key[1]]) for key in different),
        "examples": [
            {"id": id_, "reference": reference[name, id_], "gold": texts[id_], "predicted": files[name][id_]}
            for name, id_ in different[:5]
        ],
        **memory,
    }


def _forget_parsed() -> None:
    """Empty our caches of parsed statements, so that a repeat is a run like the first."""
    for found in gc.get_objects():
        if isinstance(found, functools._lru_cache_wrapper) and found.__module__.startswith("nl2sql.eval"):
            found.cache_clear()


def _with_cache(
    folder: str, benchmark: Any, questions: list[Any], files: dict, replicas: int, pool: Any
) -> tuple[Any, float]:
    """Scores and seconds of a second run, whose golds are known."""
    from nl2sql.eval import gold_cache, score_many

    real = gold_cache.cache_dir
    gold_cache.cache_dir = lambda *parts: Path(folder) if parts else real()
    try:
        options: dict[str, Any] = {"replicas": replicas, "pool": pool, "causes": False}
        score_many(benchmark, questions, files, **options)
        seconds = float("inf")
        for _ in range(REPEATS):
            _forget_parsed()
            began = time.perf_counter()
            scored = score_many(benchmark, questions, files, **options)
            seconds = min(seconds, time.perf_counter() - began)
        return scored, seconds
    finally:
        gold_cache.cache_dir = real


def variants(questions: list[Any], files: int) -> dict[str, dict[str, dict[str, str]]]:
    by_database: dict[str, list[str]] = {}
    for question in questions:
        by_database.setdefault(question.db_id, []).append(question.gold[0])

    def file(seed: int, part: float) -> dict[str, str]:
        rng = random.Random(seed)
        return {
            q.id: differing(q.gold[0], by_database[q.db_id], rng) if rng.random() < part else q.gold[0]
            for q in questions
        }

    return {
        "a: predictions = golds": {"a": file(0, 0.0)},
        "b: half differ": {"b": file(1, 0.5)},
        f"c: {files} files": {f"c{n}": file(n, 0.5) for n in range(files)},
    }


def costs(benchmark: Any, questions: list[Any], pool: Any, replicas: int) -> list[dict[str, Any]]:
    """Milliseconds per item of our own scoring, along four axes."""
    from nl2sql.benchmarks import FolderBenchmark
    from nl2sql.eval import score_many
    from nl2sql.interfaces import Question

    table = []

    def add(axis: str, value: int, bench: Any, asked: list[Any], files: dict, k: int) -> None:
        score_many(bench, asked, files, replicas=k, pool=pool, causes=False, cache_golds=False)
        began = time.perf_counter()
        score_many(bench, asked, files, replicas=k, pool=pool, causes=False, cache_golds=False)
        seconds = time.perf_counter() - began
        table.append({"axis": axis, "value": value, "seconds": seconds, "ms_per_item": 1e3 * seconds / len(asked)})

    part = questions[:: max(1, len(questions) // 100)][:100]
    for count in (1, 2, 5, 10):
        add("prediction files", count, benchmark, part, variants(part, count)[f"c: {count} files"], min(5, replicas))
    for k in (0, 1, 5, 10, 20):
        if k <= replicas:
            add("replicas", k, benchmark, part, variants(part, 1)["b: half differ"], k)
    with tempfile.TemporaryDirectory() as folder:
        for axis, sizes in (
            ("rows of a result", (1, 100, 10_000, 100_000)),
            ("rows of a database", (100, 10_000, 300_000)),
        ):
            for rows in sizes:
                path = Path(folder) / f"{rows}.sqlite"
                path.unlink(missing_ok=True)
                connection = sqlite3.connect(path)
                connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, s TEXT)")
                connection.executemany(
                    "INSERT INTO t VALUES (?, ?, ?)", ((i, i % 97, f"text {i % 1009}") for i in range(rows))
                )
                connection.commit()
                connection.close()
                os.utime(path, (1, 1))
                sql = (
                    "SELECT n, s FROM t WHERE n >= {}"
                    if axis == "rows of a result"
                    else "SELECT count(*) FROM t WHERE n > {}"
                )
                asked = [Question(text="?", id=str(k), db_id="d", gold=(sql.format(-k),)) for k in range(10)]
                given = {q.id: q.gold[0].replace("-0", "0") + " AND 1" for q in asked}
                add(axis, rows, FolderBenchmark("made", asked, {}, {"d": path}), asked, {"": given}, 0)
    return table


def plot(table: list[dict[str, Any]], file: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    axes_names = list(dict.fromkeys(row["axis"] for row in table))
    figure, axes = plt.subplots(1, len(axes_names), figsize=(4 * len(axes_names), 3.2), layout="constrained")
    for axis, name in zip(axes, axes_names, strict=True):
        rows = [row for row in table if row["axis"] == name]
        axis.plot([row["value"] for row in rows], [row["ms_per_item"] for row in rows], marker="o")
        if name.startswith("rows"):
            axis.set_xscale("log")
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.set_xlabel(name)
        axis.set_ylabel("ms per item")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--replicas", type=int, default=20)
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--no-costs", action="store_true")
    options = parser.parse_args()
    from nl2sql.query_runner import QueryPool

    benchmark, questions, name = load(options.questions)
    report: dict[str, Any] = {"benchmark": name, "questions": len(questions), "replicas": options.replicas}
    if name != "spider":
        report["note"] = "NL2SQL_BENCHMARKS is not set: packaged questions instead of Spider's"
    report["databases"] = len({q.db_id for q in questions})
    with QueryPool(WORKERS) as pool:
        pool.run(Path(benchmark.database(questions[0].db_id).path), "SELECT 1")
        report["variants"] = {
            label: measure(benchmark, questions, files, options.replicas, pool)
            for label, files in variants(questions, options.files).items()
        }
        report["costs"] = [] if options.no_costs else costs(benchmark, questions, pool, options.replicas)
    if options.plot and report["costs"]:
        plot(report["costs"], options.plot)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.json else _table(report))


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['questions']} questions of {report['benchmark']}, {report['databases']} databases, "
        f"{report['replicas']} replicas each. {report.get('note', '')}",
        f"{'':24} {'reference':>10} {'ours':>8} {'cached':>8} {'floor':>8} {'faster':>9} {'x floor':>7} {'x cpu':>5} "
        f"{'MiB':>5} other verdicts",
    ]
    for label, row in report["variants"].items():
        lines.append(
            f"{label:24} {row['reference_s']:9.2f}s {row['ours_s']:7.2f}s {row['ours_golds_cached_s']:7.2f}s "
            f"{row['floor_s']:7.2f}s {row['times_faster']:7.1f}x {row['times_floor']:8.2f} "
            f"{row['times_floor_cpu'] or 0:5.2f} {row['peak_mib']:5.0f} "
            f"{row['different_verdicts']} of {row['items']}"
        )
    for row in report["costs"]:
        lines.append(
            f"{row['axis']:20} {row['value']:>8} {row['seconds']:8.3f} s {row['ms_per_item']:9.3f} ms per item"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
