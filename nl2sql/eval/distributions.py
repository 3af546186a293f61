"""The binomial and Student's t distribution, as far as intervals and the paired test need them, in plain Python.

>>> binomial_below(1, 6)
0.109375
>>> round(t_quantile(0.95, 9), 4)
2.2622

SciPy computes the same (a test compares them); it is 143 MB installed, as much as all else that scoring needs, and
takes a second to import. Not covered: degrees of freedom that are not whole, and other distributions.
"""

from __future__ import annotations

import math
from functools import cache


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


@cache
def critical_counts(n: int, alpha: float) -> tuple[int, ...]:
    """For 0 to ``n`` pairs that differ: the largest count of the rarer kind that exact McNemar finds significant.

    -1 where none is. From one number of pairs to the next it stays, or grows by one.
    """
    bound, below = -1, 0.0  # below: P(X <= bound) at 1/2
    counts = [bound]
    for pairs in range(1, n + 1):
        below -= 0.5 * binomial_mass(bound, pairs - 1, 0.5)
        more = below + binomial_mass(bound + 1, pairs, 0.5)
        if 2 * more <= alpha * (1 + 1e-12):
            bound, below = bound + 1, more
        counts.append(bound)
    return tuple(counts)


def mcnemar_power(n: int, share: float, win: float, alpha: float) -> float:
    """Probability that exact McNemar is significant on ``n`` items.

    share: of items on which the systems differ. win: of those, the ones that the first wins. The pairs that differ are
    binomial, and so are the wins among them.
    """
    bounds = critical_counts(n, alpha)
    power = 0.0
    tails: tuple[float, float] | None = None  # P(X <= bound) of losses, and of wins
    for pairs in range(n + 1):
        weight = binomial_mass(pairs, n, share)
        if weight <= 1e-12:
            tails = None
            continue
        bound = bounds[pairs]
        low, high = (_next_tail(tails and tails[i], bounds, pairs, p) for i, p in enumerate((win, 1 - win)))
        tails = (low, high)
        power += weight * (low + high if bound >= 0 else 0.0)
    return power


def _next_tail(before: float | None, bounds: tuple[int, ...], pairs: int, p: float) -> float:
    """P(X <= bound) of ``pairs`` trials, from that of one trial less where it is known."""
    bound = bounds[pairs]
    if before is None:
        return math.fsum(binomial_mass(k, pairs, p) for k in range(bound + 1))
    stayed = before - p * binomial_mass(bounds[pairs - 1], pairs - 1, p)
    return stayed + (binomial_mass(bound, pairs, p) if bound > bounds[pairs - 1] else 0.0)


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
