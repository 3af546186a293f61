"""Training data that an evaluation set holds too is found, whatever it is called there."""

from __future__ import annotations

import pytest
from people import make_database
from training.leaks import leaks

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import Question

ROWS = "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x');"


def made(folder, name, script, text, sql):
    folder.mkdir(exist_ok=True)
    path = make_database(folder / f"{name}.sqlite", script)
    question = Question(text, id=f"{name}-0", db_id=name, gold=(sql,))
    benchmark = FolderBenchmark(name, [question], {}, {name: path})
    return benchmark, [question]


@pytest.mark.parametrize(
    ("script", "text", "sql", "kinds"),
    [
        (ROWS, "Something else?", "SELECT b FROM t", ["database", "schema"]),
        (ROWS.replace("'x'", "'y'"), "Something else?", "SELECT b FROM t", ["schema"]),
        ("CREATE TABLE t (a, c);", "How many a are there ?", "select A from T", ["question"]),
        ("CREATE TABLE t (a, c);", "Other words", "SELECT a FROM t", []),
    ],
)
def test_what_is_shared_is_named(tmp_path, script, text, sql, kinds):
    trained = made(tmp_path, "trained", ROWS, "How many a are there?", "SELECT a FROM t")
    other = made(tmp_path, "other", script, text, sql)
    found = leaks(trained, [("evaluation", *other)])
    assert [leak.kind for leak in found] == kinds
    assert all(leak.evaluated.startswith("evaluation:other") for leak in found)


def test_every_training_question_and_database_that_an_evaluation_holds_is_named(tmp_path):
    """Who drops what is named must not keep a twin of it."""
    other = made(tmp_path, "other", ROWS, "How many a are there?", "SELECT a FROM t")
    paths = {name: make_database(tmp_path / f"{name}.sqlite", ROWS) for name in ("first", "second")}
    texts = {"first": "How many a are there?", "second": "How  many A are there ?", "reworded": "Count a."}
    questions = [
        Question(text, id=id_, db_id="second" if id_ == "second" else "first", gold=("SELECT 1", "SELECT a FROM t"))
        for id_, text in texts.items()
    ]
    questions[2].meta["question_syn"] = "How many a are there?"
    found = leaks((FolderBenchmark("trained", questions, {}, paths), questions), [("evaluation", *other)])
    named = {kind: {leak.trained for leak in found if leak.kind == kind} for kind in ("database", "schema", "question")}
    assert named["database"] == named["schema"] == {"first", "second"}
    assert named["question"] == set(texts)


def test_of_an_evaluated_database_that_cannot_be_read_nothing_is_claimed(tmp_path):
    """A training database that cannot be read teaches nothing; an evaluated one may hold anything."""
    sound = made(tmp_path, "trained", ROWS, "q", "SELECT a FROM t")
    gone = FolderBenchmark("other", [Question("q", id="o", db_id="gone", gold=("SELECT 2",))], {}, {})
    assert leaks((gone, gone.questions), [("other", *sound)]) == []
    with pytest.raises(UsageError, match="other cannot be checked for leaks: database gone"):
        leaks(sound, [("other", gone, gone.questions)])


def test_the_packaged_questions_do_not_leak_between_databases():
    """The leak check on data that is here: each packaged database against all others."""
    benchmark = load_benchmark("packaged", split="all")
    names = sorted({question.db_id for question in benchmark.questions})
    for name in names[:3]:
        mine = [q for q in benchmark.questions if q.db_id == name]
        others = [q for q in benchmark.questions if q.db_id != name and scorable(q)]
        assert leaks((benchmark, mine), [("others", benchmark, others)]) == []


def test_spider_s_training_questions_are_none_of_those_we_evaluate_on():
    benchmark = load_benchmark("packaged", split="all")
    try:
        spider = load_benchmark("spider", split="train")
    except Nl2SqlError as error:
        pytest.skip(f"NL2SQL_BENCHMARKS with spider is needed: {error}")
    found = leaks((spider, spider.questions), [("packaged", benchmark, benchmark.questions)])
    assert found == []
