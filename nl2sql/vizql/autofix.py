"""What is wrong with a structured query, and the changes that would mend it.

A query is plain JSON here, since what is wrong is not a query yet. A place is the path to a part of it.

>>> query = {"fields": [{"fieldCaption": "Sales"}]}
>>> add = suggest(query, "Add aggregation to 'Sales': {json}", ("fields", 0), Change(("fields", 0, "function"), "SUM"))
>>> add.text
'Add aggregation to \\'Sales\\': {"fieldCaption": "Sales", "function": "SUM"}'
>>> apply(query, add)
{'fields': [{'fieldCaption': 'Sales', 'function': 'SUM'}]}

Which of some names may have been meant is told by difflib's ratio with Winkler's bonus for a common beginning: a tenth
of what is missing to 1 for each of the first four letters that agree, where at least two do. The ratio alone cannot
tell Revenue from Segment behind 'Regoin' (both 0.46).

>>> did_you_mean("Regoin", ["Category", "Profit", "Region", "Revenue", "Sales", "Segment"])
[('Region', 0.88), ('Revenue', 0.57)]

Not covered: names that mean the same and are written otherwise; places that a later change has moved; a change whose
place is gone leaves the query as it is.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from heapq import nlargest
from typing import Any, Final, TypeAlias

Place: TypeAlias = tuple[str | int, ...]
REMOVE: Final = "\0remove"  # in place of a value: the part goes; no JSON text of a model holds a NUL
MOST_ERRORS = 50  # of one query; what is shown says when there are more
MOST_SHOWN = 80  # characters of a wrong value in a message
MOST_PASTED = 2_000  # characters of the JSON of a part in a suggestion


@dataclass(frozen=True)
class Change:
    """One part of a query set to ``value``, or taken out (``REMOVE``)."""

    place: Place
    value: Any = REMOVE


@dataclass(frozen=True)
class Suggestion:
    """One way to mend a query.

    ``text`` is the line for people and prompts, ``snippet`` the JSON of the mended part to paste ("": it goes), and
    ``likelihood`` how likely it is what was meant, of 1.
    """

    text: str
    changes: tuple[Change, ...]
    snippet: str = ""
    likelihood: float = 0.9


@dataclass(frozen=True)
class QueryError:
    """One thing that is wrong with a query: its kind, where it stands, what to say, and what would mend it, best first.

    The kinds are listed in ``docs/vizql.md``. ``beside``: another part that the error is as much about, such as the
    first of two filters of one field.
    """

    kind: str
    place: Place
    message: str
    suggestions: Sequence[Suggestion] = ()
    beside: Place = ()

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data; ``apply`` is not possible from it."""
        ways = [{"text": s.text, "json": s.snippet, "likelihood": s.likelihood} for s in self.suggestions]
        return {"kind": self.kind, "place": place_text(self.place), "message": self.message, "suggestions": ways}


def place_text(place: Place) -> str:
    """A place as people write it: ``fields[0].function``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def suggest(query: Any, text: str, place: Place, *changes: Change, likelihood: float = 0.9) -> Suggestion:
    """The suggestion of ``changes`` to ``query``; ``{json}`` in ``text`` becomes the mended part at ``place``.

    Of a part of more than ``MOST_PASTED`` characters only the changed value is shown.
    """
    fixed = part_at(query, place)
    for change in changes:
        if change.place[: len(place)] == place:
            fixed = _with(fixed, change.place[len(place) :], change.value)
    snippet = _pasted(fixed)
    if len(snippet) > MOST_PASTED:
        value = _pasted(changes[0].value)
        snippet = value if len(value) <= MOST_PASTED else ""
    return Suggestion(text.replace("{json}", snippet), changes, snippet, likelihood)


def setting(query: Any, place: Place, value: Any, text: str, likelihood: float = 0.9) -> Suggestion:
    """The suggestion to set ``value`` at ``place``; it shows the field or filter around it."""
    return suggest(query, text, place[:2], Change(place, value), likelihood=likelihood)


def removal(query: Any, place: Place, text: str = "", likelihood: float = 0.9) -> Suggestion:
    """The suggestion to take out what is at ``place``; it shows the field or filter around it."""
    text = text or f"Remove '{place[-1]}': {{json}}"
    return suggest(query, text, place[:2], Change(place), likelihood=likelihood)


def alternatives(query: Any, place: Place, said: str, ranked: Iterable[tuple[str, float]]) -> list[Suggestion]:
    """The suggestions of ``ranked`` names, each with its likelihood, for the one at ``place``."""
    names = list(ranked)
    text = f"{said}. Did you mean: {', '.join(name for name, _ in names)}?"
    return [setting(query, place, name, text, likelihood) for name, likelihood in names]


def apply(query: Any, suggestion: Suggestion) -> Any:
    """A copy of ``query`` in which ``suggestion`` is carried out; ``query`` itself stays as it is."""
    for change in suggestion.changes:
        query = _with(query, change.place, change.value)
    return copy.deepcopy(query)


def under(error: QueryError, head: Place) -> QueryError:
    """``error`` of a query that stands at ``head`` in a larger document."""
    ways = (replace(s, changes=tuple(Change(head + c.place, c.value) for c in s.changes)) for s in error.suggestions)
    beside = head + error.beside if error.beside else ()
    return replace(error, place=head + error.place, suggestions=list(ways), beside=beside)


def part_at(document: Any, place: Sequence[str | int]) -> Any:
    """The part of ``document`` at ``place``; ``REMOVE`` where there is none."""
    for step in place:
        if not _has(document, step):
            return REMOVE
        document = document[step]
    return document


def as_json(value: Any) -> str:
    """``value`` as JSON on one line, letters as they are."""
    return json.dumps(value, ensure_ascii=False, default=str)


def shown(value: Any) -> str:
    """A wrong value as a message names it: JSON, cut to ``MOST_SHOWN`` characters."""
    text = f"'{value}'" if isinstance(value, str) else as_json(value)
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def _pasted(part: Any) -> str:
    return "" if part is REMOVE else as_json(part)


def _with(part: Any, place: Place, value: Any) -> Any:
    """``part`` with ``value`` at ``place``; what stays as it is, is shared with it."""
    if not place:
        return value
    step: Any = place[0]
    there, rest = _has(part, step), place[1:]
    free = isinstance(part, dict) or (isinstance(part, list) and step == len(part))
    if not there and (rest or value == REMOVE or not free):
        return part
    made: Any = part.copy()
    if rest:
        made[step] = _with(part[step], rest, value)
    elif value == REMOVE:
        del made[step]
    elif there or isinstance(part, dict):
        made[step] = value
    else:
        made.append(value)
    return made


def _has(parent: Any, step: str | int) -> bool:
    if isinstance(parent, dict):
        return step in parent
    return isinstance(parent, list) and isinstance(step, int) and 0 <= step < len(parent)


# ----------------------------------------------------------------------------------- which name may have been meant

LEAST = 0.55  # 'Regoin' is not 'Segment' (0.46), and may be 'Revenue' (0.57)
MOST = 3
LOOKED_AT = 50  # of the known names, those that share the most letters: a ratio takes its time


def did_you_mean(name: str, known: Iterable[str], *, least: float = LEAST) -> list[tuple[str, float]]:
    """At most three of ``known`` with their likeness to ``name``, best first; the best one in any case."""
    letters = Counter(name.casefold()[:200])

    def shared(other: str) -> float:
        theirs = other.casefold()[:200]
        return sum((letters & Counter(theirs)).values()) / (len(theirs) + 1)

    near = nlargest(LOOKED_AT, known, key=shared)
    ranked = sorted(((likeness(name, other), other) for other in near), key=lambda pair: (-pair[0], pair[1]))
    return [(other, round(score, 2)) for i, (score, other) in enumerate(ranked[:MOST]) if score >= least or i == 0]


def likeness(name: str, other: str) -> float:
    """From 0 to 1, 1 for the same name; another case alone costs a hundredth."""
    if name == other:
        return 1.0
    mine, theirs = name.casefold().strip(), other.casefold().strip()
    if mine == theirs:
        return 0.99
    ratio = SequenceMatcher(None, mine[:200], theirs[:200], autojunk=False).ratio()
    common = next((n for n in (4, 3, 2) if len(mine) >= n and mine[:n] == theirs[:n]), 0)
    return min(0.98, ratio + 0.1 * common * (1 - ratio))
