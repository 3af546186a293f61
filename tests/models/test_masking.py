"""The server's key is masked whole and by its end, and what a server says moves no terminal."""

from __future__ import annotations

import pytest

from nl2sql.agents.record import json_text
from nl2sql.errors import one_line, printable
from nl2sql.machine import masked, masked_data

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
