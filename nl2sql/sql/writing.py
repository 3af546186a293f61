"""A tree written as SQL again with its casts' types as they were, and a long query laid out in lines.

>>> from nl2sql.sql.parse import parse_bounded
>>> written(parse_bounded("SELECT CAST(price AS DECIMAL) / 2 FROM t"), "sqlite")
'SELECT CAST(price AS DECIMAL) / 2 FROM t'

For SQLite sqlglot writes DECIMAL as REAL, BOOLEAN as INTEGER, and ``CAST(d AS DATE)`` as ``DATE(d)``. SQLite takes all
three types for NUMERIC: 5 / 2 would become 2.5 instead of 2, and 2024 '2024-05-01'. Another dialect's SQL is best
translated by sqlglot's own rules. Not covered: types that sqlglot reads as one (STRING as TEXT, BYTE as TINYINT).

>>> print(in_lines("SELECT name FROM staff WHERE team = (SELECT id FROM teams WHERE city = 'Oslo') ORDER BY name"))
SELECT name
FROM staff
WHERE team = (SELECT id
  FROM teams
  WHERE city = 'Oslo')
ORDER BY name
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot.expressions import Expr


KEPT = frozenset("DECIMAL BOOLEAN DATE DATETIME TIME TIMESTAMP TIMESTAMPNTZ BINARY".split())  # noqa: SIM905


def written(tree: Expr, dialect: str, *, strict: bool = False) -> str:
    """The SQL of a tree that was read in the same ``dialect``; the tree stays as it is.

    strict: raises sqlglot's UnsupportedError for what the dialect has no words for.
    """
    from sqlglot import ErrorLevel

    copy = tree.copy()
    keep_types(copy, dialect)
    level = ErrorLevel.RAISE if strict else ErrorLevel.WARN
    return str(copy.sql(dialect=dialect, unsupported_level=level, copy=False))


def keep_types(tree: Expr, dialect: str) -> None:
    """Have sqlglot write the types of a tree's casts as they were read. Changes the tree, for writing only."""
    from sqlglot import expressions as exp

    if dialect != "sqlite":
        return
    for cast in tree.find_all(exp.Cast):
        kind = cast.args["to"]
        if isinstance(kind, exp.DataType) and getattr(kind.this, "name", "") in KEPT:
            cast.set("to", exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=kind.sql()))


# ----------------------------------------------------------------------------------------- in lines
# Only whitespace is changed, and none inside quotes. Not covered: a query that has lines or
# comments of its own, which stays as it was written.

SHORT, LONG = 60, 20_000  # characters: a shorter query stays on one line, a longer one is not read
_OWN_LAYOUT = re.compile(r"\n|--|/\*")
_WORD = re.compile(r"""'(?:[^']|'')*'?|"[^"]*"?|`[^`]*`?|\[[^\]]*\]|\w+|\s+|[^\w\s]""")
_JOINS = ("LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "OUTER")
_SETS = ("UNION", "INTERSECT", "EXCEPT", "ALL")  # before the SELECT of a further query
_CLAUSES = frozenset(
    ("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT", "JOIN", *_JOINS[:-1])
)


def in_lines(sql: str) -> str:
    """The query with a line per clause, those of a subquery indented."""
    query = sql.strip()
    if not SHORT < len(query) <= LONG or _OWN_LAYOUT.search(query):
        return sql
    words = _WORD.findall(query)
    holds_query = [True]  # of each open parenthesis
    text, before = "", ""
    for at, word in enumerate(words):
        upper = word.upper()
        if word == "(":
            holds_query.append(_next(words, at) in ("SELECT", "WITH"))
        elif word == ")" and len(holds_query) > 1:
            holds_query.pop()
        elif (
            holds_query[-1]
            and (upper in _CLAUSES or (upper == "SELECT" and before in _SETS))
            and not _goes_on(upper, before, _next(words, at))
        ):
            text = f"{text.rstrip()}\n{'  ' * (sum(holds_query) - 1)}" if text else text
        text += word if not word.isspace() else "" if text.endswith("\n") else " "
        before = before if word.isspace() else upper
    return text


def _next(words: list[str], at: int) -> str:
    return next((word.upper() for word in words[at + 1 : at + 3] if not word.isspace()), "")


def _goes_on(word: str, before: str, after: str) -> bool:
    """Does a word only look like the start of a clause? LEFT(...), LEFT JOIN's JOIN, a table named order."""
    if (word in ("LEFT", "RIGHT") and after == "(") or (word in ("GROUP", "ORDER") and after != "BY"):
        return True
    if word == "JOIN" or word in _JOINS:
        return before in _JOINS
    return word == "FROM" and before == "DISTINCT"
