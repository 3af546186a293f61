"""Where cases come from and are repaired: the databases of a benchmark, as they are or copied into ClickHouse (chdb).

    python -m nl2sql.runs.repair_bench.sources SOURCE.sqlite FOLDER

copies one, in a process of its own, since chdb opens one folder each. Columns take the narrowest type that holds all of
their values: Int64, Float64, Date32 (texts that are ISO dates), else String; Nullable unless the schema forbids NULL.
ClickHouse has no foreign keys. Views are left out.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from sqlglot.errors import SqlglotError

from nl2sql.benchmarks import load_benchmark
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.databases.engines.database import EngineDatabase
from nl2sql.databases.schema import Column, introspect, quote_always, quote_name
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.databases.sqlite.files import read_only
from nl2sql.errors import DatabaseError, UsageError, one_line
from nl2sql.eval.rules import get_rule
from nl2sql.interfaces import Benchmark, Database, Question
from nl2sql.machine import install_command
from nl2sql.sql.parse import SLIPS, parse_bounded

if TYPE_CHECKING:
    from nl2sql.runs.repair_bench.cases import RepairCase

BOUNDS: dict[str, Any] = {"timeout_s": 10.0, "max_rows": 10_000}  # of a statement
SAME = get_rule("bag~1e-6")  # averages and sums are added up in another order on another engine


@dataclass(frozen=True)
class Asked:
    """A question whose ``golds`` run on ``database``, in whose dialect they are, and give rows."""

    question: Question
    database: Database
    golds: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A benchmark's databases by id: SQLite's, and those that statements fail on: the same, or their copies."""

    name: str
    sqlite: Callable[[str], Database]
    database: Callable[[str], Database]

    def asked(self, question: Question) -> Asked | None:
        """The question with those of its golds that give SQLite's rows; None without one: nothing could be right."""
        own, database = self.sqlite(question.db_id), self.database(question.db_id)
        golds = []
        for gold in question.gold:
            text = translated(gold, database.dialect)
            wanted = own.run(gold, **BOUNDS)
            given = wanted if database is own else database.run(text, **BOUNDS)
            if wanted.rows and SAME.judge([wanted], [given], gold_sql=gold, predicted_sql=gold):
                golds.append(text)
        return Asked(question, database, tuple(golds)) if golds else None


def translated(sql: str, dialect: str) -> str:
    """SQLite's SQL in another dialect; as it is where that is SQLite's, or where it cannot be parsed."""
    try:
        return sql if dialect == "sqlite" else str(parse_bounded(sql).sql(dialect=dialect))
    except (SqlglotError, *SLIPS):
        return sql


# ----------------------------------------------------------- the questions of ``bank.yaml``

BANK = Path(__file__).with_name("bank.yaml")
DATABASE = "bank"


def bank(folder: Path) -> FolderBenchmark:
    """The questions over a SQLite file in ``folder``, which is made where it is not there. Golds are ClickHouse's; the
    mistakes stand in ``meta["wrong"]``."""
    data = yaml.safe_load(BANK.read_text(encoding="utf-8"))
    path = folder / f"{DATABASE}.sqlite"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(data["schema"])
    questions = []
    for number, entry in enumerate(data["questions"]):
        gold, wrong = (entry["gold"].strip(),), {"wrong": entry["wrong"]}
        questions.append(Question(entry["question"], DATABASE, f"{DATABASE}-{number}", gold=gold, meta=wrong))
    return FolderBenchmark(DATABASE, questions, {}, {DATABASE: path}, source=str(BANK))


# ------------------------------------------------------------------------------- all benchmarks


class Sources:
    """The databases of the cases, opened by the benchmark's name. ``dialect``: the plan's; ``folder``: of copies.

    Raises DatabaseError where chdb is missing or a database cannot be loaded into ClickHouse.
    """

    def __init__(self, dialect: str, folder: Path) -> None:
        self.dialect, self.folder = dialect, folder
        self._benchmarks: dict[tuple[str, str], Benchmark] = {}
        self._copies: OrderedDict[Path, Database] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str, dialect: str = "") -> Source:
        """The databases of a benchmark on an engine (default: the plan's)."""
        sqlite = self.questions(name).database
        as_they_are = (dialect or self.dialect) == "sqlite"
        return Source(name, sqlite, sqlite if as_they_are else partial(self._copy, name))

    def questions(self, name: str, split: str = "all") -> Benchmark:
        """The benchmark, or the written questions."""
        if (name, split) not in self._benchmarks:
            loaded = bank(self.folder) if name == DATABASE else load_benchmark(name, split=split)
            self._benchmarks[name, split] = loaded
        return self._benchmarks[name, split]

    def database(self, case: RepairCase) -> Database:
        return self.of(case.benchmark, case.dialect).database(case.db_id)

    def _copy(self, name: str, db_id: str) -> Database:
        """The copy of a database in ClickHouse, loaded when it is first asked for.

        At most ``MOST_OPEN`` have a process; one that was closed starts anew when used.
        """
        place = self.folder / "clickhouse" / Path(name).name / db_id
        with self._lock:
            if place not in self._copies:
                source = self.questions(name).database(db_id)
                if not isinstance(source, SqliteDatabase):
                    raise UsageError(f"{db_id} is a {source.dialect} database; only SQLite files are copied")
                self._copies[place] = EngineDatabase("clickhouse", str(_loaded(source.path, place)), db_id)
            self._copies.move_to_end(place)
            for old in list(self._copies.values())[:-MOST_OPEN]:
                old.close()
            return self._copies[place]

    def close(self) -> None:
        """Close the copies; the benchmarks' own databases stay open for whoever else uses them."""
        for database in self._copies.values():
            database.close()


# ----------------------------------------------------------------------- copies in ClickHouse

LOAD_S = 300.0
MOST_OPEN = 6  # each open database is a process of some 300 MB
DATE = re.compile(r"(19|2[012])\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
CHUNK = 5000  # rows of one INSERT


def _loaded(source: Path, folder: Path) -> Path:
    """The folder, filled by a process of its own where it is not there yet; it appears when it is complete."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}.building")
    command = [sys.executable, "-m", "nl2sql.runs.repair_bench.sources", str(source.resolve()), str(building)]
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
    from chdb import session

    shutil.rmtree(folder, ignore_errors=True)  # what a killed process left
    made = session.Session(str(folder))
    with read_only(source) as connection:
        for table in introspect(connection).tables:
            if table.is_view:
                continue
            names = [column.name for column in table.columns]
            target, *quoted = (quote_always(name, "clickhouse") for name in (table.name, *names))
            types = (_type(connection, table.name, column) for column in table.columns)
            columns = ", ".join(map(" ".join, zip(quoted, types, strict=True)))
            made.query(f"CREATE TABLE {target} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
            rows = connection.execute(f"SELECT * FROM {quote_name(table.name)}")
            while chunk := rows.fetchmany(CHUNK):
                records = (dict(zip(names, row, strict=True)) for row in chunk)
                lines = (json.dumps(record, default=lambda blob: blob.decode("utf-8", "replace")) for record in records)
                made.query(f"INSERT INTO {target} FORMAT JSONEachRow\n" + "\n".join(lines))
    made.close()


def _type(connection: sqlite3.Connection, table: str, column: Column) -> str:
    name = quote_name(column.name)
    query = f"SELECT DISTINCT {name} FROM {quote_name(table)} WHERE {name} IS NOT NULL"
    values = [value for (value,) in connection.execute(query)]
    kinds = {type(value) for value in values}
    if not values:
        kind = {"INTEGER": "Int64", "INT": "Int64", "REAL": "Float64"}.get(column.type.upper(), "String")
    elif kinds <= {int, float}:
        kind = "Int64" if kinds == {int} else "Float64"
    else:
        kind = "Date32" if kinds == {str} and all(map(DATE.fullmatch, values)) else "String"
    return kind if column.not_null or column.primary_key else f"Nullable({kind})"


if __name__ == "__main__":
    copy_tables(Path(sys.argv[1]), Path(sys.argv[2]))
