"""The confidence in the best of several candidates: a probability that it is right, fitted on other questions.

>>> likely = {"parts": {"executes": 1.0, "rows": 1.0, "vote": 0.9, "probability": 0.5}}
>>> rival = {"parts": {"executes": 1.0, "rows": 1.0, "vote": 0.1, "probability": 0.1}}
>>> sure = signals([likely, rival], [0, 1], uncovered=0.0)
>>> sure["agreed"], round(sure["mass"], 2)
(0.9, 0.83)

A logistic regression over a few signals of the ranking: how many of the writings give the same
rows, how far the best is ahead of those that give others, how likely it is, what the checks say,
and how many of the question's words nothing in the schema or the query stands for.
``scripts/fit_confidence.py`` fits the weights (``confidence.yaml``) on the candidates of
qwen2.5-coder-1.5b and -0.5b for questions over databases that they have not trained on, and draws
how well the probabilities hold. With another model only the order of answers by confidence says
something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from nl2sql.agents.ranking import log_likelihood
from nl2sql.machine import from_yaml

WEIGHTS_FILE = Path(__file__).with_name("confidence.yaml")
LEAST = 1e-4  # nothing is held for less likely, and nothing for likelier than one minus this


def signals(ranking: Sequence[Mapping[str, Any]], groups: Sequence[int], *, uncovered: float) -> dict[str, float]:
    """What a ranking says about its first entry.

    ranking: candidates as the trace records them, best first. groups: a number per candidate, the same for those with
    the same rows. uncovered: see ``linking.uncovered_share``.
    """
    best = ranking[0]
    likely = [log_likelihood(entry["parts"]) for entry in ranking]
    alive = [bool(entry["parts"]["executes"]) for entry in ranking]
    highest = max((value for value, runs in zip(likely, alive, strict=True) if runs), default=0.0)
    beside = zip(likely, alive, strict=True)
    weight = [math.exp(max(value - highest, -700.0)) if runs else 0.0 for value, runs in beside]
    same = sum(value for value, group in zip(weight, groups, strict=True) if group == groups[0])
    return {
        "agreed": best["parts"]["vote"] or 0.0,
        "mass": same / (sum(weight) or 1.0),
        "likely": max(likely[0], -60.0),
        "probability": best["parts"]["probability"] or 0.0,
        "runs": float(best["parts"]["executes"] or 0.0),
        "rows": float(best["parts"]["rows"] or 0.0),
        "suspected": float(bool(best.get("suspected"))),
        "refused": float(best.get("refusal") is not None),
        "uncovered": uncovered,
    }


def logistic(seen: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The probability, from 0 to 1; ``weights`` has a ``constant``, and a signal without a weight counts nothing."""
    at = weights["constant"] + sum(weights.get(name, 0.0) * value for name, value in seen.items())
    return min(max(1 / (1 + math.exp(-max(min(at, 50.0), -50.0))), LEAST), 1 - LEAST)


@cache
def packaged() -> dict[str, float]:
    """The packaged weight of each signal, with the constant."""
    weights: dict[str, float] = from_yaml(WEIGHTS_FILE.read_text(encoding="utf-8"))
    return weights
