"""The bar of an evaluation counts model calls, and says a time left that is believable."""

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
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.plan import Plan
from nl2sql.runs.progress import DRAWN_EVERY_S, Bar, Work, estimate, most_calls, time_left


def test_questions_that_run_and_wait_cost_what_the_finished_ones_did() -> None:
    work = Work(total=10, prior=10)
    assert work.calls() == (0, 100)
    for question in ("a", "b"):
        work.called(question, calls=4, tokens=50, now=1.0)
        work.finished(question)
    assert work.calls() == (8, 8 + 8 * 7)  # (4 + 4 and twice the guess of 10) / 4 = 7 each
    work.called("c", calls=9, tokens=50, now=2.0)
    assert work.calls() == (17, 8 + 11 + 7 * 7)  # c has asked for 9 already: a quarter more


def test_at_the_end_nothing_is_left() -> None:
    work = Work(total=2, prior=10)
    for question in ("a", "b"):
        work.called(question, calls=3, tokens=30, now=5.0)
        work.finished(question)
    assert work.calls() == (6, 6)
    assert work.line(now=5.0) == "2/2 questions, 6 of about 6 calls, 12 tokens/s, 0 s left"


def test_no_time_left_is_said_before_a_question_is_done() -> None:
    work = Work(total=10, prior=2)
    work.called("a", calls=1, tokens=20, now=10.0)  # the first call computes the whole prompt
    assert work.line(now=10.0) == "0/10 questions, 1 of about 20 calls, 2 tokens/s"
    work.finished("a")
    assert work.line(now=10.0).endswith(" left")


def test_speed_is_that_of_the_last_minute() -> None:
    work = Work(total=100, prior=1)
    for second in range(10):  # a fast start, such as calls from the cache
        work.called("a", calls=10, tokens=1000, now=float(second))
    for second in range(10, 200, 10):
        work.called("b", calls=1, tokens=10, now=float(second))
    assert "1 tokens/s" in work.line(now=190.0)


def test_long_questions_at_the_end_keep_a_time_left() -> None:
    work = Work(total=2, prior=4)
    work.called("a", calls=4, tokens=10, now=1.0)
    work.finished("a")
    for second in range(2, 30):
        work.called("b", calls=1, tokens=10, now=float(second))
    made, expected = work.calls()
    assert expected == made + 7  # of 28 calls a quarter more


@pytest.mark.parametrize(("seconds", "said"), [(4, "4 s"), (99.4, "99 s"), (600, "10 min"), (9000, "2.5 h")])
def test_a_time_is_said_in_its_unit(seconds: float, said: str) -> None:
    assert time_left(seconds) == f"{said} left"


def test_the_guess_before_anything_is_done_is_the_controllers_own() -> None:
    config = build_config({"candidates": {"n": 24}, "single_shot": {"samples": 3}, "react": {"max_steps": 5}})
    names = ("candidates", "best", "single_shot", "react", "vizql")
    assert [most_calls(name, config) for name in names] == [24, 24, 3, 8, 4]


def test_a_dry_run_counts_the_calls_that_a_controller_can_make(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"replies": {"*": ["SELECT 1"]}}', encoding="utf-8")
    config = build_config({"candidates": {"n": 24}, "vizql": {"draft": "sql"}})
    plan = Plan(split="quick", limit=2, model=f"scripted:{script}", control=False)
    costs = {name: estimate(replace(plan, controller=name), config) for name in ("single_shot", "best", "vizql")}
    calls = {name: cost["completion_tokens"] / (2 * config.react.max_new_tokens) for name, cost in costs.items()}
    assert calls == {"single_shot": 1, "best": 24, "vizql": 5}
    assert costs["vizql"]["prompt_tokens"] < 6 * costs["single_shot"]["prompt_tokens"], "no turns of a loop"


def test_an_evaluation_shows_its_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(["SELECT 1"], on_exhausted="repeat")
    options = {"limit": 2, "control": False, "config": build_config({"eval": {"replicas": 0}})}
    evaluate("packaged", model, "single_shot", split="quick", out=tmp_path / "run", progress=True, **options)
    shown = capsys.readouterr().err
    assert re.search(r"100%\|.*\| single_shot: 2/2 questions, 2 of about 2 calls, \d+ tokens/s, 0 s left", shown)
    evaluate("packaged", model, "single_shot", split="quick", out=tmp_path / "quiet", progress=False, **options)
    assert "questions" not in capsys.readouterr().err


def test_work_goes_on_where_nobody_reads_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", buffering=1) as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        work = Work(total=3, prior=1)
        bar = Bar("react", work, shown=True)
        os.close(reader)
        time.sleep(DRAWN_EVERY_S)
        bar.finished("a")  # a lock that this thread, which lives on, kept would stop the other
        time.sleep(DRAWN_EVERY_S)
        other = threading.Thread(target=lambda: (bar.finished("b"), bar.finished("c")), daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive()
        bar.__exit__()
        assert work.calls()[1] == 0 and bar._bar.disable
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what is buffered can be written when it is closed
