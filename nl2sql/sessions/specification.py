"""The specification's functions of sessions (STORY-AGENT-7), under its names without the underscore.

>>> entry = {"user_query": "test query", "sql": "SELECT * FROM products", "timestamp": "2024-01-01T00:00:00"}
>>> add_to_history("test-session", entry, store=(store := MemoryStore()))
>>> [turn.user_query for turn in get_chat_history("test-session", store=store)]
['test query']

Its service keeps ``chat_sessions`` in memory, for one user; here store and owner are arguments with these defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.interfaces import USER, Database, Model, Question, Resources, Turn
from nl2sql.sessions.conversation import LOCAL, Conversation, reply_of
from nl2sql.sessions.resolution import resolve
from nl2sql.sessions.stores import MemoryStore, SessionStore
from nl2sql.sessions.turns import summarize_results, turn_of

__all__ = [
    "add_to_history",
    "generate_sql_with_agent",
    "get_chat_history",
    "resolve_query_with_history",
    "summarize_results",
]

CHAT_SESSIONS: SessionStore = MemoryStore()  # the specification's ``chat_sessions``: of this process


def get_chat_history(session_id: str, *, store: SessionStore = CHAT_SESSIONS, owner: str = LOCAL) -> list[Turn]:
    """The last ten turns of a session, oldest first; none for a new one. Raises what ``SessionStore.history`` does."""
    return store.history(owner, session_id)


def add_to_history(
    session_id: str, entry: Turn | Mapping[str, Any], *, store: SessionStore = CHAT_SESSIONS, owner: str = LOCAL
) -> None:
    """Put an entry behind the session's others. Raises UsageError for one that is no turn (``turns.turn_of``)."""
    store.add(owner, session_id, turn_of(entry))


def resolve_query_with_history(
    user_query: str,
    chat_history: Sequence[Turn | Mapping[str, Any]],
    *,
    database: Database | None = None,
    model: Model | None = None,
    config: Config | None = None,
) -> str:
    """The question as it stands alone, by ``config.session.resolve``; as it is where it is no follow-up.

    Raises UsageError where there is a history and no database or model.
    """
    if not chat_history:
        return user_query
    if database is None or model is None:
        raise UsageError("a follow-up is resolved over a database, with a model; pass database=... and model=...")
    history = tuple(map(turn_of, chat_history))
    question = Question(user_query, database.name, history=history, split=USER)
    return resolve(question, Resources(model, database), config or Config()).resolved_query


def generate_sql_with_agent(
    user_query: str,
    session_id: str,
    max_iterations: int = 3,
    *,
    database: Database,
    model: Model,
    store: SessionStore = CHAT_SESSIONS,
    owner: str = LOCAL,
    config: Config | None = None,
) -> dict[str, Any]:
    """An answer by the controller ``reflect`` in a session, as ``conversation.reply_of`` gives it.

    Raises UsageError for a number of iterations below 1, and what ``Conversation`` raises.
    """
    if max_iterations < 1:
        raise UsageError(f"max_iterations={max_iterations}; expected at least 1")
    settings = config or Config()
    reflect = settings.reflect.model_copy(update={"max_iterations": max_iterations})
    settings = settings.model_copy(update={"reflect": reflect})
    names: dict[str, Any] = {"session_id": session_id, "owner": owner}
    conversation = Conversation(database, model, "reflect", store, config=settings, **names)
    return reply_of(conversation.ask(user_query))
