"""What is suspicious about a query that ran: each check with a case that it must see and one that it must not."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from nl2sql.agents.checks.suspicions import CHECKS, suspicions
from nl2sql.agents.controllers import answer, suspect
from nl2sql.agents.record import Episode
from nl2sql.config import SuspicionsConfig, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.interfaces import Question
from nl2sql.models.scripted import ScriptedModel

SHOP = """
CREATE TABLE customers (customer_id INTEGER PRIMARY KEY, name TEXT, city TEXT, credit_limit REAL, code TEXT);
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers, clerk_id INTEGER,
  order_status TEXT, total REAL);
INSERT INTO customers VALUES (1, 'Ada', 'Bern', 100, 'A1'), (2, 'Ben', 'New Basel', 50, 'B2'),
  (3, 'Cleo', 'Bern', 70, 'C3');
INSERT INTO orders VALUES (10, 1, 1, 'cancelled', 20), (11, 1, 2, 'open', 5), (12, 2, 3, 'open', 9);
"""

CASES = [  # (check or "" for none, question, query, what is said)
    ("unknown_literal", "How many are cancelled?", "SELECT count(*) FROM orders WHERE order_status = 'Cancelled'",
     "no cell of orders.order_status is 'Cancelled'; the closest is 'cancelled'"),
    ("unknown_literal", "?", "SELECT name FROM customers c WHERE c.city IN ('Bern', 'Brn')", "the closest is 'Bern'"),
    ("unknown_literal", "?", 'SELECT name FROM customers WHERE city <> "x" AND city = "bern" OR 1', "'bern'; the"),
    ("", "How many are cancelled?", "SELECT count(*) FROM orders WHERE order_status = 'cancelled'", ""),
    ("", "?", "SELECT name FROM customers WHERE city <> 'Nowhere' AND NOT city IN ('Nowhere')", ""),
    ("unknown_literal", "?", "SELECT count(*) FROM customers WHERE code = 2", "is 2; one is 'A1'"),
    ("unknown_literal", "?", "SELECT count(*) FROM orders WHERE total IN (5, '6')", "no cell of orders.total is '6'"),
    ("", "?", "SELECT count(*) FROM orders WHERE total = 20 AND clerk_id = '1' AND total <> 3", ""),
    ("type_mismatch", "?", "SELECT count(*) FROM orders WHERE total > 'high'", "compared with the text 'high'"),
    ("type_mismatch", "?", "SELECT count(*) FROM customers WHERE credit_limit = code", "texts"),
    ("", "?", "SELECT count(*) FROM orders WHERE total > '4'", ""),
    ("type_mismatch", "?", "SELECT sum(code) FROM customers", "customers.code holds texts, of which SUM adds up"),
    ("type_mismatch", "?", "SELECT name, avg(c.code) FROM customers c GROUP BY name", "AVG adds up"),
    ("", "?", "SELECT max(code), count(code), avg(credit_limit) FROM customers", ""),
    ("join_beside_key", "?", "SELECT count(*) FROM orders JOIN customers ON clerk_id = customers.customer_id",
     "beside the declared key orders.customer_id = customers.customer_id"),
    ("", "?", "SELECT count(*) FROM orders o JOIN customers c ON o.customer_id = c.customer_id", ""),
    ("", "?", "SELECT count(*) FROM orders o, customers c WHERE o.customer_id = c.customer_id "
     "AND o.clerk_id = c.customer_id", ""),
    ("fan_out", "?", "SELECT sum(credit_limit) FROM customers c JOIN orders o ON o.customer_id = c.customer_id",
     "credit_limit is added up more than once"),
    ("", "?", "SELECT sum(total) FROM customers c JOIN orders o ON o.customer_id = c.customer_id", ""),
    ("", "?", "SELECT order_id, sum(credit_limit) FROM customers c JOIN orders o ON o.customer_id = c.customer_id "
     "GROUP BY order_id", ""),
    ("", "?", 'SELECT order_id AS "the order", sum(credit_limit) FROM customers c JOIN orders o '
     'ON o.customer_id = c.customer_id GROUP BY "the order"', ""),
    ("", "?", "SELECT sum(credit_limit) OVER (PARTITION BY order_id) FROM customers c JOIN orders o "
     "ON o.customer_id = c.customer_id", ""),
    ("empty_result", "?", "SELECT name FROM customers WHERE credit_limit > 1000", "no row"),
    ("null_aggregate", "?", "SELECT max(total) FROM orders WHERE total > 1000", "NULL"),
    ("", "?", "SELECT count(*) FROM orders WHERE total > 1000", ""),
    ("unused_value", "Which customers have more than 60 credit?", "SELECT name FROM customers", "says 60"),
    ("unused_value", "Who lives in New Basel?", "SELECT name FROM customers", "'New Basel', a value of customers.city"),
    ("", "Who lives in New Basel?", "SELECT name FROM customers WHERE city = 'New Basel'", ""),
    ("unused_column", "What is the credit limit of Ada?", "SELECT city FROM customers WHERE name = 'Ada'", "_limit"),
    ("", "What is the credit limit of Ada?", "SELECT credit_limit FROM customers WHERE name = 'Ada'", ""),
    ("", "Show all customers with their credit limit", "SELECT * FROM customers", ""),
    ("", "Show all orders with the credit limit", "SELECT c.* FROM customers c JOIN orders USING (customer_id)", ""),
    ("", "Who has at least 50.0 credit?", "SELECT name FROM customers WHERE credit_limit >= 50", ""),
    ("", "Whose limit is above 50?", "SELECT name FROM customers WHERE credit_limit >= 51", ""),
    ("", "Whose limit is below 51?", "SELECT name FROM customers WHERE credit_limit <= 50", ""),
    ("unused_value", "Whose limit is below 52?", "SELECT name FROM customers WHERE credit_limit <= 50", "says 52"),
    ("", "Who has 50 percent of it?", "SELECT name FROM customers WHERE credit_limit >= 0.5 * 100", ""),
    ("", "Who has more than 10 million?", "SELECT name FROM customers WHERE credit_limit > 10000000 OR 1", ""),
    ("unused_value", "Who has 10 million?", "SELECT name FROM customers WHERE credit_limit < 10000", "says 10"),
    ("", "Who has less than 50 000?", "SELECT name FROM customers WHERE credit_limit < 50000", ""),
    ("unused_value", "Who has 50 000?", "SELECT name FROM customers WHERE credit_limit < 5000", "says 50"),
    ("", "?", "SELECT name FROM customers WHERE NOT (city = 'Nowhere')", ""),
    ("", "?", "SELECT name, NULL, NULL FROM customers", ""),
    ("", "Who bought in the last 24 months?", "SELECT name FROM customers WHERE date('now', '-2 year') > 'x' OR 1", ""),
    ("repeated_column", "?", "SELECT c.name, city, name FROM customers c", "has c.name twice"),
    ("", "?", "SELECT a.name, b.name FROM customers a, customers b", ""),
    ("", "?", "SELECT name FROM (SELECT name, city AS c FROM customers) WHERE c = 'Nowhere' OR 1", ""),
    ("", "?", "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n", ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> SqliteDatabase:
    file = tmp_path_factory.mktemp("suspicions") / "shop.sqlite"
    with sqlite3.connect(file) as connection:
        connection.executescript(SHOP)
    return SqliteDatabase(file)


@pytest.mark.parametrize(("check", "question", "sql", "said"), CASES)
def test_a_check_sees_its_case_and_keeps_silent_beside_it(
    check: str, question: str, sql: str, said: str, database: SqliteDatabase
) -> None:
    result = database.run(sql)
    assert result.success, result.error
    noted = suspicions(question, sql, database, result, SuspicionsConfig())
    assert {item.check for item in noted} == ({check} if check else set()), noted
    assert said in " ".join(item.text for item in noted)
    if check:
        off = SuspicionsConfig(**{check: False})
        assert suspicions(question, sql, database, result, off) == []


def test_every_check_has_a_switch_and_a_case() -> None:
    assert set(CHECKS) == {case[0] for case in CASES} - {""}
    assert set(SuspicionsConfig.model_fields) == {*CHECKS, "low_confidence"}


@pytest.mark.parametrize(("confidence", "least", "warned"), [(0.3, 0.5, True), (0.5, 0.5, False), (0.3, 0, False)])
def test_an_answer_of_low_confidence_is_warned_of(confidence: float, least: float, warned: bool, shop: Path) -> None:
    question = Question("How many orders?")
    episode = Episode(question, "best", sql="SELECT count(*) FROM orders", columns=("n",), rows=((4,),))
    episode.flags["confidence"] = confidence
    with SqliteDatabase(shop) as database:
        suspect(episode, database, build_config({"suspicions": {"low_confidence": least}}))
    noted = episode.flags.get("suspicions", [])
    assert [item["check"] for item in noted] == ["low_confidence"] * warned
    assert all("0.30" in item["text"] for item in noted)


def test_a_name_in_place_of_a_database_or_model_says_what_to_pass(database: SqliteDatabase) -> None:
    with pytest.raises(UsageError, match=r"model is 'smollm2-135m'; pass nl2sql.load_model\(NAME\)"):
        answer("How many?", database, "smollm2-135m")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"database is 'shop.sqlite'; pass nl2sql.SqliteDatabase\(FILE\)"):
        answer("How many?", "shop.sqlite", ScriptedModel([]))  # type: ignore[arg-type]


def test_a_statement_that_nobody_can_read_is_not_suspicious(database: SqliteDatabase) -> None:
    for sql in ("SELECT", "(" * 500, "SELECT * FROM nowhere", "\x00", "VALUES (1)"):
        result = database.run("SELECT 1")
        assert suspicions("?", sql, database, result, SuspicionsConfig()) == []


def steps(*names: str) -> list[str]:
    return [f"Action: {name}[{{}}]" for name in names]


WRONG = "SELECT count(*) FROM orders WHERE order_status = 'Cancelled'"
TO_RUN = ("validate_sql", "validate_constraints", "run_sql")


def test_an_answer_carries_its_suspicions(database: SqliteDatabase) -> None:
    replies = [*steps("extract_constraints", "generate_sql"), WRONG, *steps(*TO_RUN, "finish")]
    episode = answer("How many orders are cancelled?", database, ScriptedModel(replies))
    (item,) = episode.flags["suspicions"]
    assert item["check"] == "unknown_literal" and "closest is 'cancelled'" in item["text"]
    assert "closest is" in episode._repr_html_() and json.dumps(episode.to_dict())


def test_the_report_counts_suspicious_answers(tmp_path: Path) -> None:
    from nl2sql.runs.summary import suspicions_of

    flags = {"suspicions": [{"check": "empty_result", "text": "x"}, {"check": "empty_result", "text": "y"}]}
    traces = [{"id": "1", "flags": flags}, {"id": "2", "flags": {}}, {"id": "3", "flags": flags}]
    counts = suspicions_of(traces, {"1": True, "2": False, "3": False})
    assert counts == {"empty_result": {"answers": 2, "wrong": 1}, "any": {"answers": 2, "wrong": 1}}


@pytest.mark.parametrize("controller", ["single_shot", "own"])
@pytest.mark.parametrize(
    ("most", "said"), [(2, ["the query gives more than 2 rows, and the rest is left out"]), (3, [])]
)
def test_rows_past_the_limit_are_said_beside_the_answer(
    shop: Path, controller: str, most: int, said: list[str]
) -> None:
    sql = "SELECT name FROM customers"
    asked = (lambda question, *_: Episode(question, "own", sql=sql)) if controller == "own" else controller
    config = build_config({"execution": {"max_rows": most}})
    with SqliteDatabase(shop) as database:
        episode = answer("Which names are there?", database, ScriptedModel([sql]), asked, config)
    noted = [item["text"].partition(" (")[0] for item in episode.flags.get("suspicions", ())]
    assert noted == said and len(episode.rows) == most and ("rows_cut" in episode.flags) == bool(said)
