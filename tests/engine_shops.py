"""One small database on every engine that is here: ``engine("duckdb")`` and so on.

``NL2SQL_TEST_POSTGRES`` and ``NL2SQL_TEST_MYSQL`` may name a database that holds fixtures/repair/schema.*.sql, for a
user who may only read it; else a private server is started.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import servers

from nl2sql.databases.engines import open_database
from nl2sql.interfaces import Database

FIXTURES = Path(__file__).parent / "fixtures" / "repair"
MISSING = {
    "postgres": "no PostgreSQL server: apt-get install postgresql, or set NL2SQL_TEST_POSTGRES",
    "mysql": "no MariaDB server: apt-get install mariadb-server, or set NL2SQL_TEST_MYSQL",
}


def schema_of(dialect: str) -> str:
    return (FIXTURES / f"schema.{dialect}.sql").read_text(encoding="utf-8")


def make_sqlite(folder: Path) -> str:
    path = folder / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(schema_of("sqlite"))
    connection.close()
    return str(path)


def make_duckdb(folder: Path) -> str:
    import duckdb

    path = folder / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(schema_of("duckdb"))
    return f"duckdb:{path}"


MAKE_CLICKHOUSE = """
import sys
from chdb import session
made = session.Session(sys.argv[1])
for statement in filter(str.strip, open(sys.argv[2]).read().split(";")):
    made.query(statement + (" ENGINE = MergeTree ORDER BY tuple()" if "CREATE" in statement else ""))
made.close()
"""


def make_clickhouse(folder: Path) -> str:
    """In a process of its own: chdb opens one folder per process, and is large."""
    path = folder / "shop"
    command = [sys.executable, "-c", MAKE_CLICKHOUSE, str(path), str(FIXTURES / "schema.clickhouse.sql")]
    subprocess.run(command, check=True)
    return f"clickhouse:{path}"


FILES = {"sqlite": make_sqlite, "duckdb": make_duckdb, "clickhouse": make_clickhouse}
SERVERS = {"postgres": servers.postgres, "mysql": servers.mysql}


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Database]]:
    """The shop on the engine of a dialect, opened once; skips where its server is not installed."""
    opened: dict[str, Database | None] = {}
    with ExitStack() as stack:

        def of(dialect: str) -> Database:
            if dialect not in opened:
                spec = os.environ.get(f"NL2SQL_TEST_{dialect.upper()}")
                if spec is None and dialect in SERVERS:
                    spec = stack.enter_context(SERVERS[dialect](schema_of(dialect)))
                elif spec is None:
                    spec = FILES[dialect](tmp_path_factory.mktemp(dialect))
                opened[dialect] = open_database(spec) if spec else None
                if opened[dialect] is not None:
                    stack.callback(opened[dialect].close)  # type: ignore[union-attr]
            database = opened[dialect]
            if database is None:
                pytest.skip(MISSING[dialect])
            return database

        yield of
