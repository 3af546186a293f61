"""The constraint gates, held by fixture files of one case a line and by property tests."""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.agents.checks.constraints import extract_constraints, intent_constraints, validate_constraints
from nl2sql.agents.checks.constraints.evidence import read_cues
from nl2sql.databases.schema import Schema, introspect

FIXTURES = Path(__file__).parents[1] / "fixtures"
NOTHING: dict[str, Any] = {
    "agg": None,
    "needs_group_by": False,
    "needs_order_by": False,
    "limit": None,
    "distinct": False,
}


def cases(name: str) -> list[Any]:
    """The cases of a fixture file: fields between |||, % for comments; each named by its line."""
    return [
        pytest.param(*(field.strip() for field in line.split("|||")), id=f"{name}:{number}")
        for number, line in enumerate((FIXTURES / name).read_text(encoding="utf-8").splitlines(), 1)
        if line.strip() and not line.startswith("%")
    ]


@cache
def bakeries() -> Schema:
    connection = sqlite3.connect(":memory:")
    connection.executescript((FIXTURES / "gates_schema.sql").read_text(encoding="utf-8"))
    return introspect(connection)


def constraints_from(words: str) -> dict[str, Any]:
    """``COUNT group limit=3`` -> the dictionary of the specification."""
    out = dict(NOTHING)
    for word in words.replace("-", " ").split():
        if word.isupper():
            out["agg"] = word
        elif word.startswith("limit="):
            out["limit"] = int(word[6:])
        else:
            out[{"group": "needs_group_by", "order": "needs_order_by", "distinct": "distinct"}[word]] = True
    return out


@pytest.mark.parametrize(("nlq", "expected"), cases("extract_constraints.txt"))
def test_extract_constraints_reads_cues_in_context(nlq: str, expected: str) -> None:
    assert extract_constraints(nlq) == constraints_from(expected)


@pytest.mark.parametrize(("words", "sql", "reason"), cases("validate_constraints.txt"))
def test_validate_constraints_knows_the_alternatives(words: str, sql: str, reason: str) -> None:
    found = validate_constraints(sql, constraints_from(words), bakeries())
    assert found == {"valid": reason in ("ok", "unparsed"), "reason": reason}


@pytest.mark.parametrize(("nlq", "sql", "reason"), cases("intent.txt"))
def test_intent_constraints_judges_question_and_query_together(nlq: str, sql: str, reason: str) -> None:
    assert intent_constraints(nlq, sql, bakeries()) == (reason in ("ok", "unparsed"), reason)


@pytest.mark.parametrize("name", ["extract_constraints.txt", "validate_constraints.txt", "intent.txt"])
def test_each_gate_has_at_least_sixty_cases(name: str) -> None:
    assert len(cases(name)) >= 60


@pytest.mark.parametrize(("nlq", "sql", "reason"), [c for c in cases("intent.txt") if c.values[2] == "ok"])
def test_what_intent_accepts_the_first_gate_accepts_as_well(nlq: str, sql: str, reason: str) -> None:
    assert validate_constraints(sql, extract_constraints(nlq), bakeries())["valid"]


def test_missing_fields_of_constraints_ask_for_nothing() -> None:
    assert validate_constraints("SELECT full_name FROM baker", {})["valid"]


def test_gates_work_without_a_schema() -> None:
    assert not validate_constraints("SELECT full_name FROM baker", {"agg": "COUNT"})["valid"]
    assert validate_constraints("SELECT num_ovens FROM bakery", {"agg": "COUNT"})["valid"]
    assert intent_constraints("How many bakers are there?", "SELECT * FROM baker") == (False, "missing_agg:COUNT")


def test_extract_constraints_returns_exactly_the_fields_of_the_specification() -> None:
    assert list(extract_constraints("")) == list(NOTHING)


SQL_WORDS = """SELECT FROM WHERE GROUP BY ORDER LIMIT COUNT ( ) * , a b t 1 'x' " AS JOIN ON = UNION HAVING MAX DISTINCT
; -- IN NOT EXISTS OVER WITH CASE WHEN END /"""
QUESTION_WORDS = (
    """how many number of the most at least 3 different each per average total order by top first ? , 'x' " If"""
)


def jumbled(words: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(words.split()), max_size=20).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(
    nlq=st.one_of(st.text(max_size=60), jumbled(QUESTION_WORDS)),
    sql=st.one_of(st.text(max_size=60), jumbled(SQL_WORDS)),
)
def test_gates_never_raise(nlq: str, sql: str) -> None:
    found = validate_constraints(sql, extract_constraints(nlq), bakeries())
    ok, reason = intent_constraints(nlq, sql, bakeries())
    assert isinstance(found["valid"], bool) and found["valid"] == (found["reason"] in ("ok", "unparsed"))
    assert ok == (reason in ("ok", "unparsed"))


@pytest.mark.parametrize(
    "unit", ["how many each ", "the most ", "a", "if each ", "' ", "number of " * 3, "in ", "1 , "]
)
def test_a_very_long_question_is_read_in_linear_time(unit: str) -> None:
    read_cues((unit * 50_000)[:50_000])
