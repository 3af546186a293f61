"""Knowledge in prompts: what a file says of a database, chosen for the question, within its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.agents.context.knowledge import Fact, chosen, facts_for, lines, read_knowledge, relevance
from nl2sql.agents.controllers import answer
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import part_fingerprints
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.interfaces import Question
from nl2sql.models.scripted import ScriptedModel

MARKDOWN = """\
# Our shop

All totals are in Swiss francs.

## Orders
- An order is **late** when its status is open,
  whatever its day.
- Revenue: SUM(total) of shipped orders.

| word | meaning |
|------|---------|
| basket | an order that is open |

## Customers
A regular has two orders or more.
"""
OSI = """\
semantic_model:
  - name: shop
    ai_context: {instructions: Amounts are in Swiss francs.}
    datasets:
      - name: purchases
        source: main.public.orders
        description: What was bought
        ai_context: {synonyms: [purchases, baskets]}
        fields:
          - name: total
            expression: {dialects: [{dialect: ANSI_SQL, expression: total}]}
            description: The price of the whole order
          - name: late
            expression: {dialects: [{dialect: ANSI_SQL, expression: "status = 'open'"}]}
          - name: order_id
            expression: {dialects: [{dialect: ANSI_SQL, expression: order_id}]}
      - {name: clients, source: customers, ai_context: "people, buyers"}
      - {name: suppliers, source: main.public.suppliers, description: Who sells}
      - {name: cheap, source: "SELECT * FROM orders WHERE total < 5", description: Small orders}
    relationships:
      - {name: r, from: purchases, to: clients, from_columns: [customer_id], to_columns: [customer_id]}
    metrics:
      - name: total_revenue
        expression: [{dialect: TABLEAU, expression: "SUM([Total])"}, {dialect: ANSI_SQL, expression: SUM(orders.total)}]
        ai_context: {synonyms: [turnover]}
"""
FROM_OSI = [
    "Amounts are in Swiss francs.",
    "orders: What was bought; also called baskets",
    "orders.total: The price of the whole order",
    "late of orders = status = 'open'",
    "customers: people, buyers",
    "cheap = (SELECT * FROM orders WHERE total < 5): Small orders",
    "orders.customer_id = customers.customer_id",
    "total revenue = SUM(orders.total): also called turnover",
]


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def asked(shop: Path, question: Question | str, **knowledge: Any) -> Episode:
    config = build_config({"knowledge": knowledge, "schema_text": {"values": 4}})
    with SqliteDatabase(shop, descriptions={("orders", "total"): "price in francs"}) as database:
        return answer(question, database, ScriptedModel([" 7 FROM orders"]), "single_shot", config)


# ------------------------------------------------------------------------------------------------------- files


def test_a_paragraph_an_item_and_a_row_are_facts_that_count_their_headings_words(tmp_path: Path) -> None:
    facts = read_knowledge(written(tmp_path, "shop.md", MARKDOWN)).facts
    assert [(fact.text, fact.headings, fact.always) for fact in facts] == [
        ("All totals are in Swiss francs.", "Our shop", True),
        ("- An order is **late** when its status is open, whatever its day.", "Our shop Orders", False),
        ("- Revenue: SUM(total) of shipped orders.", "Our shop Orders", False),
        ("| word | meaning |", "Our shop Orders", False),
        ("| basket | an order that is open |", "Our shop Orders", False),
        ("A regular has two orders or more.", "Our shop Customers", False),
    ]


def test_a_semantic_model_gives_tables_by_their_names_in_the_database(tmp_path: Path, shop: Path) -> None:
    file = written(tmp_path, "shop.yaml", OSI)
    with SqliteDatabase(shop) as database:
        facts = facts_for(file, database.schema())
    assert [fact.text for fact in facts] == FROM_OSI  # suppliers is no table here
    assert [fact.always for fact in facts].count(True) == 1
    alone = OSI.replace("semantic_model:\n  - name", "version: 0.2.0\nname").replace("\n    ", "\n")
    assert read_knowledge(written(tmp_path, "new.yaml", alone)).facts == read_knowledge(file).facts


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.md", "", "says nothing"),
        ("a.md", "# Only a title\n", "says nothing"),
        ("a.txt", "words", "expected a file .md"),
        ("a.yaml", "[]", "expected semantic_model"),
        ("a.yaml", "semantic_model: [{name: a}]", "expected semantic_model"),
        ("a.yaml", "datasets: [{source: t}]", "no semantic model of OSI"),
        ("a.yaml", "datasets: [", "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        read_knowledge(written(tmp_path, name, text))
    with pytest.raises(UsageError, match="no such file"):
        read_knowledge(tmp_path / "missing.md")


# ------------------------------------------------------------------------------------------------------ choice


def test_what_the_question_is_about_is_chosen_and_stays_in_its_order() -> None:
    facts = [Fact("francs", always=True), Fact("a regular buys"), Fact("late orders", headings="Orders"), Fact("teas")]
    assert chosen(facts, "Which regulars have late orders?", len, 100) == facts[:3]
    assert chosen(facts, "Which regulars have late orders?", len, 21) == [facts[0], facts[2]]  # the rarer words first
    assert chosen(facts, "Anything?", len, 100) == facts[:1]
    assert relevance("late orders", ["the order", "a late order", "tea"])[2] == 0
    rarer = relevance("late orders", ["orders", "late", "orders"])
    assert rarer[1] > rarer[0] == rarer[2] > 0


@settings(deadline=None)
@given(st.lists(st.sampled_from(["order", "late", "tea " * 9, "order late " * 5]), max_size=8), st.integers(0, 60))
def test_the_budget_holds(texts: list[str], budget: int) -> None:
    facts = [Fact(text, always=at % 3 == 0) for at, text in enumerate(texts)]
    kept = chosen(facts, "late orders", len, budget)
    assert len(lines(kept)) <= budget
    left = [fact for fact in facts if fact not in kept and (fact.always or fact.text != "tea " * 9)]
    assert all(len(lines([*kept, fact])) > budget for fact in left)  # nothing that fits was left out


# ------------------------------------------------------------------------------------------------- in the prompt


def test_knowledge_stands_under_the_question_and_its_values_are_looked_up(shop: Path, tmp_path: Path) -> None:
    file = written(tmp_path, "shop.md", MARKDOWN)
    question = Question("How many baskets are late?", evidence="late is bad")
    episode = asked(shop, question, file=file)
    prompt = episode.messages[-1]["content"]
    told = "Evidence: late is bad\nAll totals are in Swiss francs.\n- An order is **late** when its status is open,"
    assert told in prompt and episode.flags["knowledge"] == {"facts": 3, "of": 6}
    assert "orders.status = 'open'" in prompt  # a value that the knowledge names, and the question does not
    without = asked(shop, question, file=file, values=False).messages[-1]["content"]
    assert "Swiss francs" in without and "orders.status" not in without
    assert "knowledge" not in asked(shop, question).flags
    short = asked(shop, question, file=file, max_tokens=16)
    assert 0 < short.flags["knowledge"]["facts"] < 3


def test_a_benchmarks_descriptions_are_facts_where_they_are_asked_for(shop: Path) -> None:
    prompt = asked(shop, "What price does order 10 have?", descriptions=True).messages[-1]["content"]
    assert "Evidence: orders.total: price in francs" in prompt
    assert "francs" not in asked(shop, "Which cities are there?", descriptions=True).messages[-1]["content"]


def test_a_run_is_another_one_when_its_files_change(tmp_path: Path) -> None:
    file, queries = written(tmp_path, "a.md", "one"), written(tmp_path, "q.yaml", "[{question: a, sql: SELECT 1}]")
    config = build_config({"knowledge": {"file": file, "verified": queries}})
    before = part_fingerprints(config)
    assert before.keys() == {"knowledge", "verified_queries"}
    written(tmp_path, "a.md", "another")
    written(tmp_path, "q.yaml", "[{question: a, sql: SELECT 2}]")
    assert not set(part_fingerprints(config).values()) & set(before.values())
