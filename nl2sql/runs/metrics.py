"""What a run reports beside its metrics: turns of dialogues, drawn samples, structured queries.

>>> from nl2sql.interfaces import Turn
>>> meta = {"interaction_id": "i", "standalone": "Of these?"}
>>> told = [Question("Of these?", "d", str(n), history=(Turn("a"),), meta=meta | {"turn": n}) for n in (2, 3)]
>>> seen = {"2": {"is_followup": True, "resolved_query": "all of these"}, "3": {"resolved_query": "Of these?"}}
>>> scored = understanding(told, seen)
>>> scored["precision"]["value"], scored["recall"]["value"], scored["unchanged"]["value"]
(0.0, None, 0.5)

>>> round(pass_at(2, [True, False, False]), 3)
0.667
>>> majority([{"rows": 0}, {"rows": 1}, {"rows": 1}, {"rows": None}], 4)
1

>>> stages = ["validation", "answered"], ["answered"]
>>> scored = vizql_scores({"flags": {"vizql": {"stages": seen}}} for seen in stages)
>>> scored["valid"]["1"]["value"], scored["valid"]["2"]["value"], scored["versions"]
(0.5, 1.0, 1.5)
>>> vizql_notes(scored)[0]
'valid at the first attempt 50.0 [9.5, 90.5], after refinement 1 100.0 [34.2, 100.0], 2 100.0 [34.2, 100.0], 3 100.0 [34.2, 100.0] of 2'

>>> vizql_scores([{"flags": {"vizql": {"stages": ["answered"]}}}, *[{"flags": {}}] * 3])["valid"]["1"]["value"]
0.25
"""  # noqa: E501

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nl2sql.benchmarks.dialogues import interactions
from nl2sql.eval import Scores, score_many
from nl2sql.eval.settings import Settings
from nl2sql.eval.stats import clustered_interval, percent, wilson_interval
from nl2sql.interfaces import Benchmark, Question, Usage
from nl2sql.runs.dialogues import resolve_usage
from nl2sql.runs.plan import CONTROLS

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


# --------------------------------------------------------------- drawn samples: pass@k and majority
# An episode keeps what it wrote in ``flags["samples"]``: ``[{"sql", "rows"}, ...]`` in the order of
# writing, with one number in ``rows`` for all that gave the same rows, None where a query did not
# run. pass@k (arXiv 2107.03374) is the chance that one of k samples, drawn from those of the
# question, is right; with all of them, whether any is. majority@k is the verdict on the rows that
# most of the first k gave, ties going to the earliest. A question with fewer than k samples counts
# with all that it has, one without any as wrong.

Samples = Mapping[str, Sequence[Mapping[str, Any]]]  # question id -> what was written


def samples_of(traces: Sequence[Mapping[str, Any]]) -> Samples:
    return {trace["id"]: trace["flags"]["samples"] for trace in traces if trace["flags"].get("samples")}


def sample_metrics(
    benchmark: Benchmark, questions: Sequence[Question], drawn: Samples, settings: Settings
) -> dict[str, dict[str, Any]]:
    """Metric -> its interval as data, clustered by database; {} where nothing was drawn. Scored without TS."""
    most = max(map(len, drawn.values()), default=0)
    if most < 2:
        return {}
    ks = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    files = {
        str(place): {id_: samples[place]["sql"] for id_, samples in drawn.items() if place < len(samples)}
        for place in range(most)
    }
    chosen = settings.chosen.model_copy(update={"replicas": 0})
    scored = score_many(benchmark, questions, files, replace(settings, chosen=chosen, causes=False, metrics=None))
    first = scored["0"]
    right = {
        item.id: [scored[str(place)].items[number].ex for place in range(len(drawn.get(item.id, ())))]
        for number, item in enumerate(first.items)
    }
    values = {f"pass@{k}": {id_: pass_at(k, verdicts) for id_, verdicts in right.items()} for k in ks}
    values |= {f"majority@{k}": {id_: _voted(k, drawn.get(id_, ()), of) for id_, of in right.items()} for k in ks[2:]}
    return _intervals(first, values)


def _intervals(scores: Scores, values: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    metrics = {name: (lambda item, of=of: of[item.id]) for name, of in values.items()}
    shown = scores.metrics(metrics)
    return {name: shown[name].to_dict() for name in values}


def pass_at(k: int, right: Sequence[bool]) -> float:
    """The chance that k of the samples, drawn without putting back, hold a right one; 0 without samples."""
    n, wrong = len(right), len(right) - sum(right)
    k = min(k, n)
    return 1 - math.comb(wrong, k) / math.comb(n, k)


def majority(samples: Sequence[Mapping[str, Any]], k: int) -> int | None:
    """The place of the first sample with the rows that most of the first ``k`` gave; None where none ran."""
    ran = [sample["rows"] for sample in samples[:k] if sample["rows"] is not None]
    if not ran:
        return None
    votes = Counter(ran)  # the earliest of equals comes first
    return [sample["rows"] for sample in samples].index(votes.most_common(1)[0][0])


def _voted(k: int, samples: Sequence[Mapping[str, Any]], right: Sequence[bool]) -> float:
    place = majority(samples, k)
    return float(place is not None and right[place])


def sample_rows(report: Mapping[str, Any], systems: Sequence[str]) -> list[list[str]]:
    """The lines of the table: a metric, and its interval for each system that drew samples."""
    drawn = report.get("samples", {})
    names = dict.fromkeys(name for metrics in drawn.values() for name in metrics)
    return [
        [name, *(percent(drawn[system][name]) if name in drawn.get(system, {}) else "" for system in systems)]
        for name in names
    ]


# ------------------------------------------------------------------------------- structured queries
# A question counts as valid from the first version on that was; what came of its execution is in VA
# and EX.

VERSIONS = (1, 2, 3, 4)  # built, and three refinements


def vizql_scores(traces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The report's ``vizql``: shares of questions with a valid version so far, versions per question, last stages.

    An episode that broke off counts as one without a version. Empty for a run without structured queries.
    """
    told = [trace["flags"].get("vizql") for trace in traces]
    if not any(told):
        return {}
    stages = [said["stages"] if said else [] for said in told]
    first = [next((n for n, stage in enumerate(seen, 1) if stage != "validation"), None) for seen in stages]
    counts = {str(version): sum(n is not None and n <= version for n in first) for version in VERSIONS}
    valid = {version: wilson_interval(count / len(first), len(first)).to_dict() for version, count in counts.items()}
    return {
        "valid": valid,
        "versions": round(sum(map(len, stages)) / len(stages), 3),
        "ended": dict(Counter(seen[-1] if seen else "none" for seen in stages)),
    }


def vizql_notes(told: Mapping[str, Any], name: str = "") -> list[str]:
    """The lines under a table; ``name`` stands in front of them."""
    first, *later = (f"{percent(told['valid'][str(version)])}" for version in VERSIONS)
    after = ", ".join(f"{n} {share}" for n, share in enumerate(later, 1))
    before = f"{name}: " if name else ""
    line = f"{before}valid at the first attempt {first}, after refinement {after} of {told['valid']['1']['n']}"
    ended = ", ".join(f"{stage} {count}" for stage, count in sorted(told["ended"].items()))
    return [line, f"{before}{told['versions']:.2f} versions per question; ended at: {ended}"]
