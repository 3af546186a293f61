"""``nl2sql ask``: one question over one database."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nl2sql.errors import UsageError
from nl2sql.machine import masked

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="smollm2-135m (embedded), gemma3-270m, a hub id, a local folder, a .gguf file, scripted:FILE, or a "
        "server's model: http://HOST/v1#NAME, openai/NAME, anthropic/NAME, ollama/NAME, vllm/NAME, llamacpp/NAME. "
        "See: nl2sql models list",
    ),
]
ServerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        help="KEY=VALUE for a server's model; may be repeated: tokenizer, context_window, timeout_s, retries, "
        "price_in, price_out (per million tokens), thinking (tokens), body.FIELD (a further field of every request).",
    ),
]
CacheOption = Annotated[
    bool, typer.Option("--no-cache", help="Compute every model call; take none from the response cache, keep none.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, mps, or map: over all GPUs, memory and disk.")]
DtypeOption = Annotated[
    str | None,
    typer.Option(help="float32 (default on CPU: same text at any batch composition) or bfloat16 (the fast lane)."),
]
EngineUrlOption = Annotated[
    str,
    typer.Option(
        help="Ask the databases on another engine, without TS: mysql://USER@HOST/{db_id}, duckdb:FOLDER/{db_id}.duckdb."
    ),
]
AdapterOption = Annotated[
    str,
    typer.Option(help="LoRA adapter of a local model: auto (the packaged one), none, a name, or a PEFT folder."),
]
ConfigOption = Annotated[list[Path] | None, typer.Option("--config", help="YAML config file; may be repeated.")]
SetOption = Annotated[
    list[str] | None, typer.Option("-c", "--set", help="Config override, e.g. -c react.max_steps=4; may be repeated.")
]
ConstrainOption = Annotated[
    Literal["none", "action", "sql", "plain"] | None,
    typer.Option(
        help="Grammars for what the model writes: none (default), action (the loop's turns), sql (also SQL), plain "
        "(SQL in the one style that the adapter learns)."
    ),
]


def ask(
    question: Annotated[str | None, typer.Argument(help="The question; left out or '-': read from stdin.")] = None,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            help="A SQLite file, packaged:NAME (scale_models, ...), a CSV, Parquet, JSON or Excel file or a folder of "
            "them, duckdb:FILE, postgresql://USER@HOST/NAME, mysql://USER@HOST/NAME.",
        ),
    ] = None,
    model: ModelOption = "smollm2-135m",
    controller: Annotated[
        str, typer.Option(help="best, react, react_plus, reflect, candidates, single_shot, or FILE.py:function.")
    ] = "best",
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    adapter: AdapterOption = "auto",
    server: ServerOption = None,
    no_cache: CacheOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    constrain: ConstrainOption = None,
    min_confidence: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Give no answer that is held for less likely right (best, candidates)."),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print every step as it happens to stderr; with --json as JSON lines.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print SQL, rows, trace and usage as JSON.")] = False,
) -> None:
    """Answer one question: SQL, rows, and how they came about. Exit code 1 when no rows came of it.

    \b
    Examples:
      nl2sql ask "How many customers are on hold?" --db packaged:scale_models
      nl2sql ask "How many customers are there?" --db shop.sqlite
      nl2sql ask "How many people are older than 40?" --db people.csv
      echo "Which city has most customers?" | nl2sql ask --db packaged:scale_models --json
      nl2sql ask "How many customers are on hold?" --db packaged:scale_models --min-confidence 0.5
      nl2sql ask "..." --db shop.sqlite --controller react_plus -c react.max_steps=4 --trace
    """
    if db is None:
        raise UsageError("which database? give --db FILE.sqlite")
    text = _question(question)
    if not text:
        raise UsageError("the question is empty; example: nl2sql ask 'How many orders were shipped?' --db FILE.sqlite")

    from nl2sql.agents.controllers import answer, get_controller
    from nl2sql.agents.record import json_text
    from nl2sql.cli.answer_text import answer_text
    from nl2sql.cli.status import StatusLine
    from nl2sql.config import load_config
    from nl2sql.databases.engines import open_database
    from nl2sql.models import load_model
    from nl2sql.runs.plan import check_config

    named = get_controller(controller)
    overrides = [*(set_ or ()), *([f"constrain={constrain}"] if constrain else [])]
    if min_confidence is not None:
        overrides.append(f"candidates.min_confidence={min_confidence}")
        if named.name not in ("best", "candidates"):
            raise UsageError(f"--min-confidence needs --controller best or candidates, not {named.name}")
    settings = load_config(config or (), overrides, base=named.preset)
    with StatusLine() as status, closing(open_database(db)) as database:
        status.say(f"loading {model} ...")
        where: dict[str, Any] = {"device": device, "dtype": dtype, "adapter": adapter}
        loaded = load_model(model, **where, batch_size=8, server=server or (), cache=not no_cache)
        check_config(loaded, settings)
        status.say("reading the schema ...")
        sink = (_print_json if as_json else _print_step) if trace else status.event
        episode = answer(text, database, loaded, named, settings, sink=sink)
        loaded.close()
        shown = json_text(episode.to_dict(), indent=2) if as_json else answer_text(episode, database)
    print(masked(shown))
    if episode.error:
        raise typer.Exit(1)


def _question(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise UsageError("no question; example: nl2sql ask 'How many orders were shipped?' --db FILE.sqlite")
    if argument is None or argument == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    return argument.encode("utf-8", "replace").decode("utf-8").strip()


def _print_step(event: Mapping[str, Any]) -> None:
    from nl2sql.agents.transcript import event_text

    if event.get("status") != "forced":  # the override itself was shown
        print(masked(event_text(event)), file=sys.stderr)


def _print_json(event: Mapping[str, Any]) -> None:
    from nl2sql.agents.record import json_text

    print(masked(json_text(event)), file=sys.stderr)
