"""SQL as structured queries: what is written for it, why nothing is, and texts that nobody would want."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzz_model_text import model_text
from people import make_database

from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.sql.bounds import bounded
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.from_sql import nullable_captions, structured
from nl2sql.vizql.infer import infer
from nl2sql.vizql.mending import as_json
from nl2sql.vizql.query import Query
from nl2sql.vizql.source import DataSource

FILE = Path(__file__).resolve().parents[1] / "fixtures" / "vizql" / "from_sql.yaml"
CASES = yaml.safe_load(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    path = make_database(tmp_path_factory.mktemp("from_sql") / "shop.sqlite", CASES["tables"])
    with SqliteDatabase(path, name="shop") as database:
        yield database


@pytest.fixture(scope="module")
def source(shop: SqliteDatabase) -> DataSource:
    return infer(shop)


@pytest.mark.parametrize(("sql", "wanted"), [(case["sql"], case["query"]) for case in CASES["written"]])
def test_sql_is_written_as_a_tableau_user_would(
    shop: SqliteDatabase, source: DataSource, sql: str, wanted: Any
) -> None:
    assert structured(sql, source, nullable=nullable_captions(source, shop.schema())).candidates[0] == wanted


@pytest.mark.parametrize(("sql", "reason"), [(case["sql"], case["reason"]) for case in CASES["left_out"]])
def test_sql_that_no_query_says_has_a_reason(source: DataSource, sql: str, reason: str) -> None:
    translation = structured(sql, source)
    assert (translation.candidates, translation.reason) == ((), reason)


def test_what_may_be_null_is_all_but_keys_where_nobody_says_so(shop: SqliteDatabase, source: DataSource) -> None:
    sql = "SELECT DISTINCT street FROM shops WHERE town <> 'Bern'"
    (part,) = structured(sql, source).candidates[0]["filters"]
    assert part["values"] == ["Bern", None]
    (part,) = structured(sql, source, nullable=nullable_captions(source, shop.schema())).candidates[0]["filters"]
    assert part["values"] == ["Bern"]
    (part,) = structured("SELECT DISTINCT town FROM shops WHERE shop_id <> 1", source).candidates[0]["filters"]
    assert part["values"] == [1]


def test_like_ignores_case_where_the_database_does(shop: SqliteDatabase, source: DataSource) -> None:
    def asked(sql: str, dialect: str) -> Any:
        return structured(sql, source, dialect).candidates[0]

    both = "SELECT DISTINCT town FROM shops WHERE town LIKE '%BER%' OR town LIKE 'OsL%'"
    query = compiled(Query.model_validate(asked(both, "sqlite")), source, "sqlite")
    assert shop.run(query.sql).rows == shop.run(both).rows != ()
    one = "SELECT DISTINCT town FROM shops WHERE town LIKE '%BER%'"
    (part,) = asked(one, "mysql")["filters"]
    assert part["filterType"] == "MATCH"
    for dialect in ("duckdb", "postgres", "clickhouse"):
        (part,) = asked(one, dialect)["filters"]
        assert part["field"] == {"calculation": 'CONTAINS([Town], "BER")'}


def test_tables_are_known_by_their_names_in_the_database_whatever_their_ids(source: DataSource) -> None:
    data = source.model_dump(mode="json")
    for part in [*data["fields"], *data["logicalTables"]]:
        part["logicalTableId"] = "id of " + part["logicalTableId"]
    for relation in data["logicalTableRelationships"]:
        for end in ("fromLogicalTable", "toLogicalTable"):
            relation[end]["logicalTableId"] = "id of " + relation[end]["logicalTableId"]
    sql = "SELECT town, COUNT(*) FROM shops JOIN sales ON sales.shop_id = shops.shop_id GROUP BY town"
    assert structured(sql, DataSource.model_validate(data)) == structured(sql, source)


@pytest.mark.parametrize("limit", [1000, 50_000])
def test_texts_that_nobody_would_want_raise_nothing(source: DataSource, limit: int) -> None:
    head = "SELECT town FROM shops WHERE "
    texts = [
        head + " OR ".join(["town = 'a'"] * 400),
        head + " AND ".join(["floors > 1 OR town = 'b'"] * 400),
        head + "(" * 150 + "floors" + ")" * 150 + " = 1",
        head + "NOT " * 500 + "floors = 1",
        head + " + ".join(["floors"] * 4000) + " > 1",
        head + "floors IN (" + ", ".join(map(str, range(4000))) + ") OR town = 'x'",
        head + "town = " + "CASE WHEN floors = 1 THEN " * 60 + "'a'" + " END" * 60,
        "SELECT " + ", ".join(["SUM(floors) + 1"] * 1500) + " FROM shops",
        "SELECT town FROM shops LIMIT " + "9" * 6000,
        "SELECT ROUND(AVG(floors), -1), ROUND(AVG(floors), town) FROM shops",
        *(bounded(model_text(7, number)) for number in range(200)),
    ]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        for text in texts:
            translation = structured(text, source)
            assert not translation.reason.startswith("not read"), (text[:200], translation.reason)
            as_json(list(translation.candidates))
    finally:
        sys.setrecursionlimit(before)
