"""The constraint dictionary of a question, from its cue words (specification, section 3.2).

>>> extract_constraints("Which city has the most customers?")
{'agg': None, 'needs_group_by': False, 'needs_order_by': True, 'limit': 1, 'distinct': False}
"""

from __future__ import annotations

from typing import Any

from nl2sql.agents.checks.constraints.cues import Cues, read_cues

_AGGREGATES = {"count_named": "COUNT", "avg": "AVG", "sum": "SUM", "max": "MAX", "min": "MIN"}


def extract_constraints(nlq: str) -> dict[str, Any]:
    """Structure that a question asks for, from its words alone.

    Args:
        nlq: the question in English; any text is accepted.

    Returns:
        ``agg`` (COUNT, AVG, SUM, MAX, MIN or None; the first one named), ``needs_group_by``,
        ``needs_order_by``, ``limit`` (int or None; 1 for a superlative), ``distinct``.
        Not covered: several aggregates in one question, and languages other than English.
    """
    cues = read_cues(nlq)
    agg = _aggregate(cues)
    ranking = "ranking" in cues
    superlative = "superlative" in cues
    limit = next((n for n in cues.numbers("limit") if n > 0), None)
    if limit is None and superlative and not ranking and agg is None:
        limit = 1
    return {
        "agg": agg,
        "needs_group_by": agg is not None and "group" in cues,
        "needs_order_by": ranking or limit is not None,
        "limit": limit,
        "distinct": "distinct" in cues,
    }


def _aggregate(cues: Cues) -> str | None:
    """The aggregate that is named first, if any."""
    named = [cue for cue in _AGGREGATES if cue in cues]
    return _AGGREGATES[min(named, key=cues.first)] if named else None
