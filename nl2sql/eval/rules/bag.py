"""The ``bag`` rule, and ``bag~REL``: the same where fractional numbers are equal within a tolerance.

Same number of columns, same multiset of rows under one assignment of predicted to gold columns; the order of rows
counts only where the gold's outermost query has an ORDER BY (see ``order``), and among rows with equal keys only where
the keys are not in the result; keys are equal where the engine takes them for equal, if it was asked (``placed``).
Values: ``1 == 1.0 == TRUE``, NULL equals NULL, text and blobs are equal byte for byte, whole numbers exactly; a number
with a fractional part equals another number within ``ROUND_OFF`` (relative), so that the order in which a SUM adds up
does not decide; ``bag~REL`` widens that to ``REL``. Column names are not looked at.

>>> numbers, texts_first = RunResult(True, ("a", "b"), ((1, "x"),)), RunResult(True, ("b", "a"), (("x", 1.0),))
>>> results_match(numbers, texts_first, ordered=False)
True

>>> numbers_close(2.0, 2.001, 1e-3), numbers_close(1000, 1001, 1e-3)
(True, False)
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from nl2sql.eval.rules.order import Placed, gold_order
from nl2sql.interfaces import RunResult

# ------------------------------------------------------------------------------- within a tolerance
# Being close is not transitive, so rows cannot be counted under a common name as ``bag`` does; they
# are paired off. Two whole numbers are still equal only exactly: a count or a key that is off by
# one is another answer.

log = logging.getLogger(__name__)

Column: TypeAlias = tuple[Any, ...]
Numbers: TypeAlias = tuple[float, ...]
Step: TypeAlias = Callable[[int, Column, Any], Any]

PAIRING_ROWS = 100  # rows alike in all but their numbers that are paired off exactly
TOLERANT_CELLS = 1_000_000  # cells that one search for a column assignment may look at (some seconds)
TOLERANT_TRIALS = 100  # columns that it may try at least


def close_bag(gold: Sequence[Column], predicted: Sequence[Column], tolerance: float) -> bool:
    """Whether some assignment of columns lets the rows be paired off, all cells close. Column 0 is fixed.

    False, with a warning, where the search runs into its bound. Rows that agree in everything but their numbers are
    paired in sorted order, and only up to ``PAIRING_ROWS`` of them in every other way as well.
    """
    ours, theirs = ([_kinds(columns[0], column) for column in columns] for columns in (gold, predicted))
    candidates = [
        sorted((p for p in range(1, len(predicted)) if theirs[p] == ours[d]), key=lambda p: (p != d, p))
        for d in range(1, len(gold))
    ]

    def step(depth: int, column: Column, sides: tuple[list[Column], list[Column]]) -> Any:
        more = [*sides[0], gold[depth + 1]], [*sides[1], column]
        return more if _rows_pair_off(*more, tolerance) else None

    trials = max(TOLERANT_TRIALS, TOLERANT_CELLS // max(1, len(gold[0])))
    return assignment_exists(predicted, candidates, trials, step, ([gold[0]], [predicted[0]]))


def numbers_close(first: float, second: float, tolerance: float) -> bool:
    """Whether two numbers are equal, or, where one has a fractional part, within ``tolerance`` (relative)."""
    if first == second:
        return True
    if not (math.isfinite(first) and math.isfinite(second)) or (
        float(first).is_integer() and float(second).is_integer()
    ):
        return False
    return abs(first - second) <= tolerance * max(abs(first), abs(second))


def assignment_exists(
    predicted: Sequence[Column], candidates: Sequence[Sequence[int]], trials: int, step: Step, start: Any
) -> bool:
    """Whether an assignment of predicted to gold columns goes through, depth-first over the gold's columns.

    ``candidates``: per column of the gold the places that may be its. ``step`` gives what is known once a column is
    assigned too, None where the rows cannot match. False, with a warning, after so many ``trials``.
    """
    left, gave_up = trials, False

    def extend(depth: int, known: Any, used: frozenset[int]) -> bool:
        nonlocal left, gave_up
        if depth == len(candidates):
            return True
        tried: set[Column] = set()
        for place in candidates[depth]:
            column = predicted[place]
            if place in used or column in tried:  # columns with the same data are interchangeable
                continue
            if left <= 0:
                if not gave_up:
                    log.warning("gave up the search for a column assignment over %d columns", len(candidates))
                gave_up = True
                return False
            left -= 1
            tried.add(column)
            more = step(depth, column, known)
            if more is not None and extend(depth + 1, more, used | {place}):
                return True
        return False

    return extend(0, start, frozenset())


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


# ----------------------------------------------------------------------------------------- the rule

ROUND_OFF = 1e-9  # relative; more than the order changes in which a SUM adds up
SEARCH_CELLS = 4_000_000  # cells that one search for a column assignment may look at (about two seconds)
SEARCH_TRIALS = 200  # columns that it may try at least, however many rows there are

Cells: TypeAlias = list[tuple[Any, ...]]  # rows; the first cell is a tag: database, or place in the order
Ranks: TypeAlias = Sequence[int | None]  # what the engine said of the gold's rows, in order (``order.placed``)


def compare(
    gold: Sequence[RunResult],
    predicted: Sequence[RunResult],
    *,
    gold_sql: str,
    tolerance: float = ROUND_OFF,
    **_: object,
) -> bool:
    """The rule as ``Rule.compare``: ``suites_match`` with the order that ``gold_sql`` asks for."""
    order = gold_order(gold_sql, gold[0]) if gold else {"ordered": False}
    return suites_match(gold, predicted, **order, tolerance=tolerance)


def results_match(gold: RunResult, predicted: RunResult, *, ordered: bool, keys: Sequence[int] | None = None) -> bool:
    """Whether two results are the same answer under the ``bag`` rule. A failed or truncated result matches nothing.

    ``ordered``: the gold orders its rows (``order_matters``). ``keys``: columns of the gold's result that hold the
    keys of that order (``order_keys``); rows with equal keys may then stand in any order.
    """
    return suites_match([gold], [predicted], ordered=ordered, keys=keys)


def suites_match(
    gold: Sequence[RunResult],
    predicted: Sequence[RunResult],
    *,
    ordered: bool,
    keys: Sequence[int] | None = None,
    tolerance: float = ROUND_OFF,
) -> bool:
    """The ``bag`` rule over several databases at once: one column assignment has to fit all of them.

    ``gold[i]`` and ``predicted[i]`` are the two queries' results on database i; ``tolerance`` is relative. Where the
    search for an assignment runs into its bound (``SEARCH_CELLS``) the verdict is False and a warning is logged.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold results but {len(predicted)} predicted ones")
    for expected, actual in zip(gold, predicted, strict=True):
        if not (expected.success and actual.success) or expected.truncated or actual.truncated:
            return False
        if _width(expected) != _width(actual) or len(expected.rows) != len(actual.rows):
            return False
    gold_rows, predicted_rows = (  # each row behind the number of its database
        [(n, *row) for n, result in enumerate(results) for row in result.rows] for results in (gold, predicted)
    )
    ranks = [r for g in gold for r in (g.places if isinstance(g, Placed) else [None] * len(g.rows))]
    exact = _in_order(gold_rows, predicted_rows, keys, ranks) if ordered else (gold_rows, predicted_rows)
    if not gold_rows or Counter(exact[0]) == Counter(exact[1]):
        return True
    names, clear = _names(gold_rows, predicted_rows)
    named = _renamed(gold_rows, names), _renamed(predicted_rows, names)
    tags = [row[:1] for row in (_in_order(*named, keys, ranks)[0] if ordered else [])]
    ours, theirs = (_columns(rows, tags) for rows in named)
    if clear and columns_match(ours, theirs):
        return True
    if clear and tolerance <= ROUND_OFF:
        return False
    return close_bag(_columns(gold_rows, tags), _columns(predicted_rows, tags), tolerance)


def _columns(rows: Cells, tags: Cells) -> list[Column]:
    """The columns, the first of them ``tags`` (one cell per row) where there are any."""
    columns = list(zip(*rows, strict=True))
    return [tuple(tag for (tag,) in tags), *columns[1:]] if tags else columns


def _in_order(gold: Cells, predicted: Cells, keys: Sequence[int] | None, ranks: Ranks) -> tuple[Cells, Cells]:
    """Both behind the number of a row's place in the gold's order instead; rows with equal keys share a place."""
    places = list(_places(gold, keys, ranks))
    tagged = ([(place, *row[1:]) for place, row in zip(places, rows, strict=True)] for rows in (gold, predicted))
    return next(tagged), next(tagged)


def _places(gold: Cells, keys: Sequence[int] | None, ranks: Ranks) -> Iterator[int]:
    number = -1
    previous: tuple[Any, ...] | None = None
    for row, rank in zip(gold, ranks, strict=True):
        key = (row[0], *((row[k + 1] for k in keys) if rank is None else (rank,))) if keys is not None else None
        number += key is None or key != previous
        previous = key
        yield number


def _width(result: RunResult) -> int:
    return len(result.columns) or (len(result.rows[0]) if result.rows else 0)


def _names(gold: Cells, predicted: Cells) -> tuple[dict[float, float], bool]:
    """(number -> the one that stands for all within round-off of it, whether that is the same as being close).

    Made from both sides together: rounding each side by itself would part neighbours at a rounding boundary. Being
    close is not transitive: of 0.9 s and 0.9 s more in a row of time stamps the third is close to the second alone.
    Where there is such a chain, names cannot say which numbers are equal, and rows have to be paired off. Two whole
    numbers are never close.
    """
    numbers = {v for rows in (gold, predicted) for row in rows for v in row[1:] if is_number(v) and math.isfinite(v)}
    if all(map(_is_whole, numbers)):
        return {}, True
    names: dict[float, float] = {}
    first = previous = before = math.inf  # of this group, of all so far, and of the group before
    clear = True
    for value in sorted(numbers):
        if not numbers_close(first, value, ROUND_OFF):
            first, before = value, previous
        clear = clear and not numbers_close(before, value, ROUND_OFF)
        names[value] = first
        previous = value
    return names, clear


def _is_whole(value: float) -> bool:
    return isinstance(value, int) or value.is_integer()


def _renamed(rows: Cells, names: dict[float, float]) -> Cells:
    return [tuple(names.get(v, v) if is_number(v) else v for v in row) for row in rows] if names else rows


def columns_match(gold: Sequence[Column], predicted: Sequence[Column]) -> bool:
    """Whether some assignment of predicted to gold columns makes the multisets of rows equal. Column 0 is fixed."""
    tags = gold[0]
    if Counter(_row_sums(gold)) != Counter(_row_sums(predicted)):
        return False
    ours = [_signature(tags, column) for column in gold[1:]]
    theirs = [_signature(tags, column) for column in predicted[1:]]
    if Counter(ours) != Counter(theirs):
        return False
    sizes = Counter(ours)
    waiting: dict[Any, list[int]] = {}
    for j, signature in enumerate(theirs, 1):
        waiting.setdefault(signature, []).append(j)
    first_guess = [predicted[waiting[signature].pop(0)] for signature in ours]
    if Counter(zip(*gold, strict=True)) == Counter(zip(tags, *first_guess, strict=True)):
        return True
    if max(sizes.values()) == 1:
        return False
    order = sorted(range(len(ours)), key=lambda index: (sizes[ours[index]], index))  # what is certain first
    candidates = [
        sorted((j for j, other in enumerate(theirs) if other == ours[i]), key=lambda j: (j != i, j)) for i in order
    ]
    columns = [gold[i + 1] for i in order]

    def step(depth: int, column: Column, keys: tuple[Column, Column]) -> Any:
        """``keys``: for every row a number that stands for its cells in the columns assigned so far."""
        numbers: dict[Hashable, int] = {}
        left, right = (
            tuple(numbers.setdefault(pair, len(numbers)) for pair in zip(known, cells, strict=True))
            for known, cells in zip(keys, (columns[depth], column), strict=True)
        )
        return (left, right) if Counter(left) == Counter(right) else None

    trials = max(SEARCH_TRIALS, SEARCH_CELLS // max(1, len(tags)))
    return assignment_exists(predicted[1:], candidates, trials, step, (tags, tags))


def _signature(tags: Column, column: Column) -> frozenset[tuple[Any, int]]:
    return frozenset(Counter(zip(tags, column, strict=True)).items())


def _row_sums(columns: Sequence[Column]) -> Iterable[Hashable]:
    """A number per row that no reordering of its cells changes: unequal sums cannot match."""
    return ((row[0], sum(map(hash, row))) for row in zip(*columns, strict=True))
