"""The specification's service with sessions (STORY-AGENT-7), with its methods under its names.

>>> AgenticText2SQLService()._resolve_query_with_history("Top 10 products by revenue", [])
'Top 10 products by revenue'

``chat_sessions`` is its dictionary, ``{session_id: [entries]}``, in memory and for one user; entries are dictionaries,
kept as they came. ``nl2sql.Conversation`` is what to use otherwise: owners, stores, names that are checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from nl2sql.agents.controllers import answer, episode_model, get_controller
from nl2sql.config import Config, build_config
from nl2sql.errors import UsageError
from nl2sql.interfaces import USER, Database, Model, Question, Resources, Turn
from nl2sql.sessions.conversation import reply_of, result_of
from nl2sql.sessions.conversational import conversational
from nl2sql.sessions.periods import period_of, said_again
from nl2sql.sessions.resolution import resolve
from nl2sql.sessions.turns import FIELDS, KEPT, new_turn, summarize_results


class AgenticText2SQLService:
    """Questions answered by the controller ``reflect``, each with the session before it.

    database, model: needed where a follow-up is resolved, and for an answer. config: default: the specification's own
    prompt makes follow-ups whole.
    """

    def __init__(
        self, database: Database | None = None, model: Model | None = None, config: Config | None = None
    ) -> None:
        self.database, self.model = database, model
        self.config = config or build_config({"session": {"resolve": "rewrite"}})
        self.chat_sessions: dict[str, list[dict[str, Any]]] = {}

    def generate_sql_with_agent(self, user_query: str, session_id: str, max_iterations: int = 3) -> dict[str, Any]:
        """The answer as ``conversation.reply_of`` gives it; what ran is added to the session.

        Raises UsageError for a number of iterations below 1, and without a database or a model.
        """
        if max_iterations < 1:
            raise UsageError(f"max_iterations={max_iterations}; expected at least 1")
        database, model = self._opened()
        reflect = self.config.reflect.model_copy(update={"max_iterations": max_iterations})
        config = self.config.model_copy(update={"reflect": reflect})
        named = get_controller("reflect")
        history = _turns(self._get_chat_history(session_id))
        question = Question(user_query, database.name, history=history, split=USER, meta={"session_id": session_id})
        episode = answer(question, database, model, replace(named, run=conversational(named.run)), config)
        reply = reply_of(episode)
        if (result := result_of(episode, database, config)) is not None:
            self._add_to_history(session_id, asdict(new_turn(user_query, episode.sql, result, reply["resolved_query"])))
        return reply

    def _get_chat_history(self, session_id: str) -> list[dict[str, Any]]:
        """The last ten entries of a session, oldest first; none for a new one."""
        return self.chat_sessions.get(session_id, [])

    def _add_to_history(self, session_id: str, entry: Mapping[str, Any]) -> None:
        self.chat_sessions[session_id] = [*self._get_chat_history(session_id), dict(entry)][-KEPT:]

    def _resolve_query_with_history(self, user_query: str, chat_history: Sequence[Mapping[str, Any]]) -> str:
        """The question as it stands alone, by ``config.session.resolve``; as it is where it is no follow-up. What only
        says another time is the previous question in that time, where the text of the model was refused.

        Raises UsageError where there is a history and no database or model.
        """
        if not chat_history:
            return user_query
        database, model = self._opened()
        question = Question(user_query, database.name, history=_turns(chat_history), split=USER)
        opened = Resources(episode_model(model, question, "reflect"), database)
        resolution, period = resolve(question, opened, self.config), period_of(user_query)
        lost = resolution.fallback and not resolution.fallback.startswith("model: ")
        if lost and period and period.units:
            last = question.history[-1]
            return said_again(last.resolved_query or last.user_query, period)
        return resolution.resolved_query

    def _summarize_results(self, execution_result: Mapping[str, Any] | None) -> str:
        return summarize_results(execution_result)

    def _opened(self) -> tuple[Database, Model]:
        if self.database is None or self.model is None:
            raise UsageError(
                "a follow-up is resolved over a database, with a model: AgenticText2SQLService(database, model)"
            )
        return self.database, self.model


def _turns(entries: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """The entries as turns; what is no field of one is left out."""
    known = ({name: str(entry[name]) for name in FIELDS if name in entry} for entry in entries)
    return tuple(Turn(**{"user_query": "", **fields}) for fields in known)
