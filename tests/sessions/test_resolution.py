"""A follow-up becomes a whole question by the strategy of ``session.resolve``, or is handed on as asked."""

from __future__ import annotations

import pytest
from sessions.sales import DATED, FIRST, TOP, follow_up

from nl2sql.agents import prompts
from nl2sql.config import Config, build_config
from nl2sql.interfaces import Question, Resources, Turn
from nl2sql.models.scripted import ScriptedModel
from nl2sql.sessions.resolution import resolve, said_whole, strategy_of, turn_meant

RULES = build_config({"session": {"resolve": "rules"}})
COUNTED = Turn("How many products are red?", "", "SELECT COUNT(*) FROM products WHERE colour = 'red'")


def resources(database, *replies: str) -> Resources:
    return Resources(ScriptedModel(list(replies)), database)


def config(strategy: str, **session: object) -> Config:
    return build_config({"session": {"resolve": strategy, **session}})


def test_resolve_query_standalone(sales):
    """The specification's test: without a history a question is what it was."""
    question = Question("Top 10 products by revenue")
    assert resolve(question, resources(sales), Config()).question is question


def test_resolve_query_followup(sales):
    """The specification's test, and its first example verbatim."""
    resolution = resolve(follow_up("What about Q4?", DATED), resources(sales), RULES)
    assert resolution.is_followup and resolution.resolved_query == "Top 10 products in Q4"
    assert "Q4" in resolution.resolved_query and "products" in resolution.resolved_query
    assert resolution.edited_sql == DATED.sql.replace(
        "BETWEEN '2023-07-01' AND '2023-09-30'", ">= '2023-10-01' AND sold_on < '2024-01-01'"
    )


def test_the_specification_s_third_example(sales):
    """A model that writes it whole is heard; beside the previous query the question goes on as it is."""
    whole = "Top 10 products in Q3 by region"
    assert resolve(follow_up("Show me by region"), resources(sales, whole), config("rewrite")).resolved_query == whole
    asked = resolve(follow_up("Show me by region"), resources(sales), RULES)
    assert asked.is_followup and asked.question.previous_sql == TOP


@pytest.mark.parametrize("strategy", ["none", "concat", "rewrite", "rules", "oracle"])
@pytest.mark.parametrize("text", ["Which products are red?", "What about the number of sales in quarter 4?"])
def test_a_question_that_stands_alone_is_handed_on_as_the_same_object(strategy, text, sales):
    question = follow_up(text, standalone=text)
    resolution = resolve(question, resources(sales, text.lower()), config(strategy))
    assert resolution.question is question
    assert (resolution.is_followup, resolution.strategy) == (False, "none")
    assert len(resolution.calls) == (strategy == "rewrite"), "the model decides"


def test_beside_leaves_it_to_the_model_whether_a_question_follows_on(sales):
    question = follow_up("Which products are red?")
    resolution = resolve(question, resources(sales), config("beside"))
    assert (resolution.is_followup, resolution.calls, resolution.edited_sql) == (False, (), "")
    assert (resolution.question.text, resolution.question.previous_sql) == (question.text, TOP)


def test_none_recognises_and_changes_nothing(sales):
    question = follow_up("What about Q4?")
    resolution = resolve(question, resources(sales), config("none"))
    assert resolution.question is question and resolution.is_followup and resolution.evidence


def test_concat_puts_the_shown_questions_before_it(sales):
    turns = [Turn(f"Question {n}?", sql=TOP) for n in range(5)]
    resolution = resolve(follow_up("And Q4?", *turns), resources(sales), config("concat", shown=2))
    assert resolution.resolved_query == "Question 3? Question 4? And Q4?"


def test_oracle_is_the_benchmark_s_own_text(sales):
    question = follow_up("and again", standalone="Top 10 products in Q4")
    assert resolve(question, resources(sales), config("oracle")).resolved_query == "Top 10 products in Q4"


@pytest.mark.parametrize(("shows", "shown"), [("resolved_query", "Q: RESOLVED"), ("user_query", "Q: USER")])
def test_rewrite_asks_the_specification_s_prompt_with_the_exchanges_quoted(shows, shown, sales):
    turns = [Turn("first"), Turn("USER 1", "RESOLVED 1", "SELECT 1"), Turn("USER 2", "RESOLVED 2", "SELECT 2"), FIRST]
    asked = resources(sales, "Top 10 products in Q4\nand more")
    resolution = resolve(follow_up("What about Q4?", *turns), asked, config("rewrite", shows=shows))
    [call] = resolution.calls
    system, user = call["messages"]
    assert system["content"].startswith("You are a query resolution assistant")
    assert [message["role"] for message in call["messages"]] == ["system", "user"]
    assert f"{shown} 1\nSQL: SELECT 1\n{shown} 2\nSQL: SELECT 2\nQ: Top 10" in user["content"]
    assert "first" not in user["content"] and "User's new query: What about Q4?" in user["content"]
    assert resolution.resolved_query == "Top 10 products in Q4" and not resolution.fallback
    assert call["kind"] == "resolve"


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("smollm2-135m", "rules"),
        ("smollm2-135m+smollm2-135m-sql", "rules"),
        ("gemma3-270m", "rules"),
        ("qwen2.5-coder-1.5b+qwen2.5-coder-1.5b-sql", "rules"),
        ("qwen2.5-coder-0.5b", "beside"),
        ("gpt-oss-120b", "beside"),
    ],
)
def test_auto_asks_beside_the_previous_query_with_each_model_that_can(model, strategy, sales):
    named = ScriptedModel([], name=model)
    assert strategy_of("auto", named) == strategy and strategy_of("concat", named) == "concat"


@pytest.mark.parametrize("strategy", ["auto", "beside", "rewrite", "rules"])
def test_another_time_is_answered_by_the_previous_query_without_a_call(strategy, sales):
    resolution = resolve(follow_up("What about Q4?", DATED), resources(sales), config(strategy))
    assert "'2023-10-01'" in resolution.edited_sql and resolution.question.previous_sql == resolution.edited_sql
    assert (resolution.resolved_query, resolution.calls, resolution.strategy) == ("Top 10 products in Q4", (), "period")
    assert resolution.is_followup and [sign.kind for sign in resolution.evidence] == ["period"]


def test_the_label_of_the_quoted_questions_is_no_part_of_a_rewrite(sales):
    said = resources(sales, "Q: Top 10 products in Q4")
    assert resolve(follow_up("What about Q4?"), said, config("rewrite")).resolved_query == "Top 10 products in Q4"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("Top 10 products", "lost: Q4"),
        ("top 10 products in q3", "the previous question again"),
        ("Q: Top 10 products in Q3", "the previous question again"),
        ("", "an empty text"),
    ],
)
def test_a_rewrite_that_loses_something_is_not_used(reply, why, sales):
    question = follow_up("What about Q4?")
    resolution = resolve(question, resources(sales, reply), config("rewrite"))
    assert resolution.fallback == why
    assert (resolution.question.text, resolution.question.previous_sql) == (question.text, TOP)
    assert TOP not in resolution.resolved_query and resolution.calls


def test_a_model_that_fails_is_a_fallback_and_no_error(sales):
    resolution = resolve(follow_up("What about Q4?"), resources(sales), config("rewrite"))
    assert resolution.fallback.startswith("model: ") and resolution.question.previous_sql == TOP


@pytest.mark.parametrize("strategy", ["beside", "rules"])
def test_a_follow_up_goes_on_beside_the_previous_sql(strategy, sales):
    question = follow_up("And by region?")
    resolution = resolve(question, resources(sales), config(strategy))
    assert (resolution.is_followup, resolution.strategy, resolution.edited_sql) == (True, "beside", "")
    assert (resolution.question.text, resolution.question.previous_sql) == (question.text, TOP)


@pytest.mark.parametrize(
    ("text", "after", "whole"),
    [
        ("and green?", "'green'", "How many products are green?"),
        ("By region, please", "'red'", "How many products are red by region, please?"),
        ("the cheap ones?", "'red'", "How many products are red? the cheap ones?"),
    ],
)
def test_an_edited_query_is_said_as_a_question(text, after, whole):
    assert said_whole(COUNTED.user_query, text, COUNTED.sql, COUNTED.sql.replace("'red'", after)) == whole


def test_the_turn_that_is_meant_is_the_last_unless_the_question_reaches_back(sales):
    regions = Turn("Which regions are there?", sql="SELECT name FROM regions")
    history = [COUNTED, regions]

    def meant(text: str) -> Turn:
        return turn_meant(text, history)

    assert meant("how many are there?") == regions
    assert meant("Back to the products: which of them are fragile?") == COUNTED
    assert meant("Those red products again: how many are fragile?") == COUNTED
    assert meant("Returning to the products: how many are fragile?") == COUNTED
    assert meant("Back to the regions: how many are there?") == regions


def test_the_prompt_of_a_follow_up_shows_the_previous_query_in_a_place_of_its_own():
    [_, user] = prompts.generate_messages("And Q4?", "t(a)", previous_sql="SELECT 1")
    assert "Previous query:\nSELECT 1" in user["content"] and "And Q4?" in user["content"]
    assert prompts.generate_messages("And Q4?", "t(a)") == prompts.generate_messages("And Q4?", "t(a)", previous_sql="")
