"""Conversations: a follow-up made whole for any controller, a session over a database, the specification's service.

    conversation = nl2sql.Conversation(database, nl2sql.load_model("smollm2-135m"))
    conversation.ask("How many customers are there?")
    conversation.ask("What about those in Germany?").flags["session"]["resolved_query"]

>>> from nl2sql.interfaces import Question
>>> asked_back = Episode(Question("Which?"), "react", finish="clarification_needed", error="question: Which table?")
>>> result_of(asked_back, None, Config()) is None
True

A turn enters the history where its SQL ran. A failure does not, nor does a question that was asked back
(``finish="clarification_needed"``): the next question follows on the last answer that there was.

Not covered: a session that moves to another database. Its queries mean nothing there, and it is refused.

>>> AgenticText2SQLService()._resolve_query_with_history("Top 10 products by revenue", [])
'Top 10 products by revenue'

>>> from nl2sql.agents.controllers import get_controller
>>> conversational(get_controller("single_shot").run).__name__
'single_shot'
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import html
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.context.grounding import ground
from nl2sql.agents.controllers import NamedController, answer, episode_model, get_controller, with_preset
from nl2sql.agents.record import Episode, json_tree, make_episode
from nl2sql.agents.setup import open_task
from nl2sql.agents.task import State
from nl2sql.agents.writing import guard
from nl2sql.config import Config, build_config
from nl2sql.databases.validation import validate_sql
from nl2sql.errors import UsageError, one_line
from nl2sql.interfaces import (
    USER,
    Controller,
    Database,
    EventSink,
    Model,
    Question,
    Resources,
    RunResult,
    Turn,
    adapter_at,
    no_sink,
)
from nl2sql.sessions.detection import names_nothing
from nl2sql.sessions.periods import period_of, said_again
from nl2sql.sessions.resolution import Resolution, cue_words, resolve
from nl2sql.sessions.stores import MemoryStore, SessionStore
from nl2sql.sessions.turns import (
    FIELDS,
    KEPT,
    checked_owner,
    checked_session,
    new_session_id,
    new_turn,
    summarize_results,
)
from nl2sql.sql.parse import MAX_CHARS
from nl2sql.sql.text import words

# -------------------------------------------------------------------- any controller with a history
# The resolution is part of the episode: its model calls are counted and stand first in
# ``Episode.calls`` (kind ``resolve``), and ``Episode.flags["session"]`` says what was understood.
# The loop and its control get the same resolved question, because a resolution depends on question,
# history, database and config alone. A question without a history reaches the controller as the
# very same object, at no cost.


def conversational(controller: Controller) -> Controller:
    """``controller``, handed a question that is whole. Own loops work as well; what they raise is raised."""

    @functools.wraps(controller)
    def in_conversation(question: Question, resources: Resources, config: Config) -> Episode:
        if (episode := _talk(question, resources, config)) is not None:
            episode.flags["session"] = Resolution(question).flags(question)
            return episode
        resolution = resolve(question, resources, config) if question.history else Resolution(question)
        episode = _clarification(resolution, resources, config) or _edited_answer(resolution, resources, config)
        if episode is None:
            episode = controller(resolution.question, *_less_adapted(resolution, resources, config))
        episode.calls = [*resolution.calls, *episode.calls]
        episode.flags["session"] = resolution.flags(question)
        return episode

    return in_conversation


ADAPTER_SCALE = 0.3  # beside a previous query; of 116 follow-ups the 0.5B has 64 right at 0, 75 at 0.3, 52 at 1


def _less_adapted(resolution: Resolution, resources: Resources, config: Config) -> tuple[Resources, Config]:
    """Beside a previous query a model answers with a part of its adapter, and in its own style: the adapters know
    questions that stand alone (docs/sessions.md). Where the model cannot change that, nothing changes."""
    beside = resolution.question.previous_sql and not resolution.edited_sql
    plain = adapter_at(resources.model, ADAPTER_SCALE) if beside else resources.model
    if plain is resources.model:
        return resources, config
    style = {"constrain": "none"} if config.constrain in ("auto", "plain") else {}
    return replace(resources, model=plain), config.model_copy(update=style)


def _talk(question: Question, resources: Resources, config: Config) -> Episode | None:
    """The answer in words to "thanks", "hello", "why?", "ok great": no query, and so no turn of a session."""
    tokens, cues = {word.partition("'")[0] for word in words(question.text)}, cue_words()
    if not tokens & set(cues["talk"]) or tokens - {*cues["talk"], *cues["beside_talk"]}:
        return None
    tables = ", ".join(table.name for table in resources.database.schema().tables)
    return Episode(question, "", finish="talk", flags={"talk": prompts.prompt("talk", config.prompts, tables=tables)})


def _clarification(resolution: Resolution, resources: Resources, config: Config) -> Episode | None:
    """With ``session.clarify``: a question back, where nothing that was asked is in schema, values or history."""
    question, database = resolution.question, resources.database
    if not config.session.clarify or resolution.is_followup:
        return None
    schema = database.schema()
    if not names_nothing(question.text, schema) or ground(question.text, database, 1):
        return None
    tables = ", ".join(table.name for table in schema.tables)
    text = prompts.prompt("clarify", config.prompts, tables=tables)
    flags = {"clarification": text}
    return Episode(question, "", finish="clarification_needed", error="question: " + text, flags=flags)


def _edited_answer(resolution: Resolution, resources: Resources, config: Config) -> Episode | None:
    """The previous query in another time, or edited, where guardrails, validation and the run accept it."""
    if not resolution.edited_sql:
        return None
    # Its columns, order and limit were asked for, now or earlier; the words of the one text need not say so.
    react = config.react.model_copy(update={"postprocess": False, "projection_contract": False})
    task = open_task(resolution.question, resources, config.model_copy(update={"react": react}))
    sql, refused = guard(task, resolution.edited_sql, enabled=config.react.guardrails)
    if refused or not validate_sql(sql, task.schema, resources.database)["valid"] or not task.result_of(sql).success:
        return None
    state = State(task)
    state.record({"step": 0, "llm": resolution.edited_sql})
    state.decide(0, "generate_sql", resolution.strategy, "accept", {})
    return make_episode(
        task,
        "",
        sql,
        raw_sql=resolution.edited_sql,
        finish="answered",
        error=None,
        steps=1,
        trace=state.trace,
        decision_log=state.decision_log,
        messages=[],
        transcript=resolution.edited_sql,
    )


# ----------------------------------------------------------------- a conversation over one database

logger = logging.getLogger(__name__)

LOCAL = "local"  # the owner where a program has one user
MOST_ROWS = 1000  # of an answer as JSON


class Conversation:
    """Questions in turn, over one database and with one model.

    controller: a name, or any callable ``(Question, Resources, Config) -> Episode``. store: default: memory.
    session_id: of a session to go on with, or a name for a new one; default: one that nobody can guess.
    corpus: fixes, in place of ``config.repair.corpus``. Raises UsageError for an unknown controller, for names that
    can be none, and for a session over another database; what the store raises.
    """

    def __init__(
        self,
        database: Database,
        model: Model,
        controller: str | Callable[..., Episode] | NamedController = "react",
        store: SessionStore | None = None,
        *,
        session_id: str | None = None,
        owner: str = LOCAL,
        config: Config | None = None,
        corpus: Any = None,
    ) -> None:
        named = controller if isinstance(controller, NamedController) else get_controller(controller)
        self.database, self.model, self.config = database, model, config
        self.owner, self.session_id = checked_owner(owner), checked_session(session_id or new_session_id())
        self.episodes: list[Episode] = []  # the last ones that were asked here, failures too
        self._store: SessionStore = MemoryStore() if store is None else store
        self._controller = replace(named, run=conversational(named.run))
        self._corpus = corpus
        if session_id is not None:
            self._check_database()

    @property
    def history(self) -> list[Turn]:
        """The turns that the next question follows on, oldest first."""
        return self._store.history(self.owner, self.session_id)

    def ask(self, text: str, *, sink: EventSink = no_sink, cancel: threading.Event | None = None) -> Episode:
        """Answer ``text``; ``Episode.flags["session"]`` says what was understood.

        cancel: when it is set, the question is given up and no turn is kept, also where an answer came all the same.
        Raises UsageError for a question that is empty or too long; every other failure is in ``Episode.error``.
        """
        if len(text) > MAX_CHARS:
            raise UsageError(f"the question has {len(text):,} characters; a session takes at most {MAX_CHARS:,}")
        meta = {"session_id": self.session_id}
        question = Question(text, self.database.name, history=tuple(self.history), split=USER, meta=meta)
        options: dict[str, Any] = {"corpus": self._corpus, "sink": sink, "cancel": cancel}
        episode = answer(question, self.database, self.model, self._controller, self.config, **options)
        understood = episode.flags.setdefault("session", Resolution(question).flags(question))
        given_up = cancel is not None and cancel.is_set()
        result = None if given_up else result_of(episode, self.database, with_preset(self._controller, self.config))
        if result is not None:
            self._keep(new_turn(text, episode.sql, result, understood["resolved_query"]))
        self.episodes = [*self.episodes, episode][-KEPT:]
        return episode

    def reset(self) -> None:
        """Forget the session; the next question begins another one."""
        self._store.delete(self.owner, self.session_id)
        self.session_id, self.episodes = new_session_id(), []

    def __repr__(self) -> str:
        return f"<conversation {self.session_id} over {self.database.name}: {len(self.history)} turns>"

    def _repr_html_(self) -> str:
        seen = {episode.question.text for episode in self.episodes}
        earlier = [turn for turn in self.history if turn.user_query not in seen]
        parts = [f"<p>{html.escape(turn.user_query)}<br><code>{html.escape(turn.sql)}</code></p>" for turn in earlier]
        for episode in self.episodes:
            parts += [f"<p>{html.escape(line)}</p>" for line in understood_lines(episode)]
            parts.append(episode._repr_html_())
        return "".join(parts)

    def _keep(self, turn: Turn) -> None:
        try:
            self._store.add(self.owner, self.session_id, turn)
        except UsageError as error:  # a resolved question that is too long; the answer stands all the same
            logger.warning("a turn of session %s is not kept: %s", self.session_id, error)

    def _check_database(self) -> None:
        turns = self.history
        if not turns:
            return
        judged = validate_sql(turns[-1].sql, self.database.schema(), self.database)
        if not judged["valid"]:
            raise UsageError(
                f"session {self.session_id!r} is over another database than {self.database.name!r} (its last query: "
                f"{one_line(judged['reason'], 80)}); give its database, or another session id"
            )


def result_of(episode: Episode, database: Database | None, config: Config) -> RunResult | None:
    """The result of an answer whose SQL ran; None for a failure, and for a question that was asked back.

    A loop of one's own may hand back SQL that it did not run: that is run here.
    """
    if episode.error or not episode.sql or episode.finish == "clarification_needed" or database is None:
        return None
    if episode.columns:
        return RunResult(True, episode.columns, episode.rows)
    bounds = config.execution
    result = database.run(episode.sql, timeout_s=bounds.timeout_s, max_rows=bounds.max_rows)
    return result if result.success else None


def understood_lines(episode: Episode) -> list[str]:
    """What a follow-up was taken for, as lines; none for a question that stands alone."""
    session = episode.flags.get("session", {})
    if not session.get("is_followup"):
        return []
    evidence = ", ".join(f"{item['kind']} {item['text']!r}" for item in session.get("evidence", ()))
    lines = [f"understood as: {session['resolved_query']}", f"a follow-up by {evidence}" if evidence else ""]
    if session["strategy"] == "beside" or session.get("fallback"):
        why = f"not made whole ({session['fallback']}); " if session.get("fallback") else ""
        lines[0] = f"{why}asked as it is, beside the previous query"
    return [line for line in lines if line]


def reply_of(episode: Episode) -> dict[str, Any]:
    """An answer as plain JSON, with ``session_id``, ``is_followup`` and ``resolved_query``; ``text`` is one in words.

    ``verified``: which verified query it is, which were its examples, and which are stale; empty without a file.
    ``rows`` are the first ``MOST_ROWS``; ``truncated`` says that there are more. ``confidence`` is None where the
    controller has none.
    """
    session = episode.flags.get("session", {})
    return {
        "sql": episode.sql,
        "columns": list(episode.columns),
        "rows": json_tree(episode.rows[:MOST_ROWS]),
        "row_count": len(episode.rows),
        "truncated": len(episode.rows) > MOST_ROWS,
        "confidence": episode.flags.get("confidence"),
        "verified": episode.flags.get("verified", {}),
        "suspicions": list(episode.flags.get("suspicions", ())),
        "error": episode.error,
        "text": episode.flags.get("talk") or episode.flags.get("clarification") or "",
        "session_id": session.get("session_id", ""),
        "is_followup": session.get("is_followup", False),
        "resolved_query": session.get("resolved_query", episode.question.text),
    }


def local_owner() -> str:
    """The user of this machine, as an owner: the login name, or what stands for one that can be no owner."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        return LOCAL
    try:
        return checked_owner(name)
    except UsageError:  # another user's name may come to the same letters, and is told apart
        return f"user-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


# ---------------------------------------------------------------------- the specification's service
# ``chat_sessions`` is its dictionary, ``{session_id: [entries]}``, in memory and for one user;
# entries are dictionaries, kept as they came. ``nl2sql.Conversation`` is what to use otherwise:
# owners, stores, names that are checked.


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
    records = ({name: str(entry[name]) for name in FIELDS if name in entry} for entry in entries)
    return tuple(Turn(**{"user_query": "", **fields}) for fields in records)
