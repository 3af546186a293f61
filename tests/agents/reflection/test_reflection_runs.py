"""Reflection on the same runner as the other controllers: eval, resume, ablate, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.runs.ablation import ablate, expand
from nl2sql.runs.evaluate import resume, start
from nl2sql.runs.plan import RunSpec
from nl2sql.runs.report import write_report
from nl2sql.runs.report.episodes import LONG, _episode

NO_TS = build_config({"eval": {"replicas": 0}})
WRONG = "SELECT 1 AS one FROM nowhere"
QUESTIONS = 6


def script(path: Path, kind: str) -> str:
    """A model that is right at once, fails once, or always fails; the control always fails."""
    replies: dict[str, Any] = {}
    for question in load_benchmark("packaged", split="quick").questions:
        gold = question.gold[0]
        reflect = {"right_at_once": [gold], "fails_once": [WRONG, gold], "always_fails": [WRONG] * 5}[kind]
        replies[question.text] = {"reflect": reflect, "single_shot": [WRONG]}
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    return f"scripted:{path}"


def plan(model: str) -> RunSpec:
    return RunSpec(split="quick", limit=QUESTIONS, model=model, controller="reflect", batch_size=3)


@pytest.mark.parametrize(
    ("kind", "ex", "calls"),
    [("right_at_once", 1.0, QUESTIONS), ("fails_once", 1.0, 2 * QUESTIONS), ("always_fails", 0.0, 3 * QUESTIONS)],
)
def test_a_run_gives_the_rows_it_must(kind: str, ex: float, calls: int, tmp_path: Path) -> None:
    run = start(plan(script(tmp_path / "script.json", kind)), NO_TS, out=tmp_path / "run", progress=False)
    assert run.report["controller"] == "reflect"
    assert run.report["metrics"]["EX[bag]"]["value"] == ex
    assert run.report["usage"]["model_calls"] == calls
    assert run.report["control"]["with_guardrails"]["metrics"]["EX[bag]"]["value"] == 0
    assert run.report["paired"]["EX[bag]"]["wins"] == ex * QUESTIONS
    flips = run.report["flips"].get("validate_sql", {"wrong_to_right": 0, "right_to_wrong": 0})
    assert flips["wrong_to_right"] == (QUESTIONS if kind == "fails_once" else 0), "first failures that were saved"
    assert flips["right_to_wrong"] == 0


def test_an_interrupted_run_resumes_to_the_same_metrics(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    whole = start(plan(script(tmp_path / "script.json", "fails_once")), NO_TS, out=folder, progress=False).report
    lines = (folder / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "predictions.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:40])  # a torn line
    (folder / "report.json").unlink()
    again = resume(folder, progress=False, trust=True)
    assert again.report["metrics"] == whole["metrics"] and len(again.predictions()) == QUESTIONS


def test_it_is_a_cell_of_a_grid_and_its_switches_are_axes(tmp_path: Path) -> None:
    model = script(tmp_path / "script.json", "fails_once")
    base = {"model": model, "split": "quick", "limit": QUESTIONS, "controller": "reflect"}
    base["config"] = {"eval": {"replicas": 0}}
    cells = expand({"base": base, "axes": {"reflect.max_iterations": [1], "repair.guidance": ["patterns"]}})
    done = ablate(cells, tmp_path / "grid", progress=False)
    ex = {name: run.report["metrics"]["EX[bag]"]["value"] for name, run in done.runs.items()}
    assert ex == {"base": 1.0, "max_iterations=1": 0.0, "guidance=patterns": 1.0}


def test_the_report_keeps_the_reflections_of_an_episode(tmp_path: Path) -> None:
    run = start(plan(script(tmp_path / "script.json", "fails_once")), NO_TS, out=tmp_path / "run", progress=False)
    trace, item = next(iter(run.traces())), run.report["items"][0]
    shown = _episode(trace, item, None, None, None, LONG[0], 10_000)
    judged = [record["observation"] for record in shown["trace"] if record["action"] == "reflect"]
    assert judged[0]["quality_score"] == 0 and judged[-1]["quality_score"] > 50
    assert judged[0]["reflection_result"]["should_refine"] is True
    assert write_report([run.folder], tmp_path / "report.html", progress=False).stat().st_size > 10_000
