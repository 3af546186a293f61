"""``nl2sql ask``: one question over one database."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated, Any

import typer

from nl2sql.cli import options as opt
from nl2sql.cli.chat import chat
from nl2sql.cli.options import coloured
from nl2sql.errors import UsageError
from nl2sql.interfaces import DEFAULT_MODEL
from nl2sql.machine import masked

STATES = {"forced": "yellow", "reject": "red", "blocked": "red", "accept": "green"}  # of a step, with --trace


def ask(
    question: Annotated[str | None, typer.Argument(help="The question; left out or '-': read from stdin.")] = None,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            help="A SQLite file, packaged:NAME (scale_models, ...), a CSV, Parquet, JSON or Excel file or a folder of "
            "them, duckdb:FILE, postgresql://USER@HOST/NAME, mysql://USER@HOST/NAME, vds:URL#LUID (a data source).",
        ),
    ] = None,
    model: opt.Model = DEFAULT_MODEL,
    controller: opt.Controller = "best",
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    adapter: opt.Adapter = "auto",
    server: opt.Server = None,
    no_cache: opt.Cache = False,
    config: opt.Config = None,
    set_: opt.Set = None,
    constrain: opt.Constrain = None,
    tool: opt.Tool = None,
    gate: opt.Gate = None,
    knowledge: opt.Knowledge = None,
    verified: opt.Verified = None,
    min_confidence: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Give no answer that is held for less likely right (best, candidates)."),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print every step as it happens to stderr; with --json as JSON lines.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Answer one question: SQL, rows, and how they came about. Exit code 1 when no rows came of it.

    On a terminal without a question it keeps the model loaded and asks for one after the other, as nl2sql chat.

    \b
    Examples:
      nl2sql ask "How many customers are on hold?" --db packaged:scale_models
      nl2sql ask "How many customers are there?" --db shop.sqlite
      nl2sql ask "How many people are older than 40?" --db people.csv
      echo "How many customers are on hold?" | nl2sql ask --db packaged:scale_models --json
      nl2sql ask "How many customers are on hold?" --db packaged:scale_models --min-confidence 0.5
      nl2sql ask "..." --db shop.sqlite --knowledge shop.md --verified shop_queries.yaml
      nl2sql ask "..." --db shop.sqlite --controller react_plus -c react.max_steps=4 --trace
    """
    if db is None:
        raise UsageError("which database? give --db FILE.sqlite")
    if question is None and sys.stdin.isatty() and not (trace or tool or gate or min_confidence is not None):
        where_from: dict[str, Any] = {"device": device, "dtype": dtype, "adapter": adapter, "server": server}
        settings_of: dict[str, Any] = {"config": config, "set_": set_, "constrain": constrain, "as_json": as_json}
        settings_of |= {"knowledge": knowledge, "verified": verified}
        chat(db, model=model, controller=controller, no_cache=no_cache, **where_from, **settings_of)
        return
    text = _question(question)
    if not text:
        raise UsageError("the question is empty; example: nl2sql ask 'How many customers are there?' --db FILE.sqlite")

    from nl2sql.agents.controllers import answer, answer_verified, get_controller
    from nl2sql.agents.record import json_text
    from nl2sql.cli.answer_text import StatusLine, answer_text, event_text
    from nl2sql.config import load_config
    from nl2sql.config.plugins import named_functions
    from nl2sql.models import load_model
    from nl2sql.runs.plan import check_config

    opt.check_added(controller, [*(tool or ()), *(gate or ())])
    named = get_controller(controller)
    added: dict[str, Any] = {"tools": named_functions("tools", tool or ())}
    added["gates"] = named_functions("gates", gate or ())
    if min_confidence is not None and named.name not in ("best", "candidates"):
        raise UsageError(f"--min-confidence needs --controller best or candidates, not {named.name}")
    own = {"constrain": constrain, "knowledge.file": knowledge, "knowledge.verified": verified}
    overrides = opt.overrides(set_, {**own, "candidates.min_confidence": min_confidence})
    settings = load_config(config or (), overrides, base=named.preset)
    if min_confidence and settings.candidates.choose != "logprob":
        raise UsageError("--min-confidence needs a choice by likelihoods; add -c candidates.choose=logprob")
    with StatusLine() as status, closing(opt.open_asked(db)) as database:

        def print_event(event: Mapping[str, Any]) -> None:
            status.say("")
            if as_json:
                print(masked(json_text(event)), file=sys.stderr)
            elif event.get("status") != "forced":  # the override itself was shown
                kind = "forced" if "forced_action" in event else str(event.get("status"))
                print(coloured(masked(event_text(event)), STATES.get(kind, ""), sys.stderr), file=sys.stderr)

        sink = print_event if trace else status.event
        status.say("reading the schema ...")
        episode = answer_verified(text, database, named, settings, sink=sink)
        if episode is None:
            status.say(f"loading {model} ...")
            where: dict[str, Any] = {"device": device, "dtype": dtype, "adapter": adapter}
            with closing(load_model(model, **where, batch_size=8, server=server or (), cache=not no_cache)) as loaded:
                check_config(loaded, settings)
                status.say("asking ...")
                episode = answer(text, database, loaded, named, settings, **added, sink=sink)
        shown = json_text(episode.to_dict(), indent=2) if as_json else answer_text(episode, database)
    print(masked(shown))
    if episode.error:
        raise typer.Exit(1)


def _question(argument: str | None) -> str:
    if argument is None and sys.stdin.isatty():
        raise UsageError("no question; example: nl2sql ask 'How many customers are there?' --db FILE.sqlite")
    if argument is None or argument == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    return argument.encode("utf-8", "replace").decode("utf-8").strip()
