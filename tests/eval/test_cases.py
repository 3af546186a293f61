"""Files of single cases: every rule's verdict, and how far it agrees with what the references said."""

import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from nl2sql.databases.sqlite.database import QueryPool
from nl2sql.errors import UsageError
from nl2sql.eval.cases import run_cases
from nl2sql.eval.rules import RULES

PINS = json.loads((Path(__file__).parent.parent / "fixtures" / "verdict_pins.json").read_text(encoding="utf-8"))
TABLE = "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (1, 'y'), (2, 'z');"
ENDLESS = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r"


@pytest.fixture(autouse=True)
def folder_for_cases(tmp_path, monkeypatch):
    """Where the cases' own folders are made, so that a test sees what they leave behind."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def judged(tmp_path):
    """Writes the given cases to a file and judges them: (report, verdicts by id)."""

    def judge(*cases, **options):
        file = tmp_path / "cases.json"
        file.write_text(json.dumps(cases), encoding="utf-8")
        report = json.loads(json.dumps(run_cases(file, **options)))
        return report, {case["id"]: case for case in report["cases"]}

    return judge


def case(gold, pred, **more):
    return {"id": "c", "schema_sql": TABLE, "gold": gold, "pred": pred, **more}


def test_a_case_gets_the_verdict_of_every_rule(judged):
    _, found = judged(case("SELECT DISTINCT a FROM t", "SELECT a FROM t"))
    assert found["c"]["verdicts"] == {
        "bag": False,
        "spider": True,
        "bird-set": True,
        "bird-soft-f1": True,
        "defog-subset": True,
        "spider2": False,
        "spider2-rows": False,
        "livesqlbench": True,
    }
    assert found["c"]["error"] is None and found["c"]["points"] == {"bird-soft-f1": 1.0}


@pytest.mark.parametrize(
    "bare",
    [
        {},
        {"gold": None, "pred": None, "schema_sql": None},
        {"schema_sql": TABLE, "gold": "SELECT a FROM t"},
        {"schema_sql": TABLE, "pred": "SELECT a FROM t", "expect": None, "official": {"db_changed": None}},
        {"schema_sql": "CREATE TABLE", "gold": "SELECT 1", "pred": "SELECT 1"},
        {"id": 7, "gold": "SELECT 1", "pred": "SELECT 1", "harness_should": {}, "readings": {}, "expect": {}},
        {"gold": ["SELECT 2", "SELECT 1"], "pred": "SELECT 1", "expect": {"test_suite_bag": True}},
        {"schema_sql": "ATTACH '@DIR@/other.db' AS o", "gold": "SELECT 1", "pred": "SELECT 1"},
        {"schema_sql": f"CREATE TABLE t AS {ENDLESS}", "gold": "SELECT 1", "pred": "SELECT 1"},
    ],
)
def test_missing_and_broken_parts_of_a_case_are_no_crash(judged, bare):
    report, _ = judged(bare, case("SELECT 1", "SELECT 1"), timeout_s=0.5)
    first, second = report["cases"]
    assert set(first["verdicts"]) == set(RULES) and first["id"] == str(bare.get("id", 0))
    assert set(second["verdicts"].values()) == {True}
    if bare.get("pred") == "SELECT 1" and bare.get("schema_sql") is None:
        assert set(first["verdicts"].values()) == {True}
    else:
        assert True not in first["verdicts"].values()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM t RETURNING a",
        "INSERT INTO t VALUES (3, 'q')",
        "VACUUM INTO '@DIR@/leak.db'",
        "ATTACH '@DIR@/leak.db' AS leak",
        "CREATE TEMP VIEW t AS SELECT 1 AS a WHERE 0",
        "PRAGMA user_version = 7",
        "SELECT a FROM t; DROP TABLE u",
    ],
)
def test_what_writes_is_wrong_even_where_a_reference_credits_it(judged, sql):
    report, found = judged(
        case("SELECT a FROM t WHERE a > 9", sql, expect={"test_suite_bag": True, "bird_set": True}),
    )
    assert True not in {found["c"]["verdicts"][name] for name in ("bag", "bird-set", "defog-subset")}
    assert report["agreement"]["bird-set"]["differ"] == ([] if "; DROP" not in sql else ["c"])


def test_an_endless_statement_ends_at_the_deadline(judged):
    with QueryPool(2) as pool:
        began = time.perf_counter()
        _, found = judged(case("SELECT count(*) FROM t", ENDLESS), timeout_s=0.5, pool=pool)
        assert time.perf_counter() - began < 10
    assert set(found["c"]["verdicts"].values()) == {False} and "0.5 s" in found["c"]["error"]


def test_only_a_failing_gold_has_no_verdict(judged):
    _, found = judged(case("SELECT nope FROM t", "SELECT a FROM t"))
    assert found["c"]["verdicts"] == {
        "bag": None,
        "spider": None,
        "bird-set": False,
        "bird-soft-f1": False,
        "defog-subset": None,
        "spider2": None,
        "spider2-rows": None,
        "livesqlbench": False,
    }
    assert found["c"]["error"].startswith("gold: no such column")


def test_a_blank_prediction_is_an_empty_result_only_to_bird(judged):
    _, found = judged(case("SELECT a FROM t WHERE a > 9", " "))
    assert {name for name, verdict in found["c"]["verdicts"].items() if verdict} == {"bird-set", "bird-soft-f1"}


def test_agreement_counts_what_the_file_says(judged):
    report, _ = judged(
        case("SELECT a FROM t", "SELECT a FROM t", expect={"test_suite_bag": True, "bird_set": False}),
        case("SELECT 1", "SELECT 2", expect={"test_suite_bag": None}, harness_should={"verdict": False}),
        case("SELECT x", "SELECT 2", harness_should={"verdict": None, "status": "gold_error"}),
    )
    assert report["agreement"]["spider"] == {"n": 1, "agree": 1, "differ": [], "refused": []}
    assert report["agreement"]["bird-set"] == {"n": 1, "agree": 0, "differ": ["c"], "refused": []}
    assert report["agreement"]["bag"] == {"n": 2, "agree": 2, "differ": [], "refused": []}


@pytest.mark.parametrize("text", ["", "{}", "[1]", "3", '{"cases": 1}'])
def test_a_file_that_holds_no_cases_is_one_clear_line(tmp_path, text):
    file = tmp_path / "cases.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"case file .*cases\.json"):
        run_cases(file)
    with pytest.raises(UsageError, match=r"nothing\.json cannot be read"):
        run_cases(tmp_path / "nothing.json")


def test_reference_verdicts_are_reproduced_and_those_of_bag_are_pinned():
    root = os.environ.get("NL2SQL_BENCHMARKS")
    file = Path(root or "") / "oracles" / "verdict_cases.json"
    if not root or not file.is_file():
        pytest.skip("NL2SQL_BENCHMARKS is not set")
    report = run_cases(file, timeout_s=1.0)
    assert {name: found["differ"] for name, found in report["agreement"].items()} == {
        "spider": [],
        "bird-set": [],
        "bag": [],
    }
    assert [report["agreement"][name]["n"] for name in ("spider", "bird-set", "bag")] == [80, 88, 21]
    assert {case["id"]: case["verdicts"]["bag"] for case in report["cases"]} == {
        id_: pin["verdict"] for id_, pin in PINS.items()
    }
    assert all(pin["why"] for pin in PINS.values())
    gold_fails = {case["id"] for case in report["cases"] if (case["error"] or "").startswith("gold: ")}
    assert {case["id"] for case in report["cases"] if None in case["verdicts"].values()} <= gold_fails
