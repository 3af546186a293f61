"""Compiled queries have the rows of an independent evaluation (``fixtures/vizql/compiled.json``, 500 cases).

The rows were computed once, in pandas, by a second evaluation that shared no code with the compiler. The tables have
NULLs, empty texts, ties, keys that lead nowhere, leap days, and texts with quotes, ``%`` and ``\\``.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from nl2sql.databases.engines import open_database
from nl2sql.interfaces import Database
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.query import Request
from nl2sql.vizql.source import DataSource
from nl2sql.vizql.validator import validate

FILE = Path(__file__).parents[1] / "fixtures" / "vizql" / "compiled.json"
CASES = json.loads(FILE.read_text(encoding="utf-8"))
SOURCE = DataSource.model_validate(CASES["source"])
TODAY = datetime.date.fromisoformat(CASES["today"])


@pytest.fixture(scope="module", params=["sqlite", "duckdb"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("compiled") / f"superstore.{request.param}"
    connection: Any = sqlite3.connect(path) if request.param == "sqlite" else duckdb.connect(str(path))
    for name, table in CASES["tables"].items():
        connection.execute(f"CREATE TABLE {name} ({', '.join(map(' '.join, table['columns'].items()))})")
        connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(table['columns']))})", table["rows"])
    connection.commit()
    connection.close()
    with open_database(path if request.param == "sqlite" else f"duckdb:{path}") as opened:
        yield opened


def plain(value: Any) -> Any:
    """A value as JSON and SQLite have it; a moment at midnight is its day."""
    if isinstance(value, datetime.date):
        value = str(value)
    if isinstance(value, str):
        return value.removesuffix(" 00:00:00")
    return float(value) if isinstance(value, Decimal) else value


def in_any_order(row: list[Any]) -> list[tuple[Any, ...]]:
    return [(value is not None, isinstance(value, str), round(value, 6) if _number(value) else value) for value in row]


def alike(one: Any, other: Any) -> bool:
    return bool(one == pytest.approx(other, rel=1e-9, abs=1e-9)) if _number(one) and _number(other) else one == other


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


@pytest.mark.parametrize("case", CASES["cases"], ids=map(str, range(len(CASES["cases"]))))
def test_compiled_queries_have_the_rows_of_an_independent_evaluation(case: dict[str, Any], database: Database) -> None:
    assert {error.kind for error in validate(case["query"], SOURCE).errors} <= {"measure"}  # its default function
    made = compiled(Request.model_validate(case["query"]), SOURCE, database.dialect, today=TODAY)
    result = database.run(made.sql)
    assert result.success, result.error
    assert list(made.columns) == case["columns"]
    rows, expected = ([[plain(value) for value in row] for row in given] for given in (result.rows, case["rows"]))
    assert len(rows) == len(expected)
    for place in case["sorted_by"]:
        assert all(alike(row[place], other[place]) for row, other in zip(rows, expected, strict=True))
    for row, other in zip(sorted(rows, key=in_any_order), sorted(expected, key=in_any_order), strict=True):
        assert all(map(alike, row, other)), made.sql
