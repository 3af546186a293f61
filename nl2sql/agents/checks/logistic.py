"""A logistic regression over named signals, as ``verifier`` and ``candidates.confidence`` weigh what they see.

>>> logistic({"rows": 1.0, "unweighted": 5.0}, {"constant": -1.0, "rows": 1.0})
0.5
"""

from __future__ import annotations

import math
from collections.abc import Mapping

LEAST = 1e-4  # nothing is held for less likely, and nothing for likelier than one minus this


def logistic(seen: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The probability, from 0 to 1; ``weights`` has a ``constant``, and a signal without a weight counts nothing."""
    at = weights["constant"] + sum(weights.get(name, 0.0) * value for name, value in seen.items())
    return min(max(1 / (1 + math.exp(-max(min(at, 50.0), -50.0))), LEAST), 1 - LEAST)
