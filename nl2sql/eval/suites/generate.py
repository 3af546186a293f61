"""Small databases with a given schema, made to tell a query from its neighbours, one table's rows after another.

``Generator(source, hints, seed)`` gives candidate ``number`` as rows per table. Every candidate has a profile of its
own (rows, NULLs, ties, duplicates, how children spread over parents, which table is empty). Values are the column's
own, the constants of the golds and of their neighbours, and values just beside those; rows satisfy all conditions of
a gold, or all but one. Declared keys stay unique, foreign keys refer (round a cycle of tables, too), NOT NULL holds; a
CHECK is left to SQLite, which ignores the row (``arena.store``). The rows of a table rest on the seed, the number, and
the tables it refers to.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nl2sql.eval.replicas.values import fresh, neighbour
from nl2sql.eval.suites.hints import Cell, Hints, Profile, profile
from nl2sql.eval.suites.source import Row, SourceDatabase, TableSource

# ---------------------------------------------------------------------------- the rows of one table

MOST_ROWS = 600  # of one table, however large the groups that a gold asks for
OTHER_ROWS = 6  # rows of tables that no gold names
ATTEMPTS = 8  # at a row whose keys are still free
LEAST, GREATEST = -(2**63), 2**63 - 1  # of SQLite's whole numbers


class TableRows:
    """The rows of one table of one candidate; what it refers to is there already (``done``)."""

    def __init__(
        self,
        generator: Generator,
        table: TableSource,
        made: Profile,
        rng: random.Random,
        done: Mapping[str, list[Row]],
        focus: Hints | None,
    ) -> None:
        self.generator, self.table, self.made, self.rng, self.done = generator, table, made, rng, done
        self.hints, self.name = generator.hints, table.name.lower()
        self.named = self.name in self.hints.tables
        self.focus = focus
        self.turning = {*focus.nulls, *focus.ties, *focus.constants} if focus else set()
        held = focus.held if focus else {}
        self.held = {c: held[self.name, c] for c in range(len(table.names)) if (self.name, c) in held}
        self.hold = rng.choice((1.0, 1.0, 0.6)) if self.held else 0.0
        self.linked = {c for key in table.foreign_keys for c in key.columns}
        self.unique = list(table.unique)
        if not made.loose_keys:
            self.unique += [(c,) for c in self._habitual_keys()]
        self.below_zero: set[int] = set()  # columns in which no number is above 0
        self.single = {key[0] for key in self.unique if len(key) == 1}
        self.free_keys = {key[0] for key in table.unique if len(key) == 1 and table.nullable[key[0]]}
        self.pools = {c: self._pool(c) for c in range(len(table.names)) if c not in self.linked}
        self.null_share = {c: self._nulls(c) for c in range(len(table.names)) if table.nullable[c]}
        self.taken: dict[int, set[Any]] = {}
        self.highest: dict[int, int] = {}
        self.wanted: dict[Any, list[Row]] = {}
        self.parents = {key: self._parents(key) for key in table.foreign_keys}
        self.spread = self._spread_keys()
        self.decks: dict[Any, list[Any]] = {}

    def _spread_keys(self) -> set[Any]:
        """Foreign keys whose children are spread by the profile: those grouped by; else one of them."""
        keys = self.table.foreign_keys
        roots = {self.hints.root(cell) for cell in self.hints.grouped}
        grouped = {key for key in keys if any(self.hints.root((self.name, c)) in roots for c in key.columns)}
        return grouped or ({self.rng.choice(keys)} if keys else set())

    def _habitual_keys(self) -> list[int]:
        """Columns without a declared key that look like one: an id that never repeats in the original."""
        habitual = []
        declared = {c for key in self.table.unique for c in key}
        for index, name in enumerate(self.table.names):
            values = [row[index] for row in self.table.rows]
            looks = name.lower().endswith(("id", "code", "key", "number", "no")) or (
                not self.table.unique and index == 0
            )
            distinct = len(values) > 3 and None not in values and len(set(values)) == len(values)
            turns = self.focus is not None and (self.name, index) in self.focus.ties
            if looks and distinct and not turns and index not in declared and index not in self.linked:
                habitual.append(index)
        return habitual

    def _pool(self, column: int) -> list[Any]:
        """Values to draw from: own ones, constants, and values beside those."""
        rng, hints = self.rng, self.hints
        cells = self.generator.related((self.name, column)) if self.named else [(self.name, column)]
        # columns that are compared with each other have to draw the same values, and few of them
        alike = len(cells) > 1
        chooser = random.Random(f"{self.generator.seed}/{self.made.number}/{cells[0]}") if alike else rng
        own: list[Any] = list(dict(self.table.listed).get(column, ()))
        special: list[Any] = []
        for cell in cells:
            rows = self.generator.source.by_name[cell[0]].rows
            values = list(dict.fromkeys(row[cell[1]] for row in rows if row[cell[1]] is not None))
            own += chooser.sample(values, min(self.made.pool, len(values)))
            for hint in (hints.constants, hints.good, hints.bad):
                special += hint.get(cell, [])
            if self.focus:
                special += 3 * self.focus.constants.get(cell, [])
        if alike and len(own) > self.made.pool:
            own = chooser.sample(own, self.made.pool)
        most = 6 if alike else 14
        if len(special) > most:
            special = chooser.sample(special, most)
        if self.focus and (self.name, column) in self.focus.ties and own:
            return [v for v in rng.choices(own + special, k=3) if v is not None] + own[:1] * 3
        numeric = self.table.numeric[column]
        beside = [neighbour(v, own, rng) for v in own[:2]]
        pool = [v for v in (*own, *special, *special, *beside) if v is not None]
        pool = [v for v in pool if not isinstance(v, float) or v == v]
        if numeric:
            turns = (self.name, column) in self.turning
            below_zero = rng.random() < (0.5 if turns else 0.15)
            pool = [v for v in pool if not isinstance(v, str)] + ([0, -3, -8] if below_zero else [])
            if self.focus and (self.name, column) in self.focus.nulls and rng.random() < 0.3:
                pool = [-3, -8, -1]
                self.below_zero.add(column)
        else:
            texts = [v for v in pool if isinstance(v, str)]
            pool = [str(v) if texts and isinstance(v, int | float) else v for v in pool]
        return pool or ([1, 2, 3, 5] if numeric else ["a", "b", "ab", "c"])

    def _nulls(self, column: int) -> float:
        """The share of NULLs in a nullable column."""
        if self.focus and (self.name, column) in self.focus.nulls:
            return self.rng.choice((0.3, 0.5, 0.8, 1.0))
        return self.made.nulls / 2 if column in self.linked else self.made.nulls

    def _parents(self, key: Any) -> list[Row]:
        rows = self.done.get(key.parent.lower())
        if rows is None:
            return []
        keys = [tuple(row[c] for c in key.parent_columns) for row in rows]
        keys = list(dict.fromkeys(k for k in keys if None not in k))
        count = max(1, round(len(keys) * self.made.used))
        wanted = self._wanted(key, keys)
        self.wanted[key] = wanted
        return list(dict.fromkeys([*wanted, *self.rng.sample(keys, min(count, len(keys)))]))

    def _wanted(self, key: Any, keys: list[Row]) -> list[Row]:
        """Parents that a condition on the foreign key names."""
        if not self.named or len(key.columns) != 1:
            return []
        cell = (self.name, key.columns[0])
        values = [*self.hints.good.get(cell, []), *self.hints.bad.get(cell, [])]
        values += self.focus.constants.get(cell, []) if self.focus else []
        return [k for k in keys if k[0] in values]

    def fill(self) -> list[Row]:
        if self.made.empty == self.name:
            return []
        wanted = self.made.rows if self.named else OTHER_ROWS
        if not self.named and self.name in self.generator.needed and self.hints.sizes:
            wanted = max(
                wanted, min(2 * max(self.hints.sizes) + 3, MOST_ROWS)
            )  # children of so many parents may be asked for
        grouped = self.named and (bool(self.linked) or any(cell[0] == self.name for cell in self.hints.grouped))
        if grouped and self.hints.sizes and max(self.hints.sizes) > 8:
            wanted = min(3 * max(self.hints.sizes) + 10, MOST_ROWS)
        elif self.focus and self.rng.random() < 0.5 and any(cell[0] == self.name for cell in self.turning):
            wanted = self.rng.choice((1, 1, 2, 3, 4))  # few rows: the one that matters is more likely to be seen
        elif self.named and self.rng.random() < 0.25:
            wanted = max(2, wanted // 2)
        rows: list[Row] = []
        seen: list[set[Any]] = [set() for _ in self.unique]
        for _ in range(wanted):
            for _ in range(ATTEMPTS):
                row = self._row(rows)
                if row is None:
                    break
                keys = [tuple(row[c] for c in key) for key in self.unique]
                if all(None in k or k not in known for k, known in zip(keys, seen, strict=True)):
                    for k, known in zip(keys, seen, strict=True):
                        known.add(k)
                    rows.append(tuple(row))
                    break
        return rows

    def _row(self, rows: Sequence[Row]) -> list[Any] | None:
        """One more row: a copy with small changes, or new values; None where a parent is missing."""
        rng, made = self.rng, self.made
        base: Row | None = None
        draw = rng.random()
        if rows and draw < made.duplicates:
            base = rng.choice(rows)
        elif self.table.rows and draw < made.duplicates + made.own:
            base = rng.choice(self.table.rows)
        row = self._values(base)
        repeated = base is not None and base in rows and rng.random() < 0.7
        for key, parents in self.parents.items():
            if repeated and base is not None and not any(c in self.single for c in key.columns):
                for c in key.columns:
                    row[c] = base[c]
                continue
            chosen = self._reference(key, parents, rows, row)
            if chosen is None:
                return None
            for c, value in zip(key.columns, chosen, strict=True):
                row[c] = value
        if base is not None and self.pools and rng.random() < 0.7:
            self._vary(row)
        self._adjust(row)
        return row

    def _values(self, base: Row | None) -> list[Any]:
        """Everything but foreign keys: those of ``base``, or such as satisfy all conditions, all but one, or any."""
        rng = self.rng
        row: list[Any] = [None] * len(self.table.names)
        kind = rng.random()
        conditions = [c for c in self.pools if self.named and (self.name, c) in self.hints.good]
        fails = None
        satisfying = kind < self.made.satisfying + self.made.all_but_one
        if satisfying and kind >= self.made.satisfying and conditions:
            fails = rng.choice(conditions)
        for c, pool in self.pools.items():
            if c in self.free_keys and rng.random() < self.null_share[c]:
                row[c] = None  # UNIQUE allows any number of NULLs
            elif c in self.single:
                row[c] = self._key(c, pool)
            elif base is not None:
                row[c] = base[c]
            elif satisfying and c in conditions:
                hinted = self.hints.bad if c == fails else self.hints.good
                row[c] = rng.choice(hinted.get((self.name, c)) or pool)
            else:
                row[c] = self._plain(c, pool)
        return row

    def _vary(self, row: list[Any]) -> None:
        """Change a copy in one column, and in those that are sorted by."""
        free = [c for c in range(len(row)) if c not in self.single and c not in self.linked]
        for c in free:
            if (self.name, c) in self.hints.ordered and self.rng.random() < 0.5:
                row[c] = self._plain(c, self.pools[c])
        if free:
            c = self.rng.choice(free)
            row[c] = self._plain(c, self.pools[c])

    def _adjust(self, row: list[Any]) -> None:
        """Fit the row as a whole to the profile and the focus; at last, no NULL where none may be."""
        table = self.table
        if self.made.no_ties:
            for c in self.pools:
                if table.numeric[c] and c not in self.single and row[c] is not None and self._apart(c):
                    row[c] = self._untied(c, row[c])
        for c in self.below_zero:
            value = row[c]
            row[c] = -1 - value if isinstance(value, int | float) and value >= 0 else value
        if self.rng.random() < self.hold:
            for c, value in self.held.items():
                if c not in self.single and c not in self.linked:
                    row[c] = value
        for c in range(len(row)):
            if row[c] is None and not table.nullable[c] and c not in self.linked:
                row[c] = self._key(c, self.pools[c]) if c in self.single else self.rng.choice(self.pools[c])
            value = row[c]
            if isinstance(value, int):  # a constant, or a step beyond the largest that a cell holds
                row[c] = max(LEAST, min(value, GREATEST))

    def _apart(self, column: int) -> bool:
        """Whether ties in this column are to be avoided: not where a condition turns on single values."""
        cell = (self.name, column)
        if self.focus and cell in self.focus.ties:
            return False
        return cell not in self.hints.grouped and (cell in self.hints.ordered or cell not in self.hints.good)

    def _untied(self, column: int, value: Any) -> Any:
        known = self.taken.setdefault(column, set())
        step = 1
        while value in known:
            value = value + self.rng.choice((-step, step)) if isinstance(value, int | float) else value
            step += 1
            if step > 200:
                break
        known.add(value)
        return value

    def _plain(self, column: int, pool: list[Any]) -> Any:
        if self.rng.random() < self.null_share.get(column, 0.0):
            return None
        if self.named and self.made.spread != "even" and (self.name, column) in self.hints.grouped:
            return self._from_deck(column, list(dict.fromkeys(pool)))
        return self.rng.choice(pool)

    def _key(self, column: int, pool: list[Any]) -> Any:
        """A value that this column does not have yet."""
        known = self.taken.setdefault(-1 - column, set())
        if column in self.held and self.held[column] not in known:
            known.add(self.held[column])
            return self.held[column]
        for _ in range(3):
            value = self.rng.choice(pool)
            if value not in known:
                break
        else:
            if self.table.numeric[column] and isinstance(value, int):
                value = self.rng.randrange(1, 4 * self.made.rows + 9)
            if value in known:
                highest = max((v for v in known if isinstance(v, int)), default=0)
                value = fresh(value, known, highest)
        known.add(value)
        return value

    def _reference(self, key: Any, parents: list[Row], rows: Sequence[Row], row: list[Any]) -> Row | None:
        """The parent's key for one foreign key; all NULL where that is allowed; None where no row can be made."""
        nullable = all(self.table.nullable[c] for c in key.columns)
        if nullable and self.rng.random() < max(self.null_share[c] for c in key.columns):
            return (None,) * len(key.columns)
        if key.parent.lower() == self.name:
            parents = [tuple(r[c] for c in key.parent_columns) for r in rows]
            parents = [p for p in parents if None not in p]
            own = tuple(row[c] for c in key.parent_columns)
            if not parents and not nullable and None not in own:
                parents = [own]
        elif key.parent.lower() not in self.done:  # a cycle: ``Generator`` points it at a row once there are any
            return tuple(len(rows) + 1 for _ in key.columns)
        if not parents:
            return (None,) * len(key.columns) if nullable else None
        if self.wanted.get(key) and self.rng.random() < 0.4:
            return self.rng.choice(self.wanted[key])
        held = (self.held.get(key.columns[0]),)
        if held in parents and self.rng.random() < self.hold:
            return held
        if self.made.spread == "even" or key not in self.spread or key.parent.lower() == self.name:
            return self.rng.choice(parents)
        chosen: Row = self._from_deck(key, parents)
        return chosen

    def _from_deck(self, what: Any, values: list[Any]) -> Any:
        """Values one after another so that groups get the sizes that the profile asks for."""
        deck = self.decks.get(what)
        if deck is None:
            deck = []
            values = values[:]
            self.rng.shuffle(values)
            sizes = sorted({max(1, s + d) for s in self.hints.sizes for d in (-1, 0, 1)}) or [1]
            for place, value in enumerate(values):
                if self.made.spread == "stairs":
                    count = place + 1
                elif self.made.spread == "few":
                    count = self.made.rows if place < 2 else 0
                else:
                    count = sizes[place % len(sizes)]
                deck += [value] * count
                if len(deck) > max(2 * self.made.rows, 3 * max(sizes)):
                    break
            if self.made.spread != "sizes":
                self.rng.shuffle(deck)
            else:
                deck.reverse()
            self.decks[what] = deck
        return deck.pop() if deck else self.rng.choice(values)


# ------------------------------------------------------------------------------------- the database


class Generator:
    """Candidates for one set of golds. ``focus``: cells and values that a surviving neighbour turns on."""

    def __init__(self, source: SourceDatabase, hints: Hints, seed: int | str) -> None:
        self.source, self.hints, self.seed = source, hints, seed
        self._shared: dict[Cell, list[Cell]] = {}
        for cell in hints.linked:
            self._shared.setdefault(hints.root(cell), []).append(cell)
        self.needed = self._with_parents(hints.tables)

    def _with_parents(self, tables: Iterable[str]) -> set[str]:
        names = set(tables)
        waiting = list(names)
        while waiting:
            for key in self.source.by_name[waiting.pop()].foreign_keys:
                if key.parent.lower() not in names:
                    names.add(key.parent.lower())
                    waiting.append(key.parent.lower())
        return names

    def rows(self, number: int, *, whole: bool = False, focus: Hints | None = None) -> dict[str, list[Row]]:
        """Rows by table name, parents first: of the tables that the golds need, or of all (``whole``)."""
        made = profile(number, self.hints, random.Random(f"{self.seed}/{number}"), focus)
        done: dict[str, list[Row]] = {}
        for table in self.source.tables:
            name = table.name.lower()
            if whole or name in self.needed:
                rng = random.Random(f"{self.seed}/{number}/{name}")
                done[name] = TableRows(self, table, made, rng, done, focus).fill()
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

    def related(self, cell: Cell) -> list[Cell]:
        return self._shared.get(self.hints.root(cell), [cell]) if cell in self.hints.linked else [cell]
