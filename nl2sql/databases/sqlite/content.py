"""The hash of what a SQLite database holds: schema and rows, whatever the bytes of its file."""

from __future__ import annotations

import hashlib
import re
import sqlite3

from nl2sql.databases.schema import introspect, quote_always


def content_hash(connection: sqlite3.Connection) -> str:
    """The hash of an open database, as ``fingerprint_sqlite`` gives it. Generated columns follow from the others."""
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
