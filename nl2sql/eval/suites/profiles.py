"""The profile of one candidate database: its size, NULLs, ties, duplicates, and how children spread."""

from __future__ import annotations

import random
from dataclasses import dataclass

from nl2sql.eval.suites.hints import Hints

ROWS = (3, 6, 10, 15, 22, 30)  # of one table, before what limits and groups ask for


@dataclass(frozen=True)
class Profile:
    """The make-up of one candidate; all shares are between 0 and 1."""

    number: int
    rows: int
    nulls: float  # of nullable cells
    satisfying: float  # rows that satisfy every condition on their table
    all_but_one: float
    own: float  # rows taken from the original, keys renewed
    duplicates: float  # rows that repeat another in all but one or two columns
    no_ties: bool  # numbers all differ
    loose_keys: bool  # columns that are only by chance, or by habit, unique in the original may repeat
    spread: str  # of children over parents and of groups: even, stairs (1, 2, 3...), sizes (those asked for), few
    used: float  # share of parents that may have children
    pool: int  # own values per column
    empty: str = ""  # a table without rows


def profile(number: int, hints: Hints, rng: random.Random, focus: Hints | None = None) -> Profile:
    """The profile of a candidate: the first few are fixed in kind, so that each kind is there."""
    rows = rng.choice(ROWS)
    if hints.limits:
        rows = max(rows, min(2 * max(hints.limits), max(hints.limits) + rng.randrange(2, 7)))
    if hints.sizes:
        rows = max(rows, min(max(hints.sizes) + rng.randrange(2, 7), 40))
    tables = sorted(hints.tables)
    return Profile(
        number=number,
        rows=rows,
        nulls=(0.0, 0.1, 0.25, 0.0, 0.1, 0.6)[number % 6],
        satisfying=rng.choice((0.4, 0.6, 0.9) if focus else (0.2, 0.4, 0.7)),
        all_but_one=rng.choice((0.1, 0.25, 0.3)),
        own=rng.choice((0.0, 0.2, 0.4)),
        duplicates=rng.choice((0.4, 0.7) if focus and focus.repeats else (0.0, 0.2, 0.5)),
        no_ties=number % 3 != 2 and not (focus and focus.repeats and number % 2),
        loose_keys=rng.random() < (0.2 if number < 10 else 0.4),
        spread=("stairs", "even", "sizes", "stairs", "few", "sizes")[number % 6 if hints.sizes else number % 2],
        used=1.0 if hints.sizes and max(hints.sizes) > 8 else rng.choice((0.3, 0.6, 0.9)),
        pool=rng.choice((2, 4, 8)),
        empty=tables[(number // 8) % len(tables)] if tables and number % 8 == 7 else "",
    )
