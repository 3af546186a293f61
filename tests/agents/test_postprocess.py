"""guarded_postprocess, held by tests/fixtures/postprocess.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from nl2sql.agents.checks.postprocess import guarded_postprocess


def cases() -> list[tuple[str, ...]]:
    lines = (Path(__file__).parents[1] / "fixtures" / "postprocess.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.strip() and not line.startswith("%")]
    return [
        tuple(part.strip(" ").replace("\\n", "\n").replace("\\t", "\t") for part in line.split("|||")) for line in kept
    ]


@pytest.mark.parametrize("case", cases(), ids=" | ".join)
@pytest.mark.parametrize("keep_order", [True, False])
def test_only_what_nobody_asked_for_is_stripped(case: tuple[str, ...], keep_order: bool) -> None:
    nlq, sql, expected = *case[:2], case[2] if keep_order else case[-1]
    once = guarded_postprocess(sql, nlq, keep_order=keep_order)
    assert once == (sql if expected == "=" else expected)
    assert guarded_postprocess(once, nlq, keep_order=keep_order) == once


def test_a_question_of_any_length_is_read_quickly() -> None:
    assert guarded_postprocess("SELECT a FROM t ORDER BY a LIMIT 5", "the books " * 10_000) == "SELECT a FROM t;"
