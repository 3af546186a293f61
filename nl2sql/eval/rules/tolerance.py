"""``bag~REL``: the bag rule where fractional numbers are equal within a relative tolerance that the name states.

Being close is not transitive, so rows cannot be counted under a common name as ``bag`` does; they are paired off. Two
whole numbers are still equal only exactly: a count or a key that is off by one is another answer.

>>> numbers_close(2.0, 2.001, 1e-3), numbers_close(1000, 1001, 1e-3)
(True, False)
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

Column: TypeAlias = tuple[Any, ...]
Numbers: TypeAlias = tuple[float, ...]

PAIRING_ROWS = 100  # rows alike in all but their numbers that are paired off exactly
SEARCH_CELLS = 1_000_000  # cells that one search for a column assignment may look at (some seconds)
SEARCH_TRIALS = 100  # columns that it may try at least


def close_bag(gold: Sequence[Column], predicted: Sequence[Column], tolerance: float) -> bool:
    """Whether some assignment of columns lets the rows be paired off, all cells close. Column 0 is fixed.

    False, with a warning, where the search runs into its bound. Rows that agree in everything but their numbers are
    paired in sorted order, and only up to ``PAIRING_ROWS`` of them in every other way as well.
    """
    return _Search(gold, predicted, tolerance).extend([gold[0]], [predicted[0]], frozenset())


def numbers_close(first: float, second: float, tolerance: float) -> bool:
    """Whether two numbers are equal, or, where one has a fractional part, within ``tolerance`` (relative)."""
    if first == second:
        return True
    if not (math.isfinite(first) and math.isfinite(second)) or (
        float(first).is_integer() and float(second).is_integer()
    ):
        return False
    return abs(first - second) <= tolerance * max(abs(first), abs(second))


class _Search:
    """Depth-first over the gold's columns; the rows of a partial assignment must already pair off."""

    def __init__(self, gold: Sequence[Column], predicted: Sequence[Column], tolerance: float) -> None:
        self.gold, self.predicted, self.tolerance = gold, predicted, tolerance
        self.kinds = [_kinds(gold[0], column) for column in gold]
        self.their_kinds = [_kinds(predicted[0], column) for column in predicted]
        self.trials_left = max(SEARCH_TRIALS, SEARCH_CELLS // max(1, len(gold[0])))
        self.gave_up = False

    def extend(self, ours: list[Column], theirs: list[Column], used: frozenset[int]) -> bool:
        depth = len(ours)
        if depth == len(self.gold):
            return True
        tried: set[Column] = set()
        places = sorted(range(1, len(self.predicted)), key=lambda place: (place != depth, place))
        for place in places:
            column = self.predicted[place]
            if place in used or column in tried or self.kinds[depth] != self.their_kinds[place]:
                continue
            if self.trials_left <= 0:
                if not self.gave_up:
                    log.warning("gave up the search for a column assignment over %d columns", len(self.gold) - 1)
                self.gave_up = True
                return False
            self.trials_left -= 1
            tried.add(column)
            more_ours, more_theirs = [*ours, self.gold[depth]], [*theirs, column]
            if _rows_pair_off(more_ours, more_theirs, self.tolerance) and self.extend(
                more_ours, more_theirs, used | {place}
            ):
                return True
        return False


def is_number(cell: Any) -> bool:
    return isinstance(cell, int | float)


def _kinds(tags: Column, column: Column) -> Counter[Any]:
    """The kinds of a column's cells, which two columns have to share before their numbers are looked at."""
    return Counter((tag, None if is_number(cell) else (cell,)) for tag, cell in zip(tags, column, strict=True))


def _rows_pair_off(gold: Sequence[Column], predicted: Sequence[Column], tolerance: float) -> bool:
    ours, theirs = _by_rest(gold), _by_rest(predicted)
    return ours.keys() == theirs.keys() and all(
        len(rows) == len(theirs[rest]) and _pair_off(sorted(rows), sorted(theirs[rest]), tolerance)
        for rest, rows in ours.items()
    )


def _by_rest(columns: Sequence[Column]) -> dict[Any, list[Numbers]]:
    """The rows' numbers, by everything else in the row. The tag (column 0) is a number that has to be equal."""
    groups: dict[Any, list[Numbers]] = {}
    for tag, *row in zip(*columns, strict=True):
        rest = (tag, *(None if is_number(cell) else (cell,) for cell in row))
        groups.setdefault(rest, []).append(tuple(cell for cell in row if is_number(cell)))
    return groups


def _pair_off(ours: list[Numbers], theirs: list[Numbers], tolerance: float) -> bool:
    def fit(expected: Numbers, actual: Numbers) -> bool:
        return all(numbers_close(a, b, tolerance) for a, b in zip(expected, actual, strict=True))

    if all(map(fit, ours, theirs)):
        return True
    if len(ours) > PAIRING_ROWS:
        return False
    partners: dict[int, int] = {}  # predicted row -> gold row

    def place(row: int, seen: set[int]) -> bool:
        for partner, other in enumerate(theirs):
            if partner not in seen and fit(ours[row], other):
                seen.add(partner)
                if partner not in partners or place(partners[partner], seen):
                    partners[partner] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(ours)))
