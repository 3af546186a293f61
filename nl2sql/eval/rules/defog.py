"""``defog-subset``: the prediction may have more columns than the gold, and one gold text may stand for several.

After defog's sql-eval: equal once duplicate rows are dropped and columns are sorted by name, or every column of the
gold found among the prediction's. Not reproduced: what pandas does with mixed types and repeated column names, and
numpy's broadcasting, by which a prediction without rows equals a gold of one row.

>>> accepts("SELECT {id, name} FROM t")
('SELECT id FROM t', 'SELECT  name FROM t', 'SELECT id,  name FROM t')
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from nl2sql.interfaces import RunResult

Row = tuple[Any, ...]

RELATIVE, ABSOLUTE = 1e-5, 1e-8  # how far numbers of a subset may lie apart
ASKS_FOR_ORDER = re.compile(r"\b(?:order|sort|arrange)\b", re.IGNORECASE)
MAX_CHOICES = 6  # columns in one pair of braces that are expanded: 63 golds
PIECE = re.compile(r"'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?|--[^\n]*|/\*.*?(?:\*/|\Z)|.", re.DOTALL)


def accepts(gold_sql: str) -> tuple[str, ...]:
    """The golds that ``gold_sql`` stands for: ``a; b`` is either, ``{x, y}`` any choice of those columns."""
    statements: list[list[str]] = [[]]
    for piece in PIECE.findall(gold_sql):
        if piece == ";":
            statements.append([])
        else:
            statements[-1].append(piece)
    golds = [choice for pieces in statements if any(map(_says_something, pieces)) for choice in _choices(pieces)]
    return tuple(dict.fromkeys(golds)) or (gold_sql,)


def _says_something(piece: str) -> bool:
    return bool(piece.strip()) and not piece.startswith(("--", "/*"))


def _choices(pieces: Sequence[str]) -> list[str]:
    sql = "".join(pieces).strip()
    plain = "".join(piece if len(piece) == 1 else "x" * len(piece) for piece in pieces).strip()  # no quoted braces
    start = plain.find("{")
    end = plain.find("}", start + 1)
    options = sql[start + 1 : end].split(",") if 0 <= start < end else []
    if not options or len(options) > MAX_CHOICES:
        return [sql]
    head, tail = sql[:start], sql[end + 1 :]
    chosen = [", ".join(some) for size in range(1, len(options) + 1) for some in combinations(options, size)]
    return [head + columns + tail.replace("GROUP BY {}", f"GROUP BY {columns}") for columns in chosen]


def compare(gold: Sequence[RunResult], predicted: Sequence[RunResult], *, question: str = "", **_: object) -> bool:
    """Equal, or the gold's columns among the prediction's, on every database.

    The order of rows counts only where ``question`` asks for an order.
    """
    ordered = ASKS_FOR_ORDER.search(question) is not None
    return all(
        _exact(expected, actual, ordered) or _subset(expected, actual, ordered)
        for expected, actual in zip(gold, predicted, strict=True)
    )


def _exact(gold: RunResult, predicted: RunResult, ordered: bool) -> bool:
    if len(gold.columns) != len(predicted.columns):
        return False
    return gold.rows == predicted.rows or _normal(gold, ordered) == _normal(predicted, ordered)


def _normal(result: RunResult, ordered: bool) -> list[Row]:
    by_name = sorted(range(len(result.columns)), key=lambda place: result.columns[place])
    rows = [tuple(row[place] for place in by_name) for row in result.rows]
    return _distinct(rows, ordered)


def _distinct(rows: Sequence[Row], ordered: bool) -> list[Row]:
    distinct = list(dict.fromkeys(rows))
    return distinct if ordered else sorted(distinct, key=lambda row: tuple(map(_rank, row)))


def _subset(gold: RunResult, predicted: RunResult, ordered: bool) -> bool:
    if not gold.rows or len(gold.rows) != len(predicted.rows):
        return False
    free = {place: sorted(column, key=_rank) for place, column in enumerate(zip(*predicted.rows, strict=True))}
    chosen = []
    for column in zip(*gold.rows, strict=True):
        wanted = sorted(column, key=_rank)
        place = next((p for p, cells in free.items() if _close(wanted, cells)), None)
        if place is None:
            return False
        free.pop(place)  # taken for good: the first that fits, without looking back
        chosen.append(place)
    ours = _distinct(gold.rows, ordered)
    theirs = _distinct([tuple(row[place] for place in chosen) for row in predicted.rows], ordered)
    return len(ours) == len(theirs) and all(map(_close, ours, theirs))


def _close(expected: Sequence[Any], actual: Sequence[Any]) -> bool:
    return len(expected) == len(actual) and all(map(_cells_close, expected, actual))


def _cells_close(expected: Any, actual: Any) -> bool:
    if expected == actual:
        return True
    numbers = isinstance(expected, int | float) and isinstance(actual, int | float)
    return numbers and math.isclose(expected, actual, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _rank(cell: Any) -> tuple[int, Any]:
    """A key by which cells of all types can be sorted."""
    if cell is None:
        return (3, 0)
    if isinstance(cell, int | float):
        return (0, cell)
    return (1, cell) if isinstance(cell, str) else (2, cell)
