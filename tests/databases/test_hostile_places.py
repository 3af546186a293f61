"""Database files that hang whoever opens them: each kind is read or refused, at once or at one deadline.

The kinds are made by hostile_places.py, the doors that open them are in database_doors.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import database_doors
import hostile_places
import pytest

from nl2sql.databases.sqlite import disk, process
from nl2sql.databases.sqlite.database import QueryPool, SqliteDatabase
from nl2sql.databases.sqlite.files import WalCopies, fingerprint_sqlite
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.eval.replicas import perturbed_replicas, shuffled_copies

ROOT = Path(__file__).parents[2]
SLACK = 1.0 if os.environ.get("NL2SQL_STRICT_TIMING") else 10.0


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> hostile_places.Zoo:
    slow = {kind: hostile_places.SCRIPTS.pop(kind) for kind in ("10,000 tables", "50,000 views")}
    try:
        return hostile_places.build(tmp_path_factory.mktemp("zoo") / "places")
    finally:
        hostile_places.SCRIPTS.update(slow)


@pytest.fixture(scope="module")
def pool() -> Iterator[QueryPool]:
    with QueryPool(workers=1) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))


def test_the_kinds_are_many(zoo: hostile_places.Zoo) -> None:
    assert len(zoo.kinds) >= 60


def test_every_quick_kind_is_read_or_refused_in_time(zoo: hostile_places.Zoo, pool: QueryPool) -> None:
    wrong = []
    for kind, (path, sql) in zoo.kinds.items():
        if kind not in hostile_places.SLOW:
            with zoo.meanwhile.get(kind, contextlib.nullcontext)():
                found = database_doors.wrong_at_the_doors(path, sql, pool, database_doors.LIMIT_S * SLACK)
            wrong += [f"{kind}: {what}" for what in found]
    assert wrong == []


def refusal(zoo: hostile_places.Zoo, kind: str) -> str:
    with pytest.raises((DatabaseError, UsageError)) as error:
        SqliteDatabase(zoo.kinds[kind][0])
    return str(error.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
@pytest.mark.parametrize("what", ["a pipe", "a link to a device", "a folder"])
def test_what_stands_beside_a_database_is_a_file_or_it_is_not_opened(
    what: str, suffix: str, zoo: hostile_places.Zoo, pool: QueryPool
) -> None:
    kind = f"{what} as its {suffix}"
    assert refusal(zoo, kind).endswith(f"its {suffix} beside it is not a regular file")
    result = pool.run(zoo.kinds[kind][0], "SELECT 1", timeout_s=30)
    assert (result.error_kind, "regular file" in str(result.error)) == ("other", True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["a terabyte with a WAL, nearly all of it a hole", "a WAL of a terabyte of nothing"])
def test_the_holes_of_a_file_are_not_copied(kind: str, zoo: hostile_places.Zoo) -> None:
    path = zoo.kinds[kind][0]
    assert SqliteDatabase(path).sample("people") == [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}]
    assert fingerprint_sqlite(path) == fingerprint_sqlite(zoo.good)
    copies = WalCopies()
    copies.readable(path)
    assert copies._folder is not None
    assert sum(file.stat().st_blocks * 512 for file in copies._folder.iterdir()) < 2**20
    copies.close()


@pytest.mark.timeout(60)
def test_copying_ends_at_its_deadline(zoo: hostile_places.Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo.fresh("a large WAL database", wal=True)
    with path.open("ab") as file:
        file.write(os.urandom(3 * 2**20))
    monkeypatch.setattr("nl2sql.databases.sqlite.files.rows_deadline", lambda size: 0.0)
    assert "copying it took too long" in refusal(zoo, "a large WAL database")


@pytest.mark.timeout(120)
def test_a_deadline_rests_on_what_is_stored_and_not_on_the_length(
    zoo: hostile_places.Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "OPEN_S", 1.0)
    path = zoo.folder / "long tree.sqlite"
    path.write_bytes(zoo.kinds["a tree whose pages are met again and again"][0].read_bytes())
    os.truncate(path, hostile_places.TERABYTE)
    for read in (fingerprint_sqlite, lambda file: perturbed_replicas(file, 1), lambda file: shuffled_copies(file, [0])):
        with pytest.raises(DatabaseError, match="within 1 s"):
            read(path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["a CHECK that takes for ever", "an index on an expression that takes for ever"])
def test_a_constraint_that_takes_for_ever_does_not_hang_who_makes_replicas(
    kind: str, zoo: hostile_places.Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = zoo.kinds[kind][0]
    assert len(fingerprint_sqlite(path)) == 64
    monkeypatch.setattr(disk, "OPEN_S", 1.0)
    with pytest.raises(DatabaseError, match=r"no replica of .* could be built: it took more than 1 s"):
        perturbed_replicas(path, 1)
    assert perturbed_replicas(zoo.good, 1)  # the process that hung was replaced


def test_warnings_of_the_process_that_writes_replicas_are_logged_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "made.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE t (a); INSERT INTO t VALUES (1); CREATE VIRTUAL TABLE f USING fts5(x);"
            "CREATE VIEW v AS SELECT a FROM nowhere;"
        )
    perturbed_replicas(path, 1)
    shuffled_copies(path, [0])
    lines = [record.getMessage() for record in caplog.records]
    assert "virtual table f is not in the shuffled copy" in lines


def test_a_name_that_does_not_print_is_shown_quoted(zoo: hostile_places.Zoo, pool: QueryPool) -> None:
    path = zoo.kinds["a name that colours the terminal, and noise in it"][0]
    assert r"\x1b[31mred\x07.sqlite' is not a SQLite database" in refusal(
        zoo, "a name that colours the terminal, and noise in it"
    )
    assert r"\x1b[31mred" in str(pool.run(path, "SELECT 1").error)
    assert r"a\x00b.sqlite' does not exist" in refusal(zoo, "a name with a NUL")


@pytest.mark.timeout(60)
def test_a_process_that_others_keep_from_working_is_waited_for(
    zoo: hostile_places.Zoo,
) -> None:
    child = process.FramedChild("nl2sql.databases.sqlite.disk")
    busy = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    crowd = [subprocess.Popen(busy, stdout=subprocess.PIPE) for _ in range(5)]
    try:
        child.ask(process.READY, 60)
        for pid in (child.process.pid, *(other.pid for other in crowd)):
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
        for other in crowd:
            assert other.stdout is not None and other.stdout.readline(), "it has started to compute"
        endless = {
            "what": "digest",
            "uri": zoo.kinds["a tree whose pages are met again and again"][0].as_uri(),
            "seconds": "9",
        }
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            child.ask(endless, 0.5, patience=4)
        waited = time.monotonic() - started
        assert 0.55 < waited < 2.0 * SLACK  # 0.5 without patience
    finally:
        for other in crowd:
            other.kill()
            other.wait()
            assert other.stdout is not None
            other.stdout.close()
        child.close()


def test_a_process_that_sleeps_is_not_waited_for() -> None:
    sleeper = process.FramedChild("nl2sql.databases.sqlite.disk")
    try:
        sleeper.ask(process.READY, 60)
        started = time.monotonic()
        os.kill(sleeper.process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            sleeper.ask({"what": "schema", "uri": ":memory:", "seconds": "9"}, 0.5, patience=8)
        assert time.monotonic() - started < 2.0
    finally:
        sleeper.close()
