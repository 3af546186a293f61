"""The process that executes hostile SQL: a stand-alone program, started as ``python -I -S query_worker.py``.

It imports nothing of nl2sql, talks over one socket (file descriptor 0) and ends when that closes. Messages both
ways are 8 bytes of big-endian length and UTF-8 JSON; a blob travels as ``{"b": hex}`` (no other SQLite value is an
object, so the tag cannot be forged). JSON rather than pickle or marshal: whatever the statement does to this
process, the parent only ever parses text.

Request: ``[mode, uri, version, sql, timeout_s, max_rows]`` with mode "run" or "explain" (EXPLAIN QUERY PLAN).
Reply: ``["ok", columns, rows, truncated]``, or ``["error", exception, message]``.

Layers, each sufficient against most attacks alone:
- the file is opened with ``mode=ro`` and ``query_only``; RLIMIT_FSIZE is 0, so this process cannot grow any file;
- an authorizer lets only SELECT, READ, FUNCTION and RECURSIVE through, and no function that leaves the database.
  PRAGMA is denied, and with it the pragma table-valued functions; ``sqlite_master`` may be read;
- one statement per request; EXPLAIN only through its own mode; a statement without result columns is denied;
- a progress handler enforces the deadline, SIGALRM ends a process that outlives it by far (an orphan's last
  resort: the parent kills sooner), ``setlimit`` and a heap limit bound what one statement may ask for, and
  RLIMIT_AS bounds the process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time

try:
    import resource
except ImportError:  # not POSIX: the other layers remain
    resource = None  # type: ignore[assignment]

HEAP_BYTES = 512 * 2**20  # SQLite's own memory: sorting, temporary tables, strings
PROCESS_BYTES = 2 * 2**30  # address space of the process
RESULT_BYTES = 64 * 2**20  # encoded rows of one result
CHUNK_BYTES = 4 * 2**20  # encoded rows between two looks at that bound
MAX_CONNECTIONS = 32
PROGRESS_STEPS = 4000  # virtual-machine steps between two looks at the clock: well under a millisecond
BUSY_SECONDS = 1.0  # how long to wait for another process's write lock
LAST_RESORT_SECONDS = 5.0

LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 * 2**20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
ALLOWED = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE))
FORBIDDEN_FUNCTIONS = frozenset(
    ("load_extension", "fts3_tokenizer", "writefile", "readfile", "edit", "fsdir", "sqlite_log", "optimize", "fts5")
)
ACTION_NAMES = (
    "CREATE_INDEX CREATE_TABLE CREATE_TEMP_INDEX CREATE_TEMP_TABLE CREATE_TEMP_TRIGGER CREATE_TEMP_VIEW "
    "CREATE_TRIGGER CREATE_VIEW DELETE DROP_INDEX DROP_TABLE DROP_TEMP_INDEX DROP_TEMP_TABLE DROP_TEMP_TRIGGER "
    "DROP_TEMP_VIEW DROP_TRIGGER DROP_VIEW INSERT PRAGMA TRANSACTION UPDATE ATTACH DETACH ALTER_TABLE REINDEX "
    "ANALYZE CREATE_VTABLE DROP_VTABLE FUNCTION SAVEPOINT"
)
ACTIONS = {getattr(sqlite3, f"SQLITE_{name}"): name.replace("_", " ") for name in ACTION_NAMES.split()}

# One token: blank or comment (group 1), semicolon (group 2), or a piece of the statement. An unclosed comment
# reaches to the end, as in SQLite; an unclosed quote is left for SQLite to reject.
TOKEN = re.compile(
    r"""([ \t\r\n\f\ufeff]+|--[^\n]*|/\*.*?(?:\*/|\Z))|(;)"""
    r"""|'(?:[^']|'')*'?|"(?:[^"]|"")*"?|`(?:[^`]|``)*`?|\[[^\]]*\]?|[^ \t\r\n\f\ufeff;'"`\[/-]+|.""",
    re.DOTALL,
)
NOT_A_QUERY = re.compile(r"(?:explain|pragma)(?![\w$])", re.IGNORECASE)  # the two that the authorizer may let pass


class Rejected(Exception):
    """The statement is refused before SQLite sees it. ``kind`` is one of the parent's error kinds."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def single_statement(sql: str) -> str:
    """The one statement in ``sql`` without surrounding blanks, comments and semicolons.

    Raises Rejected: "empty" for none, "multi_statement" for several, "denied" for EXPLAIN and PRAGMA.
    """
    start = end = -1
    closed = False
    for match in TOKEN.finditer(sql):
        blank, semicolon = match.groups()
        if blank is not None:
            continue
        if semicolon is not None:
            closed = start >= 0
        elif closed:
            raise Rejected("multi_statement", "more than one statement; send one SELECT")
        else:
            start = match.start() if start < 0 else start
            end = match.end()
    if start < 0:
        raise Rejected("empty", "no statement: the SQL is blank or only a comment")
    statement = sql[start:end]
    if word := NOT_A_QUERY.match(statement):
        raise Rejected("denied", f"{word[0].upper()} is not a SELECT; only SELECT statements may run")
    return statement


class Sandbox:
    """One read-only connection under the authorizer; ``run`` executes one statement on it."""

    def __init__(self, uri: str, version: str) -> None:
        self.version = version
        self.denied = ""  # what the authorizer refused first in this statement
        self.selecting = False  # whether the statement began as a SELECT
        self.deadline = 0.0
        self.connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
        for category, value in LIMITS.items():
            self.connection.setlimit(category, value)
        for pragma in (f"hard_heap_limit={HEAP_BYTES}", "temp_store=memory", "query_only=on", "cell_size_check=on"):
            self.connection.execute(f"PRAGMA {pragma}").fetchall()
        self.connection.set_progress_handler(self._past_deadline, PROGRESS_STEPS)
        self.deadline = time.monotonic() + BUSY_SECONDS
        self._connect_virtual_tables()
        self.connection.set_authorizer(self._authorize)

    def _connect_virtual_tables(self) -> None:
        """Virtual tables declare themselves at first use, by steps that the authorizer denies: use them before."""
        found = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL%'"
        own = ['"' + row[0].replace('"', '""') + '"' for row in self._attempt(found)]
        for table in ("json_each('[1]')", "json_tree('[1]')", *own):
            self._attempt(f"SELECT 1 FROM {table} LIMIT 1")
        for table in own:
            self._attempt(f"SELECT 1 FROM {table} WHERE {table} MATCH 'x' LIMIT 1")

    def _attempt(self, statement: str) -> list[tuple]:
        try:
            return self.connection.execute(statement).fetchall()
        except sqlite3.Error:
            return []  # whatever is broken: the user's own statement gets SQLite's own error

    def _past_deadline(self) -> bool:
        return time.monotonic() > self.deadline

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
    ) -> int:
        self.selecting |= action == sqlite3.SQLITE_SELECT
        forbidden = action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FORBIDDEN_FUNCTIONS
        if action in ALLOWED and not forbidden:
            return sqlite3.SQLITE_OK
        if (action, first, second) == (sqlite3.SQLITE_PRAGMA, "data_version", None):
            return sqlite3.SQLITE_OK  # full-text search (FTS5) asks for it inside every query
        if not self.denied and self.selecting and (first == "sqlite_master" or action == sqlite3.SQLITE_PRAGMA):
            self.denied = "built-in virtual tables such as pragma_table_info"
        elif not self.denied:
            name = ACTIONS.get(action, f"action {action}")
            self.denied = " ".join(part for part in (name, first, second) if part)
        return sqlite3.SQLITE_DENY

    def run(self, statement: str, deadline: float, max_rows: int) -> bytes:
        """The encoded "ok" reply. Raises Rejected, sqlite3.Error, MemoryError."""
        self.denied = ""
        self.selecting = False
        self.deadline = deadline
        try:
            return self._fetch(statement, max_rows)
        except sqlite3.OperationalError as error:
            if "Could not decode to UTF-8" not in str(error):
                raise
            # Lenient decoding costs a Python call per value, so only a database that needs it pays.
            self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return self._fetch(statement, max_rows)

    def _fetch(self, statement: str, max_rows: int) -> bytes:
        cursor = self.connection.execute(statement)
        try:
            if cursor.description is None:
                raise Rejected("denied", "not a SELECT: the statement returns no columns")
            columns = [column[0] for column in cursor.description]
            parts: list[str] = []
            count = size = 0
            while count <= max_rows:
                fitting = CHUNK_BYTES * count // size if size else count  # rows as large as those so far
                rows = cursor.fetchmany(max(1, min(4 * count, fitting, 1000, max_rows + 1 - count)))
                if not rows:
                    break
                if count == 0 and sum(len(v) for v in rows[0] if isinstance(v, str | bytes)) > RESULT_BYTES:
                    raise Rejected("too_large", f"a row is larger than {RESULT_BYTES >> 20} MB")
                count += len(rows)
                kept = rows if count <= max_rows else rows[:-1]
                if kept:
                    parts.append(ENCODER.encode(kept)[1:-1])
                    size += len(parts[-1])
                if size > RESULT_BYTES:
                    raise Rejected("too_large", f"the result is larger than {RESULT_BYTES >> 20} MB")
        finally:
            cursor.close()
        truncated = "true" if count > max_rows else "false"
        return f'["ok",{ENCODER.encode(columns)},[{",".join(parts)}],{truncated}]'.encode("utf-8", "replace")

    def close(self) -> None:
        self.connection.close()


def _tag_blob(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"b": value.hex()}
    raise TypeError(f"a {type(value).__name__} is not a SQLite value")


ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=_tag_blob)


def restrict_process() -> None:
    """Limits of the whole process; where a platform lacks one, the other layers remain."""
    if resource is None:
        return
    for name, value in (("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0), ("RLIMIT_AS", PROCESS_BYTES)):
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, OSError, ValueError):
            continue


def receive(size: int) -> bytes:
    """Exactly ``size`` bytes from the parent; fewer when it has gone."""
    data = bytearray()
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def send(payload: bytes) -> None:
    view = memoryview(len(payload).to_bytes(8, "big") + payload)
    while view:
        view = view[os.write(0, view) :]


def answer(request: list, sandboxes: dict[str, Sandbox]) -> bytes:
    """Execute one request; every failure becomes an "error" reply."""
    mode, uri, version, sql, timeout_s, max_rows = request
    deadline = time.monotonic() + timeout_s
    try:
        statement = single_statement(sql)
        if mode == "explain":
            statement = "EXPLAIN QUERY PLAN " + statement
        sandbox = sandboxes.pop(uri, None)
        if sandbox is not None and sandbox.version != version:
            sandbox.close()
            sandbox = None
        if sandbox is None:
            sandbox = Sandbox(uri, version)
        sandboxes[uri] = sandbox  # the youngest is last
        if len(sandboxes) > MAX_CONNECTIONS:
            sandboxes.pop(next(iter(sandboxes))).close()
        try:
            return sandbox.run(statement, deadline, max_rows)
        except sqlite3.DatabaseError as error:
            if not sandbox.denied:
                raise
            message = f"not allowed: {sandbox.denied}; only SELECT statements on the database's own tables may run"
            raise Rejected("denied", message) from error
    except Rejected as error:
        return reply_error(error.kind, str(error))
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: NUL bytes, lone surrogates
        return reply_error(type(error).__name__, str(error))
    except MemoryError:
        while sandboxes:
            sandboxes.popitem()[1].close()
        return reply_error("memory", "out of memory")


def reply_error(kind: str, message: str) -> bytes:
    return json.dumps(["error", kind, message[:2000]]).encode()


def main() -> None:
    restrict_process()
    sandboxes: dict[str, Sandbox] = {}
    send(b"[]")  # ready: start-up is not part of anybody's deadline
    while len(header := receive(8)) == 8:
        size = int.from_bytes(header, "big")
        body = receive(size)
        if len(body) < size:
            break
        request = json.loads(body)
        signal.setitimer(signal.ITIMER_REAL, request[4] + LAST_RESORT_SECONDS)
        reply = answer(request, sandboxes)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(reply)


if __name__ == "__main__":
    main()
