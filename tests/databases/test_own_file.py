"""SQLite files, our own and others: how they are made, opened and told apart, and what is said where they are none."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from nl2sql.databases.sqlite import disk, files
from nl2sql.databases.sqlite.batch import PairsResult, _result
from nl2sql.databases.sqlite.disk import OwnFile, write_ahead
from nl2sql.databases.sqlite.files import WalCopies, check_is_file, fingerprint_sqlite, reason, shown_path, unusable
from nl2sql.errors import DatabaseError, UsageError


def other_writer(path: Path) -> sqlite3.Connection:
    """A connection in the midst of a transaction; SQLite refuses another one the change of journal at once."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE notes (text TEXT)")
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_the_change_of_journal_waits_for_a_transaction(tmp_path: Path) -> None:
    with closing(other_writer(tmp_path / "a.db")) as other, closing(sqlite3.connect(tmp_path / "a.db")) as ours:
        release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        release.start()
        write_ahead(ours)
        release.join()
        assert ours.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "WAIT_S", 0.1)
    path = tmp_path / "a.db"
    with (
        closing(other_writer(path)),
        closing(sqlite3.connect(path)) as ours,
        pytest.raises(sqlite3.Error, match="locked"),
    ):
        write_ahead(ours)


MADE = "CREATE TABLE notes (text TEXT);CREATE TABLE tags (tag TEXT)"
MORE = "ALTER TABLE notes ADD COLUMN at TEXT"
FIRST = OwnFile("notebook", "--notes", 1, 0x6E6C3271, MADE, hint=", or none")
SECOND = OwnFile("notebook", "--notes", 2, 0x6E6C3271, f"{MADE};{MORE}", upgrades=(MORE,))


def test_a_file_of_ours_is_made_kept_and_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(FIRST.open(path)) as made:
        made.execute("INSERT INTO notes VALUES ('x')")
        assert made.execute("PRAGMA user_version").fetchone() == (1,)
        assert made.execute("PRAGMA application_id").fetchone() == (0x6E6C3271,)
        assert made.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) == 16 * 2**20 and not made.in_transaction
    with closing(FIRST.open(path)) as again:
        assert again.execute("SELECT * FROM notes").fetchall() == [("x",)]
    with closing(SECOND.open(path)) as newer:
        assert newer.execute("SELECT * FROM notes").fetchall() == [("x", None)]
        assert newer.execute("PRAGMA user_version").fetchone() == (2,)
    with closing(SECOND.open(tmp_path / "b.db")) as other:
        assert other.execute("SELECT * FROM notes").fetchall() == []
    with pytest.raises(DatabaseError, match="has version 2, made by a newer nl2sql; this one knows 1"):
        FIRST.open(path)
    assert FIRST.tables == frozenset({"notes", "tags"})


STRANGE = [  # what is written into a new file of ours, and what is said of it
    (
        "CREATE TRIGGER t AFTER INSERT ON notes BEGIN DELETE FROM tags; END",
        UsageError,
        "its trigger t is not as",
    ),
    ("DROP TABLE tags; CREATE TABLE tags (tag TEXT, x)", UsageError, "its table tags is not as nl2sql makes it"),
    ("DROP TABLE tags", UsageError, r"no notebook of nl2sql \(its tables: notes\); give --notes another file, or none"),
    ("PRAGMA user_version = 0", UsageError, r"no notebook of nl2sql \(its tables: notes, tags\)"),
]


@pytest.mark.parametrize(("script", "kind", "said"), STRANGE)
def test_a_file_that_holds_something_else_is_left_alone(
    script: str, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    FIRST.open(path).close()
    with closing(sqlite3.connect(path)) as stranger:
        stranger.executescript(script)
    before = path.read_bytes()
    with pytest.raises(kind, match=said):
        FIRST.open(path)
    assert path.read_bytes() == before


def test_what_can_be_no_file_of_ours_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone" / "a.db"):
        with pytest.raises(UsageError, match="is not a file that can be made; give --notes FILE in an existing folder"):
            FIRST.open(path)
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with pytest.raises(DatabaseError, match="is damaged"):
        FIRST.open(tmp_path / "torn.db")


def database(path: Path, script: str = "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)") -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_a_path_that_is_no_database_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist; give the path of a SQLite file"):
        check_is_file(tmp_path / "gone.sqlite")
    with pytest.raises(UsageError, match="is a directory; give the path of a SQLite file, or of a folder with CSV"):
        check_is_file(tmp_path)
    check_is_file(database(tmp_path / "t.sqlite"))
    assert str(unusable(Path("x"), sqlite3.DatabaseError("file is not a database"))) == (
        "x is not a SQLite database; expected a file that sqlite3 can open"
    )
    assert str(unusable(Path("x"), PermissionError(13, "Permission denied"))) == (
        "database x cannot be read: Permission denied"
    )
    assert [reason(error) for error in (ValueError("a\nb"), ValueError(), OSError("odd"))] == ["a", "ValueError", "odd"]
    assert (shown_path("plain"), shown_path("a\nb")) == ("plain", r"'a\nb'")


def test_a_fingerprint_is_of_what_a_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    same = [
        "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)",
        "PRAGMA page_size = 512; CREATE TABLE t (a); INSERT INTO t VALUES (2), (1), (3); DELETE FROM t WHERE a = 3",
        "PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1), (2); CREATE INDEX i ON t (a)",
    ]
    others = [
        "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2), (2)",
        "CREATE TABLE t (a); INSERT INTO t VALUES (1), ('2')",
        "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2.0)",
        "CREATE TABLE t (a COLLATE NOCASE); INSERT INTO t VALUES (1), (2)",
        "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2); CREATE VIEW v AS SELECT a FROM t",
        "CREATE TABLE u (a); INSERT INTO u VALUES (1), (2)",
    ]
    hashes = [fingerprint_sqlite(database(tmp_path / f"{n}.sqlite", text)) for n, text in enumerate(same + others)]
    assert len(set(hashes[:3])) == 1 and len(set(hashes)) == 1 + len(others)
    monkeypatch.setattr(files, "FRESH_S", -1.0)  # old enough to be kept
    assert fingerprint_sqlite(tmp_path / "0.sqlite") == hashes[0]
    (kept,) = (tmp_path / "cache").rglob("fingerprints/*")
    kept.write_text("0" * 64)
    assert fingerprint_sqlite(tmp_path / "0.sqlite") == "0" * 64
    kept.write_text("torn")
    assert fingerprint_sqlite(tmp_path / "0.sqlite") == hashes[0]


def test_a_file_is_opened_in_place_or_as_a_copy_without_its_log(tmp_path: Path) -> None:
    copies, plain = WalCopies(), database(tmp_path / "t.sqlite")
    uri, version = copies.readable(plain)
    assert uri == f"{plain.as_uri()}?mode=ro" and copies.readable(plain) == (uri, version)
    database(plain, "INSERT INTO t VALUES (3)")
    assert copies.readable(plain)[1] != version
    logged = database(tmp_path / "w.sqlite", "PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (7)")
    copied, _ = copies.readable(logged)
    assert str(tmp_path) not in copied and copies.readable(logged)[0] == copied
    with closing(sqlite3.connect(copied, uri=True)) as connection:
        assert connection.execute("SELECT a FROM t").fetchall() == [(7,)]
    with closing(sqlite3.connect(logged)) as writer:
        writer.execute("INSERT INTO t VALUES (8)")
        writer.commit()
        served, _ = copies.readable(logged)
        assert served == f"{logged.as_uri()}?mode=ro&readonly_shm=1"
    folder = copies._folder
    copies.close()
    assert folder is not None and not folder.exists()
    (tmp_path / "x.sqlite").write_bytes(b"no database at all, but long enough")
    with pytest.raises(sqlite3.DatabaseError, match="file is not a database"):
        copies.readable(tmp_path / "x.sqlite")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (sqlite3.OperationalError("interrupted"), "reading it took more than 4 s"),
        (sqlite3.OperationalError("disk I/O error"), "disk I/O error"),
        (sqlite3.OperationalError("no such table: t"), "no such table: t"),
    ],
)
def test_what_goes_wrong_while_a_file_is_read_stays_what_it_is(raised: Exception, told: str, tmp_path: Path) -> None:
    file = database(tmp_path / "t.sqlite")
    with pytest.raises(sqlite3.Error, match=told) as error, files.read_only(file) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        raise raised
    assert isinstance(error.value, disk.Unreadable) == (str(raised) == "interrupted")


def test_reading_is_bounded_by_what_a_file_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [disk.rows_deadline(size) for size in (0, 5 * 2**20, 50 * 2**20)] == [4.0, 5.0, 14.0]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript("CREATE TABLE a (x); CREATE VIEW v AS SELECT 1; CREATE INDEX i ON a (x)")
        disk.bound(connection)
        assert connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) == 64 * 2**20
        monkeypatch.setattr(disk, "MAX_TABLES", 1)
        with pytest.raises(disk.Unreadable, match="it has 2 tables and views; at most 1 are read"):
            disk.bound(connection)
        monkeypatch.setattr(disk, "MAX_TABLES", 2)
        monkeypatch.setattr(disk, "MAX_SCHEMA_CHARS", 66)
        disk.bound(connection)
        monkeypatch.setattr(disk, "MAX_SCHEMA_CHARS", 65)
        with pytest.raises(disk.Unreadable, match="its schema has 66 characters; at most 65 are read"):
            disk.bound(connection)


def test_a_verdict_that_never_came_is_none() -> None:
    judged = PairsResult(right={0: {2}}, verdicts={(0, 1): 0, (1, 2): None})
    assert (judged.verdict(0, 2), judged.verdict(0, 1), judged.verdict(1, 2)) == (1, 0, None)
    with pytest.raises(RuntimeError, match="no verdict on pair 3 of file 1"):
        judged.verdict(1, 3)
    shape = _result([0.5, 2, 7, True], 9.0)
    assert (shape.success, shape.columns, shape.rows, shape.truncated, shape.seconds) == (True, ("", ""), (), True, 0.5)
    failed = _result([0.25, "OperationalError", "no such table: t"], 9.0)
    assert (failed.success, failed.error_kind, failed.seconds) == (False, "unknown_table", 0.25)
