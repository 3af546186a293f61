"""Drafts of a structured query: read from a reply, kept where they were valid, mended by suggestions.

>>> read_reply('Here it is: {"fields": [{"fieldCaption": "Region"}]}')
{'fields': [{'fieldCaption': 'Region'}]}
>>> before = {"fields": [{"fieldCaption": "Region"}, {"fieldCaption": "Sales"}]}
>>> after = {"fields": [{"fieldCaption": "Sales", "function": "SUM"}]}
>>> with_valid_parts(before, frozenset({("fields", 1)}), after)
{'fields': [{'fieldCaption': 'Region'}, {'fieldCaption': 'Sales', 'function': 'SUM'}]}
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from nl2sql.sql.bounds import decode_json
from nl2sql.vizql.mending import LEAST, Place, apply, as_json
from nl2sql.vizql.query import is_request
from nl2sql.vizql.validator import Validation

MOST_STEPS = 12  # suggestions that one refinement carries out
LONGEST = 2000  # characters of a reply that is no JSON, as the next attempt is shown it


def read_reply(text: str) -> dict[str, Any] | None:
    """The first JSON object in a reply that is meant as a query, else the first of all; None where there is none.

    An object around it, such as ``{"json": {...}}``, is looked through; what is in front and behind is left out.
    """
    first = None
    at = text.find("{")
    while at != -1:
        try:
            value, end = decode_json(text, at)
        except ValueError:
            at = text.find("{", at + 1)
            continue
        inside = next((v for v in (value, *value.values()) if isinstance(v, dict) and _is_query(v)), None)
        if inside is not None:
            return inside
        first = value if first is None else first
        at = text.find("{", end)
    return first


def _is_query(value: dict[str, Any]) -> bool:
    return "fields" in value or is_request(value)


def query_of(draft: Any) -> Any:
    """The query inside a draft: the draft itself, or that of a request."""
    return draft.get("query") if is_request(draft) else draft


def draft_text(draft: Any) -> str:
    """A draft as a prompt shows it: JSON on one line; a reply that is none as it is, cut."""
    return draft[:LONGEST] if isinstance(draft, str) else as_json(draft)


def with_valid_parts(before: Any, broken: frozenset[Place], after: Any) -> Any:
    """``after`` with the fields and filters of ``before`` that no error was about, where it lost or changed them.

    broken: ``Validation.broken`` of ``before``. A part of the same caption that ``after`` has in its place goes. An
    error about the whole list, or about the whole query, leaves ``after`` as it is.
    """
    old, made = query_of(before), copy.deepcopy(after)
    new = query_of(made)
    if not isinstance(old, dict) or not isinstance(new, dict) or () in broken:
        return made
    for name in ("fields", "filters"):
        listed = old.get(name)
        if not isinstance(listed, list) or (name,) in broken or not isinstance(new.get(name, []), list):
            continue
        valid = [(i, part) for i, part in enumerate(listed) if (name, i) not in broken]
        if kept := _merged(valid, list(new.get(name, [])), listed):
            new[name] = kept
    return made


def _merged(valid: list[tuple[int, Any]], parts: list[Any], before: list[Any]) -> list[Any]:
    for i, part in valid:
        if part in parts:
            continue
        twin = next((n for n, other in enumerate(parts) if _of(other) == _of(part) and other not in before), None)
        if twin is None or any(_of(other) == _of(part) and other != part for other in before):
            parts.insert(min(i, len(parts)), part)
        else:
            parts[twin] = part
    return parts


def _of(part: Any) -> Any:
    """The caption that a field or a filter is about."""
    inside = part.get("field", part) if isinstance(part, dict) else {}
    return inside.get("fieldCaption") if isinstance(inside, dict) else None


def mended(draft: Any, validation: Validation, check: Callable[[Any], Validation]) -> Any | None:
    """The draft after its likeliest suggestions, one at a time; None where they do not lead to a valid one.

    What is hardly alike (``mending.LEAST``) is suggested, and not carried out: it answers another question.
    """
    for _ in range(MOST_STEPS):
        ways = validation.suggestions
        if not ways or ways[0].likelihood < LEAST:
            return None
        draft = apply(draft, ways[0])
        validation = check(draft)
        if validation.is_valid:
            return draft
    return None
