"""What every generator shares: draws that are the same on every Python version, dates, and rows to CSV.

Only ``random.Random.random()`` is promised to be stable between Python versions, so every draw is built on it.
Amounts and measurements are multiples of 1/8: sums of them are exact in binary floating point, so that a SUM or
AVG does not depend on the order of the rows.
"""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Value: TypeAlias = "str | int | float | None"
Tables: TypeAlias = dict[str, list[tuple[Value, ...]]]

NULL = r"\N"  # a CSV field that is exactly this is NULL; an empty field is an empty string


class Draw:
    """Seeded draws built on ``random()`` alone."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        return items[self.between(0, len(items) - 1)]

    def weighted(self, weights: Mapping[T, float]) -> T:
        """A key, drawn with probability proportional to its weight."""
        point = self._random.random() * sum(weights.values())
        for key, weight in weights.items():
            point -= weight
            if point < 0:
                return key
        return key

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """``count`` different items, in drawn order."""
        pool = list(items)
        return [pool.pop(self.between(0, len(pool) - 1)) for _ in range(count)]

    def bell(self, mean: float, spread: float) -> float:
        """A bell-shaped draw around ``mean``: the sum of four uniform draws, within about two ``spread``."""
        return mean + spread * (sum(self._random.random() for _ in range(4)) - 2.0) * 1.7

    def day(self, first: date, last: date) -> date:
        return first + timedelta(days=self.between(0, (last - first).days))

    def name(self, given: Sequence[str], family: Sequence[str], taken: set[str]) -> str:
        """A full name that is not in ``taken`` yet (and is added to it)."""
        while True:
            full = f"{self.pick(given)} {self.pick(family)}"
            if full not in taken:
                taken.add(full)
                return full


def eighths(value: float, step: float = 0.125) -> float:
    """``value`` rounded to a multiple of ``step`` (itself a multiple of 1/8)."""
    return int(value / step + 0.5) * step if value >= 0 else -eighths(-value, step)


def later(day: date, days: int) -> date:
    return day + timedelta(days=days)


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV text with a header line; ``None`` becomes ``\\N``, everything else its plain text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        fields = [NULL if value is None else str(value) for value in row]
        if any(isinstance(value, str) and value.startswith("\\") for value in row):
            raise ValueError(f"a text that starts with a backslash cannot be told from NULL: {row!r}")
        writer.writerow(fields)
    return out.getvalue()
