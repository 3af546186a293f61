"""A database of another engine than SQLite as a ``Database``: each statement in a child process that is ended when it
overstays, read-only, without access to files and network (``adapters.py`` and ``confine.py`` say how).

>>> engine_error_kind("Catalog Error: Table with name order does not exist!")
'unknown_table'
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nl2sql.databases.schema import Column, ForeignKey, Schema, Table, first_rows, quote_always
from nl2sql.databases.sqlite.process import Worker, WorkerGone, check_bounds, forgets_after_fork
from nl2sql.errors import DatabaseError, UsageError, one_line
from nl2sql.interfaces import RunResult

CHILD = ("-I", str(Path(__file__).with_name("child.py")))
ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "HOME", "LD_LIBRARY_PATH")  # no secrets for whoever gets out
OPEN_S = 60.0  # loading the engine and connecting
GRACE_S = 0.5  # what a statement may overrun its deadline by before the process is ended
MAX_SQL_CHARS = 100_000  # bounds what a parser is asked to read
EXTRAS = {"clickhouse": "chdb", "duckdb": "duckdb", "postgres": "psycopg[binary]", "mysql": "pymysql"}

EXCERPT = re.compile(r"\n+LINE \d+:.*\n *\^+ *$", re.MULTILINE)
CANDIDATES = re.compile(r"(Candidate functions:\n(?:[ \t]+\S.*\n){5})((?:[ \t]+\S.*(?:\n|$))+)")
QUOTED_OR_NOT = re.compile(r"""'[^']*'|"[^"]*"|[^'"]+|.""")
PROBES = {
    "postgres": ("pg_isready -h {host} -p {port}", 5432),
    "mysql": ("mariadb-admin -h {host} -P {port} ping", 3306),
}

# What the engines say -> RunResult.error_kind; the first rule that matches decides. What quotes a name comes first: a
# column may be called read_only.
ERROR_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), kind)
    for pattern, kind in (
        (r"statement timeout|max_statement_time|max_execution_time|TIMEOUT_EXCEEDED|query interrupted", "timeout"),
        (r"Ambiguous reference|is ambiguous|AMBIGUOUS", "ambiguous_column"),
        (r"Table with name .* does not exist|relation .* does not exist|\(1146\)|UNKNOWN_TABLE", "unknown_table"),
        (r"Referenced (column|table)|does not have a column|column .* does not exist|\(1054\)", "unknown_column"),
        (r"UNKNOWN_IDENTIFIER|missing FROM-clause entry|invalid reference to FROM-clause", "unknown_column"),
        (r"syntax error|Parser Error|\(1064\)|SYNTAX_ERROR|unterminated", "syntax"),
        (r"cannot insert multiple commands|multi.?statements", "multi_statement"),
        (
            r"read.?only|permission denied|access denied|Permission Error|ACCESS_DENIED|command denied"
            r"|not allowed(?! in )",  # PostgreSQL: aggregate functions are not allowed in WHERE
            "denied",
        ),
        (r"out of memory|MEMORY_LIMIT", "memory"),
    )
)


def engine_error_kind(message: str) -> str:
    """The kind of an engine's message, by ``ERROR_RULES`` on its first line; "other" when no rule matches."""
    first = message.strip().partition("\n")[0]
    return next((kind for pattern, kind in ERROR_RULES if pattern.search(first)), "other")


def without_excerpt(message: str) -> str:
    """The message without the excerpt of the statement that DuckDB and PostgreSQL put below it, and with the first few
    of DuckDB's candidate functions, which may be fifty."""

    def fewer(match: re.Match[str]) -> str:
        return f"{match[1]}\t... and {len(match[2].splitlines())} more\n"

    return CANDIDATES.sub(fewer, EXCERPT.sub("", message)).strip()


def _hidden(message: str, dialect: str, target: str) -> str:
    """The message of a server's library without the address, or its password, that it may quote."""
    secrets = (target, urlsplit(target).password) if dialect in PROBES else ()
    for secret in filter(None, secrets):
        message = message.replace(f'"{secret}"', '"***"')
    return message


def _next_step(dialect: str, target: str, error: str) -> str:
    """The command to type where a server does not answer or does not let us in; "" for anything else."""
    if error != "OperationalError" or dialect not in PROBES:
        return ""
    url = urlsplit(target)
    if "," in url.netloc:  # several hosts
        return ""
    host, port = url.hostname or "127.0.0.1", url.port or PROBES[dialect][1]
    return f"; does it answer? {PROBES[dialect][0].format(host=host, port=port)}"


class EngineDatabase:
    """A DuckDB file, a ClickHouse folder (chdb), or a PostgreSQL or MariaDB/MySQL database. Thread-safe; one statement
    at a time. The process starts at first use and anew after one that had to be ended.

    Raises DatabaseError where the engine is not installed, or the database cannot be opened or is not safe to open.
    """

    def __init__(self, dialect: str, target: str, name: str = "") -> None:
        if dialect not in EXTRAS:
            raise UsageError(f"no engine for {dialect!r}; known: {', '.join(EXTRAS)}")
        self.dialect, self.name = dialect, name or Path(target).stem
        self._target = target
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._schema: Schema | None = None
        self._version = ""
        with self._lock:
            self._take()
        forgets_after_fork(self)

    def __enter__(self) -> EngineDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """The engine's version, e.g. "15.18"."""
        return self._version

    @property
    def fingerprint(self) -> str:
        """SHA-256 of schema and rows; the order of the rows does not count. Reads every table."""
        digest = hashlib.sha256(repr(self.schema()).encode())
        for table in self.schema().tables:
            result = self.run(
                f"SELECT * FROM {quote_always(table.name, self.dialect)}", timeout_s=600.0, max_rows=10**9
            )
            if not result.success:
                raise DatabaseError(f"table {table.name!r} of {self.name} cannot be read: {result.error}")
            for row in sorted(json.dumps(row, default=repr) for row in result.rows):
                digest.update(row.encode())
        return digest.hexdigest()

    def schema(self) -> Schema:
        """Tables and views, read once."""
        if self._schema is None:
            reply = self._ask(["tables"], OPEN_S)
            if reply[0] != "ok":
                raise DatabaseError(f"the schema of {self.name} cannot be read: {reply[2]}")
            self._schema = Schema(tuple(_table(entry, self.dialect) for entry in reply[1]), self.dialect)
        return self._schema

    def sample(self, table: str, n: int = 3) -> list[dict[str, Any]]:
        """The first ``n`` rows of ``table`` as dicts. Raises UsageError for an unknown table or a negative ``n``."""
        return first_rows(self, table, n, 10.0)

    def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult:
        """Compile one SELECT without running it; rows of the engine's plan."""
        return self._execute("explain", sql, timeout_s, 1000)

    def run(self, sql: str, *, timeout_s: float = 30.0, max_rows: int = 10_000) -> RunResult:
        """Execute one SELECT. Never raises for what the statement does: failure is data."""
        return self._execute("run", sql, timeout_s, max_rows)

    def close(self) -> None:
        """End the process. Idempotent; a later call starts it anew."""
        with self._lock:
            self._drop()

    def _execute(self, mode: str, sql: str, timeout_s: float, max_rows: int) -> RunResult:
        check_bounds(timeout_s, max_rows)
        if len(sql) > MAX_SQL_CHARS:
            message = f"the SQL has {len(sql)} characters; at most {MAX_SQL_CHARS} are allowed"
            return RunResult(False, error=message, error_kind="too_large")
        started = time.monotonic()
        reply = self._ask([mode, sql, timeout_s, max_rows], timeout_s)
        seconds = time.monotonic() - started
        if reply[0] == "ok":
            _, columns, rows, truncated = reply
            return RunResult(True, tuple(columns), tuple(map(tuple, rows)), truncated=truncated, seconds=seconds)
        _, exception, message = reply
        kind = exception if exception.islower() else engine_error_kind(message)
        if kind == "timeout":
            message = f"no result within {timeout_s:g} s"
        return RunResult(False, error=without_excerpt(message), error_kind=kind, seconds=seconds)

    def _ask(self, request: list[Any], timeout_s: float) -> list[Any]:
        with self._lock:
            worker = self._take()
            try:
                return worker.ask(request, time.monotonic() + timeout_s + GRACE_S)
            except TimeoutError:
                self._drop()
                return ["error", "timeout", ""]
            except WorkerGone as error:
                self._drop()
                return ["error", "worker_died", f"the process that executed the statement died ({error})"]
            except BaseException:  # Ctrl-C: the reply that is still owed must not answer the next statement
                self._drop()
                raise

    def _take(self) -> Worker:
        """The child with the database open; holds the lock. Raises DatabaseError."""
        if self._worker is not None and self._worker.alive():
            return self._worker
        self._drop()
        self._scratch = tempfile.TemporaryDirectory(prefix="nl2sql-engine-", ignore_cleanup_errors=True)
        try:
            worker = Worker(CHILD, {name: os.environ[name] for name in ENVIRONMENT if name in os.environ})
        except (OSError, WorkerGone) as error:
            raise DatabaseError(f"cannot start a process for {self.dialect}: {error}") from None
        try:
            reply = worker.ask(["open", self.dialect, self._target, self._scratch.name], time.monotonic() + OPEN_S)
        except (TimeoutError, WorkerGone) as error:
            worker.kill()
            raise DatabaseError(f"{self.dialect} database {self.name} cannot be opened: {error}") from None
        except BaseException:
            worker.kill()
            raise
        if reply[0] != "ok":
            worker.kill()
            if reply[1] == "missing":
                raise DatabaseError(f"{reply[2]}; install it: pip install '{EXTRAS[self.dialect]}'")
            what = one_line(_hidden(reply[2], self.dialect, self._target))
            what += _next_step(self.dialect, self._target, reply[1])
            raise DatabaseError(f"{self.dialect} database {self.name} cannot be opened: {what}")
        self._worker, self._version = worker, str(reply[1])
        return worker

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def forget_after_fork(self) -> None:
        """In a forked child: the process and the folder are the parent's."""
        self._lock = threading.Lock()
        if self._worker is not None:
            self._worker.forget()
            self._worker = None
        if self._scratch is not None:
            self._scratch._finalizer.detach()  # type: ignore[attr-defined]
            self._scratch = None


def _kind(declared: str, dialect: str) -> str:
    """A type in capitals, but for what it quotes: the values of an ENUM. ClickHouse's types know case."""
    if dialect == "clickhouse":
        return declared
    return QUOTED_OR_NOT.sub(lambda part: part[0] if part[0][0] in "'\"" else part[0].upper(), declared)


def _table(entry: dict[str, Any], dialect: str) -> Table:
    return Table(
        entry["name"],
        tuple(Column(name, _kind(kind, dialect), key, not_null) for name, kind, key, not_null in entry["columns"]),
        tuple(ForeignKey(tuple(own), other, tuple(columns)) for own, other, columns in entry["foreign_keys"]),
        is_view=entry["view"],
    )
