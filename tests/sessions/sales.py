"""A small shop of quarters, products and regions, as in the specification's examples, for the tests of follow-ups."""

from __future__ import annotations

from nl2sql.interfaces import Question, Turn

SALES = """
CREATE TABLE regions (region_id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE products (product_id INTEGER PRIMARY KEY, name TEXT NOT NULL, colour TEXT, price REAL, fragile INTEGER,
    listed_on TEXT, retired_on TEXT);
CREATE TABLE sales (sale_id INTEGER PRIMARY KEY, product_id INTEGER REFERENCES products,
    region_id INTEGER REFERENCES regions, quarter INTEGER, revenue REAL, sold_on TEXT);
INSERT INTO regions VALUES (1, 'North'), (2, 'South');
INSERT INTO products VALUES (1, 'Anvil', 'red', 10.0, 0, '2020-02-01', NULL), (2, 'Bell', 'green', 25.0, 1,
    '2021-03-01', '2023-01-01'), (3, 'Clock', 'red', 40.0, 1, '2022-05-09', NULL),
    (4, 'Drum', 'blue', 5.0, 0, '2022-08-30', NULL);
INSERT INTO sales VALUES (1, 1, 1, 3, 100.0, '2023-07-02'), (2, 2, 1, 3, 50.0, '2023-08-10'),
    (3, 3, 2, 3, 70.0, '2023-09-20'), (4, 1, 2, 4, 30.0, '2023-10-05'), (5, 4, 1, 4, 90.0, '2023-11-11'),
    (6, 2, 2, 4, 20.0, '2024-01-15');
"""
TOP = (
    "SELECT products.name, SUM(sales.revenue) FROM sales JOIN products ON products.product_id = sales.product_id "
    "WHERE sales.quarter = 3 GROUP BY products.product_id, products.name ORDER BY SUM(sales.revenue) DESC LIMIT 10"
)
DATED = Turn(
    "Top 10 products in Q3",
    sql="SELECT product_id, SUM(revenue) FROM sales WHERE sold_on BETWEEN '2023-07-01' AND '2023-09-30' GROUP BY 1 "
    "ORDER BY 2 DESC LIMIT 10",
)
FIRST = Turn("Top 10 products in Q3", "Top 10 products in Q3", TOP)


def follow_up(text: str, *history: Turn, **meta: object) -> Question:
    """A question behind ``history``, by default behind the specification's first one."""
    return Question(text, db_id="sales", history=history or (FIRST,), meta=meta)
