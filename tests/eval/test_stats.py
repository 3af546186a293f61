"""Intervals and the paired test."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri, stdtrit
from scipy.stats import binom, binomtest

from nl2sql.eval.scores import _interval
from nl2sql.eval.stats import (
    Interval,
    adjusted,
    clustered_interval,
    holm,
    mcnemar,
    minimum_detectable_effect,
    paired_test,
    signs_test,
    wilson_interval,
)


def test_wilson_agrees_with_published_values():
    interval = wilson_interval(0.5, 10)  # Newcombe 1998's form; 5 of 10
    assert (interval.low, interval.high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 40), (3, 7), (29, 56), (61, 61), (400, 1000)])
def test_wilson_is_scipy_s(right, n):
    interval, known = wilson_interval(right / n, n), binomtest(right, n).proportion_ci(method="wilson")
    assert (interval.low, interval.high) == pytest.approx((known.low, known.high), abs=1e-12)
    assert interval.to_dict() == {"value": right / n, "low": interval.low, "high": interval.high, "n": n}


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_an_interval_by_databases_of_any_size_is_the_cluster_robust_one(confidence):
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(12), rng.integers(1, 9, 12))
    values = rng.random(len(clusters)) < np.repeat(rng.random(12), np.bincount(clusters))
    n, mean = len(values), values.mean()
    sums = np.bincount(clusters, values - mean)
    effect = 12 / 11 * (sums**2).sum() / n**2 / (mean * (1 - mean) / n)
    assert effect > 1.2
    expected = wilson_interval(mean, n / effect, stdtrit(11, 0.5 + confidence / 2))
    found = clustered_interval(list(values), list(clusters), confidence)
    assert (found.value, found.low, found.high, found.n) == pytest.approx((mean, expected.low, expected.high, n))
    few = clustered_interval(list(values), ["a"] * n, confidence)
    of_items = wilson_interval(mean, n, ndtri(0.5 + confidence / 2))
    assert (few.low, few.high) == pytest.approx((of_items.low, of_items.high))


POINTS = [0.5, 1, 0, 0.5, 1, 1, 0.5, 0, 1, 0.5, 0, 0.5]


@pytest.mark.parametrize("databases", [1, 3, 11])
def test_half_points_have_the_interval_of_a_mean(databases):
    by = [f"d{n % databases}" for n in range(len(POINTS))]
    found, mean = _interval(POINTS, by), np.mean(POINTS)
    parts = [sum(p - mean for p, d in zip(POINTS, by, strict=True) if d == db) for db in sorted(set(by))]
    parts = np.array(parts) if databases > 9 else POINTS - mean
    error = stdtrit(len(parts) - 1, 0.975) * np.sqrt((parts**2).sum() * len(parts) / (len(parts) - 1)) / len(POINTS)
    assert (found.value, found.low, found.high) == pytest.approx((mean, mean - error, mean + error))
    assert (found.n, found.method) == (12, "clustered" if databases > 9 else "normal")


@pytest.mark.parametrize(
    ("points", "low", "high"), [([0.5], 0.0, 1.0), ([0.5, 0.0], 0.0, 1.0), ([0.5, 0.5], 0.5, 0.5), ([0.5, 1.0], 0, 1)]
)
def test_half_points_of_few_items_stay_within_nothing_and_all(points, low, high):
    found = _interval(points, ["a"] * len(points))
    assert (found.low, found.high, found.value) == (low, high, sum(points) / len(points))


def test_few_databases_fall_back_to_items_and_say_so():
    values, clusters = [True, False] * 10, ["a", "b"] * 10
    interval = clustered_interval(values, clusters)
    assert interval.method == "wilson"
    assert (interval.low, interval.high) == pytest.approx((wilson_interval(0.5, 20).low, wilson_interval(0.5, 20).high))


@pytest.mark.parametrize(("databases", "method"), [(1, "wilson"), (9, "wilson"), (10, "clustered"), (30, "clustered")])
def test_fewer_than_ten_databases_are_too_few_to_cluster_by(databases, method):
    assert clustered_interval([n % 2 == 0 for n in range(90)], [n % databases for n in range(90)]).method == method


def test_correlated_databases_widen_the_interval():
    apart = clustered_interval([i % 2 == 0 for i in range(200)], [i % 20 // 2 for i in range(200)])
    together = clustered_interval([i % 20 < 10 for i in range(200)], [i % 20 for i in range(200)])
    assert apart.method == together.method == "clustered"
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_the_design_effect_is_the_textbook_one():
    # 20 clusters of 10, all right or all wrong: the effective number of items is the number of clusters (less one)
    interval = clustered_interval(
        [c % 2 == 0 for c in range(20) for _ in range(10)], [c for c in range(20) for _ in "x" * 10]
    )
    expected = wilson_interval(0.5, 19, 2.0930240544)  # t quantile of 19 degrees of freedom
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


@pytest.mark.parametrize("value", [True, False])
def test_all_right_and_all_wrong_still_have_a_width(value):
    interval = clustered_interval([value] * 40, list(range(40)))
    assert interval.value == float(value) and 0.05 < interval.high - interval.low < 0.2


def test_no_items_give_no_number():
    assert math.isnan(clustered_interval([], []).value) and clustered_interval([], []).to_dict()["value"] is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), min_size=1, max_size=80))
def test_an_interval_holds_its_value_and_stays_in_range(items):
    interval = clustered_interval([v for v, _ in items], [c for _, c in items])
    assert 0 <= interval.low <= interval.value <= interval.high <= 1
    assert interval.n == len(items)


def test_mcnemar_is_the_exact_binomial_test():
    pairs = [(True, False)] * 10 + [(False, True)] * 2 + [(True, True)] * 50
    result = mcnemar(pairs)
    assert (result.wins, result.losses, result.n) == (10, 2, 62)
    assert result.p == pytest.approx(2 * sum(math.comb(12, k) for k in range(3)) / 2**12)


def test_mcnemar_without_a_difference_is_1():
    assert mcnemar([(True, True), (False, False)]).p == 1.0


def test_an_interval_prints_as_percent():
    assert str(Interval(0.5, 0.25, 0.75, 8)) == "50.0 [25.0, 75.0]"


def test_the_test_by_database_counts_the_changes_of_signs():
    assert signs_test([5, 3, 4, 2, 1, 0]) == 2 / 32  # all in one direction: of 32 ways two are as far from 0
    assert signs_test([3, -2, 2]) == 6 / 8  # all but 1 and -1
    assert signs_test([2, -2]) == signs_test([40]) == signs_test([]) == 1.0


@given(st.lists(st.integers(-6, 6), max_size=9))
def test_the_test_by_database_is_what_enumeration_finds(differences):
    from itertools import product

    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    share = sum(abs(total) >= abs(sum(differences)) for total in sums) / len(sums)
    assert signs_test(differences) == pytest.approx(share)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_where_every_item_has_a_database_of_its_own_both_tests_are_one(pairs):
    found = mcnemar(pairs, range(len(pairs)))
    assert found.p_databases == pytest.approx(found.p) and mcnemar(pairs).p == found.p


def test_with_no_true_difference_the_test_by_database_rejects_as_often_as_it_says():
    rng, rejected = random.Random(45), Counter()
    for _ in range(1000):
        leans = [rng.choice((0.25, 0.75)) for _ in range(20)]
        wins = [(rng.random() < lean, database) for database, lean in enumerate(leans) for _ in range(8)]
        found = mcnemar([(win, not win) for win, _ in wins], [database for _, database in wins])
        rejected += Counter(items=found.p < 0.05, databases=found.p_databases < 0.05)
    assert rejected["items"] > 150 and 25 < rejected["databases"] < 65


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.3]) == [0.3] and holm([0.6, 0.7]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_lies_between_the_plain_and_the_bonferroni_value_and_keeps_the_order(ps):
    adjusted = holm(ps)
    assert all(p <= a <= min(1.0, len(ps) * p) for p, a in zip(ps, adjusted, strict=True))
    order = sorted(range(len(ps)), key=lambda i: (ps[i], adjusted[i]))
    assert [adjusted[i] for i in order] == sorted(adjusted)


@pytest.mark.parametrize("n", range(6))
def test_five_items_find_no_difference_at_all(n):
    assert minimum_detectable_effect(n) is None  # five wins to none: p = 2 / 32


def test_the_detectable_effect_is_found_as_often_as_it_says():
    n, discordant = 80, 0.2
    effect = minimum_detectable_effect(n, discordant)
    assert effect is not None and 0.12 < effect < 0.16
    rng = random.Random(5)
    found = 0
    for _ in range(400):
        share = max(discordant, effect)
        better = (share + effect) / 2
        draws = [rng.random() for _ in range(n)]
        wins, differ = sum(x < better for x in draws), sum(x < share for x in draws)
        tail = 2 * sum(math.comb(differ, k) for k in range(min(wins, differ - wins) + 1)) / 2**differ
        found += tail <= 0.05
    assert 0.73 < found / 400 < 0.87


def scipy_power(n, effect, discordant, alpha):
    share = max(discordant, effect)
    differ = np.arange(n + 1)
    bounds = np.array([max((k for k in range(d) if 2 * binom.cdf(k, d, 0.5) <= alpha), default=-1) for d in differ])
    win = (share + effect) / (2 * share)
    shown = binom.cdf(bounds, differ, win) + np.where(bounds < 0, 0, binom.sf(differ - bounds - 1, differ, win))
    return float((binom.pmf(differ, n, share) * shown).sum())


@pytest.mark.parametrize(
    ("n", "discordant", "power", "alpha"), [(6, 0, 0.8, 0.05), (40, 0.1, 0.8, 0.05), (70, 0.5, 0.9, 0.01)]
)
def test_the_detectable_effect_is_the_smallest_that_is_found_so_often(n, discordant, power, alpha):
    effect = minimum_detectable_effect(n, discordant, power=power, alpha=alpha)
    assert effect is not None
    assert scipy_power(n, effect, discordant, alpha) >= power > scipy_power(n, effect - 2e-4, discordant, alpha)


@pytest.mark.parametrize(
    "shares", [{"discordant": -0.1}, {"discordant": 1.1}, {"alpha": 0.0}, {"power": 1.0}, {"power": 0.05}]
)
def test_shares_that_are_none_are_refused(shares):
    with pytest.raises(ValueError, match="expected shares between 0 and 1"):
        minimum_detectable_effect(40, **shares)
    assert minimum_detectable_effect(40, 1.0) and minimum_detectable_effect(0) is None


def test_a_table_of_tests_is_adjusted_as_one():
    tests = [paired_test("x", dict.fromkeys(range(n), True), dict.fromkeys(range(n), False), int) for n in (6, 9)]
    assert [(t.p_holm, t.p_databases_holm) for t in adjusted(tests)] == [(2 / 64, 2 / 64), (4 / 512, 4 / 512)]
    nothing = paired_test("x", {1: True}, {2: True}, int)
    assert (nothing.n, nothing.difference, nothing.detectable, nothing.p) == (0, 0, None, 1)


def test_more_items_and_less_disagreement_show_smaller_effects():
    effects = [minimum_detectable_effect(n, 0.2) for n in (20, 40, 120, 1000)]
    assert effects == sorted(effects, reverse=True)
    assert minimum_detectable_effect(120, 0.05) < minimum_detectable_effect(120, 0.4)


def test_a_paired_test_says_what_it_could_find_among_so_many_disagreements():
    ours = {n: n < 9 for n in range(40)}
    theirs = {n: n >= 6 and n < 13 for n in range(41)}  # the 41st is of one system alone
    test = paired_test("theirs", ours, theirs, lambda n: n % 2)
    assert (test.wins, test.losses, test.n) == (6, 4, 40)
    assert test.p_databases == 2 / 4  # of each database three are won and two lost: 1 and 1
    assert test.difference == 2 / 40 and test.detectable == minimum_detectable_effect(40, 10 / 40)
