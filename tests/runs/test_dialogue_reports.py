"""Runs over dialogues: what their reports say, and the commands that start them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_dialogue_runs import WRONG, questions_of, run, settings
from typer.testing import CliRunner

from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.cli import app
from nl2sql.errors import UsageError
from nl2sql.runs import report as pages
from nl2sql.runs.dialogues import dialogue_scores
from nl2sql.runs.evaluate import start
from nl2sql.runs.folder import read_manifest
from nl2sql.runs.plan import RunSpec
from nl2sql.runs.rescore import replay
from nl2sql.runs.summary import summary_text


@pytest.fixture
def benchmark(shop: Path) -> FolderBenchmark:
    return FolderBenchmark("talk", questions_of(), {}, {"shop": shop})


# -------------------------------------------------------------------------------------------------- report


def scores(right: set[str], sessions: dict[str, Any]) -> dict[str, Any]:
    turns = questions_of()
    items = [{"id": turn.id, "ex": turn.id in right, "ex_single_shot": False} for turn in turns]
    traces = [{"id": turn.id, "flags": {"session": sessions.get(turn.id, {})}, "calls": []} for turn in turns]
    return dialogue_scores("gold", turns, items, traces)


def test_matches_are_counted_by_dialogue_turn_and_kind() -> None:
    told = scores({"ships.1", "ships.2", "names.1", "names.2"}, {})
    assert told["dialogues"] == 2
    assert (told["interaction_match"]["value"], told["interaction_match"]["n"]) == (0.5, 2)
    assert told["question_match"]["value"] == pytest.approx(4 / 6)
    shares = {name: (part["value"], part["n"]) for name, part in told["by_turn"].items()}
    assert shares == {"1": (1.0, 2), "2": (1.0, 2), "3": (0.0, 1), "4": (0.0, 1), "later": (0.5, 4)}
    kinds = {name: (round(part["value"], 3), part["n"]) for name, part in told["by_kind"].items()}
    assert kinds == {"first": (1.0, 2), "pronoun": (0.667, 3), "topic_change": (0.0, 1)}
    assert told["control"]["with_guardrails"]["question_match"]["value"] == 0


def test_a_turn_keeps_its_number_where_the_one_before_it_is_left_out() -> None:
    turns = [turn for turn in questions_of() if turn.id != "names.1"]
    told = dialogue_scores("gold", turns, [{"id": turn.id, "ex": True} for turn in turns], [])
    assert {name: part["n"] for name, part in told["by_turn"].items()} == {"1": 1, "2": 2, "3": 1, "4": 1, "later": 4}


def test_detection_is_measured_on_turns_with_a_history() -> None:
    """Three turns lean on others; one that stands alone is taken for such, one that leans is not seen."""
    yes = {"is_followup": True, "resolved_query": "whole"}
    no = {"is_followup": False, "resolved_query": "And their cities?"}
    told = scores(set(), {"ships.2": yes, "ships.3": yes, "ships.4": yes, "names.2": no})
    assert (told["precision"]["value"], told["precision"]["n"]) == (pytest.approx(2 / 3), 3)
    assert (told["recall"]["value"], told["recall"]["n"]) == (pytest.approx(2 / 3), 3)
    assert (told["unchanged"]["value"], told["unchanged"]["n"]) == (0.0, 1)
    same = scores(set(), {"ships.4": {"is_followup": True, "resolved_query": "List the cities of customers."}})
    assert same["unchanged"]["value"] == 1.0


def test_without_standalone_texts_nothing_is_said_of_detection() -> None:
    turns = [replace(q, meta={k: q.meta[k] for k in ("interaction_id", "turn")}) for q in questions_of()]
    items = [{"id": turn.id, "ex": True} for turn in turns]
    told = dialogue_scores("own", turns, items, [])
    assert not {"precision", "recall", "unchanged"} & set(told) and told["by_kind"] == told["control"] == {}


def test_table_notes_and_page_show_dialogues(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    done, _ = run(benchmark, tmp_path / "run", answers={"ships.3": WRONG}, control=True)
    text = summary_text(done.report)
    assert "interaction match" in text and "EX, later turns" in text and "EX, kind topic change" in text
    assert "2 dialogues, history gold" in text and "follow-ups: precision 100.0" in text
    assert "resolution: 0 model calls, 0 tokens (the control is charged the same)" in text
    page = pages.report_html([tmp_path / "run"], golds=False, progress=False)
    assert "<h3>Dialogues</h3>" in page and "<td>interaction match</td>" in page
    again = replay(tmp_path / "run", benchmark=benchmark, progress=False)
    assert again.report["dialogues"] == done.report["dialogues"]


def test_an_episode_of_the_page_shows_what_was_understood(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    from nl2sql.runs.report.episodes import _episode
    from nl2sql.runs.run import collect

    done, _ = run(benchmark, tmp_path / "run")
    items = {item["id"]: item for item in done.report["items"]}
    shown = {t["id"]: _episode(t, items[t["id"]], None, None, None, 2_000, 10_000) for t in done.traces()}
    session = shown["ships.2"]["session"]
    assert shown["ships.2"]["question"] == "Only those shipped?" and session["is_followup"]
    assert session["resolved_query"] == "How many orders are there? Only those shipped?" and session["evidence"]
    assert set(session) == {"turn", "is_followup", "strategy", "resolved_query", "fallback", "evidence"}
    assert collect([tmp_path / "run"]).runs


# ------------------------------------------------------------------------------------------- command line


def script_of(path: Path, benchmark: str = "packaged-dialogues") -> Path:
    from nl2sql.benchmarks import load_benchmark

    turns = load_benchmark(benchmark, split="dev").questions
    replies = {turn.text: {"*": [turn.gold[0] if n % 3 else WRONG]} for n, turn in enumerate(turns)}
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    return path


def test_eval_dialogues_takes_the_packaged_ones(tmp_path: Path) -> None:
    model = f"scripted:{script_of(tmp_path / 'script.json')}"
    fixed = ["--model", model, "--controller", "single_shot", "--replicas", "0", "-c", "session.resolve=concat", "-q"]
    out = tmp_path / "run"
    done = CliRunner().invoke(
        app, ["eval", "--dialogues", "--history", "own", "--limit", "6", "--out", str(out), *fixed, "--json"]
    )
    assert done.exit_code == 0, done.output
    plan = read_manifest(out)["plan"]
    assert (plan["benchmark"], plan["split"], plan["history"]) == ("packaged-dialogues", "dev", "own")
    assert json.loads(done.stdout)["dialogues"]["dialogues"] == 6
    done = CliRunner().invoke(app, ["eval", "--dialogues", "--benchmark", "packaged", *fixed])
    assert done.exit_code != 0 and "benchmark 'packaged' holds no dialogues" in done.output + str(done.exception)


def test_what_is_asked_is_resolved_with_seeds_too(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    done, _ = run(benchmark, tmp_path / "run", seeds=(1, 2), history="own")
    assert done.report["dialogues"]["history"] == "own" and set(done.report["seeds"]) == {"1", "2"}


def test_a_plan_of_dialogues_starts_from_a_grid(tmp_path: Path) -> None:
    from nl2sql.runs.ablation import expand

    base = {"benchmark": "packaged-dialogues", "history": "gold", "config": {"session": {"resolve": "none"}}}
    cells = expand({"base": base, "cells": {"oracle": {"session.resolve": "oracle"}}})
    assert [cell.plan.history for cell in cells] == ["gold", "gold"] and cells[0].plan.split == "dev"
    with pytest.raises(UsageError, match="'history' in axes has to be the same for all cells"):
        expand({"base": base, "axes": {"history": ["own"]}})
    with pytest.raises(UsageError, match="history is 3; expected text"):
        expand({"base": {**base, "history": 3}, "cells": {"x": {}}})


def test_a_run_of_other_questions_says_nothing_of_histories(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"replies": {"*": ["SELECT 1"]}}', encoding="utf-8")
    plan = RunSpec(controller="single_shot", split="quick", limit=2, model=f"scripted:{script}")
    start(plan, settings(), out=tmp_path / "run", progress=False)
    assert set(read_manifest(tmp_path / "run")["plan"]) == set(vars(plan)) - {
        "history",
        "turns",
        "tools",
        "gates",
        "corrections",
    }


def test_an_ablation_states_later_turns_and_the_share_of_the_room(tmp_path: Path) -> None:
    """Only a question that says what the dialogue's own text says is answered rightly."""
    from nl2sql.benchmarks import load_benchmark
    from nl2sql.benchmarks.core import draw_dialogues
    from nl2sql.runs.ablation import ablate, ablation_text, expand

    turns = draw_dialogues(load_benchmark("packaged-dialogues", split="dev").questions, 6)
    model = write_judge(tmp_path / "judge.py", {turn.meta["standalone"]: turn.gold[0] for turn in turns})
    base = {
        "benchmark": "packaged-dialogues",
        "history": "gold",
        "limit": 6,
        "controller": f"{model}:judge",
        "model": f"scripted:{script_of(tmp_path / 'script.json')}",
        "control": False,
        "config": {"session": {"resolve": "none"}, "eval": {"replicas": 0}},
    }
    cells = expand({"base": base, "cells": {"oracle": {"session.resolve": "oracle"}, "renamed": {}}})
    done = ablate(cells, tmp_path / "out", progress=False)
    firsts = [{i["id"]: i["ex"] for i in r.report["items"] if i["id"].endswith(".1")} for r in done.runs.values()]
    assert firsts[0] == firsts[1] and all(firsts[0].values())
    test = done.tests()["oracle"]
    assert test.losses == 0 and test.wins > 5 and test.p < 0.01
    text = ablation_text(done)
    later = done.runs["oracle"].report["dialogues"]["by_turn"]["later"]
    assert later["value"] == 1.0 and "oracle: later turns 100.0" in text
    assert "renamed: later turns" in text and "; 0% of the" in text and "points between base and oracle" in text


def write_judge(path: Path, answers: dict[str, str]) -> Path:
    """A controller that answers a question that is whole, and nothing else."""
    path.write_text(
        "from nl2sql.agents.record import Episode\n"
        f"ANSWERS = {answers!r}\n"
        "def judge(question, resources, config):\n"
        "    return Episode(question, 'judge', sql=ANSWERS.get(question.text, 'SELECT 0'))\n",
        encoding="utf-8",
    )
    return path
