"""A verifier: how likely a query that ran is right, given the question and the rows that it gives.

>>> seen = signals("How many are there?", "SELECT 1", RunResult(True, ("1",), ((1,),)), likely=-0.1, read_back=-2.0)
>>> round(probability_right(seen), 2) > round(probability_right(seen | {"question": -30.0}), 2)
True

Its signals are learned likelihoods (of the query given the question, and of the question given the query: ``likely``
and ``question``) and what can be seen: rows, NULLs, refusals by the gates, suspicions, words of the question that
nothing stands for. A logistic regression weighs them; ``scripts/fit_verifier.py`` fits it (``verifier.yaml``) on the
candidates of a run, labelled by execution, over databases that the model has not trained on. Learned verification
from execution results is LEVER's idea [46]. Not covered: the values in the rows; other models than the embedded one,
for which only the order of queries says something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from nl2sql.agents.checks.logistic import logistic
from nl2sql.agents.voting import tells
from nl2sql.interfaces import RunResult
from nl2sql.machine import from_yaml
from nl2sql.sql.words import words

WEIGHTS_FILE = Path(__file__).with_name("verifier.yaml")
LOWEST = {"likely": -20.0, "question": -60.0, "per_word": -8.0}  # what lies below says no more
SHOWN_ROWS = 20  # looked at for NULLs


def signals(
    question: str,
    sql: str,
    result: RunResult,
    *,
    likely: float | None,
    read_back: float | None,
    refused: bool = False,
    suspected: bool = False,
    uncovered: float = 0.0,
    values: float | None = None,
) -> dict[str, float]:
    """What is seen of a query and its result.

    likely: log-probability of the whole query, read_back: of the question after it; None where it is not known.
    refused: a gate refuses the query although it runs. uncovered: the share of the question's words that nothing stands
    for. values: the share of the question's values that the query uses, None where it names none.
    """
    asked = max(len(words(question)), 1)
    known = {"likely": likely, "question": read_back, "per_word": None if read_back is None else read_back / asked}
    seen = {name: max(value, LOWEST[name]) for name, value in known.items() if value is not None}
    return seen | {
        "rows": float(tells(result)),
        "one_row": float(len(result.rows) == 1),
        "nulls": float(any(value is None for row in result.rows[:SHOWN_ROWS] for value in row)),
        "suspected": float(suspected),
        "refused": float(refused),
        "uncovered": uncovered,
        "values": 1.0 if values is None else values,
        "length": math.log(1 + len(sql.split())),
    }


def probability_right(seen: Mapping[str, float], weights: Mapping[str, float] | None = None) -> float:
    """The probability, from 0 to 1, that a query with these ``signals`` is right."""
    return logistic(seen, packaged_weights()[weights_for(seen)] if weights is None else weights)


def weights_for(seen: Mapping[str, float]) -> str:
    """The name of the weights for the signals that are known: ``all``, ``question`` or ``seen``.

    Models behind a server may not say how likely a query is; ``seen`` needs no question model either.
    """
    if "question" not in seen:
        return "seen"
    return "all" if "likely" in seen else "question"


@cache
def packaged_weights() -> dict[str, dict[str, float]]:
    """The fitted weights by the names that ``weights_for`` gives; per name a weight for each signal."""
    return dict(from_yaml(WEIGHTS_FILE.read_text(encoding="utf-8")))
