"""The process that executes hostile SQL: a stand-alone program, started as ``python -I -S query_worker.py``.

It imports nothing of nl2sql, talks over one socket (file descriptor 0) and ends when that closes. Messages both
ways are 8 bytes of big-endian length and UTF-8 JSON; a blob travels as ``{"b": hex}`` (no other SQLite value is an
object, so the tag cannot be forged). JSON rather than pickle or marshal: whatever the statement does to this
process, the parent only ever parses text.

Request: ``[mode, uri, version, sql, timeout_s, max_rows]`` with mode "run" or "explain" (EXPLAIN QUERY PLAN).
Reply: ``["ok", columns, rows, truncated]``, or ``["error", exception, message]``.
Many statements at once: a JSON object, and several messages back (see ``query_worker_batch.py``).

A small file that has not changed for a while and that nobody is writing to is read into memory once several
statements ask for it (``Sandbox.load``); the same layers hold there, and the file is opened for reading only.

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
import sys
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

try:
    import resource
except ImportError:  # not POSIX: the other layers remain
    resource = None  # type: ignore[assignment]

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/")[0])
    import query_worker_batch as batches  # type: ignore[import-not-found]
else:
    from nl2sql import query_worker_batch as batches

T = TypeVar("T")

HEAP_BYTES = 512 * 2**20  # SQLite's own memory: sorting, temporary tables, strings
PROCESS_BYTES = 2 * 2**30  # address space of the process
RESULT_BYTES = 64 * 2**20  # encoded rows of one result
CHUNK_BYTES = 4 * 2**20  # encoded rows between two looks at that bound
MAX_CONNECTIONS = 32
PROGRESS_STEPS = 4000  # virtual-machine steps between two looks at the clock: well under a millisecond
MEMORY_BYTES = 16 * 2**20  # the largest file that is read into memory
MEMORY_BYTES_PER_STATEMENT = 2**20  # reading in costs as much as some statements on the file
MEMORY_CONNECTIONS = 4  # so that what is in memory stays small beside HEAP_BYTES
SETTLED_SECONDS = 2.0  # a file changed more recently may change again within one tick of its time stamp
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
READ, OK = sqlite3.SQLITE_READ, sqlite3.SQLITE_OK
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
    """One read-only connection under the authorizer; ``run`` and ``rows`` execute one statement on it."""

    def __init__(self, uri: str, version: str) -> None:
        self.version = version
        self.in_memory = uri == ":memory:"
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
        if not self.in_memory:
            self._connect_virtual_tables()
        self.connection.set_authorizer(self._authorize)

    def load(self, image: bytes, version: str) -> bool:
        """Make ``image``, the bytes of a database file, the content of this connection, which was opened on
        ":memory:". False where it has to be opened as a file: virtual tables, or not to be understood.

        Once only: SQLite 3.40 crashes on json_each if it was used before the content is replaced.
        """
        self.version = ""
        self.connection.set_authorizer(None)  # taking the image over is an ATTACH inside SQLite
        self.deadline = time.monotonic() + BUSY_SECONDS
        try:
            self.connection.deserialize(image)
            found = "SELECT 1 FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL%' LIMIT 1"
            if self.connection.execute(found).fetchone():
                return False
            self._connect_virtual_tables()
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            return False
        finally:
            self.connection.set_authorizer(self._authorize)
        self.connection.text_factory = str
        self.version = version
        return True

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
        if action == READ:  # by far the most frequent
            return OK
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
        return self._bounded(statement, deadline, max_rows, self._encoded)

    def rows(self, statement: str, deadline: float, max_rows: int) -> tuple[list[str], list[tuple], bool]:
        """(columns, rows, truncated). Raises Rejected, sqlite3.Error, MemoryError."""
        return self._bounded(statement, deadline, max_rows, self._plain)

    def _bounded(self, statement: str, deadline: float, max_rows: int, fetch: Callable[[str, int], T]) -> T:
        self.denied = ""
        self.selecting = False
        self.deadline = deadline
        try:
            try:
                return fetch(statement, max_rows)
            except sqlite3.OperationalError as error:
                if "Could not decode to UTF-8" not in str(error):
                    raise
                # Lenient decoding costs a Python call per value, so only a database that needs it pays.
                self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
                return fetch(statement, max_rows)
        except sqlite3.DatabaseError as error:
            if not self.denied:
                raise
            message = f"not allowed: {self.denied}; only SELECT statements on the database's own tables may run"
            raise Rejected("denied", message) from error

    def _encoded(self, statement: str, max_rows: int) -> bytes:
        parts: list[str] = []

        def keep(rows: list[tuple]) -> int:
            if rows:
                parts.append(ENCODER.encode(rows)[1:-1])
            return len(parts[-1]) if rows else 0

        columns, truncated = self._fetch(statement, max_rows, keep)
        cut = "true" if truncated else "false"
        return f'["ok",{ENCODER.encode(columns)},[{",".join(parts)}],{cut}]'.encode("utf-8", "replace")

    def _plain(self, statement: str, max_rows: int) -> tuple[list[str], list[tuple], bool]:
        kept: list[tuple] = []

        def keep(rows: list[tuple]) -> int:
            kept.extend(rows)
            return batches.size_of(rows)

        columns, truncated = self._fetch(statement, max_rows, keep)
        return columns, kept, truncated

    def _fetch(self, statement: str, max_rows: int, keep: Callable[[list[tuple]], int]) -> tuple[list[str], bool]:
        """Hand the rows over to ``keep``, which gives their size in bytes; (columns, whether there were more)."""
        cursor = self.connection.execute(statement)
        try:
            if cursor.description is None:
                raise Rejected("denied", "not a SELECT: the statement returns no columns")
            columns = [column[0] for column in cursor.description]
            count = size = 0
            while count <= max_rows:
                fitting = CHUNK_BYTES * count // size if size else count  # rows as large as those so far
                wanted = max(1, min(4 * count, fitting, 1000, max_rows + 1 - count))
                rows = cursor.fetchmany(wanted)
                if not rows:
                    break
                if count == 0 and sum(len(v) for v in rows[0] if isinstance(v, str | bytes)) > RESULT_BYTES:
                    raise Rejected("too_large", f"a row is larger than {RESULT_BYTES >> 20} MB")
                count += len(rows)
                size += keep(rows if count <= max_rows else rows[:-1])
                if size > RESULT_BYTES:
                    raise Rejected("too_large", f"the result is larger than {RESULT_BYTES >> 20} MB")
                if len(rows) < wanted:
                    break
        finally:
            cursor.close()
        return columns, count > max_rows

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


class Databases:
    """The open databases of this process, the youngest last; what is in memory is limited by itself."""

    def __init__(self) -> None:
        self.open: dict[str, Sandbox] = {}
        self.asked: dict[str, int] = {}  # statements so far, since the file changed

    def get(self, uri: str, version: str, statements: int = 1) -> Sandbox:
        """The sandbox for a file. ``statements``: about how many are to come. Raises sqlite3.Error."""
        found = self.open.pop(uri, None)
        if found is not None and found.version != version:
            found.close()
            self.asked.pop(uri, None)
            found = None
        if found is None or not found.in_memory:
            asked = self.asked[uri] = self.asked.pop(uri, 0) + 1
            if (asked + statements) > 2 and (
                image := small_file(uri, (asked + statements) * MEMORY_BYTES_PER_STATEMENT)
            ):
                found = self._in_memory(image, version) or found
            if len(self.asked) > 1000:
                del self.asked[next(iter(self.asked))]
        if found is None:
            found = Sandbox(uri, version)
        self.open[uri] = found
        if len(self.open) > MAX_CONNECTIONS:
            self.open.pop(next(iter(self.open))).close()
        return found

    def _in_memory(self, image: bytes, version: str) -> Sandbox | None:
        resident = [uri for uri, sandbox in self.open.items() if sandbox.in_memory]
        for uri in resident[: len(resident) - MEMORY_CONNECTIONS + 1]:
            self.open.pop(uri).close()
        sandbox = Sandbox(":memory:", "")
        if sandbox.load(image, version):
            return sandbox
        sandbox.close()
        return None

    def clear(self) -> None:
        for sandbox in self.open.values():
            sandbox.close()
        self.open.clear()


def small_file(uri: str, limit: int) -> bytes | None:
    """The bytes of a database file of at most ``limit`` bytes; None where it is larger, has changed just now, has a
    journal beside it (somebody writes) or is in WAL mode: then SQLite has to read it, under its own locks."""
    path, _, options = uri.removeprefix("file://").partition("?")
    if not uri.startswith("file:///") or options != "mode=ro":
        return None
    path = unquote(path, errors="surrogateescape")
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            before = os.fstat(handle)
            if not 512 <= before.st_size <= min(limit, MEMORY_BYTES) or time.time() - before.st_mtime < SETTLED_SECONDS:
                return None
            image = os.read(handle, before.st_size)
            after = os.fstat(handle)
        finally:
            os.close(handle)
        if any(os.access(path + suffix, os.F_OK) for suffix in ("-journal", "-wal")):
            return None
    except OSError:
        return None
    changed = (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size)
    whole = len(image) == before.st_size and image.startswith(b"SQLite format 3\0") and image[18:20] == b"\1\1"
    return image if whole and not changed else None


def answer(request: list, databases: Databases) -> bytes:
    """Execute one request; every failure becomes an "error" reply."""
    mode, uri, version, sql, timeout_s, max_rows = request
    deadline = time.monotonic() + timeout_s
    try:
        statement = single_statement(sql)
        if mode == "explain":
            statement = "EXPLAIN QUERY PLAN " + statement
        return databases.get(uri, version).run(statement, deadline, max_rows)
    except FAILURES as error:
        return reply_error(*failure(error))
    except MemoryError:
        databases.clear()
        return reply_error("memory", "out of memory")


FAILURES = (Rejected, sqlite3.Error, sqlite3.Warning, ValueError)  # ValueError: NUL bytes, lone surrogates


def failure(error: BaseException) -> tuple[str, str]:
    kind = error.kind if isinstance(error, Rejected) else type(error).__name__
    return kind, str(error)[:2000]


def answer_batch(request: dict, databases: Databases) -> None:
    """Execute a batch; its messages are sent as it goes."""
    statements: dict[str, str] = {}
    timeout_s, max_rows = request["timeout"], request["max_rows"]

    def fetch(uri: str, version: str, sql: str, count: int) -> tuple:
        signal.setitimer(signal.ITIMER_REAL, timeout_s + LAST_RESORT_SECONDS)
        deadline = time.monotonic() + timeout_s
        try:
            if sql not in statements:
                statements[sql] = single_statement(sql)
            return databases.get(uri, version, count).rows(statements[sql], deadline, max_rows)
        except FAILURES as error:
            return failure(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    batches.Batch(request, fetch, lambda text: send(text.encode("utf-8", "replace")), ENCODER.encode).work()


def reply_error(kind: str, message: str) -> bytes:
    return json.dumps(["error", kind, message]).encode()


def main() -> None:
    restrict_process()
    databases = Databases()
    send(b"[]")  # ready: start-up is not part of anybody's deadline
    while len(header := receive(8)) == 8:
        size = int.from_bytes(header, "big")
        body = receive(size)
        if len(body) < size:
            break
        request = json.loads(body)
        if isinstance(request, dict):
            answer_batch(request, databases)
            continue
        signal.setitimer(signal.ITIMER_REAL, request[4] + LAST_RESORT_SECONDS)
        reply = answer(request, databases)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(reply)


if __name__ == "__main__":
    main()
