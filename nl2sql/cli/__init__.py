"""The command line: one short function per command; heavy imports happen inside them.

Exit codes: 0 done, 1 a failure, 2 bad usage, 130 interrupted. A user's mistake is one line, never a traceback
(``NL2SQL_DEBUG=1`` shows tracebacks).
"""

from __future__ import annotations

import io
import logging
import os
import sys

import typer

from nl2sql import __version__
from nl2sql.cli import (
    ablate,
    ask,
    bench_repair,
    chat,
    check_data,
    compare,
    corpus,
    doctor,
    evaluate,
    examples,
    explain,
    export,
    mcp,
    models,
    new,
    plugins,
    replicas,
    report,
    runs,
    score,
    view,
    vizql,
)
from nl2sql.cli.colour import coloured
from nl2sql.cli.group import Group, settings
from nl2sql.errors import Nl2SqlError, one_line
from nl2sql.machine import masked, missing_part

app = typer.Typer(
    name="nl2sql",
    cls=Group,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=settings(),
    help="Text-to-SQL agents over local models: ask, evaluate, score.\n\n"
    "Start with: nl2sql ask 'How many customers are there?' --db FILE.sqlite",
)


def _version(value: bool) -> None:
    if value:
        print(f"nl2sql {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


app.command("ask")(ask.ask)
app.command("chat")(chat.chat)
app.command("eval", cls=evaluate.EvalCommand)(evaluate.evaluate_command)
app.command("ablate")(ablate.ablate_command)
app.command("score")(score.score_command)
app.command("report")(report.report_command)
app.command("mcp")(mcp.mcp)

own = typer.Typer(cls=Group, help="Start a part of your own; the examples; what packages add.")
for kind in new.KINDS:
    own.command(kind)(new.new_command(kind))
own.command("examples")(examples.examples_command)
own.command("plugins")(plugins.plugins_command)

of_data = typer.Typer(cls=Group, help="Check benchmarks, statements, the databases behind TS, structured queries.")
of_data.command("check")(check_data.check_data)
of_data.command("explain")(explain.explain)
of_data.add_typer(replicas.app, name="replicas", help="Build and check the databases behind TS.")
of_data.add_typer(vizql.app, name="vizql", help="Structured queries over data sources: describe, compile, run.")

of_runs = typer.Typer(cls=Group, help="List, view, compare, check, score again and export runs.")
of_runs.command("list")(runs.runs_command)
of_runs.command("view")(view.view_command)
of_runs.command("compare")(compare.compare_command)
of_runs.command("check")(runs.check_run_command)
of_runs.command("replay")(runs.replay_command)
of_runs.command("failures")(runs.export_failures_command)
of_runs.command("export")(export.export_command)

models.app.command("doctor")(doctor.doctor)
corpus.app.command("bench")(bench_repair.bench_repair)

app.add_typer(own, name="new")
app.add_typer(of_data, name="data")
app.add_typer(of_runs, name="runs")
app.add_typer(models.app, name="models", help="List, fetch and describe models; check this machine.")
app.add_typer(corpus.app, name="corpus", help="Failures and their repairs, for repair guidance.")


def _error() -> str:
    return coloured("error:", "red", sys.stderr)


def main() -> None:
    """Entry point of the ``nl2sql`` command."""
    debug = bool(os.environ.get("NL2SQL_DEBUG"))
    for stream in (sys.stdout, sys.stderr):  # whatever a database or a model holds can be printed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # unparsable SQL is data here
    try:
        app()
        sys.stdout.flush()
    except SystemExit as leaving:
        if leaving.code == 130:  # Ctrl-C where nobody says how to go on: typer says nothing
            print("interrupted; what a run or a store held before is kept", file=sys.stderr)
        raise
    except Nl2SqlError as error:
        if debug:
            raise
        print(f"{_error()} {masked(one_line(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if debug or not (said := missing_part((error.name or "").partition(".")[0])):
            raise
        print(f"error: {said}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if debug:
            raise
        where = f" {error.filename}" if error.filename else " the output"
        print(f"{_error()} cannot read or write{where}: {error.strerror or error}", file=sys.stderr)
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - nothing more to flush at exit
        sys.exit(1)
    except MemoryError:
        if debug:
            raise
        print(f"{_error()} there is too little memory for this; close other programs, or give less", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        text = masked(one_line(f"{type(error).__name__}: {error}", 300))
        print(f"{_error()} {text} (a bug; NL2SQL_DEBUG=1 shows the traceback)", file=sys.stderr)
        sys.exit(1)
