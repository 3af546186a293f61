"""``vizql.draft: sql``: the first draft is SQL, translated; where it cannot be, the query is asked for as JSON."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents.controllers import answer
from nl2sql.agents.record import Episode
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Question
from nl2sql.models.scripted import ScriptedModel

ASKED = "show total sales by region"
BY_REGION = {"fields": [{"fieldCaption": "Region"}, {"fieldCaption": "Sales", "function": "SUM"}]}
TOTAL = json.dumps({"fields": [{"fieldCaption": "Sales", "function": "SUM"}]})
SQL = "SELECT region, SUM(sales) FROM orders GROUP BY region"
TABLES = """
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, region TEXT, sales REAL, customer_id INTEGER REFERENCES customers);
CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, credit REAL);
INSERT INTO customers VALUES (1, 'Ann', 9.0), (2, 'Bob', 8.0);
INSERT INTO orders VALUES (1, 'West', 10.0, 1), (2, 'East', 5.0, 2), (3, 'West', 2.5, 1);
"""


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[SqliteDatabase]:
    path = tmp_path / "orders.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(TABLES)
    with SqliteDatabase(path) as database:
        yield database


def asked(
    database: SqliteDatabase, *replies: str, controller: str = "vizql", question: str = ASKED, **options: Any
) -> Episode:
    model = ScriptedModel(list(replies))
    sections = {"vizql": {"draft": "sql"}, "few_shot": {"k": 0}, "schema_text": {"values": 0}, **options}
    return answer(question, database, model, controller, build_config(sections))


def built(episode: Episode) -> list[dict[str, Any]]:
    return [
        {**record["args"], **record["observation"]} for record in episode.trace if record["action"] == "build_query"
    ]


def test_sql_is_translated_without_another_call(orders: SqliteDatabase) -> None:
    episode = asked(orders, SQL)
    assert sorted(episode.rows) == [("East", 5.0), ("West", 12.5)] and episode.error is None
    assert built(episode) == [{"version": 1, "by": "sql", "sql": SQL + ";", "query": BY_REGION}]
    assert json.loads(episode.raw_sql) == BY_REGION
    assert [call["kind"] for call in episode.calls] == ["sql"]


def test_the_prompt_is_the_control_s_to_the_letter(orders: SqliteDatabase) -> None:
    draft, control = (asked(orders, SQL, controller=name).calls[0] for name in ("vizql", "single_shot"))
    assert draft["messages"] == control["messages"]
    assert draft["prefill_characters"] == control["prefill_characters"] == len("SELECT")


def test_the_most_literal_translation_that_can_be_executed_is_the_draft(orders: SqliteDatabase) -> None:
    top = "name and credit of the one customer with the highest credit"
    cut = asked(orders, "SELECT name, credit FROM customers ORDER BY credit DESC LIMIT 1", question=top)
    assert cut.rows == (("Ann", 9.0),) and built(cut)[0]["query"]["options"] == {"disaggregate": True, "rowLimit": 1}
    twice = asked(orders, "SELECT region FROM orders")
    assert sorted(twice.rows) == [("East",), ("West",), ("West",)]  # SQL without DISTINCT keeps both rows
    once = asked(orders, "SELECT DISTINCT region FROM orders")
    assert sorted(once.rows) == [("East",), ("West",)] and "options" not in built(once)[0]["query"]
    # a sum over the rows of orders would count a credit twice; the rows themselves are no sum
    fan_out = asked(orders, "SELECT region, credit FROM orders JOIN customers USING (customer_id)", TOTAL)
    assert built(fan_out)[0]["error"] == "no structured form: join by something else than equal columns"
    joined = "SELECT region, credit FROM orders AS o JOIN customers AS c ON o.customer_id = c.customer_id"
    episode = asked(orders, joined)
    assert built(episode)[0]["query"]["options"] == {"disaggregate": True} and len(episode.rows) == 3


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("SELECT region FROM orders WHERE sales = (SELECT MAX(sales) FROM orders)", "subquery"),
        ("SELECT region FROM orders UNION SELECT name FROM customers", "set operation"),
        ("I am sorry.", "clean_reject:no_select"),
        ("DROP TABLE orders", "clean_reject:"),
        ("SELECT " + "(" * 5000, "clean_reject:junk"),
        ("SELECT 1 FROM orders WHERE " + "NOT " * 3000 + "1", "clean_reject:"),
        ("\ud800\x00", "clean_reject:"),
        ("", "clean_reject:"),
    ],
)
def test_what_has_no_structured_form_is_asked_for_as_json(orders: SqliteDatabase, reply: str, reason: str) -> None:
    episode = asked(orders, reply, TOTAL)
    first, second = built(episode)
    assert (first["by"], first["query"], second["by"]) == ("sql", None, "model")
    assert first["error"].startswith(f"no structured form: {reason}")
    assert episode.decision_log[0]["reason"] == first["error"] and episode.decision_log[0]["status"] == "reject"
    assert second["query"] == json.loads(TOTAL) and episode.rows == ((17.5,),)
    assert [call["kind"] for call in episode.calls] == ["sql", "vizql"]
    assert [item["by"] for item in episode.flags["rejected"]] == ["guardrails"] * reason.startswith("clean")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT region, SUM(sales) FROM orders GROUP BY order_id",
        "SELECT region, MAX(sales) FROM orders",
        "SELECT COUNT(*) FROM orders GROUP BY region",
    ],
)
def test_sql_with_other_groups_than_the_query_is_no_draft(orders: SqliteDatabase, sql: str) -> None:
    episode = asked(orders, sql, TOTAL)
    first, _ = built(episode)
    assert first["error"] == "no structured form: grouped by something else than what is asked for"
    assert episode.rows == ((17.5,),)


def test_sql_that_groups_by_the_key_of_a_name_is_a_draft_where_names_differ(orders: SqliteDatabase) -> None:
    joined = "FROM orders AS o JOIN customers AS c ON o.customer_id = c.customer_id GROUP BY c.customer_id"
    episode = asked(orders, f"SELECT c.name, SUM(o.sales) {joined}")
    assert sorted(episode.rows) == [("Ann", 12.5), ("Bob", 5.0)] and [b["by"] for b in built(episode)] == ["sql"]


def test_a_translation_that_is_not_valid_goes_to_the_refiner(orders: SqliteDatabase) -> None:
    episode = asked(orders, "SELECT SUM(sales) FROM orders WHERE region = 'Wset'", TOTAL)
    assert built(episode)[0]["by"] == "sql" and episode.flags["vizql"]["stages"] == ["validation", "answered"]


def test_a_model_that_fails_ends_the_episode(orders: SqliteDatabase) -> None:
    episode = asked(orders)
    assert episode.finish == "error" and episode.error is not None and episode.error.startswith("model: ")


def test_examples_as_json_stand_in_the_prompt_for_json_only(orders: SqliteDatabase) -> None:
    episode = asked(orders, "SELECT 1 FROM orders UNION SELECT 2", TOTAL, few_shot={"k": 2, "pool": "vizql:dev"})
    sql, query = (call["messages"][-1]["content"] for call in episode.calls)
    assert "fieldCaption" not in sql and '"fieldCaption"' in query
    assert len(episode.flags["few_shot"]) == 2


def test_json_is_asked_for_where_the_switch_says_so(orders: SqliteDatabase) -> None:
    episode = asked(orders, TOTAL, vizql={"draft": "json"})
    assert built(episode) == [{"version": 1, "by": "model", "query": json.loads(TOTAL)}]


def test_a_follow_up_draft_is_shown_the_query_before(orders: SqliteDatabase) -> None:
    question = Question(text=ASKED, previous_sql="SELECT name FROM customers")
    config = build_config({"vizql": {"draft": "sql"}, "few_shot": {"k": 0}})
    episode = answer(question, orders, ScriptedModel([SQL]), "vizql", config)
    assert "SELECT name FROM customers" in episode.calls[0]["messages"][-1]["content"]
