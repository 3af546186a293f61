"""BIRD's two comparisons: ``bird-set`` (sets of rows) and ``bird-soft-f1`` (cells of rows at the same place).

>>> soft_f1([("a", 1)], [("a", 2)])
0.5
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nl2sql.interfaces import RunResult
from nl2sql.sql.parse import MAX_CHARS

Rows = Sequence[tuple[Any, ...]]

QUOTED = re.compile(r"'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?")
BLANK = re.compile(r"\s+|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)


def prepare(sql: str) -> str:
    """The statement itself, but one that ends in two semicolons becomes two: to BIRD's driver that is an error."""
    if sql.count(";") < 2 or len(sql) > MAX_CHARS:  # the sandbox refuses longer ones
        return sql
    rest = BLANK.sub("", QUOTED.sub("x", sql)).lstrip(";")
    return f"{sql}\nSELECT" if rest.endswith(";;") else sql


def bird_set(gold: Sequence[RunResult], predicted: Sequence[RunResult], **_: object) -> bool:
    """Whether the sets of rows are equal on every database; columns in their order, row order and counts ignored."""
    return all(set(expected.rows) == set(actual.rows) for expected, actual in zip(gold, predicted, strict=True))


def bird_soft_f1(gold: Sequence[RunResult], predicted: Sequence[RunResult], **_: object) -> float:
    """The mean over databases of ``soft_f1``."""
    scores = [soft_f1(expected.rows, actual.rows) for expected, actual in zip(gold, predicted, strict=True)]
    return sum(scores) / len(scores) if scores else 1.0


def soft_f1(gold: Rows, predicted: Rows) -> float:
    """F1 over cells. Distinct rows are paired by their place; in a pair a cell counts where the other row holds it.

    The published script pairs rows in the order of a Python set, which changes from run to run where there is text.
    Here the distinct rows keep the order of their first appearance, so the same results always score the same.
    """
    ours, theirs = list(dict.fromkeys(gold)), list(dict.fromkeys(predicted))
    if not ours and not theirs:
        return 1.0
    both, paired = 0.0, min(len(ours), len(theirs))
    only_predicted, only_gold = float(len(theirs) - paired), float(len(ours) - paired)
    for expected, actual in zip(ours, theirs, strict=False):
        hits = sum(cell in expected for cell in actual)
        both += hits / len(expected)
        only_predicted += (len(actual) - hits) / len(expected)
        only_gold += sum(cell not in actual for cell in expected) / len(expected)
    return 2 * both / (2 * both + only_predicted + only_gold) if both else 0.0
