"""What a run over dialogues reports beside its metrics: matches by turn and kind, and what became of the questions.

Question match is EX; an interaction matches where all of its turns do. A turn is a follow-up where its gold standalone
text differs from what the user wrote; benchmarks that give no such text (SParC, CoSQL) have no detection here.

>>> from nl2sql.interfaces import Turn
>>> meta = {"interaction_id": "i", "standalone": "Of these?"}
>>> told = [Question("Of these?", "d", str(n), history=(Turn("a"),), meta=meta | {"turn": n}) for n in (2, 3)]
>>> seen = {"2": {"is_followup": True, "resolved_query": "all of these"}, "3": {"resolved_query": "Of these?"}}
>>> scored = understanding(told, seen)
>>> scored["precision"]["value"], scored["recall"]["value"], scored["unchanged"]["value"]
(0.0, None, 0.5)

Not covered: whether a resolved question means what the gold standalone text does; EX says what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nl2sql.benchmarks.dialogues import interactions
from nl2sql.eval.stats import clustered_interval, percent
from nl2sql.interfaces import Question, Usage
from nl2sql.runs.controls import CONTROLS
from nl2sql.runs.dialogues import resolve_usage

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
    """The share of the questions that are right."""
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


# --------------------------------------------------------------------------------------------------- showing


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
