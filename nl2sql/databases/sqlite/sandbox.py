"""One read-only connection on which hostile SQL runs: the part of ``worker.py`` that SQLite sees.

>>> single_statement("SELECT 1; -- all")
'SELECT 1'

Imports nothing of nl2sql: the worker loads it as a plain sibling module. Layers, each sufficient against most attacks
alone (those of the process are in ``worker.py``):
- the file is opened with ``mode=ro`` and ``query_only``;
- an authorizer lets only SELECT, READ, FUNCTION and RECURSIVE through, and no function that leaves the database.
  PRAGMA is denied, and with it the pragma table-valued functions; ``sqlite_master`` may be read;
- one statement per request; EXPLAIN only through its own mode; a statement without result columns is denied;
- a progress handler enforces the deadline, ``setlimit`` and a heap limit bound what one statement may ask for;
- a result is bounded by the memory that its reader needs, not by characters (``RESULT_BYTES``).
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import time
from collections.abc import Iterable
from itertools import chain, repeat

HEAP_BYTES = 512 * 2**20  # SQLite's own memory: sorting, temporary tables, strings
RESULT_BYTES = 64 * 2**20  # a result as JSON text, as Python holds it: four bytes a character where one is an emoji
HELD_BYTES = 2 * RESULT_BYTES  # its rows as Python objects: short values take more as objects than as text
WORST_TEXT = 24  # a character as JSON at most ("\\u0001" where another needs four bytes), in bytes per byte as object
CHUNK_BYTES = 4 * 2**20  # of rows between two looks at those bounds
PROGRESS_STEPS = 4000  # virtual-machine steps between two looks at the clock: well under a millisecond
MOST_STEPS = 2**62  # that ``Sandbox.steps`` can count
BUSY_SECONDS = 1.0  # how long to wait for another process's write lock

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
JSON_TABLES = ("json_each('[1]')", "json_tree('[1]')")
WHAT_IT_HOLDS = "SELECT max(sql LIKE 'CREATE VIRTUAL%'), max(sql LIKE '%json_%') FROM sqlite_master"
BLANKS = " \t\r\n\f\ufeff"
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
    if ";" not in sql and "--" not in sql and "/*" not in sql:  # most: nothing that needs a lexer
        return _a_query(sql.strip(BLANKS))
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
    return _a_query(sql[start:end] if start >= 0 else "")


def _a_query(statement: str) -> str:
    if not statement:
        raise Rejected("empty", "no statement: the SQL is blank or only a comment")
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
        self.json_ready = True
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
            virtual, json_in_views = self.connection.execute(WHAT_IT_HOLDS).fetchone()
            if virtual:
                return False
            self.json_ready = bool(json_in_views)
            if json_in_views:
                self._connect(*JSON_TABLES)
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            return False
        finally:
            self.connection.set_authorizer(self._authorize)
        self.connection.text_factory = str
        self.version = version
        return True

    def _connect_virtual_tables(self) -> None:
        """Virtual tables declare themselves at first use, by steps that the authorizer denies: use them before."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL%'"
        own = ['"' + row[0].replace('"', '""') + '"' for row in self._attempt(query)]
        self._connect(*JSON_TABLES, *own)
        for table in own:
            self._attempt(f"SELECT 1 FROM {table} WHERE {table} MATCH 'x' LIMIT 1")

    def _connect(self, *tables: str) -> None:
        for table in tables:
            self._attempt(f"SELECT 1 FROM {table} LIMIT 1")

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
        columns, rows, truncated, held = self._bounded(statement, deadline, max_rows)
        text = ",".join(bounded_text(rows, held))
        del rows
        cut = "true" if truncated else "false"
        return f'["ok",{ENCODER.encode(columns)},[{text}],{cut}]'.encode("utf-8", "replace")

    def rows(self, statement: str, deadline: float, max_rows: int) -> tuple[list[str], list[tuple], bool]:
        """(columns, rows, truncated). Raises Rejected, sqlite3.Error, MemoryError."""
        columns, rows, truncated, held = self._bounded(statement, deadline, max_rows)
        if held * WORST_TEXT > RESULT_BYTES:  # what ``run`` could not send is too large here as well
            for _ in bounded_text(rows, held):
                pass
        return columns, rows, truncated

    def steps(self, statement: str, deadline: float, max_rows: int) -> int:
        """The steps of SQLite's virtual machine that the statement takes. Raises as ``rows``.

        Counting is several times slower than ``rows``; the deadline is for the parent to keep.
        """
        countdown = repeat(0, MOST_STEPS)
        text_factory, self.connection.text_factory = self.connection.text_factory, bytes
        self.connection.set_progress_handler(countdown.__next__, 1)
        try:
            self._bounded(statement, deadline, max_rows)
        finally:
            self.connection.set_progress_handler(self._past_deadline, PROGRESS_STEPS)
            self.connection.text_factory = text_factory
        return MOST_STEPS - countdown.__length_hint__()

    def _bounded(self, statement: str, deadline: float, max_rows: int) -> tuple[list[str], list[tuple], bool, int]:
        self.denied = ""
        self.selecting = False
        self.deadline = deadline
        if not self.json_ready and "json_" in statement.lower():
            self.json_ready = True
            self.connection.set_authorizer(None)
            self._connect(*JSON_TABLES)
            self.connection.set_authorizer(self._authorize)
        try:
            try:
                return self._fetch(statement, max_rows)
            except sqlite3.OperationalError as error:
                if "Could not decode to UTF-8" not in str(error):
                    raise
                # Lenient decoding costs a Python call per value, so only a database that needs it pays. Bytes that
                # are no UTF-8 are written out, \xfc: texts that differ in them alone stay apart.
                self.connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
                return self._fetch(statement, max_rows)
        except sqlite3.DatabaseError as error:
            if not self.denied:
                raise
            message = f"not allowed: {self.denied}; only SELECT statements on the database's own tables may run"
            raise Rejected("denied", message) from error

    def _fetch(self, statement: str, max_rows: int) -> tuple[list[str], list[tuple], bool, int]:
        """(columns, rows, whether there were more, bytes that the rows take as Python objects, each value its own)."""
        cursor = self.connection.execute(statement)
        try:
            description = cursor.description
            if description is None:
                raise Rejected("denied", "not a SELECT: the statement returns no columns")
            width = 56 + 8 * len(description)  # of a row as list and as tuple
            rows: list[tuple] = []
            held = count = 0
            wanted = min(2, max_rows + 1)
            while more := cursor.fetchmany(wanted):
                count += len(more)
                held += sum(map(sys.getsizeof, chain.from_iterable(more))) + width * len(more)
                rows += more
                if held > HELD_BYTES:
                    raise too_large()
                if len(more) < wanted or count > max_rows:
                    break
                wanted = max(1, min(4 * count, CHUNK_BYTES * count // held, 1000, max_rows + 1 - count))
        finally:
            cursor.close()
        truncated = count > max_rows
        return [column[0] for column in description], rows[:max_rows] if truncated else rows, truncated, held

    def close(self) -> None:
        self.connection.close()


def bounded_text(rows: list[tuple], held: int) -> Iterable[str]:
    """Pieces of the rows as JSON, to be joined by commas. Raises Rejected where the whole is too large for the reader.

    The text as a whole has the width of its widest character, one, two or four bytes.
    """
    step = max(1, len(rows) * CHUNK_BYTES // held) if held else 1
    length = width = 0
    for start in range(0, len(rows), step):
        piece = ENCODER.encode(rows[start : start + step])[1:-1]
        length += len(piece)
        width = max(width, 1, -(-(sys.getsizeof(piece) - 80) // len(piece)))  # 80: what an empty text takes, or less
        if length * width > RESULT_BYTES:
            raise too_large()
        yield piece


def too_large() -> Rejected:
    return Rejected("too_large", f"the result is larger than {RESULT_BYTES >> 20} MB")


def _tag_blob(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"b": value.hex()}
    raise TypeError(f"a {type(value).__name__} is not a SQLite value")


ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=_tag_blob)
