"""An edited answer names tables and columns as the database's own engine reads them."""

from __future__ import annotations

import pytest
import servers

from nl2sql.databases.engines import open_database
from nl2sql.interfaces import Turn
from nl2sql.sessions.edits import edited

MADE = """
CREATE TABLE "Regions" ("regionId" INTEGER PRIMARY KEY, "Name" TEXT);
CREATE TABLE "Orders" ("orderId" INTEGER PRIMARY KEY, "regionId" INTEGER REFERENCES "Regions" ("regionId"),
    "Total" INTEGER, "lateral" TEXT);
INSERT INTO "Regions" VALUES (1, 'North'), (2, 'South');
INSERT INTO "Orders" VALUES (1, 1, 10, 'left'), (2, 1, 30, 'right'), (3, 2, 50, 'left');
"""
COUNT = 'SELECT COUNT(*) FROM "Orders"'
TOTALS = 'SELECT o."orderId", o."Total" FROM "Orders" O'
CASES = [
    (COUNT, "only the North region", [(2,)]),
    (COUNT, "per region", [("North", 2), ("South", 1)]),
    (COUNT, "and per lateral?", [("left", 2), ("right", 1)]),
    (TOTALS, "only the South region", [(3, 50)]),
    (f'{TOTALS} ORDER BY "Total"', "which lateral?", [("left",), ("right",)]),
    (TOTALS, "also show the lateral", [(1, 10, "left"), (2, 30, "right"), (3, 50, "left")]),
]


@pytest.fixture(scope="module", params=["duckdb", "postgres"])
def database(request, tmp_path_factory):
    if request.param == "postgres":
        with servers.postgres(MADE) as spec:
            if spec is None:
                pytest.skip("no PostgreSQL server: apt-get install postgresql")
            with open_database(spec) as opened:
                yield opened
        return
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path_factory.mktemp("orders") / "orders.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(MADE)
    with open_database(f"duckdb:{path}") as opened:
        yield opened


@pytest.mark.parametrize(("before", "question", "rows"), CASES)
def test_an_edit_writes_names_as_the_engine_reads_them(before, question, rows, database) -> None:
    made = edited(question, Turn("Which orders?", sql=before), database)
    assert made, question
    (sql, _), *_ = made
    result = database.run(sql, timeout_s=10, max_rows=10)
    assert result.success, (sql, result.error)
    assert sorted(result.rows) == sorted(rows), sql
