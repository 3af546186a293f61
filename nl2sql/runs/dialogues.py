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

>>> meta = {"interaction_id": "i", "standalone": "Of these?"}
>>> told = [Question("Of these?", "d", str(n), history=(Turn("a"),), meta=meta | {"turn": n}) for n in (2, 3)]
>>> seen = {"2": {"is_followup": True, "resolved_query": "all of these"}, "3": {"resolved_query": "Of these?"}}
>>> scored = understanding(told, seen)
>>> scored["precision"]["value"], scored["recall"]["value"], scored["unchanged"]["value"]
(0.0, None, 0.5)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import dropwhile
from typing import Any

from nl2sql.agents.controllers import NamedController
from nl2sql.agents.record import Episode
from nl2sql.benchmarks.core import has_dialogues, interactions
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.eval.stats import clustered_interval, percent
from nl2sql.interfaces import Controller, Question, Resources, Turn, Usage
from nl2sql.runs.plan import CONTROLS
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

    def pending(self, finished: Collection[str]) -> list[Question]:
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
    told = {id_: {RESOLVED: found} for id_, found in understood.items()}
    return [replace(question, meta={**question.meta, **told.get(question.id, {})}) for question in questions]


def resolve_usage(trace: Mapping[str, Any]) -> Usage:
    """What it took to understand a turn: the sum of its calls of kind ``resolve``."""
    names = {field.name for field in fields(Usage)}
    used = [call["usage"] for call in trace["calls"] if call["kind"] == "resolve"]
    return sum((Usage(**{name: value for name, value in usage.items() if name in names}) for usage in used), Usage())


# ----------------------------------------------------------------------- dialogues by turn and kind
# Question match is EX; an interaction matches where all of its turns do. A turn is a follow-up
# where its gold standalone text differs from what the user wrote; benchmarks that give no such text
# (SParC, CoSQL) have no detection here.
#
# Not covered: whether a resolved question means what the gold standalone text does; EX says what
# came of it.

RESOLVE = "session.resolve"
LATER = "later"  # all turns but the first of each dialogue
Verdicts = Mapping[str, bool]


def dialogue_scores(
    history: str,
    questions: Sequence[Question],
    items: Sequence[Mapping[str, Any]],
    traces: Iterable[Mapping[str, Any]],
) -> dict[str, Any]:
    """The report's ``dialogues``: counts, matches of the run and its controls, detection, tokens.

    items: those of the report. traces: of the run's own controller, with ``flags`` and ``calls``.
    """
    sessions: dict[str, Mapping[str, Any]] = {}
    spent = Usage()
    for trace in traces:
        sessions[trace["id"]] = trace["flags"].get("session", {})
        spent += resolve_usage(trace)
    present = [control for control in CONTROLS if items and control.item in items[0]]
    verdicts = {control.name: {item["id"]: bool(item[control.item]) for item in items} for control in present}
    return {
        "history": history,
        "dialogues": len(interactions(questions)),
        **matches(questions, {item["id"]: bool(item["ex"]) for item in items}),
        **understanding(questions, sessions),
        "resolve_usage": spent.to_dict(),
        "control": {name: matches(questions, right) for name, right in verdicts.items()},
    }


def matches(questions: Sequence[Question], right: Verdicts) -> dict[str, Any]:
    """Question match in all, of later turns, by turn and by kind; interaction match. Intervals cluster by dialogue.

    A turn has the number that its dialogue gives it, also where scores leave out the turns before it.
    """
    dialogues = interactions(questions)
    turn_of = {turn.id: turn.meta.get("turn", number) for turns in dialogues for number, turn in enumerate(turns, 1)}
    whole = [turns[0] for turns in dialogues]
    matched = {turns[0].id: all(right[turn.id] for turn in turns) for turns in dialogues}
    return {
        "question_match": _share(questions, right),
        "interaction_match": _share(whole, matched),
        "by_turn": {
            **_grouped(questions, right, lambda question: str(turn_of[question.id])),
            LATER: _share([question for question in questions if turn_of[question.id] > 1], right),
        },
        "by_kind": _grouped(questions, right, lambda question: str(question.meta.get("kind") or "")),
    }


def _grouped(questions: Sequence[Question], right: Verdicts, by: Callable[[Question], str]) -> dict[str, Any]:
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(by(question), []).append(question)
    groups.pop("", None)
    order = sorted(groups, key=lambda name: (len(name), name)) if all(map(str.isdigit, groups)) else sorted(groups)
    return {name: _share(groups[name], right) for name in order}


def _share(questions: Sequence[Question], right: Verdicts) -> dict[str, Any]:
    clusters = [str(question.meta.get("interaction_id", question.id)) for question in questions]
    return clustered_interval([right[question.id] for question in questions], clusters).to_dict()


def understanding(questions: Sequence[Question], sessions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Precision and recall of detecting follow-ups, and the share of later stand-alone questions left byte for byte.

    sessions: question id -> ``flags["session"]``. Empty for questions without gold standalone texts.
    """
    told = [question for question in questions if question.history and question.meta.get("standalone")]
    if not told:
        return {}
    seen = {question.id: bool(sessions.get(question.id, {}).get("is_followup")) for question in told}
    truth = {question.id: question.meta["standalone"] != question.text for question in told}
    same = {q.id: sessions.get(q.id, {}).get("resolved_query", q.text) == q.text for q in told}
    return {
        "precision": _share([question for question in told if seen[question.id]], truth),
        "recall": _share([question for question in told if truth[question.id]], seen),
        "unchanged": _share([question for question in told if not truth[question.id]], same),
    }


def dialogue_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Rows under the metrics: a line per match, a column per system in the order of ``systems_of``."""
    told = report["dialogues"]
    systems = [told, *told["control"].values()]
    rows = [["interaction match", *(_shown(system["interaction_match"]) for system in systems)]]
    for part, what in (("by_turn", "turn"), ("by_kind", "kind")):
        for name in told[part]:
            label = "EX, later turns" if name == LATER else f"EX, {what} {name.replace('_', ' ')}"
            rows.append([label, *(_shown(system[part][name]) for system in systems)])
    return rows


def dialogue_notes(report: Mapping[str, Any]) -> list[str]:
    """The lines under the table: what was detected and left alone, and what it cost."""
    told = report["dialogues"]
    lines = [f"{told['dialogues']} dialogues, history {told['history']}"]
    if "precision" in told:
        found = ", ".join(f"{name} {_shown(told[name])}" for name in ("precision", "recall"))
        lines.append(f"follow-ups: {found}; stand-alone questions left as they were: {_shown(told['unchanged'])}")
    spent = told["resolve_usage"]
    tokens = spent["prompt_tokens"] + spent["completion_tokens"]
    charged = " (the control is charged the same)" if told["control"] else ""
    lines.append(f"resolution: {spent['model_calls']:,} model calls, {tokens:,} tokens{charged}")
    return lines


def cell_notes(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line per cell of an ablation over dialogues: later turns, beside its own control, and its share of the room.

    The room is what the cell with ``session.resolve: oracle`` has more than the first cell, on later turns.
    """
    told = {cell["name"]: cell["dialogues"] for cell in cells if "dialogues" in cell}
    later = {name: part["by_turn"][LATER] for name, part in told.items() if part["by_turn"][LATER]["n"]}
    base, best = cells[0]["name"], next((c["name"] for c in cells if c["changed"].get(RESOLVE) == "oracle"), None)
    lines = []
    for name, part in later.items():
        line = f"{name}: later turns {_shown(part)}, interactions {_shown(told[name]['interaction_match'])}"
        controls = told[name]["control"].items()
        line += "".join(f", {of.replace('_', ' ')} {percent(other['by_turn'][LATER])}" for of, other in controls)
        if best in later and name not in (base, best) and later[best]["value"] > later[base]["value"]:
            room = later[best]["value"] - later[base]["value"]
            share = (part["value"] - later[base]["value"]) / room
            line += f"; {100 * share:.0f}% of the {100 * room:.1f} points between {base} and {best}"
        lines.append(line)
    return lines


def _shown(interval: Mapping[str, Any]) -> str:
    return percent(interval) + f" of {interval['n']}" if interval["n"] else "none"
