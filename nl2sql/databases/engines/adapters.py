"""One class per engine, used inside the child process only: open, explain, run, describe.

What holds the statement back is the engine itself (read-only mode, external access off, time and memory limits), never
a list of words; ``one_query`` merely refuses early what is none. ``Refused`` carries the error kind.

>>> one_query("SELECT 1; ;", "duckdb")
'SELECT 1'
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nl2sql.databases.engines.confine import confine

MEMORY = "1GB"
BATCH = 1000  # rows fetched at once
AS_WRITTEN = ("date", "time", "timetz", "timestamp", "timestamptz", "interval", "json", "jsonb", "record")
MYSQL_OPTIONS = frozenset(("socket", "charset"))  # which is always utf8mb4
Rows = tuple[list[str], Iterator[tuple]]
BLANK = r"(?:\s|\ufeff|--[^\n]*(?:\n|$)|/\*(?!!)(?:[^*]|\*(?!/))*\*/|\()*"
HASH_COMMENTS = r"(?:\s|\ufeff|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*(?!!)(?:[^*]|\*(?!/))*\*/|\()*"
WORD = re.compile(r"[^\W\d]\w*|/\*!|\S")
STARTS = frozenset(("SELECT", "WITH", "VALUES", "TABLE"))


class Refused(Exception):
    """A statement, or a connection, that is refused. ``kind`` is one of RunResult's error kinds."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def one_query(sql: str, dialect: str) -> str:
    """``sql`` without the semicolons at its end. Raises Refused for a blank text or one that is not a query."""
    blank = re.compile(HASH_COMMENTS if dialect in ("mysql", "clickhouse") else BLANK).match(sql)
    word = WORD.match(sql, blank.end() if blank else 0)
    if word is None:
        raise Refused("empty", "no statement: the SQL is blank or only a comment")
    if word[0].upper() not in STARTS:
        raise Refused("denied", f"{word[0].upper()[:30]} is not a SELECT; only SELECT statements may run")
    if dialect == "clickhouse":
        _one_clickhouse_query(sql)
    return sql.rstrip("; \t\r\n")


def _one_clickhouse_query(sql: str) -> None:
    """chdb runs several statements in a row, and writes files for INTO OUTFILE; the others refuse that themselves."""
    import sqlglot
    from sqlglot.errors import SqlglotError
    from sqlglot.tokens import TokenType

    try:
        tokens = sqlglot.tokenize(sql, dialect="clickhouse")
    except (SqlglotError, ValueError):
        return  # it will not lex there either
    words = [token.text.upper() if token.token_type is not TokenType.STRING else "" for token in tokens]
    closed = [at for at, token in enumerate(tokens) if token.token_type is TokenType.SEMICOLON]
    if any(token.token_type is not TokenType.SEMICOLON for token in tokens[closed[0] if closed else len(tokens) :]):
        raise Refused("multi_statement", "more than one statement; send one SELECT")
    if any(words[at : at + 2] == ["INTO", "OUTFILE"] for at in range(len(words))):
        raise Refused("denied", "INTO OUTFILE writes a file; only SELECT statements may run")


def described(
    columns: Sequence[Sequence[Any]], primary: dict[str, list[str]], foreign: list[list[Any]], views: set[str]
) -> list[dict[str, Any]]:
    """Tables as JSON from rows (table, column, type, not null), in the order in which they come."""
    tables: dict[str, dict[str, Any]] = {}
    for table, column, kind, not_null in columns:
        entry = tables.setdefault(table, {"name": table, "columns": [], "foreign_keys": [], "view": table in views})
        entry["columns"].append([column, kind, column in primary.get(table, ()), bool(not_null)])
    for table, own, other, other_columns in foreign:
        if table in tables and other in tables:  # which may be one that this user does not see
            tables[table]["foreign_keys"].append([own, other, other_columns])
    return list(tables.values())


# ------------------------------------------------------------------------------------------- the engines


class DuckDb:
    """A DuckDB file, opened read-only without access to files, network or extensions."""

    dialect = "duckdb"

    def __init__(self, target: str, scratch: str) -> None:
        import duckdb

        confine([target, f"{target}.wal", "/proc/self/cgroup"])  # without the last it ends in a crash
        config: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "lock_configuration": "true",
            "memory_limit": MEMORY,
            "threads": "1",
            "temp_directory": "",
        }
        self.connection = duckdb.connect(target, read_only=True, config=config)
        self.version = duckdb.__version__

    def query(self, sql: str, timeout_s: float, explain: bool) -> Rows:
        from duckdb import StatementType

        statements = self.connection.extract_statements(sql)
        if len(statements) != 1:
            raise Refused("multi_statement" if statements else "empty", "send one SELECT statement")
        if statements[0].type != StatementType.SELECT:
            raise Refused("denied", f"{statements[0].type.name} is not a SELECT; only SELECT statements may run")
        cursor = self.connection.execute(f"EXPLAIN {sql}" if explain else sql)
        return [column[0] for column in cursor.description or ()], _fetched(cursor)

    def tables(self) -> list[dict[str, Any]]:
        columns = self.connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
            "WHERE NOT internal AND schema_name = 'main' ORDER BY table_oid, column_index"
        ).fetchall()
        if not columns:
            raise Refused("other", "schema main has no tables, and only those of main are read")
        keys = self.connection.execute(
            "SELECT table_name, constraint_type, constraint_column_names, referenced_table, referenced_column_names "
            "FROM duckdb_constraints() WHERE constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY') "
            "AND schema_name = 'main' ORDER BY constraint_index"
        ).fetchall()
        named = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
        views = {row[0] for row in self.connection.execute(named).fetchall()}
        primary = {row[0]: list(row[2]) for row in keys if row[1] == "PRIMARY KEY"}
        foreign = [[row[0], list(row[2]), row[3], list(row[4])] for row in keys if row[1] == "FOREIGN KEY"]
        return described([[t, c, kind, not null] for t, c, kind, null in columns], primary, foreign, views)


class Postgres:
    """A PostgreSQL server through an unprivileged role: a fresh READ ONLY transaction for each statement.

    Values come as the server writes them where Python has none such: enums, 1 mon, infinity, 24:00, years BC. Tables
    are those of the first schema of the search path, as far as the role may read them, partitions as one table.
    Raises Refused where the role could read the server's files or run its programs: a transaction cannot stop that.
    """

    dialect = "postgres"

    def __init__(self, target: str, scratch: str) -> None:
        self.target = target
        self._connect()

    def _connect(self) -> None:
        import psycopg
        from psycopg.types.string import TextLoader

        self.connection = psycopg.connect(self.target, autocommit=True, connect_timeout=10, client_encoding="UTF8")
        self.connection.prepare_threshold = None
        for kind in AS_WRITTEN:
            self.connection.adapters.register_loader(kind, TextLoader)
        number = self.connection.info.server_version
        self.version = f"{number // 10000}.{number % 10000}"
        risky = self.connection.execute(
            "SELECT r.rolname FROM pg_roles r WHERE pg_has_role(current_user, r.oid, 'MEMBER') AND (r.rolsuper OR "
            "r.rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program'))"
        ).fetchone()
        if risky:
            raise Refused(
                "denied", f"the role may act as {risky[0]}, which can reach the server's files; {READ_ONLY_ROLE}"
            )

    def _begin_anew(self) -> None:
        """End what the last statement began; on a new connection where the server has ended this one meanwhile."""
        from psycopg import OperationalError

        try:
            self.connection.execute("ROLLBACK")
        except OperationalError:
            if not self.connection.closed:
                raise
            self._connect()

    def query(self, sql: str, timeout_s: float, explain: bool) -> Rows:
        sql = one_query(sql, self.dialect)
        self._begin_anew()
        connection = self.connection
        connection.execute("DISCARD ALL")
        connection.execute("BEGIN READ ONLY")
        connection.execute(f"SET LOCAL statement_timeout = {max(1, int(timeout_s * 1000))}")
        connection.execute("SET LOCAL datestyle = ISO; SET LOCAL intervalstyle = postgres")
        return self._streamed(f"EXPLAIN {sql}" if explain else sql)

    def _streamed(self, sql: str) -> Rows:
        """Columns and rows, which come as they are asked for; the protocol of a stream takes exactly one statement."""
        from psycopg import ProgrammingError, capabilities

        cursor = self.connection.cursor()
        rows = cursor.stream(sql, size=BATCH if capabilities.has_stream_chunked() else 1)
        try:
            first = next(rows, None)
        except ProgrammingError as error:
            if error.sqlstate is not None:
                raise
            raise Refused("denied", "not a SELECT: the statement returns no columns") from None
        if first is not None:
            return [column.name for column in cursor.description or ()], itertools.chain([first], rows)
        server = self.connection.pgconn  # of no rows a stream tells nothing, so that the server is asked again
        server.prepare(b"", sql.encode())
        shape = server.describe_prepared(b"")
        return [(shape.fname(place) or b"").decode() for place in range(shape.nfields)], iter(())

    def tables(self) -> list[dict[str, Any]]:
        self._begin_anew()
        run = self.connection.execute
        columns = run(
            "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, c.relkind IN ('v', 'm') "
            "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition AND n.nspname = current_schema() "
            "AND a.attnum > 0 AND NOT a.attisdropped AND has_column_privilege(c.oid, a.attnum, 'SELECT') "
            "ORDER BY c.oid, a.attnum"
        ).fetchall()
        if not columns:
            raise Refused("other", self._nothing_to_read())
        keys = run(
            "SELECT k.contype, t.relname, ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY u(n, i) "
            "JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.n ORDER BY u.i), f.relname, "
            "ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY u(n, i) JOIN pg_attribute a ON "
            "a.attrelid = k.confrelid AND a.attnum = u.n ORDER BY u.i) FROM pg_constraint k JOIN pg_class t ON "
            "t.oid = k.conrelid LEFT JOIN pg_class f ON f.oid = k.confrelid JOIN pg_namespace n ON "
            "n.oid = k.connamespace WHERE k.contype IN ('p', 'f') AND n.nspname = current_schema() AND "
            "(f.oid IS NULL OR f.relnamespace = n.oid) ORDER BY k.oid"
        ).fetchall()
        primary = {row[1]: row[2] for row in keys if _text(row[0]) == "p"}
        foreign = [[row[1], row[2], row[3], row[4]] for row in keys if _text(row[0]) == "f"]
        views = {row[0] for row in columns if row[4]}
        return described([row[:4] for row in columns], primary, foreign, views)

    def _nothing_to_read(self) -> str:
        """Why there are no tables, with the schemas that have some."""
        run = self.connection.execute
        here = (run("SELECT current_schema()").fetchone() or (None,))[0]
        others = run(
            "SELECT DISTINCT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE "
            "c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^(pg_|information_schema$)' "
            "AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') ORDER BY 1"
        ).fetchall()
        return (
            f"schema {here or 'of the search path'} has no tables that this role may read; with such tables: "
            f"{', '.join(name for (name,) in others) or 'none'}; "
            "name another: postgresql://USER@HOST/NAME?options=-csearch_path%3DSCHEMA"
        )


class MySql:
    """A MariaDB or MySQL server through an unprivileged user: a READ ONLY transaction for each statement.

    Raises Refused where the user has rights on all databases: FILE would let a SELECT read and write files.
    """

    dialect = "mysql"

    def __init__(self, target: str, scratch: str) -> None:
        from urllib.parse import parse_qs, unquote, urlsplit

        import pymysql
        from pymysql.constants import FIELD_TYPE
        from pymysql.converters import conversions

        url = urlsplit(target)
        self.database = unquote(url.path.lstrip("/"))
        options = parse_qs(url.query, keep_blank_values=True)
        if unknown := sorted(set(options) - MYSQL_OPTIONS):  # of ssl, say, nobody may believe that it holds
            raise Refused("other", f"the address has the option {unknown[0]!r}; the only one is socket=PATH")
        socket = options.get("socket", [None])[0]
        self.connection = pymysql.connect(
            host=url.hostname or "127.0.0.1",
            port=url.port or 3306,
            user=unquote(url.username or ""),
            password=unquote(url.password or ""),
            database=self.database,
            unix_socket=socket,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
            local_infile=False,
            conv=conversions | {FIELD_TYPE.TIME: str},  # 25:05:00, no days and seconds
        )
        self.version = str(self._all("SELECT version()")[0][0]).partition("-")[0]
        self.mariadb = "mariadb" in str(self._all("SELECT version()")[0][0]).lower()
        for (grant,) in self._all("SHOW GRANTS"):
            if " ON *.* " in grant and not grant.startswith("GRANT USAGE ON"):
                raise Refused("denied", f"the user has rights on all databases ({grant[:60]}...); {READ_ONLY_ROLE}")

    def _all(self, sql: str, *values: str) -> list[tuple]:
        if not self.connection.open:
            self.connection.connect()
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def _begin_anew(self) -> None:
        """End what the last statement began; on a new connection where the server has ended this one meanwhile."""
        from pymysql import OperationalError

        try:
            self._all("ROLLBACK")
        except OperationalError:
            if self.connection.open:
                raise
            self.connection.connect()

    def query(self, sql: str, timeout_s: float, explain: bool) -> Rows:
        from pymysql.cursors import SSCursor

        sql = one_query(sql, self.dialect)
        limit = (
            f"max_statement_time = {timeout_s:.3f}" if self.mariadb else f"max_execution_time = {timeout_s * 1000:.0f}"
        )
        self._begin_anew()
        bounds = ("SET SESSION sql_mode = DEFAULT", f"SET SESSION {limit}", "START TRANSACTION READ ONLY")
        for statement in bounds:
            self._all(statement)
        cursor = self.connection.cursor(SSCursor)
        cursor.execute(f"EXPLAIN {sql}" if explain else sql)
        if cursor.description is None:
            raise Refused("denied", "not a SELECT: the statement returns no columns")
        return [column[0] for column in cursor.description], self._unbuffered(cursor)

    def _unbuffered(self, cursor: Any) -> Iterator[tuple]:
        """The rows as they come. Where not all are taken the connection ends: the server would send the rest first."""
        try:
            yield from _fetched(cursor)
        finally:
            if cursor._result is not None and cursor._result.unbuffered_active:
                cursor._result.unbuffered_active = False
                self.connection.close()

    def tables(self) -> list[dict[str, Any]]:
        self._begin_anew()
        columns = self._all(
            "SELECT c.table_name, c.column_name, c.column_type, c.is_nullable = 'NO', t.table_type LIKE '%%VIEW' FROM "
            "information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name) "
            "WHERE c.table_schema = %s ORDER BY t.create_time, c.table_name, c.ordinal_position",
            self.database,
        )
        if not columns:
            raise Refused("other", f"{self.database} has no tables that this user may read")
        keys = self._all(
            "SELECT table_name, constraint_name, column_name, referenced_table_name, referenced_column_name FROM "
            "information_schema.key_column_usage WHERE table_schema = %s AND (constraint_name = 'PRIMARY' OR "
            "referenced_table_schema = table_schema) ORDER BY table_name, constraint_name, ordinal_position",
            self.database,
        )
        primary: dict[str, list[str]] = {}
        foreign: dict[tuple[str, str], list[Any]] = {}
        for table, name, column, other, other_column in keys:
            if other is None:
                primary.setdefault(table, []).append(column)
                continue
            key = foreign.setdefault((table, name), [table, [], other, []])
            key[1].append(column)
            key[3].append(other_column)
        views = {row[0] for row in columns if row[4]}
        return described([row[:4] for row in columns], primary, list(foreign.values()), views)


FORMAT = "JSONCompactEachRowWithNamesAndTypes"
PARTS = ("data", "metadata", "store")
SETTINGS = {
    "mode": "ro",
    "readonly": "1",
    "max_threads": "1",
    "max_memory_usage": str(2**30),
    "max_result_bytes": str(64 * 2**20),
    "output_format_json_quote_denormals": "1",  # else nan and inf come as null
}


class ClickHouse:
    """A folder that chdb (or clickhouse-local --path) made; tables are those of the database ``default``.

    Its read-only mode closes table functions such as ``file()`` and ``url()``, but not the function ``file()`` nor
    ``INTO OUTFILE``: those are closed by Landlock, which has to be in force before the engine starts its threads.
    Raises Refused where the kernel has no Landlock. The engine writes a status file, so it gets a folder of its own in
    which the database's parts are links; the real folder is read-only for the process.
    """

    dialect = "clickhouse"

    def __init__(self, target: str, scratch: str) -> None:
        from chdb import session

        missing = [part for part in ("metadata", "store") if not (Path(target) / part).is_dir()]
        if missing:
            raise Refused("other", f"{target} is no ClickHouse folder: it has no {missing[0]}")
        for part in PARTS:
            if (Path(target) / part).exists():
                Path(scratch, part).symlink_to(Path(target, part))
        if not confine([target], [scratch]):
            raise Refused("denied", "ClickHouse can be opened safely only where the kernel has Landlock (Linux 5.13)")
        settings = "&".join(f"{name}={value}" for name, value in SETTINGS.items())
        self.session = session.Session(f"{scratch}?{settings}")
        self.version = str(self._rows("SELECT version()")[0][0])

    def query(self, sql: str, timeout_s: float, explain: bool) -> Rows:
        sql = one_query(sql, self.dialect)
        try:
            lines = self._lines(f"EXPLAIN {sql}" if explain else sql)
        except Exception:
            self.session.query("SELECT 1")  # chdb puts what a failed query had written before the next result
            raise
        names = next(lines, None)
        types = next(lines, None)
        if not isinstance(names, list) or not isinstance(types, list):
            raise Refused("denied", "not a SELECT, or one with a FORMAT of its own: leave FORMAT out")
        return [str(name) for name in names], (tuple(map(_value, row)) for row in lines)

    def tables(self) -> list[dict[str, Any]]:
        columns = self._rows(
            "SELECT table, name, type, 1, is_in_primary_key FROM system.columns WHERE database = 'default'"
            " AND NOT startsWith(table, '.inner') ORDER BY table, position"
        )
        if not columns:
            raise Refused("other", "its database default has no tables, and only those of default are read")
        views = self._rows("SELECT name FROM system.tables WHERE database = 'default' AND engine LIKE '%View'")
        primary: dict[str, list[str]] = {}
        for table, name, *_, key in columns:
            primary.setdefault(table, []).extend([name] if key else [])
        rows = [
            [t, c, kind, not kind.startswith(("Nullable(", "LowCardinality(Nullable("))] for t, c, kind, *_ in columns
        ]
        return described(rows, primary, [], {row[0] for row in views})

    def _rows(self, sql: str) -> list[list[Any]]:
        return list(self._lines(sql))[2:]

    def _lines(self, sql: str) -> Iterator[Any]:
        text = self.session.query(sql, FORMAT).bytes().decode("utf-8", "replace")
        try:
            lines = text.split("\n")  # not splitlines: a text may hold U+0085 or U+2028 as it is
            return iter([json.loads(line) for line in lines if line])
        except ValueError:
            raise Refused("denied", "a FORMAT of its own: leave FORMAT out, rows are returned as they are") from None


def _value(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value, ensure_ascii=False)


READ_ONLY_ROLE = "connect as a user that may only SELECT from this database (docs/repair.md shows how to make one)"


def _fetched(cursor: Any) -> Iterator[tuple]:
    while rows := cursor.fetchmany(BATCH):
        yield from rows


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


ADAPTERS: dict[str, Any] = {adapter.dialect: adapter for adapter in (ClickHouse, DuckDb, Postgres, MySql)}
