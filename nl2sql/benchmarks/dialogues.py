"""Dialogues as benchmarks: each turn is one question, whose history is the turns before it with their golds.

SParC and CoSQL in their official layout are lists of ``{database_id, interaction: [{utterance, query}, ...], final}``;
a uniform folder has a record per turn with ``interaction_id``, ``turn`` and, if it likes, ``history``.

>>> shown = {"utterance": "List the ships.", "query": "SELECT name FROM ship"}, {"utterance": "How many?", "query": ""}
>>> [(row["id"], row["turn"]) for row in turn_records([{"database_id": "docks", "interaction": [*shown]}], "sparc-dev")]
[('sparc-dev-0.1', 1), ('sparc-dev-0.2', 2)]

Not covered: an interaction's ``final`` question, which says the goal of all of its turns; the answers that CoSQL's
system gave in words, where they are no part of the utterance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any

from nl2sql.benchmarks.core import draw_sample, scorable
from nl2sql.errors import BenchmarkError
from nl2sql.interfaces import Question, Turn


def is_interactions(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the records of a file are whole dialogues, as in SParC and CoSQL, and not single questions."""
    return bool(records) and "interaction" in records[0]


def turn_records(records: Iterable[Mapping[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """A record per turn of official interactions, with ``id``, ``interaction_id`` and ``turn`` made from ``prefix``.

    Raises BenchmarkError for a record that holds no list of turns.
    """
    turns: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        name = f"{prefix}-{number}"
        told = record.get("interaction")
        if not isinstance(told, list) or not all(isinstance(turn, Mapping) for turn in told):
            raise BenchmarkError(
                f"interaction {name} has {str(told)[:60]!r} in place of its turns; expected "
                "{'database_id': ..., 'interaction': [{'utterance', 'query'}, ...], 'final': ...}"
            )
        shared = {key: value for key, value in record.items() if key not in ("interaction", "final")}
        for turn, said in enumerate(told, 1):
            place = {"id": f"{name}.{turn}", "interaction_id": name, "turn": turn}
            turns.append({**shared, **said, **place})
    return turns


def with_gold_histories(questions: Sequence[Question]) -> list[Question]:
    """The same questions; a turn of a dialogue gets the turns before it, oldest first, with their golds.

    A question is a turn where its ``meta`` has ``interaction_id``; ``meta["turn"]`` orders it, and its place in the
    list where that is missing. A turn that declares a history keeps those texts, each with what is known of the
    earlier turn that it names. A turn before it that has no gold is passed over: a session keeps what ran.
    Raises BenchmarkError for a ``turn`` that is no whole number, or is there twice.
    """
    told = dict(enumerate(questions))
    for turns in _by_interaction(questions):
        before: list[Question] = []
        for index, question in turns:
            told[index] = replace(question, history=_history(question, before))
            before += [question] if question.gold else []
    return list(told.values())


def _history(question: Question, before: Sequence[Question]) -> tuple[Turn, ...]:
    """What the question declares, completed from the turns ``before`` it; all of these where it declares nothing."""
    golds = {turn.text: _gold_turn(turn) for turn in before}
    if question.history:
        return tuple(turn if turn.sql else golds.get(turn.user_query, turn) for turn in question.history)
    return tuple(_gold_turn(turn) for turn in before)


def _by_interaction(questions: Sequence[Question]) -> Iterable[list[tuple[int, Question]]]:
    """The turns of each dialogue in order, each with its place in the list; ``meta["turn"]`` of each is a number."""
    groups: dict[str, dict[int, tuple[int, Question]]] = {}
    for index, question in enumerate(questions):
        dialogue = question.meta.get("interaction_id")
        if dialogue is None:
            continue
        group = groups.setdefault(str(dialogue), {})
        number = question.meta.get("turn", len(group) + 1)
        if isinstance(number, bool) or not isinstance(number, int) or number in group:
            why = "is no whole number" if number not in group else "is there twice"
            raise BenchmarkError(
                f"question {question.id}: turn {number!r} of interaction {dialogue!r} {why}; expected 1, 2, 3, ..."
            )
        group[number] = index, replace(question, meta={**question.meta, "turn": number})
    return [[group[number] for number in sorted(group)] for group in groups.values()]


def _gold_turn(question: Question) -> Turn:
    return Turn(question.text, str(question.meta.get("standalone") or ""), question.gold[0])


def has_dialogues(questions: Iterable[Question]) -> bool:
    """Whether any question is a turn of a dialogue."""
    return any(question.history or "interaction_id" in question.meta for question in questions)


def interactions(questions: Iterable[Question]) -> list[list[Question]]:
    """The questions by dialogue, in order of their turns; a question outside of any is one by itself."""
    groups: dict[tuple[str, str], list[Question]] = {}
    for question in questions:
        dialogue = question.meta.get("interaction_id")
        key = ("question", question.id) if dialogue is None else ("dialogue", str(dialogue))
        groups.setdefault(key, []).append(question)
    return [sorted(group, key=lambda turn: turn.meta.get("turn", 0)) for group in groups.values()]


def behind_left_out(questions: Iterable[Question]) -> set[str]:
    """The ids of turns that are scored themselves, behind a turn of their dialogue that scores leave out."""
    behind = (turn for turns in interactions(questions) for turn in dropwhile(scorable, turns))
    return {turn.id for turn in behind if scorable(turn)}


def draw_dialogues(questions: Sequence[Question], limit: int | None, seed: int = 0) -> list[Question]:
    """All turns of ``limit`` dialogues, drawn by database as ``draw_sample`` draws questions; in their order.

    Raises UsageError for a limit below 1.
    """
    groups = {group[0].id: group for group in interactions(questions)}
    drawn = draw_sample([group[0] for group in groups.values()], limit, seed)
    kept = {turn.id for first in drawn for turn in groups[first.id]}
    return [question for question in questions if question.id in kept]
