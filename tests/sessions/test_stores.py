"""Stores of conversations: order, retention, owners, times, many writers, and what goes wrong."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import servers
from session_stores import NO_REDIS

from nl2sql.errors import DatabaseError, Nl2SqlError, UsageError
from nl2sql.interfaces import Turn
from nl2sql.sessions import stores
from nl2sql.sessions.redis_store import RedisStore, list_key, turns_key
from nl2sql.sessions.sqlite_store import SqliteStore
from nl2sql.sessions.stores import EnduringStore, MemoryStore, SessionStore, open_store, shown_address


def turn(text: str) -> Turn:
    return Turn(text, text, "SELECT 1", "1 rows, columns: 1", "2026-01-01T00:00:00+00:00")


def asked(store: SessionStore, owner: str, session: str) -> list[str]:
    return [kept.user_query for kept in store.history(owner, session)]


def test_every_store_gives_back_the_turns_of_a_session_as_they_were(session_store: SessionStore) -> None:
    odd = Turn("Zürich'; DROP TABLE x --\n\x00 \ud800 \u202e", "r", 'SELECT "ä"', "No results", "2026-01-01T00:00:00Z")
    assert session_store.history("ada", "new-session") == []
    session_store.add("ada", "s", odd)
    session_store.add("ada", "s", turn("second"))
    session_store.add("ada", "s", turn("second"))
    assert session_store.history("ada", "s") == [odd, turn("second"), turn("second")]


def test_every_store_keeps_the_last_ten_turns(session_store: SessionStore) -> None:
    for number in range(15):
        session_store.add("ada", "test", turn(f"query-{number}"))
    assert asked(session_store, "ada", "test") == [f"query-{number}" for number in range(5, 15)]


def test_every_store_keeps_owners_apart(session_store: SessionStore) -> None:
    for owner, session in (("a", "b.c"), ("a.b", "c"), ("a@b", "c"), ("b", "b.c")):
        session_store.add(owner, session, turn(f"{owner} {session}"))
    assert asked(session_store, "a", "b.c") == ["a b.c"] and session_store.sessions("a") == ["b.c"]
    assert session_store.sessions("nobody") == [] and session_store.history("c", "b.c") == []
    assert session_store.delete("c", "b.c") is False and session_store.delete("b", "b.c") is True
    assert asked(session_store, "a", "b.c") == ["a b.c"] and asked(session_store, "b", "b.c") == []
    assert asked(session_store, "a.b", "c") == ["a.b c"] and asked(session_store, "a@b", "c") == ["a@b c"]


def test_every_store_lists_the_latest_session_first(session_store: SessionStore) -> None:
    for session in ("one", "two", "three", "one"):
        session_store.add("ada", session, turn("x"))
        time.sleep(0.002)  # the lists are sorted by the clock
    assert session_store.sessions("ada") == ["one", "three", "two"]
    assert session_store.delete("ada", "one") is True
    assert session_store.cleanup() == 0 and session_store.sessions("ada") == ["three", "two"]


BAD_NAMES = [
    "",
    " ",
    "a b",
    "../x",
    "-x",
    "x" * 129,
    "a:b",
    "a{b}",
    "a*",
    "a\n",
    "a\x00b",
    "ä",
    "'; DROP TABLE t --",
    "a/b",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_can_be_none_is_refused_everywhere(name: str, tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db")) as file:
        for store in (MemoryStore(), file):
            for owner, session in ((name, "s"), ("ada", name)):
                for call in (store.history, store.delete):
                    with pytest.raises(UsageError, match="expected letters, digits"):
                        call(owner, session)
                with pytest.raises(UsageError, match="expected letters, digits"):
                    store.add(owner, session, turn("x"))
            with pytest.raises(UsageError, match="owner"):
                store.sessions(name)


def test_every_store_refuses_a_turn_that_is_too_long_and_keeps_the_others(session_store: SessionStore) -> None:
    session_store.add("ada", "s", turn("first"))
    with pytest.raises(UsageError, match="1,000,000 characters; a session keeps at most 40,000"):
        session_store.add("ada", "s", turn("x" * 1_000_000))
    assert asked(session_store, "ada", "s") == ["first"]


def test_every_store_takes_many_writers_and_loses_nothing(session_store: SessionStore) -> None:
    """Eight writers each have a session of their own and share one."""

    def write(writer: int) -> None:
        for number in range(20):
            session_store.add("ada", f"own-{writer}", turn(f"{writer} {number}"))
            assert asked(session_store, "ada", f"own-{writer}")[-1] == f"{writer} {number}"
            session_store.add("ada", "shared", turn(f"{writer} {number}"))

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(write, range(8)))
    for writer in range(8):
        assert asked(session_store, "ada", f"own-{writer}") == [f"{writer} {number}" for number in range(10, 20)]
    last = [tuple(map(int, text.split())) for text in asked(session_store, "ada", "shared")]
    assert len(last) == 10
    for writer in range(8):
        numbers = [number for by, number in last if by == writer]
        assert numbers == sorted(numbers)


# ------------------------------------------------------------------------------------------------- lifetimes


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_session_ends_so_long_after_its_last_turn(kind: str, tmp_path: Path) -> None:
    clock = [100.0]
    store: SessionStore
    if kind == "memory":
        store = MemoryStore(10.0, now=lambda: clock[0])
    else:
        store = SqliteStore(tmp_path / "s.db", 10.0, now=lambda: clock[0])
    store.add("ada", "s", turn("one"))
    clock[0] = 109.0
    store.add("ada", "s", turn("two"))
    store.add("ada", "other", turn("x"))
    clock[0] = 118.9
    assert asked(store, "ada", "s") == ["one", "two"] and store.cleanup() == 0
    clock[0] = 119.0
    assert store.history("ada", "s") == [] and store.sessions("ada") == [] and store.delete("ada", "s") is False
    store.add("ada", "other", turn("new"))
    assert asked(store, "ada", "other") == ["new"], "a session that ended begins anew"
    store.add("ben", "s", turn("x"))
    clock[0] = 130.0
    assert store.cleanup() == 2 and store.cleanup() == 0
    store.add("ada", "other", turn("late"))
    assert asked(store, "ada", "other") == ["late"], "nothing of a session that was cleaned up comes back"
    store.close()


def test_a_cleanup_looks_at_the_clock_once(tmp_path: Path) -> None:
    moments = iter([100.0, 109.0, 111.0])
    with closing(SqliteStore(tmp_path / "s.db", 10.0, now=lambda: next(moments))) as store:
        store.add("ada", "s", turn("one"))
        assert store.cleanup() == 0


def test_redis_ends_sessions_by_itself(redis_address: str) -> None:
    with closing(RedisStore(redis_address)) as store:
        store._client.flushdb()
        store.add("ada", "stays", turn("x"))
        assert store._client.pttl(turns_key("ada", "stays")) == -1
        short = RedisStore(redis_address, 0.05)
        short.add("ada", "goes", turn("x"))
        while store.history("ada", "goes"):
            time.sleep(0.01)
        assert store.sessions("ada") == ["stays"], "the list lives as long as any of its sessions"
        short.add("ben", "goes", turn("x"))
        while store._client.exists(list_key("ben")):
            time.sleep(0.01)
        store.add("ada", "stays", turn("y"))
        short.add("ada", "goes", turn("x"))
        store.add("ada", "stays", turn("z"))
        while store.history("ada", "goes"):
            time.sleep(0.01)
        assert store.cleanup() == 1 and store.sessions("ada") == ["stays"]
        with closing(RedisStore(redis_address, 60)) as long:
            long.add("ada", "kept", turn("x"))
        store.add("ada", "kept", turn("y"))
        assert store._client.pttl(turns_key("ada", "kept")) == -1, "whoever adds without an end keeps it"


@pytest.mark.parametrize("order", ["with, without", "without, with"])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_a_time_to_live_ends_nothing_that_was_kept_without_one(
    kind: str, order: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """ada keeps without an end, ben with one, in one file or server; ada has a second session that ends."""
    address = request.getfixturevalue("redis_address") if kind == "redis" else str(tmp_path / "s.db")
    lasting = MemoryStore() if kind == "memory" else open_store(address)
    ending = MemoryStore(0.05) if kind == "memory" else open_store(address, ttl_s=0.05)
    with closing(lasting), closing(ending):
        for who in ("ada", "ben"):
            for session in lasting.sessions(who):
                lasting.delete(who, session)
        for store, owner, session in [(lasting, "ada", "a"), (ending, "ben", "b"), (ending, "ada", "a2")][
            :: 1 if order == "without, with" else -1
        ]:
            store.add(owner, session, turn(session))
        while ending.sessions("ben") or ending.history("ada", "a2"):
            time.sleep(0.01)
        for store in (lasting, ending)[: 1 if kind == "memory" else 2]:
            store.cleanup()
            assert store.sessions("ada") == ["a"] and asked(store, "ada", "a") == ["a"]
            assert store.sessions("ben") == []


def test_an_owner_with_many_sessions_in_memory_drops_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nl2sql.sessions.stores.MOST_SESSIONS", 3)
    store = MemoryStore()
    store.add("ada", "a", turn("x"))
    for number in range(9):
        store.add("ben", f"b{number}", turn("x"))
    assert store.sessions("ada") == ["a"] and store.sessions("ben") == ["b8", "b7"]


def test_a_store_of_the_first_version_is_used_and_its_sessions_do_not_end(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.add("ada", "s", turn("one"))
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        connection.executescript(
            "DROP INDEX idx_session_ends; ALTER TABLE session_list DROP COLUMN ends;"
            "CREATE INDEX idx_session_added ON session_list (added); PRAGMA user_version = 1"
        )
    with closing(SqliteStore(tmp_path / "s.db", 0.001)) as store:
        assert store.cleanup() == 0 and asked(store, "ada", "s") == ["one"]


@pytest.mark.parametrize("ttl_s", [-1.0, float("nan"), float("inf")])
def test_a_time_to_live_that_is_none_is_refused(ttl_s: float, tmp_path: Path) -> None:
    for address in ("memory", str(tmp_path / "s.db")):
        with pytest.raises(UsageError, match=r"cannot live .* seconds"):
            open_store(address, ttl_s=ttl_s)


# ----------------------------------------------------------------------------------------------------- files


def test_a_file_is_its_user_s_alone_and_holds_nothing_of_a_session_that_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        store.add("ada", "s", turn("a secret question"))
        store.delete("ada", "s")
    assert b"secret" not in path.read_bytes()


WRITER = """
import sys
from nl2sql.interfaces import Turn
from nl2sql.sessions.sqlite_store import SqliteStore
store = SqliteStore(sys.argv[1])
print("ready", flush=True)
input()
for number in range(60):
    store.add("ada", "shared", Turn(f"{sys.argv[2]} {number}"))
store.close()
"""


def test_processes_that_write_one_session_take_one_place_each(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    commands = [[sys.executable, "-c", WRITER, str(path), str(number)] for number in range(4)]
    writers = [subprocess.Popen(command, text=True, **pipes) for command in commands]  # type: ignore[call-overload]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=120)
    assert [writer.returncode for writer in writers] == [0] * 4
    with closing(sqlite3.connect(path)) as connection:
        places = [row[0] for row in connection.execute("SELECT place FROM session_turns ORDER BY place")]
    assert places == list(range(231, 241))


def unusable(kind: str, path: Path) -> None:
    if kind == "text":
        path.write_bytes(b"not a database at all, but some text" * 40)
        return
    with closing(sqlite3.connect(path)) as connection, connection:
        if kind == "other":
            connection.execute("CREATE TABLE orders (id)")
        elif kind == "newer":
            connection.execute("CREATE TABLE session_turns (id)")
            connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("kind", "error", "wanted"),
    [("text", DatabaseError, "damaged"), ("other", UsageError, "orders"), ("newer", DatabaseError, "newer nl2sql")],
)
def test_a_file_that_is_no_store_is_a_clear_error_and_stays(
    kind: str, error: type[Exception], wanted: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"
    unusable(kind, path)
    before = path.read_bytes()
    with pytest.raises(error, match=wanted):
        open_store(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["{", "[]", "5", '"x"', '{"user_query": 7}', '{"user_query": ""}', "9" * 5000])
def test_a_turn_that_nl2sql_did_not_write_is_a_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store:
        store.add("ada", "s", turn("x"))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE session_turns SET turn = ?", (text,))
        with pytest.raises(Nl2SqlError, match="did not write"):
            store.history("ada", "s")
        assert store.delete("ada", "s") and store.history("ada", "s") == []


def test_a_file_that_fails_in_mid_conversation_does_not_end_it(tmp_path: Path) -> None:
    said: list[str] = []
    file = SqliteStore(tmp_path / "s.db")
    store = EnduringStore(file, said.append)
    store.add("ada", "s", turn("one"))
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        connection.execute("DROP TABLE session_turns")
    store.add("ada", "s", turn("two"))
    assert asked(store, "ada", "s") == ["one", "two"] and store.sessions("ada") == ["s"]
    assert len(said) == 1 and "go on in memory" in said[0] and str(tmp_path) in said[0]
    store.close()


@pytest.mark.parametrize("by", ["this program", "another one"])
def test_a_deleted_session_does_not_live_on_in_memory(by: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with closing(EnduringStore(SqliteStore(path), lambda _: None)) as store:
        for session in ("s", "stays"):
            store.add("ada", session, turn("one"))
        with closing(SqliteStore(path)) as other:
            assert (store if by == "this program" else other).delete("ada", "s") is True
        assert by == "this program" or asked(store, "ada", "s") == []
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TABLE session_turns")
        assert asked(store, "ada", "stays") == ["one"], "it goes on in memory"
        assert asked(store, "ada", "s") == [] and store.sessions("ada") == ["stays"]


def test_turns_of_another_program_are_kept_in_memory_too(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with closing(EnduringStore(SqliteStore(path), lambda _: None)) as store:
        with closing(SqliteStore(path)) as other:
            other.add("ada", "s", turn("by another program"))
        assert asked(store, "ada", "s") == ["by another program"]
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TABLE session_list")
        store.add("ada", "s", turn("two"))
        assert asked(store, "ada", "s") == ["by another program", "two"]


def test_memory_forgets_the_session_that_rested_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stores.MOST_SESSIONS == 10_000
    monkeypatch.setattr(stores, "MOST_SESSIONS", 2)
    store = MemoryStore()
    for session in ("one", "two", "one", "three"):
        store.add("ada", session, turn(session))
    assert store.sessions("ada") == ["three", "one"] and store.history("ada", "two") == []


HOSTILE = {  # what a stranger's file may hold beside our tables, and the words of its refusal
    "a trigger": (
        "CREATE TRIGGER t AFTER INSERT ON session_turns BEGIN INSERT INTO session_list WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9e8) SELECT 'ada', i, 1, 1 FROM n; END",
        "trigger t is not as nl2sql makes it",
    ),
    "a view": ("CREATE VIEW v AS SELECT 1", "view v is not"),
    "an index on an expression": ("CREATE INDEX i ON session_turns (hex(zeroblob(length(turn))))", "index i is not"),
    "another table": ("CREATE TABLE more (x)", "table more is not"),
    "a column that is computed": (
        "ALTER TABLE session_list ADD COLUMN x AS (hex(zeroblob(9e8)))",
        "table session_list is not",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_with_more_than_our_tables_is_refused_and_stays(kind: str, tmp_path: Path) -> None:
    path, (script, said) = tmp_path / "s.db", HOSTILE[kind]
    with closing(SqliteStore(path)) as store:
        store.add("ada", "s", turn("x"))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA journal_mode = DELETE; {script}")
    before = path.read_bytes()
    with pytest.raises(UsageError, match=rf"s\.db is not used: its {said}.*; give --store another file"):
        open_store(str(path))
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["s.db"]


def test_a_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.db")
    (tmp_path / "t.db").symlink_to(tmp_path / "s.db")
    for name in ("s.db", "t.db", "/dev/zero"):
        with pytest.raises(DatabaseError, match="cannot be opened: not a regular file"):
            open_store(str(tmp_path / name))


def test_a_session_of_very_many_turns_is_read_from_its_end(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "s.db")) as store:
        store.add("ada", "s", turn("first"))
        store.add("ada", "long", turn("x"))
        with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
            row = connection.execute("SELECT turn FROM session_turns WHERE session = 's'").fetchone()
            rows = (("ada", "s", place, *row) for place in range(2, 50))
            connection.executemany("INSERT INTO session_turns VALUES (?, ?, ?, ?)", rows)
            connection.execute("UPDATE session_turns SET turn = zeroblob(20000000) WHERE session = 'long'")
        assert len(store.history("ada", "s")) == 10
        with pytest.raises(DatabaseError, match="too big"):
            store.history("ada", "long")


# ----------------------------------------------------------------------------------------------------- Redis


def test_redis_reads_a_list_of_a_stranger_from_its_end(redis_address: str) -> None:
    with closing(RedisStore(redis_address)) as store:
        store._client.flushdb()
        store.add("ada", "s", turn("x"))
        text, key = store._client.lindex(turns_key("ada", "s"), 0), turns_key("ada", "s")
        for _ in range(40):
            store._client.rpush(key, *[text] * 10_000)
        assert len(store.history("ada", "s")) == 10
        store.add("ada", "s", turn("y"))
        assert asked(store, "ada", "s")[8:] == ["x", "y"] and store._client.llen(key) == 10
        for odd in ("5", b"\xff\xfe", b"x" * 3_000_000):
            store._client.rpush(key, odd)
            with pytest.raises(Nl2SqlError, match="did not write"):
                store.history("ada", "s")
        store._client.set(list_key("eve"), "no list")
        assert store.cleanup() == 0


@pytest.fixture
def redis_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with servers.redis(*getattr(request, "param", ())) as server:
        if server is None:
            pytest.skip(NO_REDIS)
        yield server


def test_redis_killed_in_mid_conversation_is_said_once(redis_server: tuple[str, subprocess.Popen[bytes]]) -> None:
    said: list[str] = []
    address, process = redis_server
    with closing(open_store(address, say=said.append)) as store, closing(RedisStore(address)) as before:
        before.add("ada", "s", turn("before this program"))
        assert asked(store, "ada", "s") == ["before this program"]
        store.add("ada", "s", turn("one"))
        process.kill()
        process.wait()
        store.add("ada", "s", turn("two"))
        assert asked(store, "ada", "s") == ["before this program", "one", "two"]
        assert store.sessions("ada") == ["s"] and store.delete("ada", "s") and store.history("ada", "s") == []
    assert len(said) == 1 and "does not answer" in said[0] and "go on in memory" in said[0]


@pytest.mark.parametrize("redis_server", [("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")], indirect=True)
def test_redis_at_its_maxmemory_is_a_clear_line(redis_server: tuple[str, subprocess.Popen[bytes]]) -> None:
    said: list[str] = []
    with closing(open_store(redis_server[0], say=said.append)) as store:
        for number in range(200):
            session = f"s{number // 5}"
            store.add("ada", session, turn(f"{number} " + "x" * 39_000))
            assert asked(store, "ada", session)[-1].startswith(f"{number} ")
    assert len(said) == 1 and "is full (its maxmemory is reached); raise it" in said[0]


@pytest.mark.parametrize("redis_server", [("--requirepass", "opensesame")], indirect=True)
def test_redis_with_a_password_lets_in_who_has_it_and_no_error_shows_it(
    redis_server: tuple[str, subprocess.Popen[bytes]],
) -> None:
    address, _ = redis_server
    with pytest.raises(DatabaseError, match="does not let us in"):
        open_store(address)
    with pytest.raises(DatabaseError) as wrong:
        open_store(address.replace("//", "//:opensesam@"))
    assert "opensesam" not in str(wrong.value)
    with closing(open_store(address.replace("//", "//:opensesame@"))) as store:
        store.add("ada", "s", turn("x"))
        assert asked(store, "ada", "s") == ["x"]


def test_redis_where_none_answers_is_a_clear_error() -> None:
    port = servers.free_port()
    with pytest.raises(DatabaseError, match=f"redis://127.0.0.1:{port}/0 does not answer .* redis-server"):
        open_store(f"redis://127.0.0.1:{port}")


WRONG = ["redis://h:notaport", "redis://h?socket_timeout=x", "redis://127.0.0.1:1/0?foo=bar", "ftp://x", ""]
WRONG += [
    "valkey://:opensesame@h/0",
    "REDIS://:open/sesame@h/0",
    "redis://:12/opensesame@h/0",
    "redis://:open#sesame@h",
]


@pytest.mark.parametrize("address", WRONG)
def test_an_address_that_names_no_store_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="expected") as caught:
        open_store(address)
    assert "open" not in str(caught.value) and "sesame" not in str(caught.value)


def test_a_scheme_is_known_in_any_case() -> None:
    with pytest.raises(DatabaseError, match=r"redis://127.0.0.1:1/0 does not answer"):
        open_store("REDIS://127.0.0.1:1/0")


def test_the_address_of_a_store_is_shown_without_what_may_be_secret() -> None:
    assert shown_address("redis://ada:open?ses@me@box/0?password=x") == "redis://ada:***@box/0?***"
    assert shown_address("chats?.db") == "chats?.db"


def test_redis_adds_a_turn_once_when_the_call_is_repeated(redis_address: str) -> None:
    with closing(RedisStore(redis_address)) as store:
        store._client.flushdb()
        keys = [turns_key("ada", "s"), list_key("ada")]
        for _ in range(2):  # as the library does where the answer was lost
            store._add(keys, ['{"id": "1"}', 10, 0, "s", 1.0])
        assert store._client.llen(keys[0]) == 1
