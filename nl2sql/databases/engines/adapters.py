"""One class per engine, used inside the child process only: open, explain, run, describe (ClickHouse: its own file).

What holds the statement back is the engine itself (read-only mode, external access off, time and memory limits), never
a list of words; ``one_query`` merely refuses early what is none. ``Refused`` carries the error kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from nl2sql.databases.engines.clickhouse import ClickHouse
from nl2sql.databases.engines.confine import confine
from nl2sql.databases.engines.statement import Refused, described, one_query

MEMORY = "1GB"
BATCH = 1000  # rows fetched at once
AS_WRITTEN = ("date", "time", "timetz", "timestamp", "timestamptz", "interval", "json", "jsonb", "record")
MYSQL_OPTIONS = frozenset(("socket", "charset"))  # which is always utf8mb4
Rows = tuple[list[str], Iterator[tuple]]


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


READ_ONLY_ROLE = "connect as a user that may only SELECT from this database (docs/repair.md shows how to make one)"


def _fetched(cursor: Any) -> Iterator[tuple]:
    while rows := cursor.fetchmany(BATCH):
        yield from rows


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


ADAPTERS: dict[str, Any] = {adapter.dialect: adapter for adapter in (ClickHouse, DuckDb, Postgres, MySql)}
