"""What a server is found to do when that is first needed: grammars, samples, tools. Each by a few tiny requests.

A finding is kept. A server that was busy or out of reach has shown nothing: that error is the caller's, and the next
call tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from nl2sql.errors import ModelError
from nl2sql.interfaces import ToolDefinition
from nl2sql.models.http.grammar import TRIAL_TOKENS, find_form
from nl2sql.models.http.transport import RequestRefused
from nl2sql.models.http.wire import read_answers, read_counts

_WEATHER: ToolDefinition = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_HOT = {"temperature": 1.0, "top_p": 1.0}  # some servers take no higher temperature
_SEEDS = 4  # samples that may be the greedy text before a server is said to decode greedily


class Ask(Protocol):
    """Asks for a story of a few tokens, with further fields; gives the parsed answer. Raises ModelError."""

    def __call__(self, tokens: int, **fields: Any) -> Any: ...


class Trials:
    """The findings about one server. Thread-safe; one trial at a time.

    forms, samples: of a server that is known, and is not tried.
    """

    def __init__(self, forms: Mapping[str, str] | None = None, samples: bool | None = None) -> None:
        self._forms = dict(forms or {})
        self._samples = samples
        self._tools: bool | None = None
        self._lock = threading.Lock()

    def form(self, kind: str, ask: Ask) -> str:
        """The form in which the server obeys grammars of ``kind``; "" when in none."""
        with self._lock:
            if kind not in self._forms:
                self._forms[kind] = find_form(kind, lambda fields: _text(ask(TRIAL_TOKENS[kind], **fields)))
            return self._forms[kind]

    def samples(self, ask: Ask) -> bool:
        """Does the server sample at all? transformers serve, for one, decodes greedily whatever the temperature."""
        with self._lock:
            if self._samples is None:
                greedy = _text(ask(16))
                self._samples = any(_text(ask(16, **_HOT, seed=seed)) != greedy for seed in range(1, _SEEDS + 1))
            return self._samples

    def shows_tools(self, ask: Ask) -> bool:
        """Does the prompt grow by tools? A server that counts nothing is believed. Raises ModelError when refused."""
        with self._lock:
            if self._tools is None:
                try:
                    counts = [read_counts(ask(1, **more)).prompt for more in ({}, {"tools": [_WEATHER]})]
                except RequestRefused as refused:
                    raise ModelError(f"{refused} (asked with tools; react.native_tools is on)") from None
                self._tools = None in counts or counts[0] != counts[1]
            return self._tools


def _text(data: Any) -> str:
    return read_answers(data, ())[0].text
