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
from nl2sql.cli import ask, chat, corpus, data, evaluate, mcp, models, new, runs, score, vizql
from nl2sql.cli.options import Group, coloured, settings
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
app.command("ablate")(evaluate.ablate_command)
app.command("score")(score.score_command)
app.command("report")(runs.report_command)
app.command("mcp")(mcp.mcp)

of_new = typer.Typer(cls=Group, help="Start a part of your own; the examples; what packages add.")
for kind in new.KINDS:
    of_new.command(kind)(new.new_command(kind))
of_new.command("examples")(new.examples_command)
of_new.command("plugins")(new.plugins_command)

of_data = typer.Typer(cls=Group, help="Check benchmarks, statements, the databases behind TS, structured queries.")
of_data.command("check")(data.check_data)
of_data.command("explain")(data.explain)
of_data.add_typer(data.replicas, name="replicas", help="Build and check the databases behind TS.")
of_data.add_typer(vizql.app, name="vizql", help="Structured queries over data sources: describe, compile, run.")

of_runs = typer.Typer(cls=Group, help="List, view, compare, check, score again and export runs.")
of_runs.command("list")(runs.runs_command)
of_runs.command("view")(runs.view_command)
of_runs.command("compare")(score.compare_command)
of_runs.command("check")(runs.check_run_command)
of_runs.command("replay")(runs.replay_command)
of_runs.command("failures")(runs.export_failures_command)
of_runs.command("export")(runs.export_command)

app.add_typer(of_new, name="new")
app.add_typer(of_data, name="data")
app.add_typer(of_runs, name="runs")
app.add_typer(models.app, name="models", help="List, fetch and describe models; check this machine.")
app.add_typer(corpus.app, name="corpus", help="Failures and their repairs, for repair guidance.")


def main() -> None:
    """Entry point of the ``nl2sql`` command."""
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
    except Exception as error:
        if os.environ.get("NL2SQL_DEBUG"):
            raise
        said, code = _told(error)
        print(f"{coloured('error:', 'red', sys.stderr)} {said}", file=sys.stderr)
        if isinstance(error, OSError):
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - nothing more to flush at exit
        sys.exit(code)


def _told(error: Exception) -> tuple[str, int]:
    """What a person is told of an error, in one line, and the exit code."""
    if isinstance(error, Nl2SqlError):
        return masked(one_line(error)), error.exit_code
    if isinstance(error, ModuleNotFoundError) and (part := missing_part((error.name or "").partition(".")[0])):
        return part, 2
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else " the output"
        return f"cannot read or write{where}: {error.strerror or error}", 1
    if isinstance(error, MemoryError):
        return "there is too little memory for this; close other programs, or give less", 1
    text = masked(one_line(f"{type(error).__name__}: {error}", 300))
    return f"{text} (a bug; NL2SQL_DEBUG=1 shows the traceback)", 1
