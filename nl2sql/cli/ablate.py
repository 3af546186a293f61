"""``nl2sql ablate``: the cells of a grid, and the table that compares them."""

from __future__ import annotations

import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from nl2sql.cli.executor import AddressOption, ExecutorOption, open_executor
from nl2sql.cli.options import FormatOption


def ablate_command(
    grid: Annotated[Path, typer.Argument(help="A YAML file of base, axes and cells (docs/runs.md).")],
    out: Annotated[Path | None, typer.Option(help="Folder of the cells; default: runs/<name of the grid>.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("-c", "--set", help="Setting over the grid's base, e.g. -c eval.rule=spider; may be repeated."),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What the table compares; default EX. E.g. VA.")] = None,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells; run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    format_: FormatOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run every cell of a grid over the same questions, and compare each with the base.

    Each cell is an ordinary run in its own folder under --out. The same command again continues an interrupted
    ablation; what is finished is not done again.

    \b
    Examples:
      nl2sql ablate scripts/ablation.yaml --dry-run
      nl2sql ablate scripts/ablation.yaml --out runs/ablation
      nl2sql ablate scripts/ablation.yaml --out runs/ablation --format latex > table.tex
      nl2sql report runs/ablation --out ablation.html
    """
    from nl2sql.agents.record import json_text
    from nl2sql.errors import typed
    from nl2sql.runs.ablation import read_grid

    cells = read_grid(grid, set_ or ())
    folder = out or Path("runs") / grid.stem
    if dry_run:
        listed = [{"name": cell.name, "changed": dict(cell.changed)} for cell in cells]
        lines = [f"{cell.name:40} {json_text(cell.changed)}" for cell in cells]
        print(json_text(listed, indent=2) if as_json else "\n".join([*lines, f"{len(cells)} cells in {folder}"]))
        return
    from nl2sql.eval.tables import FORMATS
    from nl2sql.runs.ablation import ablate, ablation_rows, ablation_text, check_metric

    if metric is not None:
        check_metric(cells, metric)
    overrides = [part for item in set_ or () for part in ("-c", item)]
    command = shlex.join(["nl2sql", "ablate", str(grid), "--out", str(folder), *overrides])
    with redirect_stdout(sys.stderr), open_executor(executor, address) as worker:  # what a loop prints is no table
        done = ablate(cells, folder, command=command, progress=not quiet, executor=worker)
    if as_json:
        print(json_text(done.to_dict(metric), indent=2))
    elif format_:
        print(FORMATS[format_](ablation_rows(done.to_dict(metric))))
    else:
        print(ablation_text(done, metric))
        print(f"\nrun folders: {folder}/*; traces: nl2sql report {typed(folder)} --out ablation.html")
