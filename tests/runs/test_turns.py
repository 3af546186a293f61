"""``--turns``: which form the loop's turns take, chosen or found by trying."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from nl2sql.config import build_config
from nl2sql.errors import ModelError, UsageError
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import evaluate, resume
from nl2sql.runs.job import TRIED

CALL = '<tool_call>{"name": "get_schema", "arguments": {}}</tool_call>'
LINE = "Thought: look.\nAction: get_schema[{}]"
CONFIG = build_config({"eval": {"replicas": 0}, "react": {"max_steps": 2}})
NATIVE = build_config({"eval": {"replicas": 0}, "react": {"max_steps": 2, "native_tools": True}})


class Chatty(ScriptedModel):
    """Writes prose where actions are asked for as lines, and calls where tools are offered; SQL is SQL."""

    lines, calls = "I would look at the tables first.", CALL

    def generate(self, messages: Any, **options: Any) -> Any:
        native, text = bool(options.get("tools")), "SELECT 1"
        if native or any("Action:" in message["content"] for message in messages):
            text = self.calls if native else self.lines
        return ScriptedModel([text], on_exhausted="repeat").generate(messages, **options)

    def for_episode(self, question: str, controller: str | None = None) -> Chatty:
        return self


class Orderly(Chatty):
    lines = LINE


class Mute(Chatty):
    calls = "I would call something."


class Falling(Chatty):
    def generate(self, messages: Any, **options: Any) -> Any:
        if options.get("tools"):
            raise ModelError("the server fell over")
        return super().generate(messages, **options)


class NoTools(Chatty):
    def check(self, *, grammar: bool, tools: bool) -> None:
        if tools:
            raise ModelError("no tools here")


def ran(model: ScriptedModel, out: Path, **options: Any) -> Any:
    settings = {"split": "quick", "limit": 12, "control": False, "config": CONFIG, "progress": False, **options}
    return evaluate("packaged", model, settings.pop("controller", "react"), out=out, **settings)


@pytest.mark.parametrize(
    ("kind", "chosen", "tried"),
    [(Chatty, "native", {"text", "native"}), (Orderly, "text", {"text"}), (Mute, "text", {"text", "native"})],
)
def test_auto_takes_the_form_that_is_read_more_often(
    kind: type[ScriptedModel], chosen: str, tried: set[str], tmp_path: Path
) -> None:
    run = ran(kind([]), tmp_path / "run", turns="auto")
    trial = run.manifest["turns"]
    assert (trial["chosen"], trial["episodes"]) == (chosen, TRIED)
    assert tried == {"text", "native"} & set(trial)
    assert run.manifest["config"]["react"]["native_tools"] == (chosen == "native")
    assert len(run.predictions()) == 12  # the trial's episodes are none of the run's
    assert json.loads((run.folder / "manifest.json").read_text(encoding="utf-8"))["turns"] == trial


def test_a_model_that_takes_no_tools_stays_with_text_and_says_why(tmp_path: Path) -> None:
    trial = ran(NoTools([]), tmp_path / "run", turns="auto").manifest["turns"]
    assert (trial["chosen"], trial["native_refused"]) == ("text", "no tools here")


def test_a_form_whose_episodes_break_off_is_not_taken(tmp_path: Path) -> None:
    trial = ran(Falling([]), tmp_path / "run", turns="auto").manifest["turns"]
    assert trial["chosen"] == "text" and trial["native"]["unread"] == trial["native"]["turns"] == TRIED


def test_a_resumed_run_keeps_what_was_chosen(tmp_path: Path) -> None:
    run = ran(Chatty([]), tmp_path / "run", turns="auto")
    lines = (run.folder / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (run.folder / "predictions.jsonl").write_bytes(b"".join(lines[:3]))
    again = resume(run.folder, model=Chatty([]), progress=False)
    assert len(again.predictions()) == 12
    assert json.loads((run.folder / "manifest.json").read_text(encoding="utf-8"))["turns"]["chosen"] == "native"


def test_native_calls_are_proposed_after_ten_episodes_and_only_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ran(Orderly([]), tmp_path / "orderly")
        ran(Chatty([]), tmp_path / "few", limit=TRIED - 1)
        ran(Chatty([]), tmp_path / "native", config=NATIVE)
        assert not caplog.messages
        run = ran(Chatty([]), tmp_path / "chatty")
    assert [("--turns native" in line, "--turns auto" in line) for line in caplog.messages] == [(True, True)]
    assert "turns" not in run.manifest


def test_auto_needs_a_loop(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--turns auto goes with a loop, not with 'single_shot'"):
        ran(Chatty([]), tmp_path / "run", controller="single_shot", turns="auto")
    assert not (tmp_path / "run").exists()
