"""The agreement of several candidates: how many of them return the same rows.

>>> oslo, bergen = (RunResult(True, rows=((city,),)) for city in ("Oslo", "Bergen"))
>>> agreement([oslo, bergen, oslo])
[2, 1, 2]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nl2sql.interfaces import RunResult


def agreement(results: Sequence[RunResult], weights: Sequence[int] | None = None) -> list[int]:
    """For each result how many results have the same rows, as a multiset, itself among them; 0 for a failed one.

    weights: how often each counts (default: once).
    """
    counts = weights or [1] * len(results)
    kinds = [frozenset(Counter(map(repr, result.rows)).items()) if result.success else None for result in results]
    votes: Counter[object] = Counter()
    for kind, count in zip(kinds, counts, strict=True):
        votes[kind] += count
    return [0 if kind is None else votes[kind] for kind in kinds]
