"""A follow-up of another time turns the condition on a date, however that is written, on three engines."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from datetime import date, timedelta

import pytest
import servers

from nl2sql.databases.engines import open_database
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Database
from nl2sql.sessions.periods import in_period, period_of, said_again

DAYS = [date(2022, 1, 1) + timedelta(days=number) for number in range(3 * 365)]
MADE = "CREATE TABLE sales (product TEXT, sold_on DATE, noted TEXT, month TEXT, year INTEGER);" + "".join(
    f"INSERT INTO sales VALUES ('{'ab'[day.day % 2]}', '{day}', '{day}', '{day:%Y-%m}', {day.year});" for day in DAYS
)
QUARTER, MONTH, YEAR = (7, 8, 9), (7,), tuple(range(1, 13))
SQLITE = {  # a condition that lets the third quarter of 2023 through, its July, or the year
    "sold_on BETWEEN '2023-07-01' AND '2023-09-30'": QUARTER,
    "sold_on >= '2023-07-01' AND sold_on < '2023-10-01'": QUARTER,
    "strftime('%Y', sold_on) = '2023' AND strftime('%m', sold_on) IN ('07', '08', '09')": QUARTER,
    "(CAST(strftime('%m', sold_on) AS INTEGER) + 2) / 3 = 3 AND sold_on LIKE '2023%'": QUARTER,
    "strftime('%Y-%m', sold_on) = '2023-07'": MONTH,
    "sold_on LIKE '2023-07%'": MONTH,
    "month = '2023-07'": MONTH,
    "month BETWEEN '2023-07' AND '2023-09'": QUARTER,
    "year = 2023": YEAR,
}
ELSEWHERE = {
    "sold_on BETWEEN '2023-07-01' AND '2023-09-30'": QUARTER,
    "sold_on >= '2023-07-01' AND sold_on < '2023-10-01'": QUARTER,
    "EXTRACT(YEAR FROM sold_on) = 2023 AND EXTRACT(QUARTER FROM sold_on) = 3": QUARTER,
    "date_trunc('quarter', sold_on) = DATE '2023-07-01'": QUARTER,
    "date_trunc('month', sold_on) = DATE '2023-07-01'": MONTH,
    "noted >= '2023-07-01' AND noted < '2023-10-01'": QUARTER,
    "month = '2023-07'": MONTH,
    "year = 2023": YEAR,
}
OWN = {
    "duckdb": {"strftime(sold_on, '%Y-%m') = '2023-07'": MONTH},
    "postgres": {"to_char(sold_on, 'YYYY-MM') = '2023-07'": MONTH},
}
CONDITIONS = {"sqlite": SQLITE, **{name: ELSEWHERE | own for name, own in OWN.items()}}


@pytest.fixture(scope="module", params=list(CONDITIONS))
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("sales")
    if request.param == "sqlite":
        with closing(sqlite3.connect(folder / "sales.sqlite")) as connection:
            connection.executescript(MADE)
        with closing(SqliteDatabase(folder / "sales.sqlite")) as opened:
            yield opened
        return
    if request.param == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        with duckdb.connect(str(folder / "sales.duckdb")) as connection:
            connection.execute(MADE)
    with (
        servers.postgres(MADE) if request.param == "postgres" else nullcontext(f"duckdb:{folder}/sales.duckdb") as spec
    ):
        if spec is None:
            pytest.skip("no PostgreSQL server: apt-get install postgresql")
        with open_database(spec) as opened:
            yield opened


def counts(months: tuple[int, ...], year: int | None, weekday: int | None = None) -> list[tuple[str, int]]:
    """Sales of each product on the days of these months, year and weekday (0 is Sunday)."""
    days = [day for day in DAYS if day.month in months and year in (None, day.year)]
    days = [day for day in days if weekday in (None, day.isoweekday() % 7)]
    return [(name, count) for name in "ab" if (count := sum("ab"[day.day % 2] == name for day in days))]


def after(condition: str, question: str, database: Database) -> list[tuple[str, int]] | str:
    """What the query of this condition gives in the time that ``question`` says; "" where it cannot be turned."""
    period = period_of(question)
    assert period is not None, question
    sql = f"SELECT product, COUNT(*) FROM sales AS s WHERE {condition} AND product <> 'c' GROUP BY product ORDER BY 1"
    made = in_period(sql, period, database)
    if not made:
        return ""
    assert "product <> 'c'" in made and made.endswith("GROUP BY product ORDER BY 1")
    result = database.run(made, timeout_s=10, max_rows=10)
    assert result.success, (made, result.error)
    return [tuple(row) for row in result.rows]


def test_each_way_to_write_a_time_is_turned_to_another(database: Database) -> None:
    for condition, months in CONDITIONS[database.dialect].items():
        if condition == "year = 2023":
            assert after(condition, "What about Q4?", database) == "", "a column of years holds no quarter"
            assert after(condition, "and in 2022?", database) == counts(YEAR, 2022)
            continue
        assert after(condition, "What about Q4?", database) == counts((10, 11, 12), 2023), condition
        assert after(condition, "and the second quarter?", database) == counts((4, 5, 6), 2023), condition
        assert after(condition, "October instead, please", database) == counts((10,), 2023), condition
        assert after(condition, "sorry, I meant 2022", database) == counts(months, 2022), condition
        assert after(condition, "Feb 2024", database) == counts((2,), 2024), condition
        assert after(condition, "and a year later?", database) == counts(months, 2024), condition
        step = "and the next month?" if months == MONTH else "the previous quarter"
        assert after(condition, step, database) == counts((8,) if months == MONTH else (4, 5, 6), 2023), condition
        if "month" not in condition.partition(" ")[0]:
            assert after(condition, "only on Fridays", database) == counts(months, 2023, 5), condition


def test_a_time_without_a_year_keeps_none(database: Database) -> None:
    mondays = "strftime('%w', sold_on) = '1'" if database.dialect == "sqlite" else "EXTRACT(DOW FROM sold_on) = 1"
    assert after(mondays, "and Fridays?", database) == counts(YEAR, None, 5)
    assert after(mondays, "in March?", database) == counts((3,), None, 1)
    assert after(mondays, "the year before", database) == ""


@pytest.mark.parametrize(
    "condition",
    [
        "sold_on >= '2023-07-01'",  # no end
        "sold_on BETWEEN '2023-07-05' AND '2023-09-30'",  # no whole months
        "sold_on LIKE '2023%' AND month > '2022-12'",  # two columns of time
        "product = 'a'",
        "product IN (SELECT product FROM sales WHERE product LIKE '2023%')",
    ],
)
def test_what_is_no_whole_time_of_one_column_is_not_turned(condition: str, database: Database) -> None:
    if database.dialect != "sqlite" and "LIKE '2023%' AND" in condition:
        condition = "sold_on < '2024-01-01' AND sold_on >= '2023-01-01' AND month > '2022-12' AND month < '2023-06'"
    assert after(condition, "What about Q4?", database) == ""


@pytest.mark.parametrize(
    "question",
    [
        "What about Norway in Q4?",
        "How many in 2022?",
        "by month",
        "Q4 by region",
        "Q4 or May?",
        "why?",
        "the last 3 months",
    ],
)
def test_a_question_that_says_more_than_a_time_is_none(question: str) -> None:
    assert period_of(question) is None


@pytest.mark.parametrize(
    ("asked", "question", "whole"),
    [
        ("Top 10 products in Q3", "What about Q4?", "Top 10 products in Q4"),
        ("How many sales in July 2023?", "and August?", "How many sales in August 2023?"),
        ("How many sales in Q3 2023?", "October 2022", "How many sales in October 2022?"),
        ("How many sales?", "on Fridays", "How many sales on Fridays?"),
        ("Sales of 2023", "the year before", "Sales of 2023 but the year before"),
    ],
)
def test_the_question_is_said_with_the_other_time(asked: str, question: str, whole: str) -> None:
    period = period_of(question)
    assert period is not None and said_again(asked, period) == whole
