"""Reading a database file that nobody has looked at yet: in a process of its own, with a deadline and bounded memory.

A file can be made such that merely describing it takes hours or gigabytes: views that double, generated columns that
explode, a full-text table over an endless view. SQLite 3.40 cannot be interrupted while it resolves names, so that a
deadline within the process would not hold; here the process is killed. ``vet`` has the schema read once before this
process reads it, ``content_digest`` has all rows read.

Runs as a child too (``main``).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import signal
import sqlite3
from functools import lru_cache

from nl2sql.databases.schema import introspect, quote_always
from nl2sql.databases.sqlite.process import PATIENCE, Children, reply, requests
from nl2sql.databases.sqlite.worker import restrict_process

OPEN_S = 4.0  # for whatever opens a file: to copy, describe or read it, and another second for every ...
BYTES_PER_S = 5 * 2**20  # ... so many bytes that lie on the disk, where rows are read or copied
BUSY_S = 1.0  # to wait for another process that has locked the file
MAX_TABLES = 10_000  # tables and views
MAX_SCHEMA_CHARS = 20_000_000  # of all CREATE statements together
MAX_VALUE_BYTES = 64 * 2**20  # of one text or blob
HEAP_BYTES = 2**30  # SQLite's own memory; twice what a statement gets


class Unreadable(sqlite3.DatabaseError):
    """Reading took too long or too much memory; the text says which bound."""


@lru_cache(maxsize=4096)
def vet(uri: str, version: str) -> None:
    """Have the schema read elsewhere first. Raises sqlite3.Error with one line. Asked once for a ``version``."""
    half = OPEN_S / 2  # the caller describes it once more
    _ask({"what": "schema", "uri": uri}, half, "its tables and views were not described")


def content_digest(uri: str, size: int) -> str:
    """SHA-256 (hex) of schema and rows (``content_hash``). Raises sqlite3.Error with one line."""
    seconds = rows_deadline(size)
    return _ask({"what": "digest", "uri": uri}, seconds, "its rows were not read")


def rows_deadline(size: int) -> float:
    """The seconds that reading or copying a file with ``size`` bytes on the disk may take."""
    return OPEN_S + size / BYTES_PER_S


# ------------------------------------------------------------------------------------------------------ the parent


_readers = Children("nl2sql.databases.sqlite.vetting")


def _ask(request: dict[str, str], seconds: float, what: str) -> str:
    try:
        with _readers.lent() as reader:
            answer = reader.ask(request | {"seconds": str(seconds)}, seconds, patience=PATIENCE)
    except TimeoutError:
        raise Unreadable(f"{what} within {round(seconds, 1):g} s") from None
    except ConnectionError:
        raise Unreadable(f"{what}: the process that reads it died, most likely of too much memory") from None
    if "error" in answer:
        raise (Unreadable if answer["bound"] else sqlite3.DatabaseError)(answer["error"])
    digest: str = answer["digest"]  # empty for a schema, which is only looked at
    return digest


# ------------------------------------------------------------------------------------------------------- the child


def main() -> None:
    """Answer requests until the socket closes."""
    restrict_process()
    for request in requests():
        signal.alarm(math.ceil(float(request["seconds"]) * PATIENCE) + 5)  # the end of an orphan
        try:
            answer = {"digest": _read(request)}
        except MemoryError:
            answer = {"error": "reading it takes too much memory", "bound": "yes"}
        except sqlite3.Error as error:
            line = (str(error) or type(error).__name__).splitlines()[0][:300]
            full = "out of memory" in line or "too big" in line
            line = f"reading it takes too much memory ({line})" if full else line
            answer = {"error": line, "bound": "yes" if full or isinstance(error, Unreadable) else ""}
        signal.alarm(0)
        reply(answer)


def _read(request: dict[str, str]) -> str:
    with contextlib.closing(sqlite3.connect(request["uri"], uri=True, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA query_only=on")
        connection.execute("PRAGMA temp_store=memory")  # this process cannot write a file
        connection.execute(f"PRAGMA hard_heap_limit={HEAP_BYTES}").fetchall()
        bound(connection)
        if request["what"] == "digest":
            return content_hash(connection)
        introspect(connection)
        return ""


def bound(connection: sqlite3.Connection) -> None:
    """Limit single values, and refuse a schema without end. Raises Unreadable, sqlite3.Error."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    count, chars = connection.execute(
        "SELECT count(*) FILTER (WHERE type IN ('table', 'view')), total(length(sql)) FROM sqlite_master"
    ).fetchone()
    if count > MAX_TABLES:
        raise Unreadable(f"it has {count} tables and views; at most {MAX_TABLES} are read")
    if chars > MAX_SCHEMA_CHARS:
        raise Unreadable(f"its schema has {chars:.0f} characters; at most {MAX_SCHEMA_CHARS} are read")


def content_hash(connection: sqlite3.Connection) -> str:
    """The hash of schema and rows, as ``fingerprint_sqlite`` gives it. Generated columns follow from the others."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    schema = introspect(connection)
    texts = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    views = sorted((name, " ".join((sql or "").split())) for kind, name, sql in texts if kind == "view")
    collations = sorted((name, re.findall(r"(?i)\bCOLLATE\W+(\w+)", sql or "")) for _, name, sql in texts)
    total = hashlib.sha256(repr((schema, views, collations)).encode("utf-8", "surrogateescape"))
    for table in schema.tables:
        if table.is_view:
            continue
        count = rows = 0
        for row in connection.execute(f"SELECT {_stored(connection, table.name)} FROM {quote_always(table.name)}"):
            digest = hashlib.sha256(repr(row).encode("utf-8", "surrogateescape")).digest()
            rows = (rows + int.from_bytes(digest, "big")) % 2**256
            count += 1
        total.update(f"{table.name}:{count}:{rows:064x}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _stored(connection: sqlite3.Connection, table: str) -> str:
    """The columns to read: all of them, but for those that SQLite computes, which could be of any size."""
    rows = connection.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (table,)).fetchall()
    if not any(hidden in (2, 3) for _, hidden in rows):
        return "*"
    return ", ".join(quote_always(name) for name, hidden in rows if not hidden) or "NULL"
