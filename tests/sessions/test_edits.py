"""The previous SQL is changed as a follow-up asks, compiles, and is left alone where nothing is asked."""

from __future__ import annotations

import pytest
from sessions.sales import TOP
from sqlglot import exp

from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.databases.validation import validate_sql
from nl2sql.interfaces import Turn
from nl2sql.sessions.edits import edited
from nl2sql.sessions.reading import read_followup
from nl2sql.sessions.resolution import lost_words, with_addition, with_new_values
from nl2sql.sessions.statement import read_statement

RED = "SELECT name, price FROM products WHERE colour = 'red'"
SOLD = "SELECT COUNT(*) FROM sales WHERE quarter = 3"
PER_PRODUCT = (
    "SELECT p.name, SUM(s.revenue) FROM sales AS s JOIN products AS p ON p.product_id = s.product_id "
    "GROUP BY p.product_id, p.name"
)
DEAREST = "SELECT MAX(price) FROM products WHERE colour = 'red'"
PER_REGION = "SELECT r.name, COUNT(*) FROM sales AS s JOIN regions AS r ON r.region_id = s.region_id"
NAMES = "SELECT name FROM products"
NORTH = (
    "SELECT s.product_id FROM sales AS s JOIN regions AS r ON r.region_id = s.region_id WHERE r.name = 'North' "
    "AND NOT s.product_id IS NULL"
)
SOLD_IN_3 = f"{NAMES} WHERE product_id IN (SELECT product_id FROM sales WHERE quarter = 3)"
SOLD_PER_REGION = f"{PER_REGION} WHERE s.quarter = 3 GROUP BY r.region_id, r.name"
CASES = [  # the previous query, the follow-up, a query with the rows that are meant
    (SOLD, "What about Q4?", "SELECT COUNT(*) FROM sales WHERE quarter = 4"),
    (SOLD, "list them", "SELECT sale_id FROM sales WHERE quarter = 3"),  # sales have no name: the key, not a product's
    (SOLD, "and in quarter 4?", "SELECT COUNT(*) FROM sales WHERE quarter = 4"),
    (RED, "And green?", "SELECT name, price FROM products WHERE colour = 'green'"),
    (RED, "only the fragile ones", f"{RED} AND fragile = 1"),
    (RED, "listed after 2021", f"{RED} AND listed_on > '2021-12-31'"),
    (RED, "ones listed in 2022", f"{RED} AND listed_on BETWEEN '2022-01-01' AND '2022-12-31'"),
    (RED, "leave 2022 out", f"{RED} AND listed_on NOT BETWEEN '2022-01-01' AND '2022-12-31'"),
    (f"{RED} AND listed_on > '2021-12-31'", "price over 1900", f"{RED} AND listed_on > '2021-12-31' AND price > 1900"),
    (SOLD, "Regions separately.", f"{PER_REGION} WHERE s.quarter = 3 GROUP BY r.region_id, r.name"),
    ("SELECT COUNT(*) FROM products", "product colour", "SELECT colour, COUNT(*) FROM products GROUP BY colour"),
    (
        f"{RED} AND listed_on > '2020-12-31'",
        "leave 2022 out",
        f"{RED} AND listed_on BETWEEN '2021-01-01' AND '2021-12-31'",
    ),
    (RED, "instead of red, green", "SELECT name, price FROM products WHERE colour = 'green'"),
    (RED, "cheapest first", f"{RED} ORDER BY price"),
    (RED, "the most expensive one?", f"{RED} ORDER BY price DESC LIMIT 1"),
    (RED, "also show the colour", "SELECT name, price, colour FROM products WHERE colour = 'red'"),
    (RED, "just the names", "SELECT name FROM products WHERE colour = 'red'"),
    (RED, "per colour", "SELECT colour, COUNT(*) FROM products GROUP BY colour"),
    (
        SOLD,
        "by region",
        "SELECT r.name, COUNT(*) FROM sales s JOIN regions r USING (region_id) WHERE quarter = 3 GROUP BY 1",
    ),
    (
        SOLD,
        "for the North only",
        "SELECT COUNT(*) FROM sales s JOIN regions r USING (region_id) WHERE quarter = 3 AND r.name = 'North'",
    ),
    (
        SOLD,
        "North and South",
        "SELECT COUNT(*) FROM sales s JOIN regions r USING (region_id) WHERE quarter = 3",
    ),
    (SOLD, "per month", "SELECT substr(sold_on, 1, 7), COUNT(*) FROM sales WHERE quarter = 3 GROUP BY 1"),
    (TOP, "only the top 2", TOP.replace("LIMIT 10", "LIMIT 2")),
    # a year takes the place of the days that were let through
    (
        f"{NAMES} WHERE listed_on >= '2021-01-01' AND listed_on < '2022-01-01'",
        "What about 2022?",
        f"{NAMES} WHERE listed_on LIKE '2022%'",
    ),
    (
        f"{NAMES} WHERE listed_on >= '2021-05-01' AND listed_on < '2021-06-01'",
        "What about 2022?",
        f"{NAMES} WHERE listed_on LIKE '2022-05%'",
    ),
    # another value is left out as the one before was
    (f"{NAMES} WHERE colour <> 'red'", "What about green?", f"{NAMES} WHERE colour <> 'green'"),
    (f"{NAMES} WHERE NOT colour = 'red'", "What about green?", f"{NAMES} WHERE colour <> 'green'"),
    (f"{NAMES} WHERE colour NOT IN ('red', 'green')", "And blue?", f"{NAMES} WHERE colour <> 'blue'"),
    (f"{NAMES} WHERE price <> 10", "What about 25?", f"{NAMES} WHERE price <> 25"),
    (f"{NAMES} WHERE colour <> 'red'", "And red?", f"{NAMES} WHERE colour = 'red'"),
    # what one product has several of is asked by IN (SELECT ...)
    (NAMES, "sold in the North", f"{NAMES} WHERE product_id IN ({NORTH})"),
    (NAMES, "not in the North", f"{NAMES} WHERE name = 'Clock'"),
    (NAMES, "North, not South", f"{NAMES} WHERE name = 'Drum'"),
    (f"{NAMES} WHERE product_id IN ({NORTH})", "not in the North", f"{NAMES} WHERE name = 'Clock'"),
    (f"{NAMES} WHERE NOT product_id IN ({NORTH})", "What about South?", f"{NAMES} WHERE name = 'Drum'"),
    (SOLD_IN_3, "only the North", f"{NAMES} WHERE name IN ('Anvil', 'Bell')"),
    (SOLD_IN_3, "and in quarter 4?", f"{NAMES} WHERE name <> 'Clock'"),
    (
        SOLD_IN_3,
        "revenue too",
        "SELECT p.name, s.revenue FROM sales s JOIN products p USING (product_id) WHERE quarter = 3",
    ),
    # what is shown
    (DEAREST, "Which one?", f"{NAMES} WHERE name = 'Clock'"),
    (f"{NAMES} WHERE price > 20", "what colour are they?", "SELECT DISTINCT colour FROM products WHERE price > 20"),
    (f"{NAMES} WHERE price > 20", "what is their price?", "SELECT price FROM products WHERE price > 20"),
    (RED, "when were they listed?", "SELECT listed_on FROM products WHERE colour = 'red'"),
    ("SELECT DISTINCT colour FROM products", "how many?", "SELECT COUNT(DISTINCT colour) FROM products"),
    # groups, order and figures
    (SOLD, "per region, highest first", f"{SOLD_PER_REGION} ORDER BY 2 DESC"),
    (SOLD, "per region, ascending", f"{SOLD_PER_REGION} ORDER BY 2"),
    (SOLD_PER_REGION, "sort by count", f"{SOLD_PER_REGION} ORDER BY 2"),
    (SOLD, "average revenue per region", SOLD_PER_REGION.replace("COUNT(*)", "AVG(s.revenue)")),
    (SOLD, "how much revenue total?", "SELECT SUM(revenue) FROM sales WHERE quarter = 3"),
    (PER_PRODUCT, "descending", f"{PER_PRODUCT} ORDER BY 2 DESC"),
    (PER_PRODUCT, "sort by revenue", f"{PER_PRODUCT} ORDER BY 2"),
    (PER_PRODUCT, "top 1", f"{PER_PRODUCT} ORDER BY 2 DESC LIMIT 1"),
    (TOP, "the bottom 2", TOP.replace("DESC LIMIT 10", "LIMIT 2")),
    (f"{NAMES} WHERE price > 5", "top 2", f"{NAMES} WHERE price > 5 ORDER BY price DESC LIMIT 2"),
    (NAMES, "top 2 by price", f"{NAMES} ORDER BY price DESC LIMIT 2"),
    (NAMES, "cheapest last", f"{NAMES} ORDER BY price DESC"),
    (NAMES, "in descending order", f"{NAMES} ORDER BY name DESC"),
    (NAMES, "the earliest retired one", f"{NAMES} WHERE name = 'Bell'"),
    (
        "SELECT COUNT(*) FROM products",
        "by colour, not red",
        "SELECT colour, COUNT(*) FROM products WHERE colour <> 'red' GROUP BY colour",
    ),
    ("SELECT SUM(revenue) FROM sales", "and the average?", "SELECT AVG(revenue) FROM sales"),
    ("SELECT SUM(revenue) FROM sales", "and max?", "SELECT MAX(revenue) FROM sales"),
    # numbers and dates
    ("SELECT sale_id FROM sales", "on 2 July 2023", "SELECT 1"),
    (RED, "more than twelve", f"{RED} AND price > 12"),
    (RED, "above price 12", f"{RED} AND price > 12"),
    (RED, "between 2021 and 2022", f"{RED} AND name = 'Clock'"),
]


@pytest.mark.parametrize(("before", "question", "meant"), CASES)
def test_a_follow_up_edits_the_previous_query(before, question, meant, sales):
    [(sql, operations), *_] = edited(question, Turn("", sql=before), sales)
    made, wanted = sales.run(sql), sales.run(meant)
    assert made.success and wanted.success
    assert sorted(map(repr, made.rows)) == sorted(map(repr, wanted.rows)), sql
    assert operations and validate_sql(sql, sales.schema(), sales)["valid"]
    if "ORDER BY" in meant:
        assert made.rows == wanted.rows


@pytest.mark.parametrize("before", ["", "SELECT", "not SQL at all", "SELECT 1 UNION SELECT 2", "DELETE FROM sales"])
def test_what_is_no_plain_select_is_not_edited(before, sales):
    assert edited("What about Q4?", Turn("", sql=before), sales) == []


@pytest.mark.parametrize(
    "before",
    [
        "SELECT DISTINCT colour, fragile FROM products",
        "SELECT colour FROM products GROUP BY colour HAVING SUM(price) > 20",
    ],
)
@pytest.mark.parametrize("question", ["How many are there?", "How many are fragile?"])
def test_rows_that_stand_for_several_are_not_counted(before, question, sales):
    assert edited(question, Turn("", sql=before), sales) == []


@pytest.mark.parametrize("question", ["", "thanks!", "why?", "x" * 5000, "'; DROP TABLE sales; --"])
def test_words_that_ask_for_no_change_make_none(question, sales):
    assert edited(question, Turn("", sql=RED), sales) == []


def test_a_value_is_a_literal_whatever_it_holds(sales):
    hostile = "only 'x OR 1=1'"
    assert all("OR 1 = 1" not in sql.upper() for sql, _ in edited(hostile, Turn("", sql=RED), sales))


def test_joins_follow_the_keys_and_prefix_every_column(sales):
    statement = read_statement("SELECT COUNT(*) FROM sales WHERE quarter = 3", sales.schema())
    assert statement is not None and statement.distance("regions") == 1
    statement.add_condition(exp.EQ(this=statement.column("regions", "name"), expression=exp.Literal.string("North")))
    assert statement.sql() == (
        "SELECT COUNT(*) FROM sales JOIN regions ON sales.region_id = regions.region_id "
        "WHERE sales.quarter = 3 AND regions.name = 'North'"
    )


def test_an_edit_leaves_the_types_of_casts_alone(sales):
    text = "SELECT CAST(price AS DECIMAL) / 2, CAST(name AS DATE), CAST(price AS REAL) FROM products"
    statement = read_statement(text, sales.schema())
    assert statement is not None and statement.sql() == text


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.name FROM products AS a JOIN products AS b ON a.price < b.price",
        "SELECT name FROM products AS a WHERE price = "
        "(SELECT MAX(b.price) FROM products AS b WHERE b.colour = a.colour)",
    ],
)
def test_aliases_stay_where_a_table_is_read_twice(text, sales):
    statement = read_statement(text, sales.schema())
    assert statement is not None
    statement.without_aliases()
    assert statement.sql() == text


def test_a_join_written_in_where_stays(sales):
    join = "products.product_id = sales.product_id"
    before = f"SELECT SUM(revenue) FROM sales, products WHERE {join} AND products.name = 'Bell'"
    [(sql, _)] = edited("per product?", Turn("", sql=before), sales)
    assert join in sql


def test_a_follow_up_is_read_in_parts():
    reading = read_followup("and by country and year, highest first, at least 20 pages or more")
    assert reading.groupings == (("country",), ("year",)) and reading.orders[0][1] == "desc"
    assert [(c.operator, c.text) for c in reading.comparisons] == [(">=", "20")]
    assert read_followup("the top three, each one once").limit == 3
    assert read_followup("the top three, each one once").distinct
    once = read_followup("In which regions were they sold? Each region name one time.")
    assert once.distinct and not once.groupings
    assert read_followup("between 2010 and 2012").comparisons[0].high == "2012"


def test_an_addition_is_said_behind_the_old_question_only_where_nothing_is_taken_back():
    assert with_addition("How many are sold?", "and in Bern", ["filter city"]) == "How many are sold in Bern?"
    assert (
        with_addition("How many are sold?", "only red ones", ["filter colour"]) == "How many are sold, only red ones?"
    )
    assert with_addition("How many are sold?", "and in Bern", ["drop city", "filter city"]) == ""
    assert with_addition("How many are sold?", "how many of them are red?", ["filter colour"]) == ""


def test_a_new_value_stands_where_the_old_one_stood():
    before, after = ("SELECT 1 FROM t AS a WHERE a.city = 'Bern'", "SELECT 1 FROM t WHERE city = 'Oslo'")
    assert with_new_values("Who lives in Bern?", before, after) == "Who lives in Oslo?"
    assert with_new_values("Who of Bern lives in Bern?", before, after) == ""
    assert with_new_values("Who lives there?", before, after) == ""
    assert with_new_values("Who lives in Bern?", before, "SELECT 2 FROM t") == ""


def test_numbers_quoted_values_and_words_of_the_schema_must_be_kept():
    schema = Schema((Table("stations", (Column("platforms"), Column("opened_on"))),))
    assert lost_words("with 3 platforms?", "Which stations have three platforms?", schema) == ["3"]
    assert lost_words("and 'Bern'?", "Which stations are in Basel?", schema) == ["Bern"]
    assert lost_words("opened when?", "Which stations are there?", schema) == ["opened"]
    assert lost_words("opening with 3 platforms", "3 opened platforms", schema) == []
