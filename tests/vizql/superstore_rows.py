"""A small Superstore database, in SQLite and DuckDB, with NULLs, ties, and orders of products that are not there."""

from __future__ import annotations

import datetime
import random
import sqlite3
from pathlib import Path
from typing import Any

from nl2sql.databases.engines import open_database
from nl2sql.interfaces import Database

ORDERS = {
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
}
PRODUCTS = {
    "product_id": "INTEGER PRIMARY KEY",
    "category": "TEXT",
    "sub_category": "TEXT",
    "product_name": "TEXT",
}


def rows(seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Orders and products. Amounts are multiples of 1/4, so that sums are exact in any order."""
    draw = random.Random(seed)

    def some(*values: Any) -> Any:
        return None if draw.random() < 0.08 else draw.choice(values)

    products = [
        {
            "product_id": i,
            "category": some("Furniture", "Technology", "Office"),
            "sub_category": some("Chairs", "Phones", "Paper", "Binders"),
            "product_name": f"product {i}",
        }
        for i in range(1, 13)
    ]
    orders = []
    for i in range(1, 161):
        day = datetime.date(2018, 1, 1) + datetime.timedelta(draw.randrange(2500))
        shipped = datetime.datetime(day.year, day.month, day.day, draw.randrange(24)) + datetime.timedelta(3)
        order = {
            "row_id": i,
            "order_id": f"A-{draw.randrange(60)}",
            "order_date": some(day),
            "ship_date": some(shipped),
            "ship_mode": some("First [Class", "Second", "a", "b c"),
            "customer_name": some("Ann", "bob", "Cleo", "a'b", 'c"b'),
            "segment": some("Consumer", "Corporate", "Home"),
            "country": some("US", "Canada"),
            "state": some("Ohio", "Texas", "Utah", "abc"),
            "region": some("East", "West", "South", "Central"),
            "product_id": some(*range(1, 14)),
            "gift": some(True, False),
            "sales": some(*(draw.randrange(4000) / 4 for _ in range(3))),
            "profit": some(draw.randrange(-800, 800) / 4),
            "quantity": some(*range(1, 9)),
            "discount": some(0.0, 0.25, 0.5),
        }
        orders.append(order)
    return orders, products


def databases(folder: Path) -> dict[str, Database]:
    """The database in SQLite and in DuckDB, opened as users open one."""
    import duckdb

    files = {"sqlite": folder / "superstore.sqlite", "duckdb": folder / "superstore.duckdb"}
    for connection in (sqlite3.connect(files["sqlite"]), duckdb.connect(str(files["duckdb"]))):
        as_text = isinstance(connection, sqlite3.Connection)
        for name, columns, data in zip(("orders", "products"), (ORDERS, PRODUCTS), rows(), strict=True):
            declared = ", ".join(f"{column} {kind}" for column, kind in columns.items())
            connection.execute(f"CREATE TABLE {name} ({declared})")
            marks = ", ".join("?" * len(columns))
            values = [[_written(row[column], as_text) for column in columns] for row in data]
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
        connection.commit()
        connection.close()
    return {name: open_database(path if name == "sqlite" else f"duckdb:{path}") for name, path in files.items()}


def _written(value: Any, as_text: bool) -> Any:
    return str(value) if as_text and isinstance(value, datetime.date) else value
