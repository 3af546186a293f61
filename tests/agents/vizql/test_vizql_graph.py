"""The structured-query controller: the specification's example flow, its routes, and each improvement off and on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nl2sql.agents.controllers import answer
from nl2sql.agents.record import Episode
from nl2sql.agents.setup import open_task
from nl2sql.agents.vizql import SHOWN_SUGGESTIONS, route_after_execution, route_after_validation
from nl2sql.agents.vizql.state import (
    VizqlState,
    grammar_of,
    linked_fields,
    read_reply,
    source_of,
    with_valid_parts,
)
from nl2sql.config import VizqlConfig, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel
from nl2sql.vizql.validator import validate

ASKED = "show total sales by region"
SALES = {"fieldCaption": "Sales"}
TOTAL = {"fieldCaption": "Sales", "function": "SUM"}
REGION = {"fieldCaption": "Region"}
NO_FUNCTION = "MEASURE field 'Sales' requires aggregation function"
ADD_FUNCTION = 'Add aggregation to \'Sales\': {"fieldCaption": "Sales", "function": "SUM"}'


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[SqliteDatabase]:
    path = tmp_path / "orders.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (order_id INTEGER PRIMARY KEY, region TEXT, sales REAL, profit REAL)")
        rows = [(1, "West", 10.0, None), (2, "East", 5.0, None), (3, "West", 2.5, None)]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
    with SqliteDatabase(path) as database:
        yield database


def query(*fields: Any, **parts: Any) -> str:
    return json.dumps({"fields": list(fields), **parts})


def asked(database: SqliteDatabase, *replies: str, **switches: Any) -> tuple[Episode, list[str]]:
    """The episode over these replies, and the user turns that the model saw."""
    config = build_config({"vizql": {"draft": "json", **switches}, "few_shot": {"k": 0}, "schema_text": {"values": 0}})
    episode = answer(ASKED, database, ScriptedModel(list(replies)), "vizql", config)
    return episode, [call["messages"][-1]["content"] for call in episode.calls]


def actions(episode: Episode) -> list[str]:
    return [record["action"] for record in episode.trace]


# ------------------------------------------------------------------------------------------- the specification's flow


def test_the_specification_s_example_flow(orders: SqliteDatabase) -> None:
    episode, shown = asked(orders, query(SALES), query(REGION, TOTAL))
    assert sorted(episode.rows) == [("East", 5.0), ("West", 12.5)] and episode.error is None
    assert actions(episode) == [
        *("build_query", "validate_query", "refine_query", "validate_query", "execute_query", "format_result")
    ]
    first = episode.trace[1]["observation"]
    assert (first["validation_errors"], first["validation_suggestions"]) == ([NO_FUNCTION], [ADD_FUNCTION])
    refine = shown[1]
    parts = [ASKED, query(SALES), f"- {NO_FUNCTION}", f"- {ADD_FUNCTION}", "dimensions: Order ID", "Rules:"]
    assert [part for part in (*parts, "Common fixes:") if part not in refine] == []
    assert episode.flags["vizql"] == {
        "query": json.loads(query(REGION, TOTAL)),
        "query_version": 2,
        "errors": {"1": [NO_FUNCTION], "2": []},
        "stages": ["validation", "answered"],
    }
    assert json.loads(episode.raw_sql) == json.loads(query(REGION, TOTAL))


def test_versions_count_from_one_to_four_and_a_fourth_that_fails_is_the_last(orders: SqliteDatabase) -> None:
    episode, shown = asked(orders, *[query(SALES)] * 5)
    assert [record["args"]["version"] for record in episode.trace if record["action"] == "validate_query"] == [
        *(1, 2, 3, 4)
    ]
    assert len(shown) == 4 and episode.finish == "empty" and episode.sql == ""
    assert episode.error is not None and "after 3 refinements" in episode.error
    assert f"- {NO_FUNCTION}" in episode.error and f"- {ADD_FUNCTION}" in episode.error


@pytest.mark.parametrize(
    ("changes", "route"),
    [
        ({"failure": "model: gone"}, "error_handler"),
        ({"failure": "model: gone", "is_valid": True}, "error_handler"),
        ({"is_valid": True, "query_version": 4}, "execute"),
        ({"query_version": 0}, "refine"),
        *(({"query_version": version}, "refine") for version in (1, 2, 3)),
        *(({"query_version": version}, "error_handler") for version in (4, 5)),
    ],
)
def test_the_route_after_validation(changes: dict[str, Any], route: str) -> None:
    state = VizqlState(None, **changes)
    assert route_after_validation(state, VizqlConfig()) == route


@pytest.mark.parametrize(
    ("ran", "version", "route"),
    [
        ({"success": True, "odd": False, "refinable": True}, 1, "format"),
        ({"success": True, "odd": True, "refinable": True}, 1, "refine"),
        ({"success": True, "odd": True, "refinable": True}, 4, "format"),
        ({"success": False, "odd": True, "refinable": True}, 3, "refine"),
        ({"success": False, "odd": True, "refinable": True}, 4, "error_handler"),
        ({"success": False, "odd": True, "refinable": False}, 1, "error_handler"),
    ],
)
def test_the_route_after_execution(ran: dict[str, Any], version: int, route: str) -> None:
    attempts = [{"success": ran["success"]}]
    state = VizqlState(None, execution_result=ran, query_version=version, attempts=attempts)
    assert route_after_execution(state, VizqlConfig()) == route
    without = route_after_execution(state, VizqlConfig(feedback=False))
    assert without == ("format" if ran["success"] else "error_handler")


# ----------------------------------------------------------------------------------------------------------- replies


def test_a_reply_without_a_query_uses_up_a_refinement_and_the_draft_stays(orders: SqliteDatabase) -> None:
    episode, shown = asked(orders, query(SALES), "I am sorry.", query(REGION, TOTAL))
    assert "The last reply held no query as JSON" not in shown[1] and query(SALES) in shown[2]
    assert "- The last reply held no query as JSON" in shown[2]
    assert episode.flags["vizql"]["query_version"] == 3 and len(episode.rows) == 2


def test_a_first_reply_without_a_query_is_shown_as_it_is(orders: SqliteDatabase) -> None:
    episode, shown = asked(orders, "no JSON here", query(TOTAL))
    assert "no JSON here" in shown[1] and episode.rows == ((17.5,),)


def test_a_model_that_fails_ends_the_episode_with_its_error(orders: SqliteDatabase) -> None:
    episode, _ = asked(orders, query(SALES))
    assert episode.finish == "error" and episode.error is not None and episode.error.startswith("model: ")
    assert actions(episode)[-1] == "format_result"


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ('```json\n{"fields": []}\n```', {"fields": []}),
        ('{"json": {"query": {"fields": []}}}', {"query": {"fields": []}}),
        ('{ no } then {"fields": [1]} and more', {"fields": [1]}),
        ('The part {"fieldCaption": "Sales"} has no function: {"fields": [2]}', {"fields": [2]}),
        ('I will use {} here. {"query": {"fields": []}} {"fields": [3]}', {"query": {"fields": []}}),
        ('{"other": 1} and {"more": 2}', {"other": 1}),
        ("SELECT 1", None),
        ("{" * 5000, None),
        ('{"fields": [', None),
    ],
)
def test_the_query_in_a_reply(text: str, draft: Any) -> None:
    assert read_reply(text) == draft


# ------------------------------------------------------------------------------------------------- the improvements


def test_accumulate_shows_earlier_errors_and_says_which_one_is_back(orders: SqliteDatabase) -> None:
    replies = (query(SALES), query(TOTAL, {"fieldCaption": "Regoin"}), query(SALES), query(TOTAL))
    episode, shown = asked(orders, *replies, keep_valid=False)
    assert "Errors of earlier versions" not in shown[1]
    assert f"- version 1: {NO_FUNCTION}" in shown[2] and "is back" not in shown[2]
    assert f"- It was mended before and is back: {NO_FUNCTION}" in shown[3]
    _, plain = asked(orders, *replies, keep_valid=False, accumulate=False)
    assert not any("earlier versions" in text for text in plain)
    assert len(episode.rows) == 1


def test_rank_puts_the_likeliest_suggestion_first(orders: SqliteDatabase) -> None:
    wrong = query({"fieldCaption": "Regoin"}, SALES)
    shown = asked(orders, wrong, query(TOTAL))[1][1]
    assert shown.index("- Field 'Regoin' not found. Did") < shown.index("- Add aggregation to 'Sales'")


def test_feedback_has_the_refiner_doubt_a_result_without_rows_once(orders: SqliteDatabase) -> None:
    none = query(TOTAL, filters=[{"field": REGION, "filterType": "SET", "values": ["East"], "exclude": True}])
    over = {"field": TOTAL, "filterType": "QUANTITATIVE_NUMERICAL", "quantitativeFilterType": "MIN", "min": 99}
    empty = query(REGION, TOTAL, filters=[over])
    episode, shown = asked(orders, empty, none)
    assert "- The query runs and gives no rows" in shown[1] and episode.rows == ((12.5,),)
    assert episode.flags["vizql"]["stages"] == ["result", "answered"]
    episode, shown = asked(orders, empty, empty)
    assert len(shown) == 2 and episode.rows == () and episode.finish == "finish" and episode.error is None
    episode, shown = asked(orders, empty, none, feedback=False)
    assert len(shown) == 1 and episode.rows == ()


def test_a_refinement_that_is_worse_leaves_the_result_that_was_there(orders: SqliteDatabase) -> None:
    nulls = query({"fieldCaption": "Profit", "function": "SUM"})
    episode, shown = asked(orders, nulls, *[query(SALES)] * 3, keep_valid=False)
    assert "all of its values are NULL" in shown[1] and len(shown) == 4
    assert episode.rows == ((None,),) and episode.finish == "best_so_far" and episode.error is None


def test_a_model_that_fails_at_the_doubt_leaves_the_result_that_was_there(orders: SqliteDatabase) -> None:
    episode, _ = asked(orders, query({"fieldCaption": "Profit", "function": "SUM"}))
    assert episode.rows == ((None,),) and episode.finish == "error"
    assert episode.error is not None and episode.error.startswith("model: ")


def test_the_grammar_lists_the_values_of_a_field_s_own_table(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("CREATE TABLE products (name TEXT, customer_id INTEGER REFERENCES customers(customer_id))")
        connection.executemany("INSERT INTO customers VALUES (?, ?)", [(n, f"Person {n}") for n in range(150)])
        connection.executemany("INSERT INTO products VALUES (?, ?)", [(f"Thing {n}", n) for n in range(150)])
    question = Question("Which products did Person 7 buy?")
    with SqliteDatabase(tmp_path / "shop.sqlite") as database:
        config = build_config({"vizql": {"constrain": "schema"}, "schema_text": {"values": 1}})
        task = open_task(question, Resources(ScriptedModel([]), database), config)
        source = source_of(task)
        grammar = grammar_of(task, source, linked_fields(task, source))
    assert grammar is not None
    kinds = json.loads(grammar.text)["$defs"]["filter"]["anyOf"]
    sets = [kind["properties"] for kind in kinds if kind["properties"]["filterType"]["const"] == "SET"]
    captions = [(kind["field"]["properties"]["fieldCaption"]["enum"], kind["values"]["items"]) for kind in sets]
    listed = {caption: items for enum, items in captions for caption in enum}
    [named, null], [free, _] = listed["Name"]["anyOf"], listed["Name (Products)"]["anyOf"]
    assert (named, null, free["type"]) == ({"enum": ["Person 7"]}, {"type": "null"}, "string")


def test_what_is_valid_and_not_executable_goes_to_the_refiner_by_name(orders: SqliteDatabase) -> None:
    fixed = query({"fieldCaption": "Share", "calculation": "{FIXED [Region]: SUM([Sales])}"})
    episode, shown = asked(orders, fixed, query(TOTAL))
    assert "not executable: " in shown[1] and "LOD" in shown[1] and episode.rows == ((17.5,),)


FIXED = {"fieldCaption": "Share", "calculation": "{FIXED [Region]: SUM([Sales])}"}
NOT_HERE = "- not executable: field 'Share': an LOD expression"


def test_all_errors_reach_the_refiner_and_what_is_left_out_is_said(orders: SqliteDatabase) -> None:
    wrong = query(*({"fieldCaption": f"Regio{i}"} for i in "abcdefghijklmopqrs"))
    _, shown = asked(orders, wrong, wrong, query(TOTAL))
    errors = [f"Field 'Regio{i}' not found in schema" for i in "abcdefghijklmopqrs"]
    assert [error for error in errors if f"- {error}\n" not in shown[1]] == []
    assert [error for error in errors if f"- version 1: {error}\n" not in shown[2]] == []
    assert shown[1].count("Did you mean") == SHOWN_SUGGESTIONS and "- and 2 that are less likely\n" in shown[1]


def test_errors_of_execution_accumulate(orders: SqliteDatabase) -> None:
    _, shown = asked(orders, query(FIXED), query(SALES), query(FIXED), query(TOTAL), keep_valid=False)
    assert NOT_HERE in shown[1] and f"- version 1: {NOT_HERE.removeprefix('- ')}" in shown[2]
    assert f"- It was mended before and is back: {NOT_HERE.removeprefix('- ')}" in shown[3]


@pytest.mark.parametrize("fails", ["in the compiler", "in the database"])
def test_valid_parts_are_kept_after_an_error_of_execution(fails: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "orders.sqlite") as connection:
        connection.execute("CREATE TABLE orders (order_id INTEGER PRIMARY KEY, region TEXT, sales REAL, units INTEGER)")
        connection.executemany("INSERT INTO orders VALUES (?, 'West', ?, ?)", [(n, n, 2**62) for n in range(3)])
    broken = FIXED if fails == "in the compiler" else {"fieldCaption": "Units", "function": "SUM"}
    west, over = {"field": REGION, "filterType": "SET", "values": ["West"]}, from_to("MIN", min=1)
    with SqliteDatabase(tmp_path / "orders.sqlite") as database:
        for keep, fields, filters in ((True, [REGION, TOTAL], [west, over]), (False, [TOTAL], None)):
            replies = query(REGION, broken, filters=[west, over]), query(TOTAL)
            episode, shown = asked(database, *replies, keep_valid=keep)
            written = episode.flags["vizql"]["query"]
            assert len(shown) == 2 and (written["fields"], written.get("filters")) == (fields, filters)


def test_keep_valid_puts_back_what_a_reply_lost(orders: SqliteDatabase) -> None:
    episode, _ = asked(orders, query(REGION, SALES), query(TOTAL))
    assert episode.flags["vizql"]["query"] == {"fields": [REGION, TOTAL]}
    episode, _ = asked(orders, query(REGION, SALES), query(TOTAL), keep_valid=False)
    assert episode.flags["vizql"]["query"] == {"fields": [TOTAL]}


def test_a_changed_part_that_was_valid_goes_and_a_mended_one_stays() -> None:
    by_day = {"fieldCaption": "Order Date", "function": "DAY"}
    by_year = {"fieldCaption": "Order Date", "function": "YEAR"}
    before = {"query": {"fields": [by_year, SALES]}}
    broken = frozenset({("fields", 1)})
    assert with_valid_parts(before, broken, {"fields": [by_day, TOTAL]}) == {"fields": [by_year, TOTAL]}
    twice = {"fields": [TOTAL, SALES]}
    assert with_valid_parts(twice, broken, {"fields": [TOTAL, {**TOTAL, "function": "AVG"}]})["fields"][0] == TOTAL
    whole = frozenset({("fields",)})
    assert with_valid_parts(before, whole, {"fields": [by_day]}) == {"fields": [by_day]}


def from_to(kind: str, **ends: float) -> dict[str, Any]:
    about = {"field": {"fieldCaption": "Sales"}, "filterType": "QUANTITATIVE_NUMERICAL"}
    return {**about, "quantitativeFilterType": kind, **ends}


def test_two_filters_that_a_reply_merged_stay_merged(orders: SqliteDatabase) -> None:
    two = {"fields": [TOTAL], "filters": [from_to("MIN", min=5), from_to("MAX", max=10)]}
    one = {"fields": [TOTAL], "filters": [from_to("RANGE", min=5, max=10)]}
    for before in (two, {"query": two}):
        broken = validate(before).broken
        assert {("filters", 0), ("filters", 1)} <= broken and with_valid_parts(before, broken, one) == one
    episode, shown = asked(orders, json.dumps(two), json.dumps(one))
    assert len(shown) == 2 and episode.flags["vizql"]["query"] == one


def test_the_first_of_two_fields_with_one_priority_may_be_the_one_that_changes() -> None:
    first, second = {**REGION, "sortPriority": 1}, {**TOTAL, "sortPriority": 1}
    fixed = {"fields": [{**REGION, "sortPriority": 2}, second]}
    before = {"fields": [first, second]}
    assert with_valid_parts(before, validate(before).broken, fixed) == fixed


def test_what_was_valid_is_not_put_back_where_it_makes_a_valid_reply_invalid(orders: SqliteDatabase) -> None:
    own = {"fieldCaption": "Own", "calculation": "SUM([Slaes])"}
    named = [{**REGION, "sortPriority": 1}, own]
    reply = [{**own, "calculation": "SUM([Sales])", "sortPriority": 1}]  # Region with its priority would not go with it
    episode, shown = asked(orders, query(*named), query(*reply))
    assert len(shown) == 2 and episode.flags["vizql"]["query"] == {"fields": reply}


def test_suggestions_can_be_carried_out_without_the_model(orders: SqliteDatabase) -> None:
    episode, shown = asked(orders, query({"fieldCaption": "Regoin"}, SALES), apply_suggestions=True)
    assert len(shown) == 1 and episode.flags["vizql"]["query"] == {"fields": [REGION, TOTAL]}
    assert [r["args"]["by"] for r in episode.trace if r["action"] == "refine_query"] == ["suggestions"]


def test_a_suggestion_that_is_hardly_alike_is_left_to_the_model(orders: SqliteDatabase) -> None:
    part = {"field": REGION, "filterType": "SET", "values": ["Zzyx"]}
    meant = query(REGION, TOTAL, filters=[part | {"values": ["West"]}])
    episode, shown = asked(orders, query(REGION, TOTAL, filters=[part]), meant, apply_suggestions=True)
    assert len(shown) == 2 and "Did you mean: " in shown[1]
    assert [r["args"]["by"] for r in episode.trace if r["action"] == "refine_query"] == ["model"]


def test_suggestions_can_be_kept_from_the_refiner(orders: SqliteDatabase) -> None:
    _, shown = asked(orders, query(SALES), query(TOTAL), suggestions=False)
    assert "Suggestions:" not in shown[1] and f"- {NO_FUNCTION}" in shown[1]


KEYS = st.sampled_from(["fields", "filters", "query", "options", "fieldCaption", "x"])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(replies=st.lists(ANY_JSON.map(json.dumps) | st.text(max_size=30), min_size=4, max_size=4))
@example(replies=["null", "null", "", '{"fields": Infinity}'])
def test_any_reply_ends_in_an_episode(replies: list[str], orders: SqliteDatabase) -> None:
    episode, shown = asked(orders, *replies)
    assert episode.finish in ("finish", "best_so_far", "empty") and len(shown) <= 4
    assert (episode.error is None) == bool(episode.sql)
    json.dumps(episode.to_dict(), allow_nan=False)
