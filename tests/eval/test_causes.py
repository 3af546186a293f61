"""Every wrong answer gets one cause of the closed list; one line per case in tests/fixtures/causes.txt."""

import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.databases.sqlite.database import QueryPool, SqliteDatabase
from nl2sql.eval.causes import _FAILURES, CAUSES, FACET_CAUSES, RULES, cause_of
from nl2sql.interfaces import Question, RunResult
from nl2sql.sql.facets import Facets, differing

FIXTURES = Path(__file__).parent.parent / "fixtures"
CASES = [
    [part.strip() for part in line.split("|||")]
    for line in (FIXTURES / "causes.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("causes") / "library.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript((FIXTURES / "causes.sql").read_text("utf-8"))
    connection.commit()
    connection.close()
    with QueryPool(1) as pool:
        yield SqliteDatabase(path, pool=pool)


def named(library, gold, predicted, *, schema=True, **options):
    results = [
        library.pool.run(library.path, sql, timeout_s=0.3, max_rows=500) if sql else None for sql in (gold, predicted)
    ]
    return cause_of(None, predicted, *results, gold, library.schema() if schema else None, **options)


@pytest.mark.parametrize(("gold", "predicted", "cause"), CASES, ids=[f"{c[2]}-{n}" for n, c in enumerate(CASES)])
def test_cause(library, gold, predicted, cause):
    assert (named(library, gold, predicted) or "right") == cause


def test_the_fixture_has_every_cause():
    assert len(CASES) >= 60 and {cause for *_, cause in CASES} == {*CAUSES, "right"}


def test_only_causes_of_the_list_are_ever_named():
    assert {rule.cause for rule in RULES} <= set(CAUSES)
    assert set(FACET_CAUSES.values()) | set(_FAILURES.values()) <= set(CAUSES)
    assert set(FACET_CAUSES) == set(Facets.__dataclass_fields__)


def test_without_a_schema_nearly_all_cases_are_named_alike(library):
    cases = [case for case in CASES if case[2] != "right"]
    same = Counter((named(library, gold, pred, schema=False) == cause) for gold, pred, cause in cases)
    assert same[False] <= 2


@pytest.mark.parametrize(
    ("gold", "same"),
    [
        (
            "SELECT name FROM author WHERE born > 1960 AND id < 4",
            "select A.Name from AUTHOR a where 4 > a.id and 1960 < a.born",
        ),
        ("SELECT title FROM book WHERE year BETWEEN 1 AND 2", "SELECT title FROM book WHERE year <= 2 AND year >= 1"),
        ("SELECT title FROM book WHERE id IN (1, 2)", "SELECT title FROM book WHERE id = 2 OR id = 1"),
        ("SELECT name FROM author WHERE NOT country = 'x'", "SELECT name FROM author WHERE country <> 'x'"),
        (
            "SELECT author.id FROM author JOIN book ON author.id = author_id",
            "SELECT author_id FROM book, author WHERE author.id = author_id",
        ),
        ("SELECT count(*) FROM book", "SELECT count(id) FROM book"),
        (
            "SELECT genre, count(*) FROM book GROUP BY genre ORDER BY count(*)",
            "SELECT genre, count(*) c FROM book GROUP BY 1 ORDER BY c",
        ),
        ("SELECT title FROM book", "WITH x AS (SELECT title AS t FROM book) SELECT t FROM x"),
        ("SELECT title FROM book", "SELECT y.title FROM (SELECT * FROM book) AS y"),
        ("SELECT DISTINCT genre FROM book", "SELECT genre FROM book GROUP BY genre"),
        ('SELECT name FROM author WHERE country = "Italy"', "SELECT name FROM author WHERE country = 'Italy'"),
        ("SELECT * FROM author", "SELECT id, name, country, born FROM author ORDER BY id"),
    ],
)
def test_writing_habits_are_no_difference(library, gold, same):
    assert differing(gold, same, library.schema()) == frozenset()


def test_a_right_answer_has_no_cause_and_a_verdict_overrules_the_results(library):
    gold, predicted = "SELECT name FROM author WHERE born > 1960", "SELECT name FROM author WHERE born > 1961"
    assert named(library, gold, predicted, right=True) is None
    assert named(library, gold, predicted, right=False) == "filter_value"  # wrong on some other database
    assert named(library, gold, gold, right=False) == "other"


@pytest.mark.parametrize(
    ("kind", "cause"), [*_FAILURES.items(), ("worker_died", "invalid:other"), ("x", "invalid:other")]
)
def test_every_kind_of_failure_has_its_cause(kind, cause):
    failed = RunResult(False, error="?", error_kind=kind)
    ran = RunResult(True, ("a",), ((1,),))
    assert cause_of(None, "SELECT 1", ran, failed, "SELECT 2") == cause
    assert cause_of(None, "SELECT 1", None, None, None, error_kind=kind) == cause


def test_a_question_gives_its_first_gold(library):
    ran = library.pool.run(library.path, "SELECT max(id) FROM author", timeout_s=1)
    wrong = library.pool.run(library.path, "SELECT min(id) FROM author", timeout_s=1)
    question = Question("?", gold=("SELECT max(id) FROM author", "SELECT 4"))
    assert cause_of(question, "SELECT min(id) FROM author", ran, wrong, None) == "grouping_aggregate"


rows = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", None, 0.5])), max_size=4)


@settings(max_examples=60)
@given(st.text(max_size=60), rows, rows)
def test_whatever_ran_gets_a_cause(text, ours, theirs):
    gold, predicted = (RunResult(True, ("a", "b"), tuple(found)) for found in (ours, theirs))
    for sql in (text, f"SELECT {text}", "SELECT a, b FROM t ORDER BY 7"):
        assert cause_of(None, sql, gold, predicted, "SELECT a, b FROM t", right=False) in CAUSES
