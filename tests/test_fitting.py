"""scripts/fit_verifier.py on a run of candidates: each query rated as the episode rated it, and fitted anew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fit_verifier
import numpy as np
import pytest
from fitting import cases_of, thresholds
from fitting import fit as fit_weights
from models.tiny import saved_tiny
from people import SHOP, make_database

from nl2sql.agents.checks.verifier import probability_right
from nl2sql.config import build_config
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.folder import read_jsonl

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "fit_verifier.py"
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ``choose: verify`` over two databases with the same tables."""
    place = tmp_path_factory.mktemp("fitting")
    saved_tiny(place / "tiny")
    (place / "benchmark" / "databases").mkdir(parents=True)
    for name in ("shop", "store"):
        make_database(place / "benchmark" / "databases" / f"{name}.sqlite", SHOP)
    items = [
        {"question": question, "query": gold, "db_id": name, "id": f"{name}-{number}"}
        for name in ("shop", "store")
        for number, (question, (gold, _)) in enumerate(WRITTEN.items())
    ]
    (place / "benchmark" / "questions.json").write_text(json.dumps(items), encoding="utf-8")
    replies = {question: queries for question, (_, queries) in WRITTEN.items()}
    (place / "replies.json").write_text(json.dumps({"replies": replies}), encoding="utf-8")
    settings = {"choose": "verify", "n": 4, "constrained": False, "length_penalty": 0.0, "retry": 0}
    settings |= {"question_model": str(place / "tiny"), "question_adapter": "none"}
    config = build_config({"candidates": settings, "eval": {"replicas": 0}})
    out = place / "run"
    given: dict[str, Any] = {"config": config, "control": False, "out": out, "progress": False}
    evaluate(place / "benchmark", f"scripted:{place / 'replies.json'}", "candidates", **given)
    return out


def fit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def table(text: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}


def changed(run: Path, to: Path, **candidates: Any) -> Path:
    """A copy of the run whose manifest says that it was asked otherwise."""
    shutil.copytree(run, to)
    manifest = json.loads((to / "manifest.json").read_text(encoding="utf-8"))
    manifest["config"]["candidates"] |= candidates
    (to / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return to


def test_the_packaged_weights_rate_the_queries_as_the_run_did(run: Path) -> None:
    written = cases_of([run], fit_verifier.judged)
    recorded = [
        entry["sure"]
        for trace in read_jsonl(run / "traces.jsonl")
        for entry in trace["trace"][-1]["observation"]["ranking"]
        if "sure" in entry
    ]
    assert [probability_right(query.seen) for query in written] == pytest.approx(recorded, rel=1e-3)
    assert {query.right for query in written} == {True, False}
    shares = [query.share for query in written if query.db_id == "shop"]
    assert sum(shares) < len(WRITTEN), "what did not run has a share too"


def test_figures_are_those_of_weights_that_rest_on_the_other_databases(run: Path) -> None:
    done = fit(run)
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout)
    assert set(rows) == {"signals", "---", "all", "question", "seen"} and rows["all"][0] == rows["seen"][0]
    written = cases_of([run], fit_verifier.judged)
    before = fit_verifier.by_the_others(written)
    for query in written:
        if query.db_id == "shop":
            query.right = not query.right
    after = fit_verifier.by_the_others(written)
    same = [now == then for query, now, then in zip(written, after, before, strict=True) if query.db_id == "shop"]
    assert all(same) and after != before


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        ({"length_penalty": 1.0}, "-c candidates.length_penalty=0"),
        ({"choose": "question", "suspicion_weight": 0.0}, "-c candidates.suspicion_weight=0.000001"),
    ],
)
def test_a_run_that_does_not_say_enough_is_one_line(
    run: Path, tmp_path: Path, candidates: dict[str, Any], said: str
) -> None:
    done = fit(changed(run, tmp_path / "other", **candidates))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and said in done.stderr, done.stderr


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
    weights = fit_weights([{"rows": 1.0}, {"rows": 0.0}], [True, True], [1.0, 1.0])
    assert weights["constant"] > 5 and abs(weights["rows"]) < 0.1


def test_abstention_counts_those_that_are_as_sure() -> None:
    rows = table("\n".join(f"| {' | '.join(row)} |" for row in thresholds([0.9, 0.5, 0.1], np.array([1.0, 0.0, 1.0]))))
    assert rows["0"] == ["100.0", "66.7", "100.0"] and rows["0.5"] == ["66.7", "50.0", "50.0"]
    assert rows["0.9"] == ["33.3", "100.0", "50.0"]
    assert thresholds([0.1], np.array([0.0]))[-1] == ["0.9", "0.0", "-", "0.0"]
