"""Names of a failed statement against those of the schema: what counts as a misspelling, and what is in FROM."""

from __future__ import annotations

import time

import pytest

from nl2sql.databases.schema import Column, ForeignKey, Schema, Table
from nl2sql.repair.analyzer import schema_advice
from nl2sql.repair.registry import packaged
from nl2sql.repair.schema_names import SURE, SchemaNames, from_items, similar_names
from nl2sql.sql.text import statement_words

NO_MISSPELLING = [  # an absent concept, and a name whose letters hold it or are near it
    ("city", "capacity"),
    ("age", "manager_id"),
    ("age", "mileage"),
    ("age", "Range"),
    ("ship", "citizenship"),
    ("end", "vendor"),
    ("rate", "Date"),
    ("type", "Capacity_Percentage"),
    ("male", "name"),
    ("cost", "most"),
    ("stage", "age"),
    ("state", "date"),
    ("max", "tax"),
    ("port", "transport"),
    ("order", "border_length"),
]
MISSPELLING = [  # a name that was meant, and how it was written
    ("name", "nmae"),
    ("name", "naem"),
    ("name", "nme"),
    ("name", "namme"),
    ("city", "citty"),
    ("salary", "salry"),
    ("customer_id", "custmer_id"),
    ("customer_id", "customerId"),
    ("order_date", "date"),
    ("OrderDate", "date"),
    ("address1", "address"),
    ("ship_date_planned", "ship_date"),
    ("customers", "customer"),
    ("name", "name_id"),
]


@pytest.mark.parametrize(("absent", "there"), NO_MISSPELLING)
def test_letters_inside_another_word_are_not_surely_that_name(absent: str, there: str) -> None:
    assert similar_names(absent, [there], cutoff=SURE) == []


@pytest.mark.parametrize(("meant", "written"), MISSPELLING)
def test_a_slip_and_a_whole_word_are_surely_that_name(meant: str, written: str) -> None:
    assert similar_names(written, [meant], cutoff=SURE) == [meant]


def test_a_name_of_thousands_of_words_is_compared_quickly() -> None:
    started = time.thread_time()
    assert similar_names("ab" + "_h" * 20_000, [f"column_{number}" for number in range(100)]) == []
    assert time.thread_time() - started < 2  # 0.5 s; word by word 5 s


FROM = [  # (statement, the tables and aliases that its FROM clauses name)
    ("SELECT city FROM address a ORDER BY city DESC", ["address a"]),
    ("SELECT status, city FROM address, main.city AS c WHERE status = 1", ["address", "city c"]),
    ("SELECT x FROM a LEFT JOIN b USING (id), c ON a.x IN (1, d) GROUP BY e, f", ["a", "b", "c"]),
    ("SELECT EXTRACT(YEAR FROM born), TRIM(BOTH 'x' FROM city) FROM people", ["people"]),
    ("SELECT 1 FROM (SELECT y FROM t WHERE y, z) AS s, u", ["t", " s", "u"]),
    ("SELECT 1 FROM (a JOIN b x ON a.i = x.i), c", ["a", "b x", "c"]),
    ("SELECT 1 FROM a WHERE x IS NOT DISTINCT FROM y UNION SELECT z, y FROM b", ["a", "b"]),
    ('SELECT 1 FROM "order" o, "group"', ["order o", "group"]),
    ("SELECT COUNT(name FROM people", ["people"]),
    ("SELECT name)) FROM people, b", ["people", "b"]),
    ("SELECT 1", []),
    ("SELECT 1 FROM", []),
]


@pytest.mark.parametrize(("sql", "wanted"), FROM)
def test_tables_stand_behind_from_join_and_the_commas_of_from(sql: str, wanted: list[str]) -> None:
    found = from_items(statement_words(sql, "sqlite"))
    assert [f"{name} {alias}".rstrip() for name, alias in found] == wanted


NAMED_ALIKE = Schema(  # two tables that have the names of columns
    (
        Table("city", (Column("id"), Column("label"))),
        Table("status", (Column("id"), Column("label"))),
        Table("address", (Column("id"), Column("city"))),
        Table("customer", (Column("id"), Column("address_id"), Column("status"))),
    )
)
JOIN = "FROM address JOIN customer ON customer.address_id = address.id"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT id, city {JOIN}",
        f"SELECT id {JOIN} WHERE status = 'x'",
        f"SELECT id {JOIN} ORDER BY city DESC",
        f"SELECT id, COUNT(*) {JOIN} GROUP BY city, status HAVING status > 1",
    ],
)
def test_a_column_with_the_name_of_a_table_is_no_owner(sql: str) -> None:
    guidance = packaged("sqlite").match("ambiguous column name: id", sql, NAMED_ALIKE)
    assert guidance is not None and guidance.alternative_approach is not None
    assert guidance.alternative_approach.endswith("For example address.id or customer.id.")


def test_a_column_with_the_name_of_a_table_does_not_bring_it_into_reach() -> None:
    sql = "SELECT lable FROM customer WHERE status = 'x'"
    names = SchemaNames(NAMED_ALIKE, sql, "sqlite", {"column": "lable"})
    assert [table.name for table in names.used] == ["customer"]
    assert names.columns() == "customer(id, address_id, status)"


def test_a_unit_of_time_in_a_call_is_not_taken_for_a_misspelled_column() -> None:
    schema = Schema((Table("films", (Column("years"), Column("shown"))),))
    assert schema_advice("SELECT year FROM films", schema, "sqlite") == [
        "No table has a column year; the closest is films.years."
    ]
    assert schema_advice("SELECT DATEADD(year, 1, shown) FROM films", schema, "mysql") == []


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SELECT status.label FROM customer ORDER BY status DESC", "unknown_column"),
        ("SELECT status.label, status s FROM customer", "unknown_column"),
        ("SELECT status.label FROM status s", "scope_error"),
        ("SELECT status.label FROM customer c, status AS s WHERE c.status = s.id", "scope_error"),
        ("SELECT status.label FROM customer AS c JOIN status AS s ON c.status = s.id", "scope_error"),
    ],
)
@pytest.mark.parametrize(
    ("dialect", "error"),
    [
        ("sqlite", "no such column: status.label"),
        ("mysql", "(1054) Unknown column 'status.label' in 'field list'"),
    ],
)
def test_an_alias_hides_its_table_only_where_it_stands_behind_it_in_from(
    dialect: str, error: str, sql: str, wanted: str
) -> None:
    guidance = packaged(dialect).match(error, sql, NAMED_ALIKE)
    assert guidance is not None and guidance.category == wanted


SHOP = Schema(
    (
        Table("player", (Column("id"), Column("name"), Column("hours"))),
        Table("college", (Column("id"), Column("state"))),
        Table(
            "tryout",
            (Column("player_id"), Column("college_id"), Column("decision")),
            foreign_keys=(
                ForeignKey(("player_id",), "player", ("id",)),
                ForeignKey(("college_id",), "college", ("id",)),
            ),
        ),
    )
)


@pytest.mark.parametrize(
    ("sql", "advice"),
    [
        ("SELECT T2.name FROM player T1 JOIN tryout T2 ON T1.id = T2.player_id", "Write T1.name, not T2.name."),
        (
            "SELECT avg(hours) FROM tryout AS t",
            "hours is a column of player: JOIN player ON t.player_id = player.id, or select from player alone.",
        ),
        (
            "SELECT name FROM player p JOIN college c ON p.id = c.player_id",
            "player_id is a column of tryout: JOIN tryout ON tryout.player_id = p.id, or select from tryout alone.",
        ),
        (
            "SELECT name FROM player p JOIN college c ON p.name = c.name",
            "college has no name: join it through tryout, or leave it out.",
        ),
        ("SELECT name FROM player p WHERE EXISTS (SELECT 1 FROM tryout WHERE player_id = p.id AND hours > 1)", None),
        ("SELECT decision AS state FROM tryout ORDER BY state", None),
    ],
)
def test_a_column_of_another_table_is_told_with_the_way_to_it(sql: str, advice: str | None) -> None:
    assert schema_advice(sql, SHOP, "sqlite")[:1] == ([advice] if advice else [])
