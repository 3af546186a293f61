"""An episode whose model answers past the limits: a format error of that step, and the episode goes on."""

from __future__ import annotations

import json
import time

import pytest

from nl2sql.agents.checks.candidate import behind_prefill
from nl2sql.agents.controllers import answer
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.models.scripted import ScriptedModel
from nl2sql.sql.parse import REFUSED, bounded

HOSTILE = {
    "brackets": "(" * 6000,
    "actions": "Action: x[" * 20_000,
    "megabytes": "x" * 2**23,
    "json": '{"a":' * 900,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_turn_past_the_limits_is_a_format_error_and_the_loop_goes_on(text: str) -> None:
    database = load_benchmark("packaged").database("chess_league")
    table = database.schema().tables[0].name
    rest = ["generate_sql", "validate_sql", "validate_constraints", "run_sql", "finish"]
    replies = [text, "Action: extract_constraints[{}]"]
    for name in rest:
        replies.append(f"Action: {name}[{{}}]")
        if name == "generate_sql":
            replies.append(f" count(*) FROM {table}")
    started = time.monotonic()
    config = build_config({"react": {"max_steps": 12, "forced_extraction": False}})
    episode = answer("How many rows?", database, ScriptedModel(replies), "react", config)
    assert episode.finish == "finish" and episode.error is None
    assert episode.flags["past_limits"] == episode.flags["format_errors"] == 1
    assert episode.trace[0]["llm"].startswith(REFUSED) and episode.calls[0]["began"] == text[:500]
    assert "began" not in episode.calls[1]
    observation = episode.trace[1]["observation"]["error"]
    assert observation.startswith("format_error:") and REFUSED in observation
    assert len(json.dumps(episode.trace)) + len(episode.transcript) < 50_000
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("controller", ["single_shot", "candidates"])
def test_sql_past_the_limits_is_rejected(controller: str) -> None:
    database = load_benchmark("packaged").database("chess_league")
    model = ScriptedModel([HOSTILE["brackets"]], on_exhausted="repeat")
    episode = answer("How many rows?", database, model, controller, build_config({"candidates": {"n": 2}}))
    assert episode.sql == "" and episode.flags["past_limits"] >= 1
    assert episode.error is not None and not episode.error.startswith("controller: RecursionError")


def test_a_refused_text_gets_no_prefill() -> None:
    assert behind_prefill("SELECT", bounded("(" * 300)).startswith(REFUSED)
