"""The distributions of the intervals and the paired test are SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import binom, binomtest

from nl2sql.eval.stats import critical_counts, mcnemar, mcnemar_power, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 10, 19, 50, 999])
def test_t_quantiles(degrees: int) -> None:
    for confidence in (0.5, 0.8, 0.95, 0.99):
        assert t_quantile(confidence, degrees) == pytest.approx(stdtrit(degrees, 0.5 + confidence / 2), rel=1e-10)


@pytest.mark.parametrize(("wins", "losses"), [(1, 0), (5, 0), (7, 7), (12, 3), (0, 40), (300, 250), (2000, 2100)])
def test_the_paired_test(wins: int, losses: int) -> None:
    pairs = [(True, False)] * wins + [(False, True)] * losses
    assert mcnemar(pairs).p == pytest.approx(binomtest(wins, wins + losses, 0.5).pvalue, rel=1e-10)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_critical_counts(alpha: float) -> None:
    for pairs, bound in enumerate(critical_counts(400, alpha)):
        assert bound < 0 or 2 * binom.cdf(bound, pairs, 0.5) <= alpha * (1 + 1e-9)
        assert 2 * binom.cdf(bound + 1, pairs, 0.5) > alpha


@pytest.mark.parametrize("n", [1, 5, 6, 40, 700])
@pytest.mark.parametrize(("share", "win"), [(0.0, 0.5), (0.1, 0.5), (0.3, 0.8), (1.0, 1.0), (1.0, 0.6)])
def test_power(n: int, share: float, win: float) -> None:
    differ = np.arange(n + 1)
    bounds = np.array(critical_counts(n, 0.05))
    found = binom.cdf(bounds, differ, win) + np.where(bounds < 0, 0.0, binom.sf(differ - bounds - 1, differ, win))
    assert mcnemar_power(n, share, win, 0.05) == pytest.approx(
        float((binom.pmf(differ, n, share) * found).sum()), abs=1e-9
    )
