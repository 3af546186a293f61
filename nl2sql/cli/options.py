"""The options that several commands take, as a command writes them: ``model: opt.Model = DEFAULT_MODEL``.

What they stand for is opened here too: the database, the corpus, the executor, the trust in a run folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperGroup

from nl2sql.errors import BenchmarkError, UsageError

if TYPE_CHECKING:
    from nl2sql import interfaces
    from nl2sql.repair import corpus
    from nl2sql.runs import job, plan

Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="smollm2-135m, qwen2.5-coder-0.5b, -1.5b, gemma3-270m (embedded), a hub id, a folder, a .gguf file, "
        "scripted:FILE, or a server's model: http://HOST/v1#NAME, openai/NAME, anthropic/NAME, ollama/NAME, vllm/NAME, "
        "llamacpp/NAME. See: nl2sql models list",
    ),
]
Server = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        help="KEY=VALUE for a server's model; may be repeated: tokenizer, context_window, timeout_s, retries, "
        "price_in, price_out (per million tokens), thinking (tokens), body.FIELD (a further field of every request).",
    ),
]
Cache = Annotated[
    bool, typer.Option("--no-cache", help="Compute every model call; take none from the response cache, keep none.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:NUMBER, or mps.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32 (default on CPU: same text at any batch composition), bfloat16, or auto, the fast lane: bfloat16 "
        "where the processor has instructions for it."
    ),
]
EngineUrl = Annotated[
    str,
    typer.Option(
        help="Ask the databases on another engine, without TS: mysql://USER@HOST/{db_id}, duckdb:FOLDER/{db_id}.duckdb."
    ),
]
Questions = Annotated[
    Path | None,
    typer.Option(help="A file of questions (JSON list or JSON lines) in place of a benchmark: Spider-DK.json, ..."),
]
Databases = Annotated[
    Path | None, typer.Option(help="The folder of DB/DB.sqlite for --questions; default: one near the file.")
]
Corrections = Annotated[
    Path | None,
    typer.Option(
        help="Corrected golds and questions, a YAML or JSON file by id: scores as published and as corrected."
    ),
]
Knowledge = Annotated[
    Path | None,
    typer.Option("--knowledge", help="What is known of the database: a Markdown file, or an OSI model in YAML."),
]
Verified = Annotated[
    Path | None,
    typer.Option("--verified", help="Verified queries, YAML: reused for the same question, else examples."),
]
Adapter = Annotated[
    str,
    typer.Option(help="LoRA adapter of a local model: auto (the packaged one), none, a name, or a PEFT folder."),
]
Config = Annotated[list[Path] | None, typer.Option("--config", help="YAML config file; may be repeated.")]
Set = Annotated[
    list[str] | None, typer.Option("-c", "--set", help="Config override, e.g. -c react.max_steps=4; may be repeated.")
]
Constrain = Annotated[
    Literal["none", "action", "sql", "plain"] | None,
    typer.Option(
        help="Grammars for what the model writes: none (default), action (the loop's turns), sql (also SQL), plain "
        "(SQL in the one style that the adapter learns)."
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Open what the run's manifest names: its code, addresses and paths, with your account and keys."
    ),
]
Format = Annotated[
    Literal["text", "markdown", "latex", "csv"] | None,
    typer.Option("--format", help="Print the table alone: text, markdown, latex (booktabs), or csv."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Every metric and test, tokens by kind, what gates and repairs did.")
]
TypedUrl = Annotated[
    str, typer.Option("--engine-url", help="The run's own engine, typed again: its $PASSWORD is read only then.")
]
Controller = Annotated[
    str,
    typer.Option(
        help="best, react, react_plus, reflect, candidates, single_shot, vizql, or your own: "
        "FILE.py:function, module:function, a plugin."
    ),
]
Tool = Annotated[
    list[str] | None,
    typer.Option("--tool", help="A tool to add to the loop: FILE.py:function, module:function, or a plugin's name."),
]
Gate = Annotated[list[str] | None, typer.Option("--gate", help="A gate to add to the loop, named likewise.")]
Executor = Annotated[
    Literal["local", "ray"],
    typer.Option(help="ray: the work is cut up by database and done by the workers of a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(help="With ray: HOST:PORT of a running cluster, or auto; left out: one of this machine's cores."),
]
DATABASE = (
    "FILE.sqlite, packaged:NAME, duckdb:FILE, clickhouse:FOLDER, postgresql://USER@HOST/NAME or mysql://USER@HOST/NAME."
)
Database = Annotated[str, typer.Option("--db", help=DATABASE)]
Benchmark = Annotated[
    str, typer.Option("--benchmark", "-b", help="packaged, a name in NL2SQL_BENCHMARKS, a folder, or hf:ORG/NAME.")
]
Timeout = Annotated[float, typer.Option(help="Seconds that one statement may take.")]
MaxRows = Annotated[int, typer.Option(help="Rows that one statement may return.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of nl2sql eval.")]
Runs = Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the runs are.")]
FIELDS = {"tool": "tools", "gate": "gates"}  # option -> field of a plan


def overrides(set_: Iterable[str] | None, given: Mapping[str, Any]) -> list[str]:
    """The config overrides of ``-c``, then those of the options that were given (key -> value, None: left out)."""
    return [*(set_ or ()), *(f"{k}={json.dumps(v, default=str)}" for k, v in given.items() if v is not None)]


def plan_of(params: Mapping[str, Any], **more: Any) -> plan.RunSpec:
    """The plan of a run: of the options that are called as its fields are (or as ``FIELDS`` says), and ``more``."""
    from nl2sql.runs.plan import RunSpec

    given = {FIELDS.get(name, name): value for name, value in params.items()} | more
    if "no_cache" in given:
        given["cache"] = not given["no_cache"]
    known = {field.name: given[field.name] for field in fields(RunSpec) if field.name in given}
    lists = {name: tuple(value or ()) for name, value in known.items() if name in ("server", "tools", "gates")}
    return RunSpec(**known | lists)


def to_score(
    name: str, benchmark: interfaces.Benchmark, asked: Iterable[interfaces.Question]
) -> tuple[list[interfaces.Question], dict[str, int]]:
    """The questions that can be scored, and reason -> how many are left out. Raises BenchmarkError for none."""
    from nl2sql.benchmarks import excluded_counts, scorable
    from nl2sql.benchmarks.load import check_databases

    asked = list(asked)
    kept, excluded = [question for question in asked if scorable(question)], excluded_counts(asked)
    if not kept:
        check_databases(benchmark)
        raise BenchmarkError(f"benchmark {name!r} has no question to score; left out: {excluded or 'none'}")
    return kept, excluded


def excluded_line(excluded: Mapping[str, int]) -> str:
    """How many questions are left out, by reason, as a line; "" for none."""
    return f"left out: {', '.join(f'{n} {reason}' for reason, n in excluded.items())}\n" if excluded else ""


def open_asked(db: str) -> interfaces.Database:
    """The database that ``--db`` names; ``vds:URL#LUID`` is a data source. Raises UsageError, DatabaseError."""
    if db.startswith("vds:"):
        from nl2sql.vizql.service import open_service_database

        return open_service_database(db)
    from nl2sql.databases.engines import open_database

    return open_database(db)


def open_corpus(path: Path | None, create: bool = False) -> AbstractContextManager[corpus.Corpus | None]:
    """The corpus at ``path``, as a block; None for none: likeness needs numpy, which is no required package."""
    if path is None:
        return nullcontext()
    from nl2sql.repair.corpus import Corpus

    return Corpus(path, create=create)


def open_executor(executor: str, address: str | None) -> AbstractContextManager[job.Executor]:
    """The executor of ``--executor`` and ``--address``, as a block. Raises UsageError where there is none."""
    if executor == "local":
        if address is not None:
            raise UsageError(f"--address {address} goes with --executor ray")
        from nl2sql.runs.job import LOCAL

        return nullcontext(LOCAL)
    from nl2sql.runs.distributed import Ray

    return Ray(address)


def trust_of(trust: bool, engine_url: str = "") -> plan.Trust:
    """What ``--trust`` and ``--engine-url`` say of a run folder."""
    from nl2sql.runs.plan import RunSpec, Trust, absolute

    return Trust(trust, {"engine_url": absolute(RunSpec(engine_url=engine_url)).engine_url} if engine_url else {})


def check_added(controller: str, added: Sequence[str]) -> None:
    """Raises UsageError where tools or gates are to be added to a packaged controller that is no loop."""
    from nl2sql.agents.controllers import LOOPS, PACKAGED

    if added and controller in PACKAGED and controller not in LOOPS:
        raise UsageError(f"{added[0]} is for a loop, not for {controller!r}; add --controller react_plus")


# ------------------------------------------------------------------- groups of options and commands

EVERY = "nl2sql.every_option"  # in a context's meta: the help shows all
WrongUse: Any = typer.BadParameter.__base__  # every mistake in a command's words; typer has no public name for it
CODES = {"red": 31, "green": 32, "yellow": 33, "bold": 1}
WIDTH = 110  # of a help that is written into a pipe or a file


class Group(TyperGroup):
    """A group whose help names each command with its whole first sentence, and whose bare call is a call for help."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command; a mistake in its words is one line that names the help, and exit code 2."""
        standalone_mode = options.get("standalone_mode", True)
        try:
            code = super().main(*args, **options | {"standalone_mode": False})
        except WrongUse as error:
            if not standalone_mode:
                raise
            said = error.format_message().rstrip(".").replace("Value error, ", "")
            command = error.ctx.command_path if error.ctx else self.name
            start = coloured("error:", "red", sys.stderr)
            print(f"{start} {said}{' See' if said.endswith('?') else '; see'}: {command} --help", file=sys.stderr)
            sys.exit(2)
        except typer.Abort:
            if not standalone_mode:
                raise
            print("aborted", file=sys.stderr)
            sys.exit(1)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The command's words; without any, the help is printed. A group below the top exits with 2 then."""
        if not args and not ctx.resilient_parsing:
            below = ctx.parent is not None  # a script that typed no command has not got what it wanted
            typer.echo(ctx.get_help(), err=below)
            ctx.exit(2 if below else 0)
        return list(super().parse_args(ctx, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word. Raises a mistake of use that names the group which holds it."""
        groups = [name for name, group in self.commands.items() if args[0] in getattr(group, "commands", ())]
        if groups and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r} here. It is: {ctx.command_path} {groups[0]} {args[0]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without a cut."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _sentence(command.help or "")) for name, command in commands if command and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        typer.echo(full_help(ctx))
        raise typer.Exit


HelpAllOption = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every option, and exit.")
]


def full_help(ctx: Any) -> str:
    """The help of a command with all its options, as ``--help-all`` prints it."""
    ctx.meta[EVERY] = True
    return str(ctx.get_help())


def settings() -> dict[str, Any]:
    """Settings of a help's width: that of the terminal up to ``WIDTH``; in a pipe ``WIDTH``."""
    width = {} if sys.stdout.isatty() else {"terminal_width": WIDTH}
    return {"help_option_names": ["-h", "--help"], "max_content_width": WIDTH, **width}


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour of ``CODES``, where ``stream`` is a terminal that has it; else the text as it is.

    None in a pipe, on a dumb terminal, or with NO_COLOR (https://no-color.org).
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain or not colour else f"\x1b[{CODES[colour]}m{text}\x1b[0m"


def _sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    first, stop, _ = paragraph.partition(". ")
    return first + "." * bool(stop)
