"""Stores of conversations for the tests: each kind that is here, on a private Redis server among them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import servers

from nl2sql.sessions.redis_store import RedisStore
from nl2sql.sessions.sqlite_store import SqliteStore
from nl2sql.sessions.stores import MemoryStore, SessionStore

NO_REDIS = "no Redis server: apt-get install redis-server"


@pytest.fixture(scope="module")
def redis_address() -> Iterator[str]:
    """A private Redis server for the tests of a module."""
    with servers.redis() as server:
        if server is None:
            pytest.skip(NO_REDIS)
        yield server[0]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def session_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    """An empty store of each kind."""
    with ExitStack() as stack:
        if request.param == "memory":
            yield MemoryStore()
        elif request.param == "sqlite":
            yield stack.enter_context(closing(SqliteStore(tmp_path / "sessions.db")))
        else:
            store = stack.enter_context(closing(RedisStore(request.getfixturevalue("redis_address"))))
            store._client.flushdb()
            yield store
