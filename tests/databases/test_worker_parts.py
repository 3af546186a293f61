"""The parts of the worker and what it reports, in this process: tables of requests and what has to come back."""

from __future__ import annotations

import json
import mmap
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nl2sql.databases.engines.adapters import Refused, one_query
from nl2sql.databases.sqlite import disk, sandbox, worker
from nl2sql.databases.sqlite.process import DECODER, check_bounds, reported, run_result, sqlite_error_kind
from nl2sql.databases.sqlite.sandbox import ENCODER, Rejected, Sandbox, bounded_text, single_statement
from nl2sql.databases.sqlite.worker import OpenDatabases, answer_statement, small_file
from nl2sql.databases.sqlite.worker_batch import ORDERED, ROWS, ROWS_IF_WRONG, Batch, Result, verdict_by_equality
from nl2sql.errors import UsageError
from nl2sql.machine import MAX_TIMEOUT_S

NEVER = float("inf")
T = """CREATE TABLE t (a INTEGER, b INTEGER, f REAL, s TEXT);
    INSERT INTO t VALUES (1, 2, 0.5, 'x'), (2, 1, 1.0, 'y'), (3, 3, NULL, 'x')"""


def made(path: Path, script: str = T, age_s: float = 60.0) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def uri(path: Path) -> str:
    return f"{path.as_uri()}?mode=ro"


@pytest.fixture
def databases() -> Iterator[OpenDatabases]:
    opened = OpenDatabases()
    yield opened
    opened.clear()
    assert opened.open == {}


# ------------------------------------------------------------------------------------------------- batches of pairs

A, B, AS, SA = (f"SELECT {what} FROM t" for what in ("a", "b", "a, s", "s, a"))
NONE = f"{A} LIMIT 0"
F, WRONG, MANY = "SELECT f FROM t", "SELECT lost FROM t", "SELECT t.a FROM t, t u, t v"
PAIRS = [  # gold, prediction, flags, mode; the verdict, and which rows (gold's, prediction's) the parent is sent
    (A, A, 0, "bag", 1, ""),
    (A, "SELECT a + 0 FROM t", 0, "equal", 1, ""),
    (A, B, 0, "bag", 1, ""),  # the same multiset
    (A, B, 0, "set", 1, ""),
    (A, B, 0, "equal", None, "gp"),
    (A, B, ORDERED, "bag", None, "gp"),
    (A, B, ORDERED, "set", None, "gp"),
    (A, B, ROWS_IF_WRONG, "bag", 1, ""),
    (A, A, ROWS_IF_WRONG | ORDERED, "bag", 1, ""),
    (A, B, ROWS, "bag", None, "gp"),
    (A, A, ROWS, "bag", None, "g"),
    (AS, SA, 0, "bag", None, "gp"),  # the multisets of the columns agree
    (A, "SELECT a + 1 FROM t", 0, "bag", 0, ""),
    (A, "SELECT a + 1 FROM t", ROWS_IF_WRONG, "bag", 0, "gp"),
    (A, "SELECT a + 1 FROM t", 0, "set", None, "gp"),
    (A, AS, 0, "bag", 0, ""),
    (A, AS, 0, "set", None, "gp"),
    (A, NONE, 0, "bag", 0, ""),
    (A, "SELECT a + 0.5 FROM t", 0, "bag", None, "gp"),  # fractions: equality does not say
    ("SELECT a * 1.0 FROM t", B, 0, "bag", 1, ""),
    (F, "SELECT f + 1 FROM t", 0, "bag", None, "gp"),
    (A, WRONG, 0, "bag", 0, ""),
    (A, WRONG, ROWS_IF_WRONG, "bag", 0, ""),
    (WRONG, A, 0, "bag", 2, ""),
    (WRONG, WRONG, 0, "bag", 2, ""),
    (A, MANY, 0, "bag", 0, ""),  # more rows than the bound
    (MANY, A, 0, "bag", 2, ""),
    (MANY, MANY, 0, "bag", 2, ""),
    (A, " ", 0, "bag", None, "g"),  # blank
    ("", A, ROWS, "bag", 1, "p"),  # no gold, no prediction: executed alone
    (A, "", ROWS, "bag", 1, "g"),
    (A, "", 0, "bag", 1, ""),
    (A, "", ORDERED, "bag", 1, ""),  # whose rows nobody asked for
    (WRONG, "", ROWS, "bag", 1, ""),
]  # fmt: skip


def work(files: list[Path], pairs: list[list[int]], sql: list[str], **known: Any) -> tuple[list[Any], list[Any]]:
    """The messages of a batch, and the statements that were executed: (file, sql)."""
    boxes = {str(file): Sandbox(uri(file), "1") for file in files}
    said: list[Any] = []
    marks: list[tuple[int, int]] = []

    def on_file(name: str, version: str, count: int) -> Any:
        assert version == "v"

        def fetch(text: str, now: float) -> tuple[Any, ...]:
            try:
                return boxes[name].rows(single_statement(text), NEVER, 20)
            except worker.FAILURES as error:
                return worker.error_parts(error)

        return fetch

    request = {"files": [[str(file), "v"] for file in files], "sql": sql, "pairs": pairs, "mode": "bag", "blank": True,
               "failed": [], "dead": [], "start": 0, "report": 0} | known  # fmt: skip
    Batch(
        request, on_file, lambda *at: marks.append(at), lambda text: said.append(DECODER.decode(text)), ENCODER.encode
    ).work()
    assert marks[1::2] == [(-1, -1)] * (len(marks) // 2)
    for box in boxes.values():
        box.close()
    return said, [(file, sql[index]) for file, index in marks[::2]]


def news(said: list[Any]) -> tuple[dict[tuple[int, int], Any], dict[tuple[int, int], Any], dict[tuple[int, int], Any]]:
    """(file, pair) -> verdict, (file, statement) -> rows and -> outcome without its seconds."""
    verdicts: dict[tuple[int, int], Any] = {}
    rows: dict[tuple[int, int], Any] = {}
    outcomes: dict[tuple[int, int], Any] = {}
    for kind, *parts in said:
        for file, _, new in parts if kind == "parts" else ():
            verdicts |= {(file, pair): 1 for pair in new.get("right", ())}
            verdicts |= {(file, int(pair)): verdict for pair, verdict in new.get("verdicts", {}).items()}
            rows |= {(file, int(index)): held for index, held in new.get("rows", {}).items()}
            outcomes |= {(file, int(index)): told[1:] for index, told in new.get("outcomes", {}).items()}
    return verdicts, rows, outcomes


@pytest.mark.parametrize(("gold", "predicted", "flags", "mode", "verdict", "sent"), PAIRS)
def test_a_pair_has_the_verdict_that_equality_gives_it(
    gold: str, predicted: str, flags: int, mode: str, verdict: int | None, sent: str, tmp_path: Path
) -> None:
    sql = list(dict.fromkeys(text for text in (gold, predicted) if text))
    pair = [sql.index(text) if text else -1 for text in (gold, predicted)]
    said, executed = work([made(tmp_path / "t.sqlite")], [[*pair, flags]], sql, mode=mode)
    verdicts, rows, _ = news(said)
    assert verdicts == {(0, 0): verdict}
    assert set(rows) == {(0, pair["gp".index(side)]) for side in sent}
    assert said[-1] == ["end", len(executed)] and len(executed) <= len(sql)
    if len(sql) == 2 and -1 not in pair:  # whichever stands first
        turned, _ = work([tmp_path / "t.sqlite"], [[1, 0, flags]], sql[::-1], mode=mode)
        assert news(turned)[0] == verdicts
    if "g" in sent and gold == A:
        assert rows[0, pair[0]] == [["a"], [[1], [2], [3]], False]


def test_results_of_hundreds_of_rows_are_equal_as_bags() -> None:
    gold, turned = (Result(["a"], [(n,) for n in order], False, 0.0) for order in (range(300), range(299, -1, -1)))
    assert [verdict_by_equality(gold, turned, ordered, "bag") for ordered in (False, True)] == [1, None]
    assert verdict_by_equality(gold, Result(["a"], gold.rows[1:], False, 0.0), False, "bag") == 0


def test_a_batch_runs_each_statement_once_a_file_and_leaves_out_what_is_decided(tmp_path: Path) -> None:
    files = [made(tmp_path / "1.sqlite"), made(tmp_path / "2.sqlite", f"{T}; DELETE FROM t WHERE a = 3")]
    sql = [A, B, "SELECT a + 1 FROM t", WRONG, "SELECT count(*) FROM t"]
    pairs = [[0, 1, 0], [0, 2, 0], [4, 4, 0], [0, 3, 0], [4, 0, 0]]
    said, executed = work(files, pairs, sql, dead=[4])
    assert executed == [(0, A), (0, B), (0, sql[2]), (0, sql[4]), (0, WRONG), (1, A), (1, B), (1, sql[4])]
    verdicts, rows, outcomes = news(said)
    assert verdicts == {(0, 0): 1, (0, 1): 0, (0, 2): 1, (0, 3): 0, (1, 0): 1, (1, 2): 1} and rows == {}
    assert outcomes == {
        (0, 0): [1, 3, False], (0, 1): [1, 3, False], (0, 2): [1, 3, False], (0, 4): [1, 1, False],
        (0, 3): ["OperationalError", "no such column: lost"],
    }  # fmt: skip
    assert [part[:2] for message in said[:-1] for part in message[1:]][-2:] == [[0, 5], [1, 5]]
    late, executed = work(files, pairs, sql, start=2, failed=[[0, 3, "timeout", "slow"], [1, 4, "x", "y"]])
    verdicts, _, outcomes = news(late)
    assert verdicts == {(0, 2): 1, (0, 3): 0, (0, 4): 0, (1, 0): 1, (1, 1): 0, (1, 2): 2} | {}
    assert outcomes[0, 3] == ["timeout", "slow"] and outcomes[1, 4] == ["x", "y"] and (0, WRONG) not in executed


def test_lengthy_comparisons_are_announced_and_long_news_are_sent_on_the_way(tmp_path: Path) -> None:
    file = made(tmp_path / "t.sqlite")
    many = f"SELECT {', '.join(['t.a', 'hex(zeroblob(450))'] * 600)} FROM t, t u"
    said, _ = work([file], [[0, 1, ROWS], [2, 2, 0]], [many, f"{many} ORDER BY 1", A])
    kinds = [message[0] for message in said]
    assert kinds[:2] == ["busy", "parts"] and kinds[-1] == "end" and kinds.count("parts") >= 2
    assert said[1][1][1] == 1, "sent before the second pair"
    short, _ = work([file], [[0, 1, ROWS]], [A, B])
    assert "busy" not in [message[0] for message in short]


# --------------------------------------------------------------------------------------- files in memory, and kept open


def test_a_small_settled_file_of_one_s_own_is_read_into_memory(tmp_path: Path) -> None:
    file = made(tmp_path / "t o.sqlite")
    size = file.stat().st_size
    assert small_file(uri(file), size) == file.read_bytes()
    assert small_file(uri(file), size - 1) is None
    assert small_file(file.as_uri(), size) is None and small_file(f"{file}?mode=ro", size) is None
    for suffix in ("-journal", "-wal"):
        beside = disk.sidecar(file, suffix)
        beside.touch()
        assert small_file(uri(file), size) is None
        beside.unlink()
    assert small_file(uri(made(tmp_path / "wal.sqlite", f"PRAGMA journal_mode=WAL; {T}")), 2**20) is None
    assert small_file(uri(made(tmp_path / "new.sqlite", age_s=0.0)), 2**20) is None
    assert small_file(uri(made(tmp_path / "old.sqlite", age_s=2.5)), 2**20) is not None
    assert small_file(uri(tmp_path / "gone.sqlite"), 2**20) is None
    (tmp_path / "other").write_bytes(b"x" * 4096)
    os.utime(tmp_path / "other", (1, 1))
    assert small_file(uri(tmp_path / "other"), 2**20) is None


def test_a_file_goes_into_memory_when_several_statements_ask_for_it(tmp_path: Path, databases: OpenDatabases) -> None:
    file, other = made(tmp_path / "t.sqlite"), made(tmp_path / "u.sqlite")
    first = databases.get(uri(file), "1")
    assert not first.in_memory
    second = databases.get(uri(file), "1")
    assert second.in_memory and databases.get(uri(file), "1") is second
    assert databases.get(uri(other), "1", 2).in_memory, "two are to come"
    assert second.rows(A, NEVER, 9)[1] == [(1,), (2,), (3,)]
    anew = databases.get(uri(file), "2")
    assert anew is not second and not anew.in_memory and anew.version == "2"
    with pytest.raises(sqlite3.ProgrammingError):
        second.rows(A, NEVER, 9)


def test_so_many_files_stay_open_and_in_memory(tmp_path: Path, databases: OpenDatabases) -> None:
    files = [made(tmp_path / f"{n}.sqlite") for n in range(worker.MAX_CONNECTIONS + 2)]
    for file in files:
        databases.get(uri(file), "1")
    assert list(databases.open) == [uri(file) for file in files[2:]]
    for file in files[:6]:
        databases.get(uri(file), "1", 5)
    inside = [name for name, box in databases.open.items() if box.in_memory]
    assert inside == [uri(file) for file in files[6 - worker.MEMORY_CONNECTIONS : 6]]


ONLY = "only SELECT statements on the database's own tables may run"
ANSWERS = [  # mode, statement, rows at most; what is answered
    ("run", A, 9, ["ok", ["a"], [[1], [2], [3]], False]),
    ("run", f"-- all\n{A};", 3, ["ok", ["a"], [[1], [2], [3]], False]),
    ("run", A, 2, ["ok", ["a"], [[1], [2]], True]),
    ("run", A, 0, ["ok", ["a"], [], True]),
    ("run", NONE, 0, ["ok", ["a"], [], False]),
    ("run", "SELECT x'ff00' AS b, NULL, 'é😀' AS s", 9, ["ok", ["b", "NULL", "s"], [[b"\xff\0", None, "é😀"]], False]),
    ("run", "SELECT count(*) FROM json_each('[1, 2]')", 9, ["ok", ["count(*)"], [[2]], False]),
    ("explain", A, 9, ["ok", ["id", "parent", "notused", "detail"], [[2, 0, 0, "SCAN t"]], False]),
    ("run", "", 9, ["error", "empty", "no statement: the SQL is blank or only a comment"]),
    ("run", "SELECT 1; SELECT 2", 9, ["error", "multi_statement", "more than one statement; send one SELECT"]),
    ("run", "PRAGMA x", 9, ["error", "denied", "PRAGMA is not a SELECT; only SELECT statements may run"]),
    ("run", "SELECT x FROM t", 9, ["error", "OperationalError", "no such column: x"]),
    ("run", "SELECT '\0'", 9, None),
    ("run", "DELETE FROM t", 9, ["error", "denied", f"not allowed: DELETE t; {ONLY}"]),
]  # fmt: skip


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize(("mode", "sql", "most", "answer"), ANSWERS)
def test_a_statement_is_answered(
    mode: str, sql: str, most: int, answer: list[Any] | None, memory: bool, tmp_path: Path, databases: OpenDatabases
) -> None:
    file = made(tmp_path / "t.sqlite")
    if memory:
        assert databases.get(uri(file), "1", 5).in_memory
    found = DECODER.decode(answer_statement([mode, uri(file), "1", sql, 5.0, most], databases).decode())
    if answer is not None and mode == "explain":
        found[2] = [[*found[2][0][:1], 0, 0, found[2][0][3]]]
    assert found == answer if answer is not None else found[0] == "error"


def test_a_statement_past_its_time_is_interrupted(tmp_path: Path, databases: OpenDatabases) -> None:
    long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    found = json.loads(answer_statement(["run", uri(made(tmp_path / "t.sqlite")), "1", long, 0.05, 9], databases))
    assert found == ["error", "OperationalError", "interrupted"]


def test_a_database_in_memory_is_what_its_file_holds(tmp_path: Path) -> None:
    for script, loaded, sql in (
        (T, True, "SELECT count(*) FROM t"),
        ("CREATE VIEW v AS SELECT value FROM json_each('[7]')", True, "SELECT value FROM v"),
        ("CREATE VIRTUAL TABLE f USING fts5(x)", False, ""),
    ):
        box = Sandbox(":memory:", "")
        file = made(tmp_path / f"{len(script)}.sqlite", script)
        assert box.load(file.read_bytes(), "3") is loaded and box.version == ("3" if loaded else "")
        assert not loaded or len(box.rows(sql, NEVER, 9)[1]) == 1
        box.close()
    box = Sandbox(":memory:", "")
    assert box.load(b"no database" * 100, "3") is False
    box.close()


def test_text_that_is_no_utf_8_is_written_out(tmp_path: Path) -> None:
    file = made(tmp_path / "t.sqlite", "CREATE TABLE t (s TEXT); INSERT INTO t VALUES (CAST(x'66fc' AS TEXT)), ('ü')")
    box = Sandbox(uri(file), "1")
    assert box.rows("SELECT s FROM t", NEVER, 9) == (["s"], [("f\\xfc",), ("ü",)], False)
    box.close()


@pytest.mark.parametrize(("rows", "held"), [([(1, "a")] * 10, 10), ([(n,) for n in range(7)], 2**30), ([], 0)])
def test_pieces_of_rows_are_one_text(rows: list[tuple[Any, ...]], held: int) -> None:
    assert json.loads(f"[{','.join(bounded_text(rows, held))}]") == [list(row) for row in rows]


def test_rows_are_looked_at_in_pieces_of_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CHUNK_BYTES", 100)
    rows = [(n,) for n in range(10)]
    assert list(bounded_text(rows, 300)) == ["[0],[1],[2]", "[3],[4],[5]", "[6],[7],[8]", "[9]"]
    assert len(list(bounded_text(rows, 100))) == 1 and len(list(bounded_text(rows, 5000))) == 10


def test_a_batch_is_answered_as_it_goes(
    tmp_path: Path, databases: OpenDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(worker, "send", lambda payload: said.append(DECODER.decode(payload.decode())))
    place = mmap.mmap(-1, worker.PLACE.size)
    request = {"files": [[uri(made(tmp_path / "t.sqlite")), "1"]], "sql": [A, " ; ", WRONG], "mode": "equal",
               "pairs": [[-1, 0, ROWS], [-1, 1, 0], [-1, 2, 0]], "blank": False, "failed": [], "dead": [], "start": 0,
               "report": 0, "timeout": 5.0, "max_rows": 2}  # fmt: skip
    worker.answer_batch(request, databases, place)
    verdicts, rows, outcomes = news(said)
    assert verdicts == dict.fromkeys([(0, 0), (0, 1), (0, 2)], 1) and rows == {(0, 0): [["a"], [[1], [2]], True]}
    assert outcomes[0, 0] == [1, 2, True] and outcomes[0, 1][0] == "empty" and outcomes[0, 2][0] == "OperationalError"
    assert said[-1] == ["end", 3] and worker.PLACE.unpack_from(place) == (-1, -1)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


@pytest.mark.parametrize(("letter", "bytes_"), [("a", 1), ("€", 2), ("😀", 4)])
def test_a_result_is_too_large_by_the_width_of_its_characters(
    letter: str, bytes_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(letter * 996,)]  # with quotes and brackets a thousand characters
    monkeypatch.setattr(sandbox, "RESULT_BYTES", 1000 * bytes_)
    assert len(next(iter(bounded_text(rows, 9)))) == 1000
    monkeypatch.setattr(sandbox, "RESULT_BYTES", 1000 * bytes_ - 1)
    with pytest.raises(Rejected, match="the result is larger than 0 MB"):
        list(bounded_text(rows, 9))


# ---------------------------------------------------------------------------------------------------- what is reported

MESSAGES = {
    "no such table: near": "unknown_table",
    "no such view: v": "unknown_table",
    "no such column: t.x: syntax error": "unknown_column",
    "cannot join using column a - column not present in both tables": "unknown_column",
    "ambiguous column name: a": "ambiguous_column",
    'near "FRM": syntax error': "syntax",
    "incomplete input": "syntax",
    'unrecognized token: "#"': "syntax",
    "ORDER BY clause should come after UNION not before": "syntax",
    "the query contains a null character": "syntax",
    "Incorrect number of bindings supplied": "syntax",
    "no such function: foo": "other",
    "misuse of aggregate: sum()": "other",
    "interrupted": "timeout",
    "interrupted by it": "other",
    "not authorized": "denied",
    "access to t.a is prohibited": "denied",
    "attempt to write a readonly database": "denied",
    "You can only execute one statement at a time.": "multi_statement",
    "string or blob too big": "too_large",
    "parser stack overflow": "too_large",
    "too many columns in result set": "too_large",
    "at most 64 tables in a join": "too_large",
    "out of memory": "memory",
    "disk I/O error": "other",
}


@pytest.mark.parametrize(("message", "kind"), MESSAGES.items())
def test_a_message_of_sqlite_has_its_kind(message: str, kind: str) -> None:
    assert sqlite_error_kind(message) == kind == reported("OperationalError", message, 5.0, 0.1).error_kind


def test_a_reply_becomes_a_result() -> None:
    found = run_result(["ok", ["a", "b"], [[1, None], [2, "x"]], True], 5.0, 0.25)
    assert (found.success, found.columns, found.rows) == (True, ("a", "b"), ((1, None), (2, "x")))
    assert (found.truncated, found.seconds) == (True, 0.25)
    late = run_result(["error", "OperationalError", "interrupted"], 2.5, 2.6)
    assert (late.success, late.error, late.error_kind, late.seconds) == (
        False,
        "no result within 2.5 s",
        "timeout",
        2.6,
    )
    lines = reported("denied", "not\nso", 5.0, 0.0)
    assert (lines.error, lines.error_kind) == ("not so", "denied")


@pytest.mark.parametrize(
    ("timeout_s", "rows", "fine"),
    [(0.0, 5, False), (-1.0, 5, False), (1e-9, 0, True), (MAX_TIMEOUT_S, 1, True), (MAX_TIMEOUT_S + 1, 1, False),
     (1.0, -1, False), (float("nan"), 1, False), (float("inf"), 1, False)],
)  # fmt: skip
def test_bounds_that_no_statement_can_be_held_to_are_refused(timeout_s: float, rows: int, fine: bool) -> None:
    if fine:
        check_bounds(timeout_s, rows)
    else:
        with pytest.raises(UsageError, match=f"got {timeout_s} and {rows}"):
            check_bounds(timeout_s, rows)


QUERIES = [  # dialect, text; the statement, or the kind of the refusal
    ("duckdb", " SELECT 1 ; ;\n", " SELECT 1"),
    ("duckdb", "/* a */ (-- b\n ( VALUES (1)))", "/* a */ (-- b\n ( VALUES (1)))"),
    ("duckdb", "TABLE t", "TABLE t"),
    ("duckdb", "with x as (select 1) select * from x", "with x as (select 1) select * from x"),
    ("duckdb", " -- only", "empty"),
    ("duckdb", "", "empty"),
    ("duckdb", "# x\nSELECT 1", "denied"),
    ("mysql", "# x\nSELECT 1", "# x\nSELECT 1"),
    ("mysql", "/*! DROP TABLE t */", "denied"),
    ("postgres", "DELETE FROM t", "denied"),
    ("postgres", "SELECTED", "denied"),
    ("clickhouse", "SELECT ';' ; ", "SELECT ';'"),
    ("clickhouse", "SELECT 1; SELECT 2", "multi_statement"),
    ("clickhouse", "SELECT 'INTO' OUTFILE", "SELECT 'INTO' OUTFILE"),
    ("clickhouse", "SELECT 1 INTO OUTFILE 'x'", "denied"),
    ("duckdb", "SELECT 1; SELECT 2", "SELECT 1; SELECT 2"),  # the engine refuses that itself
]


@pytest.mark.parametrize(("dialect", "sql", "found"), QUERIES)
def test_a_text_that_is_no_query_is_refused_before_the_engine(dialect: str, sql: str, found: str) -> None:
    try:
        assert one_query(sql, dialect) == found
    except Refused as refused:
        assert refused.kind == found and str(refused)


# ------------------------------------------------------------------------------------------------------------ the disk


def test_a_file_is_copied_with_its_holes_and_measured_by_what_is_stored(tmp_path: Path) -> None:
    sparse, copy = tmp_path / "sparse", tmp_path / "copy"
    with sparse.open("wb") as file:
        file.write(b"head" * 1000)
        file.seek(8 * 2**20)
        file.write(b"middle")
        file.truncate(16 * 2**20)
    disk.copy_stored(sparse, copy, time.monotonic() + 60)
    assert copy.read_bytes() == sparse.read_bytes()
    assert disk.stored_bytes(copy) < 2**20 and disk.stored_bytes(sparse) < 2**20
    (tmp_path / "plain").write_bytes(b"x" * 5000)
    assert disk.stored_bytes(tmp_path / "plain") == 5000
    with pytest.raises(TimeoutError, match="copying it took too long"):
        disk.copy_stored(sparse, copy, time.monotonic() - 1)
    assert not copy.exists()


def test_the_head_of_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    file = made(tmp_path / "t.sqlite")
    assert disk.read_head(file, 16) == b"SQLite format 3\0"
    with pytest.raises(IsADirectoryError):
        disk.read_head(tmp_path, 16)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        disk.read_head(tmp_path / "pipe", 16)
    disk.sidecar(file, "-wal").symlink_to(file)
    with pytest.raises(OSError, match="its -wal beside it is not a regular file"):
        disk.read_head(file, 16)
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for path in (tmp_path / "round", tmp_path / "gone", tmp_path / "a\0b"):
        with pytest.raises(OSError, match=r"."):
            disk.resolved(path)
    assert disk.resolved(tmp_path / "." / "t.sqlite") == file.resolve()
