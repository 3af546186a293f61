"""Choose ``repair.threshold``: python scripts/repair_threshold.py --benchmark spider --split train --cases 2000

Failures made of a benchmark's golds, each searched among the fixes of all other databases, and among those of other
categories of error (``repair_bench/curve.py``). Prints recall@3 and a row for each threshold; --plot draws the rows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.repair.embeddings import embedder_named
from nl2sql.runs.repair_bench.cases import SqliteSource, corrupted_cases
from nl2sql.runs.repair_bench.curve import Point, curve, search_others

KEPT = 0.9  # of recall@3, by the threshold that is chosen
THRESHOLDS = [round(0.05 * step, 2) for step in (0, *range(6, 20))]


def plot(points: Sequence[Point], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.0, 3.4), layout="constrained")
    x = [point.threshold for point in points]
    for name, values in (
        ("precision (same kind of mistake)", [point.precision for point in points]),
        ("recall@3 (same kind of mistake)", [point.recall for point in points]),
        ("precision (same category of error)", [point.lenient_precision for point in points]),
        ("a fix is shown, and none is of the category", [point.needless for point in points]),
    ):
        axes.plot(x, values, label=name)
    axes.set(xlabel="threshold (cosine)", ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="packaged")
    parser.add_argument("--split", default="all")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--embedding", default="hashed-ngrams-3-5-128", help="or all-MiniLM-L6-v2")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    benchmark = load_benchmark(given.benchmark, split=given.split)
    questions = [question for question in benchmark.questions if scorable(question)]
    cases = corrupted_cases(questions, SqliteSource(given.benchmark, benchmark), given.cases, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        embedder = embedder_named(given.embedding)
        found = search_others(cases, Path(folder), embedder)
        irrelevant = search_others(cases, Path(folder), embedder, other=lambda case: case.category)
    points = curve(found, irrelevant, THRESHOLDS)
    best = max((point for point in points if point.recall >= KEPT * points[0].recall), key=lambda p: p.threshold)
    databases = len({case.db_id for case in cases})
    print(f"{len(found)} failures of {databases} databases of {given.benchmark}, {given.embedding}")
    print(f"recall@3: {points[0].recall:.3f}; the highest threshold that keeps {KEPT:.0%}: {best.threshold:.2f}\n")
    print(
        "| threshold | fixes shown | precision | recall | precision by category | needless |\n|---|---|---|---|---|---|"
    )
    for point in points:
        cells = (point.shown, point.precision, point.recall, point.lenient_precision, point.needless)
        print(f"| {point.threshold:.2f} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    if given.plot:
        plot(points, given.plot)


if __name__ == "__main__":
    main()
