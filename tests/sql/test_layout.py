"""SQL as reports and notebooks show it: a line per clause, nothing else changed."""

from __future__ import annotations

import pytest

from nl2sql.benchmarks import load_benchmark
from nl2sql.sql.text import in_lines

LONG_SQL = (
    "SELECT d.name, LEFT(d.code, 2) FROM departments AS d LEFT JOIN staff AS s ON s.d = d.id "
    "WHERE d.name = 'FROM x  y' AND d.id IN (SELECT d FROM staff WHERE age > 30) "
    "GROUP BY d.name ORDER BY COUNT(*) DESC LIMIT 3"
)
IN_LINES = """SELECT d.name, LEFT(d.code, 2)
FROM departments AS d
LEFT JOIN staff AS s ON s.d = d.id
WHERE d.name = 'FROM x  y' AND d.id IN (SELECT d
  FROM staff
  WHERE age > 30)
GROUP BY d.name
ORDER BY COUNT(*) DESC
LIMIT 3"""


def test_long_sql_has_a_line_per_clause() -> None:
    assert in_lines(LONG_SQL) == IN_LINES


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT a FROM t",
        f"{LONG_SQL} -- a comment, after which a line break would end it",
        f"{LONG_SQL} /* a comment */",
        IN_LINES,
        "(" * 30_000,
    ],
)
def test_a_short_query_and_one_with_a_layout_stay_as_they_are(sql: str) -> None:
    assert in_lines(sql) == sql


def test_each_query_of_a_set_operation_begins_a_line() -> None:
    sql = "SELECT name FROM students WHERE term = 1 UNION ALL SELECT name FROM instructors WHERE term = 1"
    assert in_lines(sql).splitlines()[3:5] == ["UNION ALL", "SELECT name"]


def test_a_table_named_like_a_clause_stays_where_it_is() -> None:
    sql = "SELECT count(*) FROM customers WHERE NOT customer_id IN (SELECT customer_id FROM order);"
    assert in_lines(sql).endswith("\n  FROM order);")


@pytest.mark.parametrize("word", ["LEFT OUTER JOIN", "NATURAL JOIN", "IS DISTINCT FROM"])
def test_words_of_one_clause_stay_together(word: str) -> None:
    assert word in in_lines(f"SELECT a.one, a.two, a.three, a.four, a.five FROM a WHERE a.x IS NOT NULL {word} b")


def test_a_name_in_brackets_stays_as_it_is() -> None:
    sql = "SELECT [From], [Two  words], [Limit] FROM flights WHERE [From] = 'Oslo' AND [Left] > 3 ORDER BY [From]"
    assert in_lines(sql).splitlines()[2] == "WHERE [From] = 'Oslo' AND [Left] > 3"
    assert "[From], [Two  words], [Limit]" in in_lines(sql)


def test_only_whitespace_is_changed_in_any_gold() -> None:
    for question in load_benchmark("packaged").questions:
        for sql in question.gold:
            assert "".join(in_lines(sql).split()) == "".join(sql.split())
