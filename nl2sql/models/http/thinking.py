"""What a model thinks before it answers, told from the answer: recorded, never read as one.

>>> set_aside("<think>\\nThe table is orders.\\n</think>\\n\\nSELECT 1")
('The table is orders.', 'SELECT 1')
>>> set_aside("SELECT 1")
('', 'SELECT 1')

Servers give it in a field of its own (``reasoning_content``: vLLM, llama.cpp; ``reasoning``: Ollama; blocks of type
``thinking``: Anthropic), inside the text between ``<think>`` and ``</think>``, or, where the chat template has opened
the tag, inside the text up to ``</think>``. Not covered: other tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_BUDGET = 2048  # tokens to think with, beside those of the answer
OPENING, CLOSING = "<think>", "</think>"
_FIELDS = ("reasoning_content", "reasoning")


def set_aside(text: str, opened: bool = False) -> tuple[str, str]:
    """The thoughts in ``text`` and the answer behind them. opened: the chat template has written the opening tag."""
    thought, closed, answer = text.partition(CLOSING)
    opened = opened or text.lstrip().startswith(OPENING)
    if closed or opened:
        return thought.strip().removeprefix(OPENING).strip(), answer.lstrip()
    return "", text


def thought_in(message: Mapping[str, Any]) -> str:
    """The thoughts that a message, or a piece of a stream, carries in a field of their own."""
    return next((message[name] for name in _FIELDS if isinstance(message.get(name), str) and message[name]), "")
