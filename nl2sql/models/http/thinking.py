"""What a model thinks before it answers, told from the answer: recorded, never read as one.

>>> set_aside("<think>\\nThe table is orders.\\n</think>\\n\\nSELECT 1")
('The table is orders.', 'SELECT 1')
>>> set_aside("SELECT 1")
('', 'SELECT 1')

Servers give it in a field of its own (``reasoning_content``: vLLM, llama.cpp; ``reasoning``: Ollama; blocks of type
``thinking``: Anthropic), or inside the text: between ``<think>`` and ``</think>``, in marks of the same kind
(``[THINK]``, ``<seed:think>``, ``<|START_THINKING|>``), in a channel before the final one, or, where the chat template
has opened the mark, up to its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

DEFAULT_BUDGET = 2048  # tokens to think with, beside those of the answer
_FIELDS = ("reasoning_content", "reasoning")
# What a mark of thoughts is called: <think>, <|end_of_thought|>, <seed:think>
_ABOUT = r"[\w:-]{0,20}?(?:think|thought|reason|analy[sz]|reflect|scratch|commentary)\w{0,20}"
_CHANNEL = r"<\|?channel\|?>\s*"
_MESSAGE = r"(?:[^<\n]*<\|message\|>)?"
_ENDS = (
    rf"(?:[<◁]\|?(?:/|end_){_ABOUT}\|?[>▷]|(?-i:\[/THINK\w*\])|<channel\|>|{_CHANNEL}final{_MESSAGE}"
    r"|assistantfinal)"
)
_BEGINS = rf"(?!{_ENDS})(?:[<◁]\|?{_ABOUT}\|?[>▷]|(?-i:\[THINK\w*\])|{_CHANNEL}{_ABOUT}{_MESSAGE})"
SIGNS = ("<", "◁", "[", "analysis")  # without any there is no mark
OPENING = re.compile(_BEGINS, re.I)
CLOSING = re.compile(_ENDS, re.I)
_OPENED = re.compile(rf"\s*(?:{_BEGINS}|analysis(?=.*assistantfinal))", re.I | re.S)


def begun(text: str) -> re.Match[str] | None:
    """The mark of thoughts that ``text`` begins with."""
    return _OPENED.match(text)


def set_aside(text: str, opened: bool = False) -> tuple[str, str]:
    """The thoughts in ``text`` and the answer behind them. opened: the chat template has written the opening mark."""
    if not opened and not any(sign in text for sign in SIGNS):
        return "", text
    opening, closed = begun(text), CLOSING.search(text)
    if not (opening or closed or opened):
        return "", text
    thought = text[opening.end() if opening else 0 : closed.start() if closed else len(text)]
    return thought.strip(), text[closed.end() :].lstrip() if closed else ""


def thought_in(message: Mapping[str, Any]) -> str:
    """The thoughts that a message, or a piece of a stream, carries in a field of their own."""
    return next((message[name] for name in _FIELDS if isinstance(message.get(name), str) and message[name]), "")
