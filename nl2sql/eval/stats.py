"""Intervals for proportions whose items share databases, and the exact paired test. Pure functions, no state.

Items of one database succeed and fail together, so an interval that treats them as independent is too narrow.

>>> mcnemar([(True, False)] * 5 + [(True, True)] * 3)
Paired(wins=5, losses=0, n=8, p=0.0625)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from nl2sql.eval.distributions import binomial_below, mcnemar_power, t_quantile

Item = TypeVar("Item", bound=Hashable)
MIN_CLUSTERS = 10  # below this a cluster-robust error is itself too uncertain to use


@dataclass(frozen=True)
class Interval:
    """A proportion with its 95% interval. ``method`` is ``clustered``, ``wilson``, ``normal`` (half
    points of items taken as independent) or ``none`` (no items)."""

    value: float
    low: float
    high: float
    n: int
    method: str = "wilson"

    def to_dict(self) -> dict[str, Any]:
        if not self.n:
            return {"value": None, "low": None, "high": None, "n": 0}  # JSON has no NaN
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}

    def __str__(self) -> str:
        return percent(vars(self))


def percent(interval: Mapping[str, Any]) -> str:
    """``31.0 [17.7, 48.4]``: what ``Interval.to_dict`` gives, in percent, as every table shows it."""
    return f"{100 * interval['value']:.1f} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def clustered_interval(values: Sequence[bool], clusters: Sequence[Hashable], confidence: float = 0.95) -> Interval:
    """Interval of ``mean(values)``, where items of one cluster (database) are correlated.

    The cluster-robust variance G/(G-1) * sum_g (sum_{i in g} (x_i - mean))^2 / n^2 gives a design effect (its ratio
    to the variance of independent items, at least 1), the design effect an effective number of items, and that the
    Wilson interval, with the t quantile of G-1 degrees of freedom. Wilson's form keeps the interval inside [0, 1]
    and of positive width at 0 and 1, where the plain "value +- t * error" breaks down.
    With fewer than ``MIN_CLUSTERS`` clusters: Wilson by item (``method`` says so; it is too narrow).
    """
    n = len(values)
    if n != len(clusters):
        raise ValueError(f"{n} values but {len(clusters)} clusters")
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0, "none")
    mean = sum(map(bool, values)) / n
    sums: dict[Hashable, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + (bool(value) - mean)
    groups = len(sums)
    if groups < MIN_CLUSTERS:
        return wilson_interval(mean, n, _normal_quantile(confidence))
    independent = mean * (1 - mean) / n
    robust = groups / (groups - 1) * math.fsum(part * part for part in sums.values()) / n**2
    effect = max(1.0, robust / independent) if independent > 0 else 1.0
    low_high = wilson_interval(mean, n / effect, t_quantile(confidence, groups - 1))
    return Interval(mean, low_high.low, low_high.high, n, "clustered")


def wilson_interval(value: float, n: float, z: float = 1.959963984540054) -> Interval:
    """Wilson's interval of a proportion ``value`` of ``n`` independent items (``n`` may be an effective number)."""
    centre = (value + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(value * (1 - value) / n + z * z / (4 * n * n))
    return Interval(value, max(0.0, min(value, centre - half)), min(1.0, max(value, centre + half)), round(n))


@dataclass(frozen=True)
class Paired:
    """Two systems on the same items: ``wins`` only the first is right, ``losses`` only the second."""

    wins: int
    losses: int
    n: int
    p: float  # exact McNemar, two-sided

    def to_dict(self) -> dict[str, Any]:
        return {"wins": self.wins, "losses": self.losses, "n": self.n, "p": self.p}


def mcnemar(pairs: Iterable[tuple[bool, bool]]) -> Paired:
    """Exact two-sided McNemar test over (first right, second right); only the items that differ count."""
    n = wins = losses = 0
    for first, second in pairs:
        n += 1
        wins += first and not second
        losses += second and not first
    if wins + losses == 0:
        return Paired(wins, losses, n, 1.0)
    return Paired(wins, losses, n, min(1.0, 2 * binomial_below(min(wins, losses), wins + losses)))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given [35]: compare these with 0.05, whatever their number.

    The k-th smallest of m is multiplied by m - k + 1, and none may be smaller than the one before it.
    """
    adjusted = [0.0] * len(ps)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = highest
    return adjusted


@dataclass(frozen=True)
class PairedTest:
    """A system against another on the items of both, as tables show it: ``difference`` of proportions, exact McNemar.

    ``p_holm`` is adjusted over the tests of one table; ``detectable`` is the difference that so many items are likely
    to show (None: they show none).
    """

    against: str
    difference: float
    wins: int
    losses: int
    n: int
    p: float
    p_holm: float | None
    detectable: float | None


def paired_test(against: str, ours: Mapping[Item, bool], theirs: Mapping[Item, bool]) -> PairedTest:
    """The test of two systems' verdicts by item."""
    outcome = mcnemar((value, theirs[item]) for item, value in ours.items() if item in theirs)
    n = max(1, outcome.n)
    detectable = minimum_detectable_effect(outcome.n, (outcome.wins + outcome.losses) / n)
    difference = (outcome.wins - outcome.losses) / n
    return PairedTest(against, difference, outcome.wins, outcome.losses, outcome.n, outcome.p, None, detectable)


def adjusted(tests: Sequence[PairedTest]) -> list[PairedTest]:
    """The same tests with ``p_holm``, as the tests of one table."""
    return [replace(test, p_holm=p) for test, p in zip(tests, holm([test.p for test in tests]), strict=True)]


def minimum_detectable_effect(
    n: int, discordant: float = 0.0, *, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """The smallest difference of two systems on ``n`` items that exact McNemar finds with probability ``power``.

    ``discordant`` is the share of items on which they differ, in either direction, when neither is better (from the
    paired test at hand: ``(wins + losses) / n``); a difference larger than it raises the share to itself. None: no
    difference could be found, ``n`` is too small. Items are taken as independent: with databases that succeed and
    fail as a whole, more is needed.
    """
    if not 0 <= discordant <= 1 or not 0 < alpha < power < 1:
        raise ValueError(f"discordant={discordant}, power={power}, alpha={alpha}: expected shares between 0 and 1")
    if n < 1 or _mcnemar_power(n, 1.0, discordant, alpha) < power:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if _mcnemar_power(n, middle, discordant, alpha) >= power else (middle, high)
    return high


def _mcnemar_power(n: int, effect: float, discordant: float, alpha: float) -> float:
    """Probability that the exact test is significant at a difference of ``effect``."""
    share = max(discordant, effect)
    return mcnemar_power(n, share, (share + effect) / (2 * share) if share else 0.5, alpha)


def _normal_quantile(confidence: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(0.5 + confidence / 2)
