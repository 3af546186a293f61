"""Repairs without a model: cases are lines of fixtures/repair/autofix.tsv."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nl2sql.interfaces import Database
from nl2sql.repair.deterministic import MAX_FIXED, autofix, fault

FILE = Path(__file__).parent.parent / "fixtures" / "repair" / "autofix.tsv"
CASES = [line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize(("sql", "wanted"), CASES)
def test_a_repair_is_what_its_line_says_and_is_sound(sql: str, wanted: str, engine: Callable[[str], Database]) -> None:
    database = engine("sqlite")
    found = autofix(sql, fault(sql, database, database.schema()), database, database.schema())
    assert (found or "-") == wanted
    assert found is None or database.run(found).success


OTHER = [
    ("duckdb", "SELECT city, COUNT(*) FROM customers", "GROUP BY city"),
    ("postgres", "SELECT c.name, COUNT(*) FROM customers AS c", "GROUP BY c.name"),
    ("clickhouse", "SELECT city, COUNT(*) FROM customers", "GROUP BY city"),
    ("postgres", "SELECT o.total FROM customers c", "JOIN orders ON orders.customer_id = c.customer_id"),
    ("postgres", "SELECT city FROM customers WHERE COUNT(*) > 1 GROUP BY city", "HAVING COUNT(*) > 1"),
    ("duckdb", "SELECT c.nam FROM customers c", "SELECT c.name FROM customers c"),
    ("clickhouse", "SELECT c.nam FROM customers c", "SELECT c.name FROM customers c"),
    ("clickhouse", "SELECT STRFTIME('%Y', ordered) FROM orders", "formatDateTime"),
    ("duckdb", "SELECT nam FROM customers", "SELECT name FROM customers"),
    ("duckdb", "SELECT name, total FROM customers", "JOIN orders ON orders.customer_id = customers.customer_id"),
    ("duckdb", "SELECT TOP 5 name FROM customers", "SELECT name FROM customers LIMIT 5"),
    ("duckdb", "SELECT ISNULL(city, 'none') FROM customers", "SELECT COALESCE(city, 'none') FROM customers"),
    ("postgres", "SELECT customers.name FROM customers c", "SELECT c.name FROM customers c"),
    ("postgres", "SELECT IFNULL(city, 'x') FROM customers", "SELECT COALESCE(city, 'x') FROM customers"),
    ("mysql", "SELECT c.nam FROM customers c", "SELECT c.name FROM customers c"),
    (
        "duckdb",
        "SELECT CHARINDEX('a', name), GROUP_CONCAT(city, ';'), COUNT(*) / 2 FROM customers GROUP BY name",
        "SELECT STRPOS(name, 'a'), GROUP_CONCAT(city, ';'), COUNT(*) / 2 FROM customers GROUP BY name",
    ),
    (
        "postgres",
        "SELECT IFNULL(city || '!', 'x'), customer_id / 2 FROM customers ORDER BY city",
        "SELECT COALESCE(city || '!', 'x'), customer_id / 2 FROM customers ORDER BY city",
    ),
]


@pytest.mark.parametrize(("dialect", "sql", "wanted"), OTHER)
def test_other_engines_are_mended_by_their_own_words(
    dialect: str, sql: str, wanted: str, engine: Callable[[str], Database]
) -> None:
    database = engine(dialect)
    found = autofix(sql, fault(sql, database, database.schema()), database, database.schema())
    assert found is not None and wanted in found
    assert database.run(found).success


def test_a_query_of_more_than_10_000_characters_is_not_mended(engine: Callable[[str], Database]) -> None:
    database = engine("sqlite")
    schema = database.schema()
    for length, fixed in ((MAX_FIXED, True), (10_001, False)):
        sql = "SELECT nam FROM customers".ljust(length)
        assert (autofix(sql, "no such column: nam", database, schema) is not None) is fixed


def test_a_wrong_shape_is_left_to_the_model(engine: Callable[[str], Database]) -> None:
    database = engine("sqlite")
    assert autofix("SELECT name FROM customers", "missing_agg:COUNT", database, database.schema()) is None
