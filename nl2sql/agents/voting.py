"""Results beside one another: how many candidates return the same rows, and whether a result says anything.

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
    groups = same_rows(results)
    votes: Counter[int] = Counter()
    for group, count in zip(groups, counts, strict=True):
        votes[group] += count
    return [votes[group] if result.success else 0 for group, result in zip(groups, results, strict=True)]


def same_rows(results: Sequence[RunResult]) -> list[int]:
    """A number for each result, equal for those with the same rows; the failed ones share one."""
    numbers: dict[object, int] = {}
    kinds = [frozenset(Counter(map(repr, result.rows)).items()) if result.success else None for result in results]
    return [numbers.setdefault(kind, len(numbers)) for kind in kinds]


def as_samples(queries: Sequence[str], results: Sequence[RunResult]) -> list[dict[str, object]]:
    """What was written, as an episode keeps it: each query, and a number that those with the same rows share."""
    groups = same_rows(results)
    return [
        {"sql": sql, "rows": group if result.success else None}
        for sql, group, result in zip(queries, groups, results, strict=True)
    ]


def tells(result: RunResult) -> bool:
    """Whether a result says anything: it has a row with a value that is not NULL."""
    return any(value is not None for row in result.rows for value in row)
