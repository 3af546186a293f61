"""pass@k and majority@k, wherever a question is answered several times."""

import json
import shutil
from itertools import combinations
from pathlib import Path

import pytest

from nl2sql.config import build_config
from nl2sql.eval.scoring import majority, pass_at
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.rescore import replay
from nl2sql.runs.summary import summary_text

SHIPPED, OPEN, ALL = (
    "SELECT count(*) FROM orders" + where for where in (" WHERE status = 'shipped'", " WHERE status = 'open'", "")
)
REPLIES = {
    "How many were shipped?": [SHIPPED, OPEN, OPEN, "SELECT nope FROM orders"],  # one of four is right, the vote is not
    "How many are open?": [ALL, OPEN, f"{OPEN} AND 1 = 1", OPEN],
    "How many are there?": [SHIPPED, OPEN, SHIPPED, OPEN],
}
GOLDS = dict(zip(REPLIES, (SHIPPED, OPEN, ALL), strict=True))


@pytest.mark.parametrize("right", [[True, False, False, True, False], [False] * 5, [True] * 5, [True]])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_one(right: list[bool], k: int) -> None:
    draws = list(combinations(right, min(k, len(right))))
    assert pass_at(k, right) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_without_samples_nothing_is_right() -> None:
    assert pass_at(4, []) == 0 and majority([], 4) is None


def test_a_majority_is_of_those_that_ran_and_ties_go_to_the_earliest() -> None:
    written = [{"rows": rows} for rows in (None, 1, None, 2, 2, None, 1)]
    assert [majority(written, k) for k in (1, 2, 4, 5, 7)] == [None, 1, 1, 3, 1]


@pytest.fixture
def toy(tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "toy"
    folder.mkdir()
    shutil.copy(shop, folder / "shop.sqlite")
    records = [{"id": text, "question": text, "query": gold, "db_id": "shop"} for text, gold in GOLDS.items()]
    (folder / "questions.json").write_text(json.dumps(records))
    return folder


def test_a_run_that_draws_samples_reports_them(toy: Path, tmp_path: Path) -> None:
    config = build_config({"single_shot": {"samples": 4}, "eval": {"replicas": 0}})
    run = evaluate(toy, ScriptedModel(REPLIES), "single_shot", config=config, out=tmp_path / "r", progress=False)
    found = {name: interval["value"] for name, interval in run.report["samples"]["run"].items()}
    assert found == pytest.approx(
        {"pass@1": (1 / 4 + 3 / 4) / 3, "pass@2": (1 / 2 + 1) / 3, "pass@4": 2 / 3, "majority@4": 1 / 3}
    )
    assert run.report["metrics"]["EX[bag]"]["value"] == pytest.approx(found["majority@4"])
    assert run.report["samples"]["run"]["pass@4"]["n"] == 3 and run.report["samples"]["run"]["pass@4"]["high"] < 1
    lines = summary_text(run.report).splitlines()
    assert any(line.split()[:2] == ["pass@4", "66.7"] for line in lines)
    assert replay(run.folder, progress=False, trust=True).report["samples"] == run.report["samples"]


def test_candidates_are_samples_and_their_control_at_equal_tokens_has_its_own(toy: Path, tmp_path: Path) -> None:
    config = build_config({"candidates": {"n": 4, "constrained": False, "greedy": False}, "eval": {"replicas": 0}})
    model = ScriptedModel({text: {"*": replies * 9} for text, replies in REPLIES.items()})
    run = evaluate(toy, model, "candidates", config=config, equal_tokens=True, out=tmp_path / "r", progress=False)
    assert run.report["samples"]["run"]["pass@4"]["value"] == pytest.approx(2 / 3)
    assert set(run.report["samples"]) <= {"run", "single_shot, equal tokens"}


def test_a_single_answer_is_no_sample(toy: Path, tmp_path: Path) -> None:
    model = ScriptedModel({text: replies[:1] for text, replies in REPLIES.items()})
    config = build_config({"eval": {"replicas": 0}})
    run = evaluate(toy, model, "single_shot", config=config, out=tmp_path / "r", progress=False)
    assert "samples" not in run.report
