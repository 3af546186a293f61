"""Intervals for proportions whose items share databases, and two exact paired tests. Pure functions.

Items of one database succeed and fail together, so an interval that treats them as independent is too narrow, and a
paired test that does finds differences that are none.

>>> mcnemar([(True, False)] * 5 + [(True, True)] * 3, "aaabbbbb")
Paired(wins=5, losses=0, n=8, p=0.0625, p_databases=0.5)

>>> binomial_below(1, 6)
0.109375
>>> round(t_quantile(0.95, 9), 4)
2.2622
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Any, TypeVar

# ----------------------------------------------------------------- the binomial and t distributions
# SciPy computes the same (a test compares them); it is 143 MB installed, as much as all else that
# scoring needs, and takes a second to import. Not covered: degrees of freedom that are not whole,
# and other distributions.


def binomial_below(k: int, n: int) -> float:
    """P(X <= k) of a binomial X of ``n`` trials with probability 1/2: exact integers, then one division."""
    term = total = 1
    for i in range(k):
        term = term * (n - i) // (i + 1)
        total += term
    return total / (1 << n) if k >= 0 else 0.0


def binomial_mass(k: int, n: int, p: float) -> float:
    """P(X = k) of a binomial X of ``n`` trials with probability ``p``."""
    if k < 0 or k > n:
        return 0.0
    if p <= 0 or p >= 1:
        return float(k == (n if p >= 1 else 0))
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) of a binomial X of ``n`` trials with probability ``p``, summed from its smaller side."""
    if k >= n * p:
        return 1.0 - binomial_cdf(n - k - 1, n, 1 - p)
    term = total = binomial_mass(k, n, p)
    while k > 0 and term > 1e-18 * total:
        term *= k * (1 - p) / ((n - k + 1) * p)
        total += term
        k -= 1
    return total


@cache
def critical_counts(n: int, alpha: float) -> tuple[int, ...]:
    """For 0 to ``n`` pairs that differ: the largest count of the rarer kind that exact McNemar finds significant.

    -1 where none is. From one number of pairs to the next it stays, or grows by one.
    """
    bound, counts = -1, []
    for pairs in range(n + 1):
        bound += 2 * binomial_cdf(bound + 1, pairs, 0.5) <= alpha * (1 + 1e-12)
        counts.append(bound)
    return tuple(counts)


def mcnemar_power(n: int, share: float, win: float, alpha: float) -> float:
    """Probability that exact McNemar is significant on ``n`` items.

    share: of items on which the systems differ. win: of those, the ones that the first wins. The pairs that differ are
    binomial, and so are the wins among them.
    """
    power = 0.0
    for pairs, bound in enumerate(critical_counts(n, alpha)):
        weight = binomial_mass(pairs, n, share)
        if bound >= 0 and weight > 1e-12:
            power += weight * sum(binomial_cdf(bound, pairs, p) for p in (win, 1 - win))
    return power


@cache
def t_quantile(confidence: float, degrees: int) -> float:
    """The t that |T| stays below with probability ``confidence``: Student's distribution, whole ``degrees``."""
    low, high = 0.0, 1.0
    while _t_within(high, degrees) < confidence:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _t_within(middle, degrees) < confidence else (low, middle)
    return high


def _t_within(t: float, degrees: int) -> float:
    """P(|T| < t): Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    terms = [] if degrees == 1 else [term]
    for i in range(2 + odd, degrees - 1, 2):
        term *= square * (i - 1) / i
        terms.append(term)
    total = math.sin(angle) * math.fsum(terms)
    return 2 / math.pi * (angle + total) if odd else total


# ------------------------------------------------------------------------------ intervals and tests

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
        return wilson_interval(mean, n, NormalDist().inv_cdf(0.5 + confidence / 2))
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
    p: float  # exact McNemar, two-sided: of these questions
    p_databases: float  # ``signs_test`` over the databases: of questions over other databases, too

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def mcnemar(pairs: Iterable[tuple[bool, bool]], databases: Iterable[Hashable] | None = None) -> Paired:
    """Exact two-sided McNemar test over (first right, second right), and the test by database beside it.

    Only the items that differ count. ``databases``: one per item; None: every item has its own.
    """
    pairs = list(pairs)
    wins = sum(first and not second for first, second in pairs)
    losses = sum(second and not first for first, second in pairs)
    p = min(1.0, 2 * binomial_below(min(wins, losses), wins + losses)) if wins + losses else 1.0
    if databases is None:
        return Paired(wins, losses, len(pairs), p, p)
    differences: dict[Hashable, int] = {}
    for (first, second), database in zip(pairs, databases, strict=True):
        differences[database] = differences.get(database, 0) + first - second
    return Paired(wins, losses, len(pairs), p, signs_test(differences.values()))


def signs_test(differences: Collection[int]) -> float:
    """Exact two-sided p of wins less losses, summed by database, under all ways to change the databases' signs.

    Where neither system is better, a database is as likely to lean by so much to one as to the other, whatever its
    items have in common; so each sign may change, and p is the share of the 2^G sums at least as far from 0. Taken
    for that reason, and not a sandwich with a t quantile: it is exact for any number of databases and sizes, a single
    large one included. Simulated over 20 databases that lean by 0.25 at random it rejects 4% at 0.05, McNemar 24%.
    G databases that differ give no p below 2 / 2^G: fewer than six never one below 0.05.

    >>> signs_test((5, 3, 4, 2, 1, 0)), signs_test((40,))
    (0.0625, 1.0)
    """
    sizes = [abs(difference) for difference in differences if difference]
    outside = (sum(sizes) - abs(sum(differences))) // 2  # what has to change sign at most for such a sum
    ways = [1] + [0] * outside  # sum of the sizes that change sign -> ways to choose them
    for size in sizes:
        for total in range(outside, size - 1, -1):
            ways[total] += ways[total - size]
    return min(1.0, 2 * sum(ways) / 2 ** len(sizes))


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
    """A system against another on the items of both, as tables show it: ``difference`` of proportions, both tests.

    ``p_holm`` and ``p_databases_holm`` are adjusted over the tests of one table; ``detectable`` is the difference
    that so many items are likely to show by McNemar (None: they show none). Whether one is better is said by
    ``p_databases_holm``.
    """

    against: str
    difference: float
    wins: int
    losses: int
    n: int
    p: float
    p_databases: float
    p_holm: float | None
    p_databases_holm: float | None
    detectable: float | None


def paired_test(
    against: str, ours: Mapping[Item, bool], theirs: Mapping[Item, bool], database_of: Callable[[Item], Hashable]
) -> PairedTest:
    """The tests of two systems' verdicts by item."""
    shared = [item for item in ours if item in theirs]
    outcome = mcnemar([(ours[item], theirs[item]) for item in shared], map(database_of, shared))
    n = max(1, outcome.n)
    detectable = minimum_detectable_effect(outcome.n, (outcome.wins + outcome.losses) / n)
    difference = (outcome.wins - outcome.losses) / n
    found: dict[str, Any] = asdict(outcome)
    return PairedTest(against, difference, **found, p_holm=None, p_databases_holm=None, detectable=detectable)


def adjusted(tests: Sequence[PairedTest]) -> list[PairedTest]:
    """The same tests with both p adjusted by Holm, as the tests of one table."""
    items, databases = holm([test.p for test in tests]), holm([test.p_databases for test in tests])
    return [replace(test, p_holm=p, p_databases_holm=by) for test, p, by in zip(tests, items, databases, strict=True)]


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
