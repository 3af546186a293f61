"""Verified queries: which question one answers, what is said of it, and what a stale one may not do."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.agents.controllers import answer
from nl2sql.agents.record import Episode
from nl2sql.benchmarks import load_benchmark
from nl2sql.benchmarks.verified import alike, fixes_a_period, read_verified
from nl2sql.config import Config, KnowledgeConfig, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.interfaces import Question
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import evaluate, resume
from nl2sql.sessions.conversation import Conversation, reply_of

PAIRS = [
    line.split("\t")
    for line in (Path(__file__).parents[1] / "fixtures" / "verified_pairs.tsv").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
HOW_MANY, SHIPPED = "How many customers are there?", "How many orders were shipped?"
BERN = "Which customers live in Bern?"
FILE = f"""\
verified_queries:
  - {{question: '{BERN}', sql: "SELECT name FROM customers WHERE city = 'Bern'"}}
  - question: {HOW_MANY}
    sql: SELECT COUNT(*) FROM customers;
    name: customers
    verified_by: Ana
    verified_at: 1764288000
    use_as_onboarding_question: true
  - {{question: '{SHIPPED}', sql: "SELECT COUNT(*) FROM orders WHERE status = 'shipped'", verified_at: 2026-01-02}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop_queries.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture
def ask(shop: Path, file: Path) -> Callable[..., Episode]:
    """Ask the shop with the file; the model answers with ``SELECT 7 FROM orders``."""

    def asked(question: str | Question, events: list[Any] | None = None, **settings: Any) -> Episode:
        config = Config(knowledge=KnowledgeConfig(verified=str(file), **settings))
        sink = (lambda event: None) if events is None else events.append
        with SqliteDatabase(shop) as database:
            return answer(question, database, ScriptedModel([" 7 FROM orders"]), "single_shot", config, sink=sink)

    return asked


def change(shop: Path, statement: str) -> None:
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute(statement)


# ------------------------------------------------------------------------------------------- the same question?


@pytest.mark.parametrize(("left", "right", "expected"), PAIRS, ids=[f"{a}|{b}" for a, b, _ in PAIRS])
def test_a_question_is_the_same_only_where_nothing_but_words_of_politeness_differ(
    left: str, right: str, expected: str
) -> None:
    share = alike(left, right)
    assert share == alike(right, left)
    assert {"words": share == 1, "opening": 0.4 < share < 1, "no": share == 0}[expected], share


@settings(deadline=None)
@given(st.text(max_size=40), st.integers(0, 10**6), st.integers(0, 10**6))
def test_questions_that_differ_in_a_number_are_never_the_same(text: str, one: int, other: int) -> None:
    assert (alike(f"{text} {one} orders", f"{text} {other} orders") > 0) == (one == other)


def test_a_year_in_the_sql_under_a_period_that_moves_is_no_answer_later() -> None:
    entry = "[{{question: '{}', sql: \"SELECT * FROM orders WHERE day >= '2026-05-01'\"}}]"
    found = {}
    for question in ("Orders of last month", "Orders since the fair", "Orders since May 2026, the last fair"):
        path = Path("q.yaml").absolute()
        path.write_text(entry.format(question), encoding="utf-8")
        found[question] = fixes_a_period(read_verified(path).queries[0])
        path.unlink()
    assert list(found.values()) == [True, False, False]


# ------------------------------------------------------------------------------------------------------- reuse


def test_a_verified_query_answers_its_question_without_the_model_and_says_so(ask: Callable[..., Episode]) -> None:
    events: list[Any] = []
    episode = ask("how many customers are there", events)
    assert (episode.sql, episode.rows, episode.finish) == ("SELECT COUNT(*) FROM customers", ((3,),), "verified")
    assert episode.usage.model_calls == 0 and episode.controller == "single_shot"
    told = {"question": HOW_MANY, "verified_by": "Ana", "verified_at": "2025-11-28", "alike": 1.0}
    assert episode.flags["verified"]["reused"].items() >= told.items()
    assert [record["action"] for record in episode.trace] == ["verified_query"]
    assert episode.trace[0]["args"] == {"question": HOW_MANY}
    assert [(e["decision"], e["reason"]) for e in episode.decision_log] == [("verified_query", "the same words")]
    assert [event.get("action", event.get("decision")) for event in events] == ["verified_query", "verified_query"]


@pytest.mark.parametrize("question", ["How many customers are not there?", "Which customers live in Basel?"])
def test_a_question_that_differs_is_the_models_with_the_like_ones_as_examples(
    ask: Callable[..., Episode], question: str
) -> None:
    episode = ask(question)
    assert episode.sql == "SELECT 7 FROM orders;" and "reused" not in episode.flags["verified"]
    prompt = episode.messages[-1]["content"]
    shown = HOW_MANY if "many" in question else BERN
    assert shown in episode.flags["verified"]["examples"] and f"Question: {shown}\nSQL: SELECT" in prompt
    assert prompt.index(f"Question: {shown}") > prompt.index("Solved examples")
    likest = [line for line in prompt.splitlines() if line.startswith("Question: ")][-2]  # the last: what is asked
    assert likest == f"Question: {shown}"


def test_the_settings_leave_out_reuse_and_examples(ask: Callable[..., Episode]) -> None:
    assert ask(HOW_MANY, reuse=False).usage.model_calls == 1
    polite = f"Can you tell me {HOW_MANY}"
    assert ask(polite).finish == "verified" and ask(polite, closeness=1).finish == "answered"
    assert "the query" not in str(ask(polite).decision_log) and "opening" in ask(polite).decision_log[0]["reason"]
    episode = ask("Which customers live in Basel?", examples=0)
    assert "Solved examples" not in episode.messages[-1]["content"] and "verified" not in episode.flags
    with_one = ask("Which customers live in Basel?", examples=1)
    assert with_one.flags["verified"]["examples"] == [BERN]


def test_a_stale_query_is_said_and_not_used(ask: Callable[..., Episode], shop: Path) -> None:
    change(shop, "ALTER TABLE customers RENAME COLUMN city TO town")
    episode = ask(BERN)
    assert episode.usage.model_calls == 1 and episode.sql == "SELECT 7 FROM orders;"
    assert episode.flags["verified"]["stale"] == {BERN: "unknown_column:city"}
    assert "city = 'Bern'" not in episode.messages[-1]["content"] and BERN not in episode.flags["verified"]["examples"]
    assert ask(HOW_MANY).finish == "verified"


def test_a_query_that_fails_as_it_runs_is_said_and_the_model_asked(ask: Callable[..., Episode], file: Path) -> None:
    sql = "SELECT abs(-9223372036854775808) FROM customers"
    file.write_text(f"- {{question: '{BERN}', sql: {sql}}}\n", encoding="utf-8")
    episode = ask(BERN)
    assert episode.sql == "SELECT 7 FROM orders;" and "overflow" in episode.flags["verified"]["stale"][BERN]


def test_what_the_sandbox_refuses_is_stale(ask: Callable[..., Episode], file: Path, shop: Path) -> None:
    file.write_text(f"- {{question: '{BERN}', sql: DELETE FROM orders}}\n", encoding="utf-8")
    episode = ask(BERN)
    assert list(episode.flags["verified"]["stale"]) == [BERN] and episode.sql == "SELECT 7 FROM orders;"
    with closing(sqlite3.connect(shop)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM orders").fetchone() == (4,)


def test_a_benchmarks_question_is_never_given_its_own_query(ask: Callable[..., Episode]) -> None:
    question = Question(HOW_MANY, "shop", "q1", gold=("SELECT COUNT(*) FROM customers",), split="dev")
    episode = ask(question)
    assert episode.usage.model_calls == 1 and HOW_MANY not in episode.flags["verified"]["examples"]
    other_gold = Question(HOW_MANY, "shop", "q2", gold=("SELECT COUNT(name) FROM customers",), split="dev")
    assert HOW_MANY not in ask(other_gold).flags["verified"]["examples"]
    same_gold = Question("How many customers do we have?", "shop", gold=question.gold, split="dev")
    assert HOW_MANY not in ask(same_gold).flags["verified"]["examples"]
    assert HOW_MANY in ask("How many customers do we have?").flags["verified"]["examples"]


def test_a_conversation_reuses_one_after_other_questions_and_goes_on_from_it(shop: Path, file: Path) -> None:
    config = build_config({"knowledge": {"verified": str(file)}, "session": {"resolve": "concat"}})
    model = ScriptedModel({"*": [" 7 FROM orders"]})
    with SqliteDatabase(shop) as database:
        conversation = Conversation(database, model, "single_shot", config=config)
        assert conversation.ask("Which orders are open?").finish == "answered"
        episode = conversation.ask(SHIPPED)
        assert reply_of(episode)["verified"]["reused"]["verified_at"] == "2026-01-02"
        assert [turn.sql for turn in conversation.history][1:] == [episode.sql]
        follow_up = conversation.ask("What about those that are open?")
        assert follow_up.finish == "answered" and SHIPPED in follow_up.flags["session"]["resolved_query"]


# ---------------------------------------------------------------------------------------------------- the file


def test_the_keys_are_those_of_a_semantic_view_and_a_list_alone_will_do(file: Path, shop: Path) -> None:
    queries = read_verified(file)
    assert [query.question for query in queries.queries] == [BERN, HOW_MANY, SHIPPED]
    assert queries.queries[1].to_dict() == {
        "name": "customers",
        "question": HOW_MANY,
        "sql": "SELECT COUNT(*) FROM customers",
        "verified_by": "Ana",
        "verified_at": datetime.date(2025, 11, 28).isoformat(),
    }
    with SqliteDatabase(shop) as database:
        assert [query.question for query in queries.usable(database)] == [HOW_MANY, BERN, SHIPPED]  # onboarding first
    before = queries.fingerprint
    file.write_text("name: shop\ntables: []\n" + FILE, encoding="utf-8")  # a whole semantic view
    assert read_verified(file).fingerprint == before
    file.write_text("- {question: 'How many?', sql: SELECT 1}\n", encoding="utf-8")
    assert len(read_verified(file).queries) == 1 and read_verified(file).fingerprint != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected verified_queries"),
        ("verified_queries: {}", "expected verified_queries"),
        ("- {question: 'How many?', query: SELECT 1}", "'query' is unknown"),
        ("- How many?", "'How many\\?' is unknown"),
        ("- {question: 'How many?'}", "sql is ''"),
        ("- {question: [a], sql: SELECT 1}", "question is"),
        ("- {question: 'How many?', sql: SELECT 1, verified_at: 99999999999999999}", "seconds since 1970"),
        ("- {question: 'How many?', sql: SELECT 1}\n- {question: how MANY, sql: SELECT 2}", "asked twice"),
    ],
)
def test_a_file_that_says_something_else_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        read_verified(path)


# ------------------------------------------------------------------------------------------------ as a benchmark


def replies(*pairs: Sequence[str]) -> ScriptedModel:
    return ScriptedModel({question: [sql] for question, sql in pairs})


def test_the_file_is_a_regression_benchmark_that_leaves_stale_ones_out(shop: Path, file: Path, tmp_path: Path) -> None:
    change(shop, "ALTER TABLE customers RENAME COLUMN city TO town")
    loaded = load_benchmark(f"{file}::{shop}")
    assert [(q.id, q.gold, q.meta.get("stale")) for q in loaded.questions] == [
        ("1", ("SELECT name FROM customers WHERE city = 'Bern'",), "unknown_column:city"),
        ("2-customers", ("SELECT COUNT(*) FROM customers",), None),
        ("3", ("SELECT COUNT(*) FROM orders WHERE status = 'shipped'",), None),
    ]
    model = replies((HOW_MANY, " COUNT(*) FROM customers"), (SHIPPED, " COUNT(*) FROM orders"))
    config = build_config({"eval": {"replicas": 0}, "knowledge": {"verified": str(file)}})
    options: dict[str, Any] = {"controller": "single_shot", "config": config, "out": tmp_path / "run"}
    run = evaluate(f"{file}::{shop}", model=model, **options)
    assert run.report["left_out"] == {"stale": 1} and run.report["n"] == 2
    assert {item["id"]: item["ex"] for item in run.report["items"]} == {"2-customers": True, "3": False}
    assert run.report["counts"]["finish"] == {"answered": 2}
    with pytest.raises(UsageError, match=r"names benchmark="):
        resume(tmp_path / "run", model=model)
