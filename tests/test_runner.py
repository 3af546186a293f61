"""Runs: what is recorded, resumed, reported; an episode that fails is data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config, build_config
from nl2sql.errors import Cancelled, UsageError
from nl2sql.interfaces import Episode, Question, Resources
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runner import Plan, evaluate, resume, run_plan
from nl2sql.runs import Run, read_jsonl

GOOD = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
NO_TS = build_config({"eval": {"replicas": 0}})


def oracle(limit: int, right: int) -> dict[str, Any]:
    """Replies that give the gold for the first ``right`` questions and an invented table for the others."""
    replies: dict[str, Any] = {}
    for number, question in enumerate(load_benchmark("packaged", split="quick").questions):
        sql = question.gold[0] if number < right else "SELECT x FROM nowhere"
        acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", sql, *GOOD]
        replies[question.text] = {"react": [*acts, *["no"] * 20], "single_shot": ["SELECT 1 AS one FROM nowhere"]}
    return replies


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    model = ScriptedModel(oracle(40, 30))
    out = tmp_path_factory.mktemp("runs") / "oracle"
    return evaluate("packaged", model, "react", split="quick", config=build_config({}), out=out, progress=False)


def test_report_keeps_the_output_contract(run: Run) -> None:
    report = json.loads((run.folder / "report.json").read_text(encoding="utf-8"))
    metrics = ["VA", "EM", "EX[bag]", "TS[bag,perturb,N=5]"]
    usage = {"prompt_tokens", "prefill_tokens", "completion_tokens", "model_calls", "seconds"}
    assert report["run"] == str(run.folder) and report["n"] == 40
    for part in (report, report["control"]["with_guardrails"], report["control"]["without_guardrails"]):
        assert list(part["metrics"]) == metrics
        assert all(set(m) == {"value", "low", "high", "n"} for m in part["metrics"].values())
        assert set(part["usage"]) == usage
    assert {"wins", "losses", "p"} <= set(report["paired"]["EX[bag]"])


def test_golds_win_and_inventions_lose(run: Run) -> None:
    assert run.report["metrics"]["EX[bag]"]["value"] == 30 / 40
    assert run.report["control"]["with_guardrails"]["metrics"]["EX[bag]"]["value"] == 0
    assert run.report["paired"]["EX[bag]"]["wins"] == 30
    assert run.report["paired"]["EX[bag]"]["losses"] == 0
    assert run.report["paired"]["EX[bag]"]["p"] < 0.001


def test_predictions_have_one_line_a_question_with_the_named_fields(run: Run) -> None:
    rows = read_jsonl(run.folder / "predictions.jsonl")
    assert sorted(row["id"] for row in rows) == sorted(run.manifest["questions"])
    wanted = {"id", "db_id", "question", "sql", "raw_sql", "error", "steps", "usage"}
    assert all(wanted <= set(row) for row in rows)


def test_dataframe_joins_predictions_and_scores(run: Run) -> None:
    frame = run.to_dataframe()
    assert len(frame) == 40 and frame["ex"].sum() == 30
    assert "TS[bag" in run._repr_html_()


def test_manifest_says_what_was_run(run: Run) -> None:
    assert {"config", "model", "fingerprints", "environment", "prompts", "controller"} <= set(run.manifest)
    databases = {question.db_id for question in load_benchmark("packaged", split="quick").questions}
    assert set(run.manifest["fingerprints"]) == {"questions", *databases}


def test_a_controller_that_raises_is_recorded_for_its_question_only(tmp_path: Path) -> None:
    def moody(question: Question, resources: Resources, config: Config) -> Episode:
        if "average" in question.text.lower():
            raise ZeroDivisionError("on purpose")
        return Episode(question, "moody", sql=question.gold[0], raw_sql=question.gold[0], finish="answered")

    model = ScriptedModel({"*": {"single_shot": ["SELECT 1"]}})
    done = evaluate("packaged", model, moody, split="quick", config=NO_TS, out=tmp_path / "r", progress=False)
    rows = done.predictions()
    failed = [row for row in rows if row["error"]]
    assert failed and len(rows) == 40
    assert all(row["error"] == "controller: ZeroDivisionError: on purpose" for row in failed)
    assert done.report["metrics"]["EX[bag]"]["value"] == (40 - len(failed)) / 40


def test_an_interrupted_run_resumes_to_the_same_metrics(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": oracle(40, 25)}), encoding="utf-8")
    plan = Plan(split="quick", model=f"scripted:{script}", batch_size=4)
    whole = run_plan(plan, NO_TS, out=tmp_path / "whole", progress=False)
    broken = tmp_path / "broken"
    again = run_plan(plan, NO_TS, out=broken, progress=False)
    lines = (broken / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (broken / "predictions.jsonl").write_bytes(b"".join(lines[:11]) + lines[11][:40])  # a torn line
    (broken / "control" / "predictions.jsonl").unlink()
    (broken / "report.json").unlink()
    resumed = resume(broken, progress=False)
    assert again["metrics"] == whole["metrics"] == resumed.report["metrics"]
    assert len(resumed.predictions()) == 40
    assert resumed.report["control"]["with_guardrails"]["metrics"] == whole["control"]["with_guardrails"]["metrics"]


def test_ctrl_c_keeps_what_is_finished_and_names_the_next_command(tmp_path: Path) -> None:
    replies = {"*": {"react": ["x"] * 99, "single_shot": ["x"]}}
    for number, question in enumerate(load_benchmark("packaged", split="quick").questions):
        if number > 3:
            replies[question.text] = {"react": [{"text": "x", "delay_s": 30}] * 99}
    script = tmp_path / "slow.json"
    script.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    out = tmp_path / "run"
    command = [sys.executable, "-m", "nl2sql.cli", "eval", "--model", f"scripted:{script}", "--out", str(out), "-q"]
    process = subprocess.Popen(
        [*command, "--batch-size", "2"], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    predictions = out / "predictions.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(read_jsonl(predictions)) < 4:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "4 of 40 questions" in err and f"nl2sql eval --resume {out}" in err
    assert "Traceback" not in err
    assert len(read_jsonl(predictions)) == 4


def test_a_used_folder_is_refused_with_the_command_that_continues_it(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="--resume"):
        evaluate("packaged", ScriptedModel([]), limit=1, out=tmp_path)


def test_seeds_are_pooled_by_question_not_as_independent_items(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": oracle(40, 20)}), encoding="utf-8")
    plan = Plan(split="quick", model=f"scripted:{script}", control=False)
    once = run_plan(plan, NO_TS, out=tmp_path / "once", progress=False)["metrics"]["EX[bag]"]
    pooled = run_plan(plan, NO_TS, [1, 2, 3], out=tmp_path / "seeds", progress=False)
    thrice = pooled["metrics"]["EX[bag]"]
    assert thrice["value"] == once["value"] and thrice["n"] == 3 * once["n"]
    assert thrice["high"] - thrice["low"] >= 0.95 * (once["high"] - once["low"])
    assert set(pooled["seeds"]) == {"1", "2", "3"}


def test_flips_tell_what_a_gate_cost(tmp_path: Path) -> None:
    question = next(q for q in load_benchmark("packaged", split="quick").questions if "SELECT" in q.gold[0])
    right, wrong = question.gold[0], "SELECT 1 AS one FROM nowhere"
    acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", wrong, "Action: validate_sql[{}]"]
    mended = [*acts, "Action: repair_sql[{}]", right, *GOOD]
    model = ScriptedModel({question.text: {"react": mended}, "*": {"single_shot": [wrong], "react": ["no"] * 99}})
    done = evaluate("packaged", model, split="quick", config=NO_TS, out=tmp_path / "r", progress=False)
    assert done.report["flips"]["validate_sql"] == {"refused": 1, "right_to_wrong": 0, "wrong_to_right": 1}


def test_cancelled_runs_carry_exit_code_130() -> None:
    assert Cancelled("x").exit_code == 130
