"""The process that writes replicas: what a file's own constraints cost is not the caller's time or memory.

A CHECK, a generated column or an index on an expression is executed for every row that is written, and
SQLite cannot be interrupted inside of one: this process is killed where it takes too long. Started by
``nl2sql.eval.replicas`` as a ``FramedChild``.

Requests: ``{"task": "read", "path", "seed", "table_rows"}``, answered with the number of ``rows``; then
``{"task": "write", "target", "number"}`` for each replica; or ``{"task": "shuffle", "path", "target",
"seed"}``. Replies have ``log`` (warnings), and ``error`` where it failed.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
import signal
import sqlite3
import sys
from collections.abc import Callable
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.files import WalCopies
from nl2sql.databases.sqlite.process import PATIENCE, reply, requests
from nl2sql.databases.sqlite.worker import restrict_process
from nl2sql.eval.replicas import perturb
from nl2sql.eval.replicas.table_shapes import declared, encoded, open_read_only, quoted, table_kinds

log = logging.getLogger(__name__)

LARGEST_FILE = 2**32
LAST_RESORT_S = 30  # after which an orphan ends; the parent kills sooner
# Rows from which look-ups need the keys' indexes; below, an index would only lend its order to scans.
INDEX_FROM = 5_000


class _Work:
    """What was read of the last database."""

    perturber: perturb.Perturber | None = None

    def done(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request."""
        if request["task"] == "shuffle":
            write_shuffled(Path(request["path"]), Path(request["target"]), seed=request["seed"])
            return {}
        if request["task"] == "read":
            perturb.TABLE_ROWS = request["table_rows"]
            self.perturber = None
            self.perturber = perturb.Perturber(Path(request["path"]), seed=request["seed"])
            return {"rows": sum(map(len, self.perturber.rows.values()))}
        assert self.perturber is not None, "read comes first"
        self.perturber.write(Path(request["target"]), request["number"])
        return {}


def main() -> None:
    """Answer requests until the socket closes."""
    restrict_process(LARGEST_FILE)
    warnings, work = BufferingHandler(sys.maxsize), _Work()
    logging.getLogger("nl2sql").addHandler(warnings)
    for request in requests():
        signal.alarm(int(request["seconds"] * PATIENCE) + LAST_RESORT_S)
        warnings.flush()
        try:
            answer = work.done(request)
        except MemoryError:
            answer = {"error": "it takes too much memory"}
        except (OSError, sqlite3.Error) as error:
            answer = {"error": str(error)}
        signal.alarm(0)
        reply({**answer, "log": [record.getMessage() for record in warnings.buffer]})


# ------------------------------------------------------------ the same rows in another physical order


def write_shuffled(source: Path, target: Path, *, seed: int | None) -> None:
    """Fill ``target`` with the tables of ``source``, rows in a random or (None) reversed order, without constraints.

    SQLite sorts, so memory stays bounded. Virtual tables are not covered (they are left out, and logged).
    """
    with open_read_only(source) as reader:
        kinds, encoding = table_kinds(reader), encoded(reader)
    copies = WalCopies()
    connection = sqlite3.connect(target, isolation_level=None, uri=True)
    try:
        connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {encoding}")
        connection.execute("ATTACH ? AS source", (copies.readable(source)[0],))
        connection.create_function("next_key", 0, _keys(seed))
        for name, kind in kinds.items():
            if kind == "table":
                _copy_table(connection, name)
            elif kind == "virtual":
                log.warning("virtual table %s is not in the shuffled copy", name)
        _recreate(connection, kinds)
    finally:
        connection.close()
        copies.close()


def _keys(seed: int | None) -> Callable[[], float]:
    """Sort keys for one row after another: random, or falling."""
    if seed is not None:
        return random.Random(f"shuffle/{seed}").random
    count = itertools.count()
    return lambda: -next(count)


def _copy_table(connection: sqlite3.Connection, name: str) -> None:
    columns = connection.execute(
        "SELECT name, type, pk FROM pragma_table_xinfo(?, 'source') WHERE hidden <> 1", (name,)
    ).fetchall()
    (ddl,) = connection.execute(
        "SELECT sql FROM source.sqlite_master WHERE type='table' AND name=?", (name,)
    ).fetchone()
    definitions = ", ".join(f"{declared(column, kind)}{_collation(ddl, column)}" for column, kind, _ in columns)
    connection.execute(f"CREATE TABLE main.{quoted(name)} ({definitions})")
    names = ", ".join(quoted(column) for column, _, _ in columns)
    connection.execute(
        f"INSERT INTO main.{quoted(name)} ({names}) SELECT {names} FROM source.{quoted(name)} ORDER BY next_key()"
    )
    (rows,) = connection.execute(f"SELECT count(*) FROM main.{quoted(name)}").fetchone()
    if rows < INDEX_FROM:
        return
    keys = [[column for column, _, pk in sorted(columns, key=lambda row: row[2]) if pk]]
    for index in connection.execute(
        "SELECT name FROM pragma_index_list(?, 'source') WHERE origin = 'u'", (name,)
    ).fetchall():
        keys.append([row[0] for row in connection.execute("SELECT name FROM pragma_index_info(?, 'source')", index)])
    for number, key in enumerate(key for key in keys if key):
        listed = ", ".join(map(quoted, key))
        connection.execute(f"CREATE INDEX main.{quoted(f'key_{number}_of_{name}')} ON {quoted(name)} ({listed})")


def _collation(ddl: str, column: str) -> str:
    """The column's COLLATE clause, read off its definition: results of comparisons and sorting depend on it."""
    name = re.escape(column)
    clause = re.search(rf'[("`\[,\s]{name}["`\]]?\s[^,]*?\bCOLLATE\s+["`\[]?(\w+)', ddl, re.IGNORECASE)
    return f" COLLATE {clause.group(1)}" if clause else ""


def _recreate(connection: sqlite3.Connection, kinds: dict[str, str]) -> None:
    """Explicit indexes (no longer unique) and views, as they were written."""
    statements = connection.execute(
        "SELECT type, name, tbl_name, sql FROM source.sqlite_master WHERE type IN ('index', 'view') AND sql IS NOT NULL"
    ).fetchall()
    for kind, name, table, sql in statements:
        if kind == "index" and kinds.get(table) != "table":
            continue
        try:
            connection.execute(re.sub(r"^(\s*CREATE\s+)UNIQUE\s+", r"\1", sql, flags=re.IGNORECASE))
        except sqlite3.Error as error:
            log.warning("%s %s is not in the shuffled copy: %s", kind, name, error)
