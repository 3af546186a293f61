"""Structured output on a server: which of the known ways it takes a grammar, found by trying, not by its name.

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
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from nl2sql.errors import ModelError, one_line
from nl2sql.interfaces import Grammar
from nl2sql.models.http.transport import Unanswered

logger = logging.getLogger(__name__)

_COMPILED = 256  # grammars kept

Form: TypeAlias = Callable[[str], dict[str, Any]]

_SCHEMA = {
    "type": "object",
    "properties": {"zq": {"type": "string", "enum": ["w7"]}},
    "required": ["zq"],
    "additionalProperties": False,
}
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


def fields_for(grammar: Grammar, form: str) -> dict[str, Any]:
    """The request fields that ask for ``grammar``. Raises ModelError for a schema that is not JSON."""
    try:
        return FORMS[grammar.kind][form](grammar.text)
    except ValueError as error:
        raise ModelError(f"the JSON schema is not JSON: {error}") from None


def refusal(base: str, kind: str) -> ModelError:
    """The error for a server that has no structured output of this kind."""
    tried = ", ".join(FORMS[kind])
    return ModelError(
        f"{base} does not obey a {kind} grammar (tried {tried}); leave --constrain at none, or use a server with "
        "structured output by llguidance (docs/models.md)"
    )


class GrammarCheck:
    """The check that a text keeps to a grammar. Compiled grammars are kept, the last few. Thread-safe.

    ours: the server is our own llama.cpp, which obeys; where nothing can check it here, that is not worth a line.
    """

    def __init__(self, ours: bool = False) -> None:
        self._kept: OrderedDict[Grammar, Any] = OrderedDict()
        self._lock = threading.Lock()
        try:
            import llguidance
        except ImportError:
            said = "llguidance is not installed: answers are not checked against the grammar asked for"
            logger.log(logging.DEBUG if ours else logging.WARNING, said)
            self._bytes = None
        else:
            self._bytes = llguidance.LLTokenizer("byte")

    def prepare(self, grammar: Grammar) -> None:
        """Compile ``grammar``. Raises ModelError with one line for a malformed one."""
        if self._bytes is None:
            return
        from llguidance import LLMatcher

        with self._lock:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
                return
        make = LLMatcher.grammar_from_lark if grammar.kind == "lark" else LLMatcher.grammar_from_json_schema
        try:
            matcher = LLMatcher(self._bytes, make(grammar.text))
            error = matcher.get_error()
        except ValueError as malformed:
            error = str(malformed)
        if error:
            raise ModelError(f"malformed {grammar.kind} grammar: {one_line(error, 300)}")
        with self._lock:
            self._kept[grammar] = matcher
            while len(self._kept) > _COMPILED:
                self._kept.popitem(last=False)

    def check(self, grammar: Grammar, text: str) -> None:
        """Raises ModelError when ``text`` is no beginning of what ``grammar`` allows."""
        if self._bytes is None:
            return
        self.prepare(grammar)
        with self._lock:
            matcher = self._kept[grammar].deep_copy()
        raw = text.encode("utf-8", "replace")
        taken = matcher.try_consume_tokens(list(raw))
        if taken < len(raw):
            at = len(raw[:taken].decode("utf-8", "ignore"))
            raise ModelError(
                f"the server left the grammar it was asked to keep to, at {text[at : at + 40]!r}; it may not know all "
                "of the grammar's syntax (its log may say); leave --constrain at none"
            )
