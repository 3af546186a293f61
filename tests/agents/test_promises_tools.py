"""What the tools promise (react-loop 3 and 5): what the model is asked, and what an observation holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_steps import (
    FAILS_IN_ITS_RUN,
    QUESTION,
    RIGHT,
    UNKNOWN_COLUMN,
    Listening,
    action,
    observations,
    play,
)
from people import make_database

from nl2sql.agents.react import bootstrap, react_sql
from nl2sql.agents.repairing import fixed, refused_candidates
from nl2sql.agents.resources import code_identity
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.interfaces import Question, Resources, Sampling

FIRST = ("extract_constraints", "generate_sql")
CHECKS = ("validate_sql", "validate_constraints")
SHORT = {"vanilla": False}
EIGHT = "".join(f"CREATE TABLE thing{n} (id INTEGER PRIMARY KEY, colour{n} TEXT);" for n in range(8))


def test_generate_sql_shows_question_schema_and_constraints(shop: Path) -> None:
    question = "What are the three most expensive orders?"
    _, model = play(shop, *FIRST, RIGHT, question=question, config=SHORT | {"max_steps": 2})
    (prompt,) = model.sql_prompts()
    assert f"Question: {question}\nThe query should: order the rows, return 3 rows.\nSQL:" in prompt
    assert "customers" in prompt and "total" in prompt


def test_generate_sql_asks_the_specified_number_of_tokens_and_stops_behind_the_statement(shop: Path) -> None:
    _, model = play(shop, *FIRST, RIGHT, config=SHORT | {"max_steps": 2, "max_new_tokens": 77})
    (call,) = model.sql_calls()
    assert call["max_new_tokens"] == 77 and call["prefill"] == "SELECT" and ";\n" in call["stop"]
    turns = [asked for asked in model.asked if asked is not call]
    assert {turn["max_new_tokens"] for turn in turns} == {77}
    assert all("Observation:" in turn["stop"] for turn in turns)


@pytest.mark.parametrize(("linking", "tables"), [(True, 6), (False, 8)])
def test_generate_and_repair_are_shown_the_linked_schema(tmp_path: Path, linking: bool, tables: int) -> None:
    things = make_database(tmp_path / "things.sqlite", EIGHT)
    replies = [*FIRST, "SELECT COUNT(*) FROM nowhere", "validate_sql", "repair_sql", "SELECT COUNT(*) FROM thing7"]
    config = SHORT | {"max_steps": 4, "use_link_schema": linking}
    _, model = play(things, *replies, question="How many of thing7 have a colour7?", config=config)
    assert [prompt.count("thing") - prompt.count("of thing7") for prompt in model.sql_prompts()] == [tables, tables]
    assert all("colour7" in prompt.partition("Question:")[0] for prompt in model.sql_prompts())


def test_the_loop_is_shown_the_whole_schema_and_then_the_linked_one(tmp_path: Path) -> None:
    things = make_database(tmp_path / "things.sqlite", EIGHT)
    replies = ["extract_constraints", "link_schema", "get_schema"]
    episode, _ = play(things, *replies, config=SHORT | {"max_steps": 3})
    head = episode.transcript.split("Observation: ")
    assert [part.count("colour") for part in head[1:]] == [8, 6, 0, 6, 8] and "colour0 TEXT" in head[1]
    assert 'Action: link_schema[{"max_tables": 6}]' in episode.transcript
    (linked,) = observations(episode, "link_schema")
    assert linked["changed"] is True and linked["schema_text"].count("colour") == 6


def test_a_link_schema_that_gives_nothing_leaves_the_whole_schema(shop: Path) -> None:
    tools = {"link_schema": lambda state, args: {"schema_text": "", "changed": False}}
    episode, model = play(shop, *FIRST, RIGHT, config=SHORT | {"max_steps": 2}, tools=tools)
    assert "customers" in model.sql_prompts()[0].partition("Question:")[0]
    assert episode.transcript.count("Observation: customers(") == 2


def test_repair_sql_shows_the_failed_query_and_its_error(shop: Path) -> None:
    replies = [*FIRST, UNKNOWN_COLUMN, "validate_sql", "repair_sql", FAILS_IN_ITS_RUN, *CHECKS, "run_sql", "finish"]
    _, model = play(shop, *replies, RIGHT, config=SHORT)
    first, second = model.sql_prompts()[1:]
    assert f"This query failed:\n{UNKNOWN_COLUMN};" in first and "Error: unknown_column:state" in first
    assert f"This query failed:\n{FAILS_IN_ITS_RUN};" in second and "Error: integer overflow" in second
    assert f"Question: {QUESTION}" in first and "customers" in first


def test_repair_sql_that_is_asked_for_shows_the_last_error(shop: Path) -> None:
    replies = [*FIRST, UNKNOWN_COLUMN, "validate_sql", "repair_sql", RIGHT, "repair_sql", RIGHT]
    _, model = play(shop, *replies, config=SHORT | {"max_steps": 5, "repair": False})
    assert "Error: unknown_column:state" in model.sql_prompts()[1]
    assert "Error: the query may be wrong" in model.sql_prompts()[2]


@pytest.mark.parametrize(("asked", "given"), [({"n": 2}, 2), ({}, 3), ({"n": 99}, 4), ({"n": 0}, 1), ({"n": "x"}, 3)])
def test_get_table_samples_gives_a_list_of_n_rows(shop: Path, asked: dict[str, Any], given: int) -> None:
    wanted = action("get_table_samples", table="orders", **asked)
    episode, _ = play(shop, "extract_constraints", wanted, config=SHORT | {"max_steps": 2})
    (rows,) = observations(episode, "get_table_samples")
    assert isinstance(rows, list) and len(rows) == given
    assert rows[0] == {"order_id": 10, "customer_id": 1, "status": "shipped", "total": 20.0}


def test_get_table_samples_of_an_unknown_table_names_those_there_are(shop: Path) -> None:
    wanted = action("get_table_samples", table="order")
    episode, _ = play(shop, "extract_constraints", wanted, config=SHORT | {"max_steps": 2})
    error = {"error": "unknown_table:order", "tables": "customers, orders"}
    assert observations(episode, "get_table_samples") == [error]


def test_get_table_samples_gives_at_most_ten_rows_with_long_texts_cut(tmp_path: Path) -> None:
    script = "CREATE TABLE notes (text TEXT);" + f"INSERT INTO notes VALUES ('{'x' * 100}');" * 12
    notes = make_database(tmp_path / "notes.sqlite", script)
    wanted = action("get_table_samples", table="notes", n=12)
    episode, _ = play(notes, "extract_constraints", wanted, config=SHORT | {"max_steps": 2})
    (rows,) = observations(episode, "get_table_samples")
    assert len(rows) == 10 and rows[0]["text"] == "x" * 57 + "..."


def test_get_schema_gives_tables_columns_and_foreign_keys(shop: Path) -> None:
    episode, _ = play(shop, "extract_constraints", "get_schema", config=SHORT | {"max_steps": 2})
    (described,) = observations(episode, "get_schema")
    customers, orders = described["tables"]
    assert customers["columns"][0] == {"name": "customer_id", "type": "INTEGER", "primary_key": True}
    assert orders["name"] == "orders" and [column["name"] for column in orders["columns"]][2:] == ["status", "total"]
    key = {"columns": ["customer_id"], "table": "customers", "ref_columns": ["customer_id"]}
    assert orders["foreign_keys"] == [key] and customers["foreign_keys"] == []


@pytest.mark.parametrize("suggestions", [False, True])
def test_validate_sql_gives_two_keys_and_suggestions_only_by_a_switch(shop: Path, suggestions: bool) -> None:
    replies = [*FIRST, "SELECT COUNT(*) FROM ordrs", "validate_sql", "repair_sql", RIGHT, "validate_sql"]
    episode, _ = play(shop, *replies, config=SHORT | {"max_steps": 5, "suggestions": suggestions})
    third = {"suggestions": ["orders"]} if suggestions else {}
    refused, passed = observations(episode, "validate_sql")
    assert refused == {"valid": False, "reason": "unknown_table:ordrs"} | third
    assert passed == {"valid": True, "reason": "ok"}


def test_validate_constraints_checks_against_what_was_extracted(shop: Path) -> None:
    replies = [*FIRST, "SELECT * FROM orders", *CHECKS]
    episode, _ = play(shop, *replies, config=SHORT | {"max_steps": 4})
    assert observations(episode, "validate_constraints") == [{"valid": False, "reason": "missing_agg:COUNT"}]
    constraints = {"agg": "COUNT", "needs_group_by": False, "needs_order_by": False, "limit": None, "distinct": False}
    assert observations(episode, "extract_constraints") == [constraints]


def test_run_sql_gives_rows_columns_and_how_many_there_were(shop: Path) -> None:
    replies = [*FIRST, "SELECT order_id, total FROM orders", *CHECKS, "run_sql", "finish"]
    episode, _ = play(shop, *replies, question="List the orders.", config=SHORT)
    (ran,) = observations(episode, "run_sql")
    rows = [[10, 20.0], [11, 5.5], [12, 9.0], [13, 1.0]]
    assert ran["columns"] == ["order_id", "total"] and ran["rows"] == rows
    assert (ran["row_count"], ran["truncated"], ran["sql"]) == (4, False, "SELECT order_id, total FROM orders;")
    (done,) = observations(episode, "finish")
    assert done["answer"] == "[[10, 20.0], [11, 5.5], [12, 9.0], [13, 1.0]]"
    assert done["sql"] == "SELECT order_id, total FROM orders;" == episode.sql
    assert done["provenance"]["row_count"] == 4 and done["provenance"]["constraints"]["agg"] is None


def test_run_sql_keeps_twenty_rows_of_its_observation_and_all_in_the_episode(people: Path) -> None:
    replies = [*FIRST, "SELECT i FROM numbers", *CHECKS, "run_sql", "finish"]
    episode, _ = play(people, *replies, question="List the numbers.", config=SHORT)
    (ran,) = observations(episode, "run_sql")
    assert (len(ran["rows"]), ran["row_count"], len(episode.rows)) == (20, 2000, 2000)
    shown = episode.transcript.rpartition("Action: run_sql[{}]")[2].partition("Action: ")[0]
    assert "[[1], [2], [3], [4], [5]]" in shown and '"sql"' not in shown


def test_a_failed_run_says_what_the_engine_said(shop: Path) -> None:
    episode, _ = play(shop, *FIRST, FAILS_IN_ITS_RUN, *CHECKS, "run_sql", config=SHORT | {"max_steps": 5})
    failed = {"success": False, "error": "integer overflow", "error_kind": "other", "sql": f"{FAILS_IN_ITS_RUN};"}
    assert observations(episode, "run_sql") == [failed]


def test_sampling_is_off_by_default_and_reaches_every_call_when_it_is_on(shop: Path) -> None:
    replies = [*FIRST, UNKNOWN_COLUMN, "validate_sql", "repair_sql", RIGHT]
    _, greedy = play(shop, *replies, config=SHORT | {"max_steps": 4, "temperature": 0.7, "top_p": 0.8})
    assert [call["sampling"] for call in greedy.asked] == [None] * 6
    assert [call["seed"] for call in greedy.asked] == [None] * 6
    config = SHORT | {"max_steps": 4, "do_sample": True, "temperature": 0.7, "top_p": 0.8}
    _, sampled = play(shop, *replies, config=config)
    assert [call["sampling"] for call in sampled.asked] == [Sampling(0.7, 0.8)] * 6
    assert len({call["seed"] for call in sampled.asked}) == 6


def test_evidence_of_a_benchmark_is_shown_with_the_question(shop: Path) -> None:
    model = Listening([action("extract_constraints"), action("generate_sql"), RIGHT])
    question = Question(QUESTION, evidence="shipped means status 'shipped'")
    with SqliteDatabase(shop) as database:
        react_sql(question, database, model, build_config({"react": SHORT | {"max_steps": 2}}))
    asked = f"{QUESTION}\nEvidence: shipped means status 'shipped'"
    assert f"User question: {asked}" in model.asked[0]["messages"][1]["content"] and asked in model.sql_prompts()[0]


@pytest.mark.parametrize(
    ("name", "given", "lacks"),
    [
        ("validate_sql", "yes", "valid, reason: yes"),
        ("validate_constraints", {"valid": True}, "reason: {'valid': True}"),
        ("run_sql", {"rows": []}, "success: {'rows': []}"),
        ("link_schema", ["orders"], "schema_text: ['orders']"),
    ],
)
def test_a_tool_of_the_user_with_an_observation_of_another_shape_ends_the_episode(
    shop: Path, name: str, given: Any, lacks: str
) -> None:
    replies = [*FIRST, RIGHT, *CHECKS, "run_sql"]
    episode, _ = play(shop, *replies, tools={name: lambda state, args: given})
    assert (episode.finish, episode.error) == ("error", f"tool: {name}: its observation lacks {lacks}")


def test_a_query_is_not_mended_into_one_that_has_failed_already(shop: Path) -> None:
    first, repaired = "SELECT nam FROM customers", "SELECT name FROM customers"
    with SqliteDatabase(shop) as database:
        config = build_config({"repair": {"deterministic": True}})
        state = bootstrap(Question("Who are the customers?"), Resources(Listening([]), database), config)
        state.last_sql = first
        assert fixed(state, "unknown_column:nam") == repaired
        state.record({"step": 0, "action": "generate_sql", "args": {}, "observation": {"sql": f"{repaired} "}})
        refused = {"valid": False, "reason": "missing_agg:COUNT"}
        state.record({"step": 1, "action": "validate_constraints", "args": {}, "observation": refused})
        assert fixed(state, "unknown_column:nam") is None


class Frame:
    """Like a table of pandas: what compares two of them is neither true nor false."""

    def __eq__(self, other: object) -> Any:
        return np.array([True, False])

    __hash__ = object.__hash__


@pytest.mark.parametrize("given", [lambda: {(1, 2): "a key of two numbers"}, Frame])
def test_what_json_cannot_hold_is_a_text_in_an_observation(shop: Path, given: Callable[[], Any]) -> None:
    replies = ["extract_constraints", action("own"), action("own")]
    config = SHORT | {"max_steps": 3, "repeat_hint": True}
    episode, _ = play(shop, *replies, config=config, tools={"own": lambda state, args: given()})
    assert episode.finish == "empty" and len(observations(episode, "own")) == 2


def test_a_trace_keeps_what_a_tool_was_given_and_gave_whatever_it_does_to_it_later(shop: Path) -> None:
    seen: list[str] = []

    def own(state: Any, args: Any) -> Any:
        seen.append(args.pop("word"))
        return seen

    replies = ["extract_constraints", action("own", word="a"), action("own", word="b")]
    episode, _ = play(shop, *replies, config=SHORT | {"max_steps": 3}, tools={"own": own})
    assert observations(episode, "own") == [["a"], ["a", "b"]]
    assert [record["args"] for record in episode.trace if record.get("action") == "own"] == [
        {"word": "a"},
        {"word": "b"},
    ]


@pytest.mark.parametrize("given", [None, "COUNT", ["COUNT"]])
def test_constraints_of_the_user_that_are_no_dict_end_the_episode(shop: Path, given: Any) -> None:
    episode, _ = play(shop, "extract_constraints", tools={"extract_constraints": lambda state, args: given})
    said = f"tool: extract_constraints: its observation is no dict of constraints: {given}"
    assert (episode.error, episode.steps) == (said, 1)


def test_an_observation_whose_error_is_none_is_shown_whole(shop: Path) -> None:
    given = {"error": None, "rows": 4}
    episode, _ = play(
        shop,
        "extract_constraints",
        action("own"),
        config=SHORT | {"max_steps": 2},
        tools={"own": lambda state, args: given},
    )
    assert 'Observation: {"error": null, "rows": 4}' in episode.transcript


def test_the_model_is_shown_what_a_user_s_schema_tools_give(shop: Path) -> None:
    tools = {
        "get_schema": lambda state, args: "my own words",
        "link_schema": lambda state, args: {"schema_text": f"text {len(state.trace)}", "changed": True},
    }
    replies = ["extract_constraints", "get_schema", "link_schema", "generate_sql", RIGHT]
    episode, model = play(shop, *replies, config=SHORT | {"max_steps": 4}, tools=tools)
    assert "Observation: my own words" in episode.transcript and "Observation: text 5" in episode.transcript
    assert "text 5" in model.sql_prompts()[0] and "text 0" not in model.sql_prompts()[0]


def test_a_tool_that_no_action_can_name_is_refused(shop: Path) -> None:
    with pytest.raises(UsageError, match="the tool 'count-rows' cannot be called"):
        play(shop, tools={"count-rows": lambda state, args: 1})


def test_a_user_s_tool_says_nothing_about_the_current_query(shop: Path) -> None:
    replies = [*FIRST, RIGHT, action("own"), *CHECKS, "run_sql", "finish"]
    episode, _ = play(shop, *replies, tools={"own": lambda state, args: {"success": False}})
    assert episode.finish == "finish" and refused_candidates(episode.trace) == []


class Loop:
    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def run(self, question: Question, resources: Resources, config: Any) -> Any:
        raise NotImplementedError


def with_helper(helper: Any) -> Any:
    def loop(question: Question, resources: Resources, config: Any, *, limit: Any = helper) -> Any:
        return helper

    return loop


@pytest.mark.parametrize(
    "made",
    [
        lambda n: functools.partial(Loop.run, Loop(1), attempts=n),
        lambda n: functools.partial(with_helper, n),
        lambda n: Loop(n).run,
        lambda n: with_helper(n),
        lambda n: with_helper([len, max][n]),
        lambda n: with_helper(Loop(n).run),
    ],
)
def test_a_function_s_identity_holds_what_it_is_bound_to(made: Callable[[int], Any]) -> None:
    assert code_identity(made(0)) == code_identity(made(0)) != code_identity(made(1))
