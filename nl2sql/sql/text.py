"""One SQL statement as tokens and as a tree: the small ground that guardrails and validation stand on.

>>> edited("SELECT nme FROM customers", [(7, 10, "name")])
'SELECT name FROM customers'

Everything that reads or edits SQL text here goes by sqlglot's tokens and their offsets, or by the tree; never by
pattern matching on the text, so that a string with ``;`` or ``--`` in it survives. SQLite itself is asked about
syntax where sqlglot cannot parse: it compiles (never runs) the text against an empty in-memory database. Nothing
here touches a user's database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from nl2sql.sql.parse import MAX_CHARS, refuse_unparsable

DIALECT = "sqlite"

Tree: TypeAlias = exp.Expr

# What sqlglot raises on text it was never meant to read: its own errors, deep nesting, and slips of the parser.
_PARSER_FAILURES = (SqlglotError, RecursionError, ValueError, TypeError, AttributeError, LookupError)

_KEYWORDS = """
    abort action add after all alter always analyze and as asc attach autoincrement before begin between by cascade
    case cast check collate column commit conflict constraint create cross current current_date current_time
    current_timestamp database default deferrable deferred delete desc detach distinct do drop each else end escape
    except exclude exclusive exists explain fail filter first following for foreign from full generated glob group
    groups having if ignore immediate in index indexed initially inner insert instead intersect into is isnull join
    key last left like limit match materialized natural no not nothing notnull null nulls of offset on or order
    others outer over partition plan pragma preceding primary query raise range recursive references regexp reindex
    release rename replace restrict returning right rollback row rows savepoint select set table temp temporary then
    ties to transaction trigger unbounded union unique update using vacuum values view virtual when where window
    with without true false
"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""SQLite's keywords (https://www.sqlite.org/lang_keywords.html), plus ``true`` and ``false``, in lower case."""


def tokens(sql: str, dialect: str = DIALECT) -> list[Token] | None:
    """The tokens of a text, comments left out; None where it does not lex (an unclosed quote or comment)."""
    if len(sql) > MAX_CHARS:
        return None
    try:
        return list(sqlglot.tokenize(sql, dialect=dialect))
    except _PARSER_FAILURES:
        return None


def parse(sql: str) -> Tree | None:
    """The tree of exactly one statement; None where sqlglot cannot parse it (SQLite may still accept it)."""
    if len(sql) > MAX_CHARS:
        return None
    try:
        refuse_unparsable(sql)
        trees = [tree for tree in sqlglot.parse(sql, dialect=DIALECT) if tree is not None]
    except _PARSER_FAILURES:
        return None
    return trees[0] if len(trees) == 1 and not isinstance(trees[0], exp.Command) else None


def syntax_error(select: str) -> str | None:
    """SQLite's own word on the syntax of one SELECT (``near "FROM": syntax error``), or None where it is sound.

    The statement is read as the body of a view that nobody creates (EXPLAIN): unknown tables, columns and functions are
    no syntax errors, and no query is planned, whose time grows as 2^n with CTEs that name one another twice.
    """
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("EXPLAIN CREATE VIEW read AS " + select).close()
    except sqlite3.Warning as error:
        return str(error)
    except (sqlite3.Error, ValueError) as error:  # ValueError: NUL characters and lone surrogates
        message = str(error)
        return message if _is_syntax(error, message) else None
    finally:
        connection.close()
    return None


def _is_syntax(error: Exception, message: str) -> bool:
    signs = ("syntax error", "incomplete input", "unrecognized token", "too large", "overflow", "one statement")
    return isinstance(error, (ValueError, sqlite3.DataError)) or any(sign in message for sign in signs)


def top_level(stream: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Index and token of all tokens outside any parenthesis (a parenthesis itself is not outside)."""
    depth = 0
    for index, token in enumerate(stream):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif depth == 0:
            yield index, token


def edited(sql: str, replacements: Sequence[tuple[int, int, str]]) -> str:
    """``sql`` with each ``(start, end, text)`` span (end exclusive) replaced; all other characters stay."""
    for start, end, text in sorted(set(replacements), reverse=True):
        sql = sql[:start] + text + sql[end:]
    return sql


def span(identifier: Tree) -> tuple[int, int] | None:
    """The place of an identifier in the parsed text (end exclusive), quotes included; None where unknown."""
    start, end = identifier.meta.get("start"), identifier.meta.get("end")
    return None if start is None or end is None else (start, end + 1)
