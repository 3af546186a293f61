"""The shape of a SQLite schema that a replica has to keep: columns, keys, and foreign keys that hold or dangle.

>>> connection = sqlite3.connect(":memory:")
>>> connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)").close()
>>> read_shapes(connection)[0].unique
((0,),)
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nl2sql.eval.replicas.values import as_compared

MOST_COPIED = 2_000  # two seconds


@dataclass(frozen=True)
class HeldForeignKey:
    columns: tuple[int, ...]
    parent: str  # the parent table's own spelling
    parent_columns: tuple[int, ...]


@dataclass(frozen=True)
class TableShape:
    """One ordinary table. Columns are counted from 0 in the order of ``names``; generated columns are left out."""

    name: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    nullable: tuple[bool, ...]
    unique: tuple[tuple[int, ...], ...]  # primary key and unique indexes, as sets of columns
    foreign_keys: tuple[HeldForeignKey, ...]  # only those that hold in the data
    has_rowid: bool
    collations: tuple[str, ...]  # per column: NOCASE, RTRIM, or nothing; () where no column has one

    def collation(self, column: int) -> str:
        return self.collations[column] if self.collations else ""

    def compared(self, columns: Iterable[int], values: Iterable[Any]) -> tuple[Any, ...]:
        """``values`` in a form that is equal for what is equal in ``columns``, by their types and collations."""
        return tuple(as_compared(v, self.collation(c), self.types[c]) for c, v in zip(columns, values, strict=True))

    def column_list(self, columns: Iterable[int] | None = None) -> str:
        return ", ".join(quoted(self.names[c]) for c in (range(len(self.names)) if columns is None else columns))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def declared(name: str, kind: str) -> str:
    """A column with its type, which in quotes may be any text: ``decimal (10-2)``. It gives the same affinity."""
    return f"{quoted(name)} {quoted(kind)}" if kind else quoted(name)


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection that reads broken UTF-8 with replacement characters instead of failing."""
    from nl2sql.databases.sqlite.files import read_only

    with read_only(path) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        yield connection


def encoded(connection: sqlite3.Connection) -> str:
    """What gives a new file the text encoding of this one, in which texts are sorted, and without which no ATTACH."""
    return f"PRAGMA encoding='{connection.execute('PRAGMA encoding').fetchone()[0]}';"


def table_kinds(connection: sqlite3.Connection) -> dict[str, str]:
    """Table name -> ``table``, ``virtual``, ``shadow`` or ``view``, without SQLite's own.

    Raises sqlite3.DatabaseError for more than ``MOST_COPIED``: the time that a copy takes grows with their square.
    """
    (count,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()
    if count > MOST_COPIED:
        raise sqlite3.DatabaseError(f"{count} tables; copies are made of at most {MOST_COPIED}")
    rows = connection.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main' ORDER BY name").fetchall()
    return {name: kind for name, kind in rows if not name.lower().startswith("sqlite_")}


def written_statements(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """(type, name, SQL) of all that the schema's author wrote, in order of creation."""
    kinds = table_kinds(connection)
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
    return [row for row in rows if kinds.get(row[1]) != "shadow" and not row[1].lower().startswith("sqlite_")]


def read_shapes(connection: sqlite3.Connection) -> list[TableShape]:
    """The ordinary tables, parents before children where foreign keys allow."""
    kinds = table_kinds(connection)
    statements = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%collate%'"
    collated = {name for (name,) in connection.execute(statements)}
    shapes = {
        name.lower(): _read(connection, name, collated=name in collated)
        for name, kind in kinds.items()
        if kind == "table"
    }
    complete = [_with_foreign_keys(connection, shape, shapes) for shape in shapes.values()]
    return _parents_first(complete)


def _read(connection: sqlite3.Connection, name: str, *, collated: bool) -> TableShape:
    info = connection.execute('SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?)', (name,)).fetchall()
    info = [row for row in info if row[4] == 0]
    position = {row[0].lower(): index for index, row in enumerate(info)}
    keys = [tuple(index for _, index in sorted((row[3], i) for i, row in enumerate(info) if row[3]))]
    for index, partial in connection.execute(
        'SELECT name, partial FROM pragma_index_list(?) WHERE "unique" ORDER BY name', (name,)
    ).fetchall():
        columns = [row[0] for row in connection.execute("SELECT name FROM pragma_index_info(?)", (index,))]
        if not partial and all(column is not None and column.lower() in position for column in columns):
            keys.append(tuple(position[column.lower()] for column in columns))
    has_rowid = bool(connection.execute("SELECT wr = 0 FROM pragma_table_list WHERE name = ?", (name,)).fetchone()[0])
    return TableShape(
        name,
        tuple(row[0] for row in info),
        tuple(row[1] for row in info),
        tuple(not row[2] and not (row[3] and not has_rowid) for row in info),
        tuple(dict.fromkeys(tuple(key) for key in keys if key)),
        (),
        has_rowid,
        tuple(_collation(connection, name, row[0]) for row in info) if collated else (),
    )


def _collation(connection: sqlite3.Connection, table: str, column: str) -> str:
    """The column's collation, seen from what it calls equal: a UNION compares by its first part's column."""
    none = f"SELECT {quoted(column)} FROM {quoted(table)} WHERE 0"
    for name, other in (("NOCASE", "A"), ("RTRIM", "a ")):
        (equal,) = connection.execute(
            f"SELECT count(*) = 1 FROM ({none} UNION SELECT 'a' UNION SELECT '{other}')"
        ).fetchone()
        if equal:
            return name
    return ""


def _with_foreign_keys(connection: sqlite3.Connection, shape: TableShape, shapes: dict[str, TableShape]) -> TableShape:
    rows = connection.execute(
        'SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?) ORDER BY id, seq', (shape.name,)
    ).fetchall()
    keys = []
    for id_ in sorted({row[0] for row in rows}):
        parts = [row for row in rows if row[0] == id_]
        parent = shapes.get(parts[0][1].lower())
        if parent is None:
            continue
        ours = _positions(shape, [part[2] for part in parts])
        targets = [part[3] for part in parts]
        theirs = parent.unique[0] if targets[0] is None and parent.unique else _positions(parent, targets)
        if ours and theirs and len(ours) == len(theirs):
            key = HeldForeignKey(ours, parent.name, theirs)
            dangle = f"SELECT 1 FROM {quoted(shape.name)} WHERE {dangling(shape, parent, key)} LIMIT 1"
            if connection.execute(dangle).fetchone() is None:
                keys.append(key)
    return replace(shape, foreign_keys=tuple(keys))


def _positions(shape: TableShape, names: Sequence[str | None]) -> tuple[int, ...] | None:
    known = {name.lower(): index for index, name in enumerate(shape.names)}
    if any(name is None or name.lower() not in known for name in names):
        return None
    return tuple(known[name.lower()] for name in names if name is not None)


def dangling(shape: TableShape, parent: TableShape, key: HeldForeignKey) -> str:
    """An SQL condition on ``shape``: the row's foreign key is set and refers to nothing.

    Text is compared by the parent's collation, as SQLite does for foreign keys: 'a1' refers to 'A1' where that is
    NOCASE. A parent without one leaves it to the child's own, as ``child.key = parent.key`` does.
    """
    collations = map(parent.collation, key.parent_columns)
    ours = ", ".join(
        quoted(shape.names[column]) + (f" COLLATE {collation}" if collation else "")
        for column, collation in zip(key.columns, collations, strict=True)
    )
    theirs = parent.column_list(key.parent_columns)
    set_here = " AND ".join(f"{quoted(shape.names[c])} IS NOT NULL" for c in key.columns)
    set_there = " AND ".join(f"{quoted(parent.names[c])} IS NOT NULL" for c in key.parent_columns)
    left = ours if len(key.columns) == 1 else f"({ours})"
    return f"{set_here} AND {left} NOT IN (SELECT {theirs} FROM {quoted(parent.name)} WHERE {set_there})"


def _parents_first(shapes: Sequence[TableShape]) -> list[TableShape]:
    waiting = {shape.name: {key.parent for key in shape.foreign_keys} - {shape.name} for shape in shapes}
    by_name = {shape.name: shape for shape in shapes}
    ordered: list[TableShape] = []
    while waiting:
        ready = [name for name, parents in waiting.items() if not parents & waiting.keys()]
        for name in ready or [min(waiting)]:  # a cycle: some table has to be first
            ordered.append(by_name[name])
            del waiting[name]
    return ordered


# --------------------------------------------------------------------------- references that dangle
# All others point at rows that exist from the start, because parents are filled before their
# children (``perturb``). Here a table's own rows, or a parent that had to be filled later, decide.
# Of 100 employees of whom each has to have a boss, 10 are dropped: those who reported to them get
# another boss.

ROUNDS = 10  # in which references move: two keys that undo each other would otherwise do so for ever
TRIES = 8  # at a parent that no constraint of the row refuses

Keys = list[tuple[Any, ...]]


def close_under_foreign_keys(connection: sqlite3.Connection, shapes: Mapping[str, TableShape], seed: str) -> None:
    """Dangling references become NULL where they may, or point at another row; where neither goes, their row goes."""
    drawn = {name: random.Random(f"{seed}/{name}/references") for name in shapes}
    for done in itertools.count():
        changed = 0
        for shape in shapes.values():
            for key in shape.foreign_keys:
                rng = drawn[shape.name] if done < ROUNDS else None
                changed += _close(connection, shape, shapes[key.parent], key, rng)
        if not changed:
            return


def present_keys(connection: sqlite3.Connection, parent: TableShape, key: HeldForeignKey) -> Keys:
    """What can be referred to in the rows that are written, in an order of its own."""
    rows = connection.execute(f"SELECT {parent.column_list(key.parent_columns)} FROM {quoted(parent.name)}").fetchall()
    return sorted((row for row in rows if None not in row), key=repr)


def _close(
    connection: sqlite3.Connection,
    shape: TableShape,
    parent: TableShape,
    key: HeldForeignKey,
    rng: random.Random | None,
) -> int:
    """How many rows were changed or deleted. Without ``rng`` no reference is pointed elsewhere."""
    table, condition = quoted(shape.name), dangling(shape, parent, key)
    free = [column for column in key.columns if shape.nullable[column] and not _in_key(shape, column)]
    if free:
        try:
            set_null = f"UPDATE {table} SET {quoted(shape.names[free[0]])} = NULL WHERE {condition}"
            return connection.execute(set_null).rowcount
        except sqlite3.IntegrityError:  # a CHECK forbids the NULL
            pass
    moved = _point_elsewhere(connection, shape, parent, key, rng) if rng else 0
    return moved + connection.execute(f"DELETE FROM {table} WHERE {condition}").rowcount


def _point_elsewhere(
    connection: sqlite3.Connection, shape: TableShape, parent: TableShape, key: HeldForeignKey, rng: random.Random
) -> int:
    """Point each dangling reference at a parent drawn at random; how many rows took one."""
    table, identity = quoted(shape.name), _identity(shape)
    dangle = f"SELECT {', '.join(identity)} FROM {table} WHERE {dangling(shape, parent, key)}"
    rows = connection.execute(dangle).fetchall() if identity else []
    known = present_keys(connection, parent, key) if rows else []
    if not known:
        return 0
    unused: Keys = []
    if any(set(columns) <= set(key.columns) for columns in shape.unique):  # each parent has one child at most
        taken = connection.execute(f"SELECT {shape.column_list(key.columns)} FROM {table}")
        used = {parent.compared(key.parent_columns, values) for values in taken}
        unused = [values for values in known if parent.compared(key.parent_columns, values) not in used]
        rng.shuffle(unused)
    change = ", ".join(f"{quoted(shape.names[column])} = ?" for column in key.columns)
    where = " AND ".join(f"{column} = ?" for column in identity)
    moved = 0
    for row in rows:
        for _ in range(TRIES):
            target = unused.pop() if unused else rng.choice(known)
            try:
                statement = f"UPDATE OR IGNORE {table} SET {change} WHERE {where}"
                taken_one = connection.execute(statement, (*target, *row)).rowcount == 1
            except sqlite3.IntegrityError:  # of a STRICT table
                taken_one = False
            if taken_one:
                moved += 1
                break
    return moved


def _identity(shape: TableShape) -> list[str]:
    """SQL names of what tells a row from the others: its row id or primary key; nothing where columns hide it."""
    if not shape.has_rowid:
        return [quoted(shape.names[column]) for column in shape.unique[0]]
    names = {name.lower() for name in shape.names}
    return [name for name in ("rowid", "_rowid_", "oid") if name not in names][:1]


def _in_key(shape: TableShape, column: int) -> bool:
    return any(column in columns for columns in shape.unique)
