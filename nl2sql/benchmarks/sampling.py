"""A seeded sample of questions, stratified by database.

>>> questions = [Question("How many?", db_id, f"{db_id}-{n}") for db_id in ("a", "b") for n in range(9)]
>>> sorted(question.db_id for question in draw_sample(questions, 4))
['a', 'a', 'b', 'b']
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from nl2sql.errors import UsageError
from nl2sql.interfaces import Question


def draw_sample(questions: Sequence[Question], limit: int | None, seed: int = 0) -> list[Question]:
    """``limit`` questions, each database in proportion to its size and, where possible, at least once.

    Quotas are by largest remainder; ties, and the questions within a database, are drawn with ``seed``. The
    questions keep the order they came in. With fewer places than databases, ``limit`` databases are drawn and
    give one question each. ``limit`` None or above the number of questions gives all of them.
    Raises UsageError for a limit below 1.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit} is not a number of questions; expected 1 or more")
    if limit is None or limit >= len(questions):
        return list(questions)
    strata: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        strata.setdefault(question.db_id, []).append(index)
    rng = random.Random(f"nl2sql-sample-{seed}")
    names = sorted(strata)
    rng.shuffle(names)
    quotas = _quotas({name: len(strata[name]) for name in names}, limit)
    chosen = [index for name in names for index in rng.sample(strata[name], quotas[name])]
    return [questions[index] for index in sorted(chosen)]


def _quotas(sizes: dict[str, int], limit: int) -> dict[str, int]:
    """Places per stratum. The order of ``sizes`` breaks ties."""
    if limit <= len(sizes):
        return {name: int(place < limit) for place, name in enumerate(sizes)}
    total, spare = sum(sizes.values()), limit - len(sizes)  # one each first; the rest in proportion
    rest = {name: size - 1 for name, size in sizes.items()}
    exact = {name: spare * size / (total - len(sizes)) for name, size in rest.items()}
    quotas = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: quotas[name] - exact[name])
    for name in by_remainder[: spare - sum(quotas.values())]:
        quotas[name] += 1
    return {name: quota + 1 for name, quota in quotas.items()}
