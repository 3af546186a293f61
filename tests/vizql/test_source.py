"""Data sources: from YAML, from the service's JSON, from a database; and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from people import make_database
from strategies import FIXTURES, SUPERSTORE

from nl2sql.databases.engines import open_database
from nl2sql.errors import UsageError
from nl2sql.vizql.infer import data_type_of, default_aggregation, infer, is_measure
from nl2sql.vizql.querying import run_query
from nl2sql.vizql.semantic_model import described
from nl2sql.vizql.source import DataSource, from_metadata, read_source, source_from, to_metadata, to_yaml
from nl2sql.vizql.validator import validate

METADATA = {
    "data": [
        {"fieldName": "Sales", "fieldCaption": "Sales", "dataType": "REAL", "fieldRole": "MEASURE", "isLODCalc": False},
        {
            "fieldName": "Calculation_1",
            "fieldCaption": "Firm",
            "dataType": "STRING",
            "columnClass": "GROUP",
            "groupFormula": {"baseFieldName": "Customer", "groupings": [], "hasIncludeOther": True},
            "aliases": [{"member": "A", "value": "a"}, {"member": None, "value": "none"}],
            "somethingNewer": {"of": ["the service"]},
        },
    ],
    "extraData": {
        "parameters": [
            {
                "parameterType": "LIST",
                "parameterName": "Parameter 1",
                "parameterCaption": "Top",
                "dataType": "INTEGER",
                "value": 5,
                "members": [{"alias": "five", "value": 5}],
            }
        ]
    },
}
MODEL = {
    "logicalTables": [{"logicalTableId": "o", "caption": "Orders"}, {"logicalTableId": "p", "caption": "People"}],
    "logicalTableRelationships": [
        {
            "fromLogicalTable": {"logicalTableId": "o"},
            "toLogicalTable": {"logicalTableId": "p"},
            "expression": {
                "op": "AND",
                "relationships": [{"operator": "=", "fromField": "[Region]", "toField": "[Region (People)]"}],
            },
        }
    ],
}


def test_the_service_s_json_comes_back_as_it_was() -> None:
    source = from_metadata(METADATA, MODEL, name="shop", luid="1")
    described = source.model_dump(mode="json", exclude_unset=True)
    assert to_metadata(source) == METADATA and {key: described[key] for key in MODEL} == MODEL
    assert source.field("Sales").dataType == "REAL"  # type: ignore[union-attr]
    assert source.logicalTableRelationships[0].field_pairs() == (("Region", "Region (People)"),)
    assert source.parameter("Top") is not None and source.luid == "1"


def test_yaml_comes_back_as_the_same_data_source(tmp_path: Path) -> None:
    for i, source in enumerate((SUPERSTORE, from_metadata(METADATA, MODEL, name="shop"))):
        path = tmp_path / f"{i}.yaml"
        path.write_text(to_yaml(source), encoding="utf-8")
        again = read_source(path)
        assert again == source and to_yaml(again) == to_yaml(source)
        assert to_metadata(again) == to_metadata(source)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
FIELDS = st.fixed_dictionaries(
    {"fieldCaption": NAMES},
    optional={
        "fieldName": NAMES,
        "dataType": st.sampled_from(["REAL", "STRING", "DATE"]),
        "fieldRole": st.sampled_from(["MEASURE", "DIMENSION"]),
        "formula": NAMES,
        "hidden": st.booleans(),
        "aliases": st.lists(st.fixed_dictionaries({"member": st.none() | NAMES, "value": NAMES}), max_size=2),
    },
)


@settings(max_examples=100, deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=4, unique_by=(lambda f: f["fieldCaption"], lambda f: f.get("fieldName"))))
def test_any_metadata_round_trips_through_yaml(fields: list[dict[str, Any]]) -> None:
    from nl2sql.machine import from_yaml

    source = from_metadata({"data": fields})
    assert to_metadata(source_from(from_yaml(to_yaml(source)), "here")) == {"data": fields}


@pytest.mark.parametrize("answer", [None, [], {}, {"data": {}}, {"data": []}, {"data": [{"fieldName": "a"}]}])
def test_what_is_no_answer_of_the_service_is_refused(answer: Any) -> None:
    with pytest.raises(UsageError):
        from_metadata(answer)


def test_a_key_in_another_case_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("fields: [{fieldCaption: Sales, datatype: REAL}]")
    with pytest.raises(UsageError, match="did you mean 'dataType'"):
        read_source(path)


def _named(caption: str, name: str, table: str) -> dict[str, Any]:
    return {"fieldCaption": caption, "fieldName": name, "logicalTableId": table, "fieldRole": "DIMENSION"}


@pytest.mark.parametrize(
    ("fields", "ids", "said"),
    [
        (
            [_named("W", "a", "s"), _named("W", "b", "t")],
            "st",
            "fieldCaption 'W' is given twice (in tables 'S' and 'T')",
        ),
        ([_named("A", "w", "s"), _named("B", "w", "t")], "st", "fieldName 'w' is given twice (in tables 'S' and 'T')"),
        ([_named("A", "a", "s"), _named("B", "b", "s")], "ss", "logicalTableId 's' is given twice"),
    ],
)
def test_a_name_that_is_given_twice_is_refused_by_hand_and_warned_of_from_a_service(
    fields: list[dict[str, Any]], ids: str, said: str
) -> None:
    tables = {"logicalTables": [{"logicalTableId": i, "caption": i.upper()} for i in ids]}
    with pytest.raises(UsageError) as refused:
        source_from({"fields": fields, **tables}, "own.yaml")
    assert said in str(refused.value)
    warnings = validate({"fields": [{"fieldCaption": "W"}]}, from_metadata({"data": fields}, tables)).warnings
    assert warnings == (("'W' is the name of 2 fields; that of table 'S' is meant",) if "fieldCaption" in said else ())


SHOP = """
CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT, zip_code INTEGER, joined TEXT, is_firm INTEGER);
CREATE TABLE "order items" (item_id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES Customers(customer_id),
  name TEXT, unitPrice REAL, quantity INTEGER, tax_rate REAL, year INTEGER, sent_at TEXT, anything);
CREATE TABLE returns (parcel INTEGER PRIMARY KEY, client INTEGER REFERENCES customers(customer_id),
  refund DECIMAL(8, 2), note VARCHAR(20));
INSERT INTO customers VALUES (1, 'Ada', 3000, '2024-01-31', 1), (2, 'Ben', 4000, NULL, 0);
INSERT INTO "order items" VALUES (1, 1, 'pen', 2.5, 3, 0.1, 2024, '2024-01-31 10:00:00', 'x');
"""


def test_keys_and_codes_are_dimensions_and_amounts_measures(tmp_path: Path) -> None:
    database = open_database(str(make_database(tmp_path / "shop.sqlite", SHOP)))
    try:
        source = infer(database)
    finally:
        database.close()
    roles = {field.fieldCaption: (field.fieldRole, field.dataType, field.defaultAggregation) for field in source.fields}
    assert roles == {
        "Customer ID": ("DIMENSION", "INTEGER", "COUNT"),
        "Name": ("DIMENSION", "STRING", "COUNT"),
        "Zip Code": ("DIMENSION", "INTEGER", "COUNT"),
        "Joined": ("DIMENSION", "DATE", "YEAR"),
        "Is Firm": ("DIMENSION", "INTEGER", "COUNT"),
        "Item ID": ("DIMENSION", "INTEGER", "COUNT"),
        "Customer ID (Order Items)": ("DIMENSION", "INTEGER", "COUNT"),
        "Name (Order Items)": ("DIMENSION", "STRING", "COUNT"),
        "Unit Price": ("MEASURE", "REAL", "AVG"),
        "Quantity": ("MEASURE", "INTEGER", "SUM"),
        "Tax Rate": ("MEASURE", "REAL", "AVG"),
        "Year": ("DIMENSION", "INTEGER", "COUNT"),
        "Sent At": ("DIMENSION", "DATETIME", "YEAR"),
        "Anything": ("DIMENSION", "STRING", "COUNT"),
        "Parcel": ("DIMENSION", "INTEGER", "COUNT"),
        "Client": ("DIMENSION", "INTEGER", "COUNT"),
        "Refund": ("MEASURE", "REAL", "SUM"),
        "Note": ("DIMENSION", "STRING", "COUNT"),
    }
    name = source.field("Name (Order Items)")
    assert name is not None and (name.column, source.table_of(name)) == ("name", "order items")
    relation, _ = source.logicalTableRelationships
    assert relation.fromLogicalTable.logicalTableId == "order items"
    assert relation.toLogicalTable.logicalTableId == "customers"
    [(own, theirs)] = relation.field_pairs()
    assert [source.field_named(n).column for n in (own, theirs)] == ["customer_id"] * 2  # type: ignore[union-attr]
    assert source.logicalTables[0].key == ("customer_id",)
    assert read_again(source, tmp_path) == source


@pytest.mark.parametrize("key", ["", " PRIMARY KEY"])
def test_a_column_without_a_name_refuses_no_other(key: str, tmp_path: Path) -> None:
    columns = f'"" INT{key}, " " TEXT, "\t" TEXT, "a]b" TEXT, "new\nline" TEXT, name TEXT'
    script = f"""CREATE TABLE t ({columns}); INSERT INTO t VALUES (0, 'blank', 1, 'x', 'y', 'z');
    CREATE TABLE u ("" INT REFERENCES t(""), name TEXT); INSERT INTO u VALUES (0, 'u')"""
    with open_database(make_database(tmp_path / "e.sqlite", script)) as database:
        (tmp_path / "e.yaml").write_text(to_yaml(infer(database)), encoding="utf-8")
        source = read_source(tmp_path / "e.yaml")
        assert [field.fieldCaption for field in source.fields] == [
            *("Column 2", "Column 3", "A B", "New Line", "Name", "Name (U)")
        ]
        for field in source.fields[:5]:
            reply = run_query({"fields": [{"fieldCaption": field.fieldCaption}]}, source, database)
            assert reply.result is not None and len(reply.result.rows) == 1, (field, reply.error)


def test_a_date_of_sqlite_is_one_by_its_values(tmp_path: Path) -> None:
    days = """CREATE TABLE hire (born DATE, hired DATETIME, seen TIMESTAMP, left_on DATE, founded DATE, never DATE);
    INSERT INTO hire VALUES ('1978-12-23', '2024-01-31', '2024-01-31 10:00:00', '17-MAR-2002', 2004, NULL);
    INSERT INTO hire SELECT * FROM hire; INSERT INTO hire SELECT * FROM hire;
    INSERT INTO hire VALUES ('1978-2-23', '2024-02-29 08:00', NULL, NULL, 2005, NULL);"""
    with open_database(str(make_database(tmp_path / "hire.sqlite", days))) as database:
        found = {field.fieldCaption: (field.dataType, field.fieldRole) for field in infer(database).fields}
    kinds = {"Born": "STRING", "Hired": "DATETIME", "Seen": "DATETIME", "Left On": "STRING", "Founded": "INTEGER"}
    assert found == {name: (kind, "DIMENSION") for name, kind in {**kinds, "Never": "DATE"}.items()}
    assert data_type_of("DATE", [2004]) == "DATE"  # other engines hold what is declared


def test_a_boolean_of_sqlite_that_holds_texts_is_a_text(tmp_path: Path) -> None:
    flags = """CREATE TABLE member (name TEXT, active BOOLEAN, paid BOOL, never BOOLEAN);
    INSERT INTO member VALUES ('Ann', 'true', 1, NULL), ('Bob', 'false', 0, NULL), ('Cy', NULL, NULL, NULL);"""
    with open_database(str(make_database(tmp_path / "member.sqlite", flags))) as database:
        source = infer(database)
        kinds = {field.fieldCaption: field.dataType for field in source.fields}
        asked = {"field": {"fieldCaption": "Active"}, "filterType": "SET", "values": ["true"]}
        reply = run_query({"fields": [{"fieldCaption": "Name"}], "filters": [asked]}, source, database)
    assert kinds == {"Name": "STRING", "Active": "STRING", "Paid": "BOOLEAN", "Never": "BOOLEAN"}
    assert reply.error is None and reply.result is not None and reply.result.rows == (("Ann",),)
    assert data_type_of("BOOLEAN", ["true"]) == "BOOLEAN"  # other engines hold what is declared


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("INTEGER[]", "UNKNOWN"),
        ("INTEGER[3]", "UNKNOWN"),
        ("STRUCT(a INTEGER)", "UNKNOWN"),
        ("MAP(VARCHAR, INTEGER)", "UNKNOWN"),
        ("UNION(a INTEGER)", "UNKNOWN"),
        ("INTERVAL", "UNKNOWN"),
        ("POINT", "UNKNOWN"),
        ("ENUM('POINT', 'DATE')", "STRING"),
        ("FLOATING POINT", "REAL"),
        ("HUGEINT", "INTEGER"),
        ("DECIMAL(10,2)", "REAL"),
        ("UUID", "STRING"),
    ],
)
def test_a_type_that_holds_others_is_no_number(declared: str, kind: str) -> None:
    assert data_type_of(declared, []) == kind


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("tier", "DIMENSION"),
        ("round", "DIMENSION"),
        ("board_order", "DIMENSION"),
        ("order_date", "DIMENSION"),
        ("loans_to_date", "SUM"),
        ("UnitsOnOrder", "SUM"),
        ("units_sold", "SUM"),
        ("unit_cost", "AVG"),
        ("gust_kmh", "AVG"),
    ],
)
def test_a_name_says_whether_numbers_are_codes_amounts_or_rates(name: str, role: str) -> None:
    measure = is_measure(name, "INTEGER")
    assert (default_aggregation(name, "INTEGER", measure) if measure else "DIMENSION") == role


def read_again(source: DataSource, folder: Path) -> DataSource:
    (folder / "again.yaml").write_text(to_yaml(source), encoding="utf-8")
    return read_source(folder / "again.yaml")


@pytest.mark.parametrize("name", ["campus_registry", "chess_league", "library_network", "scale_models"])
def test_every_column_of_a_packaged_database_can_be_read_by_its_field(name: str) -> None:
    from nl2sql.databases.schema import quote_always

    database = open_database(f"packaged:{name}")
    try:
        source = infer(database)
        assert len(set(source.captions)) == len(source.fields) == sum(len(t.columns) for t in database.schema().tables)
        for field in source.fields:
            sql = f"SELECT {quote_always(field.column)} FROM {quote_always(source.table_of(field))}"
            assert database.run(sql).success, sql
        assert {field.fieldRole for field in source.fields} == {"MEASURE", "DIMENSION"}
    finally:
        database.close()


def test_the_fixture_s_captions_are_unique() -> None:
    assert len({caption.casefold() for caption in SUPERSTORE.captions}) == len(SUPERSTORE.captions)
    assert json.loads((FIXTURES / "regoin.json").read_text())["query"]["fields"] == [{"fieldCaption": "Regoin"}]


# ---------------------------------------------------------------------------------------------- semantic models

MODEL_OF_SHOP = """
semantic_model:
  - name: shop
    datasets:
      - name: purchases
        source: main.public.orders
        primary_key: [order_id]
        description: What was bought
        fields:
          - name: total
            label: Price
            description: Of all
            expression: {dialects: [{dialect: ANSI_SQL, expression: total}]}
          - {name: state, expression: [{dialect: ANSI_SQL, expression: status}], dimension: {is_time: false}}
          - {name: is_late, expression: [{dialect: ANSI_SQL, expression: "status = 'open'"}], dimension: {}}
          - {name: age, expression: [{dialect: ANSI_SQL, expression: "julianday('now') - julianday(created)"}]}
      - {name: clients, source: customers, fields: [{name: city, dimension: {}}]}
      - {name: suppliers, source: main.public.suppliers}
    relationships:
      - {name: r, from: purchases, to: clients, from_columns: [customer_id], to_columns: [customer_id]}
      - {name: s, from: purchases, to: suppliers, from_columns: [supplier_id], to_columns: [supplier_id]}
    metrics:
      - name: revenue_per_client
        expression: [{dialect: ANSI_SQL, expression: SUM(orders.total) / COUNT(DISTINCT orders.customer_id)}]
      - {name: median_total, expression: [{dialect: ANSI_SQL, expression: PERCENTILE_CONT(total)}]}
"""


def test_a_semantic_model_is_a_data_source_over_its_database(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(MODEL_OF_SHOP, encoding="utf-8")
    with open_database(str(shop)) as database:
        source, left = described(infer(database), tmp_path / "model.yaml")
        shown = {field.fieldCaption: field for field in source.fields if not field.hidden}
        assert sorted(shown) == ["City", "Is Late", "Price", "Revenue Per Client", "State"]
        assert shown["Price"].description == "Of all" and shown["State"].fieldRole == "DIMENSION"
        assert [line.partition(":")[0] for line in left] == [
            "dataset suppliers",
            "relationship s",
            "age",
            "median_total",
        ]
        query = {"fields": [{"fieldCaption": "City"}, {"fieldCaption": "Revenue Per Client"}]}
        reply = run_query(query, source, database)
        assert reply.result is not None, (reply.validation.validation_errors, reply.not_executable)
        gold = """SELECT city, SUM(total) / COUNT(DISTINCT o.customer_id) FROM orders o
            LEFT JOIN customers USING (customer_id) GROUP BY 1"""
        assert sorted(reply.result.rows) == sorted(database.run(gold).rows)


@pytest.mark.parametrize("text", ["[]", "semantic_model: []", "semantic_model: [{name: a}]", "datasets: ["])
def test_a_file_that_is_no_semantic_model_is_refused(text: str, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(text, encoding="utf-8")
    with open_database(str(shop)) as database, pytest.raises(UsageError, match="expected semantic_model"):
        described(infer(database), tmp_path / "model.yaml")
