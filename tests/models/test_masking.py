"""The server's key is masked whole and by its end, and what a server says moves no terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from models.standin import CHAT, Dialect, opened, serving

from nl2sql.agents.record import json_text
from nl2sql.errors import one_line, printable
from nl2sql.machine import masked, masked_data
from nl2sql.models.response_cache import ResponseCache

KEY = "sk-0f3a9b+(Qz7Lw2Xk55"


@pytest.mark.parametrize("start", range(len(KEY) - 7))
def test_the_key_and_every_long_end_of_it_are_masked(start: int) -> None:
    assert masked(f"x{KEY[start:]}y {KEY[start:]}", KEY) == "x***y ***"


@pytest.mark.parametrize("text", [KEY[-7:], KEY[:-1], "", "EMPTY"])
def test_other_text_stays(text: str) -> None:
    assert masked(text, KEY) == text


def test_a_short_key_is_no_secret() -> None:
    assert masked("an EMPTY list", "EMPTY") == "an EMPTY list"
    assert masked("none", "") == "none"


def test_data_is_masked_at_every_depth() -> None:
    data = {"a": [KEY, {KEY: [f"b{KEY[-9:]}", 7, None]}]}
    assert masked_data(data, KEY) == {"a": ["***", {"***": ["b***", 7, None]}]}


def test_what_is_written_is_masked_by_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_API_KEY", KEY)
    assert json_text({"sql": [KEY, KEY[-8:]]}) == '{"sql": ["***", "***"]}'
    monkeypatch.delenv("NL2SQL_API_KEY")
    assert KEY in json_text({"sql": KEY})


def test_control_characters_are_shown_as_question_marks() -> None:
    assert one_line("a\x1b[2J b\x07\x9b\u202ec") == "a?[2J b???c"
    assert printable("a\tb\nc é 🎉") == "a\tb\nc é 🎉"


def test_a_key_that_comes_in_pieces_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_API_KEY", KEY)
    with serving(Dialect(stops=False, key=KEY)) as server:
        model = opened(server)

        def in_pieces(handler: Any) -> None:
            handler.start_stream()
            for piece in ("a", KEY[:9], KEY[9:], "b"):
                handler.event({"choices": [{"index": 0, "delta": {"content": piece}, "text": piece}]})
            handler.wfile.write(b"data: [DONE]\n\n")

        server.misbehave.append(in_pieces)
        assert model.generate(CHAT, stop=["nothing"], max_new_tokens=4)[0].text == "a***b"


def test_the_response_cache_holds_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NL2SQL_API_KEY", KEY)
    cache = ResponseCache(tmp_path / "answers.sqlite")
    cache.put(b"k", [{"text": f"SELECT '{KEY}'"}])
    assert cache.get(b"k") == [{"text": "SELECT '***'"}]
    cache.close()
