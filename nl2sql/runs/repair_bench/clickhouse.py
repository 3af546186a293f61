"""SQLite databases in ClickHouse (chdb), and golds that give the same rows there.

    python -m nl2sql.runs.repair_bench.clickhouse SOURCE.sqlite FOLDER

A process of its own, since chdb opens one folder each.

Columns take the narrowest type that holds all of their values: Int64, Float64, Date32 (texts that are ISO dates), else
String; Nullable unless the schema forbids NULL. ClickHouse has no foreign keys. Views are left out.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl2sql.databases.schema import Column, introspect, quote_name
from nl2sql.databases.sqlite.files import read_only
from nl2sql.errors import DatabaseError, UsageError, one_line
from nl2sql.eval.rules import get_rule
from nl2sql.interfaces import Benchmark, Database, Question
from nl2sql.machine import install_command
from nl2sql.runs.repair_bench.cases import MAX_ROWS, TIMEOUT_S, Asked
from nl2sql.sql.parse import SLIPS, parse_bounded

LOAD_S = 300.0
MOST_OPEN = 6  # each open database is a process of some 300 MB
DATE = re.compile(r"(19|2[012])\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
CHUNK = 5000  # rows of one INSERT
SAME = get_rule("bag~1e-6")  # averages and sums are added up in another order


class ClickHouseCopies:
    """A benchmark's SQLite databases as ClickHouse folders below ``folder``, each loaded when it is first asked for.

    Raises DatabaseError where chdb is missing or a database cannot be loaded.
    """

    def __init__(self, name: str, benchmark: Benchmark, folder: Path) -> None:
        self.name, self.benchmark, self.folder = name, benchmark, folder
        self._open: OrderedDict[str, Database] = OrderedDict()
        self._lock = threading.Lock()

    def database(self, db_id: str) -> Database:
        """The copy of a database. At most ``MOST_OPEN`` have a process; one that was closed starts anew when used."""
        from nl2sql.databases.engines.database import EngineDatabase
        from nl2sql.databases.sqlite.database import SqliteDatabase

        with self._lock:
            if db_id not in self._open:
                source = self.benchmark.database(db_id)
                if not isinstance(source, SqliteDatabase):
                    raise UsageError(f"{db_id} is a {source.dialect} database; only SQLite files are copied")
                self._open[db_id] = EngineDatabase("clickhouse", str(_loaded(source.path, self.folder / db_id)), db_id)
            self._open.move_to_end(db_id)
            for old in list(self._open.values())[:-MOST_OPEN]:
                old.close()
            return self._open[db_id]

    def asked(self, question: Question) -> Asked | None:
        """The question with its golds translated, those that give SQLite's own rows; None without one."""
        ours, theirs = self.benchmark.database(question.db_id), self.database(question.db_id)
        golds = []
        for gold in question.gold:
            text = translated(gold)
            wanted, given_rows = (
                database.run(sql, timeout_s=TIMEOUT_S, max_rows=MAX_ROWS)
                for database, sql in ((ours, gold), (theirs, text))
            )
            if wanted.rows and SAME.judge([wanted], [given_rows], gold_sql=gold, predicted_sql=gold):
                golds.append(text)
        return Asked(question, theirs, tuple(golds), translated) if golds else None

    def close(self) -> None:
        for database in self._open.values():
            database.close()


def translated(sql: str) -> str:
    """SQLite's SQL in ClickHouse's dialect; what cannot be parsed as it is."""
    from sqlglot.errors import SqlglotError

    try:
        return str(parse_bounded(sql).sql(dialect="clickhouse"))
    except (SqlglotError, *SLIPS):
        return sql


def _loaded(source: Path, folder: Path) -> Path:
    """The folder, filled by a process of its own where it is not there yet; it appears when it is complete."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.building")
    command = [sys.executable, "-m", "nl2sql.runs.repair_bench.clickhouse", str(source.resolve()), str(building)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_S)
    except subprocess.TimeoutExpired:
        raise DatabaseError(f"{source} was not loaded into ClickHouse within {LOAD_S:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["no message"]
        hint = f"; install it: {install_command('engines')}" if "ModuleNotFound" in said[0] else ""
        raise DatabaseError(f"{source} cannot be loaded into ClickHouse: {one_line(said[0], 300)}{hint}")
    building.rename(folder)
    return folder


def copy_tables(source: Path, folder: Path) -> None:
    """Copy every table of a SQLite file into a new ClickHouse folder."""
    import shutil

    from chdb import session

    shutil.rmtree(folder, ignore_errors=True)  # what a killed process left
    made = session.Session(str(folder))
    with read_only(source) as connection:
        for table in introspect(connection).tables:
            if table.is_view:
                continue
            types = [_type(connection, table.name, column) for column in table.columns]
            columns = ", ".join(f"{_name(c.name)} {kind}" for c, kind in zip(table.columns, types, strict=True))
            made.query(f"CREATE TABLE {_name(table.name)} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
            rows = connection.execute(f"SELECT * FROM {quote_name(table.name)}")
            names = [column.name for column in table.columns]
            while chunk := rows.fetchmany(CHUNK):
                lines = "\n".join(json.dumps(dict(zip(names, map(_value, row), strict=True))) for row in chunk)
                made.query(f"INSERT INTO {_name(table.name)} FORMAT JSONEachRow\n{lines}")
    made.close()


def _type(connection: sqlite3.Connection, table: str, column: Column) -> str:
    values = [
        value
        for (value,) in connection.execute(
            f"SELECT DISTINCT {quote_name(column.name)} FROM {quote_name(table)}"
            f" WHERE {quote_name(column.name)} IS NOT NULL"
        )
    ]
    kind = _of_values(values) if values else DECLARED.get(column.type.upper(), "String")
    return kind if column.not_null or column.primary_key else f"Nullable({kind})"


DECLARED = {"INTEGER": "Int64", "INT": "Int64", "REAL": "Float64"}


def _of_values(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values}
    if kinds == {int}:
        return "Int64"
    if kinds <= {int, float}:
        return "Float64"
    return "Date32" if kinds == {str} and all(map(DATE.fullmatch, values)) else "String"


def _value(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _name(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


if __name__ == "__main__":
    copy_tables(Path(sys.argv[1]), Path(sys.argv[2]))
