"""Runs: what is recorded, resumed, reported; an episode that fails is data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents.react import react_sql
from nl2sql.agents.record import Episode
from nl2sql.agents.task import State
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config, build_config
from nl2sql.errors import Cancelled, UsageError
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs import rescore as seeds_module
from nl2sql.runs.evaluate import evaluate, resume, start
from nl2sql.runs.folder import read_jsonl
from nl2sql.runs.plan import RunSpec
from nl2sql.runs.run import Run

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


def test_a_run_has_no_budget_of_seconds_unless_it_is_set(tmp_path: Path) -> None:
    model = ScriptedModel(["SELECT 1"] * 99)
    for name, own, seconds in (("a", {}, 0.0), ("b", {"seconds": 7.0}, 7.0)):
        config = build_config({"eval": {"replicas": 0}, "candidates": {**own}})
        evaluate("packaged", model, "best", limit=1, control=False, config=config, out=tmp_path / name, progress=False)
        assert Run.load(tmp_path / name).manifest["config"]["candidates"]["seconds"] == seconds


@pytest.mark.parametrize(("controller", "control"), [("single_shot", True), ("react", False)])
def test_a_control_at_equal_tokens_of_a_run_without_controls_is_refused(
    controller: str, control: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"controller": controller, "control": control, "equal_tokens": True, "config": NO_TS}
    with pytest.raises(UsageError, match="--equal-tokens adds a control"):
        evaluate("packaged", ScriptedModel([]), limit=1, out=tmp_path / "run", progress=False, **options)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    model = ScriptedModel(oracle(40, 30))
    out = tmp_path_factory.mktemp("runs") / "oracle"
    return evaluate("packaged", model, "react", split="quick", config=build_config({}), out=out, progress=False)


def test_report_keeps_the_output_contract(run: Run) -> None:
    report = json.loads((run.folder / "report.json").read_text(encoding="utf-8"))
    metrics = ["VA", "EM", "EX[bag]", "TS[bag,perturb,N=5]"]
    tokens = {"prompt_tokens", "prefill_tokens", "reused_tokens", "completion_tokens"}
    usage = tokens | {"model_calls", "cached_calls", "seconds", "queue_seconds", "compute_seconds", "cost"}
    assert report["run"] == str(run.folder) and report["n"] == 40
    for part in (report, report["control"]["with_guardrails"], report["control"]["without_guardrails"]):
        assert list(part["metrics"]) == metrics
        assert all(set(m) == {"value", "low", "high", "n"} for m in part["metrics"].values())
        assert set(part["usage"]) == usage
    assert {"wins", "losses", "p"} <= set(report["paired"]["EX[bag]"])


def test_a_benchmark_may_be_given_by_its_path(tmp_path: Path) -> None:
    quick = load_benchmark("packaged", split="quick")
    first = quick.questions[0]
    shutil.copytree(Path(quick.files[first.db_id]).parent, tmp_path / "own" / "databases" / first.db_id)
    record = {"question": first.text, "query": first.gold[0], "db_id": first.db_id}
    (tmp_path / "own" / "questions.json").write_text(json.dumps([record]), encoding="utf-8")
    model = ScriptedModel({"*": [first.gold[0]]}, on_exhausted="repeat")
    options: dict[str, Any] = {"config": NO_TS, "progress": False, "out": tmp_path / "run"}
    run = evaluate(tmp_path / "own", model, "single_shot", **options)
    assert run.report["metrics"]["EX[bag]"]["value"] == 1.0


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
    assert list(frame["id"]) == run.manifest["questions"]
    assert "TS[bag" in run._repr_html_()
    assert run.paired(run)["EX[bag]"] == {"wins": 0, "losses": 0, "n": 40, "p": 1.0, "p_databases": 1.0}


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
    plan = RunSpec(split="quick", model=f"scripted:{script}", batch_size=4)
    whole = start(plan, NO_TS, out=tmp_path / "whole", progress=False).report
    broken = tmp_path / "broken"
    again = start(plan, NO_TS, out=broken, progress=False).report
    lines = (broken / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (broken / "predictions.jsonl").write_bytes(b"".join(lines[:11]) + lines[11][:40])  # a torn line
    (broken / "control" / "predictions.jsonl").unlink()
    (broken / "report.json").unlink()
    resumed = resume(broken, progress=False, trust=True)
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
    assert "4 questions are kept" in err and f"nl2sql eval --resume {out}" in err
    assert "Traceback" not in err
    assert len(read_jsonl(predictions)) == 4


def test_a_used_folder_is_refused_with_the_command_that_continues_it(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="--resume"):
        evaluate("packaged", ScriptedModel([]), limit=1, out=tmp_path)


def test_a_run_that_was_killed_before_it_began_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with pytest.raises(UsageError, match=f"no manifest.json\\); start one with: nl2sql eval --out {tmp_path}"):
        resume(tmp_path)
    (tmp_path / "base").mkdir()  # a cell of an ablation
    with pytest.raises(UsageError, match=f"no manifest.json\\); the runs below it: nl2sql runs list {tmp_path}"):
        resume(tmp_path)


def test_seeds_are_pooled_by_question_not_as_independent_items(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": oracle(40, 20)}), encoding="utf-8")
    plan = RunSpec(split="quick", model=f"scripted:{script}", control=False)
    once = start(plan, NO_TS, out=tmp_path / "once", progress=False).report["metrics"]["EX[bag]"]
    seeded = replace(plan, seeds=(1, 2, 3))
    pooled = start(seeded, NO_TS, out=tmp_path / "seeds", progress=False).report
    thrice = pooled["metrics"]["EX[bag]"]
    assert thrice["value"] == once["value"] and thrice["n"] == once["n"]
    assert thrice["high"] - thrice["low"] >= 0.95 * (once["high"] - once["low"])
    assert set(pooled["seeds"]) == {"1", "2", "3"}
    assert any("identical" in warning for warning in pooled["warnings"])


def test_seeds_that_agree_are_no_surer_than_one_and_what_is_said_is_of_all_seeds(tmp_path: Path) -> None:
    model = ScriptedModel(oracle(20, 0))
    told = {"split": "quick", "limit": 20, "config": NO_TS, "control": False, "progress": False}
    one = evaluate("packaged", model, out=tmp_path / "r", **told).report
    other = one | {"alarms": ["odd"], "warnings": [*one["warnings"], "slow"]}
    pooled = seeds_module._pooled_report(dict.fromkeys(range(1, 10), one) | {10: other})
    assert pooled["metrics"]["EX[bag]"] == pytest.approx(one["metrics"]["EX[bag]"])
    assert pooled["by_hardness"]["easy"]["EX[bag]"] == pytest.approx(one["by_hardness"]["easy"]["EX[bag]"])
    assert pooled["counts"]["steps"] == 10 * one["counts"]["steps"]
    assert pooled["failures"] == {cause: 10 * count for cause, count in one["failures"].items()} != {}
    assert pooled["warnings"] == [*one["warnings"], "seed 10: slow"]
    assert pooled["alarms"] == [*(f"seed {n}: {text}" for n in range(1, 10) for text in one["alarms"]), "seed 10: odd"]


def test_an_interrupted_seed_run_is_continued_as_a_whole(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": oracle(40, 20)}), encoding="utf-8")
    plan = RunSpec(split="quick", limit=6, model=f"scripted:{script}", seeds=(1, 2))
    out = tmp_path / "run"
    whole = start(plan, NO_TS, out=out, progress=False).report
    shutil.rmtree(out / "seed-2")
    (out / "report.json").unlink()
    assert resume(out, progress=False, trust=True).report["metrics"] == whole["metrics"]


def test_a_run_is_not_continued_when_what_it_depends_on_has_changed(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": oracle(40, 20)}), encoding="utf-8")
    out = tmp_path / "run"
    start(RunSpec(split="quick", limit=6, model=f"scripted:{script}"), NO_TS, out=out, progress=False)
    script.write_text(json.dumps({"replies": oracle(40, 40)}), encoding="utf-8")
    with pytest.raises(UsageError, match="model changed"):
        resume(out, progress=False, trust=True)


def test_a_run_of_objects_is_continued_with_the_same_objects_only(tmp_path: Path) -> None:
    model = ScriptedModel(oracle(40, 5))
    out = tmp_path / "run"
    done = evaluate("packaged", model, split="quick", limit=6, config=NO_TS, out=out, progress=False)
    with pytest.raises(UsageError, match="model="):
        resume(out, progress=False)
    assert resume(out, model=model, progress=False).report["metrics"] == done.report["metrics"]


def test_a_run_with_a_tool_of_ones_own_is_continued_with_the_same_tool_only(tmp_path: Path) -> None:
    def look_up(state: State, args: Any) -> int:
        """Something."""
        return 1

    def other(state: State, args: Any) -> int:
        """Something else."""
        return 2

    def never(state: State, action: str, args: Any) -> str | None:
        return None

    model, out = ScriptedModel(oracle(40, 5)), tmp_path / "run"
    options = {"split": "quick", "limit": 3, "config": NO_TS, "control": False, "progress": False}
    done = evaluate("packaged", model, tools={"look_up": look_up}, gates={"never": never}, out=out, **options)
    assert {"tool look_up", "gate never"} <= set(done.manifest["members"])
    with pytest.raises(UsageError, match=r"tools=\.\.\., gates=\.\.\."):
        resume(out, model=model, progress=False)
    with pytest.raises(UsageError, match="tool look_up changed"):
        resume(out, model=model, tools={"look_up": other}, gates={"never": never}, progress=False)
    again = resume(out, model=model, tools={"look_up": look_up}, gates={"never": never}, progress=False)
    assert again.manifest["key"] == done.manifest["key"]
    bare = evaluate("packaged", model, out=tmp_path / "bare", **options)
    assert bare.manifest["key"] != done.manifest["key"]


def test_a_preset_keeps_its_switches_under_a_config_of_ones_own(tmp_path: Path) -> None:
    config = build_config({"eval": {"replicas": 0}, "react": {"max_steps": 3, "auto_finish": False}})
    model = ScriptedModel({"*": ["x"] * 9})
    done = evaluate("packaged", model, "react_plus", split="quick", limit=1, config=config, out=tmp_path / "r")
    react = done.manifest["config"]["react"]
    assert react["best_so_far"] and react["max_steps"] == 3 and not react["auto_finish"]


def test_a_loop_called_with_the_bare_question_text_is_scored_for_its_question(tmp_path: Path) -> None:
    def mine(question: Question, resources: Resources, config: Config) -> Episode:
        return react_sql(question.text, resources.database, resources.model, config)

    model = ScriptedModel({text: replies["react"] for text, replies in oracle(40, 40).items()})
    done = evaluate("packaged", model, mine, split="quick", config=NO_TS, control=False, out=tmp_path / "r")
    assert done.report["metrics"]["EX[bag]"]["value"] == 1.0


def test_an_own_loop_is_charged_for_the_model_calls_it_makes(tmp_path: Path) -> None:
    def lazy(question: Question, resources: Resources, config: Config) -> Episode:
        found = resources.model.generate([{"role": "user", "content": "say it"}], max_new_tokens=9)[0]
        return Episode(question, "lazy", sql=found.text)

    model = ScriptedModel({"*": ["SELECT 1 AS one"]})
    done = evaluate("packaged", model, lazy, split="quick", limit=2, control=False, config=NO_TS, out=tmp_path / "r")
    assert done.report["usage"]["model_calls"] == 2 and done.report["usage"]["completion_tokens"] == 8
    assert done.report["counts"]["finish"] == {"answered": 2}


@pytest.mark.parametrize("broken", [lambda q, r, c: "SELECT 1", lambda q, r: None, lambda q, r, c: sys.exit(7)])
def test_a_broken_controller_says_why_in_the_report(tmp_path: Path, broken: Any) -> None:
    done = evaluate("packaged", ScriptedModel([]), broken, split="quick", limit=2, control=False, out=tmp_path / "r")
    assert "2 of 2 episodes failed; the first: controller: " in done.report["warnings"][0]


def test_what_a_model_writes_never_stops_a_run(tmp_path: Path) -> None:
    wild = [
        'Action: get_table_samples[{"table": "\\ud83d"}]',
        'Action: x[{"a": ' + "9" * 6000 + "}]",
        "Action: run_sql[" + "[" * 5000,
        "SELECT 9e999, '\x00', x'ff' FROM nowhere",
    ]
    model = ScriptedModel({"*": [*wild * 4, *["x"] * 9]})
    done = evaluate("packaged", model, split="quick", limit=4, config=NO_TS, out=tmp_path / "r", progress=False)
    assert len(done.predictions()) == 4 and len(done.traces()) == 4


def test_a_model_that_stops_by_itself_is_a_failed_episode_not_a_lost_one(tmp_path: Path) -> None:
    def closed(question: Question, resources: Resources, config: Config) -> Episode:
        raise Cancelled("the model was closed")

    done = evaluate("packaged", ScriptedModel([]), closed, split="quick", limit=3, control=False, out=tmp_path / "r")
    assert [row["error"] for row in done.predictions()] == ["model: the model was closed"] * 3


def test_flips_tell_what_a_gate_cost(tmp_path: Path) -> None:
    question = next(q for q in load_benchmark("packaged", split="quick").questions if "SELECT" in q.gold[0])
    right, wrong = question.gold[0], "SELECT 1 AS one FROM nowhere"
    acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", wrong, "Action: validate_sql[{}]"]
    fixed = [*acts, "Action: repair_sql[{}]", right, *GOOD]
    model = ScriptedModel({question.text: {"react": fixed}, "*": {"single_shot": [wrong], "react": ["no"] * 99}})
    done = evaluate("packaged", model, split="quick", config=NO_TS, out=tmp_path / "r", progress=False)
    assert done.report["flips"]["validate_sql"] == {"refused": 1, "right_to_wrong": 0, "wrong_to_right": 1}


def test_cancelled_runs_carry_exit_code_130() -> None:
    assert Cancelled("x").exit_code == 130


def test_a_folder_that_is_taken_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="taken is not empty"):
        evaluate("packaged", "scripted:nowhere.json", split="quick", out=tmp_path / "taken", progress=False)
