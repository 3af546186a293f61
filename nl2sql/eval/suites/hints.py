"""Hints of what a gold and its neighbours ask of the data, and the profile of one candidate database.

``SELECT name FROM shop WHERE sales > 30`` gives ``sales`` the good values 31 and 37, and the bad ones 30 and 29.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlglot import expressions as exp

from nl2sql.eval.replicas.values import is_date
from nl2sql.eval.suites.mutator import NULLS, REPEATS, TIES, Neighbour, Scope, constant_value, scopes_of
from nl2sql.eval.suites.source import SourceDatabase

Cell: TypeAlias = tuple[str, int]  # table in lower case, number of the column

LARGEST_SIZE = 250  # a LIMIT or count above this is not reached in a generated database
MIRROR: dict[Any, Any] = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE}
AGGREGATES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)


@dataclass
class Hints:
    tables: set[str] = field(default_factory=set)  # named in the golds, lower case
    good: dict[Cell, list[Any]] = field(default_factory=dict)  # values that satisfy a condition of a gold
    bad: dict[Cell, list[Any]] = field(default_factory=dict)  # values that just fail it
    constants: dict[Cell, list[Any]] = field(default_factory=dict)
    nulls: set[Cell] = field(default_factory=set)  # columns in which NULLs decide
    ties: set[Cell] = field(default_factory=set)  # columns in which repeated values decide
    repeats: set[str] = field(default_factory=set)  # tables in which rows that nearly repeat decide
    held: dict[Cell, Any] = field(default_factory=dict)  # values that most rows have
    sizes: set[int] = field(default_factory=set)  # how many rows a group has to have
    limits: set[int] = field(default_factory=set)  # and the result
    grouped: set[Cell] = field(default_factory=set)
    ordered: set[Cell] = field(default_factory=set)
    linked: dict[Cell, Cell] = field(default_factory=dict)  # union-find of columns that are compared with each other

    def root(self, cell: Cell) -> Cell:
        while (above := self.linked.get(cell, cell)) != cell:
            cell = above
        return cell

    def link(self, cell: Cell, other: Cell) -> None:
        a, b = self.root(cell), self.root(other)
        if a != b:
            self.linked[b] = a
            self.linked.setdefault(a, a)


def read_hints(
    golds: Iterable[exp.Expr], neighbours: Iterable[Neighbour], source: SourceDatabase, *, beside: bool = False
) -> Hints:
    """The hints of golds and neighbours. ``beside``: with the values just beside the neighbours' constants."""
    hints = Hints()
    for tree in golds:
        _Reader(tree, source, hints).read()
    for neighbour in neighbours:
        if neighbour.touches:
            table, column, value = neighbour.touches
            cell = (table.lower(), column)
            if value == REPEATS:
                hints.repeats.add(cell[0])
            elif value in (NULLS, TIES):
                (hints.nulls if value == NULLS else hints.ties).add(cell)
            else:
                near = [_step(value, 1), _step(value, -1), value + "a" if isinstance(value, str) else value]
                _add(hints.constants, cell, [value, *(near if beside else ())])
    for known in (hints.good, hints.bad, hints.constants):
        for cell in list(known):
            _refer(cell, known[cell], source, hints)
    return hints


def hold_values(hints: Hints, source: SourceDatabase, rng: random.Random) -> Hints:
    """Most rows shall have one of the constants in every column that has some, so that many conditions turn at once."""
    for cell, values in hints.constants.items():
        if values and cell not in hints.held:
            hints.held[cell] = rng.choice(values)
    for cell, value in list(hints.held.items()):
        for key in source.by_name[cell[0]].foreign_keys:
            if key.columns == (cell[1],):
                hints.held[key.parent.lower(), key.parent_columns[0]] = value
    return hints


def _refer(cell: Cell, values: list[Any], source: SourceDatabase, hints: Hints) -> None:
    """A constant of a foreign key has to be among the parents' keys first."""
    for key in source.by_name[cell[0]].foreign_keys:
        if cell[1] in key.columns:
            parent = (key.parent.lower(), key.parent_columns[key.columns.index(cell[1])])
            if not set(map(repr, values)) <= set(map(repr, hints.constants.get(parent, []))):
                _add(hints.constants, parent, values)
                _refer(parent, values, source, hints)


def _add(into: dict[Cell, list[Any]], cell: Cell, values: Iterable[Any]) -> None:
    known = into.setdefault(cell, [])
    known.extend(v for v in values if v is not None and v not in known)


class _Reader:
    def __init__(self, tree: exp.Expr, source: SourceDatabase, hints: Hints) -> None:
        self.tree, self.source, self.hints = tree, source, hints
        self.scopes = scopes_of(tree, source)

    def read(self) -> None:
        hints = self.hints
        hints.tables |= {t.name.lower() for t in self.tree.find_all(exp.Table)} & self.source.by_name.keys()
        for limit in self.tree.find_all(exp.Limit, exp.Offset):
            self._size(limit.expression, hints.limits)
        for node in self.tree.find_all(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE):
            self._comparison(node)
        for like in self.tree.find_all(exp.Like):
            self._like(like)
        for listed in self.tree.find_all(exp.In):
            self._in(listed)
        for between in self.tree.find_all(exp.Between):
            cell = self._cell(between.this)
            low, high = constant_value(between.args["low"]), constant_value(between.args["high"])
            if cell and low is not None and high is not None:
                _add(hints.good, cell, [low, high])
                _add(hints.bad, cell, [_step(low, -1), _step(high, 1)])
        for both in self.tree.find_all(exp.Union, exp.Intersect, exp.Except):
            sides = [side.selects for side in (both.left, both.right) if isinstance(side, exp.Query)]
            if len(sides) == 2:
                for first, second in zip(*sides, strict=False):
                    self._link(first.unalias(), second.unalias())
        for group in self.tree.find_all(exp.Group):
            hints.grouped |= {cell for key in group.expressions if (cell := self._cell(key))}
        for ordered in self.tree.find_all(exp.Ordered):
            hints.ordered |= {cell for node in ordered.find_all(exp.Column) if (cell := self._cell(node))}

    def _cell(self, node: Any) -> Cell | None:
        """The stored column that a node means, through functions with one column in them."""
        if not isinstance(node, exp.Expr) or isinstance(node, (exp.Subquery, exp.Select)):
            return None
        columns = list(node.find_all(exp.Column))
        if len(columns) != 1:
            return None
        node = columns[0]
        select = node.find_ancestor(exp.Select)
        scope: Scope | None = self.scopes.get(id(select)) if select else None
        place = scope.find(node) if scope else None
        return (place[0].table((place[1], place[2])).name.lower(), place[2]) if place else None

    def _link(self, node: Any, other: Any) -> None:
        a, b = self._cell(node), self._cell(other)
        if a and b and a != b:
            self.hints.link(a, b)

    def _size(self, node: Any, into: set[int] | None = None) -> None:
        value = constant_value(node)
        if isinstance(value, int) and 0 <= value <= LARGEST_SIZE:
            (self.hints.sizes if into is None else into).add(value)

    def _comparison(self, node: Any) -> None:
        left, right, operator = node.this, node.expression, type(node)
        if constant_value(left) is not None and constant_value(right) is None:
            left, right, operator = right, left, MIRROR.get(operator, operator)
        value = constant_value(right)
        if value is None:
            if isinstance(right, (exp.Subquery, exp.Select)):
                select = right.find(exp.Select)
                items = select.selects if select else []
                self._link(left, items[0].unalias() if items else None)
            elif isinstance(left, (exp.Column, *AGGREGATES)):
                self._link(left, right)
            return
        if left.find(exp.Count):
            self._size(right)
            return
        if isinstance(left, (exp.Subquery, exp.Select)):
            if left.find(exp.Count):
                self._size(right)
            return
        cell = self._cell(left)
        if cell is None:
            return
        if not isinstance(left, (exp.Column, *AGGREGATES)) and self._date_part(cell, value):
            return
        below, above = _step(value, -1), _step(value, 1)
        good, bad = {
            exp.EQ: ([value], [above, below]),
            exp.NEQ: ([above, below], [value]),
            exp.LT: ([below, _step(value, -7)], [value, above]),
            exp.LTE: ([value, below], [above]),
            exp.GT: ([above, _step(value, 7)], [value, below]),
            exp.GTE: ([value, above], [below]),
        }[operator]
        if left.find(exp.Sum):
            good = [*good, *(_step(v / 3, 0) for v in good if isinstance(v, int | float))]
        _add(self.hints.good, cell, good)
        _add(self.hints.bad, cell, bad)

    def _date_part(self, cell: Cell, value: Any) -> bool:
        """A part of a date is compared (strftime, substr): the column's dates with that part, and with one beside."""
        text = str(value)
        if not re.fullmatch(r"\d{4}|\d{1,2}|\d{4}-\d{2}(-\d{2})?", text):
            return False
        table = self.source.by_name[cell[0]]
        own = [row[cell[1]] for row in table.rows if is_date(row[cell[1]])][:6]
        before = [date for date in self.hints.good.get(cell, []) if is_date(date)]  # they have another part already
        failing = [date for date in self.hints.bad.get(cell, []) if is_date(date)]
        for date in [*own, *before]:
            _add(self.hints.good, cell, _moved(date, text, (0,)))
            _add(self.hints.bad, cell, _moved(date, text, (-1, 1)))
        for date in failing[:6]:
            _add(self.hints.bad, cell, _moved(date, text, (0,)))
        if before:  # only those with all parts satisfy
            self.hints.good[cell] = [date for old in before for date in _moved(old, text, (0,))]
        return bool(own)

    def _like(self, node: Any) -> None:
        cell, pattern = self._cell(node.this), constant_value(node.expression)
        if not cell or not isinstance(pattern, str):
            return
        core = pattern.replace("_", "x")
        parts = [part for part in core.split("%") if part]
        joined = "q".join(parts)
        matching = [re.sub("%+", fill, core) for fill in ("", "q", " ab ")]
        good, bad = self.hints.good, self.hints.bad
        if node.args.get("negate") or isinstance(node.parent, exp.Not):
            good, bad = bad, good
        _add(good, cell, [*matching, matching[-1].upper(), matching[-1].lower()])  # LIKE ignores case
        shorter = [joined[:-1], joined[1:]] if len(joined) > 1 else ["zz"]
        _add(bad, cell, [joined + "w", "w" + joined, "w" + joined + "w", *shorter, joined.swapcase()])

    def _in(self, node: Any) -> None:
        cell = self._cell(node.this)
        values = [v for item in node.expressions if (v := constant_value(item)) is not None]
        if cell and values:
            _add(self.hints.good, cell, values)
            _add(self.hints.bad, cell, [_step(v, 1) for v in values[:2]])
        query = node.args.get("query")
        select = query.find(exp.Select) if query else None
        if select is not None and select.selects:
            self._link(node.this, select.selects[0].unalias())


def _moved(date: str, part: str, steps: Iterable[int]) -> list[str]:
    """The date with its year (and more), month and day replaced by ``part``, or by what is ``steps`` beside it."""
    if len(part) >= 4:
        return [(_step(part[:4], by) if by else part[:4]) + part[4:] + date[len(part) :] for by in steps]
    numbers = [str(max(1, int(part) + by)).zfill(2) for by in steps]
    months = [date[:5] + number + date[7:] for number in numbers if int(number) <= 12]
    return months + [date[:8] + number + date[10:] for number in numbers if not months]


def _step(value: Any, by: int) -> Any:
    """A value a little above or below in the column's order."""
    if isinstance(value, float) and not value.is_integer():
        return round(value + by, 6)
    if isinstance(value, int | float):
        return value + by if isinstance(value, int) else int(value) + by
    if not isinstance(value, str) or not by:
        return value
    if value.isdigit() and value.isascii() and len(value) < 16:
        return str(max(0, int(value) + by)).zfill(len(value))
    if by > 0:
        return value + "a"
    return value[:-1] if len(value) > 1 else ""


# --------------------------------------------------------- a profile: size, NULLs, ties, duplicates

ROWS = (3, 6, 10, 15, 22, 30)  # of one table, before what limits and groups ask for


@dataclass(frozen=True)
class Profile:
    """The make-up of one candidate; all shares are between 0 and 1."""

    number: int
    rows: int
    nulls: float  # of nullable cells
    satisfying: float  # rows that satisfy every condition on their table
    all_but_one: float
    own: float  # rows taken from the original, keys renewed
    duplicates: float  # rows that repeat another in all but one or two columns
    no_ties: bool  # numbers all differ
    loose_keys: bool  # columns that are only by chance, or by habit, unique in the original may repeat
    spread: str  # of children over parents and of groups: even, stairs (1, 2, 3...), sizes (those asked for), few
    used: float  # share of parents that may have children
    pool: int  # own values per column
    empty: str = ""  # a table without rows


def profile(number: int, hints: Hints, rng: random.Random, focus: Hints | None = None) -> Profile:
    """The profile of a candidate: the first few are fixed in kind, so that each kind is there."""
    rows = rng.choice(ROWS)
    if hints.limits:
        rows = max(rows, min(2 * max(hints.limits), max(hints.limits) + rng.randrange(2, 7)))
    if hints.sizes:
        rows = max(rows, min(max(hints.sizes) + rng.randrange(2, 7), 40))
    tables = sorted(hints.tables)
    return Profile(
        number=number,
        rows=rows,
        nulls=(0.0, 0.1, 0.25, 0.0, 0.1, 0.6)[number % 6],
        satisfying=rng.choice((0.4, 0.6, 0.9) if focus else (0.2, 0.4, 0.7)),
        all_but_one=rng.choice((0.1, 0.25, 0.3)),
        own=rng.choice((0.0, 0.2, 0.4)),
        duplicates=rng.choice((0.4, 0.7) if focus and focus.repeats else (0.0, 0.2, 0.5)),
        no_ties=number % 3 != 2 and not (focus and focus.repeats and number % 2),
        loose_keys=rng.random() < (0.2 if number < 10 else 0.4),
        spread=("stairs", "even", "sizes", "stairs", "few", "sizes")[number % 6 if hints.sizes else number % 2],
        used=1.0 if hints.sizes and max(hints.sizes) > 8 else rng.choice((0.3, 0.6, 0.9)),
        pool=rng.choice((2, 4, 8)),
        empty=tables[(number // 8) % len(tables)] if tables and number % 8 == 7 else "",
    )
