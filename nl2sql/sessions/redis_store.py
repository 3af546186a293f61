"""Conversations on a Redis server, for several machines: the specification's path for production (section 7.3).

>>> turns_key("ada", "s1"), list_key("ada")
('nl2sql:{ada}:turns:s1', 'nl2sql:{ada}:sessions')

A session is a list of JSON texts, an owner's sessions are a sorted set by the time of their last turn; both keys of an
owner are in one slot of a cluster. A turn is added by one script, which the server carries out as a whole: no two
writers mix, and a call that is repeated after a lost answer adds nothing. The server ends sessions by itself.

Not covered: what an eviction policy of the server throws away before its time (``maxmemory-policy noeviction`` throws
nothing away), and a server that loses its memory when it restarts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from math import ceil
from typing import Any, TypeVar

from nl2sql.errors import DatabaseError, Nl2SqlError, UsageError, one_line
from nl2sql.interfaces import Turn
from nl2sql.machine import install_command, server_parts
from nl2sql.sessions.turns import (
    KEPT,
    checked_owner,
    checked_session,
    checked_ttl,
    turn_from_text,
    turn_of,
    turn_to_text,
)

T = TypeVar("T")
CONNECT_S, ANSWER_S = 2.0, 5.0
LONGEST = 2**21  # bytes of a turn: five texts of MAX_CHARS, each character six at most

# KEYS: the turns, the owner's sessions. ARGV: turn, how many are kept, milliseconds to live, session, now.
ADD = """
for _, kept in ipairs(redis.call('LRANGE', KEYS[1], -tonumber(ARGV[2]), -1)) do
    if kept == ARGV[1] then return 0 end
end
local ttl, left = tonumber(ARGV[3]), redis.call('PTTL', KEYS[2])
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[2]), -1)
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[4])
if ttl > 0 then redis.call('PEXPIRE', KEYS[1], ttl) else redis.call('PERSIST', KEYS[1]) end
-- the list lives as long as any session in it; -1: it has one without an end
if ttl == 0 then redis.call('PERSIST', KEYS[2])
elseif left ~= -1 and left < ttl then redis.call('PEXPIRE', KEYS[2], ttl) end
return 1
"""
# KEYS: the turns. ARGV: how many are kept, the longest. One that is longer was not written here, and is given as "".
HISTORY = """
local turns = redis.call('LRANGE', KEYS[1], -tonumber(ARGV[1]), -1)
for place, turn in ipairs(turns) do
    if #turn > tonumber(ARGV[2]) then turns[place] = '' end
end
return turns
"""
# KEYS: the owner's sessions. ARGV: the beginning of their keys. Gives those that live; the others leave the set.
LIST = """
local alive = {}
for _, session in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
    if redis.call('EXISTS', ARGV[1] .. session) == 1 then
        alive[#alive + 1] = session
    else
        redis.call('ZREM', KEYS[1], session)
    end
end
return alive
"""


def turns_key(owner: str, session_id: str) -> str:
    """The key of a session's turns. An owner holds no brace, so that no two owners share a key."""
    return f"nl2sql:{{{owner}}}:turns:{session_id}"


def list_key(owner: str) -> str:
    """The key of an owner's sessions."""
    return f"nl2sql:{{{owner}}}:sessions"


class RedisStore:
    """Sessions on the server at ``address``, ``redis://:PASSWORD@HOST:PORT/NUMBER``. ttl_s: as for MemoryStore.

    Raises UsageError for an address that is none and where the library is missing, DatabaseError where no server
    answers. Whatever is wrong later is a DatabaseError too, one line without the password.
    """

    def __init__(self, address: str, ttl_s: float = 0.0) -> None:
        try:
            import redis
            from redis.backoff import ExponentialBackoff
            from redis.retry import Retry
        except ImportError:
            advice = f"{install_command('sessions')}, or keep sessions in a file: --store FILE"
            raise UsageError(f"the library redis is not installed; install it: {advice}") from None
        self.ttl_s, self._errors = checked_ttl(ttl_s), redis.RedisError
        options: dict[str, Any] = {"decode_responses": True, "encoding_errors": "replace"}
        options |= {"socket_connect_timeout": CONNECT_S, "socket_timeout": ANSWER_S, "health_check_interval": 30}
        try:
            retry = Retry(ExponentialBackoff(cap=0.5, base=0.05), 2)
            server_parts(address, "a Redis server")
            self._client: Any = redis.Redis.from_url(address, retry=retry, **options)
            self.place = _place(self._client.connection_pool.connection_kwargs)
            self._add = self._client.register_script(ADD)
            self._list = self._client.register_script(LIST)
            self._history = self._client.register_script(HISTORY)
            self._ask(self._client.ping)
        except (ValueError, TypeError) as error:  # an option that is none is refused at the first call
            raise UsageError(f"the address of Redis: {one_line(error, 100)}; {_EXPECTED}") from None

    def history(self, owner: str, session_id: str) -> list[Turn]:
        """The session's turns, oldest first. Raises Nl2SqlError for a turn that is none."""
        key = turns_key(checked_owner(owner), checked_session(session_id))
        texts = self._ask(lambda: self._history([key], [KEPT, LONGEST]))
        return [turn_from_text(text, f"session store {self.place}") for text in texts]

    def add(self, owner: str, session_id: str, turn: Turn) -> None:
        """Put a turn behind the session's others, in one step of the server."""
        keys = [turns_key(checked_owner(owner), checked_session(session_id)), list_key(owner)]
        text = turn_to_text(turn_of(turn), id=secrets.token_hex(8))
        values: list[str | float] = [text, KEPT, ceil(self.ttl_s * 1000), session_id, time.time()]
        self._ask(lambda: self._add(keys, values))

    def sessions(self, owner: str) -> list[str]:
        """The owner's sessions, the latest first."""
        key = list_key(checked_owner(owner))
        return list(self._ask(lambda: self._list([key], [turns_key(owner, "")])))

    def delete(self, owner: str, session_id: str) -> bool:
        """Forget a session; False where there was none."""
        key = turns_key(checked_owner(owner), checked_session(session_id))

        def both() -> list[int]:
            with self._client.pipeline(transaction=True) as steps:
                done: list[int] = steps.delete(key).zrem(list_key(owner), session_id).execute()
                return done

        return bool(self._ask(both)[0])

    def cleanup(self) -> int:
        """Remove from owners' lists the sessions that the server has ended; how many they were."""

        def all_owners() -> int:
            ended = 0
            for key in self._client.scan_iter(match=list_key("*"), count=1000, _type="zset"):
                before = self._client.zcard(key)
                owner = key.removeprefix("nl2sql:{").removesuffix("}:sessions")
                ended += before - len(self._list([key], [turns_key(owner, "")]))
            return ended

        return self._ask(all_owners)

    def close(self) -> None:
        self._client.close()

    def _ask(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except self._errors as error:
            raise _explained(error, self.place) from None


_EXPECTED = "expected redis://HOST:PORT/NUMBER, with a password redis://:PASSWORD@HOST:PORT/NUMBER"


def _explained(error: Exception, place: str) -> Nl2SqlError:
    import redis

    subject, text = f"session store {place}", one_line(error, 150)
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return DatabaseError(f"{subject} does not let us in ({text}); {_EXPECTED}")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return DatabaseError(f"{subject} does not answer ({text}); start it: redis-server, or use --store FILE")
    if isinstance(error, redis.OutOfMemoryError):
        full = "is full (its maxmemory is reached)"
        return DatabaseError(f"{subject} {full}; raise it: redis-cli CONFIG SET maxmemory 256mb, or use --ttl")
    return DatabaseError(f"{subject}: {text}")


def _place(options: dict[str, Any]) -> str:
    """Where the server is, without its password."""
    if "path" in options:
        return f"unix://{options['path']}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db') or 0}"
