"""What replicas promise of single rows: duplicates, keys, samples, references; and files that are whole or absent."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from people import make_database

from nl2sql.benchmarks.layouts import FolderBenchmark
from nl2sql.eval.replicas import _build, perturb, perturbed_replicas
from nl2sql.eval.replicas.perturb import Perturber
from nl2sql.eval.replicas.table_shapes import close_under_foreign_keys, read_shapes
from nl2sql.eval.scoring import score
from nl2sql.interfaces import Question

TABLES = """
CREATE TABLE log (a TEXT, b TEXT);
CREATE TABLE visits (id INTEGER PRIMARY KEY, a TEXT, b TEXT);
CREATE TABLE parents (id INTEGER PRIMARY KEY);
CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER NOT NULL REFERENCES parents);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200)
INSERT INTO log SELECT 'a' || i, 'b' || i FROM n;
INSERT INTO visits SELECT rowid, a, b FROM log;
INSERT INTO parents SELECT rowid FROM log;
INSERT INTO children SELECT rowid, rowid FROM log;
"""

FROM_1_TO = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) INSERT INTO"
# schema and rows of tables whose every row has to refer to a row of their own, or round a cycle
CLOSED = {
    "a tree": f"""CREATE TABLE e (id INTEGER PRIMARY KEY, boss INTEGER NOT NULL REFERENCES e, name TEXT);
        {FROM_1_TO.format(100)} e SELECT i, max(1, i / 2), 'n' || i FROM n;""",
    "a chain without row ids": f"""CREATE TABLE e (
          id TEXT PRIMARY KEY, next TEXT NOT NULL UNIQUE REFERENCES e, CHECK (id <> next)) WITHOUT ROWID;
        {FROM_1_TO.format(100)} e SELECT 'e' || i, 'e' || (1 + i % 100) FROM n;""",
    "no NULL by a CHECK": f"""CREATE TABLE e (
          id INTEGER PRIMARY KEY, boss INTEGER REFERENCES e CHECK (boss IS NOT NULL)) STRICT;
        {FROM_1_TO.format(100)} e SELECT i, max(1, i / 2) FROM n;""",
    "a cycle": f"""CREATE TABLE a (id INTEGER PRIMARY KEY, b INTEGER NOT NULL REFERENCES b);
        CREATE TABLE b (id INTEGER PRIMARY KEY, a INTEGER NOT NULL REFERENCES a);
        {FROM_1_TO.format(100)} a SELECT i, 101 - i FROM n; INSERT INTO b SELECT id, b FROM a;""",
    "a cycle of two columns": f"""CREATE TABLE a (x INTEGER, y INTEGER, bx INTEGER NOT NULL, b_y INTEGER NOT NULL,
          PRIMARY KEY (x, y), FOREIGN KEY (bx, b_y) REFERENCES b);
        CREATE TABLE b (x INTEGER, y INTEGER, ax INTEGER NOT NULL, ay INTEGER NOT NULL,
          PRIMARY KEY (x, y), FOREIGN KEY (ax, ay) REFERENCES a);
        {FROM_1_TO.format(100)} a SELECT i % 7, i, i % 7, i FROM n; INSERT INTO b SELECT * FROM a;""",
}
# schema and rows of p and c, whose c.p refers to p.code by the collation of p.code alone
COLLATED = {
    "NOCASE": f"""CREATE TABLE p (code TEXT COLLATE NOCASE PRIMARY KEY);
        CREATE TABLE c (id INTEGER PRIMARY KEY, p TEXT NOT NULL REFERENCES p);
        {FROM_1_TO.format(100)} p SELECT 'Ab' || i FROM n; INSERT INTO c SELECT rowid, 'aB' || rowid FROM p;""",
    "RTRIM": f"""CREATE TABLE p (code TEXT COLLATE RTRIM PRIMARY KEY);
        CREATE TABLE c (id INTEGER PRIMARY KEY, p TEXT NOT NULL REFERENCES p);
        {FROM_1_TO.format(100)} p SELECT 'a' || i FROM n; INSERT INTO c SELECT rowid, 'a' || rowid || ' ' FROM p;""",
    "two columns": f"""CREATE TABLE p (code TEXT COLLATE NOCASE, n INTEGER, PRIMARY KEY (code, n));
        CREATE TABLE c (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, p TEXT NOT NULL,
          FOREIGN KEY (p, n) REFERENCES p);
        {FROM_1_TO.format(100)} p SELECT 'A' || (i % 9), i FROM n; INSERT INTO c SELECT n, n, lower(code) FROM p;""",
}


@pytest.fixture
def original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    return make_database(tmp_path / "original.sqlite", TABLES)


@contextlib.contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        yield connection


def counted(file: Path, sql: str) -> int:
    with opened(file) as connection:
        return len(connection.execute(sql).fetchall())


@pytest.mark.parametrize("table", ["log", "visits"])
def test_some_rows_are_there_twice_under_keys_of_their_own(original: Path, table: str) -> None:
    for replica in perturbed_replicas(original, 3):
        with opened(replica) as connection:
            rows = connection.execute(f"SELECT a, b FROM {table} WHERE a IS NOT NULL AND b IS NOT NULL").fetchall()
        assert max(Counter(rows).values()) > 1, replica


def test_a_sample_holds_rows_whose_parents_are_in_it(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturb, "max_rows", lambda tables: 40)
    rows = Perturber(original, seed="0").rows
    known = {parent for (parent,) in rows["parents"]}
    assert len(known) == 40 == len(rows["children"])
    assert all(parent in known for _, parent in rows["children"])


@pytest.mark.parametrize(
    "made", ["id INTEGER PRIMARY KEY, v) AS 2 * i + 1", "id INTEGER PRIMARY KEY, v) AS 10 * i + 7"]
)
@pytest.mark.parametrize("seed", ["0", "1"])
def test_row_ids_that_leave_out_a_remainder_are_sampled_from_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, seed: str
) -> None:
    monkeypatch.setattr(perturb, "max_rows", lambda tables: 40)
    columns, ids = made.split(" AS ")
    script = f"CREATE TABLE t ({columns}; {FROM_1_TO.format(300)} t SELECT {ids}, i FROM n"
    rows = Perturber(make_database(tmp_path / "gaps.sqlite", script), seed=seed).rows["t"]
    assert len(rows) == 40
    assert max(number for _, number in rows) > 40 * perturb.READ_FACTOR  # not only the first ones that are read


def test_a_table_whose_row_ids_are_hidden_gives_its_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturb, "max_rows", lambda tables: 40)
    script = f"CREATE TABLE t (rowid TEXT, v); {FROM_1_TO.format(300)} t SELECT NULL, i FROM n"
    assert len(Perturber(make_database(tmp_path / "hidden.sqlite", script), seed="0").rows["t"]) == 40


def test_a_replica_of_a_big_table_with_odd_row_ids_is_as_big_as_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(perturb, "TABLE_ROWS", 600)
    script = f"CREATE TABLE t (id INTEGER PRIMARY KEY, v); {FROM_1_TO.format(6000)} t SELECT 2 * i + 1, i FROM n"
    for replica in perturbed_replicas(make_database(tmp_path / "odd.sqlite", script), 2):
        assert 500 < counted(replica, "SELECT * FROM t") <= 660


@pytest.mark.parametrize("kind", CLOSED)
def test_rows_that_have_to_refer_to_each_other_stay(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    path = make_database(tmp_path / "closed.sqlite", CLOSED[kind])
    for replica in perturbed_replicas(path, 4):
        assert counted(replica, "PRAGMA foreign_key_check") == 0
        for table in ("a", "b") if "cycle" in kind else ("e",):
            assert 80 <= counted(replica, f"SELECT * FROM {table}") <= 115, replica


def closed(schema: str, rows: str) -> int:
    """How many rows of ``e`` are left once references are closed that all dangle."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema)
        shapes = {shape.name: shape for shape in read_shapes(connection)}  # keys hold where there are no rows
        connection.executescript(rows)
        close_under_foreign_keys(connection, shapes, "0")
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        return len(connection.execute("SELECT * FROM e").fetchall())


def test_a_parent_that_a_constraint_refuses_is_not_the_last_one_tried() -> None:
    schema = "CREATE TABLE e (id INTEGER PRIMARY KEY, boss INT NOT NULL REFERENCES e CHECK (boss < 20 OR boss = 999))"
    assert closed(schema, f"{FROM_1_TO.format(100)} e SELECT i, 999 FROM n") > 60


def test_references_that_cannot_both_hold_take_their_rows_away() -> None:
    schema = """CREATE TABLE q (id INTEGER PRIMARY KEY);
        CREATE TABLE e (id INTEGER PRIMARY KEY, boss INT NOT NULL REFERENCES e REFERENCES q);"""
    rows = f"{FROM_1_TO.format(20)} e SELECT i, 999 FROM n; INSERT INTO q SELECT id + 100 FROM e"
    assert closed(schema, rows) == 0


@pytest.mark.parametrize("kind", COLLATED)
def test_references_hold_by_the_collation_of_the_parent(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    path = make_database(tmp_path / "collated.sqlite", COLLATED[kind])
    assert counted(path, "PRAGMA foreign_key_check") == 0
    for replica in perturbed_replicas(path, 4):
        assert counted(replica, "PRAGMA foreign_key_check") == 0
        rows, other_spelling = (
            counted(replica, f"SELECT * FROM c {where}")
            for where in ("", "WHERE NOT EXISTS (SELECT 1 FROM p WHERE c.p = p.code COLLATE BINARY)")
        )
        assert rows / 2 < other_spelling < rows  # a reference that holds keeps its spelling


def test_a_sample_knows_parents_by_their_collation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturb, "max_rows", lambda tables: 40)
    rows = Perturber(make_database(tmp_path / "collated.sqlite", COLLATED["NOCASE"]), seed="0").rows
    assert {code.lower() for (code,) in rows["p"]} == {code.lower() for _, code in rows["c"]}


def test_a_reference_that_ignores_case_by_the_child_alone_holds_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    script = f"""CREATE TABLE p (code TEXT PRIMARY KEY);
        CREATE TABLE c (id INT, p TEXT COLLATE NOCASE NOT NULL REFERENCES p);
        {FROM_1_TO.format(100)} p SELECT 'A' || i FROM n; INSERT INTO c SELECT rowid, lower(code) FROM p;"""
    for replica in perturbed_replicas(make_database(tmp_path / "child.sqlite", script), 3):
        assert counted(replica, "SELECT * FROM c") > 80
        assert counted(replica, "SELECT * FROM c WHERE p NOT IN (SELECT code FROM p)") == 0


def test_a_replica_whose_writing_fails_is_not_there(tmp_path: Path) -> None:
    whole = tmp_path / "000.sqlite"

    def half(target: str) -> None:
        Path(target).write_bytes(b"half of it")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        _build(whole, half)
    assert list(tmp_path.iterdir()) == []


SMALL = """CREATE TABLE t (id INTEGER PRIMARY KEY, age INT, price REAL, name TEXT, at TEXT, day TEXT, low INT);
    INSERT INTO t VALUES (1, 30, 2.5, 'Ada', '12:30', '5/31/2019', 0), (2, 41, 7.25, 'Ben', '09:05', '12/1/2020', 3),
      (3, 25, 2.5, 'Cai', '23:59', '1/2/2021', 0), (4, 41, 1.0, 'Ben', '00:15', '2/28/2019', 7);"""


@pytest.mark.parametrize("aggregate", ["max", "min"])
@pytest.mark.parametrize("column", ["age", "price", "name", "at", "day", "low"])
def test_no_end_of_a_column_is_the_same_in_all_replicas(
    column: str, aggregate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    small = make_database(tmp_path / "small.sqlite", SMALL)
    ends = [values(file, f"SELECT {aggregate}({column}) FROM t") for file in (small, *perturbed_replicas(small, 10))]
    assert any(end != ends[0] for end in ends)


def test_an_end_that_many_cells_hold_goes_where_nothing_is_beyond_it(original: Path) -> None:
    with opened(original) as connection:
        connection.executescript("CREATE TABLE n (x INT); INSERT INTO n SELECT rowid % 3 FROM parents")
    lows = [values(file, "SELECT min(x) FROM n")[0] for file in perturbed_replicas(original, 10)]
    assert set(lows) == {0, 1}


def test_dates_and_times_are_written_as_in_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    small = make_database(tmp_path / "small.sqlite", SMALL)
    for column, form in (("at", "%H:%M"), ("day", "%m/%d/%Y")):
        held = [v for file in perturbed_replicas(small, 20) for v in values(file, f"SELECT {column} FROM t") if v]
        assert set(held) - set(values(small, f"SELECT {column} FROM t")), "none moved"
        for value in held:
            time.strptime(value, form)


@pytest.mark.parametrize(("child", "parent"), [("TEXT", "INTEGER"), ("INTEGER", "TEXT"), ("BLOB", "REAL")])
def test_a_reference_between_types_that_compare_equal_loses_no_rows(
    child: str, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    script = f"""CREATE TABLE p (id {parent} PRIMARY KEY); CREATE TABLE c (p {child} PRIMARY KEY REFERENCES p, n INT);
        {FROM_1_TO.format(60)} p SELECT i FROM n; INSERT INTO c SELECT id, id FROM p;"""
    if child == "BLOB":
        script = script.replace("SELECT id, id", "SELECT CAST(CAST(id AS INTEGER) AS TEXT), id")
    for replica in perturbed_replicas(make_database(tmp_path / "typed.sqlite", script), 5):
        assert counted(replica, "SELECT 1 FROM c") >= 43  # 54 kept, less those whose parent went; some are added
        assert counted(replica, "PRAGMA foreign_key_check") == 0


def test_shares_are_those_that_the_page_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    plain = ", ".join(f"x{n} INT" for n in range(40))
    script = f"""CREATE TABLE p (id INTEGER PRIMARY KEY); {FROM_1_TO.format(500)} p SELECT i FROM n;
        CREATE TABLE free (id INTEGER PRIMARY KEY, p INTEGER REFERENCES p, was INTEGER REFERENCES p);
        INSERT INTO free SELECT id, id, id FROM p;
        CREATE TABLE held (id INTEGER PRIMARY KEY, p INTEGER NOT NULL REFERENCES p, was INTEGER REFERENCES p);
        INSERT INTO held SELECT id, id, id FROM p;
        CREATE TABLE wide (id INTEGER PRIMARY KEY, {plain});
        {FROM_1_TO.format(200)} wide SELECT i, {", ".join(["i"] * 40)} FROM n;"""
    monkeypatch.setattr(perturb._Table, "_duplicates", lambda *_: [])
    original = make_database(tmp_path / "shares.sqlite", script)
    source = Perturber(original, seed="0")
    shuffled = nulls = moved = held = rows = differing = 0
    for number in range(6):
        source.write(tmp_path / f"{number}.sqlite", number)
        file = tmp_path / f"{number}.sqlite"
        rows += counted(file, "SELECT 1 FROM free")
        nulls += counted(file, "SELECT 1 FROM free WHERE p IS NULL")
        held += counted(file, "SELECT 1 FROM held WHERE p <> was")
        moved += counted(file, "SELECT 1 FROM free WHERE p <> was")
        for n in range(40):
            together = counted(file, f"SELECT 1 FROM wide WHERE abs(x{n} - x{(n + 1) % 40}) < 3")
            shuffled += together < counted(file, "SELECT 1 FROM wide") / 4
            differing += counted(file, f"SELECT x{n} FROM wide GROUP BY 1 HAVING count(x{n}) > 1")
    assert 0.03 < nulls / rows < 0.08
    assert 0.3 < moved / rows < 0.55 and 0.3 < held / rows < 0.55  # of both columns 20%, and whose parent has gone
    assert 0.3 < shuffled / 240 < 0.6  # one of two neighbours, of a quarter: 44%
    assert differing == 0  # numbers that differ stay different


def test_a_replica_on_which_ties_decide_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    script = f"""CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, size TEXT);
        {FROM_1_TO.format(12)} t SELECT i, 'n' || i, 'size ' || char(64 + i) FROM n;"""
    tied = make_database(tmp_path / "tied.sqlite", script)
    gold = "SELECT name FROM t ORDER BY size LIMIT 6"
    question = Question("Which?", id="1", db_id="t", gold=(gold,))
    benchmark = FolderBenchmark("toy", [question], {}, {"t": tied}, "here")
    (item,) = score(benchmark, [question], {"1": gold.replace("size", "size, id DESC")}, replicas=20).items
    assert item.ex and item.ts and item.ts_replicas is not None and 0 < item.ts_replicas < 20


def values(file: Path, sql: str) -> list[object]:
    with opened(file) as connection:
        return [row[0] for row in connection.execute(sql)]
