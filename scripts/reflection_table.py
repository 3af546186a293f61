"""What reflection and the other controllers save and break, from the runs of scripts/reflection.yaml.

    python scripts/run_ablations.py --grid scripts/reflection.yaml --out runs/reflections
    python scripts/reflection_table.py runs/reflections [--json]

Each cell beside one attempt, with which all of them begin. saved: of its wrong answers, those that the cell has right;
broken: of its right ones, those that the cell has wrong; p: exact McNemar over both, and by database. attempts:
queries written for a question. Seconds are the model's, without what the response cache answered (``cache: false`` in
the grid: all of them).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from nl2sql.eval.stats import mcnemar, percent
from nl2sql.eval.tables import table_markdown
from nl2sql.runs.folder import read_jsonl

EX, FIRST = "EX[bag]", "one-attempt"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the --out of run_ablations.py")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tables = {folder.name: table(folder) for folder in sorted(options.runs.glob("*")) if folder.is_dir()}
    tables = {name: rows for name, rows in tables.items() if rows}
    if not tables:
        print(
            f"error: {options.runs} holds no finished cells; make them with scripts/run_ablations.py", file=sys.stderr
        )
        return 2
    if options.json:
        print(json.dumps(tables, indent=1))
        return 0
    for name, rows in tables.items():
        print(f"\n**{name}, {rows[0]['n']} questions**\n\n{markdown(rows)}")
    return 0


def table(folder: Path) -> list[dict[str, Any]]:
    """A row for each finished cell, one-attempt first."""
    written = list(folder.glob("*/report.json"))
    cells = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in written}
    if FIRST not in cells:
        return []
    before = {item["id"]: item["ex"] for item in cells[FIRST]["items"]}
    right, found = sum(before.values()), []
    for name in [FIRST, *sorted(set(cells) - {FIRST})]:
        report, n = cells[name], cells[name]["n"]
        test = mcnemar(
            [(item["ex"], before[item["id"]]) for item in report["items"]], [item["db_id"] for item in report["items"]]
        )
        found.append(
            {
                "cell": name,
                "n": n,
                "attempts": attempts(folder / name),
                "tokens": tokens(report["usage"], n),
                "seconds": report["usage"]["compute_seconds"] / n,
                "saved": test.wins,
                "wrong": n - right,
                "broken": test.losses,
                "right": right,
                "p": test.p,
                "p_databases": test.p_databases,
                **{key: report["metrics"][key] for key in ("VA", EX)},
            }
        )
    return found


def tokens(usage: dict[str, Any], n: int) -> int:
    """Prompt and completion tokens per question."""
    return round((usage["prompt_tokens"] + usage["completion_tokens"]) / n)


def attempts(folder: Path) -> float:
    """Queries written per question: SQL and repair calls."""
    counts = [sum(call["kind"] != "act" for call in trace["calls"]) for trace in read_jsonl(folder / "traces.jsonl")]
    return statistics.mean(counts)


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            "cell",
            "VA",
            "EX",
            "attempts",
            "saved",
            "broken",
            "p",
            "p by database",
            "tokens / question",
            "seconds / question",
        ]
    ]
    for row in rows:
        saved, broken = f"{row['saved']} of {row['wrong']}", f"{row['broken']} of {row['right']}"
        ps = [f"{row[name]:.2g}" for name in ("p", "p_databases")]
        effect = [""] * 4 if row["cell"] == FIRST else [saved, broken, *ps]
        cost = [f"{row['tokens']:,}", f"{row['seconds']:.2f}"]
        lines.append([row["cell"], percent(row["VA"]), percent(row[EX]), f"{row['attempts']:.2f}", *effect, *cost])
    return table_markdown(lines)


if __name__ == "__main__":
    sys.exit(main())
