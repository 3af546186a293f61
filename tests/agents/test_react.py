"""The reference loop against the specification: every rule is a scripted transcript in ``fixtures/react``.

A fixture names its rule and the section it comes from; ``docs/conformance.md`` lists them by section.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from nl2sql.agents import agent_tools
from nl2sql.agents.agent_tools import TOOLS
from nl2sql.agents.prompts import REACT_SYSTEM_PROMPT
from nl2sql.agents.react import bootstrap, parse_action, pending_override, react_sql
from nl2sql.agents.record import Episode
from nl2sql.agents.task import State
from nl2sql.config import CHECKS, PRESETS, ReactConfig, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures" / "react").glob("*.yaml"))
QUESTION = "How many orders were shipped?"


def play(case: dict[str, Any], shop: Path) -> tuple[Episode, ScriptedModel]:
    model = ScriptedModel(case["replies"])
    with SqliteDatabase(shop) as database:
        config = build_config(case.get("config", {}))
        return react_sql(case.get("question", QUESTION), database, model, config), model


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_loop_follows_the_specification(fixture: Path, shop: Path) -> None:
    case = yaml.safe_load(fixture.read_text(encoding="utf-8"))
    episode, _ = play(case, shop)
    done = [r for r in episode.trace if "action" in r]
    forced = [f"{r['requested_action']}->{r['forced_action']}" for r in episode.trace if "forced_action" in r]
    seen = {
        "finish": episode.finish,
        "sql": episode.sql.removesuffix(";"),
        "steps": episode.steps,
        "error": episode.error,
        "rows": [list(row) for row in episode.rows],
        "columns": list(episode.columns),
        "actions": [r["action"] for r in done],
        "forced": forced,
        "compliance": [name for name, on in episode.compliance.items() if on],
        "decisions": [f"{d['decision']}:{d['status']}" for d in episode.decision_log if d["status"] != "forced"],
        "calls": episode.usage.model_calls,
    }
    expect = dict(case["expect"])
    for index, text in expect.pop("observations", {}).items():
        assert text in str(done[index]["observation"]), done
    for index, keys in expect.pop("keys", {}).items():
        assert list(done[index]["observation"]) == keys
    for name, value in expect.pop("flags", {}).items():
        assert episode.flags.get(name) == value
    for text in expect.pop("history", []):
        assert text in episode.transcript
    assert episode.messages[1]["content"].startswith(expect.pop("history_starts", "User question: "))
    assert expect.pop("raw_contains", "") in episode.raw_sql
    assert expect.pop("sql_contains", "") in episode.sql
    assert expect.pop("sql_lacks", "\0") not in episode.sql
    assert {name: seen[name] for name in expect} == expect


def test_every_fixture_consumes_its_whole_script(shop: Path) -> None:
    for fixture in FIXTURES:
        case = yaml.safe_load(fixture.read_text(encoding="utf-8"))
        model = ScriptedModel([*case["replies"], "sentinel"])
        with SqliteDatabase(shop) as database:
            react_sql(case.get("question", QUESTION), database, model, build_config(case.get("config", {})))
        left = model.generate([{"role": "user", "content": "next"}], max_new_tokens=9)[0].text
        assert left == "sentinel", f"{fixture.name}: the loop stopped asking before {left!r}"


@pytest.mark.parametrize(
    ("repair", "regenerate", "extract", "requested"),
    list(itertools.product([True, False], [True, False], [True, False], ["", "finish", *TOOLS])),
)
def test_overrides_take_precedence_repair_then_regenerate_then_extract(
    shop: Path, repair: bool, regenerate: bool, extract: bool, requested: str
) -> None:
    with SqliteDatabase(shop) as database:
        state = bootstrap(Question(QUESTION), Resources(ScriptedModel([]), database), build_config({}))
    state.pending_repair_error = "unknown_column:orders.foo" if repair else None
    state.pending_force_generate = "clean_reject:junk" if regenerate else None
    state.constraints = None if extract else {}
    if repair:
        wanted = "repair_sql"
    elif regenerate:
        wanted = "generate_sql"
    elif extract and requested != "repair_sql":
        wanted = "extract_constraints"
    else:
        wanted = requested
    forced = pending_override(state, requested)
    assert (forced[0] if forced else requested) == wanted


def test_state_holds_exactly_the_specified_variables() -> None:
    named = [
        "history",
        "trace",
        "decision_log",
        "last_sql",
        "last_error",
        "last_run",
        "last_valid",
        "last_constraints_ok",
        "constraints",
        "pending_repair_error",
        "pending_force_generate",
        "clean_reject_retries",
    ]
    assert [field.name for field in fields(State) if field.name != "task"] == named


def test_defaults_are_the_specified_parameters() -> None:
    assert list(ReactConfig().model_dump().items())[:7] == [
        ("max_steps", 8),
        ("max_new_tokens", 256),
        ("do_sample", False),
        ("temperature", 0.2),
        ("top_p", 0.9),
        ("use_link_schema", True),
        ("max_clean_reject_retries", 1),
    ]


def test_no_improvement_is_on_in_the_preset_react() -> None:
    plain = ReactConfig().model_dump()
    beyond = CHECKS | PRESETS["react_plus"]["react"]
    assert all(plain[name] != value for name, value in beyond.items())


def test_bootstrap_writes_question_schema_and_links_before_step_0(shop: Path) -> None:
    with SqliteDatabase(shop) as database:
        state = bootstrap(Question(QUESTION), Resources(ScriptedModel([]), database), build_config({}))
    assert state.history[:2] == [f"User question: {QUESTION}", "Action: get_schema[{}]"]
    assert state.history[2] == f"Observation: {state.task.schema_text_full}"
    assert state.history[3].startswith('Action: link_schema[{"max_tables": 6}')
    assert state.history[4] == f"Observation: {state.task.schema_text_focus}"
    assert len(state.history) == 5
    assert state.constraints is None


def test_linking_off_keeps_the_whole_schema(shop: Path) -> None:
    with SqliteDatabase(shop) as database:
        config = build_config({"react": {"use_link_schema": False}})
        state = bootstrap(Question("cities"), Resources(ScriptedModel([]), database), config)
    assert state.task.schema_text_focus == state.task.schema_text_full
    assert state.history[3] == 'Action: link_schema[{"max_tables": 0}]'


def test_trace_has_only_the_three_record_shapes_and_log_entries_their_five_keys(shop: Path) -> None:
    shapes = [{"step", "llm"}, {"step", "action", "args", "observation"}]
    shapes.append({"step", "forced_action", "requested_action", "reason"})
    for fixture in FIXTURES:
        episode, _ = play(yaml.safe_load(fixture.read_text(encoding="utf-8")), shop)
        assert all(set(record) in shapes for record in episode.trace)
        assert all(set(entry) == {"step", "decision", "reason", "status", "data"} for entry in episode.decision_log)


def test_transcript_only_grows(shop: Path) -> None:
    prompts: list[str] = []

    class Recording(ScriptedModel):
        def generate(self, messages: Any, *, prefill: str = "", **options: Any) -> Any:
            if "Observation:" in prefill:
                prompts.append(prefill)
            return super().generate(messages, prefill=prefill, **options)

    case = yaml.safe_load((FIXTURES[0].parent / "pair_repair_regenerate.yaml").read_text(encoding="utf-8"))
    with SqliteDatabase(shop) as database:
        react_sql(QUESTION, database, Recording(case["replies"]), build_config(case["config"]))
    assert len(prompts) > 5
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(prompts))


def test_history_past_the_window_is_elided_oldest_first_and_counted(shop: Path) -> None:
    replies = ["Action: extract_constraints[{}]", *['Action: get_table_samples[{"table": "orders", "n": 4}]'] * 6, "x"]
    config = build_config({"react": {"max_steps": 7, "max_new_tokens": 100}})
    with SqliteDatabase(shop) as database:
        episode, whole = (
            react_sql(QUESTION, database, ScriptedModel(replies, context_window=window), config)
            for window in (400, 100_000)
        )
    assert episode.flags["elided_observations"] > 0 and "left out)" not in whole.transcript
    said = [int(count) for count in re.findall(r"\((-?\d+) characters left out\)", episode.transcript)]
    lengths = [len(text) for text in re.findall(r"(?<=^Observation: ).*", whole.transcript, re.MULTILINE)]
    assert said and said == [length for length in lengths if length in said][: len(said)]
    assert QUESTION in episode.messages[1]["content"]
    assert episode.error is None or "window" not in episode.error


def test_a_transcript_that_cannot_fit_is_an_error_of_the_episode(shop: Path) -> None:
    with SqliteDatabase(shop) as database:
        model = ScriptedModel(["x"] * 9, context_window=300)
        episode = react_sql(QUESTION, database, model, build_config({"react": {"max_new_tokens": 290}}))
    assert episode.finish == "error"
    assert episode.error is not None and episode.error.startswith("controller: window_exceeded")
    assert "than the 10 tokens that react.max_new_tokens=290 leaves of 300; lower it" in episode.error


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_empty_question_is_a_usage_error(shop: Path, text: str) -> None:
    with SqliteDatabase(shop) as database, pytest.raises(UsageError, match="question is empty"):
        react_sql(text, database, ScriptedModel([]))


def test_oversized_question_is_a_usage_error_with_numbers(shop: Path) -> None:
    with SqliteDatabase(shop) as database, pytest.raises(UsageError, match="50,000 characters"):
        react_sql("why " * 12_500, database, ScriptedModel([]))


def test_a_tool_of_the_user_joins_the_action_space_and_its_failure_is_data(shop: Path) -> None:
    replies = ["Action: extract_constraints[{}]", "Action: count_rows[{}]", "Action: boom[{}]"]

    def boom(state: State, args: Any) -> Any:
        raise RuntimeError("on purpose")

    with SqliteDatabase(shop) as database:
        tools = {"count_rows": lambda state, args: {"rows": 4}, "boom": boom}
        episode = react_sql(QUESTION, database, ScriptedModel(replies), tools=tools)
    assert [r["observation"] for r in episode.trace if r.get("action") == "count_rows"] == [{"rows": 4}]
    assert episode.error == "tool: boom: RuntimeError: on purpose"


def test_a_model_that_fails_inside_a_tool_is_a_failure_of_the_model(shop: Path, monkeypatch: Any) -> None:
    def gone(*_: Any) -> Any:
        raise ModelError("server gone")

    replies = ["Action: extract_constraints[{}]", "Action: ask_twice[{}]"]
    with SqliteDatabase(shop) as database:
        asked = react_sql(QUESTION, database, ScriptedModel(replies), tools={"ask_twice": gone})
        monkeypatch.setattr(agent_tools, "link", gone)  # it counts tokens, which a server may do
        linked = react_sql(QUESTION, database, ScriptedModel(replies))
    assert [(e.error, e.finish) for e in (asked, linked)] == [("model: server gone", "error")] * 2


def test_a_tool_of_the_user_is_named_to_the_model_with_what_it_is_for_and_takes(shop: Path) -> None:
    def look_up(state: State, args: Any) -> Any:
        """What a word means in this company.

        The second line is not for the model.
        """
        return "nothing"

    look_up.parameters = {"type": "object", "properties": {"word": {"type": "string"}}}  # type: ignore[attr-defined]
    with SqliteDatabase(shop) as database:
        shown = react_sql(QUESTION, database, ScriptedModel([]), tools={"look_up": look_up}).messages[0]["content"]
        plain = react_sql(QUESTION, database, ScriptedModel([]), tools={"run_sql": TOOLS["run_sql"]}).messages[0]
    added = '\n\nMore tools:\nlook_up[{"word": "..."}] - What a word means in this company.'
    assert shown == REACT_SYSTEM_PROMPT + added
    assert plain["content"] == REACT_SYSTEM_PROMPT, "a built-in tool in other hands has its line already"


RIGHT = "SELECT count(*) FROM orders WHERE status = 'shipped'"


def to_the_end() -> list[str]:
    steps = ("extract_constraints", "validate_sql", "validate_constraints", "run_sql", "finish", "finish", "finish")
    return [f"Action: {steps[0]}[{{}}]", "Action: generate_sql[{}]", RIGHT, *(f"Action: {s}[{{}}]" for s in steps[1:])]


def test_a_gate_of_the_user_blocks_an_action_and_says_why(shop: Path) -> None:
    def twice(state: State, action: str, args: Any) -> str | None:
        runs = sum(record.get("action") == "run_sql" for record in state.trace)
        return "blocked: run it twice" if action == "finish" and runs < 2 else None

    with SqliteDatabase(shop) as database:
        episode = react_sql(QUESTION, database, ScriptedModel(to_the_end()), gates={"twice": twice})
    refused = [r["observation"] for r in episode.trace if r.get("action") == "finish"]
    assert refused[0] == {"error": "blocked: run it twice"} and episode.finish != "finish"
    blocked = [entry["reason"] for entry in episode.decision_log if entry["status"] == "blocked"]
    assert blocked[0] == "blocked: run it twice"


def test_a_gate_of_the_user_takes_the_place_of_the_loop_s_own(shop: Path) -> None:
    replies = ["Action: extract_constraints[{}]", "Action: finish[{}]"]
    with SqliteDatabase(shop) as database:
        gates = {"finish_gate": lambda state, action, args: None}
        episode = react_sql(QUESTION, database, ScriptedModel(replies), gates=gates)
    assert episode.finish == "finish" and episode.compliance["finish_without_run"]


@pytest.mark.parametrize(
    ("gate", "error"),
    [
        (lambda state, action, args: 1 / 0, "tool: gate mine: ZeroDivisionError: division by zero"),
        (
            lambda state, action, args: {"no": 1},
            "tool: gate mine: it gave \"{'no': 1}\"; expected why the action is blocked, or None",
        ),
    ],
)
def test_a_gate_of_the_user_that_fails_is_data(shop: Path, gate: Any, error: str) -> None:
    with SqliteDatabase(shop) as database:
        episode = react_sql(QUESTION, database, ScriptedModel(to_the_end()), gates={"mine": gate})
    assert (episode.finish, episode.error) == ("error", error)


@pytest.mark.parametrize(
    ("text", "action", "args"),
    [
        ('Action: run_sql[{"a": "x]y"}]', "run_sql", {"a": "x]y"}),
        ("Action: run_sql[]", "run_sql", {}),
        ('Action:finish [ {"a": [1, {"b": 2}]} ]', "finish", {"a": [1, {"b": 2}]}),
        ("Action: run_sql[{]", "", {}),
        ("Action: run_sql", "", {}),
        ("Action: run_sql[[1]]", "", {}),
        ("Action: good[{}]\nAction: broken[{", "good", {}),
        ("", "", {}),
    ],
)
def test_parse_action(text: str, action: str, args: dict[str, Any]) -> None:
    assert parse_action(text)[:2] == (action, args)


def test_episode_shows_itself_in_a_notebook_with_all_text_escaped(shop: Path) -> None:
    with SqliteDatabase(shop) as database:
        episode = react_sql("<script>alert(1)</script> how many?", database, ScriptedModel(["<b>"] * 20))
    shown = episode._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "&lt;b&gt;" in shown
