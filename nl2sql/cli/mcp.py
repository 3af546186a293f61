"""``nl2sql mcp``: databases as an MCP server."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nl2sql.cli import options as opt
from nl2sql.errors import Cancelled, UsageError
from nl2sql.interfaces import DEFAULT_MODEL
from nl2sql.machine import install_command, server_parts

NAMED = re.compile(r"([A-Za-z][\w-]*)=(.+)", re.DOTALL)  # PROFILE=DATABASE


def mcp(
    db: Annotated[
        list[str],
        typer.Option(
            "--db",
            help="A database as for nl2sql ask, or PROFILE=DATABASE; may be repeated, the first is the default.",
        ),
    ],
    model: opt.Model = DEFAULT_MODEL,
    controller: Annotated[str, typer.Option(help="The controller behind the tool ask.")] = "best",
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT: streamable HTTP at /mcp; left out: standard input and output.")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="A corpus: similar fixes in explain_analyze.")] = None,
    corpus_write: Annotated[
        bool, typer.Option("--corpus-write", help="Offer log_successful_query, which writes to --corpus.")
    ] = False,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    server: opt.Server = None,
    config: opt.Config = None,
    set_: opt.Set = None,
    knowledge: opt.Knowledge = None,
    verified: opt.Verified = None,
) -> None:
    """Serve databases to MCP clients: list_tables, describe_table, read_query, explain_analyze, ask,
    get_datasource_metadata, query_datasource. Read-only.

    \b
    Examples:
      nl2sql mcp --db packaged:scale_models
      nl2sql mcp --db shop.sqlite --corpus fixes.db --corpus-write
      nl2sql mcp --db shop.sqlite --knowledge shop.md --verified shop_queries.yaml
      nl2sql mcp --db shop=shop.sqlite --db logs=duckdb:logs.duckdb
      nl2sql mcp --db duckdb:shop.duckdb --http 127.0.0.1:8765
    """
    if corpus_write and corpus is None:
        raise UsageError("--corpus-write needs the corpus to write: --corpus FILE")
    address = _address(http)
    try:
        from nl2sql.cli.mcp_server import DatabaseTools, SharedModel, build_server
    except ImportError as error:
        raise UsageError(f"{error}; install it: {install_command('mcp')}") from None
    from nl2sql.agents.controllers import get_controller
    from nl2sql.agents.resources import files_known
    from nl2sql.config import load_config
    from nl2sql.databases.engines import open_database
    from nl2sql.models import load_model

    overrides = opt.overrides(set_, {"knowledge.file": knowledge, "knowledge.verified": verified})
    settings = load_config(config or (), overrides, base=get_controller(controller).preset)
    if len(db) > 1 and (settings.knowledge.file or settings.knowledge.verified):
        raise UsageError("--knowledge and --verified are about one database; serve it alone, with one --db")
    files_known(settings.knowledge)
    if settings.repair.learn and not corpus_write:
        raise UsageError("repair.learn=true writes a corpus: add --corpus FILE --corpus-write")

    with ExitStack() as stack:
        opened = stack.enter_context(opt.open_corpus(corpus, create=corpus_write))
        how: dict[str, Any] = {"device": device, "dtype": dtype, "batch_size": 8, "server": server or ()}
        shared = SharedModel(partial(load_model, model, **how))
        stack.callback(shared.close)
        profiles: dict[str, DatabaseTools] = {}
        for name, address_of in _profiles(db).items():
            database = open_database(address_of)
            stack.callback(database.close)
            profiles[name] = DatabaseTools(database, shared, settings, controller, opened, corpus_write)
            stack.callback(profiles[name].close)
        built = build_server(profiles)
        if address is None:
            signal.signal(signal.SIGINT, lambda *_: _leave(stack))
            built.run()
        else:
            built.run("streamable-http", host=address[0], port=address[1])


def _profiles(addresses: list[str]) -> dict[str, str]:
    """Profile -> database. A database without a name of its own has that of its file, PostgreSQL's of its address."""
    profiles: dict[str, str] = {}
    for text in addresses:
        if named := NAMED.fullmatch(text) if not Path(text).exists() else None:
            name, address = named.groups()
        elif "://" in text:  # without a user's name, password and options
            name, address = Path(server_parts(text, "a database").path).stem, text
        else:
            name, address = Path(text.rpartition(":")[2]).stem or text, text
        if name in profiles:
            raise UsageError(f"a profile {name!r} is there already; name this one, as --db {name}2=DATABASE")
        profiles[name] = address
    return profiles


def _address(http: str | None) -> tuple[str, int] | None:
    """Host and port of ``--http``. Raises UsageError for another form, and where nobody can listen there."""
    if http is None:
        return None
    host, _, port = http.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # an address of IPv6
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--http {http!r}; expected HOST:PORT, e.g. 127.0.0.1:8765")
    try:
        for family, kind, _, _, place in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
    except OSError as error:
        raise UsageError(
            f"--http {http}: nobody can listen there ({error.strerror}); give another host or port, e.g. 127.0.0.1:8766"
        ) from None
    return host, int(port)


def _leave(stack: ExitStack) -> None:
    """Close what ``stack`` holds and end the process, at Ctrl-C: a thread that reads standard input, which is the
    protocol's, ends with its next line only, and an orderly end would wait for it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print("interrupted", file=sys.stderr, flush=True)
    stack.close()
    os._exit(Cancelled.exit_code)
