"""Accuracy against time: draws the answers of ``first_answer.py`` for several models and pipelines.

    python scripts/first_answer.py --half final --model qwen2.5-coder-1.5b --controller single_shot best \\
        --json > 1.5B.json
    python scripts/draw_frontier.py 135M.json 0.5B.json 1.5B.json --figure docs/images/frontier.png

Each file is one model, called by the file's name; each of its controllers is a point: EX over the
median of seconds a question, with the 95% interval of EX. A line joins the points that no other
point beats in both. The same numbers are printed as a table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from nl2sql.eval.stats import percent
from nl2sql.eval.tables import table_markdown

COLOURS = ("#8a94a6", "#d9822b", "#2f6bd8", "#12927f", "#8757cf")
Point = dict[str, Any]


def points_of(file: Path) -> list[Point]:
    """One point for each controller of a file. Raises KeyError where it is not from ``first_answer.py --json``."""
    controllers = json.loads(file.read_text(encoding="utf-8"))["controllers"]
    return [
        {"model": file.stem, "controller": name, "seconds": groups["all"]["seconds_median"], "ex": groups["all"]["ex"]}
        for name, groups in controllers.items()
    ]


def frontier(points: list[Point]) -> list[Point]:
    """The points that no other point beats in both time and accuracy, the fastest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (one["seconds"], -one["ex"]["value"])):
        if not best or point["ex"]["value"] > best[-1]["ex"]["value"]:
            best.append(point)
    return best


def draw(points: list[Point], target: Path) -> None:
    """Write the figure as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import PercentFormatter

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    models = dict.fromkeys(point["model"] for point in points)
    line = frontier(points)
    axes.plot(
        [one["seconds"] for one in line], [one["ex"]["value"] for one in line], "--", color="#c3c9d4", linewidth=1
    )
    for model, colour in zip(models, itertools.cycle(COLOURS), strict=False):
        mine = [point for point in points if point["model"] == model]
        values = [one["ex"]["value"] for one in mine]
        reach = [
            [one["ex"]["value"] - one["ex"]["low"] for one in mine],
            [one["ex"]["high"] - one["ex"]["value"] for one in mine],
        ]
        axes.errorbar(
            [one["seconds"] for one in mine], values, yerr=reach, fmt="o", capsize=3, color=colour, label=model
        )
        for one in mine:
            place = (one["seconds"], one["ex"]["value"])
            axes.annotate(one["controller"], place, (6, 5), textcoords="offset points", fontsize="small")
    axes.set_xlabel("seconds a question, median")
    axes.set_ylabel("EX[bag], 95% interval")
    axes.set_xlim(0, 1.2 * max(point["seconds"] for point in points))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(target, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="what first_answer.py --json printed, a file per model")
    parser.add_argument("--figure", type=Path, help="write a PNG")
    options = parser.parse_args()
    try:
        points = [point for file in options.files for point in points_of(file)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {type(error).__name__}: {error}; expected files of first_answer.py --json", file=sys.stderr)
        return 2
    rows = [["model", "pipeline", "EX[bag]", "seconds, median", "on the frontier"]]
    ahead = frontier(points)
    for point in points:
        seconds = f"{point['seconds']:.2f}"
        rows.append(
            [point["model"], point["controller"], percent(point["ex"]), seconds, "yes" if point in ahead else ""]
        )
    print(table_markdown(rows))
    if options.figure:
        draw(points, options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
