"""Introspection finds what is there, and schema text says it so that SQL can be written from it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.databases.schema import (
    Column,
    ForeignKey,
    Schema,
    Table,
    budget_schema,
    column_samples,
    focus,
    introspect,
    quote_name,
    schema_to_text,
)
from nl2sql.databases.sqlite.database import QueryPool, SqliteDatabase

SHOP = """
CREATE TABLE Customers (customer_id INTEGER PRIMARY KEY, name text NOT NULL, city varchar(20));
CREATE TABLE orders (id INTEGER PRIMARY KEY, Customer_ID INT REFERENCES customers, "select" TEXT,
    FOREIGN KEY (customer_id) REFERENCES Customers (CUSTOMER_ID));
CREATE TABLE lines (order_id INT, line_no INT, "unit price" REAL, PRIMARY KEY (order_id, line_no),
    FOREIGN KEY (order_id) REFERENCES orders (id));
CREATE TABLE returns (r INTEGER PRIMARY KEY, o INT, l INT, FOREIGN KEY (o, l) REFERENCES lines);
CREATE VIEW "big spenders" AS SELECT name, 1 AS total FROM Customers;
CREATE INDEX i ON orders (customer_id);
"""

SHOP_COMPACT = """\
Customers(customer_id INTEGER PK, name TEXT, city VARCHAR(20))
orders(id INTEGER PK, Customer_ID INT, "select" TEXT)
lines(order_id INT PK, line_no INT PK, "unit price" REAL)
returns(r INTEGER PK, o INT, l INT)
"big spenders"(name TEXT, total) -- view
orders.Customer_ID -> Customers.customer_id
lines.order_id -> orders.id
returns.(o, l) -> lines.(order_id, line_no)"""

SHOP_DDL = """\
CREATE TABLE Customers (
  customer_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL, -- 'Ann', 'O''Hara'
  city VARCHAR(20)
);
CREATE TABLE lines (
  order_id INT,
  line_no INT,
  "unit price" REAL,
  PRIMARY KEY (order_id, line_no)
);"""


def schema_of(script: str) -> Schema:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        return introspect(connection)


def test_introspection_finds_tables_keys_and_views_in_creation_order() -> None:
    schema = schema_of(SHOP)
    assert [t.name for t in schema.tables] == ["Customers", "orders", "lines", "returns", "big spenders"]
    assert schema.table("CUSTOMERS") == Table(
        "Customers",
        (
            Column("customer_id", "INTEGER", primary_key=True),
            Column("name", "TEXT", not_null=True),
            Column("city", "VARCHAR(20)"),
        ),
    )
    view = schema.table("big spenders")
    assert view
    assert view.is_view
    assert [c.name for c in view.columns] == ["name", "total"]


def test_foreign_keys_are_spelled_as_the_tables_spell_them_and_implicit_ones_reach_the_primary_key() -> None:
    schema = schema_of(SHOP)
    keys = {t.name: t.foreign_keys for t in schema.tables}
    assert keys["orders"] == (ForeignKey(("Customer_ID",), "Customers", ("customer_id",)),)
    assert keys["returns"] == (ForeignKey(("o", "l"), "lines", ("order_id", "line_no")),)


@pytest.mark.parametrize(
    "key",
    ["FOREIGN KEY (a) REFERENCES absent (x)", "FOREIGN KEY (a, b) REFERENCES p", "FOREIGN KEY (a) REFERENCES p (no)"],
)
def test_a_foreign_key_to_nothing_is_left_out(key: str) -> None:
    schema = schema_of(f"CREATE TABLE p (x INTEGER PRIMARY KEY); CREATE TABLE t (a, b, {key});")
    assert schema.tables[1].foreign_keys == ()


def test_internal_and_shadow_tables_are_skipped() -> None:
    schema = schema_of(
        "CREATE TABLE a (x INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO a VALUES (1); ANALYZE;"
        "CREATE VIRTUAL TABLE docs USING fts5(title, body); CREATE VIRTUAL TABLE box USING rtree(id, x0, x1);"
        "CREATE TABLE docs_of_mine (y); CREATE TABLE sqliteish (z);"
    )
    assert [t.name for t in schema.tables] == ["a", "docs", "box", "docs_of_mine", "sqliteish"]
    assert [c.name for c in schema.tables[1].columns] == ["title", "body"]


def test_a_broken_view_or_unknown_module_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "broken.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE gone (x); CREATE VIEW v AS SELECT x FROM gone; CREATE TABLE t (y); DROP TABLE gone;"
        )
        connection.executescript(
            "PRAGMA writable_schema=ON;"
            "INSERT INTO sqlite_master VALUES"
            " ('table', 'alien', 'alien', 0, 'CREATE VIRTUAL TABLE alien USING absent(x)');"
        )
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert [t.name for t in introspect(connection).tables] == ["t"]


def test_generated_columns_and_untyped_and_foreign_types_are_kept() -> None:
    schema = schema_of(
        "CREATE TABLE t (a, `b` unsigned big int (11), [c d] INT GENERATED ALWAYS AS (a + 1), UNIQUE (a)) "
    )
    assert [(c.name, c.type) for c in schema.tables[0].columns] == [
        ("a", ""),
        ("b", "UNSIGNED BIG INT (11)"),
        ("c d", "INT"),
    ]


def test_compact_form_is_a_line_per_table_and_a_line_per_foreign_key() -> None:
    assert schema_to_text(schema_of(SHOP)) == SHOP_COMPACT


def test_ddl_form_shows_samples_as_comments() -> None:
    schema = focus(schema_of(SHOP), ["LINES", "customers"])
    assert schema_to_text(schema, form="ddl", samples={"customers": {"name": ["Ann", "O'Hara"]}}) == SHOP_DDL


def test_compact_samples_are_one_trailing_comment_of_literals() -> None:
    schema = schema_of("CREATE TABLE t (a TEXT, b REAL, c BLOB, d TEXT)")
    values = {"t": {"a": ["x" * 50, "line\nbreak"], "b": [1.5, 2, None], "c": [b"\0\0"], "absent": [1]}}
    line = schema_to_text(schema, samples=values)
    assert line == (
        f"t(a TEXT, b REAL, c BLOB, d TEXT) -- a: '{'x' * 37}...', 'line break'; b: 1.5, 2, NULL; c: <blob of 2 bytes>"
    )


def names() -> st.SearchStrategy[str]:
    characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    return st.one_of(
        st.sampled_from(["order", "Select", "a b", 'q"q', "é", "1st", "x"]), st.text(characters, min_size=1)
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(names(), st.lists(names(), min_size=1, max_size=4)), min_size=1, max_size=4))
def test_ddl_text_recreates_the_schema_it_shows(shapes: list[tuple[str, list[str]]]) -> None:
    tables: dict[str, Table] = {}
    for name, columns in shapes:
        if name.lower().startswith("sqlite_") or name.lower() in tables:
            continue
        unique = {column.lower(): column for column in columns}
        first, *rest = unique.values()
        keys = tuple(ForeignKey((first,), t.name, (t.columns[0].name,)) for t in tables.values())
        body = (Column(first, "INTEGER", primary_key=True), *(Column(c, "TEXT", not_null=True) for c in rest))
        tables[name.lower()] = Table(name, body, keys)
    schema = Schema(tuple(tables.values()))
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.executescript(schema_to_text(schema, form="ddl"))
        except sqlite3.OperationalError as error:
            if "duplicate column" in str(error) or "already exists" in str(error):
                return  # SQLite folds case in ASCII only, Python everywhere
            raise
        assert introspect(connection) == schema


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("plain", "plain"),
        ("Ünï_1", "Ünï_1"),
        ("order", '"order"'),
        ("a b", '"a b"'),
        ("1st", '"1st"'),
        ('q"', '"q"""'),
        ("", '""'),
    ],
)
def test_names_are_quoted_only_where_sql_needs_it(name: str, written: str) -> None:
    assert quote_name(name) == written


@pytest.mark.parametrize(
    ("dialect", "written"),
    [
        ("postgres", '"Order Items"("Id", "user", größe, "rank.no", rank)'),
        ("mysql", "`Order Items`(Id, user, größe, `rank.no`, `rank`)"),
        ("duckdb", '"Order Items"(Id, user, größe, "rank.no", rank)'),
        ("clickhouse", "`Order Items`(Id, user, `größe`, `rank.no`, rank)"),
    ],
)
def test_names_are_quoted_as_the_engine_reads_them(dialect: str, written: str) -> None:
    columns = tuple(map(Column, ("Id", "user", "größe", "rank.no", "rank")))
    wide = tuple(Column(f"column_{n}") for n in range(20))
    schema = Schema((Table("Order Items", columns), Table("Order", wide)), dialect)
    assert schema_to_text(focus(schema, ["order items"])) == written
    sign = "`" if dialect in ("mysql", "clickhouse") else '"'
    assert budget_schema(schema, len, 120).endswith(f"columns not shown: {sign}Order{sign}")
    assert schema_to_text(schema, form="ddl").startswith(f"CREATE TABLE {sign}Order Items{sign} (")


def test_every_unquoted_name_is_one_that_sqlite_takes() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        words = """abort action after analyze always attach before begin by cascade cast column conflict current
        database deferred detach do each end exclude exclusive explain fail filter first following generated glob
        groups if ignore immediate indexed initially instead key last like match materialized of others plan pragma
        preceding query raise range recursive regexp reindex release rename replace restrict rollback row rowid
        savepoint select temp ties unbounded vacuum view virtual without indexed add all between limit date year"""
        for word in words.split():
            connection.execute(f"CREATE TABLE {quote_name(word)} ({quote_name(word)} TEXT)")
            connection.execute(f"SELECT t.{quote_name(word)}, {quote_name(word)} FROM {quote_name(word)} t")
            connection.execute(f"DROP TABLE {quote_name(word)}")


def test_focus_keeps_order_and_the_foreign_keys_among_the_kept() -> None:
    schema = focus(schema_of(SHOP), ["returns", "LINES", "absent"])
    assert [t.name for t in schema.tables] == ["lines", "returns"]
    assert schema.tables[0].foreign_keys == ()
    assert len(schema.tables[1].foreign_keys) == 1


# ------------------------------------------------------------------------------------------------------ budget


def words(text: str) -> int:
    return len(text.split())


def wide(tables: int, columns: int) -> Schema:
    return Schema(tuple(Table(f"t{i}", tuple(Column(f"c{j}", "INT") for j in range(columns))) for i in range(tables)))


def test_a_schema_within_budget_is_whole_and_keeps_its_samples() -> None:
    samples = {"t0": {"c0": [1, 2]}}
    text = budget_schema(wide(3, 2), words, 100, "compact", samples)
    assert text == schema_to_text(wide(3, 2), samples=samples)


def test_samples_go_before_tables_do() -> None:
    samples = {"t0": {"c0": list(range(50))}}
    assert budget_schema(wide(3, 2), words, 15, "compact", samples) == schema_to_text(wide(3, 2))


def test_tables_past_the_budget_are_listed_by_name() -> None:
    text = budget_schema(wide(6, 4), words, 40)
    assert text.splitlines()[-1] == "-- 3 more tables, columns not shown: t3, t4, t5"
    assert text.startswith(schema_to_text(focus(wide(6, 4), ["t0", "t1", "t2"])))


def test_a_table_too_wide_for_the_budget_shows_its_leading_columns_and_says_so() -> None:
    text = budget_schema(wide(2, 500), words, 60)
    assert "more columns of t0 not shown" in text
    assert text.endswith("-- 1 more table, columns not shown: t1")


def test_names_themselves_are_cut_only_when_they_exceed_the_budget() -> None:
    text = budget_schema(wide(900, 3), words, 60)
    last = text.splitlines()[-1]
    assert last.startswith("-- 89")
    assert last.endswith("whose names are not shown")


@given(st.integers(1, 12), st.integers(1, 12), st.integers(30, 400), st.sampled_from(["compact", "ddl"]))
def test_the_budget_holds_and_every_table_is_shown_or_counted(t: int, c: int, budget: int, form: str) -> None:
    schema = wide(t, c)
    text = budget_schema(schema, words, budget, form)  # type: ignore[arg-type]
    assert words(text) <= budget
    assert all(table.name in text for table in schema.tables) or "whose names are not shown" in text


def test_an_empty_schema_is_an_empty_text() -> None:
    assert schema_to_text(Schema(())) == ""
    assert budget_schema(Schema(()), words, 10) == ""


# ----------------------------------------------------------------------------------------------------- samples


def test_as_many_columns_of_the_first_table_are_shown_as_fit_beside_the_rest() -> None:
    others = tuple(Table(f"a_long_name_{n}", (Column("x"),)) for n in range(6))
    schema = Schema((Table("t", tuple(Column(name, "INT") for name in "abc")), *others))
    heads = {most: budget_schema(schema, len, most).splitlines()[0] for most in (80, 94, 96, 110)}
    assert heads[80] == "t(a INT)" and heads[96] == heads[110] == "t(a INT, b INT, c INT)"


def test_column_samples_are_distinct_short_and_without_nulls_and_blobs(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            'CREATE TABLE "my t" (a TEXT, "b b" INT, c BLOB, d); CREATE TABLE empty (x);'
            "INSERT INTO \"my t\" VALUES ('x', 1, x'00', NULL), ('x', 1, x'00', NULL), ('', 2, NULL, NULL),"
            f"('{'long' * 30}', 3, NULL, NULL);"
        )
    with QueryPool(1) as pool:
        database = SqliteDatabase(path, pool=pool)
        found = column_samples(database, database.schema(), 2)
        assert found == {"my t": {"a": ["x", ("long" * 30)[:40]], "b b": [1, 2]}}
        assert column_samples(database, database.schema(), 0) == {}
        assert "a: 'x', " in schema_to_text(database.schema(), samples=found)
