"""Small databases with a given schema, made to tell a query from its neighbours, one table's rows after another.

``Generator(source, hints, seed)`` gives candidate ``number`` as rows per table. Every candidate has a profile of its
own (rows, NULLs, duplicates). Values are the column's own, the constants of the golds and of their neighbours, and
values just beside those; rows satisfy all conditions of a gold, or all but one. Declared keys stay unique, foreign
keys refer (round a cycle of tables, too), NOT NULL holds; a CHECK is left to SQLite, which ignores the row
(``arena.store``). The rows of a table rest on the seed, the number, and the tables it refers to.

``SELECT name FROM shop WHERE sales > 30`` gives ``sales`` the good values 31 and 37, and the bad ones 30 and 29.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlglot import expressions as exp

from nl2sql.eval.replicas.values import fresh, neighbour
from nl2sql.eval.suites.arena import Row, SourceDatabase, TableSource
from nl2sql.eval.suites.mutator import COMPARISONS, Neighbour, Scope, constant_value, scopes_of

# ------------------------------------------------------------- what golds and neighbours ask of data

Cell: TypeAlias = tuple[str, int]  # table in lower case, number of the column

LARGEST_SIZE = 250  # a LIMIT or count above this is not reached in a generated database
MIRROR: dict[Any, Any] = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE}


@dataclass
class Hints:
    tables: set[str] = field(default_factory=set)  # named in the golds, lower case
    good: dict[Cell, list[Any]] = field(default_factory=dict)  # values that satisfy a condition of a gold
    bad: dict[Cell, list[Any]] = field(default_factory=dict)  # values that just fail it
    constants: dict[Cell, list[Any]] = field(default_factory=dict)  # of neighbours
    sizes: set[int] = field(default_factory=set)  # how many rows a group or the result has to have
    grouped: set[Cell] = field(default_factory=set)


def read_hints(golds: Iterable[exp.Expr], neighbours: Iterable[Neighbour], source: SourceDatabase) -> Hints:
    """The hints of golds and neighbours."""
    hints = Hints()
    for tree in golds:
        _Reader(tree, source, hints).read()
    for neighbour_ in neighbours:
        if neighbour_.touches:
            table, column, value = neighbour_.touches
            _add(hints.constants, (table.lower(), column), [value])
    for known in (hints.good, hints.bad, hints.constants):
        for cell in list(known):
            _refer(cell, known[cell], source, hints)
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
            self._size(limit.expression)
        for comparison in self.tree.find_all(*COMPARISONS):
            self._comparison(comparison)
        for listed in self.tree.find_all(exp.In):
            cell = self._cell(listed.this)
            values = [v for item in listed.expressions if (v := constant_value(item)) is not None]
            if cell and values:
                _add(hints.good, cell, values)
                _add(hints.bad, cell, [_step(v, 1) for v in values[:2]])
        for between in self.tree.find_all(exp.Between):
            cell = self._cell(between.this)
            low, high = constant_value(between.args["low"]), constant_value(between.args["high"])
            if cell and low is not None and high is not None:
                _add(hints.good, cell, [low, high])
                _add(hints.bad, cell, [_step(low, -1), _step(high, 1)])
        for group in self.tree.find_all(exp.Group):
            hints.grouped |= {cell for key in group.expressions if (cell := self._cell(key))}

    def _cell(self, node: Any) -> Cell | None:
        """The stored column that a node means, through functions with one column in them."""
        if not isinstance(node, exp.Expr) or isinstance(node, (exp.Subquery, exp.Select)):
            return None
        columns = list(node.find_all(exp.Column))
        select = columns[0].find_ancestor(exp.Select) if len(columns) == 1 else None
        scope: Scope | None = self.scopes.get(id(select)) if select else None
        place = scope.find(columns[0]) if scope else None
        return (place[0].table((place[1], place[2])).name.lower(), place[2]) if place else None

    def _size(self, node: Any) -> None:
        value = constant_value(node)
        if isinstance(value, int) and 0 <= value <= LARGEST_SIZE:
            self.hints.sizes.add(value)

    def _comparison(self, node: Any) -> None:
        left, right, operator = node.this, node.expression, type(node)
        if constant_value(left) is not None and constant_value(right) is None:
            left, right, operator = right, left, MIRROR.get(operator, operator)
        value = constant_value(right)
        if value is None:
            return
        if left.find(exp.Count):
            self._size(right)
            return
        cell = self._cell(left)
        if cell is None:
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


def _step(value: Any, by: int) -> Any:
    """A value a little above or below in the column's order."""
    if isinstance(value, float) and not value.is_integer():
        return round(value + by, 6)
    if isinstance(value, int | float):
        return int(value) + by
    if not isinstance(value, str) or not by:
        return value
    if value.isdigit() and value.isascii() and len(value) < 16:
        return str(max(0, int(value) + by)).zfill(len(value))
    return value + "a" if by > 0 else value[:-1]


# ---------------------------------------------------------------------------- the rows of one table

ROWS = (3, 6, 10, 15, 22, 30)  # of one table, before what limits and groups ask for
MOST_ROWS = 600  # of one table, however large the groups that a gold asks for
OTHER_ROWS = 6  # rows of tables that no gold names
ATTEMPTS = 8  # at a row whose keys are still free
LEAST, GREATEST = -(2**63), 2**63 - 1  # of SQLite's whole numbers


@dataclass(frozen=True)
class Profile:
    """The make-up of one candidate; all shares are between 0 and 1."""

    number: int
    rows: int
    nulls: float  # of nullable cells
    satisfying: float  # rows that satisfy every condition on their table; a fifth of all satisfy all but one
    own: float  # rows taken from the original, keys renewed
    duplicates: float  # rows that repeat another in all but one or two columns
    pool: int  # own values per column


def profile(number: int, hints: Hints, rng: random.Random) -> Profile:
    """The profile of a candidate: the first few are fixed in kind, so that each kind is there."""
    rows = rng.choice(ROWS)
    if hints.sizes:
        rows = max(rows, min(max(hints.sizes) + rng.randrange(2, 7), 2 * LARGEST_SIZE))
    return Profile(
        number=number,
        rows=rows,
        nulls=(0.0, 0.1, 0.25, 0.0, 0.1, 0.6)[number % 6],
        satisfying=rng.choice((0.2, 0.4, 0.7, 0.9)),
        own=rng.choice((0.0, 0.2, 0.4)),
        duplicates=rng.choice((0.0, 0.2, 0.5)),
        pool=rng.choice((2, 4, 8)),
    )


class TableRows:
    """The rows of one table of one candidate; what it refers to is there already (``done``)."""

    def __init__(
        self,
        generator: Generator,
        table: TableSource,
        made: Profile,
        rng: random.Random,
        done: Mapping[str, list[Row]],
    ) -> None:
        self.generator, self.table, self.made, self.rng, self.done = generator, table, made, rng, done
        self.hints, self.name = generator.hints, table.name.lower()
        self.named = self.name in self.hints.tables
        self.linked = {c for key in table.foreign_keys for c in key.columns}
        self.single = {key[0] for key in table.unique if len(key) == 1}
        self.pools = {c: self._pool(c) for c in range(len(table.names)) if c not in self.linked}
        self.taken: dict[int, set[Any]] = {}
        self.parents = {key: self._parents(key) for key in table.foreign_keys}
        self.decks: dict[Any, list[Any]] = {}

    def _pool(self, column: int) -> list[Any]:
        """Values to draw from: own ones, constants, and values beside those."""
        rng, hints, cell = self.rng, self.hints, (self.name, column)
        values = list(dict.fromkeys(row[column] for row in self.table.rows if row[column] is not None))
        own: list[Any] = list(dict(self.table.listed).get(column, ()))
        own += rng.sample(values, min(self.made.pool, len(values)))
        special = [v for hint in (hints.constants, hints.good, hints.bad) for v in hint.get(cell, [])]
        if len(special) > 14:
            special = rng.sample(special, 14)
        pool = [v for v in (*own, *special, *special, *(neighbour(v, own, rng) for v in own[:2])) if v == v]
        if self.table.numeric[column]:
            pool = [v for v in pool if not isinstance(v, str)] + ([0, -3, -8] if rng.random() < 0.2 else [])
            return pool or [1, 2, 3, 5]
        texts = any(isinstance(v, str) for v in pool)
        return [str(v) if texts and isinstance(v, int | float) else v for v in pool] or ["a", "b", "ab", "c"]

    def _is_null(self, column: int) -> bool:
        if not self.table.nullable[column]:
            return False
        share = self.made.nulls / 2 if column in self.linked else self.made.nulls
        return self.rng.random() < share

    def _parents(self, key: Any) -> list[Row]:
        """The keys that children may refer to."""
        rows = self.done.get(key.parent.lower(), [])
        keys = dict.fromkeys(tuple(row[c] for c in key.parent_columns) for row in rows)
        return [k for k in keys if None not in k]

    def fill(self) -> list[Row]:
        largest = max(self.hints.sizes, default=0)
        wanted = self.made.rows if self.named else OTHER_ROWS
        if self.named and largest > 8 and (self.linked or any(cell[0] == self.name for cell in self.hints.grouped)):
            wanted = min(3 * largest + 10, MOST_ROWS)
        elif self.name in self.generator.needed and largest and not self.named:
            wanted = max(wanted, min(2 * largest + 3, MOST_ROWS))  # children of so many parents may be asked for
        elif self.named and self.rng.random() < 0.3:
            wanted = self.rng.choice((1, 2, 3, max(2, wanted // 2)))  # few rows: one that matters is more likely seen
        rows: list[Row] = []
        seen: list[set[Any]] = [set() for _ in self.table.unique]
        for _ in range(wanted):
            for _ in range(ATTEMPTS):
                row = self._row(rows)
                if row is None:
                    break
                keys = [tuple(row[c] for c in key) for key in self.table.unique]
                if all(None in k or k not in known for k, known in zip(keys, seen, strict=True)):
                    for k, known in zip(keys, seen, strict=True):
                        known.add(k)
                    rows.append(tuple(row))
                    break
        return rows

    def _row(self, rows: Sequence[Row]) -> list[Any] | None:
        """One more row: a copy with a small change, or new values; None where a parent is missing."""
        rng, made = self.rng, self.made
        base: Row | None = None
        draw = rng.random()
        repeats = bool(rows) and draw < made.duplicates
        if repeats:
            base = rng.choice(rows)
        elif self.table.rows and draw < made.duplicates + made.own:
            base = rng.choice(self.table.rows)
        row = self._values(base)
        for key, parents in self.parents.items():
            if repeats and base is not None and rng.random() < 0.7 and not any(c in self.single for c in key.columns):
                chosen: Row | None = tuple(base[c] for c in key.columns)
            else:
                chosen = self._reference(key, parents, rows, row)
            if chosen is None:
                return None
            for c, value in zip(key.columns, chosen, strict=True):
                row[c] = value
        free = [c for c in self.pools if c not in self.single]
        if base is not None and free and rng.random() < 0.7:
            c = rng.choice(free)
            row[c] = self._plain(c)
        for c in self.pools:
            if row[c] is None and not self.table.nullable[c]:
                row[c] = self._key(c) if c in self.single else rng.choice(self.pools[c])
            if isinstance(row[c], int):  # a constant, or a step beyond the largest that a cell holds
                row[c] = max(LEAST, min(row[c], GREATEST))
        return row

    def _values(self, base: Row | None) -> list[Any]:
        """Everything but foreign keys: those of ``base``, or such as satisfy all conditions, all but one, or any."""
        rng = self.rng
        row: list[Any] = [None] * len(self.table.names)
        kind = rng.random()
        conditions = [c for c in self.pools if self.named and (self.name, c) in self.hints.good]
        satisfying = kind < self.made.satisfying + 0.2
        fails = rng.choice(conditions) if conditions and kind >= self.made.satisfying else None
        for c in self.pools:
            if c in self.single:
                row[c] = None if self._is_null(c) else self._key(c)  # UNIQUE allows any number of NULLs
            elif base is not None:
                row[c] = base[c]
            elif satisfying and c in conditions:
                hinted = self.hints.bad if c == fails else self.hints.good
                row[c] = rng.choice(hinted.get((self.name, c)) or self.pools[c])
            else:
                row[c] = self._plain(c)
        return row

    def _plain(self, column: int) -> Any:
        if self._is_null(column):
            return None
        if self.named and (self.name, column) in self.hints.grouped:
            return self._from_deck(column, list(dict.fromkeys(self.pools[column])))
        return self.rng.choice(self.pools[column])

    def _key(self, column: int) -> Any:
        """A value that this column does not have yet."""
        known = self.taken.setdefault(column, set())
        free = [value for value in self.pools[column] if value not in known]
        value = self.rng.choice(free or self.pools[column])
        if value in known:
            value = fresh(value, known, max((v for v in known if isinstance(v, int)), default=0))
        known.add(value)
        return value

    def _reference(self, key: Any, parents: list[Row], rows: Sequence[Row], row: list[Any]) -> Row | None:
        """The parent's key for one foreign key; all NULL where that is allowed; None where no row can be made."""
        nullable = all(self.table.nullable[c] for c in key.columns)
        if nullable and any(self._is_null(c) for c in key.columns):
            return (None,) * len(key.columns)
        if key.parent.lower() == self.name:
            parents = [p for r in rows if None not in (p := tuple(r[c] for c in key.parent_columns))]
            own = tuple(row[c] for c in key.parent_columns)
            if not parents and not nullable and None not in own:
                parents = [own]
        elif key.parent.lower() not in self.done:  # a cycle: ``Generator`` points it at a row once there are any
            return tuple(len(rows) + 1 for _ in key.columns)
        if not parents:
            return (None,) * len(key.columns) if nullable else None
        if key.parent.lower() == self.name or self.made.number % 2:
            return self.rng.choice(parents)
        chosen: Row = self._from_deck(key, parents)
        return chosen

    def _from_deck(self, what: Any, values: list[Any]) -> Any:
        """Values one after another so that groups get the sizes that the golds ask for, or 1, 2, 3, ..."""
        if what not in self.decks:
            values = self.rng.sample(values, len(values))
            sizes = sorted({max(1, s + d) for s in self.hints.sizes for d in (-1, 0, 1)})
            counts = [sizes[place % len(sizes)] if sizes else place + 1 for place in range(len(values))]
            deck = [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
            self.decks[what] = deck[:MOST_ROWS][::-1]
        return self.decks[what].pop() if self.decks[what] else self.rng.choice(values)


# ------------------------------------------------------------------------------------- the database


class Generator:
    """Candidates for one set of golds."""

    def __init__(self, source: SourceDatabase, hints: Hints, seed: int | str) -> None:
        self.source, self.hints, self.seed = source, hints, seed
        self.needed = set(hints.tables)  # with all parents
        waiting = list(self.needed)
        while waiting:
            parents = {key.parent.lower() for key in source.by_name[waiting.pop()].foreign_keys} - self.needed
            self.needed |= parents
            waiting += sorted(parents)

    def rows(self, number: int, *, whole: bool = False) -> dict[str, list[Row]]:
        """Rows by table name, parents first: of the tables that the golds need, or of all (``whole``)."""
        made = profile(number, self.hints, random.Random(f"{self.seed}/{number}"))
        done: dict[str, list[Row]] = {}
        for table in self.source.tables:
            name = table.name.lower()
            if whole or name in self.needed:
                rng = random.Random(f"{self.seed}/{number}/{name}")
                done[name] = TableRows(self, table, made, rng, done).fill()
        for table in self.source.tables:
            if table.name.lower() in done:
                self._refer_ahead(table, made.number, done)
        return {table.name: done[table.name.lower()] for table in self.source.tables if table.name.lower() in done}

    def _refer_ahead(self, table: TableSource, number: int, done: dict[str, list[Row]]) -> None:
        """Point the references round a cycle, made before the rows that they are to refer to, at those."""
        places = {name: place for place, name in enumerate(done)}
        name = table.name.lower()
        for key in table.foreign_keys:
            if places.get(key.parent.lower(), -1) <= places[name]:
                continue
            rng = random.Random(f"{self.seed}/{number}/{name}/{key.columns}")
            parents = [tuple(row[c] for c in key.parent_columns) for row in done[key.parent.lower()]]
            parents = rng.sample(parents, len(parents))
            single = any(set(columns) <= set(key.columns) for columns in table.unique)
            rows = []
            for row in done[name]:
                set_here = None not in [row[c] for c in key.columns]
                if set_here and parents:
                    parent = dict(zip(key.columns, parents.pop() if single else rng.choice(parents), strict=True))
                    row = tuple(parent.get(c, value) for c, value in enumerate(row))
                elif set_here:
                    continue
                rows.append(row)
            done[name] = rows
