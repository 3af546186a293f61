"""Guardrails, constraints and reflection: rules of which the case files hold no case that tells."""

from __future__ import annotations

import pytest

from nl2sql.agents.checks.constraints import validate_constraints
from nl2sql.agents.checks.guardrails import clean_candidate_with_reason
from nl2sql.agents.reflection.judge import quality_score


@pytest.mark.parametrize(
    ("raw", "sql"),
    [
        ("I thought of\nSELECT a FROM b\nbut:\n```sql\nSELECT name FROM customers\n```", "SELECT name FROM customers;"),
        ("<think>\n```sql\nSELECT a FROM b\n```\n</think>\nSELECT name FROM customers", "SELECT name FROM customers;"),
        ("<think>Let me see.\nSELECT a FROM b\nno</think>\nselect name from customers", "select name from customers;"),
    ],
)
def test_what_the_model_means_as_its_answer_is_taken(raw: str, sql: str) -> None:
    assert clean_candidate_with_reason(raw)[0] == sql


def test_an_average_may_be_a_quotient_of_two_columns() -> None:
    asked = {"agg": "AVG"}
    assert validate_constraints("SELECT total_sales / num_ovens FROM bakery", asked)["valid"]
    assert not validate_constraints("SELECT num_ovens FROM bakery", asked)["valid"]


def test_a_query_that_did_not_run_has_no_quality_whatever_else_it_has() -> None:
    assert quality_score({"executes": False, "constraints": True, "non_empty": True}) == 0
    assert quality_score({"executes": True, "constraints": True, "non_empty": True}) == 100
