"""Conversations: what the next question is asked with, what is kept, and what a first question costs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import nl2sql
from nl2sql.agents.controllers import answer
from nl2sql.agents.record import Episode
from nl2sql.config import Config, build_config
from nl2sql.errors import UsageError
from nl2sql.interfaces import Database, Question, Resources, Turn
from nl2sql.models.scripted import ScriptedModel
from nl2sql.sessions.conversation import Conversation, local_owner, reply_of
from nl2sql.sessions.sqlite_store import SqliteStore
from nl2sql.sessions.stores import MemoryStore
from nl2sql.sessions.turns import checked_owner

CONCAT = build_config({"session": {"resolve": "concat"}})
HOW_MANY, IN_BERN = "How many customers are there?", "What about those in Bern?"
REPLIES = {
    HOW_MANY: [" COUNT(*) FROM customers"],
    IN_BERN: [" COUNT(*) FROM customers WHERE city = 'Bern'"],
    "What about their names?": [" nam FROM customers"],
    "Which names are there?": [" name FROM customers ORDER BY name"],
}


@pytest.fixture
def database(shop: Path) -> Iterator[Database]:
    with closing(nl2sql.SqliteDatabase(shop)) as opened:
        yield opened


def conversation(database: Database, **options: Any) -> Conversation:
    return Conversation(database, ScriptedModel(REPLIES), "single_shot", **{"config": CONCAT, **options})


def test_a_follow_up_is_asked_with_the_turns_before_it(database: Database) -> None:
    talk = conversation(database)
    first, second = talk.ask(HOW_MANY), talk.ask(IN_BERN)
    assert (first.rows, second.rows) == (((3,),), ((2,),))
    session = second.flags["session"]
    assert session["is_followup"] is True and session["turn"] == 2
    assert session["session_id"] == talk.session_id == first.flags["session"]["session_id"]
    assert session["resolved_query"] == f"{HOW_MANY} {IN_BERN}"
    assert any(session["resolved_query"] in message["content"] for message in second.calls[-1]["messages"])
    kept = [(turn.user_query, turn.resolved_query, turn.results_summary) for turn in talk.history]
    assert kept == [
        (HOW_MANY, HOW_MANY, "1 rows, columns: COUNT(*)"),
        (IN_BERN, f"{HOW_MANY} {IN_BERN}", "1 rows, columns: COUNT(*)"),
    ]
    assert [turn.sql for turn in talk.history] == [first.sql, second.sql]


def test_no_value_of_the_database_enters_the_history(database: Database) -> None:
    talk = conversation(database)
    assert talk.ask("Which names are there?").rows[0] == ("Ada",)
    assert "Ada" not in str(talk.history)


def test_a_first_question_costs_what_it_costs_without_a_session(database: Database) -> None:
    alone = answer(HOW_MANY, database, ScriptedModel(REPLIES), "single_shot", CONCAT)
    first = conversation(database).ask(HOW_MANY)
    assert [call["messages"] for call in first.calls] == [call["messages"] for call in alone.calls]
    assert (first.usage.prompt_tokens, first.usage.model_calls) == (alone.usage.prompt_tokens, alone.usage.model_calls)


def test_a_failure_does_not_enter_the_history(database: Database) -> None:
    talk = conversation(database)
    talk.ask(HOW_MANY)
    assert talk.ask("What about their names?").error
    assert talk.ask("A question without replies?").error
    late = Conversation(database, talk.model, fails_late)
    late.ask(HOW_MANY)
    assert late.history == []
    assert [turn.user_query for turn in talk.history] == [HOW_MANY]
    assert talk.ask(IN_BERN).flags["session"]["turn"] == 2


def test_a_question_that_was_asked_back_does_not_enter_the_history(database: Database) -> None:
    settings = build_config({"session": {"clarify": True}})
    asked_back = conversation(database, config=settings).ask("Is it warm outside?")
    assert asked_back.finish == "clarification_needed" and "customers" in asked_back.flags["clarification"]
    talk = Conversation(database, ScriptedModel([]), asks_back)
    talk.ask("Which?")
    assert talk.history == []


def test_talk_is_answered_and_is_no_turn(database: Database) -> None:
    talk = conversation(database)
    talk.ask(HOW_MANY)
    thanked = talk.ask("Thanks!")
    assert reply_of(thanked)["text"] == thanked.flags["talk"] and "customers" in thanked.flags["talk"]
    assert [turn.user_query for turn in talk.history] == [HOW_MANY]
    assert talk.ask(IN_BERN).flags["session"]["resolved_query"] == f"{HOW_MANY} {IN_BERN}"


def asks_back(question: Question, resources: Resources, config: Config) -> Episode:
    """A loop of one's own that asks back with a query at hand."""
    return Episode(question, "", sql="SELECT 1 AS n", columns=("n",), rows=((1,),), finish="clarification_needed")


def fails_late(question: Question, resources: Resources, config: Config) -> Episode:
    """A loop of one's own whose query runs, and which gives it up all the same."""
    return Episode(question, "", sql="SELECT 1 AS n", columns=("n",), rows=((1,),), error="controller: too late")


def only_writes(question: Question, resources: Resources, config: Config) -> Episode:
    """A loop of one's own that does not run what it writes."""
    return Episode(question, "", sql=resources.model.generate([], max_new_tokens=50)[0].text)


def test_a_loop_of_one_s_own_is_kept_where_its_sql_runs(database: Database) -> None:
    model = ScriptedModel({"one?": ["SELECT 1 AS n"], "two?": ["SELECT x FROM nowhere"]})
    talk = Conversation(database, model, only_writes)
    talk.ask("one?"), talk.ask("two?")
    assert [turn.results_summary for turn in talk.history] == ["1 rows, columns: n"]


def test_a_question_that_was_given_up_is_not_kept(database: Database) -> None:
    cancel = threading.Event()
    cancel.set()
    talk = conversation(database)
    assert "cancelled" in str(talk.ask(HOW_MANY, cancel=cancel).error) and talk.history == []


@pytest.mark.parametrize(
    ("text", "wanted"), [("", "empty"), (" \n", "empty"), ("x" * 1_000_000, "1,000,000 characters")]
)
def test_a_question_that_can_be_none_is_refused(text: str, wanted: str, database: Database) -> None:
    with pytest.raises(UsageError, match=wanted):
        conversation(database).ask(text)


def test_a_session_goes_on_from_its_store_and_only_for_its_owner(database: Database, tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        conversation(database, store=store, session_id="monday", owner="ada").ask(HOW_MANY)
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        other = conversation(database, store=store, session_id="monday", owner="ben").ask(IN_BERN)
        again = conversation(database, store=store, session_id="monday", owner="ada").ask(IN_BERN)
    assert other.flags["session"]["is_followup"] is False
    assert again.flags["session"]["resolved_query"] == f"{HOW_MANY} {IN_BERN}"


def test_a_session_over_another_database_is_refused(database: Database) -> None:
    store = MemoryStore()
    store.add("local", "s", Turn("How many singers?", sql="SELECT count(*) FROM singer"))
    with pytest.raises(UsageError, match=r"'s' is over another database than 'shop' .*singer"):
        conversation(database, store=store, session_id="s")


@pytest.mark.parametrize(("tables", "refused"), [(("singer", "customers"), False), (("customers", "singer"), True)])
def test_the_last_turn_says_which_database_a_session_is_over(
    tables: tuple[str, str], refused: bool, database: Database
) -> None:
    store = MemoryStore()
    for table in tables:
        store.add("local", "s", Turn(f"How many of {table}?", sql=f"SELECT count(*) FROM {table}"))
    if refused:
        with pytest.raises(UsageError, match="is over another database"):
            conversation(database, store=store, session_id="s")
    else:
        assert len(conversation(database, store=store, session_id="s").history) == 2


def test_a_reset_forgets_the_session_and_begins_another(database: Database) -> None:
    store = MemoryStore()
    talk = conversation(database, store=store)
    talk.ask(HOW_MANY)
    before = talk.session_id
    talk.reset()
    assert talk.session_id != before and store.history("local", before) == [] == talk.history
    assert talk.ask(IN_BERN).flags["session"]["is_followup"] is False


def test_a_notebook_shows_what_was_understood_and_runs_no_markup(database: Database) -> None:
    talk = conversation(database)
    talk.ask(HOW_MANY), talk.ask(IN_BERN), talk.ask("<script>alert(1)</script>")
    page = talk._repr_html_()
    assert f"understood as: {HOW_MANY} {IN_BERN}" in page and "<script>" not in page and "&lt;script&gt;" in page
    assert f"over {database.name}: 2 turns" in repr(talk)


def test_a_new_session_has_a_name_that_nobody_can_guess(database: Database) -> None:
    names = {conversation(database).session_id for _ in range(100)}
    assert len(names) == 100 and all(re.fullmatch("[0-9a-f]{32}", name) for name in names)


def test_users_of_a_machine_are_different_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = []
    for name in ("ada", "Jürgen", "Järgen", "x" * 200, "x" * 201, "a b"):
        monkeypatch.setenv("LOGNAME", name)
        owners.append(checked_owner(local_owner()))
    assert owners[0] == "ada" and len(set(owners)) == len(owners)


@pytest.mark.parametrize("dialect", ["duckdb", "postgres", "mysql"])
def test_a_conversation_is_held_on_other_engines(dialect: str, engine: Callable[[str], Database]) -> None:
    talk = conversation(engine(dialect), config=CONCAT)
    first, second = talk.ask(HOW_MANY), talk.ask(IN_BERN)
    assert (first.rows, second.rows) == (((2,),), ((1,),)), second.error
    assert [turn.results_summary[:6] for turn in talk.history] == ["1 rows"] * 2


def test_a_question_that_was_given_up_is_no_turn_even_if_an_answer_came(database: Database) -> None:
    cancel = threading.Event()

    def late(question: Question, resources: Resources, config: Config) -> Episode:
        cancel.set()
        return Episode(question, "", sql="SELECT 1 AS n", columns=("n",), rows=((1,),))

    talk = Conversation(database, ScriptedModel([]), late)
    assert talk.ask(HOW_MANY, cancel=cancel).rows == ((1,),)
    assert not talk.history
