"""What every engine's adapter shares: a text that is not one query refused early, and tables as plain JSON.

>>> one_query("SELECT 1; ;", "duckdb")
'SELECT 1'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

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


# ----------------------------------------------------------------------------------- tables as JSON


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
