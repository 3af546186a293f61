"""guarded_postprocess, held by tests/fixtures/postprocess.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from nl2sql.agents.checks.guardrails import guarded_postprocess


def cases() -> list[tuple[str, ...]]:
    lines = (Path(__file__).parents[1] / "fixtures" / "postprocess.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.strip() and not line.startswith("%")]
    return [
        tuple(part.strip(" ").replace("\\n", "\n").replace("\\t", "\t") for part in line.split("|||")) for line in kept
    ]


@pytest.mark.parametrize("case", cases(), ids=" | ".join)
@pytest.mark.parametrize("strip", [False, True])
def test_an_order_or_a_limit_goes_only_where_the_letter_is_asked_for(case: tuple[str, ...], strip: bool) -> None:
    nlq, sql, expected = *case[:2], case[-1] if strip else case[2]
    once = guarded_postprocess(sql, nlq, strip_unasked=strip)
    assert once == (sql if expected == "=" else expected)
    assert guarded_postprocess(once, nlq, strip_unasked=strip) == once


def test_a_question_of_any_length_is_read_quickly() -> None:
    sql = "SELECT a FROM t ORDER BY a LIMIT 5"
    assert guarded_postprocess(sql, "the books " * 10_000, strip_unasked=True) == "SELECT a FROM t;"
