"""Every benchmark at hand x controllers in one table: python scripts/run_benchmarks.py --out runs/benchmarks

Each benchmark is an ablation whose cells are controllers (``nl2sql ablate``): ordinary runs over the same questions,
each compared with the first controller by an exact paired test, adjusted within its benchmark. The same command again
does what is owed. A benchmark that cannot be run is named at the end, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nl2sql.agents.record import json_text
from nl2sql.benchmarks import available_benchmarks
from nl2sql.benchmarks.packaged import PACKAGED_DIALOGUES, VIZQL
from nl2sql.cli.options import open_executor
from nl2sql.errors import Cancelled, Nl2SqlError
from nl2sql.eval.tables import table_markdown
from nl2sql.runs.ablation import BASE, Ablation, ablate, ablation_notes, ablation_rows, expand

SPLITS = {"packaged": "test", "spider": "holdout"}  # elsewhere all questions


def grid_of(name: str, controllers: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """The grid of one benchmark: the first controller is the base, the others are cells."""
    first, *others = controllers
    base = {"benchmark": name, "split": SPLITS.get(name), "limit": given.limit, "controller": first}
    base |= {"model": given.model, "device": given.device, "control": "single_shot" not in controllers}
    base |= {"config": {"constrain": given.constrain, "eval": {"replicas": given.replicas}}}
    return {"base": base, "cells": {cell_of(other): {"controller": other} for other in others}}


def cell_of(controller: str) -> str:
    """A controller's name in the table: of ``FILE.py:function`` the function's."""
    return controller.rpartition(":")[2]


def table(tables: Iterable[Mapping[str, Any]], first: str) -> list[list[str]]:
    """All benchmarks' rows under one header, controllers by their names."""
    rows: list[list[str]] = []
    for data in tables:
        head, *body = ablation_rows(data)
        rows = rows or [["benchmark", "n", "controller", *head[1:]]]
        about = [data["benchmark"], str(data["n"])]
        rows += [[*about, first if row[0] == BASE else row[0], *row[1:]] for row in body]
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", help="names, with commas; default: packaged and all in NL2SQL_BENCHMARKS")
    parser.add_argument(
        "--controllers", default="single_shot,react,react_plus", help="two or more; FILE.py:function is one as well"
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, default=120, help="questions of each benchmark, a seeded sample")
    parser.add_argument("--constrain", default="action", choices=("none", "action", "sql", "plain"))
    parser.add_argument("--replicas", type=int, default=5)
    parser.add_argument("--metric", help="what the table compares; default EX")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--address", help="of a running Ray cluster")
    parser.add_argument("--json", action="store_true", help="print the tables as data")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    given.controllers = given.controllers.split(",")
    if len(given.controllers) < 2:
        parser.error("--controllers: name two or more; the first is what the others are compared with")
    names = [cell_of(controller) for controller in given.controllers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        parser.error(f"--controllers: {twice} is named twice; give functions of different names")
    return given


def run(given: argparse.Namespace) -> tuple[list[Ablation], dict[str, str]]:
    """The benchmarks that were carried out, and why others were not. Raises Cancelled when interrupted."""
    elsewhere = (PACKAGED_DIALOGUES, VIZQL)  # scripts/sessions.yaml has the first; the other is part of packaged
    at_hand = [name for name in available_benchmarks() if name not in elsewhere]
    names = given.benchmarks.split(",") if given.benchmarks else at_hand
    again = f"python {' '.join([os.path.relpath(__file__), *sys.argv[1:]])}"
    done: list[Ablation] = []
    failed: dict[str, str] = {}
    with open_executor(given.executor, given.address) as worker:
        for name in names:
            place, shown = given.out / Path(name).name, not given.quiet
            try:
                cells = expand(grid_of(name, given.controllers, given))
                done.append(ablate(cells, place, command=again, progress=shown, executor=worker))
            except Cancelled:
                raise
            except Nl2SqlError as error:
                failed[name] = str(error)
    return done, failed


def main() -> None:
    given = arguments()
    try:
        done, failed = run(given)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    tables = {ablation.folder.name: ablation.to_dict(given.metric) for ablation in done}
    if given.json:
        print(json_text({"benchmarks": tables, "failed": failed}, indent=2))
    elif done:
        print(table_markdown(table(tables.values(), given.controllers[0])))
        notes = [f"- {name}: {note}" for name, data in tables.items() for note in ablation_notes(data)]
        print("", *notes, sep="\n")
    for name, error in failed.items():
        print(f"error: {name}: {error}", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
