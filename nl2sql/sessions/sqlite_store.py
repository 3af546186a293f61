"""Conversations in a SQLite file, for one machine: several processes may write it at once.

>>> sorted(SESSIONS.tables)
['session_list', 'session_turns']

Each turn is one transaction, so that two writers never take the same place in a session. The file is made for its
user alone (mode 600), and what is deleted is overwritten in it.

Not covered: a file on a network drive, and a power failure right after a turn, which may cost that turn.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nl2sql.databases.sqlite.disk import OwnFile, write_ahead
from nl2sql.interfaces import Turn
from nl2sql.sessions.turns import (
    KEPT,
    checked_owner,
    checked_session,
    checked_ttl,
    turn_from_text,
    turn_of,
    turn_to_text,
)

SESSIONS = OwnFile(
    "session store",
    "--store",
    2,
    0x6E6C3273,  # "nl2s"
    """
CREATE TABLE session_list (
    owner TEXT NOT NULL, session TEXT NOT NULL, added REAL NOT NULL, ends REAL NOT NULL DEFAULT 9e999,
    PRIMARY KEY (owner, session)) WITHOUT ROWID;
CREATE TABLE session_turns (
    owner TEXT NOT NULL, session TEXT NOT NULL, place INTEGER NOT NULL, turn TEXT NOT NULL,
    PRIMARY KEY (owner, session, place)) WITHOUT ROWID;
CREATE INDEX idx_session_ends ON session_list (ends);
""",
    upgrades=(
        "ALTER TABLE session_list ADD COLUMN ends REAL NOT NULL DEFAULT 9e999;"
        "DROP INDEX idx_session_added; CREATE INDEX idx_session_ends ON session_list (ends)",
    ),
)
_MINE = "WHERE owner = ?1 AND session = ?2"


class SqliteStore:
    """Sessions in a file, which is made where it is missing. ttl_s: as for MemoryStore.

    Raises what ``OwnFile.open`` raises; nothing is changed in a file that is damaged or none of ours.
    """

    def __init__(self, path: str | Path, ttl_s: float = 0.0, *, now: Callable[[], float] = time.time) -> None:
        self.path, self.ttl_s, self._now = Path(path).expanduser(), checked_ttl(ttl_s), now
        self._lock = threading.Lock()
        if not self.path.exists() and self.path.parent.is_dir():
            self.path.touch(0o600)
        self._connection = SESSIONS.open(self.path)
        with self._reading() as run:
            write_ahead(self._connection)
            run("PRAGMA synchronous = NORMAL")
            run("PRAGMA secure_delete = ON")

    def history(self, owner: str, session_id: str) -> list[Turn]:
        """The session's turns, oldest first. Raises Nl2SqlError for a turn that is none."""
        mine = checked_owner(owner), checked_session(session_id)
        with self._reading() as run:
            alive = f"EXISTS (SELECT 1 FROM session_list {_MINE} AND ends > ?3)"
            latest = f"SELECT turn FROM session_turns {_MINE} AND {alive} ORDER BY place DESC LIMIT {KEPT}"
            texts = [row[0] for row in run(latest, *mine, self._now())][::-1]
        return [turn_from_text(text, f"session store {self.path}") for text in texts]

    def add(self, owner: str, session_id: str, turn: Turn) -> None:
        """Put a turn behind the session's others, in one transaction."""
        mine, text = (checked_owner(owner), checked_session(session_id)), turn_to_text(turn_of(turn))
        now = self._now()
        with self._writing() as run:
            if run(f"DELETE FROM session_list {_MINE} AND ends <= ?3", *mine, now).rowcount:
                run(f"DELETE FROM session_turns {_MINE}", *mine)
            last = f"(SELECT coalesce(max(place), 0) FROM session_turns {_MINE})"
            run(f"INSERT INTO session_turns SELECT ?1, ?2, {last} + 1, ?3", *mine, text)
            run(f"DELETE FROM session_turns {_MINE} AND place <= {last} - {KEPT}", *mine)
            ends = now + self.ttl_s if self.ttl_s else float("inf")
            run("INSERT OR REPLACE INTO session_list VALUES (?, ?, ?, ?)", *mine, now, ends)

    def sessions(self, owner: str) -> list[str]:
        """The owner's sessions, the latest first."""
        with self._reading() as run:
            mine = "owner = ? AND ends > ? AND typeof(session) = 'text'"
            listed = f"SELECT session FROM session_list WHERE {mine} ORDER BY added DESC, session"
            return [row[0] for row in run(listed, checked_owner(owner), self._now())]

    def delete(self, owner: str, session_id: str) -> bool:
        """Forget a session; False where there was none."""
        mine = checked_owner(owner), checked_session(session_id)
        with self._writing() as run:
            run(f"DELETE FROM session_turns {_MINE}", *mine)
            lived = run(f"DELETE FROM session_list {_MINE} AND ends > ?3", *mine, self._now()).rowcount
            run(f"DELETE FROM session_list {_MINE}", *mine)
            return bool(lived)

    def cleanup(self) -> int:
        """Remove the sessions whose time has passed; how many they were."""
        now = self._now()  # once: a session that ends between two moments would leave its turns behind
        with self._writing() as run:
            ended = "SELECT owner, session FROM session_list WHERE ends <= ?1"
            run(f"DELETE FROM session_turns WHERE (owner, session) IN ({ended})", now)
            return int(run("DELETE FROM session_list WHERE ends <= ?1", now).rowcount)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        with self._lock:
            try:
                yield lambda sql, *values: self._connection.execute(sql, values)
            except sqlite3.Error as error:
                raise SESSIONS.error(self.path, error) from None

    @contextmanager
    def _writing(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        with self._reading() as run:
            run("BEGIN IMMEDIATE")
            try:
                yield run
                run("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    run("ROLLBACK")
                raise
