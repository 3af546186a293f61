"""Servers that keep to the protocol in a way of their own: each is asked, and answers."""

from __future__ import annotations

from typing import Any

import pytest
from models.provider_servers import App, Refused, Words, provider_at

from nl2sql.agents.controllers import answer
from nl2sql.config import Config
from nl2sql.databases.engines import open_database
from nl2sql.errors import ModelError
from nl2sql.models import load_model
from nl2sql.models.http.wire import said_in

OPTIONS = ("context_window=8192", "retries=0")


class Parts(App):
    def shown(self, words: Words) -> dict[str, Any]:
        thoughts = {"type": "thinking", "thinking": [{"type": "text", "text": "SELECT * FROM offices"}]}
        return {"role": "assistant", "content": [thoughts, {"type": "text", "text": words.text}]}

    def events(self, message: dict[str, Any], finish: str, usage: dict[str, Any]) -> list[Any]:
        choice = {"index": 0, "delta": message, "finish_reason": finish}
        return [{"choices": [choice]}, {"choices": [], "usage": usage}, "[DONE]"]


class StreamsOnly(App):
    def refuse(self, body: dict[str, Any]) -> None:
        if not body.get("stream"):
            raise Refused("This model only supports stream mode, please enable the stream parameter")


class StreamsUnasked(App):
    def post(self, path: str, body: dict[str, Any]) -> Any:
        return super().post(path, body | {"stream": True})


class NoStreamOptions(App):
    def refuse(self, body: dict[str, Any]) -> None:
        if "stream_options" in body:
            raise Refused("[{'loc': ['body', 'stream_options'], 'msg': 'Extra inputs are not permitted'}]", status=422)

    def chat(self, body: dict[str, Any]) -> Any:
        return super().chat({name: value for name, value in body.items() if name != "stop"})


class StreamsOnlyWithoutOptions(NoStreamOptions, StreamsOnly):
    def refuse(self, body: dict[str, Any]) -> None:
        StreamsOnly.refuse(self, body)
        NoStreamOptions.refuse(self, body)


@pytest.mark.parametrize(
    "app",
    [Parts(), StreamsOnly(), StreamsUnasked(), NoStreamOptions(), StreamsOnlyWithoutOptions()],
    ids=lambda app: type(app).__name__,
)
def test_its_answer_is_read(app: App) -> None:
    with provider_at(app) as address:
        model = load_model(f"{address}/v1#{app.name}", server=OPTIONS)
        database = open_database("packaged:scale_models")
        episode = answer("How many customers are there?", database, model, "single_shot", Config())
    assert (episode.rows, episode.error) == (((95,),), None)


class ThoughtsOnly(App):
    def shown(self, words: Words) -> dict[str, Any]:
        return {"role": "assistant", "content": "", "reasoning_content": "SELECT * FROM offices"}


def test_thoughts_alone_are_no_answer_and_are_named() -> None:
    with provider_at(ThoughtsOnly()) as address:
        model = load_model(f"{address}/v1#some-model", server=OPTIONS)
        database = open_database("packaged:scale_models")
        episode = answer("How many customers are there?", database, model, "single_shot", Config())
    assert episode.sql == "" and "held thoughts and nothing else" in (episode.error or "")


@pytest.mark.parametrize("content", [None, [{"type": "refusal", "refusal": "I will not"}]])
def test_a_refusal_is_told_as_one(content: Any) -> None:
    class Refuses(App):
        def shown(self, words: Words) -> dict[str, Any]:
            return {"role": "assistant", "content": content, "refusal": "I will not"}

    with provider_at(Refuses()) as address, pytest.raises(ModelError, match="refuses to answer: I will not"):
        load_model(f"{address}/v1#some-model", server=OPTIONS)


def test_parts_of_other_kinds_are_left_out() -> None:
    assert said_in(["SELECT ", {"type": "image_url", "image_url": {}}, {"type": "output_text", "text": "1"}])[0] == (
        "SELECT 1"
    )


@pytest.mark.timeout(60)
def test_a_million_parts_cost_what_their_bytes_do() -> None:
    assert said_in(["a", {"type": "thinking", "thinking": "b"}] * 500_000) == ("a" * 500_000, "b" * 500_000)
