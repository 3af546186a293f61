"""The days that conditions let through, and what a year or month of a follow-up keeps of them."""

from __future__ import annotations

from datetime import date

import pytest
from sqlglot import exp

from nl2sql.sessions.amounts import comparison_condition, covered_days
from nl2sql.sessions.reading import read_followup

YEAR = (date(2022, 1, 1), date(2022, 12, 31))


def conditions(text):
    tree = exp.condition(text, dialect="sqlite")
    return list(tree.flatten()) if isinstance(tree, exp.And) else [tree]


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("d >= '2022-01-01' AND d < '2023-01-01'", YEAR),
        ("d > '2021-12-31' AND d <= '2022-12-31'", YEAR),
        ("'2022-01-01' <= d AND '2023-01-01' > d", YEAR),
        ("d >= '2022-01-01 00:00:00' AND d < '2023-01-01 00:00:00'", YEAR),
        ("d BETWEEN '2022-01-01' AND '2022-12-31 23:59:59'", YEAR),
        ("NOT d BETWEEN '2022-01-01' AND '2022-12-31'", YEAR),
        ("d IN ('2022-12-31', '2022-01-01')", YEAR),
        ("d >= '2022-01-01'", (YEAR[0], None)),
        ("d < '2023-01-01'", (None, YEAR[1])),
        ("d < '2022-12-31 12:00:00'", (None, YEAR[1])),
        ("d = '2022-01-01'", (YEAR[0], YEAR[0])),
        ("d > '2022-02-31'", (None, None)),
        ("d > '9999-12-31'", (None, None)),
        ("d > 'x' AND d < 5", (None, None)),
    ],
)
def test_the_ends_of_a_span_are_read_with_their_signs(text, days):
    assert covered_days(conditions(text)) == days


@pytest.mark.parametrize(
    ("before", "question", "after"),
    [
        ("d >= '2022-01-01' AND d < '2023-01-01'", "What about 2023?", "d BETWEEN '2023-01-01' AND '2023-12-31'"),
        ("d >= '2022-03-01' AND d < '2022-04-01'", "What about 2023?", "d BETWEEN '2023-03-01' AND '2023-03-31'"),
        ("d BETWEEN '2022-04-01' AND '2022-06-30'", "What about 2023?", "d BETWEEN '2023-04-01' AND '2023-06-30'"),
        ("d BETWEEN '2024-02-01' AND '2024-02-29'", "What about 2023?", "d BETWEEN '2023-02-01' AND '2023-02-28'"),
        ("d BETWEEN '2023-02-01' AND '2023-02-28'", "What about 2024?", "d BETWEEN '2024-02-01' AND '2024-02-29'"),
        ("d BETWEEN '2021-03-01' AND '2022-02-28'", "What about 2023?", "d BETWEEN '2023-01-01' AND '2023-12-31'"),
        ("d >= '2022-03-01' AND d < '2022-04-01'", "And since 2023?", "d >= '2023-01-01'"),
        ("d > '2021-12-31' AND d < '2023-01-01'", "And in May?", "d BETWEEN '2022-05-01' AND '2022-05-31'"),
        ("d < '2023-01-01'", "And in May?", "d BETWEEN '2022-05-01' AND '2022-05-31'"),
        ("d > '2021-12-31'", "What about 2022?", "d > '2022-12-31'"),
    ],
)
def test_a_year_or_month_keeps_what_is_not_said_again(before, question, after):
    [comparison] = read_followup(question).comparisons
    made = comparison_condition(comparison, exp.column("d"), "date", conditions(before))
    assert made is not None and made.sql() == after
