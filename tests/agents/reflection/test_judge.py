"""Reflection on one attempt: what is acceptable, what is tried again, and how good it looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents.reflection import should_refine
from nl2sql.agents.reflection.judge import WEIGHTS, judge_attempt, quality_parts, quality_score
from nl2sql.databases.sqlite.database import SqliteDatabase

VALID = {"is_valid": True, "has_results": True, "reason": "ok"}


def executed(path: Path, sql: str) -> dict[str, Any]:
    """What execute_sql leaves behind, from a real run."""
    with SqliteDatabase(path) as database:
        result = database.run(sql, timeout_s=0.5, max_rows=100)
    if not result.success:
        return {"success": False, "error": result.error, "error_kind": result.error_kind}
    return {"success": True, "columns": list(result.columns), "row_count": len(result.rows)}


def test_good_sql_is_accepted_with_exactly_four_fields(shop: Path) -> None:
    found = judge_attempt(executed(shop, "SELECT * FROM customers"), VALID)
    assert found.result == {
        "is_acceptable": True,
        "should_refine": False,
        "issues": [],
        "reasoning": "SQL quality acceptable",
    }


@pytest.mark.parametrize(
    ("sql", "advised"),
    [
        ("SELCT * FROM customers", "SELECT"),
        ("SELECT * FROM wrong_table", "customers"),
        ("SELECT nam FROM customers", "customers.name"),
        ("SELECT YEAR(status) FROM orders", "strftime"),
    ],
)
def test_a_critical_error_is_retried_with_advice(sql: str, advised: str, shop: Path) -> None:
    with SqliteDatabase(shop) as database:
        found = judge_attempt(executed(shop, sql), None, sql=sql, schema=database.schema())
    assert found.severity == "critical" and found.result["should_refine"] and not found.result["is_acceptable"]
    assert found.result["issues"] and advised in " ".join(found.suggestions)
    assert len(found.suggestions) == 2, "the broken rule, and what to do instead"


def test_an_empty_result_is_reported_and_accepted(shop: Path) -> None:
    found = judge_attempt(executed(shop, "SELECT * FROM customers WHERE city = 'Rom'"), {**VALID, "has_results": False})
    assert found.result["is_acceptable"] and not found.result["should_refine"]
    assert found.result["issues"] == ["Query returned no results"]


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
LACKING = {"is_valid": False, "has_results": True, "reason": "missing_agg:COUNT"}


@pytest.mark.parametrize(
    ("sql", "validation", "retried"),
    [
        ("SELECT * FROM nowhere", None, True),
        (ENDLESS, None, False),
        ("SELECT json_extract('{', '$')", None, False),
        ("SELECT name FROM customers", LACKING, False),
        ("SELECT name FROM customers", VALID, False),
    ],
)
def test_only_what_is_critical_is_tried_again_and_only_what_ran_is_acceptable(
    sql: str, validation: dict[str, Any] | None, retried: bool, shop: Path
) -> None:
    execution = executed(shop, sql)
    found = judge_attempt(execution, validation, sql=sql).result
    assert (found["should_refine"], found["is_acceptable"]) == (retried, execution["success"])


def test_a_database_that_is_gone_ends_it(shop: Path) -> None:
    database = SqliteDatabase(shop)
    shop.unlink()
    failed = database.run("SELECT 1")
    found = judge_attempt({"success": False, "error": failed.error, "error_kind": failed.error_kind}, None)
    assert found.severity == "fatal" and not found.result["should_refine"] and not found.result["is_acceptable"]


@pytest.mark.parametrize(("iteration", "wanted"), [(1, "refine"), (2, "refine"), (3, "complete"), (4, "complete")])
def test_refinement_stops_at_max_iterations(iteration: int, wanted: str) -> None:
    state: Any = {"reflection_result": {"should_refine": True}, "iteration": iteration, "max_iterations": 3}
    assert should_refine(state) == wanted
    assert should_refine({**state, "reflection_result": None}) == "complete"


RAN = {"success": True, "columns": ["name", "city"], "row_count": 2}
LISTED = "Show the name and city of all customers."


@pytest.mark.parametrize(
    ("question", "execution", "validation", "score"),
    [
        (LISTED, {"success": False, "error": "x"}, VALID, 0),
        (LISTED, RAN, VALID, 100),
        (LISTED, RAN, LACKING, 72),  # 65 of 90
        (LISTED, {**RAN, "columns": ["name"]}, VALID, 83),
        (LISTED, RAN, {**VALID, "has_results": False}, 89),
        ("Who?", {**RAN, "columns": ["a", "b", "c"]}, VALID, 100),  # enumerates nothing: 75 of 75
    ],
)
def test_the_quality_score_is_the_share_of_the_parts_that_can_be_told(
    question: str, execution: dict[str, Any], validation: dict[str, Any], score: int
) -> None:
    assert sum(WEIGHTS.values()) == 90
    assert quality_score(quality_parts(question, execution, validation)) == score


ISSUES = [  # (what a run left behind, the issue that is recorded beside its acceptance)
    ({"truncated": True}, ["Query returned more rows than are kept"]),
    ({"truncated": False}, []),
    ({"seconds": 5.1}, ["Query took 5.1 s"]),
    ({"seconds": 5.0}, []),
]


@pytest.mark.parametrize(("seen", "issues"), ISSUES)
def test_a_cut_and_a_slow_result_are_issues_that_stand(seen: dict[str, Any], issues: list[str]) -> None:
    result = judge_attempt({**RAN, **seen}, VALID, slow_s=5.0).result
    assert (result["issues"], result["is_acceptable"], result["should_refine"]) == (issues, True, False)


KINDS = [  # the runner's kind decides where the message says nothing, or something else
    ("it went wrong", "syntax", "critical"),
    ("it went wrong", "timeout", "non_critical"),
    ("it went wrong", None, "non_critical"),
    ("no such column: nam", "timeout", "non_critical"),
    ("not authorized", "denied", "critical"),
]


@pytest.mark.parametrize(("error", "kind", "severity"), KINDS)
def test_the_class_is_that_of_the_runner_s_kind(error: str, kind: str | None, severity: str) -> None:
    found = judge_attempt({"success": False, "error": error, "error_kind": kind}, None)
    assert found.severity == severity and found.result["should_refine"] is (severity == "critical")
    assert kind is None or f"kind:{kind}" in found.result["reasoning"]


def test_what_is_fatal_is_never_tried_again() -> None:
    gone = {"success": False, "error": "database disk image is malformed", "error_kind": "syntax"}
    found = judge_attempt(gone, None)
    assert (found.severity, found.rule, found.result["should_refine"]) == ("fatal", "code", False)
    assert found.suggestions == []


PROJECTED = [  # (question, columns of the result, whether it has as many as were asked for)
    (LISTED, 1, False),
    (LISTED, 2, True),
    (LISTED, 3, False),
    ("Show the name and city of all customers, and also how much they spent.", 3, True),
    ("Show the name and city of all customers, and also how much they spent.", 1, False),
    ("Who?", 3, None),
]


@pytest.mark.parametrize(("question", "columns", "met"), PROJECTED)
def test_a_result_has_as_many_columns_as_the_question_enumerates(question: str, columns: int, met: bool | None) -> None:
    parts = quality_parts(question, {**RAN, "columns": ["c"] * columns}, VALID)
    assert parts.get("projection") is met
