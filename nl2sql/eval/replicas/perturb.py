"""Writing perturbed replicas of one database.

Method (change ``METHOD`` with it), per table, parents before children, all drawn from a seed:
- at most ``max_rows(tables)`` rows, sampled so that foreign keys still refer (children of absent rows go first);
- 10% of the rows are dropped; keys stay on their row, everything else is moved to other rows; a quarter of the
  plain columns are shuffled by themselves; 15% of the plain cells change: 60% to another of the column's own
  values, 25% to a neighbour, 15% to NULL where that is allowed;
- each with probability 1/2, a cell of every plain column gets a value above the column's largest, another one below its
  smallest: of no column is the MAX a constant;
- numbers, dates and times that are all different in the original get no value that is there already, so that an order
  by them, or their largest, stays (nearly always) unambiguous;
- 20% of the foreign keys are pointed at another parent, 5% set to NULL where allowed; what dangles at the
  end, within a table or round a cycle, becomes NULL where allowed, else the key of another row (``shape``);
- 10% of the rows are added again, under fresh keys where the table has any, half of them with such numbers changed; the
  order of rows is shuffled.
A row that a constraint refuses is left out; where more than half are refused, the original rows are added.

>>> max_rows(100)
2000
"""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from nl2sql.eval.replicas.table_shapes import (
    HeldForeignKey,
    Keys,
    TableShape,
    close_under_foreign_keys,
    encoded,
    open_read_only,
    present_keys,
    quoted,
    read_shapes,
    table_kinds,
    written_statements,
)
from nl2sql.eval.replicas.values import beyond, fresh, is_date, neighbour, read_moments

log = logging.getLogger(__name__)

TABLE_ROWS = 10_000  # rows of one table in a replica (10% more with the duplicates)
DATABASE_ROWS = 200_000  # rows of a whole replica, spread evenly over its tables
READ_FACTOR = 5  # rows read for every row that is kept, so that there is a choice of rows whose parents exist
PRIME = 2**31 - 1  # multiplied modulo a prime, row ids that are all odd, or all end in 7, look drawn at random

Row = list[Any]


def max_rows(tables: int) -> int:
    """The most rows per table that a replica of so many tables starts from."""
    return max(500, min(TABLE_ROWS, DATABASE_ROWS // max(1, tables)))


class Perturber:
    """Reads a database (or a sample of it) once and writes any number of replicas."""

    def __init__(self, path: Path, *, seed: str) -> None:
        self.seed = seed
        with open_read_only(path) as connection:
            self.shapes = {shape.name: shape for shape in read_shapes(connection)}
            kinds, self.encoding = table_kinds(connection), encoded(connection)
            self.statements = written_statements(connection)
            bound = max_rows(len(self.shapes))
            self.rows: dict[str, list[Row]] = {}
            for shape in self.shapes.values():
                self.rows[shape.name] = self._sample(connection, shape, bound)
            virtual = [name for name, kind in kinds.items() if kind == "virtual"]
            self.virtual = {name: _read_virtual(connection, name, bound) for name in virtual}

    def _sample(self, connection: sqlite3.Connection, shape: TableShape, bound: int) -> list[Row]:
        """The table's rows in order, or ``bound`` of them, those first whose parents are in the sample."""
        rows = self._read(connection, shape, bound)
        if len(rows) > bound:
            rng = random.Random(f"{self.seed}/sample/{shape.name}")
            parents = {key: set(self._parent_keys(key)) for key in shape.foreign_keys if key.parent in self.rows}
            closed = [all(self._refers(row, key, known) for key, known in parents.items()) for row in rows]
            order = sorted(range(len(rows)), key=lambda index: (not closed[index], rng.random()))
            rows = [rows[index] for index in sorted(order[:bound])]
        return [list(row) for row in rows]

    def _read(self, connection: sqlite3.Connection, shape: TableShape, bound: int) -> list[Any]:
        """At most ``bound * READ_FACTOR`` rows from all over the table, or its first ones where it has no row ids.

        Every n-th row id is read; where that is less than ``bound``, because ids have gaps, every n-th in a random
        order of the ids.
        """
        name = quoted(shape.name)
        (count,) = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        step = -(-count // (bound * READ_FACTOR))
        factor = random.Random(f"{self.seed}/read/{shape.name}").randrange(1, PRIME)
        spread = [f"WHERE rowid % {step} = 0", f"WHERE abs(rowid % {PRIME}) * {factor} % {PRIME} % {step} = 0"]
        rows: list[Any] = []
        for where in [*(spread if step > 1 and shape.has_rowid else ()), ""]:
            select = f"SELECT {shape.column_list()} FROM {name} {where} LIMIT {bound * READ_FACTOR}"
            rows = connection.execute(select).fetchall()
            if len(rows) >= bound:
                break
        return rows

    def _parent_keys(self, key: HeldForeignKey) -> Keys:
        parent = self.shapes[key.parent]
        keys = [tuple(row[column] for column in key.parent_columns) for row in self.rows[key.parent]]
        return [parent.compared(key.parent_columns, values) for values in keys]

    def _refers(self, row: Sequence[Any], key: HeldForeignKey, known: set[tuple[Any, ...]]) -> bool:
        values = [row[column] for column in key.columns]
        return None in values or self.shapes[key.parent].compared(key.parent_columns, values) in known

    def write(self, target: Path, number: int) -> None:
        """Write replica ``number`` into the empty file ``target``."""
        with closing(sqlite3.connect(target, isolation_level=None)) as connection:
            connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {self.encoding}")
            connection.execute("PRAGMA foreign_keys=OFF")
            connection.execute("BEGIN")
            self._create(connection, ("table", "unique index"))
            for shape in self.shapes.values():
                _Table(self, shape, random.Random(f"{self.seed}/{number}/{shape.name}")).fill(connection)
            for name, rows in self.virtual.items():
                _copy_virtual(connection, name, rows)
            close_under_foreign_keys(connection, self.shapes, f"{self.seed}/{number}")
            # last: an index on an expression may refuse a changed row, a trigger must not fire on our own rows
            self._create(connection, ("index", "view", "trigger"))
            connection.execute("COMMIT")

    def _create(self, connection: sqlite3.Connection, kinds: Sequence[str]) -> None:
        for kind in kinds:
            for _, name, sql in (statement for statement in self.statements if _kind(*statement) == kind):
                try:
                    connection.execute(sql)
                except sqlite3.Error as error:
                    if name in self.shapes:
                        raise
                    log.warning("%s %s is not in the replica: %s", kind, name, error)


def _kind(kind: str, name: str, sql: str) -> str:
    """table, view, trigger, index, or "unique index"."""
    return "unique index" if kind == "index" and sql[:20].upper().startswith("CREATE UNIQUE") else kind


class _Table:
    """One table of one replica."""

    def __init__(self, source: Perturber, shape: TableShape, rng: random.Random) -> None:
        self.source, self.shape, self.rng = source, shape, rng
        self.original = source.rows[shape.name]
        referenced = {
            key.parent_columns
            for other in source.shapes.values()
            for key in other.foreign_keys
            if key.parent == shape.name
        }
        undeclared = [columns for columns in sorted(referenced) if _all_distinct(self.original, columns)]
        self.unique = list(dict.fromkeys([*shape.unique, *undeclared]))
        self.keys = {column for columns in self.unique for column in columns}
        self.linked = {column for key in shape.foreign_keys for column in key.columns}
        self.plain = [c for c in range(len(shape.names)) if c not in self.keys and c not in self.linked]
        self.moments = {c: read_moments(row[c] for row in self.original if row[c] is not None) for c in self.plain}
        self.scales = {c: present for c in self.plain if (present := self._scale(c))}
        self.values: dict[int, set[Any]] = {}  # of a key's column, and the largest number among them
        self.highest: dict[int, int] = {}

    def _scale(self, column: int) -> set[Any]:
        """The column's values where they are three or more numbers, dates or times, all different; else nothing."""
        values = [row[column] for row in self.original if row[column] is not None]
        distinct, moments = set(values), self.moments[column]
        if len(values) < 3 or len(distinct) < len(values):
            return set()
        known = all(isinstance(v, int | float) for v in values) or all(
            is_date(v) or (moments is not None and moments.read(str(v)) is not None) for v in values
        )
        return distinct if known else set()

    def fill(self, connection: sqlite3.Connection) -> None:
        """Perturb the rows and insert them."""
        rng = self.rng
        parents = {
            key: present_keys(connection, self.source.shapes[key.parent], key)
            for key in self.shape.foreign_keys
            if key.parent != self.shape.name
        }
        kept = [row for row in self.original if rng.random() >= 0.1] or self.original[:1]
        rows = self._moved([list(row) for row in kept])
        for column in self.plain:
            self._change_column(rows, column)
        for key, known in parents.items():
            self._repoint(rows, key, known)
        rows += self._duplicates(rows, parents)
        rng.shuffle(rows)
        self._insert(connection, rows)

    def _moved(self, rows: list[Row]) -> list[Row]:
        """Everything but the keys moves to another row, together; some plain columns move by themselves."""
        order = list(range(len(rows)))
        self.rng.shuffle(order)
        free = [column for column in range(len(self.shape.names)) if column not in self.keys]
        if self.keys:
            rows = [
                [rows[place][c] if c in self.keys else rows[other][c] for c in range(len(self.shape.names))]
                for place, other in enumerate(order)
            ]
        for column in free:
            if column in self.plain and self.rng.random() < 0.25:
                values = [row[column] for row in rows]
                self.rng.shuffle(values)
                for row, value in zip(rows, values, strict=True):
                    row[column] = value
        return rows

    def _change_column(self, rows: list[Row], column: int) -> None:
        rng = self.rng
        own = [row[column] for row in self.original if row[column] is not None]
        moments = self.moments[column]
        flag = len({value for value in own[:1000] if not isinstance(value, bytes)}) <= 2
        for place in self._some(len(rows), 0.15):
            kind, value = rng.random(), rows[place][column]
            if kind >= 0.85 and self.shape.nullable[column]:
                rows[place][column] = None
            elif column in self.scales:
                self._move_on_scale(rows[place], column)
            elif kind >= 0.6 and not flag and value is not None:
                rows[place][column] = neighbour(value, own, rng, moments)
            elif own:
                rows[place][column] = rng.choice(own)
        if not flag:
            self._move_ends(rows, column)

    def _move_ends(self, rows: list[Row], column: int) -> None:
        """A value beyond each end, or, where there is none, the end's own cells take other values."""
        held = [row for row in rows if row[column] is not None]
        values = [row[column] for row in held]
        numbers = all(isinstance(value, int | float) for value in values)
        if not numbers and not all(isinstance(value, str) for value in values):
            return
        for up in (True, False):
            if len(set(values)) < 2 or self.rng.random() < 0.5:
                continue
            low, high = min(values), max(values)
            end, other = (high, low) if up else (low, high)
            moved = beyond(end, other, up, self.moments[column])
            if moved is not None:
                self.scales.get(column, set()).add(moved)
                self.rng.choice(held)[column] = moved
            elif column not in self.scales:
                others = [value for value in values if value != end]
                for row in held:
                    row[column] = self.rng.choice(others) if row[column] == end else row[column]
            values = [row[column] for row in held]

    def _move_on_scale(self, row: Row, column: int) -> None:
        """Another number or date that the column does not hold yet; after five tries, no change."""
        if row[column] is None:
            return
        for _ in range(5):
            moved = neighbour(row[column], (), self.rng, self.moments[column])
            if moved not in self.scales[column]:
                self.scales[column].add(moved)
                row[column] = moved
                return

    def _repoint(self, rows: list[Row], key: HeldForeignKey, known: Keys) -> None:
        """Point some references elsewhere, and all of those whose parent is gone."""
        rng, parent = self.rng, self.source.shapes[key.parent]
        exists = {parent.compared(key.parent_columns, values) for values in known}
        nullable = all(self.shape.nullable[c] and c not in self.keys for c in key.columns)
        in_key = any(column in self.keys for column in key.columns)
        for row in rows:
            current = tuple(row[column] for column in key.columns)
            draw = rng.random()
            if None in current:
                continue
            now = parent.compared(key.parent_columns, current)
            if nullable and draw < 0.05:
                target: tuple[Any, ...] = (None,) * len(key.columns)
            elif (0.05 <= draw < 0.25 and not in_key) or now not in exists:
                if not known:
                    continue  # no parent at all: closing under foreign keys decides
                place = rng.randrange(len(known))
                if parent.compared(key.parent_columns, known[place]) == now:
                    place -= 1
                target = known[place]
            else:
                continue
            for column, value in zip(key.columns, target, strict=True):
                row[column] = value

    def _duplicates(self, rows: list[Row], parents: dict[HeldForeignKey, Keys]) -> list[Row]:
        known = [*self.original, *rows]
        taken = {columns: {tuple(row[c] for c in columns) for row in known} for columns in self.unique}
        added = []
        for place in self._some(len(rows), 0.1, at_least=1):
            row = list(rows[place])
            if self.rng.random() < 0.5:  # the other half are duplicates in all but their keys
                for column in self.scales:
                    self._move_on_scale(row, column)
            for columns, there in taken.items():
                self._make_unique(row, columns, there, parents)
            added.append(row)
        return added

    def _make_unique(
        self, row: Row, columns: tuple[int, ...], taken: set[tuple[Any, ...]], parents: dict[HeldForeignKey, Keys]
    ) -> None:
        """Change ``row`` so that its values in ``columns`` are new; where no try succeeds, it will be refused."""
        own = next((c for c in columns if c not in self.linked and row[c] is not None), None)
        if own is not None:
            if own not in self.values:
                self.values[own] = {r[own] for r in self.original}
                self.highest[own] = max((v for v in self.values[own] if isinstance(v, int)), default=0)
            row[own] = fresh(row[own], self.values[own], self.highest[own])
            self.values[own].add(row[own])
            if isinstance(row[own], int):
                self.highest[own] = max(self.highest[own], row[own])
        else:
            within = [(key, known) for key, known in parents.items() if set(key.columns) & set(columns) and known]
            for _ in range(8 if within else 0):
                for key, known in within:
                    for column, value in zip(key.columns, self.rng.choice(known), strict=True):
                        row[column] = value
                if tuple(row[c] for c in columns) not in taken:
                    break
        taken.add(tuple(row[c] for c in columns))

    def _insert(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        columns, places = self.shape.column_list(), ", ".join("?" * len(self.shape.names))
        statement = f"INSERT OR IGNORE INTO {quoted(self.shape.name)} ({columns}) VALUES ({places})"

        def insert(row: Row) -> bool:
            try:
                return connection.execute(statement, row).rowcount == 1
            except (sqlite3.IntegrityError, sqlite3.DataError, UnicodeEncodeError):
                return False

        refused = sum(not insert(row) for row in rows)
        if refused > len(rows) // 2:  # constraints between columns: the rows as they were are better than none
            for row in self.original:
                insert(row)

    def _some(self, count: int, share: float, *, at_least: int = 0) -> list[int]:
        """Distinct places among ``count``, a ``share`` of them in the mean."""
        wanted = min(count, max(at_least, int(count * share + self.rng.random())))
        return self.rng.sample(range(count), wanted)


def _read_virtual(connection: sqlite3.Connection, name: str, bound: int) -> list[Any]:
    """Rows of a virtual table; none, with a warning, where this SQLite lacks its module."""
    try:
        return connection.execute(f"SELECT * FROM {quoted(name)} LIMIT {bound}").fetchall()
    except sqlite3.Error as error:
        log.warning("virtual table %s cannot be read: %s", name, error)
        return []


def _copy_virtual(connection: sqlite3.Connection, name: str, rows: Sequence[Sequence[Any]]) -> None:
    """Rows of a virtual table (full-text search), unchanged."""
    if rows:
        try:
            connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        except sqlite3.Error as error:
            log.warning("virtual table %s is empty in the replica: %s", name, error)


def _all_distinct(rows: Sequence[Row], columns: tuple[int, ...]) -> bool:
    return len({tuple(row[c] for c in columns) for row in rows}) == len(rows)
