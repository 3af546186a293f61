"""The table of the model card: stock model, adapter, grammar and best pipeline, each asked once and in the loop.

    NL2SQL_BENCHMARKS=... python scripts/adapter_table.py --out runs/adapter [--limit 100] [--adapter DIR] [--json]

Every cell of ``scripts/adapter.yaml`` on Spider holdout, the packaged test split, GeoQuery and Chinook (those at
hand): EX, VA and TS with intervals clustered by database, and a paired test against the stock model. A second table
has the cells that ask in a loop: how their episodes end, and a paired test against the same model asked once. Interrupt
it at will; the same command goes on. ``--adapter`` puts a folder in place of the packaged adapter.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nl2sql.benchmarks import available_benchmarks
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.stats import paired_test, percent
from nl2sql.eval.tables import table_markdown
from nl2sql.runs.ablation.ablation import Ablation, ablate
from nl2sql.runs.ablation.grid import expand, grid_data

GRID = Path(__file__).resolve().parent / "adapter.yaml"
SETS = ("spider:holdout", "packaged:test", "geoquery", "chinook_deepagents")
ASKED_ONCE = {  # a cell that asks in a loop: the cell that asks the same model once
    "stock-react": "base",
    "adapter-react": "adapter",
    "grammar-react": "adapter-plain",
    "best-react": "values",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/adapter"))
    parser.add_argument("--sets", nargs="*", metavar="NAME[:SPLIT]", help=f"default: {' '.join(SETS)}")
    parser.add_argument("--limit", type=int, help="questions of each benchmark; default: scripts/adapter.yaml's")
    parser.add_argument("--cells", nargs="*", help="only these, and the base")
    parser.add_argument("--adapter", help="a folder in place of the packaged adapter")
    parser.add_argument("--grid", type=Path, default=GRID, help="cells of your own in place of scripts/adapter.yaml")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sets = options.sets or [name for name in SETS if name.partition(":")[0] in available_benchmarks()]
    try:
        tables = {name: table(name, options) for name in sets}
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(tables, indent=1))
    else:
        for name, data in tables.items():
            print(f"\n### {name}, {data['n']} questions\n\n{markdown(data)}")
    return 0


def table(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The finished cells on one benchmark."""
    grid = grid_data(options.grid)
    benchmark, _, split = name.partition(":")
    grid["base"] = {**(grid.get("base") or {}), "benchmark": benchmark, **({"split": split} if split else {})}
    if options.limit:
        grid["base"]["limit"] = options.limit
    named = grid.get("cells") or {}
    if unknown := [cell for cell in options.cells or () if cell not in named]:
        raise UsageError(f"--cells {unknown[0]}: there are {', '.join(named)}")
    if options.cells is not None:
        grid["cells"] = named = {cell: named[cell] for cell in options.cells}
    if options.adapter:
        for changed in named.values():
            changed |= {"adapter": options.adapter} if changed.get("adapter") == "auto" else {}
    place = options.out / Path(name).name.replace(":", "-")
    done = ablate(expand(grid), place, command=f"python {' '.join(sys.argv)}")
    return done.to_dict() | {"loops": loops(done)}


def loops(done: Ablation) -> list[dict[str, Any]]:
    """How the episodes of each loop ended, and EX won and lost against the cell that asks once (McNemar, exact)."""
    found = []
    for name, once in ASKED_ONCE.items():
        if name not in done.runs or once not in done.runs:
            continue
        report = done.runs[name].report
        ours, theirs = ({item["id"]: item["ex"] for item in done.runs[cell].report["items"]} for cell in (name, once))
        databases = {item["id"]: item["db_id"] for item in report["items"]}
        test = paired_test(once, ours, theirs, databases.get)
        counts = {key: report["counts"][key] for key in ("finish", "format_errors", "steps")}
        found.append({"cell": name, **counts, **asdict(test)})
    return found


def markdown(data: dict[str, Any]) -> str:
    tables = [metric_rows(data), *([loop_rows(data)] if data["loops"] else [])]
    return "\n\n".join(map(table_markdown, tables))


def loop_rows(data: dict[str, Any]) -> list[list[str]]:
    """The loops' endings and paired tests; the first row is the header."""
    rows = [
        ["loop", "ended by finish", "otherwise", "format errors", "steps", "against", "won, lost", "p", "p by database"]
    ]
    for loop in data["loops"]:
        n = loop["n"]
        otherwise = ", ".join(f"{how} {count}" for how, count in loop["finish"].items() if how != "finish")
        ended = f"{100 * loop['finish'].get('finish', 0) / n:.0f}%"
        steps = f"{loop['steps'] / n:.1f}"
        test = [f"{loop['wins']}, {loop['losses']}", f"{loop['p']:.2g}", f"{loop['p_databases']:.2g}"]
        rows.append([loop["cell"], ended, otherwise, str(loop["format_errors"]), steps, loop["against"], *test])
    return rows


def metric_rows(data: dict[str, Any]) -> list[list[str]]:
    """Every metric of every cell, and the paired test of EX against the base; the first row is the header."""
    rows = [["cell", *data["cells"][0]["metrics"], "won, lost", "p (Holm)", "by database (Holm)"]]
    for cell in data["cells"]:
        test = cell["test"]
        ps = [f"{test[name]:.2g}" for name in ("p_holm", "p_databases_holm")] if test else ["", ""]
        against = [f"{test['wins']}, {test['losses']}" if test else "", *ps]
        rows.append([cell["name"], *map(percent, cell["metrics"].values()), *against])
    return rows


if __name__ == "__main__":
    sys.exit(main())
