"""Values beside, beyond and unlike others, and dates and times in the form of their column: tables of right values."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from people import make_database

from nl2sql.eval.replicas.table_shapes import read_shapes
from nl2sql.eval.replicas.values import as_compared, beyond, fresh, is_date, neighbour, read_moments
from nl2sql.eval.suites.arena import SAMPLE_ROWS, read_source
from nl2sql.eval.suites.mutator import parse_gold

MOVED = [  # values of the column, the one that is moved, its unit and by how many; what it becomes
    (["2019-05-31", "2020-01-05"], "2019-05-31", "d", 1, "2019-06-01"),
    (["2019-05-31", "2020-01-05"], "2019-05-31", "m", 1, "2019-06-30"),
    (["2019-05-31", "2020-02-29"], "2020-02-29", "y", 1, "2021-02-28"),
    (["2019-05-31", "2020-01-05"], "2020-01-05", "m", -1, "2019-12-05"),
    (["2019/05/31", "2020/01/05"], "2020/01/05", "d", -5, "2019/12/31"),
    (["31/12/2019", "5/1/2020"], "31/12/2019", "d", 1, "1/1/2020"),
    (["31.12.2019", "05.01.2020"], "31.12.2019", "d", 1, "01.01.2020"),
    (["12/31/2019", "1/5/2020"], "1/5/2020", "m", 11, "12/5/2020"),
    (["12/31/99", "1/5/20"], "12/31/99", "d", -1, "12/30/99"),
    (["20191231", "20200105"], "20191231", "d", 1, "20200101"),
    ([20191231, 20200105], "20200105", "m", 1, "20200205"),
    (["2019-12", "2020-01"], "2019-12", "m", 1, "2020-01"),
    (["12/2019", "01/2020"], "12/2019", "m", 1, "01/2020"),
    (["3 Mar 2019", "28 Dec 2020"], "28 Dec 2020", "m", 1, "28 Jan 2021"),
    (["March 3, 2019", "December 28, 2020"], "December 28, 2020", "d", 4, "January 1, 2021"),
    (["3-MAR-2019", "28-DEC-2020"], "28-DEC-2020", "y", -1, "28-DEC-2019"),
    (["12:30", "09:05"], "09:05", "i", -6, "08:59"),
    (["12:30", "23:59"], "23:59", "i", 1, "00:00"),
    (["12:30:10", "00:00:00"], "00:00:00", "s", -1, "23:59:59"),
    (["12:30:10", "00:00:00"], "12:30:10", "h", 2, "14:30:10"),
    (["30:00:00", "100:59:59"], "100:59:59", "s", 1, "101:00:00"),
    (["30:00:00", "100:59:59"], "30:00:00", "h", -40, "00:00:00"),
    (["9:05 PM", "12:59 PM"], "12:59 PM", "i", 1, "12:00 PM"),
    (["2019-05-31 12:30:10", "2020-01-05 00:00:00"], "2019-05-31 12:30:10", "d", 1, "2019-06-01 12:30:10"),
    (["2019-05-31 12:30:10", "2020-01-05 00:00:00"], "2020-01-05 00:00:00", "s", 5, "2020-01-05 00:00:05"),
    (["2019-05-31T12:30:10.250"], "2019-05-31T12:30:10.250", "h", 1, "2019-05-31T13:30:10.250"),
    (["2019-05-31", "2020-01-05"], "no date", "d", 1, None),
    (["2019-05-31", "9999-12-31"], "9999-12-31", "d", 1, None),
]
NO_MOMENTS = [
    [], ["hello"], ["12"], ["2019"], ["555-1234"], ["1.2.3"], ["2019-13-01", "2019-14-02"], ["0999-01-01"],
    ["12:60", "12:61"], ["1:2:3"], [None, 3.5], ["2019-05-31"] + ["?"] * 9, ["31/12/019"],
]  # fmt: skip
BEYOND = [  # the largest (or smallest), the value at the other end; above, and below
    (41, 25, 42, 40), (0, 9, 1, None), (-3, 5, -2, -4), (2**63 - 1, 0, None, 2**63 - 2),
    (1.5, 0.5, 1.6, 1.4), (2.25, 2.25, 2.26, 2.24), (0.0, 5.0, 0.5, None), (-1.5, 8.5, -0.5, -2.5),
    ("Rome", "Bonn", "Romea", "Rom"), ("k9", "k1", "k90", "k"), ("a", "b", "aa", None), ("", "b", "a", None),
    ("on 2019-12-31!", "x", "on 2020-01-01!", "on 2019-12-30!"),
]  # fmt: skip
FRESH = [  # a key, the column's values and its largest whole number; a key that is not there
    (3, {3, 9}, 9, 10), (9, {9}, 0, 10), (2**63 - 1, {2**63 - 1, -4, "x"}, 2**63 - 1, -5), (2**63 - 1, set(), 0, -1),
    (1.5, {1.5, 2.5}, 0, 3.5), (4.5, {1.5}, 0, 4.5), (b"a", {b"a", b"a\0"}, 0, b"a\0\0"), (b"a", {b"b"}, 0, b"a"),
    ("item7", {"item7", "item8"}, 0, "item9"), ("k099", {"k099"}, 0, "k100"), ("k09", {"k10"}, 0, "k11"),
    ("Ann", {"Ann"}, 0, "Ann2"), ("Ann", {"Ann", "Ann2"}, 0, "Ann3"), (None, set(), 0, None),
]  # fmt: skip
COMPARED = [  # value, collation, declared type; what it is equal by
    ("A1", "NOCASE", "", "a1"), ("É", "NOCASE", "", "É"), ("a ", "RTRIM", "", "a"), ("a\t", "RTRIM", "TEXT", "a\t"),
    ("01", "", "INTEGER", 1), (" 2 ", "", "NUMERIC", 2), ("1.50", "", "REAL", 1.5), ("1e2", "", "INT", 100.0),
    ("x1", "", "INTEGER", "x1"), ("01", "", "TEXT", "01"), ("01", "", "", "01"), ("01", "", "BLOB", "01"),
    (1, "", "TEXT", "1"), (1, "", "VARCHAR(5)", "1"), (1, "", "CLOB", "1"), (1, "", "CHARINT", 1),
    (b"1", "", "TEXT", b"1"), (None, "NOCASE", "TEXT", None),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value", "unit", "by", "moved"), MOVED)
def test_a_date_or_time_is_moved_in_the_form_of_its_column(
    column: list[Any], value: str, unit: str, by: int, moved: str | None
) -> None:
    moments = read_moments(column)
    assert moments is not None and moments.moved(value, unit, by) == moved


@pytest.mark.parametrize("column", NO_MOMENTS, ids=str)
def test_what_is_no_date_or_time_is_not_taken_for_one(column: list[Any]) -> None:
    assert read_moments(column) is None


def test_nine_of_ten_values_say_how_a_column_writes_dates() -> None:
    assert read_moments(["2019-05-31"] * 9 + ["?"]) is not None
    assert read_moments(["2019-05-31"] * 8 + ["?"] * 2) is None
    assert [is_date(value) for value in ("on 2019-05-31", "2019/05/31", "2019-05/31", "2019-05-311", 20190531)] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(("end", "other", "above", "below"), BEYOND)
def test_a_value_beyond_the_ends_of_a_column(end: Any, other: Any, above: Any, below: Any) -> None:
    assert (beyond(end, other, True), beyond(end, other, False)) == (pytest.approx(above), pytest.approx(below))


@pytest.mark.parametrize(("value", "taken", "highest", "new"), FRESH)
def test_a_fresh_key_looks_like_the_others(value: Any, taken: set[Any], highest: int, new: Any) -> None:
    assert fresh(value, taken, highest) == new and type(fresh(value, taken, highest)) is type(new)


@pytest.mark.parametrize(("value", "collation", "kind", "equal"), COMPARED)
def test_values_in_the_form_in_which_a_column_compares_them(value: Any, collation: str, kind: str, equal: Any) -> None:
    found = as_compared(value, collation, kind)
    assert (found, type(found)) == (equal, type(equal))


NEIGHBOURS = [  # a value, and all that may stand beside it
    (5, {3, 4, 6, 7}), (0, {0, 1, 2}), (1, {0, 2, 3, 1}), (-1, {-3, -2, 0, 1}),
    (2.5, {1.25, 2.25, 2.75, 5.0, 1.5, 3.5, 2.2, 2.8, 1.2}),
    ("555", {"554", "556"}), ("2:00", {"1:00", "3:00", "2:01"}),
    ("2020-02-29", {"2020-02-28", "2020-03-01", "2020-01-29", "2020-03-29", "2019-02-28", "2021-02-28"}),
    (None, {"own"}), (b"x", {"own"}),
]  # fmt: skip


@pytest.mark.parametrize(("value", "near"), NEIGHBOURS)
def test_a_neighbour_is_near_and_of_the_same_form(value: Any, near: set[Any]) -> None:
    found = {neighbour(value, ["own"], random.Random(seed)) for seed in range(200)}
    assert found <= near | {"2:00"} and len(found) >= min(len(near), 3)


def test_a_sample_of_a_source_comes_from_all_over_its_table(tmp_path: Path) -> None:
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) INSERT INTO t SELECT i, 'x' FROM n"
    for count, step in ((2 * SAMPLE_ROWS, 1), (7 * SAMPLE_ROWS + 20, 7)):
        script = f"CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT CHECK (s IN ('x', 'y'))); {rows.format(count)}"
        (table,) = read_source(make_database(tmp_path / f"{count}.sqlite", script)).tables
        assert [row[0] for row in table.rows] == [step * n for n in range(1, SAMPLE_ROWS + 1)]
        assert dict(table.listed) == {1: ("x", "y")} and table.nullable == (False, True)
    gaps = f"CREATE TABLE t (id INTEGER PRIMARY KEY, s); {rows.format(400)}; DELETE FROM t WHERE id % 2 = 0"
    (table,) = read_source(make_database(tmp_path / "gaps.sqlite", gaps)).tables
    assert [row[0] for row in table.rows] == list(range(1, 2 * SAMPLE_ROWS, 2))  # too few of every second: the first


def test_a_double_quoted_name_of_nothing_is_a_text(tmp_path: Path) -> None:
    source = read_source(make_database(tmp_path / "t.sqlite", "CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT)"))
    for gold, read in (
        ('SELECT s FROM t WHERE s = "nobody"', "SELECT s FROM t WHERE s = 'nobody'"),
        ('SELECT s FROM t WHERE s = "ID"', 'SELECT s FROM t WHERE s = "ID"'),
        ('SELECT s AS a, "zeta" FROM t ORDER BY "A"', "SELECT s AS a, 'zeta' FROM t ORDER BY \"A\""),
        ('SELECT s FROM t JOIN u WHERE s = "no"', 'SELECT s FROM t JOIN u ON TRUE WHERE s = "no"'),
    ):
        assert parse_gold(gold, source).sql("sqlite") == read


def test_the_shape_of_a_schema(tmp_path: Path) -> None:
    import sqlite3

    connection = sqlite3.connect(":memory:")
    connection.executescript("""
        CREATE TABLE z (b INT, a TEXT COLLATE NOCASE NOT NULL, c AS (b + 1), PRIMARY KEY (a, b)) WITHOUT ROWID;
        CREATE TABLE y (k INTEGER PRIMARY KEY, zb INT, za TEXT, u INT UNIQUE, FOREIGN KEY (za, zb) REFERENCES Z,
          FOREIGN KEY (u) REFERENCES y (k), FOREIGN KEY (k) REFERENCES gone);
        CREATE UNIQUE INDEX part ON y (zb) WHERE zb > 0; CREATE UNIQUE INDEX whole ON y (za, u);
        INSERT INTO z VALUES (1, 'x'); INSERT INTO y VALUES (1, 1, 'X', NULL), (2, NULL, 'q', 7);""")
    first, second = read_shapes(connection)
    assert (first.name, first.names, first.types) == ("z", ("b", "a"), ("INT", "TEXT"))
    assert (first.unique, first.nullable, first.has_rowid) == (((1, 0),), (False, False), False)
    assert first.collations == ("", "NOCASE") and second.collations == ()
    assert (second.unique, second.has_rowid) == (((0,), (3,), (2, 3)), True)
    assert [(key.columns, key.parent, key.parent_columns) for key in second.foreign_keys] == [((2, 1), "z", (1, 0))]
