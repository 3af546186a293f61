"""EX before and after a perturbation of the same question (Dr.Spider), paired.

>>> before_after([], [])
{}
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nl2sql.eval.scores import ItemScore
from nl2sql.eval.stats import clustered_interval, mcnemar
from nl2sql.interfaces import Question


def before_after(questions: Iterable[Question], items: Iterable[ItemScore]) -> dict[str, Any]:
    """``before``, ``after``: intervals of EX; ``paired``: McNemar's test; ``kept``: right after of right before.

    Over pairs of a question of split ``pre`` and one of ``post`` with the same ``meta["pair"]``, both of
    them scored; empty without any. A win of ``paired`` is a question that was right before alone.
    """
    scored = {item.id: item for item in items}
    asked = [q for q in questions if "pair" in q.meta and q.id in scored]
    halves = {(q.split, q.meta["pair"]): scored[q.id] for q in asked}
    pairs = [
        (item, halves["post", place])
        for (half, place), item in halves.items()
        if half == "pre" and ("post", place) in halves
    ]
    if not pairs:
        return {}
    verdicts, databases = [(a.ex, b.ex) for a, b in pairs], [a.db_id for a, _ in pairs]
    sides = [clustered_interval(side, databases).to_dict() for side in zip(*verdicts, strict=True)]
    right = [after for before, after in verdicts if before]
    return {
        "n": len(pairs),
        "before": sides[0],
        "after": sides[1],
        "paired": mcnemar(verdicts, databases).to_dict(),
        "kept": sum(right) / len(right) if right else None,
    }
