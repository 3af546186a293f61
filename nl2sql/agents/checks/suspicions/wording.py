"""Suspicious against the question: a value or column that it names and the query does not use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from nl2sql.agents.checks import numbers
from nl2sql.agents.checks.suspicions.evidence import Evidence, Place
from nl2sql.agents.context.grounding import Match
from nl2sql.agents.context.linking import question_stems, stem
from nl2sql.sql.words import words

SPACED = re.compile(r"(?<![\w.,])\d{1,3}(?: \d{3})+(?![\w.,])")
SCALES = numbers.SCALES | {"million": 10**6, "billion": 10**9}
IN_QUESTION = re.compile(r"(?<![\w.,:/-])\d{2,9}(?:\.\d+)?(?![\w:/-]|[.,]\d)")


def unused_value(evidence: Evidence) -> Iterator[str]:
    """A number or a cell's value that the question names and the query does not hold."""
    text = evidence.sql.casefold()
    written = {float(number) for number in re.findall(r"(?<![\d.])\d+(?:\.\d+)?", text)}
    question = SPACED.sub(lambda found: _joined(found[0], written), evidence.question)
    for found in IN_QUESTION.finditer(question):
        if not written & _same_as(float(found[0]), question[found.end() :]):
            yield f"the question says {found[0]}, and the query does not"
    places: dict[tuple[int, int], list[Match]] = {}
    for match in evidence.values:
        named = evidence.question[match.start : match.end]
        if match.score >= 1.0 and match.start and (not named.islower() or " " in named):
            places.setdefault((match.start, match.end), []).append(match)
    for (start, end), matches in places.items():
        named = evidence.question[start:end]
        if not any(match.value.casefold() in text for match in matches) and named.casefold() not in text:
            where = ", ".join(f"{match.table}.{match.column}" for match in matches)
            yield f"the question names {named!r}, a value of {where}, and the query does not"


def _joined(spaced: str, written: set[float]) -> str:
    """``50 000`` as one number where the query has that."""
    joined = spaced.replace(" ", "")
    return joined if float(joined) in written else spaced


def _same_as(number: float, after: str) -> set[float]:
    """What a query may write for a number of the question: "after 1985" is also ">= 1986", "50 percent" 0.5."""
    same = {number, number - 1, number + 1}
    if scaled := re.match(rf"\s*({'|'.join(SCALES)})s?\b", after, re.IGNORECASE):
        same.add(number * SCALES[scaled[1].lower()])
    if re.match(r"\s*(%|per ?cent)", after, re.IGNORECASE):
        same.add(number / 100)
    if re.match(r"\s*months?\b", after, re.IGNORECASE):
        same.add(number / 12)
    return same


def unused_column(evidence: Evidence) -> Iterator[str]:
    """A column of several words that the question names in full, that no other column is called, and that the query
    does not use."""
    asked = " ".join(stem(word) for word in words(evidence.question))
    used = " ".join([_squeezed(evidence.sql), *map(_squeezed, evidence.result.columns)])  # a star is in the second only
    owners: dict[str, list[Place]] = {}
    for table in evidence.schema.tables:
        for column in table.columns:
            owners.setdefault(" ".join(words(column.name)), []).append(Place(table.name, column.name, ""))
    for name, places in owners.items():
        parts = name.split()
        stems = " ".join(stem(part) for part in parts)
        if len(parts) < 2 or len(places) > 1 or f" {stems} " not in f" {asked} ":
            continue
        if question_stems(name) and _squeezed(name) not in used:
            yield f"the question names {places[0]}, and the query does not use it"


def _squeezed(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.lower())


def repeated_column(evidence: Evidence) -> Iterator[str]:
    """The same column or expression twice in the answer."""
    select = evidence.tree.find(exp.Select) if evidence.tree is not None else None
    seen: set[str] = set()
    for item in select.expressions if select is not None else ():
        column = item.unalias()
        text = column.sql()
        if text in seen and not isinstance(column, (exp.Literal, exp.Null)):
            yield f"the answer has {text} twice"
        seen.add(text)
