"""A follow-up becomes a whole question by the strategy of ``session.resolve``, or is handed on as asked."""

from __future__ import annotations

import pytest
from sessions.sales import FIRST, TOP, follow_up

from nl2sql.agents import prompts
from nl2sql.config import Config, build_config
from nl2sql.errors import ModelError
from nl2sql.interfaces import Completion, Question, Resources, Turn, Usage
from nl2sql.models.scripted import ScriptedModel
from nl2sql.sessions.detection import evidence_of
from nl2sql.sessions.resolution import resolve, turn_meant
from nl2sql.sessions.saying import with_new_values

COUNTED = Turn("How many products are red?", "", "SELECT COUNT(*) FROM products WHERE colour = 'red'")


class Sayer:
    """A question model that says what it is told to, and what it was asked."""

    def __init__(self, says: str) -> None:
        self.says, self.asked = says, []

    def say(self, query: str, max_new_tokens: int, overrides: object = None) -> Completion:
        self.asked.append((query, max_new_tokens))
        if self.says == "fail":
            raise ModelError("the question model failed: no memory")
        return Completion(self.says, "stop", Usage(7, 7, 3, model_calls=1))


def resources(database, *replies: str, says: str = "") -> Resources:
    return Resources(ScriptedModel(list(replies)), database, question_model=lambda: Sayer(says))


def config(strategy: str, **session: object) -> Config:
    return build_config({"session": {"resolve": strategy, **session}})


def test_resolve_query_standalone(sales):
    """The specification's test: without a history a question is what it was."""
    question = Question("Top 10 products by revenue")
    assert resolve(question, resources(sales), Config()).question is question


def test_resolve_query_followup(sales):
    """The specification's test, and its first two examples verbatim."""
    resolution = resolve(follow_up("What about Q4?"), resources(sales), Config())
    assert resolution.is_followup and resolution.resolved_query == "Top 10 products in Q4"
    assert "Q4" in resolution.resolved_query and "products" in resolution.resolved_query
    assert resolution.edited_sql == TOP.replace("quarter = 3", "quarter = 4")


def test_the_specification_s_third_example(sales):
    resolution = resolve(follow_up("Show me by region"), resources(sales), Config())
    assert resolution.resolved_query == "Top 10 products in Q3 by region"
    assert "GROUP BY regions.region_id, regions.name, products.product_id" in resolution.edited_sql


@pytest.mark.parametrize("strategy", ["none", "concat", "rewrite", "edit", "oracle"])
@pytest.mark.parametrize("text", ["Which products are red?", "What about the number of sales in quarter 4?"])
def test_a_question_that_stands_alone_is_handed_on_as_the_same_object(strategy, text, sales):
    question = follow_up(text, standalone=text)
    resolution = resolve(question, resources(sales), config(strategy))
    assert resolution.question is question
    assert (resolution.is_followup, resolution.strategy, resolution.calls) == (False, "none", ())


def test_none_recognises_and_changes_nothing(sales):
    question = follow_up("What about Q4?")
    resolution = resolve(question, resources(sales), config("none"))
    assert resolution.question is question and resolution.is_followup and resolution.evidence


def test_concat_puts_the_shown_questions_before_it(sales):
    turns = [Turn(f"Question {n}?", sql=TOP) for n in range(5)]
    resolution = resolve(follow_up("And Q4?", *turns), resources(sales), config("concat", shown=2))
    assert resolution.resolved_query == "Question 3? Question 4? And Q4?"


WHERE = "SELECT name FROM t WHERE city = '{}' AND size = {}"
REPLACED = [  # (question, values before, values after, the question with the new ones)
    ("Which are in Bern of size 3?", ("Bern", 3), ("Oslo", 3), "Which are in Oslo of size 3?"),
    ("Which are in Bern of size 3?", ("Bern", 3), ("Oslo", 4), "Which are in Oslo of size 4?"),
    ("Which in Bern are of Bern's size 3?", ("Bern", 3), ("Oslo", 3), ""),  # it stands twice
    ("Which 3 in Bern are of size 3?", ("Bern", 3), ("Bern", 4), ""),
    ("Which are in the capital?", ("Bern", 3), ("Oslo", 3), ""),  # it does not stand there
    ("Which are in Bernex of size 3?", ("Bern", 3), ("Oslo", 3), ""),  # nor as a part of a word
    ("Which are in Bern of size 3?", ("Bern", 3), ("Bern", 3), ""),
]


@pytest.mark.parametrize(("question", "before", "after", "wanted"), REPLACED)
def test_a_value_that_stands_once_is_replaced_in_the_question(question, before, after, wanted):
    assert with_new_values(question, WHERE.format(*before), WHERE.format(*after)) == wanted


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


def test_edit_says_the_edited_query_by_the_adapter_where_the_old_question_does_not_do(sales):
    asked = resources(sales, says="How many products in colour red are fragile?")
    resolution = resolve(follow_up("How many of them are fragile?", COUNTED), asked, Config())
    assert resolution.resolved_query == "How many products in colour red are fragile?"
    assert resolution.edited_sql.endswith("colour = 'red' AND fragile = 1")
    [call] = resolution.calls
    assert (call["kind"], call["usage"]["prompt_tokens"]) == ("resolve", 7)
    assert call["messages"] == prompts.question_messages(resolution.edited_sql)


def test_what_the_adapter_says_must_keep_the_user_s_words(sales):
    asked = resources(sales, says="How many products are red?")
    resolution = resolve(follow_up("How many of them are fragile?", COUNTED), asked, Config())
    assert resolution.fallback == "the previous question again"
    asked = resources(sales, says="How many products are in stock?")
    resolution = resolve(follow_up("How many of them are fragile?", COUNTED), asked, Config())
    assert resolution.fallback == "lost: fragile"
    failing = resolve(follow_up("How many of them are fragile?", COUNTED), resources(sales, says="fail"), Config())
    assert failing.fallback == "model: the question model failed: no memory" and failing.edited_sql


def test_a_follow_up_loads_no_second_model_unasked(sales):
    asked = Resources(ScriptedModel([]), sales)
    resolution = resolve(follow_up("How many of them are fragile?", COUNTED), asked, Config())
    assert resolution.fallback.startswith("model: smollm2-135m,") and resolution.edited_sql and not resolution.calls


@pytest.mark.parametrize("draft", [True, False])
def test_the_edited_query_stands_beside_the_resolved_question_by_switch(draft, sales):
    resolution = resolve(follow_up("What about Q4?"), resources(sales), config("edit", draft=draft))
    assert resolution.question.previous_sql == (resolution.edited_sql if draft else "")


def test_without_an_edit_the_question_goes_on_beside_the_previous_sql(sales):
    question = follow_up("And why?")
    resolution = resolve(question, resources(sales), Config())
    assert (resolution.fallback, resolution.edited_sql) == ("no edit", "")
    assert (resolution.question.text, resolution.question.previous_sql) == (question.text, TOP)


def test_the_turn_that_is_meant_is_the_last_unless_the_question_reaches_back(sales):
    regions = Turn("Which regions are there?", sql="SELECT name FROM regions")
    history = [COUNTED, regions]

    def meant(text: str) -> tuple[Turn, bool]:
        return turn_meant(text, history, evidence_of(text, history, sales))

    assert meant("how many are there?") == (regions, False)
    assert meant("Back to the products: which of them are fragile?") == (COUNTED, True)
    assert meant("Those red products again: how many are fragile?") == (COUNTED, True)
    assert meant("Returning to the products: how many are fragile?") == (COUNTED, True)
    assert meant("Back to the regions: how many are there?") == (regions, False)


def test_the_prompt_of_a_follow_up_shows_the_previous_query_in_a_place_of_its_own():
    [_, user] = prompts.generate_messages("And Q4?", "t(a)", previous_sql="SELECT 1")
    assert "Previous query:\nSELECT 1" in user["content"] and "And Q4?" in user["content"]
    assert prompts.generate_messages("And Q4?", "t(a)") == prompts.generate_messages("And Q4?", "t(a)", previous_sql="")


@pytest.fixture(scope="module")
def embedded():
    """Both models of a conversation, loaded before a test has a cache of its own, which holds no weights."""
    from nl2sql.agents.question_model import question_model
    from nl2sql.models import load_model

    model = load_model("smollm2-135m")
    question_model(Config().candidates, model)
    return model


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "kept"), [("What about Q4?", ["Q4", "products"]), ("How many of those are there?", ["products"])]
)
def test_with_the_embedded_model_a_follow_up_is_a_whole_question(text, kept, sales, embedded):
    resolution = resolve(follow_up(text), Resources(embedded, sales), Config())
    assert resolution.is_followup and resolution.edited_sql
    assert resolution.fallback or all(word in resolution.resolved_query for word in kept)
