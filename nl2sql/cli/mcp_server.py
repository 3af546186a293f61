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
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from nl2sql import __version__
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.record import json_tree
from nl2sql.benchmarks.verified import read_verified
from nl2sql.cli.mcp_wire import AnsweringServer
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
        *,
        controller: str = "best",
        corpus: Corpus | None = None,
        corpus_write: bool = False,
    ) -> None:
        self._database, self._stamp = database, _stamp(database)
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
                    self._database = fresh
                    self.__dict__.pop("source", None)
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
        self,
        question: str,
        session_id: str | None = None,
        owner: str = STDIO,
        cancel: threading.Event | None = None,
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

    @functools.cached_property
    def source(self) -> DataSource:
        """The data source over the database: ``vizql.source``, else inferred."""
        from nl2sql.vizql.infer import infer
        from nl2sql.vizql.source import read_source

        named = self.config.vizql.source
        return read_source(named) if named else infer(self.database)

    def get_datasource_metadata(self) -> dict[str, Any]:
        """The fields of the data source by caption, with role and type: what query_datasource can ask for."""
        from nl2sql.vizql.source import to_metadata

        return json_tree(to_metadata(self._source_now()[0]))

    def _source_now(self) -> tuple[DataSource, Database]:
        """The data source and the database, which is looked at first: a new schema makes a new source."""
        database = self.database
        return self.source, database

    def query_datasource(self, query: dict[str, Any], limit: int = 100) -> dict[str, Any]:
        """Validate and run a structured query (VizQL Data Service) over the data source. A query that is not valid
        comes back with is_valid false, its errors, and suggestions with the JSON to paste. The captions are in
        get_datasource_metadata. Example: {"fields": [{"fieldCaption": "Region"}, {"fieldCaption": "Sales",
        "function": "SUM"}]}"""
        from nl2sql.vizql.querying import run_query

        if not 1 <= limit <= MAX_ROWS:
            raise ToolError(f"limit={limit}; expected 1 to {MAX_ROWS}")
        settings = self.config.vizql
        reply = run_query(query, *self._source_now(), settings, timeout_s=QUERY_S, max_rows=limit)
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
        fix: tuple[str, str, str] | None = None
        if previous_error and previous_sql:
            kind = category or self._analyzer.analyze_error(previous_error, previous_sql).category
            fix = previous_error, previous_sql, kind
        with self.corpus.batch():  # both or, where the corpus refuses one, none
            self.corpus.store_query(id, sql, description, category, dialect=dialect, source=source)
            if fix:
                error, failed, kind = fix
                self.corpus.store_fix(error, failed, sql, description, category=kind, dialect=dialect, source=source)
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

    @server.tool(annotations=READS, description=DatabaseTools.list_tables.__doc__)
    async def list_tables(profile: str = DEFAULT) -> dict[str, Any]:
        return await _outside(of(profile).list_tables)

    @server.tool(annotations=READS, description=DatabaseTools.describe_table.__doc__)
    async def describe_table(table: str, profile: str = DEFAULT) -> dict[str, Any]:
        return await _outside(of(profile).describe_table, table)

    @server.tool(annotations=READS, description=DatabaseTools.read_query.__doc__)
    async def read_query(sql: str, max_rows: int = 100, profile: str = DEFAULT) -> dict[str, Any]:
        return await _outside(of(profile).read_query, sql, max_rows)

    @server.tool(annotations=READS, description=DatabaseTools.explain_analyze.__doc__)
    async def explain_analyze(sql: str, profile: str = DEFAULT) -> dict[str, Any]:
        return await _outside(of(profile).explain_analyze, sql)

    @server.tool(annotations=READS, description=DatabaseTools.get_datasource_metadata.__doc__)
    async def get_datasource_metadata(profile: str = DEFAULT) -> dict[str, Any]:
        return await _outside(of(profile).get_datasource_metadata)

    @server.tool(annotations=READS, description=DatabaseTools.query_datasource.__doc__)
    async def query_datasource(query: dict[str, Any], limit: int = 100, profile: str = DEFAULT) -> dict[str, Any]:
        return await _outside(of(profile).query_datasource, query, limit)

    @server.tool(annotations=REMEMBERS, description=DatabaseTools.ask.__doc__)
    async def ask(
        question: str, context: Context, session_id: str | None = None, profile: str = DEFAULT
    ) -> dict[str, Any]:
        cancel = threading.Event()
        return await _outside(of(profile).ask, question, session_id, owner_of(context), cancel, cancel=cancel)

    if any(tools.config.knowledge.verified for tools in profiles.values()):

        @server.tool(annotations=READS, description=DatabaseTools.verified_queries.__doc__)
        async def verified_queries(profile: str = DEFAULT) -> dict[str, Any]:
            return await _outside(of(profile).verified_queries)

    if any(tools.corpus_write for tools in profiles.values()):

        @server.tool(annotations=WRITES, description=DatabaseTools.log_successful_query.__doc__)
        async def log_successful_query(
            query_id: str,
            sql: str,
            description: str,
            category: str | None = None,
            previous_error: str | None = None,
            previous_sql: str | None = None,
            profile: str = DEFAULT,
        ) -> dict[str, Any]:
            arguments = (query_id, sql, description, category, previous_error, previous_sql)
            return await _outside(of(profile).log_successful_query, *arguments)

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


async def _outside(
    function: Callable[..., dict[str, Any]], *arguments: Any, cancel: threading.Event | None = None
) -> dict[str, Any]:
    """Run a tool in a thread, so that the server stays answerable; our errors become the tool's.

    An answer that the client no longer wants is not waited for. cancel: is set then.
    """
    try:
        return await anyio.to_thread.run_sync(lambda: function(*arguments), abandon_on_cancel=True)
    except Nl2SqlError as error:
        raise ToolError(str(error)) from None
    except anyio.get_cancelled_exc_class():
        if cancel is not None:
            cancel.set()
        raise
