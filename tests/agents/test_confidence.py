"""The confidence in the best candidate: what it is made of, and what abstains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents.candidates.confidence import packaged, signals
from nl2sql.agents.checks.logistic import LEAST, logistic
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.config import CandidatesConfig
from nl2sql.databases.sqlite.database import SqliteDatabase

SETTINGS = CandidatesConfig(choose="question", length_penalty=0.0)


def entry(vote: float, probability: float | None = 0.5, question: float = -9.0, **more: Any) -> dict[str, Any]:
    parts = {"executes": 1.0, "rows": 1.0, "vote": vote, "probability": probability}
    return {"refusal": None, "parts": parts, "question": question, **more}


def test_the_mass_is_that_of_all_candidates_with_the_same_rows():
    alike = [entry(0.5), entry(0.25), entry(0.25)]
    seen = [signals(alike, groups, SETTINGS, uncovered=0.0)["mass"] for groups in ([0, 1, 2], [0, 1, 0], [0, 0, 0])]
    assert seen == pytest.approx([1 / 3, 2 / 3, 1.0])
    failing = entry(0.5)
    failing["parts"]["executes"] = 0.0
    assert signals([entry(0.5), failing], [0, 1], SETTINGS, uncovered=0.0)["mass"] == 1.0, "what fails has none"


def test_each_signal_is_what_it_is_called():
    seen = signals([entry(0.3, suspected=["fan_out"], refusal="x")], [0], SETTINGS, uncovered=0.4)
    assert (seen["agreed"], seen["suspected"], seen["refused"], seen["uncovered"]) == (0.3, 1.0, 1.0, 0.4)
    unknown = signals([entry(0.3, probability=None)], [0], SETTINGS, uncovered=0.0)
    assert unknown["likely"] == -60.0 and unknown["mass"] == 1.0


def test_more_agreement_is_more_confidence_and_a_suspicion_less():
    def sure(ranking: list[dict[str, Any]], groups: list[int]) -> float:
        return logistic(signals(ranking, groups, SETTINGS, uncovered=0.0), packaged()["question"])

    torn, agreed = sure([entry(0.3), entry(0.3), entry(0.3)], [0, 1, 2]), sure([entry(0.9), entry(0.1)], [0, 0])
    assert torn < agreed and sure([entry(0.9, suspected=["fan_out"])], [0]) < sure([entry(0.9)], [0])
    assert logistic({"agreed": 1.0}, {"constant": 1e6}) == 1 - LEAST
    assert logistic({"agreed": 1.0}, {"constant": 0.0, "agreed": -1e6}) == LEAST


def test_words_that_nothing_stands_for_are_counted(shop: Path):
    with SqliteDatabase(shop) as database:
        schema = database.schema()
    assert uncovered_share("How many customers are there?", "SELECT COUNT(*) FROM customers", schema) == 0.0
    assert uncovered_share("Which customers live in Bern?", "SELECT 1", schema) == pytest.approx(2 / 3)
    bern = "SELECT name FROM customers WHERE city = 'Bern'"
    assert uncovered_share("Which customers live in Bern?", bern, schema) == pytest.approx(1 / 3)
    assert uncovered_share("What is the total?", "SELECT 1", schema) == 0.0
