"""Small databases with a given schema, made to tell a query from its neighbours.

``Generator(source, hints, seed)`` gives candidate ``number`` as rows per table. Every candidate has a profile of its
own (rows, NULLs, ties, duplicates, how children spread over parents, which table is empty). Values are the column's
own, the constants of the golds and of their neighbours, and values just beside those; rows satisfy all conditions of
a gold, or all but one. Declared keys stay unique, foreign keys refer (round a cycle of tables, too), NOT NULL holds; a
CHECK is left to SQLite, which ignores the row (``images.store``). The rows of a table rest on the seed, the number, and
the tables it refers to.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from nl2sql.eval.suites.hints import Cell, Hints
from nl2sql.eval.suites.profiles import profile
from nl2sql.eval.suites.source import Row, SourceDatabase, TableSource
from nl2sql.eval.suites.table_rows import TableRows


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
