"""Stores of conversations: the interface, memory, and ``open_store``.

>>> store = MemoryStore()
>>> store.add("ada", "s1", Turn("How many orders?", sql="SELECT count(*) FROM orders"))
>>> [turn.user_query for turn in store.history("ada", "s1")], store.history("ben", "s1"), store.sessions("ada")
(['How many orders?'], [], ['s1'])

A session belongs to its owner: every call names both, and another owner's session of the same name is another session.
It begins with its first turn, keeps the last ``turns.KEPT``, and ends so long after its last turn as the time to live
of the store that added this turn says, whatever another store of the same file or server says.
Stores are thread-safe; the turns of one session stay in the order in which they were added.

Not covered: who an owner is. Whoever may choose the name of an owner, or may read the file or the Redis server, reads
that owner's sessions.
"""

from __future__ import annotations

import math
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from nl2sql.errors import DatabaseError, UsageError
from nl2sql.interfaces import Turn
from nl2sql.sessions.turns import KEPT, checked_owner, checked_session, checked_ttl, turn_of

T = TypeVar("T")
MEMORY = "memory"
MOST_SESSIONS = 10_000  # in memory; of the owner who begins another, the one that rested longest is forgotten
FORMS = "memory, a SQLite FILE, redis://HOST:PORT/NUMBER"
_REDIS = ("redis://", "rediss://", "unix://")


class SessionStore(Protocol):
    """Where conversations are kept. Every method raises UsageError for a name that can be none, DatabaseError where
    the store cannot be used."""

    def history(self, owner: str, session_id: str) -> list[Turn]:
        """The session's turns, oldest first; none for a session that is not there."""
        ...

    def add(self, owner: str, session_id: str, turn: Turn) -> None:
        """Put a turn behind the session's others. Raises UsageError for one that cannot be stored (``turn_of``)."""
        ...

    def sessions(self, owner: str) -> list[str]:
        """The owner's sessions, the latest first."""
        ...

    def delete(self, owner: str, session_id: str) -> bool:
        """Forget a session; False where there was none."""
        ...

    def cleanup(self) -> int:
        """Remove the sessions of all owners whose time has passed; how many they were."""
        ...

    def close(self) -> None: ...


class MemoryStore:
    """Sessions of this process, lost when it ends. ttl_s: seconds that a session rests before it ends; 0: no end."""

    def __init__(self, ttl_s: float = 0.0, *, now: Callable[[], float] = time.time) -> None:
        self.ttl_s, self._now = checked_ttl(ttl_s), now
        self._lock = threading.Lock()
        # (owner, session) -> when it ends, turns; in the order of their last turns
        self._sessions: dict[tuple[str, str], tuple[float, list[Turn]]] = {}

    def history(self, owner: str, session_id: str) -> list[Turn]:
        key = checked_owner(owner), checked_session(session_id)
        with self._lock:
            return list(self._turns(key))

    def add(self, owner: str, session_id: str, turn: Turn) -> None:
        key, turn = (checked_owner(owner), checked_session(session_id)), turn_of(turn)
        with self._lock:
            self._place(key, [*self._turns(key), turn])

    def replace(self, owner: str, session_id: str, turns: Sequence[Turn]) -> None:
        """Make a session what another store says it is."""
        with self._lock:
            self._place((owner, session_id), list(turns))

    def sessions(self, owner: str) -> list[str]:
        checked_owner(owner)
        with self._lock:
            return [session for of, session in reversed(self._sessions) if of == owner and self._turns((of, session))]

    def delete(self, owner: str, session_id: str) -> bool:
        key = checked_owner(owner), checked_session(session_id)
        with self._lock:
            lived = bool(self._turns(key))
            self._sessions.pop(key, None)
            return lived

    def cleanup(self) -> int:
        with self._lock:
            ended = [key for key in self._sessions if not self._turns(key)]
            for key in ended:
                del self._sessions[key]
            return len(ended)

    def close(self) -> None:
        """Nothing to release."""

    def _turns(self, key: tuple[str, str]) -> list[Turn]:
        ends, turns = self._sessions.get(key, (0.0, []))
        return [] if ends <= self._now() else turns

    def _place(self, key: tuple[str, str], turns: list[Turn]) -> None:
        self._sessions.pop(key, None)
        if turns:
            self._sessions[key] = (self._now() + self.ttl_s if self.ttl_s else math.inf), turns[-KEPT:]
        if len(self._sessions) > MOST_SESSIONS:
            mine = next(other for other in self._sessions if other[0] == key[0])
            del self._sessions[mine if mine != key else next(iter(self._sessions))]


class EnduringStore:
    """A store whose failure does not end a conversation: it goes on in memory, from what was seen of it.

    say: gets the one line about it, once. Wrong names and turns are UsageErrors as everywhere.
    """

    def __init__(self, store: SessionStore, say: Callable[[str], None], ttl_s: float = 0.0) -> None:
        self._store: SessionStore
        self._opened, self._store = store, store
        self._seen, self._say, self._lock = MemoryStore(ttl_s), say, threading.Lock()

    def history(self, owner: str, session_id: str) -> list[Turn]:
        def read(store: SessionStore) -> list[Turn]:
            turns = store.history(owner, session_id)
            if store is not self._seen:
                self._seen.replace(owner, session_id, turns)
            return turns

        return self._at(read)

    def add(self, owner: str, session_id: str, turn: Turn) -> None:
        turn = turn_of(turn)  # the same time in both

        def put(store: SessionStore) -> None:
            store.add(owner, session_id, turn)
            if store is not self._seen:
                self._seen.add(owner, session_id, turn)

        self._at(put)

    def sessions(self, owner: str) -> list[str]:
        return self._at(lambda store: store.sessions(owner))

    def delete(self, owner: str, session_id: str) -> bool:
        def forget(store: SessionStore) -> bool:
            lived = store.delete(owner, session_id)
            return self._seen.delete(owner, session_id) or lived

        return self._at(forget)

    def cleanup(self) -> int:
        self._seen.cleanup()
        return self._at(lambda store: store.cleanup())

    def close(self) -> None:
        self._opened.close()

    def _at(self, work: Callable[[SessionStore], T]) -> T:
        store = self._store
        try:
            return work(store)
        except DatabaseError as error:
            with self._lock:
                if store is self._store and store is not self._seen:
                    self._store = self._seen
                    self._say(f"{error}; conversations go on in memory until this program ends")
            return work(self._seen)


def open_store(address: str = MEMORY, *, ttl_s: float = 0.0, say: Callable[[str], None] | None = None) -> SessionStore:
    """The store that ``address`` names, one of ``FORMS``; a file or a server that fails later does not end anything.

    say: gets the line about a store that failed (default: a RuntimeWarning). Raises UsageError for another address,
    DatabaseError for one that cannot be opened.
    """
    ttl_s = checked_ttl(ttl_s)
    if address == MEMORY:
        return MemoryStore(ttl_s)
    store: SessionStore
    scheme, colon, rest = address.partition("://")
    if colon:
        address = f"{scheme.lower()}://{rest}"
    if address.startswith(_REDIS):
        from nl2sql.sessions.redis_store import RedisStore

        store = RedisStore(address, ttl_s)
    elif "://" in address or not address.strip():
        shown = f"{scheme}://..." if colon else repr(address)  # the rest may hold a password
        raise UsageError(f"--store {shown}; expected {FORMS}")
    else:
        from nl2sql.sessions.sqlite_store import SqliteStore

        store = SqliteStore(address, ttl_s)
    return EnduringStore(store, say or _warn, ttl_s)


def shown_address(address: str) -> str:
    """The address of a store with *** for a password and for options, which may hold one.

    >>> shown_address("redis://:opensesame@box:6379/0")
    'redis://:***@box:6379/0'
    """
    if "://" not in address:
        return address
    hidden = re.sub(r"://([^:@/]*):.*@", r"://\1:***@", address, flags=re.DOTALL)
    return re.sub(r"\?.*", "?***", hidden, flags=re.DOTALL)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
