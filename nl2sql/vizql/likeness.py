"""Which of some names may have been meant: ranked by how they are written.

The measure is difflib's ratio with Winkler's bonus for a common beginning: a tenth of what is missing to 1 for each
of the first four letters that agree, where at least two do. The ratio alone cannot tell Revenue from Segment behind
'Regoin' (both 0.46).

>>> did_you_mean("Regoin", ["Category", "Profit", "Region", "Revenue", "Sales", "Segment"])
[('Region', 0.88), ('Revenue', 0.57)]

Not covered: names that mean the same and are written otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import SequenceMatcher
from heapq import nlargest

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
