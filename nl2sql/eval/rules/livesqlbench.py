"""LiveSQLBench's default comparison of SELECT statements, faults included.

Before execution comments, the word DISTINCT and every ROUND are taken out of both statements; numbers are rounded to
two places, and the rows compared as sets, columns in their order. Where the item's ``conditions`` ask for an order,
``IN_ORDER`` ends the gold, and the lists of rows have to be equal. Test cases of an item's own are Python code, and
are not run. Not reproduced: that no rows are never right.

>>> prepare("SELECT DISTINCT ROUND(a / (b + 1), 2) FROM t -- all\\n")
'SELECT a / (b + 1) FROM t'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nl2sql.databases.sqlite.process import MAX_SQL_CHARS
from nl2sql.interfaces import RunResult

IN_ORDER = "/* in this order */"
COMMENT = re.compile(r"/\*.*?(?:\*/|(?P<open>\Z))|--[^\r\n]*(?P<last>\Z)?", re.DOTALL)  # to the end, for linear time
BLANK_LINES = re.compile(r"\n\s*\n+")
ROUND = re.compile(r"ROUND\s*\(", re.IGNORECASE)  # also of a longer word
PLACES = 2
MOST_ROUNDS = 50  # in one statement; further ones stay


def prepare(sql: str) -> str:
    """The statement that is executed for ``sql``."""
    if len(sql) > MAX_SQL_CHARS:
        return sql  # the sandbox refuses it
    text = BLANK_LINES.sub("\n", COMMENT.sub(_without, sql)).strip()
    return _without_round(" ".join(word for word in text.split(" ") if word.lower() != "distinct"))


def _without(comment: re.Match[str]) -> str:
    """A comment that nothing ends stays where it is."""
    return comment[0] if comment.lastgroup else ""


def _without_round(sql: str) -> str:
    """Each ``ROUND(x, n)`` is its ``x``; brackets inside strings count, too."""
    for _ in range(MOST_ROUNDS):
        match = ROUND.search(sql)
        if not match:
            break
        depth, argument, end = 0, 0, 0
        for place in range(match.end(), len(sql)):
            if depth == 0 and sql[place] in ",)":
                argument = argument or place
            depth += (sql[place] == "(") - (sql[place] == ")")
            if depth < 0:
                end = place
                break
        if not end:
            return sql
        sql = sql[: match.start()] + sql[match.end() : argument].strip() + sql[end + 1 :]
    return sql


def compare(gold: Sequence[RunResult], predicted: Sequence[RunResult], *, gold_sql: str, **_: object) -> bool:
    """Whether the rounded rows are equal on every database: as lists where the gold ends in ``IN_ORDER``, else sets."""
    kind = list if gold_sql.endswith(IN_ORDER) else set
    return all(kind(_rounded(e)) == kind(_rounded(a)) for e, a in zip(gold, predicted, strict=True))


def _rounded(result: RunResult) -> list[tuple[Any, ...]]:
    return [tuple(round(cell, PLACES) if isinstance(cell, float) else cell for cell in row) for row in result.rows]
