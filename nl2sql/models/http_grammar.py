"""Structured output on a server: which of the known ways it takes a grammar, found by trying, not by its name.

A grammar is sent as it is, never translated: Lark text goes to servers that read llguidance's Lark (vLLM, SGLang with
``--grammar-backend llguidance``, llama.cpp built with llguidance). A server that takes the field and does not obey
counts as one that has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from nl2sql.errors import ModelError
from nl2sql.interfaces import Grammar

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
    """The name of the form that the server obeys; "" when none. ``ask(fields)`` gives the text of a trial request."""
    text, expected = _TRIALS[kind]
    for name, form in FORMS[kind].items():
        try:
            found = ask(form(text))
        except ModelError:
            continue
        if expected.fullmatch(found):
            return name
    return ""


def fields_for(grammar: Grammar, form: str) -> dict[str, Any]:
    """The request fields that ask for ``grammar``. Raises ModelError for a schema that is not JSON."""
    try:
        return FORMS[grammar.kind][form](grammar.text)
    except ValueError as error:
        raise ModelError(f"the JSON schema is not JSON: {error}") from None


def refusal(base: str, kind: str) -> ModelError:
    """What a user is told when a server has no structured output of this kind."""
    tried = ", ".join(FORMS[kind])
    return ModelError(
        f"{base} does not obey a {kind} grammar (tried {tried}); leave --constrain at none, or use a server with "
        "structured output by llguidance (docs/models.md)"
    )
