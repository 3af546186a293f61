"""What scoring costs as predictions, replicas, rows of a result and the size of a database grow: a table and a plot."""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

REPEATS = 3  # the median counts
ITEMS = 10  # on databases made for the purpose

Files = Mapping[str, Mapping[str, str]]


def costs(benchmark: Any, questions: list[Any], pool: Any, replicas: int, files: Callable[[list, int], Files]) -> list:
    """Seconds, and milliseconds per item, of our own scoring along four axes. ``files(questions, n)``: predictions."""
    table = []

    def add(axis: str, value: float, bench: Any, asked: list[Any], given: Files, k: int) -> None:
        times = _times(bench, asked, given, k, pool)
        seconds = statistics.median(times)
        items = len(asked) * len(given)
        table.append(
            {"axis": axis, "value": value, "seconds": seconds, "all": times, "ms_per_item": 1e3 * seconds / items}
        )

    part = questions[:: max(1, len(questions) // 100)][:100]
    for count in (1, 2, 5, 10):
        add("predictions", len(part) * count, benchmark, part, files(part, count), min(5, replicas))
    for k in (0, 1, 5, 10, 20):
        if k <= replicas:
            add("replicas", k, benchmark, part, files(part, 1), k)
    with tempfile.TemporaryDirectory() as folder:
        for rows in (1, 100, 10_000, 100_000):
            path = _database(Path(folder) / f"result{rows}.sqlite", rows)
            add("rows of a result", rows, *_asked(path, "SELECT n, s FROM t WHERE n >= {}"), 0)
        for rows in (100, 10_000, 300_000, 3_000_000):
            path = _database(Path(folder) / f"size{rows}.sqlite", rows)
            size = round(path.stat().st_size / 2**20, 2)
            add("MiB of a database", size, *_asked(path, "SELECT count(*) FROM t WHERE n > {}"), 0)
    return table


def _times(benchmark: Any, asked: list[Any], given: Files, replicas: int, pool: Any) -> list[float]:
    from nl2sql.eval import score_many

    times = []
    for _ in range(1 + REPEATS):  # the first run builds what later ones find
        began = time.perf_counter()
        score_many(benchmark, asked, given, replicas=replicas, pool=pool, causes=False)
        times.append(time.perf_counter() - began)
    return times[1:]


def _database(path: Path, rows: int) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, s TEXT)")
        values = ((i, i % 97, f"text {i % 1009}") for i in range(rows))
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
        connection.commit()
    os.utime(path, (1, 1))
    return path


def _asked(path: Path, sql: str) -> tuple[Any, list[Any], Files]:
    from nl2sql.benchmarks import FolderBenchmark
    from nl2sql.interfaces import Question

    asked = [Question(text="?", id=str(k), db_id="d", gold=(sql.format(-k),)) for k in range(ITEMS)]
    return FolderBenchmark("made", asked, {}, {"d": path}), asked, {"": {q.id: f"{q.gold[0]} AND 1" for q in asked}}


def plot(table: list[dict[str, Any]], file: str) -> None:
    """One picture per axis into ``file``."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["axis"] for row in table))
    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 3.2), layout="constrained")
    for axis, name in zip(axes, names, strict=True):
        rows = [row for row in table if row["axis"] == name]
        axis.plot([row["value"] for row in rows], [row["ms_per_item"] for row in rows], marker="o")
        if name in ("predictions", "replicas"):
            axis.set_ylim(bottom=0)
        else:
            axis.set_xscale("log")
            axis.set_yscale("log")
        axis.set_xlabel(name)
        axis.set_ylabel("ms per item")
    figure.savefig(file, dpi=120)
