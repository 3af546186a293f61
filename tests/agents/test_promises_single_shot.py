"""What the single-shot control promises: the loop's own first generation, once, and nothing of the loop besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loop_steps import NO_COUNT, QUESTION, RIGHT, UNKNOWN_COLUMN, Listening, action
from people import make_database

from nl2sql.agents.react import react_sql
from nl2sql.agents.record import Episode
from nl2sql.agents.single_shot import single_shot
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Question, Resources, Sampling

EIGHT = "".join(f"CREATE TABLE thing{n} (id INTEGER PRIMARY KEY, colour{n} TEXT);" for n in range(8))


def ask(
    file: Path, *replies: str, question: Question | None = None, config: dict[str, Any] | None = None
) -> tuple[Episode, Listening]:
    model = Listening(list(replies))
    with SqliteDatabase(file) as database:
        resources = Resources(model, database)
        return single_shot(question or Question(QUESTION), resources, build_config(config or {})), model


@pytest.mark.parametrize("linking", [True, False])
def test_its_call_is_the_loop_s_first_generate_sql(tmp_path: Path, linking: bool) -> None:
    things = make_database(tmp_path / "things.sqlite", EIGHT)
    question = Question("How many of thing7 have a colour7?", evidence="Colours are words.")
    settings = {"react": {"use_link_schema": linking, "max_steps": 2, "vanilla": False, "max_new_tokens": 99}}
    alone, control = ask(
        things, " COUNT(*) FROM thing7", question=question, config=settings | {"single_shot": {"max_new_tokens": 99}}
    )
    loop = Listening([action("extract_constraints"), action("generate_sql"), RIGHT])
    with SqliteDatabase(things) as database:
        react_sql(question, database, loop, build_config(settings))
    assert control.asked == [{"n": 1} | call for call in loop.sql_calls()] and len(control.asked) == 1
    assert "use COUNT" in alone.messages[1]["content"] and alone.messages == control.asked[0]["messages"]


def test_its_sql_is_guarded_and_its_raw_text_untouched(shop: Path) -> None:
    raw = " COUNT(*) FROM ORDERS LIMIT 5; -- so"
    episode, _ = ask(shop, raw)
    assert (episode.sql, episode.raw_sql, episode.prefill) == ("SELECT COUNT(*) FROM orders LIMIT 5;", raw, "SELECT")
    assert (episode.finish, episode.rows, episode.steps, episode.error) == ("answered", ((4,),), 1, None)
    assert episode.trace == [{"step": 0, "llm": raw}] and episode.controller == "single_shot"
    (logged,) = episode.decision_log
    assert (logged["reason"], logged["status"], logged["data"]) == ("ok", "accept", {"candidates": 1})


def test_its_guardrails_can_be_left_out(shop: Path) -> None:
    raw = " COUNT(*) FROM ORDERS LIMIT 5"
    episode, _ = ask(shop, raw, config={"single_shot": {"guardrails": False}})
    assert episode.sql == f"SELECT{raw}"


def test_an_output_that_the_guardrails_reject_is_no_answer_and_the_model_s_fault(shop: Path) -> None:
    episode, model = ask(shop, "no idea")
    assert (episode.sql, episode.finish, len(model.asked)) == ("", "empty", 1)
    assert episode.error == "model: clean_reject:no_select" and (episode.raw_sql, episode.prefill) == (
        "no idea",
        "SELECT",
    )
    (refused,) = episode.flags["rejected"]
    assert refused == {"step": 0, "by": "guardrails", "sql": "SELECTno idea", "reason": "clean_reject:no_select"}
    assert episode.decision_log[0]["status"] == "reject"


def test_nothing_is_repaired(shop: Path) -> None:
    episode, model = ask(shop, UNKNOWN_COLUMN, RIGHT)
    assert (episode.error or "").startswith("database: no such column") and len(model.asked) == 1


def test_a_model_that_fails_is_an_error_of_the_model(shop: Path) -> None:
    episode, _ = ask(shop)
    assert episode.finish == "error" and (episode.error or "").startswith("model: ")


@pytest.mark.parametrize(
    ("raws", "wanted"),
    [
        ([NO_COUNT, RIGHT, " COUNT(order_id) FROM orders WHERE status = 'shipped'"], RIGHT),
        ([UNKNOWN_COLUMN, RIGHT, "no idea"], RIGHT),
        ([NO_COUNT, RIGHT, "no idea"], NO_COUNT),
        (["no idea", UNKNOWN_COLUMN, UNKNOWN_COLUMN], UNKNOWN_COLUMN),
    ],
)
def test_of_several_samples_the_largest_group_with_the_same_rows_wins(shop: Path, raws: list[str], wanted: str) -> None:
    config = {"single_shot": {"samples": 3, "temperature": 0.9, "top_p": 0.5}}
    episode, model = ask(shop, *raws, config=config)
    assert episode.sql == f"{wanted};"
    (call,) = model.asked
    assert (call["n"], call["sampling"]) == (3, Sampling(0.9, 0.5))
    assert [record["llm"] for record in episode.trace] == raws


def test_a_call_that_fails_is_no_accepted_query(shop: Path) -> None:
    episode, _ = ask(shop)
    assert episode.finish == "error" and str(episode.error).startswith("model: ")
    assert [(entry["reason"], entry["status"]) for entry in episode.decision_log] == [(episode.error, "reject")]
