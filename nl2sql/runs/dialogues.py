"""Dialogues in runs: which history a turn has, who makes a follow-up question whole, and what the control is given.

With the history ``gold`` every turn is a question of its own, behind the golds before it. With ``own`` the turns of a
dialogue are asked in order, and a turn has the history that a session would have: the user's earlier questions with
the SQL that this controller gave, where that ran.

>>> turns = [Question(text, "docks", text, meta={"interaction_id": "i", "turn": n}) for n, text in enumerate("abc", 1)]
>>> own = OwnHistories(turns)
>>> own.add(Episode(turns[0], "react", sql="SELECT 1"))
>>> own.add(Episode(turns[1], "react", sql="SELEC 2", error="database: near 'SELEC': syntax error"))
>>> [(turn.user_query, turn.sql) for turn in own.asked(turns[2]).history]
[('a', 'SELECT 1')]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import dropwhile
from typing import Any

from nl2sql.agents.controllers import NamedController
from nl2sql.agents.record import Episode
from nl2sql.benchmarks.dialogues import has_dialogues, interactions
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.interfaces import Controller, Question, Resources, Turn, Usage
from nl2sql.sessions.conversation import conversational

HISTORIES = ("gold", "own")
KEPT = 10  # turns of a session
TURN_FIELDS = ("sql", "error", "flags")  # of a trace: what a history is made of
RESOLVED_FIELDS = ("flags", "calls")  # of a trace: how a turn was understood, and at what cost
RESOLVED = "resolved"  # in a question's meta: what the run's own controller understood, for its control


def history_of(wanted: str, benchmark: str, questions: Sequence[Question]) -> str:
    """``gold`` or ``own`` for turns of dialogues (default: gold), "" for any other questions.

    Raises UsageError for another history, and for one where ``benchmark`` has no dialogues to take it from.
    """
    if wanted not in ("", *HISTORIES):
        raise UsageError(f"--history {wanted!r}; expected gold or own")
    told = has_dialogues(questions)
    loose = next((q.id for q in questions if q.history and "interaction_id" not in q.meta), None)
    if wanted == "own" and loose is not None:
        raise UsageError(
            f"--history own: question {loose} has a history and no interaction_id, so nobody knows the turns before "
            "it; add interaction_id and turn to questions.json, or leave out --history"
        )
    if wanted and not told:
        raise UsageError(
            f"--history {wanted}: benchmark {benchmark!r} holds no dialogues; expected packaged-dialogues, or a "
            "benchmark with interactions (docs/benchmarks.md): nl2sql eval --dialogues"
        )
    return wanted or ("gold" if told else "")


class OwnHistories:
    """The turns that were answered so far, by the ids of their ``questions``; dialogues may go on in many threads."""

    def __init__(self, questions: Sequence[Question], answered: Iterable[Mapping[str, Any]] = ()) -> None:
        """answered: traces (``TURN_FIELDS``) of turns that are finished, as a run folder keeps them."""
        self._dialogues = interactions(questions)
        self._before = {turn.id: turns[:number] for turns in self._dialogues for number, turn in enumerate(turns)}
        self._sessions: dict[str, Turn] = {}
        texts = {question.id: question.text for question in questions}
        for trace in answered:
            if trace["id"] in texts:
                self._note(trace["id"], texts[trace["id"]], trace["sql"], trace["error"], trace["flags"])

    def owed(self, finished: Collection[str]) -> list[Question]:
        """Of each dialogue the turns from the first on that is not finished: those behind it rest on its answer."""
        return [turn for turns in self._dialogues for turn in dropwhile(lambda turn: turn.id in finished, turns)]

    def asked(self, question: Question) -> Question:
        """The question behind the last turns of its dialogue whose SQL ran."""
        ran = [self._sessions[turn.id] for turn in self._before[question.id] if turn.id in self._sessions]
        return replace(question, history=tuple(ran[-KEPT:]))

    def add(self, episode: Episode) -> None:
        """An answer, from which the turns behind it take their history."""
        self._note(episode.question.id, episode.question.text, episode.sql, episode.error, episode.flags)

    def _note(self, id_: str, text: str, sql: str, error: str | None, flags: Mapping[str, Any]) -> None:
        self._sessions.pop(id_, None)
        if sql and not error:
            self._sessions[id_] = Turn(text, str(flags.get("session", {}).get("resolved_query", text)), sql)


def in_dialogue(named: NamedController, question: Question) -> NamedController:
    """The controller of a turn: its question is made whole first. Of any other question: ``named`` itself."""
    if not has_dialogues([question]):
        return named
    if resolved := question.meta.get(RESOLVED):
        return replace(named, run=_AsResolved(named.run, resolved))
    return replace(named, run=conversational(named.run))


@dataclass(frozen=True)
class _AsResolved:
    """A controller that is handed the question as another controller of the run understood it.

    It is charged what the understanding cost that one: the control has to pay for its context like the loop.
    """

    run: Controller
    resolved: Mapping[str, Any]

    def __call__(self, question: Question, resources: Resources, config: Config) -> Episode:
        session = self.resolved["session"]
        whole = replace(question, text=session["resolved_query"], previous_sql=session.get("previous_sql", ""))
        episode = self.run(whole, resources, config)
        resources.charge(self.resolved["usage"])
        episode.flags["session"] = session
        return episode


def as_resolved(questions: Sequence[Question], traces: Iterable[Mapping[str, Any]]) -> list[Question]:
    """The questions for a control: each turn carries what the run's own controller made of it, and what that cost.

    traces: of that controller (``RESOLVED_FIELDS``). A turn whose episode broke off is resolved anew.
    """
    understood = {
        trace["id"]: {"session": trace["flags"]["session"], "usage": resolve_usage(trace)}
        for trace in traces
        if "session" in trace["flags"]
    }
    return [
        replace(question, meta={**question.meta, RESOLVED: understood[question.id]})
        if question.id in understood
        else question
        for question in questions
    ]


def resolve_usage(trace: Mapping[str, Any]) -> Usage:
    """What it took to understand a turn: the sum of its calls of kind ``resolve``."""
    names = {field.name for field in fields(Usage)}
    used = [call["usage"] for call in trace["calls"] if call["kind"] == "resolve"]
    return sum((Usage(**{name: value for name, value in usage.items() if name in names}) for usage in used), Usage())
