"""Columns of yes and no, 0 and 1: "only VIPs", "not vegetarian", "unresolved ones", "vip = 0".

A condition where the words of the column are said of the rows; none where the column itself is: "sort by vip", "show
their vip status".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from nl2sql.agents.context.linking import stem
from nl2sql.sessions.cells import yes_or_no
from nl2sql.sessions.reading import is_negated
from nl2sql.sessions.statement import identifier
from nl2sql.sessions.where import Where
from nl2sql.sql.words import words

COLUMN_WORDS = ("status", "column", "flag", "field")  # "the vip status" is the column
WITH = re.compile(r"(?:and )?with\b")


def yes_and_no(where: Where) -> None:
    """0/1 columns, and those of yes and no, whose words the question holds."""
    asked, told = {stem(word): at for at, word in enumerate(words(where.reading.text))}, set()
    nearest = sorted(where.kinds.items(), key=lambda item: (*_unnamed(where, item[0][0]), item[0]))
    added = () if WITH.match(where.reading.text) else where.reading.added
    phrases = [*where.reading.groupings, *(phrase for phrase, _ in where.reading.orders), *added]
    shown = [{stem(word) for word in phrase if word not in COLUMN_WORDS} for phrase in phrases]
    for (table, column), kind in nearest:
        parts = flag_words(column)
        if kind not in ("flag", "text") or not parts or not set(parts) <= set(asked):
            continue
        if where.statement.distance(table) > 1 or column in told:  # "active customers", not active sellers
            continue
        named = where.spelled(table, column)
        if (
            named is None
            or set(parts) in shown
            or _is_asked_for(where, parts)
            or (named.table, named.column) in where.bounded
        ):
            continue
        cells = yes_or_no(named, where.database) if kind == "text" else None
        if kind == "text" and (not cells or f"filter {named.table}.{named.column}" in where.made):
            continue
        told.add(column)
        said = (word.start() for word in re.finditer(r"[a-z]+", where.reading.text) if stem(word[0]) in parts)
        no = is_negated(where.reading.text, next(said, 0)) or _is_denied(where, parts)
        value = exp.Literal.string(cells[no]) if cells else exp.Literal.number(int(not no))
        where.replace_by(named, exp.EQ(this=exp.column(identifier(named.column)), expression=value))


def flag_words(column: str) -> list[str]:
    """The stems that name what a column tells: of ``is_active`` that of "active"."""
    return [stem(part) for part in words(column) if part not in ("is", "has", "flag")]


def _is_asked_for(where: Where, parts: Sequence[str]) -> bool:
    """ "Show their vip status": the column itself."""
    named = re.search(r"\b(?P<whose>their|its|his|her) (?P<what>[a-z ]+)$", where.reading.text.strip(" ?.!"))
    column = re.search(rf"\b(?P<what>[a-z]+) (?:{'|'.join(COLUMN_WORDS)})\b", where.reading.text)
    return any({stem(word) for word in words(match["what"])} >= {*parts} for match in (named, column) if match)


def _is_denied(where: Where, parts: Sequence[str]) -> bool:
    """ "vip = 0"."""
    said = re.finditer(r"\b(?P<word>[a-z]+)(?: is|:| ?=| equals)? (?:0|no|false|n|f)\b", where.reading.text)
    return any(stem(match["word"]) in parts for match in said)


def _unnamed(where: Where, table: str) -> tuple[bool, float]:
    """Is the table not named in the question; how far away it is."""
    asked = {stem(word) for word in words(where.reading.text)}
    return not {stem(word) for word in words(table)} <= asked, where.statement.away(table)
