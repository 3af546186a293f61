"""The bag rule where only one of its conditions tells two results apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from people import make_database

from nl2sql.benchmarks.check import check_questions
from nl2sql.benchmarks.layouts import FolderBenchmark
from nl2sql.eval.cases import run_cases
from nl2sql.eval.rules import get_rule, results_match, suites_match
from nl2sql.eval.scoring import score
from nl2sql.interfaces import Question, Row, RunResult

T = 1_700_000_000  # seconds: here 1e-9 of a value are 1.7


def result(*rows: Row) -> RunResult:
    return RunResult(True, tuple(f"c{n}" for n in range(len(rows[0]))), rows)


@pytest.mark.parametrize(
    ("gold", "predicted", "same"),
    [
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False),
        ([(1,), (1,), (2,)], [(2,), (1,), (1,)], True),
        ([(10**10,)], [(10**10 + 1,)], False),
        ([(1e10,)], [(1e10 + 1,)], False),
        ([(10.0**10,)], [(10**10,)], True),
        ([(1, 2, 1), (2, 3, 3), (3, 1, 2)], [(2, 1, 1), (3, 2, 3), (1, 3, 2)], True),  # all columns hold 1, 2, 3
        ([(1, 2, 1), (2, 3, 3), (3, 1, 2)], [(1, 2, 1), (2, 3, 2), (3, 1, 3)], False),
        ([(0.1 + 0.2,)], [(0.3,)], True),
        ([(0.3,)], [(0.3001,)], False),
        ([(0.6, 1), (0.6000000000000001, 2)], [(0.6000000000000001, 1), (0.6, 2)], True),  # the same two numbers
        ([("1",)], [(1,)], False),
        ([(None,)], [(None,)], True),
        ([(None,)], [("",)], False),
        (
            [(T + 0.05 + n * 0.9,) for n in range(30)],
            [(T + 0.05 + n * 0.9,) for n in range(30, 60)],
            False,
        ),  # a chain, no equals
        ([(T + n * 0.9, n) for n in range(200)], [(n, T + n * 0.9 + 1e-5) for n in range(199, -1, -1)], True),
        ([(T + 0.6, "a"), (T + 1.9, "b")], [(T + 1, "a"), (T + 3, "b")], True),  # of a whole number, either way
        ([(T, "a"), (T + 1, "b"), (T + 1.5, "c")], [(T + 1, "a"), (T, "b"), (T + 1.5, "c")], False),
    ],
)
def test_what_makes_two_results_the_same_answer(gold: list[Row], predicted: list[Row], same: bool) -> None:
    assert results_match(result(*gold), result(*predicted), ordered=False) is same


def test_keys_within_round_off_are_a_tie() -> None:
    gold, predicted = result((0.3, "a"), (0.1 + 0.2, "b")), result((0.3, "b"), (0.3, "a"))
    assert results_match(gold, predicted, ordered=True, keys=(0,))
    assert not results_match(gold, predicted, ordered=True, keys=None)


def test_rows_of_one_database_do_not_stand_for_those_of_another() -> None:
    golds, predicted = [result((1,)), result((2,))], [result((2,)), result((1,))]
    assert not suites_match(golds, predicted, ordered=False)
    assert suites_match(golds, golds, ordered=False)


def test_a_tolerance_applies_only_where_the_rule_names_one() -> None:
    golds, predicted = [result((0.3,))], [result((0.3001,))]
    assert not get_rule("bag").judge(golds, predicted, gold_sql="SELECT x FROM t")
    assert get_rule("bag~1e-3").judge(golds, predicted, gold_sql="SELECT x FROM t")


def test_a_prediction_that_runs_is_executable_right_or_wrong_and_one_that_fails_is_not(shop: Path) -> None:
    gold = "SELECT COUNT(*) FROM orders"
    questions = [Question("How many?", id=id, db_id="shop", gold=(gold,)) for id in ("right", "wrong", "broken")]
    benchmark = FolderBenchmark("toy", questions, {}, {"shop": shop}, "here")
    predictions = {"right": gold, "wrong": "SELECT COUNT(*) FROM customers", "broken": "SELECT COUNT(*) FROM order"}
    scores = score(benchmark, questions, predictions, replicas=0)
    assert {item.id: (item.va, item.ex) for item in scores.items} == {
        "right": (True, True),
        "wrong": (True, False),
        "broken": (False, False),
    }


@pytest.mark.parametrize(
    ("prediction", "robust"),
    [
        ("SELECT name, id FROM people ORDER BY size, id DESC", True),  # another order of those of one size
        ("SELECT id, name FROM people ORDER BY size, id DESC", True),
        ("SELECT id, coalesce(name, 'x') FROM people ORDER BY size", False),  # other rows where a name is missing
    ],
)
def test_ties_that_nobody_ordered_excuse_another_order_and_no_other_rows(
    tmp_path: Path, prediction: str, robust: bool
) -> None:
    rows = ", ".join(f"({n}, 'name {n}', 'size {n + 10}')" for n in range(20))
    script = f"CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, size TEXT); INSERT INTO people VALUES {rows};"
    people = make_database(tmp_path / "people.sqlite", script)
    gold = "SELECT name, id FROM people ORDER BY size"  # all sizes differ here, and not on replicas
    question = Question("Who?", id="1", db_id="people", gold=(gold,))
    benchmark = FolderBenchmark("toy", [question], {}, {"people": people}, "here")
    (item,) = score(benchmark, [question], {"1": prediction}, replicas=10).items
    assert (item.ex, item.ts) == (True, robust)


def test_texts_that_differ_in_bytes_that_are_no_utf_8_differ(tmp_path: Path) -> None:
    script = """CREATE TABLE p (id INTEGER, n TEXT);
        INSERT INTO p VALUES (1, CAST(x'4dfc6c6c6572' AS TEXT)), (2, CAST(x'4df66c6c6572' AS TEXT));"""
    cases = tmp_path / "cases.json"
    cases.write_text(
        json.dumps(
            [{"schema_sql": script, "gold": "SELECT n FROM p WHERE id = 1", "pred": "SELECT n FROM p WHERE id = 2"}]
        )
    )
    verdicts = run_cases(cases)["cases"][0]["verdicts"]
    assert not any(verdicts[rule] for rule in ("bag", "bird-set", "bird-soft-f1", "defog-subset"))


@pytest.mark.parametrize(
    ("gold", "prediction", "right"),
    [
        ("SELECT m FROM f ORDER BY m", "SELECT m FROM f ORDER BY m, id DESC", True),
        ("SELECT id, n FROM f ORDER BY n COLLATE NOCASE", "SELECT n, id FROM f ORDER BY lower(n), id DESC", True),
        ("SELECT r, id FROM f ORDER BY 1 DESC -- trimmed", "SELECT r, id FROM f ORDER BY r DESC, id DESC", True),
        ("SELECT q, id FROM v UNION SELECT r, id FROM f ORDER BY q", "SELECT q, id FROM v ORDER BY q, id DESC", False),
        ("SELECT q FROM v WHERE q <> 'x' ORDER BY q;", "SELECT q FROM v WHERE q <> 'x' ORDER BY q, id DESC", True),
        ("SELECT n, id FROM f ORDER BY n", "SELECT n, id FROM f ORDER BY lower(n), id", False),
        ("SELECT m FROM f ORDER BY m", "SELECT m FROM f ORDER BY m DESC", False),
        ("SELECT id FROM f ORDER BY m", "SELECT id FROM f ORDER BY m, id DESC", False),  # the key is not shown
    ],
)
def test_keys_that_the_engine_takes_for_equal_are_a_tie(
    tmp_path: Path, gold: str, prediction: str, right: bool
) -> None:
    script = """CREATE TABLE f (id INTEGER PRIMARY KEY, n TEXT, m TEXT COLLATE NOCASE, r TEXT COLLATE RTRIM);
        INSERT INTO f VALUES (1, 'B', 'B', 'x'), (2, 'a', 'a', 'x '), (3, 'b', 'b', 'y'), (4, 'A', 'A', 'y ');
        CREATE VIEW v AS SELECT id, m AS q FROM f;"""
    folded = make_database(tmp_path / "f.sqlite", script)
    question = Question("Which?", id="1", db_id="f", gold=(gold,))
    benchmark = FolderBenchmark("toy", [question], {}, {"f": folded}, "here")
    (item,) = score(benchmark, [question], {"1": prediction}, replicas=3).items
    assert (item.ex, item.ts) == (right, right)
    assert right is False or check_questions(benchmark, [question]) == []
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([{"schema_sql": script, "gold": gold, "pred": prediction}]))
    assert run_cases(cases)["cases"][0]["verdicts"]["bag"] is right
