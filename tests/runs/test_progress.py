"""The bar of an evaluation shows its questions and calls; a dry run counts the calls that a controller can make."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nl2sql.config import build_config
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import estimate, evaluate, most_calls
from nl2sql.runs.job import Bar
from nl2sql.runs.plan import RunSpec


def test_the_calls_that_a_question_may_take_are_the_controllers_own() -> None:
    config = build_config({"candidates": {"n": 24}, "single_shot": {"samples": 3}, "react": {"max_steps": 5}})
    names = ("candidates", "best", "single_shot", "react", "vizql")
    assert [most_calls(name, config) for name in names] == [24, 24, 3, 8, 4]


def test_a_dry_run_counts_the_calls_that_a_controller_can_make(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"replies": {"*": ["SELECT 1"]}}', encoding="utf-8")
    config = build_config({"candidates": {"n": 24}, "vizql": {"draft": "sql"}})
    plan = RunSpec(split="quick", limit=2, model=f"scripted:{script}", control=False)
    costs = {name: estimate(replace(plan, controller=name), config) for name in ("single_shot", "best", "vizql")}
    calls = {name: cost["completion_tokens"] / (2 * config.react.max_new_tokens) for name, cost in costs.items()}
    assert calls == {"single_shot": 1, "best": 24, "vizql": 5}
    assert costs["vizql"]["prompt_tokens"] < 6 * costs["single_shot"]["prompt_tokens"], "no turns of a loop"


def test_an_evaluation_shows_its_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(["SELECT 1"], on_exhausted="repeat")
    options = {"limit": 2, "control": False, "config": build_config({"eval": {"replicas": 0}})}
    evaluate("packaged", model, "single_shot", split="quick", out=tmp_path / "run", progress=True, **options)
    shown = capsys.readouterr().err
    assert re.search(r"single_shot: 100%\|.*\| 2/2 \[.*, 2 calls, [1-9]\d* tokens\]", shown)
    evaluate("packaged", model, "single_shot", split="quick", out=tmp_path / "quiet", progress=False, **options)
    assert "questions" not in capsys.readouterr().err


def test_work_goes_on_where_nobody_reads_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", buffering=1) as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        bar = Bar("react", 3, shown=True)
        os.close(reader)
        time.sleep(bar.mininterval)
        bar.finished()  # a lock that this thread, which lives on, kept would stop the other
        time.sleep(bar.mininterval)
        other = threading.Thread(target=lambda: (bar.finished(), bar.finished()), daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive()
        bar.close()
        assert bar.disable
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what is buffered can be written when it is closed


def test_questions_that_are_asked_at_once_are_half_done_in_the_time_that_is_left() -> None:
    with Bar("react", 20, shown=True, together=8) as bar:
        bar.start_t -= 100
        for done, left in ((1, 300), (8, 67), (19, 2.56)):
            bar.n = done
            assert (20 - done) / bar.format_dict["rate"] == pytest.approx(left, rel=0.02)
