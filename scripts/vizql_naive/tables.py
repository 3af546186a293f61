"""The tables that queries are evaluated over: their rows, their data source, and databases with them.

>>> rows = generated(0)
>>> len(rows["orders"]), rows["people"][0]
(300, {'region': 'East', 'person': 'Ann', 'target': 500.0})

The data source is ``tests/fixtures/vizql/superstore.yaml`` with two more tables: people (by region) and suppliers (of
products). Amounts are multiples of 1/4, so that sums are the same in any order. There are NULLs, empty texts, ties,
rows that are twice there but for their key, keys that lead nowhere, leap days, and texts with quotes, ``%`` and ``\\``.
Not covered: upper-case letters outside of ASCII, which SQLite does not fold.
"""

from __future__ import annotations

import datetime
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nl2sql.databases.engines import open_database
from nl2sql.interfaces import Database
from nl2sql.machine import from_yaml
from nl2sql.vizql.source import DataSource

FIXTURE = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "vizql" / "superstore.yaml"
Rows = dict[str, list[dict[str, Any]]]  # by table, each row by column

COLUMNS = {
    "orders": {
        "row_id": "INTEGER PRIMARY KEY",
        "order_id": "TEXT",
        "order_date": "DATE",
        "ship_date": "TIMESTAMP",
        "ship_mode": "TEXT",
        "customer_name": "TEXT",
        "segment": "TEXT",
        "country": "TEXT",
        "state": "TEXT",
        "region": "TEXT",
        "product_id": "INTEGER",
        "gift": "BOOLEAN",
        "sales": "DOUBLE",
        "profit": "DOUBLE",
        "quantity": "INTEGER",
        "discount": "DOUBLE",
    },
    "products": {
        "product_id": "INTEGER PRIMARY KEY",
        "category": "TEXT",
        "sub_category": "TEXT",
        "product_name": "TEXT",
        "price": "DOUBLE",
        "supplier_id": "INTEGER",
    },
    "people": {"region": "TEXT PRIMARY KEY", "person": "TEXT", "target": "DOUBLE"},
    "suppliers": {"supplier_id": "INTEGER PRIMARY KEY", "supplier": "TEXT", "since": "DATE"},
}


def _record(caption: str, table: str, column: str, kind: str, role: str = "DIMENSION", **more: Any) -> dict[str, Any]:
    name = f"{column} ({table})"  # no two fields of a data source have one name
    record = {"fieldCaption": caption, "fieldName": name, "remoteFieldName": column, "dataType": kind}
    default = "SUM" if role == "MEASURE" else "COUNT"
    return record | {"fieldRole": role, "defaultAggregation": default, "logicalTableId": table} | more


_PERSONS = [{"member": "Ann", "value": "Ann (East)"}, {"member": "bob", "value": "Robert"}]
MORE_FIELDS = (
    _record("Price", "products", "price", "REAL", "MEASURE"),
    _record("Supplier ID", "products", "supplier_id", "INTEGER"),
    _record("Region (People)", "people", "region", "STRING"),
    _record("Person", "people", "person", "STRING", aliases=_PERSONS),
    _record("Target", "people", "target", "REAL", "MEASURE", defaultAggregation="AVG"),
    _record("Supplier ID (Suppliers)", "suppliers", "supplier_id", "INTEGER"),
    _record("Supplier", "suppliers", "supplier", "STRING"),
    _record("Since", "suppliers", "since", "DATE"),
)


def _relation(start: str, field: str, end: str, key: str) -> dict[str, Any]:
    ends = {"fromLogicalTable": {"logicalTableId": start}, "toLogicalTable": {"logicalTableId": end}}
    item = {"operator": "=", "fromField": f"[{field}]", "toField": f"[{key}]"}
    return ends | {"expression": {"op": "AND", "relationships": [item]}}


def superstore() -> DataSource:
    """The data source of all four tables."""
    data = from_yaml(FIXTURE.read_text(encoding="utf-8"))
    data["fields"] += MORE_FIELDS
    data["logicalTables"] += [
        {"logicalTableId": "people", "caption": "People", "table": "people", "key": ["region (people)"]},
        {"logicalTableId": "suppliers", "caption": "Suppliers", "key": ["supplier_id (suppliers)"]},
    ]
    data["logicalTableRelationships"] += [
        _relation("orders", "region", "people", "region (people)"),
        _relation("suppliers", "supplier_id (suppliers)", "products", "supplier_id (products)"),  # told from its end
    ]
    return DataSource.model_validate(data)


def generated(seed: int) -> Rows:
    """The rows of all tables; the same for the same seed."""
    draw = random.Random(seed)
    people = [("East", "Ann", 500.0), ("West", "bob", None), ("South", "Ann", 250.0), ("North", None, 1000.0)]
    suppliers = [("Acme", "2019-02-28"), ("Zoé", None), ("acme", "2020-02-29"), (None, "2024-12-30")]
    return {
        "orders": list(_orders(draw, 300)),
        "products": list(_products(draw, 20)),
        "people": [dict(zip(COLUMNS["people"], person, strict=True)) for person in people],
        "suppliers": [
            {"supplier_id": i, "supplier": name, "since": datetime.date.fromisoformat(day) if day else None}
            for i, (name, day) in enumerate(suppliers, 1)
        ],
    }


def _some(draw: random.Random, *values: Any) -> Any:
    """One of the values; now and then NULL."""
    return None if draw.random() < 0.08 else draw.choice(values)


def _products(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for i in range(1, count + 1):
        yield {
            "product_id": i,
            "category": _some(draw, "Furniture", "Technology", "Office"),
            "sub_category": _some(draw, "Chairs", "Phones", "Paper", ""),
            "product_name": _some(draw, "100% wool", "a_b", "back\\slash", 'say "hi"', "  pad ", f"product {i}"),
            "price": _some(draw, draw.randrange(400) / 4, 10.0, 12.5),
            "supplier_id": _some(draw, 1, 2, 3, 9),
        }


def _orders(draw: random.Random, count: int) -> Iterator[dict[str, Any]]:
    last: dict[str, Any] = {}
    for i in range(1, count + 1):
        last = last if last and draw.random() < 0.06 else _order(draw)  # some are twice there
        yield {"row_id": i} | last


def _order(draw: random.Random) -> dict[str, Any]:
    day = draw.choice(_DAYS) if draw.random() < 0.2 else _DAYS[0] + datetime.timedelta(draw.randrange(1800))
    clock = draw.choice([datetime.time(), datetime.time(draw.randrange(24), draw.randrange(60), draw.randrange(60))])
    shipped = datetime.datetime.combine(day + datetime.timedelta(draw.randrange(5)), clock)
    return {
        "order_id": f"A-{draw.randrange(90)}",
        "order_date": _some(draw, day),
        "ship_date": _some(draw, shipped),
        "ship_mode": _some(draw, "First [Class", "Second", "second", "", "b c"),
        "customer_name": _some(draw, "Ann", "bob", "Cleo", "a'b", 'c"b'),
        "segment": _some(draw, "Consumer", "Corporate", "Home"),
        "country": _some(draw, "US", "Canada"),
        "state": _some(draw, "Ohio", "Texas", "Utah", "abc", "ABC"),
        "region": _some(draw, "East", "West", "South", "Central"),
        "product_id": _some(draw, *range(1, 23)),
        "gift": _some(draw, True, False),
        "sales": _some(draw, draw.randrange(-200, 4000) / 4, 10.0, 12.25),
        "profit": _some(draw, draw.randrange(-800, 800) / 4, 0.0, -0.5),
        "quantity": _some(draw, *range(-2, 9)),
        "discount": _some(draw, 0.0, 0.25, 0.5),
    }


_DAYS = [
    datetime.date.fromisoformat(day)
    for day in ("2020-01-01", "2020-02-29", "2021-01-03", "2021-01-04", "2022-01-01", "2023-01-01", "2024-12-30")
]


def databases(folder: Path, rows: Rows, engines: tuple[str, ...]) -> dict[str, Database]:
    """Databases of the rows in a folder, by engine, opened as users open one."""
    made: dict[str, Database] = {}
    for engine in engines:
        path = folder / f"superstore.{engine}"
        _write(path, engine, rows)
        made[engine] = open_database(path if engine == "sqlite" else f"duckdb:{path}")
    return made


def _write(path: Path, engine: str, rows: Rows) -> None:
    connection = _connect(path, engine)
    for table, columns in COLUMNS.items():
        declared = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        connection.execute(f"CREATE TABLE {table} ({declared})")
        marks = ", ".join("?" * len(columns))
        values = [[_written(row[column], engine) for column in columns] for row in rows[table]]
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.commit()
    connection.close()


def _connect(path: Path, engine: str) -> Any:
    if engine == "sqlite":
        return sqlite3.connect(path)
    import duckdb  # in the extra "engines"

    return duckdb.connect(str(path))


def _written(value: Any, engine: str) -> Any:
    """SQLite holds dates as ISO texts."""
    return str(value) if engine == "sqlite" and isinstance(value, datetime.date) else value
