"""Spider 2.0-lite's comparison (``spider2``), and the same without its fault (``spider2-rows``).

Every column of the gold has to equal some column of the prediction, numbers within 0.01, NULL taken for 0; further
columns of the prediction do not matter, and one may serve twice. Where the gold has no ORDER BY (``ignore_order``)
each column is sorted by itself, by the text of its cells: rows that were mixed up across columns count as right.
``spider2-rows`` asks one choice of columns to give the gold's rows.

Both sides are read as pandas reads the CSV that the official script writes: a column whose texts all are numbers is
numbers ('007' is 7), "NA", "None", "null", "" are NULL, a column with any other text is texts.

>>> as_pandas_reads(["7", None, 1.5]), as_pandas_reads(["7", "seven"])
((7, None, 1.5), ('7', 'seven'))
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from nl2sql.eval.rules.order import order_matters
from nl2sql.interfaces import RunResult

Column = tuple[Any, ...]

ORDERED = "ORDER BY json_each.key"  # ends a gold table whose order counts (``benchmarks.published``)
CLOSE = 1e-2
SEARCH_ROWS = 1_000_000  # rows that a search for a choice of columns may look at
MISSING = frozenset(
    (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
        *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    )
)
NUMBER = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?\s*|[+-]?inf(?:inity)?", re.I | re.ASCII)
MOST_DIGITS = 19  # of a whole number
TRUTH = {"true": True, "false": False}


def as_pandas_reads(cells: Iterable[Any]) -> Column:
    """A column after it went through a CSV file and ``pandas.read_csv``."""
    texts = [None if cell is None or str(cell) in MISSING else str(cell) for cell in cells]
    known = [text for text in texts if text is not None]
    if known and all(text.lower() in TRUTH for text in known):
        return tuple(None if text is None else TRUTH[text.lower()] for text in texts)
    if all(map(NUMBER.fullmatch, known)):
        return tuple(None if text is None else _number(text) for text in texts)
    return tuple(texts)


def _number(text: str) -> float:
    return int(text) if len(text) < MOST_DIGITS and text.strip().lstrip("+-").isdigit() else float(text)


def compare(gold: Sequence[RunResult], predicted: Sequence[RunResult], *, gold_sql: str, **_: object) -> bool:
    """Whether each column of the gold equals some column of the prediction, on every database."""
    ordered = _ordered(gold_sql)
    return all(
        all(any(_match(ours, theirs, ordered=ordered) for theirs in _columns(actual)) for ours in _columns(expected))
        for expected, actual in zip(gold, predicted, strict=True)
    )


def compare_rows(gold: Sequence[RunResult], predicted: Sequence[RunResult], *, gold_sql: str, **_: object) -> bool:
    """Whether some choice of the prediction's columns gives the gold's rows, on every database."""
    if _ordered(gold_sql):  # columns are compared place by place: rows stay together
        return compare(gold, predicted, gold_sql=gold_sql)
    return all(_rows_match(_columns(e), _columns(a)) for e, a in zip(gold, predicted, strict=True))


def _ordered(gold_sql: str) -> bool:
    return gold_sql.endswith(ORDERED) or order_matters(gold_sql)


def _columns(result: RunResult) -> list[Column]:
    columns = zip(*result.rows, strict=True) if result.rows else ((),) * len(result.columns)
    return [tuple(0 if cell is None else cell for cell in as_pandas_reads(column)) for column in columns]


def _match(ours: Column, theirs: Column, *, ordered: bool) -> bool:
    pair = (ours, theirs) if ordered else (_by_text(ours), _by_text(theirs))
    return len(ours) == len(theirs) and all(map(_close, *pair))


def _by_text(column: Column) -> Sequence[Any]:
    return sorted(column, key=lambda cell: (str(cell), isinstance(cell, int | float)))


def _close(expected: Any, actual: Any) -> bool:
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        return math.isclose(expected, actual, abs_tol=CLOSE)
    return bool(expected == actual)


def _rows_match(gold: Sequence[Column], predicted: Sequence[Column]) -> bool:
    """Depth-first over the gold's columns; the rows of a partial choice must already pair off."""
    left = SEARCH_ROWS

    def extend(chosen: tuple[Column, ...]) -> bool:
        nonlocal left
        if len(chosen) == len(gold):
            return True
        for column in dict.fromkeys(predicted):
            left -= len(column)
            more = (*chosen, column)
            if left > 0 and _pair_off(gold[: len(more)], more) and extend(more):
                return True
        return False

    return extend(())


def _pair_off(gold: Sequence[Column], predicted: Sequence[Column]) -> bool:
    """Whether the rows are the same ones, in sorted order."""
    if len(gold[0]) != len(predicted[0]):
        return False
    ours, theirs = (sorted(zip(*columns, strict=True), key=_rank) for columns in (gold, predicted))
    return all(all(map(_close, *pair)) for pair in zip(ours, theirs, strict=True))


def _rank(row: Column) -> list[tuple[bool, Any]]:
    """Texts before numbers, so that numbers that are only close change the order of rows as little as they can."""
    cells = [(isinstance(cell, int | float), cell) for cell in row]
    return [cell for cell in cells if not cell[0]] + [cell for cell in cells if cell[0]]
