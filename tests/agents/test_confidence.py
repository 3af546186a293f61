"""The confidence in the best candidate: what it is made of, and what abstains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents.candidates import candidates
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.agents.ranking import LEAST, logistic, packaged, signals
from nl2sql.agents.record import Episode
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Completion, Question, Resources
from nl2sql.models.scripted import ScriptedModel

NAMES = "SELECT name FROM customers;"


def entry(vote: float, probability: float | None = 0.5, **more: Any) -> dict[str, Any]:
    parts = {"executes": 1.0, "rows": 1.0, "vote": vote, "probability": probability}
    return {"refusal": None, "parts": parts, **more}


def test_the_mass_is_that_of_all_candidates_with_the_same_rows():
    alike = [entry(0.5), entry(0.25), entry(0.25)]
    seen = [signals(alike, groups, uncovered=0.0)["mass"] for groups in ([0, 1, 2], [0, 1, 0], [0, 0, 0])]
    assert seen == pytest.approx([1 / 3, 2 / 3, 1.0])
    failing = entry(0.5)
    failing["parts"]["executes"] = 0.0
    assert signals([entry(0.5), failing], [0, 1], uncovered=0.0)["mass"] == 1.0, "what fails has none"


def test_each_signal_is_what_it_is_called():
    seen = signals([entry(0.3, suspected=["fan_out"], refusal="x")], [0], uncovered=0.4)
    assert (seen["agreed"], seen["suspected"], seen["refused"], seen["uncovered"]) == (0.3, 1.0, 1.0, 0.4)
    unknown = signals([entry(0.3, probability=None)], [0], uncovered=0.0)
    assert unknown["logprob"] == -60.0 and unknown["mass"] == 1.0


def test_more_agreement_is_more_confidence_and_a_suspicion_less():
    def p_correct(ranking: list[dict[str, Any]], groups: list[int]) -> float:
        return logistic(signals(ranking, groups, uncovered=0.0), packaged())

    torn, agreed = (
        p_correct([entry(0.3), entry(0.3), entry(0.3)], [0, 1, 2]),
        p_correct([entry(0.9), entry(0.1)], [0, 0]),
    )
    assert torn < agreed and p_correct([entry(0.9, suspected=["fan_out"])], [0]) < p_correct([entry(0.9)], [0])
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


class Told(ScriptedModel):
    """Says of each of its answers how likely it is."""

    def __init__(self, replies: Sequence[str], logprob: float | None) -> None:
        super().__init__(replies)
        self.logprob = logprob

    def generate(self, messages: Any, **options: Any) -> list[Completion]:
        made = super().generate(messages, **options)
        return [replace(done, logprob=self.logprob) for done in made]


def answered(shop: Path, replies: Sequence[str], logprob: float | None = -0.5, **settings: Any) -> Episode:
    given = {"choose": "logprob", "constrained": False, "n": len(replies), "retry": 0} | settings
    with SqliteDatabase(shop) as database:
        resources = Resources(Told(replies, logprob), database)
        config = build_config({"candidates": given, "schema_text": {"values": 0}})
        return candidates(Question("Which customers live in Bern?"), resources, config)


def test_below_the_least_confidence_there_is_no_answer(shop: Path) -> None:
    episode = answered(shop, [NAMES, NAMES])
    p_correct = episode.flags["confidence"]
    assert 0 < p_correct < 1 and (episode.sql, episode.finish) == (NAMES, "answered")
    kept = answered(shop, [NAMES, NAMES], min_confidence=p_correct)
    refused = answered(shop, [NAMES, NAMES], min_confidence=p_correct + 0.001)
    assert kept.sql == NAMES
    assert (refused.sql, refused.finish, refused.flags["abstained"]) == ("", "abstained", True)
    assert refused.error == f"abstained: confidence {p_correct} is below {p_correct + 0.001:g}; best: {NAMES}"


def test_without_likelihoods_and_without_sql_there_is_no_confidence(shop: Path) -> None:
    assert "confidence" not in answered(shop, [NAMES], logprob=None).flags
    assert "confidence" not in answered(shop, [NAMES], choose="vote").flags
    none = answered(shop, ["no SQL at all"], min_confidence=0.5)
    assert none.finish == "empty" and "confidence" not in none.flags


def test_candidates_that_agree_are_as_sure_whether_or_not_a_further_view_was_spared(shop: Path) -> None:
    spared = answered(shop, [NAMES] * 4, schema_orders=2, agree=0.5)
    every = answered(shop, [NAMES] * 4, schema_orders=2, agree=0.0)
    assert spared.flags["views"] == "candidates agree" and "views" not in every.flags
    assert spared.flags["confidence"] == every.flags["confidence"]
