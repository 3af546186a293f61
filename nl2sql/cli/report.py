"""``nl2sql report``: one HTML file with the numbers and every trace of runs, or their table. Loads no model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nl2sql.cli.options import FormatOption, TrustOption, TypedUrlOption, VerboseOption, trust_of


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, or one of nl2sql ablate; the first is the baseline."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    format_: FormatOption = None,
    verbose: VerboseOption = False,
    golds: Annotated[
        bool, typer.Option("--golds/--no-golds", help="Run the golds, to show their rows beside the predicted.")
    ] = True,
    trust: TrustOption = False,
    engine_url: TypedUrlOption = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Write the report of one or several runs: one HTML file that needs no network.

    The table with controls, differences and tests; figures; why answers are wrong; a list of questions to filter;
    and of each episode the SQL, the rows and the whole trace. Further runs are compared with the first.

    With --format no file is written, but one table for a paper is printed: a row for each run and each control, of
    several models and benchmarks; of runs that differ in their seeds alone also mean and standard deviation.

    \b
    Examples:
      nl2sql report runs/dev --out dev.html
      nl2sql report runs/react runs/react_plus --out both.html
      nl2sql report runs/ablation --out ablation.html
      nl2sql report runs/* --format latex > table.tex
    """
    import sys

    if format_:
        from nl2sql.eval.tables import FORMATS
        from nl2sql.runs.report.collect import paper_rows, spread_rows
        from nl2sql.runs.run import Run

        loaded = [Run.load(folder) for folder in runs]
        rows = paper_rows([run.report for run in loaded], verbose=verbose)
        spread = [[*row, *[""] * (len(rows[0]) - len(row))] for row in spread_rows(loaded)]
        print(FORMATS[format_]([*rows, *spread]))
        return
    from nl2sql.runs.report import write_report

    path = write_report(
        runs,
        out,
        golds=golds,
        progress=not quiet and sys.stderr.isatty(),
        force=force,
        trust=trust_of(trust, engine_url),
    )
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
