"""Structured queries compiled and executed, on SQLite and DuckDB, against rows that are written out here."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from nl2sql.config import VizqlConfig
from nl2sql.databases.engines import open_database
from nl2sql.interfaces import Database
from nl2sql.vizql.compile import CompiledQuery, compiled
from nl2sql.vizql.formula_tree import MOST_CHAINED
from nl2sql.vizql.query import Query, Request, to_json
from nl2sql.vizql.query_errors import read_query
from nl2sql.vizql.source import DataSource

TABLES = """
CREATE TABLE sale (id INTEGER PRIMARY KEY, shop_id INTEGER, day DATE, amount DOUBLE, n INTEGER, note TEXT);
CREATE TABLE shop (id INTEGER PRIMARY KEY, city TEXT, size INTEGER);
INSERT INTO shop VALUES (1, 'Rome', 10), (2, 'Oslo', 20), (3, 'Bern', 30);
INSERT INTO sale VALUES (1, 1, '2024-01-01', 10.0, 1, 'Red'), (2, 1, '2024-02-29', 20.0, 2, 'red sea'),
    (3, 2, '2024-12-30', 2.5, 3, NULL), (4, NULL, NULL, NULL, 4, 'blue'), (5, 2, '2023-01-01', 7.5, -5, 'Red');
"""


def _field(caption: str, kind: str, table: str, role: str = "DIMENSION", **more: Any) -> dict[str, Any]:
    record = {"fieldCaption": caption, "fieldName": caption.lower(), "dataType": kind, "fieldRole": role}
    return record | {"logicalTableId": table, "defaultAggregation": "SUM"} | more


SOURCE = DataSource.model_validate(
    {
        "fields": [
            _field("ID", "INTEGER", "sale", fieldName="sale_id", remoteFieldName="id"),
            _field("Shop_ID", "INTEGER", "sale"),
            _field("Day", "DATE", "sale"),
            _field("Amount", "REAL", "sale", "MEASURE"),
            _field("N", "INTEGER", "sale", "MEASURE"),
            _field("Note", "STRING", "sale"),
            _field("Shop Key", "INTEGER", "shop", fieldName="shop_key", remoteFieldName="id"),
            _field("City", "STRING", "shop", aliases=[{"member": "Rome", "value": "Roma"}]),
            _field("Size", "INTEGER", "shop", "MEASURE"),
        ],
        "logicalTables": [
            {"logicalTableId": "sale", "caption": "Sale", "key": ["sale_id"]},
            {"logicalTableId": "shop", "caption": "Shop", "key": ["shop_key"]},
        ],
        "logicalTableRelationships": [
            {
                "fromLogicalTable": {"logicalTableId": "sale"},
                "toLogicalTable": {"logicalTableId": "shop"},
                "expression": {"relationships": [{"fromField": "[shop_id]", "toField": "[shop_key]"}]},
            }
        ],
        "parameters": [{"parameterCaption": "Factor", "dataType": "INTEGER", "value": 3}],
    }
)


def _range(**ends: float) -> dict[str, Any]:
    kind = "RANGE" if len(ends) == 2 else "MIN"
    return {"filterType": "QUANTITATIVE_NUMERICAL", "quantitativeFilterType": kind, **ends}


CITY, AMOUNT = {"fieldCaption": "City"}, {"fieldCaption": "Amount", "function": "SUM"}


@pytest.fixture(scope="module", params=["sqlite", "duckdb"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("shop") / f"shop.{request.param}"
    connection = sqlite3.connect(path) if request.param == "sqlite" else duckdb.connect(str(path))
    for statement in TABLES.split(";")[:-1]:
        connection.execute(statement)
    connection.commit()
    connection.close()
    database = open_database(f"duckdb:{path}" if request.param == "duckdb" else Path(path))
    yield database
    database.close()


def query(*fields: dict[str, Any], filters: list[Any] | None = None, **more: Any) -> Request:
    asked: dict[str, Any] = {"fields": list(fields)} | ({"filters": filters} if filters else {})
    asked |= {"parameters": more.pop("parameters")} if "parameters" in more else {}
    return Request.model_validate({"query": asked} | ({"options": more} if more else {}))


def rows(shop: Database, request: Request) -> list[tuple[Any, ...]]:
    """The rows in an order of their own; a day as its text."""
    made = compiled(request, SOURCE, shop.dialect, today=datetime.date(2024, 3, 15))
    assert made.not_executable == ()
    result = shop.run(made.sql)
    assert result.success, (result.error, made.sql)
    return [tuple(str(v)[:10] if "-" in str(v)[1:] else v for v in row) for row in result.rows]


def bag(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(found, key=repr)


def refused(request: Request, dialect: str = "sqlite", **more: Any) -> str:
    made: CompiledQuery = compiled(request, SOURCE, dialect, **more)
    assert made.sql == ""
    return "; ".join(made.not_executable)


def test_dimensions_alone_are_distinct_rows_and_aliases_of_members_are_shown(shop: Database) -> None:
    assert bag(rows(shop, query(CITY))) == bag([("Roma",), ("Oslo",), ("Bern",)])


def test_the_alias_of_null_is_shown_and_filtered_by(shop: Database) -> None:
    data = SOURCE.model_dump(exclude_unset=True)
    [note] = [record for record in data["fields"] if record["fieldCaption"] == "Note"]
    note["aliases"] = [{"member": "blue", "value": "Blue"}, {"member": None, "value": "No note"}]
    source = DataSource.model_validate(data)

    def asked(*filters: Any) -> list[tuple[Any, ...]]:
        made = compiled(query({"fieldCaption": "Note"}, filters=list(filters)), source, shop.dialect)
        return bag([*shop.run(made.sql).rows])

    assert asked() == bag([("Red",), ("red sea",), ("No note",), ("Blue",)])
    for values in ([None], ["No note"]):
        assert asked(_about("Note", "SET", values=values)) == [("No note",)]


def test_disaggregate_gives_every_row(shop: Database) -> None:
    request = query({"fieldCaption": "Note"}, {"fieldCaption": "Amount"}, disaggregate=True)
    assert bag(rows(shop, request)) == bag(
        [("Red", 10.0), ("red sea", 20.0), (None, 2.5), ("blue", None), ("Red", 7.5)]
    )
    assert "aggregate beside disaggregate" in refused(query(AMOUNT, disaggregate=True))


def test_a_measure_without_a_function_has_its_default_one_unless_strict(shop: Database) -> None:
    request = query({"fieldCaption": "Amount"})
    assert rows(shop, request) == [(40.0,)]
    assert compiled(request, SOURCE, "sqlite").columns == ("SUM(Amount)",)
    assert "without a function" in refused(request, settings=VizqlConfig(strict=True))


def test_rows_of_the_referring_table_stay_when_tables_are_joined(shop: Database) -> None:
    assert bag(rows(shop, query(CITY, AMOUNT))) == bag([("Roma", 30.0), ("Oslo", 10.0), (None, None)])


def test_a_measure_that_a_join_would_fan_out_is_refused_by_name(shop: Database) -> None:
    size = {"fieldCaption": "Size", "function": "SUM"}
    assert "SUM(Size): a row of table shop would count once for each row of table sale" in refused(query(size, AMOUNT))
    assert rows(shop, query(size)) == [(60,)]
    assert rows(shop, query(size | {"function": "MAX"}, AMOUNT)) == [(20, 40.0)]


def test_the_rows_of_two_tables_are_not_one_count(shop: Database) -> None:
    sales, shops = ({"fieldCaption": f"Number of {t}", "calculation": f"COUNT([{t}])"} for t in ("Sale", "Shop"))
    for asked in (query(sales, shops), query(shops, sales)):
        assert "COUNT([Shop]): a row of table shop would count once for each row of table sale" in refused(asked)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("MEDIAN", 8.75),
        ("VAR", 54.166666667),
        ("STDEV", 7.359800722),
        ("AVG", 10.0),
        ("COUNT", 4),
        ("COUNTD", 4),
        ("MIN", 2.5),
        ("MAX", 20.0),
    ],
)
def test_aggregates_leave_nulls_out(shop: Database, function: str, value: float) -> None:
    assert rows(shop, query({"fieldCaption": "Amount", "function": function})) == [(pytest.approx(value),)]


def test_spread_of_one_value_is_null_and_of_large_ones_exact(shop: Database) -> None:
    found = rows(shop, query({"fieldCaption": "ID"}, {"fieldCaption": "Amount", "function": "VAR"}))
    assert {row[1] for row in found} == {None}
    large = {"fieldCaption": "Large", "calculation": "VAR([N] + 1000000000)"}
    assert rows(shop, query(large)) == [(pytest.approx(12.5),)]


@pytest.mark.parametrize(
    ("function", "days"),
    [
        ("YEAR", {2024, 2023, None}),
        ("QUARTER", {1, 4, None}),
        ("MONTH", {1, 2, 12, None}),
        ("WEEK", {1, 9, 52, None}),  # 2024-12-30 is in week 1, 2023-01-01 in week 52
        ("DAY", {1, 29, 30, None}),
        ("TRUNC_YEAR", {"2024-01-01", "2023-01-01", None}),
        ("TRUNC_QUARTER", {"2024-01-01", "2024-10-01", "2023-01-01", None}),
        ("TRUNC_MONTH", {"2024-01-01", "2024-02-01", "2024-12-01", "2023-01-01", None}),
        ("TRUNC_WEEK", {"2024-01-01", "2024-02-26", "2024-12-30", "2022-12-26", None}),
        ("TRUNC_DAY", {"2024-01-01", "2024-02-29", "2024-12-30", "2023-01-01", None}),
    ],
)
def test_dates_are_cut_into_parts(shop: Database, function: str, days: set[Any]) -> None:
    found = rows(shop, query({"fieldCaption": "Day", "function": function}))
    assert len(found) == len(days) and {row[0] for row in found} == days


def _about(caption: str, kind: str, **more: Any) -> dict[str, Any]:
    function = {"function": more.pop("function")} if "function" in more else {}
    return {"field": {"fieldCaption": caption} | function, "filterType": kind} | more


FILTERED = [
    (_about("City", "SET", values=["Rome"]), {1, 2}),
    (_about("City", "SET", values=["Roma", None]), {1, 2, 4}),
    (_about("City", "SET", values=["Roma"], exclude=True), {3, 4, 5}),
    (_about("City", "SET", values=["Roma", None], exclude=True), {3, 5}),
    (_about("Note", "SET", values=[None], exclude=True), {1, 2, 4, 5}),
    (_about("Day", "SET", values=["2024-02-29"]), {2}),
    (_about("Day", "SET", values=[2023], function="YEAR"), {5}),
    (_about("Note", "MATCH", contains="RED"), {1, 2, 5}),
    (_about("Note", "MATCH", startsWith="r", endsWith="a"), {2}),
    (_about("Note", "MATCH", startsWith="rED", endsWith="D"), {1, 5}),
    (_about("Note", "MATCH", endsWith="SEA"), {2}),
    (_about("Note", "MATCH", startsWith="RED", exclude=True), {3, 4}),
    (_about("Note", "MATCH", endsWith="a very long red"), set()),
    (_about("Note", "MATCH", contains="red", exclude=True), {3, 4}),
    (_about("Amount", "QUANTITATIVE_NUMERICAL", quantitativeFilterType="RANGE", min=7.5, max=10.0), {1, 5}),
    (_about("Amount", "QUANTITATIVE_NUMERICAL", quantitativeFilterType="MIN", min=10.0, includeNulls=True), {1, 2, 4}),
    (_about("Amount", "QUANTITATIVE_NUMERICAL", quantitativeFilterType="ONLY_NULL"), {4}),
    (_about("Amount", "QUANTITATIVE_NUMERICAL", quantitativeFilterType="ONLY_NON_NULL"), {1, 2, 3, 5}),
    (_about("Day", "QUANTITATIVE_DATE", quantitativeFilterType="MAX", maxDate="2024-01-01"), {1, 5}),
    (_about("Day", "DATE", dateRangeType="CURRENT", periodType="YEARS"), {1, 2, 3}),
    (_about("Day", "DATE", dateRangeType="TODATE", periodType="YEARS"), {1, 2}),
    (_about("Day", "DATE", dateRangeType="TODATE", periodType="MONTHS", anchorDate="2024-02-29"), {2}),
    (_about("Day", "DATE", dateRangeType="TODATE", periodType="YEARS", anchorDate="2024-01-01"), {1}),
    (_about("Day", "DATE", dateRangeType="TODATE", periodType="YEARS", anchorDate="2024-12-29"), {1, 2}),
    (_about("Day", "DATE", dateRangeType="CURRENT", periodType="WEEKS", anchorDate="2025-01-05"), {3}),
    (_about("Day", "DATE", dateRangeType="LASTN", rangeN=1, periodType="MONTHS", anchorDate="2024-02-01"), {2}),
    (_about("Day", "DATE", dateRangeType="NEXTN", rangeN=1, periodType="MONTHS", anchorDate="2024-02-29"), {2}),
    (_about("Day", "DATE", dateRangeType="LAST", periodType="MONTHS"), {2}),
    (_about("Day", "DATE", dateRangeType="LASTN", rangeN=3, periodType="MONTHS"), {1, 2}),
    (_about("Day", "DATE", dateRangeType="NEXT", periodType="QUARTERS", anchorDate="2024-07-01"), {3}),
    (_about("Day", "DATE", dateRangeType="NEXTN", rangeN=2, periodType="WEEKS", anchorDate="2024-12-29"), {3}),
    (
        _about("Day", "DATE", dateRangeType="LAST", periodType="DAYS", anchorDate="2024-03-01", includeNulls=True),
        {2, 4},
    ),
]


@pytest.mark.parametrize(("part", "ids"), FILTERED, ids=[str(i) for i in range(len(FILTERED))])
def test_filters_keep_rows(shop: Database, part: dict[str, Any], ids: set[int]) -> None:
    assert {row[0] for row in rows(shop, query({"fieldCaption": "ID"}, filters=[part]))} == ids


def test_a_filter_on_an_aggregate_is_about_the_groups(shop: Database) -> None:
    part = _about("Amount", "QUANTITATIVE_NUMERICAL", function="SUM", quantitativeFilterType="MIN", min=20)
    assert rows(shop, query(CITY, filters=[part])) == [("Roma",)]


TOP = _about("City", "TOP", howMany=1, fieldToMeasure=AMOUNT)
SMALL = _about("Amount", "QUANTITATIVE_NUMERICAL", quantitativeFilterType="MAX", max=7.5)


def test_top_looks_at_all_rows_unless_another_filter_is_context(shop: Database) -> None:
    assert rows(shop, query(CITY, filters=[TOP])) == [("Roma",)]
    assert rows(shop, query(CITY, filters=[TOP, SMALL])) == []
    assert rows(shop, query(CITY, filters=[TOP, SMALL | {"context": True}])) == [("Oslo",)]
    assert rows(shop, query(CITY, filters=[TOP | {"direction": "BOTTOM"}])) == [("Oslo",)]


def test_of_equals_top_takes_the_first_by_the_value(shop: Database) -> None:
    count = {"fieldCaption": "Shop Key", "function": "COUNT"}
    for direction in ("TOP", "BOTTOM"):
        part = _about("City", "TOP", howMany=2, fieldToMeasure=count, direction=direction)
        assert bag(rows(shop, query(CITY, filters=[part]))) == bag([("Bern",), ("Oslo",)])


def test_condition_keeps_values_of_its_field(shop: Database) -> None:
    asked = AMOUNT | {"comparison": ">=", "value": 10}
    part = _about("City", "CONDITION", condition=asked)
    assert bag(rows(shop, query(CITY, filters=[part]))) == bag([("Roma",), ("Oslo",)])
    formula = _about("City", "CONDITION", calculation="ISNULL(SUM([Amount]))")
    assert rows(shop, query({"fieldCaption": "ID"}, filters=[formula])) == [(4,)]


def test_rows_are_sorted_by_priority_with_nulls_last_and_limited(shop: Database) -> None:
    note = {"fieldCaption": "Note", "sortPriority": 2}
    amount = {"fieldCaption": "N", "function": "COUNT", "sortPriority": 1, "sortDirection": "DESC"}
    assert rows(shop, query(note, amount)) == [("Red", 2), ("blue", 1), ("red sea", 1), (None, 1)]
    assert rows(shop, query(note, amount, rowLimit=2)) == [("Red", 2), ("blue", 1)]


def test_the_columns_from_the_left_decide_among_equals(shop: Database) -> None:
    found = rows(shop, query({"fieldCaption": "N"}, {"fieldCaption": "Note", "sortPriority": 1}, disaggregate=True))
    assert found == [(-5, "Red"), (1, "Red"), (4, "blue"), (2, "red sea"), (3, None)]


def test_columns_have_the_service_s_captions(shop: Database) -> None:
    average = {"fieldCaption": "Amount", "function": "AVG", "fieldAlias": "Mean"}
    made = compiled(query(AMOUNT, average, {"fieldCaption": "City", "fieldAlias": "Mean"}), SOURCE, shop.dialect)
    assert made.columns == ("SUM(Amount)", "Mean", "Mean")
    assert shop.run(made.sql).columns == ("SUM(Amount)", "Mean", "Mean (2)")


def test_halves_are_rounded_away_from_zero_and_whole_numbers_stay(shop: Database) -> None:
    median = {"fieldCaption": "Amount", "function": "MEDIAN", "maxDecimalPlaces": 1}  # 8.75
    minus = {"fieldCaption": "Minus", "calculation": "-MEDIAN([Amount])", "maxDecimalPlaces": 1}
    spread = {"fieldCaption": "Amount", "function": "VAR", "maxDecimalPlaces": 2}  # 54.1666...
    whole = {"fieldCaption": "N", "function": "SUM", "maxDecimalPlaces": 0}
    assert rows(shop, query(median, minus, spread, whole)) == [(8.8, -8.8, 54.17, 5)]


def test_more_decimals_than_an_engine_has_round_nothing(shop: Database) -> None:
    assert rows(shop, query(AMOUNT | {"function": "MEDIAN", "maxDecimalPlaces": 2147483648})) == [(8.75,)]


def test_rows_are_sorted_by_what_is_not_rounded_whatever_columns_are_called(shop: Database) -> None:
    amount = {"fieldCaption": "Amount", "maxDecimalPlaces": 0, "fieldAlias": "m1"}
    n = {"fieldCaption": "N", "function": "SUM", "fieldAlias": "m0"}
    rounded_alike = {"fieldCaption": "Own", "calculation": "MAX([Amount]) / 100", "maxDecimalPlaces": 0}
    asked = query(CITY, rounded_alike | {"sortPriority": 1}, filters=[_about("City", "SET", values=["Rome", "Oslo"])])
    assert rows(shop, asked) == [("Oslo", 0.0), ("Roma", 0.0)]
    asked = query({"fieldCaption": "Note"}, amount | {"function": "MAX"}, n | {"sortPriority": 1})
    assert rows(shop, asked) == [("Red", 10.0, -4), ("red sea", 20.0, 2), (None, 3.0, 3), ("blue", None, 4)]


def test_whole_numbers_keep_all_their_digits(shop: Database) -> None:
    large = {"calculation": "[N] + 9007199254740992"}  # 2**53: a float has no digit for one more
    asked = {"fields": [{"fieldCaption": "ID"}], "filters": [{"field": large, **_range(min=9007199254740993)}]}
    read = read_query(asked)
    assert isinstance(read, Query) and json.dumps(to_json(read), sort_keys=True) == json.dumps(asked, sort_keys=True)
    assert bag(rows(shop, Request(query=read))) == [(1,), (2,), (3,), (4,)]
    ends = _range(min=9007199254740993, max=9007199254740995)
    assert bag(rows(shop, query({"fieldCaption": "ID"}, filters=[{"field": large, **ends}]))) == [(1,), (2,), (3,)]


def test_bins_are_named_by_their_lower_ends(shop: Database) -> None:
    found = rows(shop, query({"fieldCaption": "N", "binSize": 2}))
    assert {row[0] for row in found} == {0.0, 2.0, 4.0, -6.0}


CALCULATIONS = [
    ("SUM([N]) / COUNT([Sale])", 1.0),
    ("SUM([N]) / 0", None),
    ("MEDIAN([N] * 0.5 / 2 + 0.25)", 0.75),
    ("MEDIAN(([N] + 1) * 0.5)", 1.5),
    ("MEDIAN(IF [N] > 2 THEN [N] * 0.5 END)", 1.75),
    ("SUM([N] * 1000000000)", 5_000_000_000),
    ("MAX([N]) - 2000000000 - 2000000000", -3_999_999_996),
    ("ROUND(SUM([Amount]) / 3, 1)", 13.3),
    ("SUM(IF [Note] = 'Red' THEN [N] ELSEIF ISNULL([Note]) THEN 100 END)", 96),
    ("SUM(CASE [City] WHEN 'Rome' THEN 1 ELSE 0 END)", 1),
    ("SUM(CASE [City] WHEN 'Roma' THEN 1 ELSE 0 END)", 0),
    ("SUM(IIF([Note] = 'Red', 1, 100))", 202),
    ("SUM(IF [Note] = 'Red' THEN 1 ELSE 100 END)", 302),
    ("SUM([N]) * [Parameters].[Factor]", 15),
    ("SUM([N]) * [Parameters].[FACTOR]", 15),
    ("SUM(IIF(CONTAINS([Note], 'ed') AND NOT ENDSWITH([Note], 'sea'), 1, 0))", 2),
    ("SUM(ZN([Amount])) - IFNULL(MAX([Amount]), 0)", 20.0),
    ("COUNT(IF [Day] >= #2024-01-01# THEN 1 END)", 3),
    ("MAX(YEAR([Day])) % 100", 24),
    ("MAX(FLOOR([Amount] / 3) + CEILING(0.5))", 7),
]


@pytest.mark.parametrize(("formula", "value"), CALCULATIONS)
def test_calculations(shop: Database, formula: str, value: Any) -> None:
    assert rows(shop, query({"fieldCaption": "Own", "calculation": formula})) == [(value,)]


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("{FIXED [City]: SUM([Amount])}", "an LOD expression ({FIXED ...})"),
        ("RUNNING_SUM(SUM([Amount]))", "the table calculation RUNNING_SUM()"),
        ("2 ^ 2", "the sign ^"),
        ("LEFT2([Note])", "the function LEFT2"),
        ("ROUND(SUM([N]), -1)", "ROUND to a number of decimals that is not written out, or below 0"),
        ("ROUND(SUM([N]), COUNT([N]))", "ROUND to a number of decimals"),
        ("SUM([N]) + [N]", "mixes rows and aggregates"),
        ("SUM(SUM([N]))", "an aggregate of an aggregate"),
        ("[Note] = 1", "STRING = INTEGER"),
        ("[Own]", "more than 10 deep"),
        ("SUM([Size] * 1) + SUM([N])", "fan-out"),
        ("SUM([N]" + "+1" * 1_000 + ")", f"more than {MOST_CHAINED} operations in one expression"),
        ("(" * 22 + "[N]" + ("+1" * MOST_CHAINED + ")") * 22, "nested too deeply"),
        ("[N] * " + "9" * 5_000, "a number past all limits (99999999999999999999)"),
        ("[N] * 1e999", "a number past all limits (1e999)"),
    ],
)
def test_what_is_not_executed_is_said_by_name(formula: str, said: str) -> None:
    assert said in refused(query({"fieldCaption": "Own", "calculation": formula}))


def test_a_formula_names_columns_where_the_query_does(shop: Database) -> None:
    turned = {"Amount": "N (sold)", "N": "amount", "Note": "Amount"}  # captions that are the names of other fields
    data = SOURCE.model_dump(exclude_unset=True)
    data["fields"] = [
        {**record, "fieldCaption": turned.get(record["fieldCaption"], record["fieldCaption"])}
        for record in data["fields"]
    ]
    twice = {"columnClass": "CALCULATION", "formula": "SUM([amount]) * 2", "defaultAggregation": "AGG"}
    data["fields"].append(_field("Twice", "INTEGER", "", "MEASURE", **twice))
    source = DataSource.model_validate(data)

    def asked(*fields: dict[str, Any], **more: Any) -> tuple[Any, ...]:
        sql = compiled(query(*fields, **more), source, shop.dialect).sql
        [row] = shop.run(sql).rows
        return row

    named = {"interpretFieldCaptionsAsFieldNames": True}
    own = {"fieldCaption": "Own", "calculation": "SUM([amount])"}
    assert asked({"fieldCaption": "amount", "function": "SUM"}, own, **named) == (40.0, 40.0)
    assert asked({"fieldCaption": "amount", "function": "SUM"}, own) == (5, 5)
    # the data source's own formulas name fields as they do without the option
    assert asked({"fieldCaption": "Own", "calculation": "[twice] + SUM([n])"}, **named) == (15,)
    many = {"field": {"calculation": "[amount] > 5"}, "filterType": "SET", "values": [True]}
    assert asked({"fieldCaption": "sale_id", "function": "COUNT"}, filters=[many], **named) == (3,)
    said = compiled(query({"fieldCaption": "Own", "calculation": "SUM([N (sold)])"}, **named), source, "sqlite")
    assert said.not_executable[0].endswith("the name [N (sold)] in a formula, which the data source does not have")


def test_calculations_that_name_others_many_times_over_are_refused_soon() -> None:
    """Of three lines that name each other forty times, 1,641 calculations would be read."""
    names = ("A", "[N] + 1"), ("B", "+".join(["[A]"] * 40)), ("C", "+".join(["[B]"] * 40))
    parts = [{"fieldCaption": caption, "calculation": calculation} for caption, calculation in names]
    assert compiled(query(*parts[:2]), SOURCE, "sqlite").sql.count("+") >= 40
    assert "calculations that name more than 300 calculations in all" in refused(query(*parts))


def test_a_formula_of_as_many_operations_as_may_be_is_compiled() -> None:
    own = {"fieldCaption": "Own", "calculation": "SUM([N])" + " + 1" * MOST_CHAINED}
    assert compiled(query(own), SOURCE, "sqlite").sql.count("1") == MOST_CHAINED


def test_texts_of_other_types_match_and_moments_are_compared_to_the_second(tmp_path: Path) -> None:
    connection = duckdb.connect(str(tmp_path / "calls.duckdb"))
    connection.execute("CREATE TABLE call (id UUID, began TIME, made TIMESTAMP)")
    connection.execute("INSERT INTO call VALUES (repeat('a', 32)::UUID, '10:30:00', '2024-01-31 10:30:00.25')")
    connection.close()
    kinds = {"id": "STRING", "began": "STRING", "made": "DATETIME"}
    fields = [_field(name, kind, "call") for name, kind in kinds.items()]
    tables = [{"logicalTableId": "call", "caption": "call"}]
    source = DataSource.model_validate({"fields": fields, "logicalTables": tables})
    parts = [
        _about("id", "MATCH", startsWith="AAAA"),
        _about("began", "MATCH", contains="30"),
        _about("made", "SET", values=["2024-01-31T10:30:00"]),
    ]
    with open_database(f"duckdb:{tmp_path / 'calls.duckdb'}") as database:
        for part in parts:
            made = compiled(query({"fieldCaption": "began"}, filters=[part]), source, "duckdb")
            result = database.run(made.sql)
            assert result.success and len(result.rows) == 1, (result.error, made)


def test_a_table_calculation_is_not_executed() -> None:
    part = AMOUNT | {"tableCalculation": {"tableCalcType": "RANK", "dimensions": []}}
    assert refused(query(part)) == "field 'Amount': the table calculation RANK"


def test_tables_that_no_relationship_to_a_key_connects_are_refused() -> None:
    bare = SOURCE.model_copy(update={"logicalTableRelationships": ()})
    made = compiled(query(CITY, AMOUNT), bare, "sqlite")
    assert made.sql == "" and "no table leads to all of them" in made.not_executable[0]


def test_a_table_that_is_not_asked_for_decides_nothing() -> None:
    """A refund leads to a shop by two ways; a question about sales and shops has nothing to do with refunds."""

    def to(table: str, field: str, key: str) -> dict[str, Any]:
        pair = {"fromField": f"[{field}]", "toField": f"[{key}]"}
        ends = {"fromLogicalTable": {"logicalTableId": "refund"}, "toLogicalTable": {"logicalTableId": table}}
        return ends | {"expression": {"relationships": [pair]}}

    data = SOURCE.model_dump(exclude_unset=True)
    data["fields"] = [
        *data["fields"],
        _field("Refund", "REAL", "refund"),
        _field("Of", "INTEGER", "refund"),
        _field("Where", "INTEGER", "refund"),
    ]
    data["logicalTables"] = (*data["logicalTables"], {"logicalTableId": "refund", "caption": "Refund"})
    further = [to("sale", "of", "sale_id"), to("shop", "where", "shop_key")]
    data["logicalTableRelationships"] = [*data["logicalTableRelationships"], *further]
    source = DataSource.model_validate(data)
    assert compiled(query(CITY, AMOUNT), source, "sqlite") == compiled(query(CITY, AMOUNT), SOURCE, "sqlite")
    [said] = compiled(query(CITY, {"fieldCaption": "Refund"}), source, "sqlite").not_executable
    assert said == "more than one way of relationships to table shop"


def test_an_engine_on_which_nothing_was_tried_is_refused_by_name() -> None:
    refused = compiled(Query.model_validate({"fields": [CITY, AMOUNT]}), SOURCE, "postgres")
    assert refused.sql == "" and refused.not_executable == (
        "queries are not executed on postgres here; only on sqlite and duckdb",
    )
