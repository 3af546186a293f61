"""Suspicious comparisons: with a value that no cell holds, or between numbers and texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from sqlglot import exp

from nl2sql.agents.checks.suspicions.evidence import Evidence, Place
from nl2sql.databases.schema import quote_text
from nl2sql.sql.text import Tree

MOST_VALUES = 5_000  # of a column, to find the closest one
NUMERIC = re.compile(r"INT|REAL|FLOA|DOUB|NUMERIC|DECIMAL|NUMBER", re.IGNORECASE)
TEXTUAL = re.compile(r"CHAR|CLOB|TEXT|STRING", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?\Z")


def unknown_literal(evidence: Evidence) -> Iterator[str]:
    """A text or number that a column is compared with and no cell of it holds."""
    for place, literal in compared(evidence):
        if some_cell(evidence, place, cells(place).eq(literal.copy())) is False:
            value = str(literal.this)
            said = quote_text(value) if literal.is_string else value
            yield f"no cell of {place} is {said}{_near(evidence, place, value)}"


def compared(evidence: Evidence) -> Iterator[tuple[Place, exp.Literal]]:
    """(column, literal) of every ``column = literal`` and ``column IN (literal, ...)``."""
    for scope in evidence.scopes:
        for node in scope.find_all(exp.EQ, exp.In):
            for column, others in sides(node):
                place = evidence.place(scope, column)
                if place is not None:
                    yield from ((place, other) for other in others if isinstance(other, exp.Literal))


def sides(node: Any) -> list[tuple[Any, list[Any]]]:
    """(one side, what it is compared with) of ``a = b``, both ways, and of ``a IN (b, ...)``; none under NOT."""
    parent = node.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    if isinstance(parent, exp.Not):
        return []
    if isinstance(node, exp.In):
        return [(node.this, node.expressions)]
    return [(one, [other]) for one, other in _both_ways(node)]


def cells(place: Place) -> exp.Column:
    """A column in a look at its own table alone."""
    return exp.column(place.column, quoted=True)


def some_cell(evidence: Evidence, place: Place, condition: Tree) -> bool | None:
    """Whether any cell of a column meets a condition on ``cells``; None where that could not be read."""
    seen = evidence.read(exp.select("1").from_(exp.table_(place.table, quoted=True)).limit(1).where(condition))
    return bool(seen.rows) if seen.success else None


def _both_ways(node: Any) -> list[tuple[Any, Any]]:
    return [(node.left, node.right), (node.right, node.left)]


def _text_of(node: Any) -> str | None:
    return str(node.this) if isinstance(node, exp.Literal) and node.is_string else None


def _near(evidence: Evidence, place: Place, value: str) -> str:
    """The text of a column that is closest to a text; of a number, any text that the column holds."""
    folded = {text.casefold(): text for text in _texts(evidence, place)}
    if NUMBER.match(value):
        return f"; one is {quote_text(min(folded.values()))}" if folded else ""
    close = get_close_matches(value.casefold(), folded, 1, 0.6)
    return f"; the closest is {quote_text(folded[close[0]])}" if close else ""


def _texts(evidence: Evidence, place: Place) -> list[str]:
    """The distinct texts among the first ``MOST_VALUES`` values of a column."""
    table = exp.table_(place.table, quoted=True)
    seen = evidence.read(exp.select(cells(place)).distinct().from_(table).limit(MOST_VALUES), MOST_VALUES)
    return [value for (value,) in seen.rows if isinstance(value, str)]


def type_mismatch(evidence: Evidence) -> Iterator[str]:
    """A column of numbers compared with a text that is none, or with a column of texts; texts that are added up."""
    for scope in evidence.scopes:
        for total in scope.find_all(exp.Sum, exp.Avg):
            place = evidence.place(scope, total.this)
            if place is not None and _holds_words(evidence, place):
                yield f"{place} holds texts, of which {total.key.upper()} adds up the first digits"
        for node in scope.find_all(exp.EQ, exp.GT, exp.GTE, exp.LT, exp.LTE):
            for column, other in _both_ways(node):
                place, beside = evidence.place(scope, column), evidence.place(scope, other)
                if place is None or not NUMERIC.search(evidence.type_of(place)):
                    continue
                text = _text_of(other)
                if text is not None and not NUMBER.match(text.strip()):
                    yield f"{place} holds numbers and is compared with the text {quote_text(text)}"
                elif beside is not None and _holds_words(evidence, beside):
                    yield f"{place} holds numbers and is compared with {beside}, which holds texts"


def _holds_words(evidence: Evidence, place: Place) -> bool:
    """Whether a column of texts holds any that is no number."""
    if not TEXTUAL.search(evidence.type_of(place)):
        return False
    return any(not NUMBER.match(text.strip()) for text in _texts(evidence, place))
