"""The validator: the specification's words, the cases of the fixture file, warnings, values, and any JSON at all."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import programs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from people import make_database
from strategies import FIXTURES, SUPERSTORE, queries

from nl2sql.config import VizqlConfig
from nl2sql.databases.engines import open_database
from nl2sql.vizql.autofix import MOST_ERRORS, apply, part_at, place_text
from nl2sql.vizql.query import Query, Request
from nl2sql.vizql.query_errors import read_query, read_request
from nl2sql.vizql.source import DataSource
from nl2sql.vizql.validator import validate

CASES = yaml.safe_load((FIXTURES / "validation.yaml").read_text(encoding="utf-8"))
REGION = {"fieldCaption": "Region"}


def document(case: dict[str, Any]) -> Any:
    if "document" in case:
        return case["document"]
    if "filter" in case:
        return {"fields": [REGION], "filters": [case["filter"]]}
    if "parameters" in case:
        return {"fields": [REGION], "parameters": case["parameters"]}
    return {"fields": case["fields"] if "fields" in case else [case["field"]]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_cases(case: dict[str, Any]) -> None:
    query, config = document(case), VizqlConfig(**case.get("config", {}))
    validation = validate(query, SUPERSTORE, config)
    errors = [[error.kind, error.message] for error in validation.errors]
    assert errors == case.get("errors", []) and validation.is_valid is case.get("valid", False)
    ways = validation.suggestions
    if "says" in case:
        assert ways[0].text == case["says"]
    if "fixed" in case:
        assert json.loads(ways[0].snippet) == case["fixed"]
    if errors and case.get("then", True):
        fixed = query
        for _ in range(3):
            fixed = apply(fixed, next(iter(validate(fixed, SUPERSTORE, config).suggestions)))
            if validate(fixed, SUPERSTORE, config).is_valid:
                return
        pytest.fail(f"not mended: {validate(fixed, SUPERSTORE, config).validation_errors}")


def test_there_are_80_cases_beside_the_specification_s() -> None:
    assert len(CASES) - sum("specification" in case["case"] for case in CASES) >= 80
    assert len({case["case"] for case in CASES}) == len(CASES)


def test_a_suggestion_shows_what_it_does() -> None:
    for case in CASES:
        query = document(case)
        for error in validate(query, SUPERSTORE, VizqlConfig(**case.get("config", {}))).errors:
            assert list(error.suggestions) == sorted(error.suggestions, key=lambda way: -way.likelihood), case["case"]
            for way in error.suggestions:
                fixed = apply(query, way)
                assert json.dumps(fixed) != json.dumps(query), (case["case"], way.text)
                assert way.snippet == "" or way.snippet in json.dumps(fixed, ensure_ascii=False), case["case"]


def test_what_is_known_decides_how_much_is_checked() -> None:
    names_only = DataSource.model_validate({"fields": [{"fieldCaption": "Sales"}, {"fieldCaption": "Region"}]})
    assert validate({"fields": [{"fieldCaption": "sales"}]}, names_only).is_valid  # basic: in any case, no roles
    assert not validate({"fields": [{"fieldCaption": "Slaes"}]}, names_only).is_valid
    assert validate({"fields": [{"fieldCaption": "Slaes"}]}).is_valid  # structure only
    assert not validate({"query": {"fields": [REGION]}}).is_valid  # nobody knows the data source


def test_valid_parts_are_told_from_broken_ones() -> None:
    fields = [REGION, {"fieldCaption": "Sales"}, {"fieldCaption": "Category"}]
    filters = [{"field": REGION, "filterType": "SET", "values": []}]
    for query in ({"fields": fields, "filters": filters}, {"query": {"fields": fields, "filters": filters}}):
        assert validate(query, SUPERSTORE).broken == {("fields", 1), ("filters", 0)}


def test_errors_and_suggestions_are_ranked_over_the_whole_query_and_all_are_there() -> None:
    fields = [{"fieldCaption": "Segmnets of all"}, {"fieldCaption": "Sales"}, {"fieldCaption": "region"}]
    fields.append({"fieldCaption": "Profit", "function": "SUMM"})
    validation = validate({"fields": fields, "filters": [{"filterType": "SET", "values": ["x"]}]}, SUPERSTORE)
    assert [place_text(error.place) for error in validation.errors] == [
        *("fields[2].fieldCaption", "fields[3].function", "fields[1]", "fields[0].fieldCaption"),
        "filters[0].field",  # nothing mends it
    ]
    likely = [way.likelihood for way in validation.suggestions]
    assert likely == sorted(likely, reverse=True) and len(likely) == sum(len(e.suggestions) for e in validation.errors)
    lines = {way.text for error in validation.errors for way in error.suggestions}
    assert len(lines) > 4 and validation.validation_suggestions[-1].startswith("Remove the function")
    assert sorted(validation.validation_suggestions) == sorted(lines)


@pytest.mark.parametrize("count", [MOST_ERRORS, MOST_ERRORS + 1])
def test_more_errors_than_are_listed_are_said(count: int) -> None:
    keys = {f"key {i}": i for i in range(count)}
    for query in ({"fields": [REGION | keys]}, {"fields": [REGION], **keys}, {"query": {"fields": [REGION | keys]}}):
        *first, last = validate(query, SUPERSTORE).errors
        assert [error.kind for error in first[: MOST_ERRORS - 1]] == ["unknown_key"] * (MOST_ERRORS - 1)
        assert (last.kind == "more") == (count > MOST_ERRORS)
    assert "more errors than these 50" in last.message or count == MOST_ERRORS


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"fields": [REGION] * 501}, "The query has 501 fields; expected at most 500"),
        ({"fields": [REGION], "parameters": [0] * 501}, "The query has 501 parameters; expected at most 500"),
        ({"fields": [0] * 10_000}, "The query is too large; expected at most 10,000 values"),
        ({"fields": [{"fieldCaption": "é" * 200_001}]}, "The query is too large; expected at most 200,000 characters"),
        (
            {"fields": [{f"k{i}": 1 for i in range(501)}]},
            "The query is too large; expected at most 500 keys in one object",
        ),
        ({"fields": [{"x" * 200_001: 1}]}, "The query is too large; expected at most 200,000 characters"),
        ({"fields": [10**700_000]}, "The query is too large; expected at most 200,000 characters"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_query_past_the_limits_is_one_error(query: Any, said: str) -> None:
    assert [error.message for error in validate(query, SUPERSTORE).errors] == [said]
    assert [error.message for error in validate({"query": query}, SUPERSTORE).errors][:1] == [said]


def test_a_large_part_is_not_repeated_for_each_of_its_errors() -> None:
    values = [f"{i} times" for i in range(5_000)]
    part = {"field": {"fieldCaption": "Sales"}, "filterType": "SET", "values": values}
    assert len(json.dumps(validate({"fields": [REGION], "filters": [part]}, SUPERSTORE).to_dict())) < 50_000


WARNED = {
    "sortPriority": {"fields": [REGION | {"sortDirection": "ASC"}]},
    "context: true": {
        "fields": [REGION],
        "filters": [
            {
                "field": REGION,
                "filterType": "TOP",
                "howMany": 3,
                "fieldToMeasure": {"fieldCaption": "Sales", "function": "SUM"},
            },
            {"field": {"fieldCaption": "Category"}, "filterType": "SET", "values": ["Furniture"]},
        ],
    },
    "asks data source 'other'": {"datasource": {"datasourceLuid": "other"}, "query": {"fields": [REGION]}},
    "disaggregate": {
        "query": {"fields": [{"fieldCaption": "Sales", "function": "SUM"}]},
        "options": {"disaggregate": True},
    },
    "Alias 'a'": {"fields": [REGION | {"fieldAlias": "a"}, {"fieldCaption": "Category", "fieldAlias": "a"}]},
    "each date": {"fields": [{"fieldCaption": "Order Date"}, {"fieldCaption": "Order Date", "function": "YEAR"}]},
    "runs along": {
        "fields": [
            {
                "fieldCaption": "Sales",
                "function": "SUM",
                "tableCalculation": {"tableCalcType": "RANK", "dimensions": [REGION]},
            }
        ]
    },
}


@pytest.mark.parametrize("words", WARNED)
def test_a_warning_never_fails(words: str) -> None:
    validation = validate(WARNED[words], SUPERSTORE)
    assert validation.is_valid and len(validation.warnings) == 1 and words in validation.warnings[0]


def test_context_takes_the_warning_away() -> None:
    query = json.loads(json.dumps(WARNED["context: true"]))
    query["filters"][1]["context"] = True
    assert validate(query, SUPERSTORE).warnings == ()


def test_tables_without_a_relationship_are_warned_of() -> None:
    alone = SUPERSTORE.model_copy(update={"logicalTableRelationships": ()})
    fields = {"fields": [REGION, {"fieldCaption": "Category"}]}
    assert validate(fields, SUPERSTORE).warnings == ()
    assert validate(fields, alone).warnings == ("No relationship leads from table 'orders' to 'products'",)


# ------------------------------------------------------------------------------------------------------- values


@pytest.fixture
def shop_source(shop: Path) -> Any:
    from nl2sql.vizql.infer import infer

    database = open_database(str(shop))
    yield infer(database), database
    database.close()


def test_values_of_filters_are_looked_for(shop_source: Any) -> None:
    source, database = shop_source
    filters = [
        {"field": {"fieldCaption": "Status"}, "filterType": "SET", "values": ["shiped", "open"]},
        {"field": {"fieldCaption": "City"}, "filterType": "MATCH", "startsWith": "Berm"},
        {"field": {"fieldCaption": "Name"}, "filterType": "MATCH", "contains": "DA"},
    ]
    query = {"fields": [{"fieldCaption": "City"}], "filters": filters}
    statements: list[str] = []

    class Watched:
        dialect, name = database.dialect, database.name

        def run(self, sql: str, **limits: Any) -> Any:
            statements.append(sql)
            return database.run(sql, **limits)

    validation = validate(query, source, None, Watched())  # type: ignore[arg-type]
    assert validation.validation_errors == [
        "Value 'shiped' not found in field 'Status'",
        "No value of field 'City' has startsWith 'Berm'",
    ]
    assert validation.errors[0].suggestions[0].changes[0].value == "shipped"
    assert validation.errors[1].suggestions[0].changes[0].value == "Bern"
    assert len(statements) == 1
    assert validate(query, source, VizqlConfig(check_values=False), database).is_valid
    assert validate(query, source).is_valid


def of_filter(shop_source: Any, caption: str, **part: Any) -> list[str]:
    """The errors of a query with this filter; open is shown as Offen."""
    source, database = shop_source
    fields = [field.model_copy() for field in source.fields]
    alias = {"aliases": ({"member": "open", "value": "Offen"},)}
    fields = [field.model_copy(update=alias) if field.fieldCaption == "Status" else field for field in fields]
    filters = [{"field": {"fieldCaption": caption}, **part}]
    query = {"fields": [{"fieldCaption": "City"}], "filters": filters}
    return validate(query, source.model_copy(update={"fields": tuple(fields)}), None, database).validation_errors


@pytest.mark.parametrize(
    ("caption", "part", "wrong"),
    [
        ("City", {"values": ["Bern", "x", "y"]}, ["x", "y"]),
        ("City", {"values": ["x", "Bern", None, "y"], "exclude": True}, ["x", "y"]),
        ("Status", {"values": ["open", "Offen", "shipped"]}, []),
        ("Status", {"values": ["Offen", "offen"]}, ["offen"]),
    ],
)
def test_every_value_of_a_set_is_looked_for_and_aliases_are_values(
    shop_source: Any, caption: str, part: dict[str, Any], wrong: list[str]
) -> None:
    said = [f"Value '{value}' not found in field '{caption}'" for value in wrong]
    assert of_filter(shop_source, caption, filterType="SET", **part) == said


@pytest.mark.parametrize("part", [{"startsWith": "bE"}, {"endsWith": "ERN"}, {"contains": "ER"}])
def test_match_is_about_values_in_any_case_and_about_aliases(shop_source: Any, part: dict[str, str]) -> None:
    assert of_filter(shop_source, "City", filterType="MATCH", **part) == []
    assert of_filter(shop_source, "Status", filterType="MATCH", startsWith="OFF") == []
    [key] = part
    assert of_filter(shop_source, "City", filterType="MATCH", **{key: "x"}) == [
        f"No value of field 'City' has {key} 'x'"
    ]


def test_of_a_column_with_too_many_values_nothing_is_said(tmp_path: Path) -> None:
    from nl2sql.vizql.infer import infer

    part = {"field": {"fieldCaption": "Name"}, "filterType": "SET", "values": ["nobody"]}
    for count in (2_000, 2_001):
        names = ", ".join(f"('name {i}')" for i in range(count))
        script = f"CREATE TABLE t (name TEXT); INSERT INTO t VALUES {names}"
        with open_database(str(make_database(tmp_path / f"{count}.sqlite", script))) as database:
            query = {"fields": [{"fieldCaption": "Name"}], "filters": [part]}
            assert validate(query, infer(database), None, database).is_valid == (count > 2_000)


def test_a_column_of_texts_may_hold_numbers(tmp_path: Path) -> None:
    from nl2sql.vizql.infer import infer
    from nl2sql.vizql.querying import run_query

    codes = "CREATE TABLE item (code STRING, label TEXT); INSERT INTO item VALUES ('123', 'a'), ('x9', 'b');"
    with open_database(str(make_database(tmp_path / "items.sqlite", codes))) as database:
        source = infer(database)
        for part in ({"filterType": "SET", "values": ["123"]}, {"filterType": "MATCH", "startsWith": "12"}):
            asked = {"fields": [{"fieldCaption": "Label"}], "filters": [{"field": {"fieldCaption": "Code"}, **part}]}
            reply = run_query(asked, source, database)
            assert reply.result is not None and reply.result.rows == (("a",),), reply.validation.validation_errors


def test_a_name_with_a_bracket_is_suggested_as_a_formula_writes_it() -> None:
    source = DataSource.model_validate({"fields": [{"fieldCaption": "Weight [kg]", "fieldRole": "MEASURE"}]})
    query = {"fields": [{"fieldCaption": "Own", "calculation": "SUM([Weigth])"}]}
    [way] = validate(query, source).suggestions
    fixed = apply(query, way)
    assert fixed["fields"][0]["calculation"] == "SUM([Weight [kg]]])" and validate(fixed, source).is_valid


def test_a_database_that_is_away_is_no_error_of_the_query(shop_source: Any) -> None:
    source, database = shop_source
    gone = source.model_copy(update={"logicalTables": ()})
    renamed = [table.model_copy(update={"table": "nowhere"}) for table in source.logicalTables]
    part = {"field": {"fieldCaption": "Status"}, "filterType": "SET", "values": ["shiped"]}
    for other in (gone, source.model_copy(update={"logicalTables": tuple(renamed)})):
        assert validate({"fields": [{"fieldCaption": "City"}], "filters": [part]}, other, None, database).is_valid


# --------------------------------------------------------------------------------------------------- parameters


def of_parameter(value: Any, **record: Any) -> list[str]:
    """The errors of a query that sets the parameter of this record."""
    data = {"fields": [REGION], "parameters": [{"parameterCaption": "P", **record}]}
    query = {"fields": [REGION], "parameters": [{"parameterCaption": "P", "value": value}]}
    return validate(query, DataSource.model_validate(data)).validation_errors


DAYS = {"parameterType": "QUANTITATIVE_DATE", "minDate": "2024-01-01", "maxDate": "2024-12-31T12:00:00"}
LARGE = 2**53
NO_MOMENT = "a date or a moment of RFC 3339 (YYYY-MM-DDThh:mm:ss)"


@pytest.mark.parametrize(
    ("record", "value", "said"),
    [
        ({"dataType": "DATETIME"}, "2024-01-01", ""),
        ({"dataType": "DATETIME"}, "2024-01-01T10:00:00Z", ""),
        ({"dataType": "DATETIME"}, 5, "of type DATETIME; it is 5"),
        ({"dataType": "DATETIME"}, "banana", f"{NO_MOMENT}; it is 'banana'"),
        ({"dataType": "DATETIME"}, "2024-01-01banana", f"{NO_MOMENT}; it is '2024-01-01banana'"),
        ({"dataType": "DATE"}, "2024-01-01T10:00:00", "a date of RFC 3339 (YYYY-MM-DD); it is '2024-01-01T10:00:00'"),
        (DAYS | {"dataType": "DATETIME"}, "2024-01-01 00:00:00", ""),
        (DAYS | {"dataType": "DATETIME"}, "2024-12-31 11:59", ""),
        (DAYS | {"dataType": "DATETIME"}, "2024-12-31 12:01", "at most 2024-12-31T12:00:00; it is '2024-12-31 12:01'"),
        ({"parameterType": "QUANTITATIVE_RANGE", "dataType": "INTEGER", "step": 1}, LARGE + 1, ""),
        ({"parameterType": "QUANTITATIVE_RANGE", "dataType": "INTEGER", "max": LARGE + 1}, LARGE + 1, ""),
        (
            {"parameterType": "QUANTITATIVE_RANGE", "dataType": "INTEGER", "min": LARGE + 1, "step": 2},
            LARGE + 4,
            f"{LARGE + 1} and steps of 2; it is {LARGE + 4}",
        ),
    ],
)
def test_a_parameter_has_the_type_and_range_of_its_record(record: dict[str, Any], value: Any, said: str) -> None:
    assert of_parameter(value, **record) == ([f"Parameter 'P' must be {said}"] if said else [])


# ----------------------------------------------------------------------------------------------------- any JSON

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**400), 10**400), st.floats(), st.text(max_size=5), st.just("SUM")
)
WORDS = """
    fields filters parameters query datasource options fieldCaption function calculation binSize tableCalculation
    tableCalcType dimensions field filterType values min minDate"""
KEYS = st.sampled_from(WORDS.split())
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(KEYS, st.text(max_size=3)), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(ANYTHING)
def test_any_json_is_read_and_validated_without_a_traceback(data: Any) -> None:
    for head in (data, {"fields": data}, {"fields": [data], "filters": [data]}, {"query": data, "options": data}):
        assert isinstance(read_query(head), Query | list)
        assert isinstance(read_request(head), Request | list)
        validation = validate(head, SUPERSTORE)
        json.dumps(validation.to_dict())
        for way in validation.suggestions:
            apply(head, way)


@settings(max_examples=60, deadline=None)
@given(queries(), st.data())
def test_a_broken_part_of_a_query_is_reported_where_it_is(query: dict[str, Any], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(query["fields"]) - 1))
    query["fields"][i]["nonsense"] = data.draw(SCALARS)
    [error] = validate(query, SUPERSTORE).errors
    assert place_text(error.place) == f"fields[{i}].nonsense"
    assert validate(apply(query, error.suggestions[-1]), SUPERSTORE).is_valid


def test_a_function_beside_the_field_of_a_filter_is_moved_into_it() -> None:
    sales = {"fieldCaption": "Sales"}
    about = {"filterType": "QUANTITATIVE_NUMERICAL", "quantitativeFilterType": "MIN", "min": 1000}
    asked = {"fields": [sales | {"function": "SUM"}], "filters": [{"field": sales, "function": "SUM", **about}]}
    [error] = validate(asked, SUPERSTORE).errors
    assert error.message == "Unknown key 'function' in the QUANTITATIVE_NUMERICAL filter"
    fixed = apply(asked, error.suggestions[0])
    assert fixed["filters"] == [{"field": sales | {"function": "SUM"}, **about}]
    assert validate(fixed, SUPERSTORE).is_valid
    [error] = validate({"fields": [sales | {"function": "SUM"}], "function": "SUM"}, SUPERSTORE).errors
    assert error.message == "Unknown key 'function' in the query"


@pytest.mark.parametrize("key", ["field", "fieldCaption"])
def test_the_field_of_a_filter_may_be_written_as_its_caption(key: str) -> None:
    rest = {"filterType": "SET", "values": ["West"]}
    asked = {"fields": [{"fieldCaption": "Region"}], "filters": [{key: "Region", **rest}]}
    error = validate(asked, SUPERSTORE).errors[0]
    fixed = apply(asked, error.suggestions[0])
    assert fixed["filters"] == [{"field": {"fieldCaption": "Region"}, **rest}]
    assert validate(fixed, SUPERSTORE).is_valid


def test_a_field_inside_of_a_part_may_be_written_as_its_caption() -> None:
    region, sales = {"fieldCaption": "Region"}, {"fieldCaption": "Sales", "function": "SUM"}
    rank = {"tableCalcType": "RANK", "dimensions": ["Region"]}
    asked = {"fields": [region, sales | {"tableCalculation": rank}]}
    [error] = validate(asked, SUPERSTORE).errors
    assert error.message == "'0' in field 'Sales' must be an object; it is 'Region'"
    fixed = apply(asked, error.suggestions[0])
    assert fixed["fields"][1]["tableCalculation"]["dimensions"] == [region]
    assert validate(fixed, SUPERSTORE).is_valid


def test_nested_table_calculations_name_fields_of_the_data_source() -> None:
    sales = {"fieldCaption": "Sales", "function": "SUM"}
    total = {"tableCalcType": "RUNNING_TOTAL", "dimensions": [{"fieldCaption": "Region"}]}
    wrong = total | {"dimensions": [{"fieldCaption": "Regoin"}]}
    asked = {"fields": [{"fieldCaption": "Region"}, sales | {"tableCalculation": total}]}
    assert validate(asked, SUPERSTORE).is_valid
    asked["fields"][1]["nestedTableCalculations"] = [total, wrong]
    [error] = validate(asked, SUPERSTORE).errors
    assert error.message == "Field 'Regoin' not found in schema"
    assert place_text(error.place) == "fields[1].nestedTableCalculations[1].dimensions[0].fieldCaption"


def test_what_is_nested_too_deeply_is_an_error_of_one_line() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"secondaryTableCalculation": deep}
    for query in (deep, {"fields": [deep]}, {"query": {"fields": [deep]}}):
        [error] = validate(query, SUPERSTORE).errors
        assert error.message == "The query is nested too deeply; expected at most 32 levels"


# -------------------------------------------------------------------------------------------------- command line


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return programs.command("data", "vizql", *arguments, cwd=Path.cwd(), stdin=stdin)


def test_the_command_prints_the_specification_s_two_lines() -> None:
    source = str(FIXTURES / "superstore.yaml")
    done = command("validate", str(FIXTURES / "regoin.json"), "--source", source, "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["is_valid"] is False
    assert answer["validation_errors"] == ["Field 'Regoin' not found in schema"]
    assert answer["validation_suggestions"] == ["Field 'Regoin' not found. Did you mean: Region, Revenue?"]
    valid = command("validate", "-", "--source", source, stdin=json.dumps({"fields": [REGION]}))
    assert (valid.returncode, valid.stdout) == (0, "valid\n")


def test_bad_input_of_the_command_is_one_line(tmp_path: Path) -> None:
    source = str(FIXTURES / "superstore.yaml")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "twice.json").write_text('{"fields": [{"fieldCaption": "Sales"}], "fields": []}')
    (tmp_path / "no.yaml").write_text("fields: []")
    (tmp_path / "query.json").write_text('{"fields": [{"fieldCaption": "Sales", "function": "SUM"}]}')
    for arguments, words in (
        (["validate", str(tmp_path / "broken.json"), "--source", source], "is not JSON"),
        (["validate", str(tmp_path / "twice.json"), "--source", source], "'fields' is given twice"),
        (["validate", str(tmp_path / "away.json"), "--source", source], "cannot read the query"),
        (["validate", "-", "--source", str(tmp_path / "away.yaml")], "nl2sql data vizql infer"),
        (["validate", "-", "--source", str(tmp_path / "no.yaml")], "is no data source: fields"),
        (["validate", "-", "--source", str(tmp_path / "query.json")], "no field has a dataType; is it a query?"),
    ):
        done = command(*arguments, stdin="{}")
        assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 1, done.stderr
        assert words in done.stderr, done.stderr


def test_a_query_is_read_behind_the_mark_of_windows(tmp_path: Path) -> None:
    (tmp_path / "marked.json").write_text(json.dumps({"fields": [REGION]}), encoding="utf-8-sig")
    done = command("validate", str(tmp_path / "marked.json"), "--source", str(FIXTURES / "superstore.yaml"))
    assert (done.returncode, done.stdout) == (0, "valid\n"), done.stderr


def test_warnings_stand_beside_the_statement_and_the_rows() -> None:
    asked = json.dumps(WARNED["sortPriority"])
    compile_ = command("compile", "-", "--source", str(FIXTURES / "superstore.yaml"), stdin=asked)
    town = asked.replace("Region", "Town")
    run = command("run", "-", "--db", "packaged:scale_models", stdin=town)
    for done in (compile_, run):
        assert done.returncode == 0 and done.stdout.startswith("SELECT "), done.stderr
        assert done.stderr.startswith("warning: Field '") and "sortPriority" in done.stderr


def test_places_are_paths_into_the_document() -> None:
    query = {"query": {"fields": [{"fieldCaption": "Sales", "function": "SUMM"}]}}
    [error] = validate(query, SUPERSTORE).errors
    assert part_at(query, error.place) == "SUMM" and place_text(error.place) == "query.fields[0].function"


def test_planted_faults_are_reported_and_mended() -> None:
    """115 valid queries with a fault, of 22 kinds: the first suggestion mends each, and mostly restores it."""
    restored = 0
    for line in (FIXTURES / "faults.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        fixed = apply(case["query"], validate(case["query"], SUPERSTORE).suggestions[0])
        assert validate(fixed, SUPERSTORE).is_valid, case["fault"]
        restored += fixed == case["before"]
    assert restored >= 99
