"""Recipes for an adapter compared at equal cost: trained one after the other, asked the same held-out questions.

    NL2SQL_BENCHMARKS=... python scripts/adapter_ladder.py --out runs/ladder [--rungs recipe rank-8] [--json]

Every rung of ``scripts/ladder.yaml``: its data is built (``build_training_data.py``; rungs with the same data share
it), its adapter trained (``train_adapter.py``), and all finished rungs are evaluated as cells of one ablation, the
first as the base: EX with intervals clustered by database, and paired tests. Interrupt it at will; the same command
goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from adapter_table import metric_rows

from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import content_key
from nl2sql.runs.ablation.ablation import ablate, ablation_notes
from nl2sql.runs.ablation.grid import BASE, expand
from nl2sql.runs.folder import iter_jsonl

SCRIPTS = Path(__file__).resolve().parent
PARTS = ("data", "train", "evaluate")
TAKEN = ("data", "evaluated", "untrained")  # folders and a cell beside the rungs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladder", type=Path, default=SCRIPTS / "ladder.yaml")
    parser.add_argument("--out", type=Path, default=Path("runs/ladder"))
    parser.add_argument("--rungs", nargs="*", help="only these; default: all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        ladder = read_ladder(options.ladder, options.rungs)
        for name, rung in ladder["rungs"].items():
            climb(options.out, name, ladder["data"] | rung.get("data", {}), ladder["train"] | rung.get("train", {}))
        again = f"python {' '.join(sys.argv)}"
        done = ablate(expand(grid(ladder, options.out)), options.out / "evaluated", command=again)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    data = done.to_dict() | {"held_out": {name: held_out(options.out / name) for name in ladder["rungs"]}}
    print(json.dumps(data, indent=1) if options.json else markdown(data, next(iter(ladder["rungs"]))))
    return 0


def read_ladder(file: Path, only: list[str] | None) -> dict[str, Any]:
    """The file as plain data, with the rungs asked for. Raises UsageError."""
    try:
        ladder = yaml.safe_load(file.read_text(encoding="utf-8"))
        rungs = {
            name: {part: given or {} for part, given in (rung or {}).items()} for name, rung in ladder["rungs"].items()
        }
        unknown = [f"{key!r} in rung {name!r}" for name, rung in rungs.items() for key in rung if key not in PARTS]
        given = {part: dict(ladder[part]) for part in PARTS}
    except KeyError as error:
        raise UsageError(f"--ladder {file} has no {error.args[0]}; an example: scripts/ladder.yaml") from None
    except (OSError, yaml.YAMLError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"--ladder {file} cannot be read: {' '.join(str(error).split())[:200]}") from None
    if unknown:
        raise UsageError(f"--ladder {file}: {unknown[0]}; a rung changes {', '.join(PARTS)}")
    if missing := [name for name in only or () if name not in rungs]:
        raise UsageError(f"no rung {missing[0]!r}; --ladder {file} has {', '.join(rungs)}")
    chosen = {name: rung for name, rung in rungs.items() if not only or name in only}
    if not chosen:
        raise UsageError(f"--ladder {file} has no rungs")
    if taken := [name for name in chosen if name in TAKEN]:
        raise UsageError(f"--ladder {file}: a rung cannot be called {taken[0]!r}")
    first = next(iter(chosen))
    if chosen[first].get("evaluate"):
        raise UsageError(f"rung {first!r} is evaluated in its own way: begin with one that is not, for the comparison")
    return given | {"rungs": chosen}


def climb(out: Path, name: str, data: dict[str, Any], train: dict[str, Any]) -> None:
    """Build the rung's data and train its adapter, as far as that is owed."""
    built, folder, key = out / "data" / content_key(data)[:12], out / name, content_key(data, train)
    done = folder / "rung.json"
    if done.exists():
        if json.loads(done.read_text(encoding="utf-8")) != key:
            raise UsageError(f"{folder} holds another recipe of that name: rename the rung, or remove the folder")
        return
    if not (built / "groups.jsonl").exists():
        call("build_training_data.py", data | {"out": built})
    print(f"rung {name}", file=sys.stderr)
    call("train_adapter.py", train | {"data": built, "out": folder})
    if not json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["outcome"]["finished"]:
        raise UsageError(f"rung {name} is half trained (its minutes are over); the same command goes on")
    done.write_text(json.dumps(key), encoding="utf-8")


def call(script: str, options: dict[str, Any]) -> None:
    """Raises UsageError where the script fails; it has said why. An interrupt waits until the script has saved."""
    command = [sys.executable, str(SCRIPTS / script)]
    for key, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            command += [f"--{key.replace('_', '-')}", str(each)]
    with subprocess.Popen(command, stdout=sys.stderr) as child:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the terminal interrupts both
            child.wait()
            raise
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise UsageError(f"{script} failed with exit code {code}; the same command goes on once that is mended")


def grid(ladder: dict[str, Any], out: Path) -> dict[str, Any]:
    """The rungs as cells of an ablation, the first as its base."""
    adapters = {name: {"adapter": str((out / name / "release").absolute())} for name in ladder["rungs"]}
    first, *others = adapters
    cells = {name: adapters[name] | ladder["rungs"][name].get("evaluate", {}) for name in others}
    return {"base": ladder["evaluate"] | adapters[first], "cells": cells | {"untrained": {"adapter": "none"}}}


def held_out(folder: Path) -> float | None:
    """The lowest held-out loss after an update, which is that of the adapter compared; of the rung's own data."""
    losses = [r["held_out"] for r in iter_jsonl(folder / "log.jsonl") if "held_out" in r and r["step"]]
    return min(losses, default=None)


def markdown(data: dict[str, Any], first: str) -> str:
    head, *cells = metric_rows(data)
    rows = [["rung", "held-out loss", *head[1:]]]
    for cell, *shown in cells:
        name = first if cell == BASE else cell
        loss = data["held_out"].get(name)
        rows.append([name, "" if loss is None else f"{loss:.3f}", *shown])
    return "\n\n".join([table_markdown(rows), "\n".join(f"- {note}" for note in ablation_notes(data))])


if __name__ == "__main__":
    sys.exit(main())
