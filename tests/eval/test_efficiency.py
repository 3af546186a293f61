"""R-VES: what right predictions cost beside their golds."""

import json
import math
import sqlite3

import pytest
import typer
from typer.testing import CliRunner

from nl2sql.benchmarks import FolderBenchmark
from nl2sql.cli.score import score_command
from nl2sql.databases.sqlite.database import QueryPool
from nl2sql.errors import UsageError
from nl2sql.eval import score_many
from nl2sql.eval.efficiency import add_efficiency, reward, usual_ratio
from nl2sql.interfaces import Question

CHEAP = "SELECT 700"
DEAR = "SELECT max(a.i) FROM n a, n b WHERE a.i + b.i > 0"
BOUNDS = {"timeout_s": 30.0, "max_rows": 1000}


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE n (i INTEGER)")
    connection.executemany("INSERT INTO n VALUES (?)", [(n,) for n in range(1, 701)])
    connection.commit()
    connection.close()
    return path


def scored(path, gold, answers, **meta):
    questions = [Question("?", "d", "q", gold=(gold,), meta=meta)]
    benchmark = FolderBenchmark("b", questions, {}, {"d": path})
    predictions = {name: {"q": sql} for name, sql in answers.items()}
    return benchmark, score_many(benchmark, questions, predictions, replicas=0)


@pytest.mark.parametrize("cost", ["steps", "time"])
def test_a_right_answer_is_rewarded_by_what_it_costs_beside_the_gold(numbers, cost):
    benchmark, scores = scored(numbers, DEAR, {"cheap": CHEAP, "wrong": "SELECT 1"})
    add_efficiency(benchmark, benchmark.questions, scores, cost, **BOUNDS)
    name = f"R-VES[bag,{cost}]"
    found = scores["cheap"].metrics()[name]
    assert found.value == math.sqrt(1.25) <= found.high
    assert scores["wrong"].metrics()[name].value == 0

    benchmark, scores = scored(numbers, CHEAP, {"dear": DEAR})
    add_efficiency(benchmark, benchmark.questions, scores, cost, **BOUNDS)
    assert scores["dear"].metrics()[name].value == math.sqrt(0.25)


def test_a_statement_takes_as_many_steps_as_its_own_gold(numbers):
    benchmark, scores = scored(numbers, DEAR, {"same": DEAR})
    add_efficiency(benchmark, benchmark.questions, scores, "steps", **BOUNDS)
    assert scores["same"].metrics()["R-VES[bag,steps]"].value == 1


@pytest.mark.parametrize("sql", [CHEAP, DEAR, "SELECT i FROM n ORDER BY -i", "SELECT CAST(x'e9' AS TEXT) FROM n"])
def test_the_sandbox_counts_the_steps_that_sqlite_takes(numbers, sql):
    counted = 0

    def count():
        nonlocal counted
        counted += 1

    connection = sqlite3.connect(numbers)
    connection.text_factory = bytes
    connection.execute("SELECT 1 FROM n").fetchall()  # the schema is read
    connection.set_progress_handler(count, 1)
    connection.execute(sql).fetchall()
    connection.close()
    for _ in range(2):  # in processes of their own
        with QueryPool(1) as pool:
            assert [pool.steps(numbers, sql).rows for _ in range(3)] == [((counted,),)] * 3


def test_counting_is_held_to_the_sandbox_and_its_bounds(numbers):
    with QueryPool(1) as pool:
        assert pool.steps(numbers, "DELETE FROM n").error_kind == "denied"
        endless = "SELECT count(*) FROM n a, n b, n c WHERE a.i + b.i + c.i < 0"
        assert pool.steps(numbers, endless, timeout_s=0.1).error_kind == "timeout"
        assert pool.run(numbers, "SELECT count(*) FROM n").rows == ((700,),)


def test_what_fails_when_it_is_executed_again_counts_nothing_and_is_said(numbers):
    benchmark, scores = scored(numbers, DEAR, {"a": DEAR})
    connection = sqlite3.connect(numbers)
    connection.executescript("CREATE TABLE m (i); DROP TABLE n")
    connection.close()
    add_efficiency(benchmark, benchmark.questions, scores, "steps", **BOUNDS)
    assert scores["a"].metrics()["R-VES[bag,steps]"].value == 0
    assert "1 right item(s) or their golds failed" in scores["a"].all_warnings()[0]


def test_golds_that_are_tables_have_no_cost(numbers):
    benchmark, scores = scored(numbers, CHEAP, {"a": CHEAP}, gold_tables=True)
    with pytest.raises(UsageError, match="no --rves"):
        add_efficiency(benchmark, benchmark.questions, scores, "steps", **BOUNDS)


@pytest.mark.parametrize(
    ("ratio", "points"),
    [
        *((0, 0), (1e-9, 0.25), (0.2499, 0.25), (0.25, 0.5), (0.4999, 0.5), (0.5, 0.75)),
        *((0.9999, 0.75), (1, 1), (1.9999, 1), (2, 1.25), (1e9, 1.25)),
    ],
)
def test_the_reward_has_the_steps_of_birds_script(ratio, points):
    assert reward(ratio) == points


def test_ratios_three_deviations_from_the_mean_are_dropped():
    assert usual_ratio([1.0, 1.5] * 10 + [1000.0]) == 1.25
    assert usual_ratio([2.0, 2.0]) == 2.0
    assert usual_ratio([1.0, 4.0]) == 2.5


def test_score_has_the_column_where_it_is_asked_for(numbers, tmp_path):
    item = {"id": "q", "question": "?", "db_id": "numbers", "query": DEAR}
    for name, record in (("questions.json", [item]), ("p.json", [{"id": "q", "sql": CHEAP}])):
        (tmp_path / name).write_text(json.dumps(record))
    app = typer.Typer()
    app.command()(score_command)
    asked = ["-b", str(tmp_path), "-p", str(tmp_path / "p.json"), "--replicas", "0"]
    shown = CliRunner().invoke(app, [*asked, "--rves", "steps"], catch_exceptions=False).stdout
    assert "R-VES[bag,steps]" in shown and "111.8 [" in shown
    assert "R-VES" not in CliRunner().invoke(app, asked, catch_exceptions=False).stdout
