"""ScriptedModel: cursors, limits, files."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from nl2sql.errors import Cancelled, ModelError, UsageError
from nl2sql.interfaces import Model, Sampling, Usage
from nl2sql.models import load_model
from nl2sql.models.scripted import ScriptedModel

CASES = yaml.safe_load(Path(__file__).with_name("scripts.yaml").read_text(encoding="utf-8"))


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def say(model: ScriptedModel, question: str = "q", **kwargs: Any) -> str:
    return model.generate(user(question), **{"max_new_tokens": 100, **kwargs})[0].text


def test_replies_come_in_order_and_then_run_out() -> None:
    model = ScriptedModel(["one", "two"])
    assert isinstance(model, Model)
    assert [say(model), say(model)] == ["one", "two"]
    with pytest.raises(ModelError, match=r"has no reply left: any other question \('\*'\) has 2 replies and reply 3"):
        say(model)


def test_repeat_gives_the_last_reply_again() -> None:
    model = ScriptedModel(["one", "two"], on_exhausted="repeat")
    assert [say(model) for _ in range(4)] == ["one", "two", "two", "two"]


def test_the_longest_key_found_in_the_messages_decides() -> None:
    model = ScriptedModel({"How many": ["short"], "How many orders?": ["long"], "*": ["other"]})
    assert say(model, "Schema ... Question: How many orders?") == "long"
    assert say(model, "How many") == "short"
    assert say(model, "Which?") == "other"


def test_every_episode_starts_at_the_first_reply() -> None:
    model = ScriptedModel({"A?": {"react": ["r1", "r2"], "*": ["s1"]}, "*": ["x"]})
    for _ in range(2):
        view = model.for_episode("A?", "react")
        assert [say(view), say(view)] == ["r1", "r2"]
        with pytest.raises(ModelError, match="question 'A\\?' has 2 replies"):
            say(view)
    assert say(model.for_episode("A?", "single_shot")) == "s1"
    assert say(model.for_episode("B?", "react")) == "x"


def test_a_question_or_controller_without_replies_is_named() -> None:
    with pytest.raises(ModelError, match="no replies for question 'B\\?'"):
        say(ScriptedModel({"A?": ["x"]}).for_episode("B?", "react"))
    with pytest.raises(ModelError, match="no replies for controller 'reflect' on question 'A\\?'; known: react"):
        say(ScriptedModel({"A?": {"react": ["x"]}}).for_episode("A?", "reflect"))


def test_a_stop_string_cuts_the_reply_before_it() -> None:
    done = ScriptedModel(["Thought: a\nObservation: b\nEND"]).generate(
        user("q"), stop=["END", "\nObservation:"], max_new_tokens=100
    )[0]
    assert (done.text, done.finish_reason) == ("Thought: a", "stop")


def test_max_new_tokens_counts_words() -> None:
    done = ScriptedModel(["  a b\nb  c"]).generate(user("q"), max_new_tokens=3)[0]
    assert (done.text, done.finish_reason, done.usage.completion_tokens) == ("  a b\nb", "length", 3)


def test_usage_counts_words() -> None:
    done = ScriptedModel(["a b c"]).generate(user("one two"), prefill="three", max_new_tokens=9)[0]
    assert done.usage == Usage(3, 3, 3, 1, done.usage.seconds)


def test_long_form_replies() -> None:
    model = ScriptedModel([{"text": "cut", "finish_reason": "length"}, {"error": "the GPU burns"}, {"text": ""}])
    assert model.generate(user("q"), max_new_tokens=5)[0].finish_reason == "length"
    with pytest.raises(ModelError, match="the GPU burns"):
        say(model)
    assert say(model) == ""


def test_n_completions_consume_n_replies() -> None:
    model = ScriptedModel(["a", "b", "c"])
    texts = [c.text for c in model.generate(user("q"), max_new_tokens=5, n=2, sampling=Sampling(), seed=1)]
    assert texts == ["a", "b"] and say(model) == "c"


def test_cancel_interrupts_a_delay() -> None:
    cancel = threading.Event()
    threading.Timer(0.05, cancel.set).start()
    with pytest.raises(Cancelled):
        say(ScriptedModel([{"text": "late", "delay_s": 30}]), cancel=cancel)


def test_a_prompt_that_does_not_fit_is_refused_with_numbers() -> None:
    with pytest.raises(ModelError, match=r"prompt of 9 tokens \+ max_new_tokens 4 exceeds .* 12"):
        say(ScriptedModel(["a"], context_window=12), "w " * 9, max_new_tokens=4)


def test_many_threads_get_every_reply_once() -> None:
    model = ScriptedModel([str(i) for i in range(200)])
    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(lambda _: int(say(model)), range(200))) == list(range(200))


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_script_file_is_loaded_by_its_spec(tmp_path: Path, suffix: str) -> None:
    script = {"name": "mine", "context_window": 999, "on_exhausted": "repeat", "replies": {"*": ["SELECT 1"]}}
    path = tmp_path / f"script{suffix}"
    path.write_text(json.dumps(script), encoding="utf-8")
    model = load_model(f"scripted:{path}")
    assert isinstance(model, ScriptedModel)
    assert (model.name, model.context_window, say(model), say(model)) == ("mine", 999, "SELECT 1", "SELECT 1")
    assert len(model.describe()["revision"]) == 64


@pytest.mark.parametrize("case", CASES["bad"], ids=lambda case: case["says"])
def test_a_bad_script_is_one_clear_line(tmp_path: Path, case: dict[str, str]) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(case["text"], encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        ScriptedModel.from_file(path)
    assert case["says"] in str(caught.value)
    assert "script" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_script_says_what_to_type() -> None:
    with pytest.raises(UsageError, match=r"'/no/such.yaml' does not exist.*--model scripted:FILE"):
        load_model("scripted:/no/such.yaml")
