"""The real embedded weights: right tokenizer, right text, same text at any batch size."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nl2sql.agents.single_shot import single_shot
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Question, Resources
from nl2sql.models import load_model
from nl2sql.models.local import LocalModel

pytestmark = pytest.mark.model

TABLES = "customers(id, name, city), orders(id, customer_id, status, total), payments(order_id, paid_on, amount)"
ASKED = ["How many orders were shipped?", "List the cities.", "What is the total of order 5?", "Who paid last?"]


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    made = load_model("smollm2-135m", device="cpu", adapter="none")
    assert isinstance(made, LocalModel)
    yield made
    made.close()


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_it_knows_the_capital_of_france_and_ends_its_turn(model: LocalModel) -> None:
    done = model.generate(user("What is the capital of France?"), max_new_tokens=20)[0]
    assert (done.text, done.finish_reason) == ("The capital of France is Paris.", "stop")


def test_digits_are_tokens_of_their_own(model: LocalModel) -> None:
    assert model.count_tokens(user("2024")) - model.count_tokens(user("2")) == 3


def test_greedy_text_is_the_same_alone_and_in_a_batch_of_16(model: LocalModel) -> None:
    prompts = [f"{TABLES if i % 3 else ''} {ASKED[i % 4]} ({i})" for i in range(16)]

    def ask(prompt: str) -> str:
        return model.generate(user(prompt), prefill="SELECT", stop=[";", "\n\n"], max_new_tokens=8)[0].text

    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(ask, prompts))
    assert [ask(prompt) for prompt in prompts[::3]] == together[::3]


def test_with_its_adapter_which_is_the_default_it_writes_sql(model: LocalModel, shop: Path) -> None:
    adapted = load_model("smollm2-135m", device="cpu")
    assert adapted.name == "smollm2-135m+smollm2-135m-sql" and model.name == "smollm2-135m"
    question = Question("How many orders are there?")
    with SqliteDatabase(shop) as database:
        episode = single_shot(question, Resources(adapted, database), build_config({"constrain": "plain"}))
    adapted.close()
    assert episode.rows == ((4,),), episode.sql
