"""A simulated user: Mini-Interact's ambiguous questions, and what a loop may ask about them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loop_steps import Listening, action, observations

from nl2sql.agents.agent_tools import TOOLS
from nl2sql.agents.controllers import CANNOT_SAY, MOST_CHARS, answer, meaning
from nl2sql.agents.record import Episode
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config

FIXTURE = Path(__file__).parents[1] / "fixtures/layouts/mini_interact"
CLEAR, AMBIGUOUS = "How many customers are there?", "How many them are there?"
COUNT = "SELECT COUNT(*) FROM customers"
STEPS = ("generate_sql", COUNT, "validate_sql", "validate_constraints", "run_sql", "finish")


def asks(question: str) -> str:
    return action("ask_user", question=question)


@pytest.fixture
def ask(tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An episode of a question of the benchmark, and the model that answered."""
    folder = tmp_path / "mini_interact"
    shutil.copytree(FIXTURE, folder)
    shutil.copy(shop, folder / "shop/shop.sqlite")
    benchmark = load_benchmark(folder)

    def played(
        replies: Sequence[str], *, item: int = 0, controller: str = "react", **user: Any
    ) -> tuple[Episode, Listening]:
        config = build_config({"user": {"simulated": True, **user}, "react": {"max_steps": 16}})
        first = ["extract_constraints"] if controller == "react" else []  # else it is forced
        model = Listening([action(r) if r in TOOLS else r for r in (*first, *replies)])
        question = benchmark.questions[item]
        return answer(question, benchmark.database("shop"), model, controller, config), model

    return played


def test_an_answer_of_the_user_stands_below_the_question_in_every_later_prompt(ask: Any) -> None:
    episode, model = ask([asks("Whom do you mean by them?"), asks("Why?"), *STEPS])
    assert observations(episode, "ask_user") == [
        {"answer": "By 'them' I mean: FROM customers", "questions_left": 4},
        {"answer": CANNOT_SAY, "questions_left": 3},
    ]
    (prompt,) = model.sql_prompts()
    assert f"Question: {AMBIGUOUS}\nBy 'them' I mean: FROM customers\n" in prompt
    assert CLEAR not in str(model.asked) and CANNOT_SAY not in prompt
    assert (episode.sql, episode.finish) == (f"{COUNT};", "finish")
    assert (episode.question.text, episode.flags["asked_user"]) == (CLEAR, 2)


def test_knowledge_that_the_item_hides_is_told_by_the_user_alone(ask: Any) -> None:
    episode, model = ask([asks("Who counts as a customer?"), *STEPS])
    (told,) = observations(episode, "ask_user")
    assert told["answer"] == "By 'customer' I mean: A customer is any row of customers."
    assert "Evidence" not in str(model.asked)
    assert "Evidence: Customer" in str(ask(STEPS, simulated=False)[1].asked)


def test_the_users_patience_ends(ask: Any) -> None:
    episode, _ = ask([asks("them?"), asks("them?"), asks("them?"), *STEPS], patience=0)
    refused = {"error": "the user answers no further question"}
    assert [seen.get("questions_left") for seen in observations(episode, "ask_user")] == [1, 0, None]
    assert observations(episode, "ask_user")[2] == refused
    assert episode.flags["asked_user"] == 2


def test_the_action_is_offered_for_ambiguous_questions_alone(ask: Any) -> None:
    offered = [
        "ask_user" in model.asked[0]["messages"][0]["content"]
        for _, model in (ask(STEPS), ask(STEPS, simulated=False), ask(STEPS, item=2))
    ]
    assert offered == [True, False, False]


def test_a_controller_without_tools_answers_the_ambiguous_question(ask: Any) -> None:
    episode, model = ask([COUNT], controller="single_shot")
    assert AMBIGUOUS in str(model.asked) and CLEAR not in str(model.asked)
    assert episode.sql == f"{COUNT};"


def test_the_term_is_meant_of_which_the_question_has_most_words() -> None:
    says = [["order", "a row of orders"], ["large order", "x" * MOST_CHARS], ["big old tree", "none"]]
    assert meaning("What is a large order?", says).startswith("By 'large order' I mean")
    assert meaning("Which orders?", says) == "By 'order' I mean: a row of orders"
    assert meaning("big", says) == CANNOT_SAY == meaning("", [["", "nothing"]])
