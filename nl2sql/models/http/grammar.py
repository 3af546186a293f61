"""What a server is found to do when it is first needed: ways to take a grammar, samples, tools.

>>> find_form("lark", lambda fields: "zq123" if "guided_grammar" in fields else "Hello!")
'guided_grammar'

A grammar is sent as it is, never translated: Lark text goes to servers that read llguidance's Lark (vLLM, SGLang with
``--grammar-backend llguidance``, llama.cpp built with llguidance). A server that takes the field and does not obey
counts as one that has none. Some obey a small grammar and drop one they cannot compile without a word (llama.cpp
does), so every constrained answer is held against its grammar here, where llguidance is installed.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from nl2sql.errors import ModelError, one_line
from nl2sql.interfaces import Grammar
from nl2sql.models.chat import OFFERED
from nl2sql.models.http.transport import RequestRefused, Unanswered
from nl2sql.models.http.wire import read_answers, read_counts

# -------------------------------------------------------------------------------- structured output

logger = logging.getLogger(__name__)

_COMPILED = 256  # grammars kept

Form: TypeAlias = Callable[[str], dict[str, Any]]

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"zq": {"type": "string", "enum": ["w7"]}}}
_SCHEMA |= {"required": ["zq"], "additionalProperties": False}
_TRIALS = {  # a text that no model writes by itself, and how it looks
    "lark": ('start: "zq" /[0-7][0-7][0-7]/\n', re.compile(r"zq[0-7]{3}")),
    "json_schema": (json.dumps(_SCHEMA), re.compile(r'\s*\{\s*"zq"\s*:\s*"w7"\s*\}\s*')),
}
TRIAL_TOKENS = {"lark": 12, "json_schema": 48}


def _named_schema(text: str) -> dict[str, Any]:
    return {"name": "answer", "schema": json.loads(text), "strict": True}


FORMS: Mapping[str, Mapping[str, Form]] = {
    "lark": {
        "structured_outputs.grammar": lambda text: {"structured_outputs": {"grammar": text}},
        "guided_grammar": lambda text: {"guided_grammar": text},
        "grammar (llguidance)": lambda text: {"grammar": "%llguidance {}\n\n" + text},
        "ebnf": lambda text: {"ebnf": text},
    },
    "json_schema": {
        "response_format": lambda text: {
            "response_format": {"type": "json_schema", "json_schema": _named_schema(text)}
        },
        "structured_outputs.json": lambda text: {"structured_outputs": {"json": json.loads(text)}},
        "guided_json": lambda text: {"guided_json": json.loads(text)},
        "json_schema": lambda text: {"json_schema": json.loads(text)},
    },
}


def find_form(kind: str, ask: Callable[[dict[str, Any]], str]) -> str:
    """The name of the form that the server obeys; "" when none. ``ask(fields)`` gives the text of a trial request.

    Raises ModelError where no form was obeyed and one got no answer: that one is not known.
    """
    text, expected = _TRIALS[kind]
    unanswered: Unanswered | None = None
    for name, form in FORMS[kind].items():
        try:
            answer = ask(form(text))
        except Unanswered as error:
            unanswered = error
        except ModelError:  # refused, or no answer that can be read
            continue
        else:
            if expected.fullmatch(answer):
                return name
    if unanswered is not None:
        raise unanswered
    return ""


def fields_for(grammar: Grammar, form: str, base: str) -> dict[str, Any]:
    """The request fields that ask the server at ``base`` for ``grammar``.

    Raises ModelError where it has no form for it (""), and for a schema that is not JSON.
    """
    if not form:
        raise ModelError(
            f"{base} does not obey a {grammar.kind} grammar (tried {', '.join(FORMS[grammar.kind])}); leave "
            "--constrain at none, or use a server with structured output by llguidance (docs/models.md)"
        )
    try:
        return FORMS[grammar.kind][form](grammar.text)
    except ValueError as error:
        raise ModelError(f"the JSON schema is not JSON: {error}") from None


class GrammarCheck:
    """The check that a text keeps to a grammar. Compiled grammars are kept, the last few. Thread-safe.

    ours: the server is our own llama.cpp, which obeys; where nothing can check it here, that is not worth a line.
    """

    def __init__(self, ours: bool = False) -> None:
        self._lock = threading.Lock()
        self._compiled = lru_cache(_COMPILED)(self._compile)
        self._bytes: Any = None
        try:
            import llguidance

            self._bytes = llguidance.LLTokenizer("byte")
        except ImportError:
            said = "llguidance is not installed: answers are not checked against the grammar asked for"
            logger.log(logging.DEBUG if ours else logging.WARNING, said)

    def prepare(self, grammar: Grammar) -> Any:
        """A matcher at the grammar's beginning; None where nothing can check it here.

        Raises ModelError with one line for a malformed one.
        """
        if self._bytes is None:
            return None
        with self._lock:
            return self._compiled(grammar).deep_copy()

    def _compile(self, grammar: Grammar) -> Any:
        from llguidance import LLMatcher

        make = LLMatcher.grammar_from_lark if grammar.kind == "lark" else LLMatcher.grammar_from_json_schema
        try:
            matcher = LLMatcher(self._bytes, make(grammar.text))
            error = matcher.get_error()
        except ValueError as malformed:
            error = str(malformed)
        if error:
            raise ModelError(f"malformed {grammar.kind} grammar: {one_line(error, 300)}")
        return matcher

    def check(self, grammar: Grammar, text: str) -> None:
        """Raises ModelError when ``text`` is no beginning of what ``grammar`` allows."""
        matcher, raw = self.prepare(grammar), text.encode("utf-8", "replace")
        taken = matcher.try_consume_tokens(list(raw)) if matcher is not None else len(raw)
        if taken < len(raw):
            at = len(raw[:taken].decode("utf-8", "ignore"))
            raise ModelError(
                f"the server left the grammar it was asked to keep to, at {text[at : at + 40]!r}; it may not know all "
                "of the grammar's syntax (its log may say); leave --constrain at none"
            )


# ------------------------------------------------------------------------------------------- trials
# A finding is kept. A server that was busy or out of reach has shown nothing: that error is the
# caller's, and the next call tries again.

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
                    counts = [read_counts(ask(1, **more)).prompt for more in ({}, {"tools": list(OFFERED)})]
                except RequestRefused as refused:
                    raise ModelError(f"{refused} (asked with tools; react.native_tools is on)") from None
                self._tools = None in counts or counts[0] != counts[1]
            return self._tools


def _text(data: Any) -> str:
    return read_answers(data, ())[0].text
