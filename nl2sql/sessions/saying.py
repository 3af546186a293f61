"""An edited query as a question: the previous question with the new value in it, or with what was added.

>>> with_new_values("How many are in Bern?", "SELECT 1 WHERE c = 'Bern'", "SELECT 1 WHERE c = 'Oslo'")
'How many are in Oslo?'

Where an edit does nothing but replace values, and the previous question holds the old ones, it is that question again
with the new ones in their places: nothing that the user said is lost, and no model is needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nl2sql.sql.same import normalise_sql
from nl2sql.sql.text import tokens


def with_new_values(question: str, before: str, after: str) -> str:
    """``question`` with the values of ``after`` for those of ``before``; "" where the two queries differ otherwise, or
    where ``question`` does not hold an old value exactly once."""
    old, new = (tokens(normalise_sql(sql)) or [] for sql in (before, after))
    if len(old) != len(new) or [t.token_type for t in old] != [t.token_type for t in new]:
        return ""
    changed = [(a.text, b.text) for a, b in zip(old, new, strict=True) if a.text != b.text]
    values = {t.text for t in old if t.token_type.name in ("STRING", "NUMBER")}
    for was, now in dict.fromkeys(changed):
        letter = "[a-z]?" if was.isdigit() else ""  # 3 is the quarter of "Q3"
        place = re.compile(rf"(?<!\w)({letter}){re.escape(was)}(?!\w)", re.IGNORECASE)
        if was not in values or len(place.findall(question)) != 1:
            return ""
        question = place.sub(lambda match, text=now: match[1] + text, question)  # type: ignore[misc]
    return question if changed else ""


def with_addition(question: str, followup: str, operations: Sequence[str]) -> str:
    """ "How many sales are there?" and "by region, please" as one question; "" for edits that change what was said, and
    for a follow-up that does not read on.

    >>> with_addition("How many awards were made? Only the number.", "and in 2023 only", ["filter awards.year"])
    'How many awards were made in 2023 only? Only the number.'
    """
    if any(not operation.startswith(("filter", "group", "order", "limit")) for operation in operations):
        return ""
    rest = _POLITE.sub("", _LEADING.sub("", followup.strip().rstrip("?!. "))).strip(" ,")
    if not _READS_ON.match(rest) or not rest:
        return ""
    rest = rest[0].lower() + rest[1:]
    head, mark, tail = re.match(r"([^?.!]*)([?.!]?)(.*)", question, re.DOTALL).groups()  # type: ignore[union-attr]
    between = "" if _PREPOSITION.match(rest) else ","
    return f"{head.rstrip()}{between} {rest}{mark}{tail}"


_LEADING = re.compile(r"^(?:and|now|then|ok|okay|please|so|but|show me|show them|show it)\b,?\s*", re.IGNORECASE)
_POLITE = re.compile(r",?\s*\b(?:please|thanks|thank you)\b", re.IGNORECASE)
_PREPOSITION = re.compile(r"(?:by|per|for|in|on|at|from|since|before|after|between|with|without)\b", re.IGNORECASE)
_READS_ON = re.compile(
    r"(?:by|per|for|in|on|at|from|since|before|after|between|with|without|only|just|sorted|ordered|grouped|broken"
    r"|split by|\w+(?:ed|est)\b)",
    re.IGNORECASE,
)
