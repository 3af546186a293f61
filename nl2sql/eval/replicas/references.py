"""References that dangle when all rows of a replica are there: of a table to itself, or round a cycle of tables.

All others point at rows that exist from the start, because parents are filled before their children (``perturb``).
Here a table's own rows, or a parent that had to be filled later, decide. Of 100 employees of whom each has to have a
boss, 10 are dropped: those who reported to them get another boss.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Mapping
from typing import Any

from nl2sql.eval.replicas.shape import HeldForeignKey, TableShape, dangling, quoted

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
