"""Any controller in a conversation: what it is handed, what is counted, and what the episode says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sessions.sales import DATED, FIRST, TOP, follow_up

from nl2sql.agents.controllers import NamedController, get_controller, run_episode
from nl2sql.agents.record import Episode
from nl2sql.config import Config, build_config
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel
from nl2sql.sessions.conversation import ADAPTER_SCALE, conversational

Q4 = DATED.sql.replace("BETWEEN '2023-07-01' AND '2023-09-30'", ">= '2023-10-01' AND sold_on < '2024-01-01'")


def asked(named: NamedController, question: Question, database, *replies: str, **session) -> Episode:
    model = ScriptedModel(list(replies) or ["SELECT 1"], on_exhausted="repeat")
    settings = build_config({"session": {"resolve": "rules", **session}})
    in_conversation = replace(named, run=conversational(named.run))
    return run_episode(in_conversation, question, lambda: Resources(model, database), settings)


@pytest.fixture
def seen():
    """An own loop that keeps what it is handed."""
    handed: list[Question] = []

    def loop(question: Question, resources: Resources, config: Config) -> Episode:
        handed.append(question)
        return Episode(question, "loop", sql="SELECT 1")

    return handed, get_controller(loop)


def test_workflow_with_followup(sales):
    """The specification's test: the second question is a follow-up, and its resolved text holds Q4."""
    named = get_controller("single_shot")
    first = asked(named, Question("Top 10 products in Q3"), sales, TOP)
    second = asked(named, follow_up("What about Q4?", DATED), sales)
    assert first.flags["session"]["is_followup"] is False
    assert second.flags["session"]["is_followup"] is True
    assert second.flags["session"]["resolved_query"] == "Top 10 products in Q4"
    assert second.question.text == "What about Q4?" and second.sql.rstrip(";") == Q4


def test_without_a_history_the_controller_sees_the_very_same_question_at_no_cost(seen, sales):
    handed, named = seen
    question = Question("What about Q4?")
    episode = asked(named, question, sales)
    assert handed[0] is question and episode.calls == [] and episode.usage.model_calls == 0
    assert episode.flags["session"] == {
        "session_id": "",
        "turn": 1,
        "is_followup": False,
        "resolved_query": "What about Q4?",
        "evidence": [],
        "strategy": "none",
        "fallback": "",
    }


def test_the_episode_says_what_was_understood(seen, sales):
    handed, named = seen
    question = follow_up("What about Q4?", DATED, session_id="abc", turn=2)
    session = asked(named, question, sales).flags["session"]
    assert (session["session_id"], session["turn"], session["strategy"]) == ("abc", 2, "period")
    assert session["evidence"] == [{"kind": "period", "text": "Q4"}]
    assert session["edited_sql"] == Q4 and session["resolved_query"] == "Top 10 products in Q4" and not handed


def test_the_loop_and_the_control_get_the_same_resolved_question(sales):
    question, said = follow_up("Show me by region"), ["Top 10 products in Q3 by region", "SELECT name FROM regions"]
    for name in ("single_shot", "react_plus", "candidates"):
        episode = asked(get_controller(name), question, sales, *said, resolve="rewrite")
        assert episode.flags["session"]["resolved_query"] == said[0]


def test_calls_of_the_resolution_are_counted_and_stand_first(sales):
    named = get_controller("single_shot")
    episode = asked(named, follow_up("What about Q4?"), sales, "Top 10 products in Q4", Q4, resolve="rewrite")
    assert [call["kind"] for call in episode.calls] == ["resolve", "sql"]
    assert episode.usage.model_calls == 2
    assert episode.usage.prompt_tokens == sum(call["usage"]["prompt_tokens"] for call in episode.calls)


def test_what_could_not_be_made_whole_is_asked_beside_the_previous_sql(sales):
    episode = asked(get_controller("single_shot"), follow_up("And what else?"), sales, TOP)
    assert episode.flags["session"]["strategy"] == "beside"
    assert f"Previous query:\n{TOP}" in episode.messages[1]["content"]


class Adapted(ScriptedModel):
    """A model that can change how much its adapter counts."""

    def __init__(self, *replies: str, plain: ScriptedModel) -> None:
        super().__init__(replies, on_exhausted="repeat")
        self.adapter_at = {ADAPTER_SCALE: plain}.__getitem__


@pytest.mark.parametrize(
    ("text", "asks"), [("And what else?", "plain"), ("How many products are there?", "adapted"), ("Q4?", "nobody")]
)
def test_only_beside_a_previous_query_the_adapter_counts_less(text: str, asks: str, sales) -> None:
    plain, other = ScriptedModel([TOP], on_exhausted="repeat"), "SELECT COUNT(*) FROM products"
    named = get_controller("single_shot")
    config = build_config({"session": {"resolve": "rules"}, "constrain": "plain"})
    in_conversation = replace(named, run=conversational(named.run))
    resources = Resources(Adapted(other, plain=plain), sales)
    episode = run_episode(in_conversation, follow_up(text, DATED), lambda: resources, config)
    answers = {"plain": TOP, "adapted": other, "nobody": Q4}
    assert episode.sql.rstrip(";") == answers[asks].rstrip(";")
    assert episode.usage.model_calls == (asks != "nobody"), "counted, whoever answers"


def test_another_time_is_answered_without_a_call(sales):
    episode = asked(get_controller("react"), follow_up("What about Q4?", DATED), sales)
    assert (episode.controller, episode.finish, episode.error) == ("react", "answered", None)
    assert episode.rows == sales.run(Q4).rows and episode.usage.model_calls == 0
    assert all(set(record) == {"step", "llm"} for record in episode.trace)


@pytest.mark.parametrize("clarify", [True, False])
def test_nothing_that_is_known_is_asked_back_by_switch(clarify, seen, sales):
    handed, named = seen
    switch = {"clarify": True} if clarify else {}
    episode = asked(named, Question("Who won the match?"), sales, **switch)
    assert (episode.finish == "clarification_needed") is clarify and bool(handed) is not clarify
    if clarify:
        assert "regions, products, sales" in episode.flags["clarification"]
    known = asked(named, Question("Is Anvil there?"), sales, clarify=True)
    assert known.finish == "answered"


@pytest.mark.parametrize("said", ["Thanks!", "hello", "why?", "ok great", "No, thank you very much", "That's perfect"])
@pytest.mark.parametrize("history", [(), (FIRST,)], ids=["first", "later"])
def test_what_asks_nothing_of_a_database_is_answered_in_words(said, history, seen, sales):
    handed, named = seen
    episode = asked(named, Question(said, history=history), sales)
    assert (episode.finish, episode.sql, episode.error, episode.calls, handed) == ("talk", "", None, [], [])
    assert "regions, products, sales" in episode.flags["talk"]
    assert episode.flags["session"]["is_followup"] is False


@pytest.mark.parametrize(
    "asks", ["Thanks, and by region?", "Why are there red ones?", "ok, how many?", "no, all", "is it?"]
)
def test_a_polite_question_is_one(asks, seen, sales):
    handed, named = seen
    assert asked(named, Question(asks), sales).sql == "SELECT 1" and len(handed) == 1


def test_an_own_loop_keeps_its_name_and_identity(seen):
    _, named = seen
    wrapped = get_controller(conversational(named.run))
    assert wrapped.name == named.name


def test_the_first_turn_is_no_dearer_than_a_question_of_its_own(sales):
    question, named = Question("Top 10 products in Q3"), get_controller("single_shot")
    plain = run_episode(named, question, lambda: Resources(ScriptedModel([TOP]), sales), Config())
    assert asked(named, question, sales, TOP).usage.prompt_tokens == plain.usage.prompt_tokens
    assert FIRST.sql == TOP
