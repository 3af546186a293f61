"""``nl2sql mcp``: databases as an MCP server."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nl2sql.cli.options import (
    ConfigOption,
    DeviceOption,
    DtypeOption,
    KnowledgeOption,
    ModelOption,
    ServerOption,
    SetOption,
    VerifiedOption,
    knowledge_settings,
)
from nl2sql.errors import Cancelled, UsageError
from nl2sql.interfaces import DEFAULT_MODEL
from nl2sql.machine import install_command, server_parts

if TYPE_CHECKING:
    from nl2sql.interfaces import Model


NAMED = re.compile(r"([A-Za-z][\w-]*)=(.+)", re.DOTALL)  # PROFILE=DATABASE


def mcp(
    db: Annotated[
        list[str],
        typer.Option(
            "--db",
            help="A database as for nl2sql ask, or PROFILE=DATABASE; may be repeated, the first is the default.",
        ),
    ],
    model: ModelOption = DEFAULT_MODEL,
    controller: Annotated[str, typer.Option(help="The controller behind the tool ask.")] = "best",
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT: streamable HTTP at /mcp; left out: standard input and output.")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="A corpus: similar fixes in explain_analyze.")] = None,
    corpus_write: Annotated[
        bool, typer.Option("--corpus-write", help="Offer log_successful_query, which writes to --corpus.")
    ] = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    server: ServerOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    knowledge: KnowledgeOption = None,
    verified: VerifiedOption = None,
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

    overrides = [*(set_ or ()), *knowledge_settings(knowledge, verified)]
    settings = load_config(config or (), overrides, base=get_controller(controller).preset)
    if len(db) > 1 and (settings.knowledge.file or settings.knowledge.verified):
        raise UsageError("--knowledge and --verified are about one database; serve it alone, with one --db")
    files_known(settings.knowledge)
    if settings.repair.learn and not corpus_write:
        raise UsageError("repair.learn=true writes a corpus: add --corpus FILE --corpus-write")

    def open_model() -> Model:
        from nl2sql.models import load_model

        return load_model(model, device=device, dtype=dtype, batch_size=8, server=server or ())

    with ExitStack() as stack:
        opened = None
        if corpus is not None:  # likeness needs numpy, which is no required package
            from nl2sql.repair.corpus import Corpus

            opened = stack.enter_context(Corpus(corpus, create=corpus_write))
        shared = SharedModel(open_model)
        stack.callback(shared.close)
        profiles: dict[str, DatabaseTools] = {}
        for name, address_of in _profiles(db).items():
            database = open_database(address_of)
            stack.callback(database.close)
            options: dict[str, Any] = {"controller": controller, "corpus": opened, "corpus_write": corpus_write}
            profiles[name] = DatabaseTools(database, shared, settings, **options)
            stack.callback(profiles[name].close)
        built = build_server(profiles)
        if address is None:
            with _left_by_ctrl_c(stack):
                built.run()
        else:
            built.run("streamable-http", host=address[0], port=address[1])


def _profiles(addresses: list[str]) -> dict[str, str]:
    """Profile -> database. A database without a name of its own has that of its file, PostgreSQL's of its address."""
    profiles: dict[str, str] = {}
    for text in addresses:
        named = NAMED.fullmatch(text) if not Path(text).exists() else None
        name, address = (named[1], named[2]) if named else (_name(text), text)
        if name in profiles:
            raise UsageError(f"a profile {name!r} is there already; name this one, as --db {name}2=DATABASE")
        profiles[name] = address
    return profiles


def _name(address: str) -> str:
    """What a database is called by its address, without a user's name, password and options."""
    if "://" in address:
        return Path(server_parts(address, "a database").path).stem
    return Path(address.rpartition(":")[2]).stem or address


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


@contextmanager
def _left_by_ctrl_c(stack: ExitStack) -> Iterator[None]:
    """In the block Ctrl-C closes what ``stack`` holds and ends the process: a thread that reads standard input, which
    is the protocol's, ends with its next line only, and an orderly end would wait for it."""

    def leave(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("interrupted", file=sys.stderr, flush=True)
        stack.close()
        os._exit(Cancelled.exit_code)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
