"""Run scripts/ablation.yaml and print its tables as Markdown: python scripts/run_ablations.py --out runs/ablations

On the packaged benchmark as the grid says; where NL2SQL_BENCHMARKS has Spider, also on its holdout split, unless the
grid is on Spider itself. Every cell is an ordinary run in OUT/<benchmark>/<cell>; the same command again does what is
owed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from nl2sql.benchmarks import available_benchmarks
from nl2sql.cli.options import open_executor
from nl2sql.errors import Nl2SqlError
from nl2sql.eval.tables import table_markdown
from nl2sql.runs.ablation import Ablation, ablate, ablation_notes, ablation_rows, expand, grid_data

GRID = Path(__file__).resolve().parent / "ablation.yaml"


def grids(file: Path, model: str | None, limit: int | None, device: str) -> dict[str, dict[str, Any]]:
    """Folder name -> grid as plain data: the file's own, and Spider's holdout where it is at hand."""
    grid, _ = grid_data(file)
    given = {"model": model, "limit": limit, "device": device}
    base = (grid.get("base") or {}) | {key: value for key, value in given.items() if value is not None}
    found = {Path(str(base.get("benchmark", "packaged"))).name: grid | {"base": base}}
    if "spider" in available_benchmarks() and "spider" not in found:
        found["spider"] = grid | {"base": base | {"benchmark": "spider", "split": "holdout"}}
    return found


def markdown(done: Ablation, metric: str | None) -> str:
    data = done.to_dict(metric)
    title = f"**{data['benchmark']}, {data['split'] or 'all'}, {data['n']} questions**"
    notes = "\n".join(f"- {note}" for note in ablation_notes(data))
    return f"{title}\n\n{table_markdown(ablation_rows(data))}\n\n{notes}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=Path, default=GRID)
    parser.add_argument("--out", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--model", help="in place of the grid's")
    parser.add_argument("--limit", type=int, help="in place of the grid's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--metric", help="what the table compares; default EX")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--address", help="of a running Ray cluster")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    again = f"python {' '.join([os.path.relpath(__file__), *sys.argv[1:]])}"
    try:
        with open_executor(given.executor, given.address) as worker:
            for name, grid in grids(given.grid, given.model, given.limit, given.device).items():
                done = ablate(expand(grid), given.out / name, command=again, progress=not given.quiet, executor=worker)
                print(markdown(done, given.metric), flush=True)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
