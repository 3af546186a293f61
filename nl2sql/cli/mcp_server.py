"""Databases as MCP tools: look at the schema, read, dry-run with repair guidance, ask, query by structured queries.

All tools but ``log_successful_query`` only read: their SQL runs in the sandbox of the database's engine, and they are
annotated as reading. ``ask`` remembers the turns of a session in memory, each client's apart. ``log_successful_query``
exists only where a corpus may be written; its SQL is dry-run first. What a caller got wrong comes back as the tool's
error, never as a crash of the server. A server has one database or several, each a profile by name; a tool works on
``profile``, which is the first database where it is left out.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import anyio.to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, ToolAnnotations
from pydantic import ValidationError

from nl2sql import __version__
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.record import json_tree
from nl2sql.benchmarks.verified import read_verified
from nl2sql.databases.data_files import as_sqlite
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import Cancelled, DatabaseError, Nl2SqlError
from nl2sql.repair.analyzer import ErrorAnalyzer, engine_version, explain_analyze
from nl2sql.sessions.conversation import Conversation, reply_of
from nl2sql.sessions.stores import MemoryStore

if TYPE_CHECKING:
    from nl2sql.config import Config
    from nl2sql.interfaces import Database, Model
    from nl2sql.repair.corpus import Corpus
    from nl2sql.vizql.source import DataSource

READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
REMEMBERS = ToolAnnotations(read_only_hint=True, idempotent_hint=False, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
MAX_ROWS = 1000
QUERY_S = 30.0
WAIT_S = 0.2  # how often a question that waits for the model looks whether it is still wanted
STDIO, HTTP = "stdio", "http"  # owners of sessions: the one client of this process, and clients without a session
DEFAULT = "default"  # the specification's name of the profile that is meant where none is given
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # texts, closed or not, and brackets
_ID = re.compile(r'\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")(?![\d.eE])')


class SharedModel:
    """The server's one model: opened at the first question, so that a server without questions loads no weights."""

    def __init__(self, open_model: Callable[[], Model]) -> None:
        self._open, self._model, self._lock = open_model, None, threading.Lock()

    @contextmanager
    def at_hand(self, cancel: threading.Event | None = None) -> Iterator[Model]:
        """The model, for one question at a time. Raises what opening it raises, and Cancelled while it waits."""
        while not self._lock.acquire(timeout=WAIT_S):
            if cancel is not None and cancel.is_set():
                raise Cancelled("cancelled while waiting for the model")
        try:
            if self._model is None:
                self._model = self._open()  # type: ignore[assignment]
            yield self._model  # type: ignore[misc]
        finally:
            self._lock.release()

    def close(self) -> None:
        if self._model is not None:
            self._model.close()


class DatabaseTools:
    """The tools' plain functions over one database; ``build_server`` puts them behind the protocol.

    corpus: for similar fixes; written only where ``corpus_write``.
    """

    def __init__(
        self,
        database: Database,
        model: SharedModel,
        config: Config,
        controller: str = "best",
        corpus: Corpus | None = None,
        corpus_write: bool = False,
    ) -> None:
        self._database, self._stamp = database, _stamp(database)
        self._source: DataSource | None = None
        self.config, self.corpus, self.corpus_write = config, corpus, corpus_write
        self._model = model
        self._controller = get_controller(controller)
        self._sessions = MemoryStore()  # of this database alone: a query of another one means nothing here
        self._made: set[str] = set()  # session ids that were given to clients without a session of their own
        version, repair = engine_version(database), config.repair
        self._analyzer = ErrorAnalyzer(
            database.dialect, corpus, version=version, threshold=repair.threshold, search_s=repair.search_s
        )

    @property
    def database(self) -> Database:
        """The database; a SQLite file with the schema that it has now, and data files with what they hold now, since a
        server outlives many changes."""
        kept, now = self._database, _stamp(self._database)
        if isinstance(kept, SqliteDatabase) and now not in (None, self._stamp):
            self._stamp = now
            with suppress(Nl2SqlError):  # broken or gone: each tool says so itself
                path = as_sqlite(kept.origin) if kept.origin else kept.path
                fresh = SqliteDatabase(path, name=kept.name, origin=kept.origin)
                if path != kept.path or fresh.schema() != kept.schema():
                    self._database, self._source = fresh, None
        return self._database

    def list_tables(self) -> dict[str, Any]:
        """All tables and views of the database, with their columns' names."""
        tables = [
            {"name": t.name, "is_view": t.is_view, "columns": [c.name for c in t.columns]}
            for t in self.database.schema().tables
        ]
        return {"dialect": self.database.dialect, "tables": tables}

    def describe_table(self, table: str) -> dict[str, Any]:
        """Columns with types and keys, foreign keys, and three example rows of one table."""
        database, more = self.database, {}
        try:
            rows = database.sample(table, 3)  # raises for an unknown table, with the known ones
        except DatabaseError as error:
            rows, more = database.sample(table, 0), {"rows_error": str(error)}  # sound, but a view may take its time
        described = database.schema().table(table)
        assert described is not None, table
        keys = [
            {"columns": list(k.columns), "table": k.ref_table, "ref_columns": list(k.ref_columns)}
            for k in described.foreign_keys
        ]
        columns = [
            {"name": c.name, "type": c.type, "primary_key": c.primary_key, "not_null": c.not_null}
            for c in described.columns
        ]
        return {"name": described.name, "columns": columns, "foreign_keys": keys, "rows": json_tree(rows)} | more

    def read_query(self, sql: str, max_rows: int = 100) -> dict[str, Any]:
        """Run one SELECT, read-only and bounded, and return its rows. For help with an error use explain_analyze."""
        if not 1 <= max_rows <= MAX_ROWS:
            raise ToolError(f"max_rows={max_rows}; expected 1 to {MAX_ROWS}")
        result = self.database.run(sql, timeout_s=QUERY_S, max_rows=max_rows)
        if not result.success:
            raise ToolError(f"{result.error_kind}: {result.error}")
        return {"columns": list(result.columns), "rows": json_tree(result.rows), "truncated": result.truncated}

    def explain_analyze(self, sql: str) -> dict[str, Any]:
        """Check one SELECT without running it: its plan, or its error with the violated constraint, an alternative
        and similar repairs."""
        return explain_analyze(sql, self.database, analyzer=self._analyzer).model_dump(mode="json")

    def ask(
        self, question: str, session_id: str | None = None, owner: str = STDIO, cancel: threading.Event | None = None
    ) -> dict[str, Any]:
        """Answer a question in plain words with the server's own language model: SQL and rows. To ask a follow-up
        question, pass the session_id that came back with the answer before."""
        if owner == HTTP and session_id is not None and session_id not in self._made:
            raise ToolError("no such session; leave session_id out, and pass the one that comes back")
        with self._model.at_hand(cancel) as model:
            names: dict[str, Any] = {"session_id": session_id, "owner": owner}
            options: dict[str, Any] = {"config": self.config, "corpus": self.corpus}
            conversation = Conversation(self.database, model, self._controller, self._sessions, **names, **options)
            episode = conversation.ask(question.strip(), cancel=cancel)
        if not episode.sql:
            raise ToolError(episode.error or "the model wrote no SQL")
        if owner == HTTP:
            self._made.add(conversation.session_id)
        return reply_of(episode)

    def verified_queries(self) -> dict[str, Any]:
        """Questions that somebody answered in SQL and vouches for; ask reuses one where the question is the same.
        Those under stale no longer run on the schema, each with the reason."""
        queries = read_verified(self.config.knowledge.verified)
        usable = [query.to_dict() for query in queries.usable(self.database)]
        return {"verified_queries": usable, "stale": queries.stale(self.database)}

    @property
    def source(self) -> DataSource:
        """The data source over the database as it is now: ``vizql.source``, else inferred."""
        from nl2sql.vizql.infer import infer
        from nl2sql.vizql.source import read_source

        database, named = self.database, self.config.vizql.source  # a new schema makes a new source
        if self._source is None:
            self._source = read_source(named) if named else infer(database)
        return self._source

    def get_datasource_metadata(self) -> dict[str, Any]:
        """The fields of the data source by caption, with role and type: what query_datasource can ask for."""
        from nl2sql.vizql.source import to_metadata

        return json_tree(to_metadata(self.source))

    def query_datasource(self, query: dict[str, Any], limit: int = 100) -> dict[str, Any]:
        """Validate and run a structured query (VizQL Data Service) over the data source. A query that is not valid
        comes back with is_valid false, its errors, and suggestions with the JSON to paste. The captions are in
        get_datasource_metadata. Example: {"fields": [{"fieldCaption": "Region"}, {"fieldCaption": "Sales",
        "function": "SUM"}]}"""
        from nl2sql.vizql.querying import run_query

        if not 1 <= limit <= MAX_ROWS:
            raise ToolError(f"limit={limit}; expected 1 to {MAX_ROWS}")
        described, settings = self.source, self.config.vizql
        reply = run_query(query, described, self.database, settings, timeout_s=QUERY_S, max_rows=limit)
        if reply.validation.is_valid and reply.error:
            raise ToolError(reply.error)
        return json_tree(reply.to_dict())

    def log_successful_query(
        self,
        query_id: str,
        sql: str,
        description: str,
        category: str | None = None,
        previous_error: str | None = None,
        previous_sql: str | None = None,
    ) -> dict[str, Any]:
        """Remember a query that worked, and with previous_error and previous_sql what it repaired.

        query_id: a UUID. The query must be valid on this database.
        """
        if self.corpus is None or not self.corpus_write:
            raise ToolError("the corpus of this server is not written; start it with --corpus-write")
        try:
            id = UUID(query_id)
        except ValueError:
            raise ToolError(f"query_id={query_id!r}; expected a UUID") from None
        checked = explain_analyze(sql, self.database)
        if not checked.valid:
            raise ToolError(f"not stored, the query is not valid here: {checked.error}")
        dialect, source = self.database.dialect, f"mcp:{self.database.name}"
        repaired = (previous_error, previous_sql) if previous_error and previous_sql else None
        kind = category or (repaired and self._analyzer.analyze_error(*repaired).category)
        with self.corpus.batch():  # both or, where the corpus refuses one, none
            self.corpus.store_query(id, sql, description, category, dialect=dialect, source=source)
            if repaired and kind:
                self.corpus.store_fix(*repaired, sql, description, category=kind, dialect=dialect, source=source)
        return {"stored": True}

    def close(self) -> None:
        self._analyzer.close()


def _stamp(database: Database) -> list[tuple[int, int, int]] | None:
    """What changes whenever a SQLite file or its data files do; None where there is no such file."""
    path = getattr(database, "origin", None) or getattr(database, "path", None)
    if not isinstance(path, Path) or not path.exists():
        return None
    parts = sorted(path.iterdir()) if path.is_dir() else [path, path.with_name(f"{path.name}-wal")]
    files = [file.stat() for file in parts if file.exists()]
    return [(file.st_mtime_ns, file.st_size, file.st_ino) for file in files]


def build_server(profiles: Mapping[str, DatabaseTools]) -> AnsweringServer:
    """The tools of each profile behind the protocol. ``log_successful_query`` is there only where one may write."""
    first = next(iter(profiles))
    listed = ", ".join(f"{name} ({tools.database.dialect})" for name, tools in profiles.items())
    server = AnsweringServer(
        "nl2sql",
        version=__version__,
        instructions=f"Reads the databases {listed}; each is a profile, and without a profile tools read {first}. Look "
        "at list_tables and describe_table, check a query with explain_analyze, then run it with read_query.",
        log_level="ERROR",
    )

    def of(profile: str) -> DatabaseTools:
        name = first if profile == DEFAULT and DEFAULT not in profiles else profile
        if name not in profiles:
            raise ToolError(f"no profile {profile!r}; there are {', '.join(profiles)}")
        return profiles[name]

    def offer(name: str, annotations: ToolAnnotations) -> None:
        """Offer a method of DatabaseTools under its name, with the argument ``profile`` behind its own."""
        method = getattr(DatabaseTools, name)
        own = inspect.signature(method, eval_str=True)
        profile = inspect.Parameter("profile", inspect.Parameter.KEYWORD_ONLY, default=DEFAULT, annotation=str)

        async def tool(profile: str = DEFAULT, **given: Any) -> dict[str, Any]:
            return await _outside(functools.partial(getattr(of(profile), name), **given))

        tool.__name__ = name  # of the schema of its arguments
        tool.__signature__ = own.replace(parameters=[*list(own.parameters.values())[1:], profile])  # type: ignore[attr-defined]
        server.add_tool(tool, description=method.__doc__, annotations=annotations)

    for name in ("list_tables", "describe_table", "read_query", "explain_analyze"):
        offer(name, READS)
    for name in ("get_datasource_metadata", "query_datasource"):
        offer(name, READS)

    @server.tool(annotations=REMEMBERS, description=DatabaseTools.ask.__doc__)
    async def ask(
        question: str, context: Context, session_id: str | None = None, profile: str = DEFAULT
    ) -> dict[str, Any]:
        cancel = threading.Event()
        arguments = question, session_id, owner_of(context), cancel
        return await _outside(functools.partial(of(profile).ask, *arguments), cancel)

    if any(tools.config.knowledge.verified for tools in profiles.values()):
        offer("verified_queries", READS)
    if any(tools.corpus_write for tools in profiles.values()):
        offer("log_successful_query", WRITES)
    return server


def owner_of(context: Context) -> str:
    """The owner of a client's sessions: its HTTP session, this process over stdio, ``HTTP`` where there is neither.

    A client without an HTTP session (the protocol since 2026-07) is known by nothing but a session id that it was
    given; an id of its own choice is refused.
    """
    if context.headers is None:
        return STDIO
    name = context.headers.get("mcp-session-id")
    return f"{HTTP}-{hashlib.sha256(name.encode()).hexdigest()}" if name else HTTP


async def _outside(function: Callable[[], dict[str, Any]], cancel: threading.Event | None = None) -> dict[str, Any]:
    """Run a tool in a thread, so that the server stays answerable; our errors become the tool's.

    An answer that the client no longer wants is not waited for. cancel: is set then.
    """
    try:
        return await anyio.to_thread.run_sync(function, abandon_on_cancel=True)
    except Nl2SqlError as error:
        raise ToolError(str(error)) from None
    except anyio.get_cancelled_exc_class():
        if cancel is not None:
            cancel.set()
        raise


class AnsweringServer(MCPServer):
    """The library's server, which over standard input also answers what the library cannot read as a message.

    It is refused under the id that stands in it, or under null. Over HTTP the library refuses it itself, under null.
    Not covered: a method under an id that is neither number nor text, which the library takes for a notification.
    """

    async def run_stdio_async(self) -> None:
        """Serve standard input and output."""
        sent, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        async with stdio_server() as (read, write), anyio.create_task_group() as tasks:

            async def pass_on() -> None:
                async with sent:
                    async for item in read:
                        refused = _refusal(item) if isinstance(item, ValidationError) else None
                        await (write.send(SessionMessage(refused)) if refused else sent.send(item))

            tasks.start_soon(pass_on)
            server = self._lowlevel_server
            await server.run(received, write, server.create_initialization_options())


def _refusal(error: ValidationError) -> JSONRPCError | None:
    """What answers a line that is no message; None for a blank one. ``error``: what the library says of the line."""
    details = error.errors(include_url=False)
    broken = next((detail for detail in details if detail["type"] == "json_invalid"), None)
    if broken:
        line, code = broken["input"], PARSE_ERROR
        said = f"the request cannot be read as JSON: {broken['msg'].removeprefix('Invalid JSON: ')}"
    else:  # a field of the message itself is missing: then its whole is told
        lacking = (detail["input"] for detail in details if detail["type"] == "missing" and len(detail["loc"]) == 2)
        line, code = json.dumps(next(lacking, None)), INVALID_REQUEST
        said = 'the request is JSON, but no message: expected an object with "jsonrpc": "2.0", a method and an id'
    answer = JSONRPCError(jsonrpc="2.0", id=_id_in(line), error=ErrorData(code=code, message=said))
    return answer if line.strip() else None


def _id_in(text: str) -> int | str | None:
    """The value of the outermost ``id``, also where what is behind it is broken.

    >>> _id_in('{"params": {"id": 2}, "id": "x", "q": [[['), _id_in('{"q": "\\\\"id\\\\": 3"'), _id_in('{"id": 1.5}')
    ('x', None, None)
    """
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "{[") - (token[0] in "}]")
        value = _ID.match(text, token.end()) if depth == 1 and token[0] == '"id"' else None
        if value:
            return json.loads(value[1])
    return None
