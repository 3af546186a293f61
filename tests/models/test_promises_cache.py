"""What the response cache promises where one field of a call alone tells two calls apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl2sql.interfaces import Completion, Grammar
from nl2sql.models.response_cache import CachedModel

CHAT = [{"role": "user", "content": "How many orders?"}]


class Numbered:
    """A model that numbers its answers and ends each as it is told to."""

    name, context_window = "numbered", 1000

    def __init__(self) -> None:
        self.calls = 0
        self.ending: Any = "stop"

    def generate(self, messages: Sequence[Any], **_: Any) -> list[Completion]:
        self.calls += 1
        return [Completion(f"answer {self.calls}", self.ending)]

    def count_tokens(self, messages: Sequence[Any], prefill: str = "") -> int:
        return 10

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "revision": "r1"}

    def close(self) -> None:
        pass


def test_grammars_of_one_kind_with_other_texts_are_other_calls(tmp_path: Path) -> None:
    inner = Numbered()
    model = CachedModel(inner, tmp_path / "answers.sqlite")
    for text in ('start: "a"', 'start: "b"', 'start: "a"'):
        model.generate(CHAT, max_new_tokens=5, grammar=Grammar("lark", text))
    assert inner.calls == 2


def test_an_answer_that_was_cancelled_is_asked_for_again(tmp_path: Path) -> None:
    inner = Numbered()
    model = CachedModel(inner, tmp_path / "answers.sqlite")
    inner.ending = "cancelled"
    model.generate(CHAT, max_new_tokens=5)
    inner.ending = "stop"
    assert [model.generate(CHAT, max_new_tokens=5)[0].text for _ in range(2)] == ["answer 2", "answer 2"]
