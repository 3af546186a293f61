"""scripts/fit_confidence.py on a run of candidates: each answer rated as the episode rated it, and fitted anew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fit_confidence
import numpy as np
import pytest
from people import SHOP, make_database

from nl2sql.agents.ranking import logistic, packaged
from nl2sql.config import build_config
from nl2sql.interfaces import Completion
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.folder import read_jsonl

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "fit_confidence.py"
COUNT, NAMES, BERN = (
    "SELECT count(*) FROM orders",
    "SELECT name FROM customers",
    "SELECT name FROM customers WHERE city = 'Bern'",
)
WRITTEN = {  # a question -> what is written for it; the first is greedy
    "How many orders are there?": (COUNT, [COUNT, NAMES, "SELECT count(1) FROM orders", "SELECT nothing"]),
    "Which customers live in Bern?": (BERN, [NAMES, BERN, NAMES, "SELECT customers.name FROM customers"]),
    "Which cities are there?": ("SELECT city FROM customers", [NAMES, COUNT, NAMES, "no SQL"]),
    "List the names of all customers.": (NAMES, [COUNT, COUNT, "SELECT 1 WHERE 0", NAMES]),
}


class Likely(ScriptedModel):
    """Holds a text for the less likely, the longer it is."""

    def for_episode(self, question_text: str, controller: str) -> Likely:
        return self

    def generate(self, messages: Any, **options: Any) -> list[Completion]:
        made = super().generate(messages, **options)
        return [replace(done, logprob=-len(done.text) / 50) for done in made]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ``choose: logprob`` over two databases with the same tables."""
    place = tmp_path_factory.mktemp("fitting")
    (place / "benchmark" / "databases").mkdir(parents=True)
    for name in ("shop", "store"):
        make_database(place / "benchmark" / "databases" / f"{name}.sqlite", SHOP)
    items = [
        {"question": question, "query": gold, "db_id": name, "id": f"{name}-{number}"}
        for name in ("shop", "store")
        for number, (question, (gold, _)) in enumerate(WRITTEN.items())
    ]
    (place / "benchmark" / "questions.json").write_text(json.dumps(items), encoding="utf-8")
    replies = {question: queries * 2 for question, (_, queries) in WRITTEN.items()}
    settings = {"choose": "logprob", "n": 4, "constrained": False, "length_penalty": 0.0, "retry": 0}
    config = build_config({"candidates": settings, "eval": {"replicas": 0}})
    given: dict[str, Any] = {"config": config, "control": False, "out": place / "run", "progress": False}
    evaluate(place / "benchmark", Likely(replies), "candidates", **given)
    return place / "run"


def fit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_packaged_weights_rate_the_answers_as_the_run_did(run: Path) -> None:
    asked = list(fit_confidence.asked_in(run))
    recorded = [trace["flags"]["confidence"] for trace in read_jsonl(run / "traces.jsonl")]
    assert [logistic(one.seen, packaged()) for one in asked] == pytest.approx(recorded, abs=2e-3)
    assert {one.right for one in asked} == {True, False} and len(asked) == 2 * len(WRITTEN)


def test_figures_are_those_of_weights_that_rest_on_the_other_databases(run: Path) -> None:
    done = fit(run)
    assert done.returncode == 0 and done.stdout.startswith("8 questions, "), done.stderr
    asked = list(fit_confidence.asked_in(run))
    before = fit_confidence.held_out(asked)
    turned = [one._replace(right=not one.right) if one.db_id == "shop" else one for one in asked]
    after = fit_confidence.held_out(turned)
    same = [now == then for one, now, then in zip(asked, after, before, strict=True) if one.db_id == "shop"]
    assert all(same) and after != before


def test_one_database_cannot_be_fitted_by_others(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "one")
    for name in ("traces.jsonl", "predictions.jsonl"):
        lines = (run / name).read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["id"].startswith("shop")]
        (tmp_path / "one" / name).write_text("".join(kept), encoding="utf-8")
    done = fit(tmp_path / "one")
    assert done.returncode == 2 and done.stderr == (
        "error: all questions are over shop; --apply takes the packaged weights\n"
    )
    assert fit(tmp_path / "one", "--apply").returncode == 0


def test_cases_that_are_all_right_are_fitted_too() -> None:
    asked = [fit_confidence.Asked("a", True, {"rows": rows}) for rows in (1.0, 0.0)]
    weights = fit_confidence.fit(asked)
    assert weights["constant"] > 5 and abs(weights["rows"]) < 0.1


def test_abstention_counts_those_that_are_as_sure() -> None:
    table = fit_confidence.thresholds([0.9, 0.5, 0.1], np.array([1.0, 0.0, 1.0]))
    rows = {row[0]: row[1:] for row in table}
    assert rows["0"] == ["100.0", "66.7", "100.0"] and rows["0.5"] == ["66.7", "50.0", "50.0"]
    assert rows["0.9"] == ["33.3", "100.0", "50.0"]
    assert fit_confidence.thresholds([0.1], np.array([0.0]))[-1] == ["0.9", "0.0", "-", "0.0"]
