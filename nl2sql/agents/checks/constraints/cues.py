"""Cue words of a question, matched by the phrases of ``cues.yaml``, and the constraint dictionary they give.

>>> read_cues("How many cities are there?").words("count")
['how many']

Says only which words are there. What a query must then look like is decided in ``intent``,
with the alternatives that make a literal reading of cues wrong. English only: other languages yield no cues.

>>> extract_constraints("Which city has the most customers?")
{'agg': None, 'needs_group_by': False, 'needs_order_by': True, 'limit': 1, 'distinct': False}
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from nl2sql.machine import from_yaml
from nl2sql.sql.words import OTHERS, QUOTED, SCALES, TENS, UNITS, WORDS, as_digits

# --------------------------------------------------------------------------------------------- cues

COUNTED = (*UNITS, TENS[0])  # the number words of ``<n>``; larger ones become digits
_TOKEN = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?|[,;:?!]|\.(?=\s|$)")


def normalise(nlq: str) -> str:
    """Lower-case words parted and framed by single spaces; quoted values become the token ``@``."""
    parts = QUOTED.split(nlq.replace("’s", " s").replace("'s", " s"))
    words = " @ ".join(" ".join(_TOKEN.findall(as_digits(part.lower()))) for part in parts)
    return f" {words} ".replace("  ", " ")


def _compile(phrases: Iterable[str], words: Mapping[str, list[str]]) -> re.Pattern[str] | None:
    """One pattern that matches any of the phrases in a normalised question."""
    compiled = [_phrase(phrase, words) for phrase in phrases]
    return re.compile("|".join(compiled)) if compiled else None


def _phrase(phrase: str, words: Mapping[str, list[str]]) -> str:
    out = "(?<= )"
    for word in phrase.split():
        if word == "...":
            out += r"(?:[^ ,;:?!.]+ ){0,4}?"
        elif word == "<clause>":
            out += "(?:[^ ,;:?!.]+ )*"
        elif word == "_":
            out += "[^ ,;:?!.]+ "
        elif word == "<n>":
            out += r"(?:\d+|" + "|".join(COUNTED[1:]) + ") "
        else:
            choices = (words[part[1:]] if part.startswith("$") else [part] for part in word.split("|"))
            out += "(?:" + "|".join(re.escape(w) for choice in choices for w in choice) + ") "
    return out


@dataclass(frozen=True)
class Lexicon:
    """The compiled content of ``cues.yaml``."""

    masks: re.Pattern[str] | None
    cues: Mapping[str, tuple[re.Pattern[str] | None, re.Pattern[str] | None]]  # what is one, and where it is none
    stored: Mapping[str, frozenset[str]]
    numbers: Mapping[str, int]
    stop: frozenset[str]


@cache
def lexicon() -> Lexicon:
    """The packaged cues, read once."""
    data = from_yaml(Path(__file__).with_name("cues.yaml").read_text(encoding="utf-8"))
    words = data["words"]
    return Lexicon(
        masks=_compile(data["masks"], words),
        cues={n: (_compile(cue["any"], words), _compile(cue["unless"], words)) for n, cue in data["cues"].items()},
        stored={name: frozenset(stored) for name, stored in data["stored"].items()},
        numbers={word: WORDS[word] for word in COUNTED} | OTHERS,
        stop=frozenset(data["stop"]),
    )


def _hide(text: str, pattern: re.Pattern[str] | None) -> str:
    """Overwrite every word inside a match with ``~``; positions stay."""
    return pattern.sub(lambda m: re.sub("[^ ]", "~", m.group()), text) if pattern else text


@dataclass(frozen=True)
class Cues:
    """The cues found in one question: name -> (matched words, position) in reading order."""

    raw: str  # the question in lower case
    text: str  # its normalised words
    matches: Mapping[str, tuple[tuple[str, int], ...]]

    def __contains__(self, name: str) -> bool:
        return bool(self.matches.get(name))

    def first(self, name: str) -> int:
        """Position of the first match of a cue that is there."""
        return self.matches[name][0][1]

    def words(self, name: str) -> list[str]:
        return [word for word, _ in self.matches.get(name, ())]

    def numbers(self, name: str) -> list[int]:
        """The numbers written inside the matches of a cue; "two hundred" is one."""
        known, found = lexicon().numbers, []
        tokens = [token for words in self.words(name) for token in words.split()]
        for token, after in itertools.pairwise([*tokens, ""]):
            if token in known or token.isdecimal():
                found.append((known[token] if token in known else int(token)) * SCALES.get(after, 1))
        return found


@lru_cache(maxsize=256)
def read_cues(nlq: str) -> Cues:
    """The cues of a question. Gaps in phrases are bounded, so time is linear in its length."""
    lex = lexicon()
    text = normalise(nlq)
    masked = _hide(text, lex.masks)
    matches = {}
    for name, (cue, unless) in lex.cues.items():
        seen = _hide(masked, unless)
        if cue:
            matches[name] = tuple((m.group().strip(), m.start()) for m in cue.finditer(seen))
    return Cues(nlq.lower(), text, matches)


# ----------------------------------------------------------------------------------- the dictionary

_AGGREGATES = {"count_named": "COUNT", "avg": "AVG", "sum": "SUM", "max": "MAX", "min": "MIN"}


def extract_constraints(nlq: str) -> dict[str, Any]:
    """Structure that a question asks for, from its words alone.

    Args:
        nlq: the question in English; any text is accepted.

    Returns:
        ``agg`` (COUNT, AVG, SUM, MAX, MIN or None; the first one named), ``needs_group_by``,
        ``needs_order_by``, ``limit`` (int or None; 1 for a superlative), ``distinct``.
        Not covered: several aggregates in one question, and languages other than English.
    """
    cues = read_cues(nlq)
    named = [cue for cue in _AGGREGATES if cue in cues]
    agg = _AGGREGATES[min(named, key=cues.first)] if named else None
    ranking = "ranking" in cues
    limit = next((n for n in cues.numbers("limit") if n > 0), None)
    if limit is None and "superlative" in cues and not ranking and agg is None:
        limit = 1
    return {
        "agg": agg,
        "needs_group_by": agg is not None and "group" in cues,
        "needs_order_by": ranking or limit is not None,
        "limit": limit,
        "distinct": "distinct" in cues,
    }
