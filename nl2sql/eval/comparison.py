"""Scores side by side: items that only one of two sets gets right, scores as published and as corrected, and EX
before and after a perturbation of the question.

>>> ranks({"a": 0.5, "b": 0.7, "c": 0.5})
{'a': 2, 'b': 1, 'c': 2}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from nl2sql.errors import UsageError
from nl2sql.eval.scores import ItemScore, Scores, one_metric
from nl2sql.eval.stats import clustered_interval, mcnemar, percent
from nl2sql.eval.tables import table_text
from nl2sql.interfaces import Question
from nl2sql.sql.features import FEATURES, LEVELS, UNKNOWN, features

Pair: TypeAlias = tuple[ItemScore, ItemScore]
Verdict: TypeAlias = Callable[[ItemScore], Any]
RIGHT = "right"
WIN, LOSS = (True, False), (False, True)


@dataclass(frozen=True)
class PairedMetric:
    """One metric of A and B over the same items. ``wins``: ids that only A gets right; ``losses``: only B."""

    a: float
    b: float
    n: int
    p: float  # exact McNemar, two-sided
    p_databases: float  # the same by database (``stats.signs_test``)
    wins: list[str]
    losses: list[str]


@dataclass(frozen=True)
class Group:
    """A part of the items, by one metric. No p here: many small groups tested at once would find chance."""

    n: int
    a: float
    b: float
    wins: int
    losses: int


@dataclass(frozen=True)
class Move:
    """Items that A fails for ``a`` and B for ``b`` (either may be "right")."""

    a: str
    b: str
    ids: list[str]


@dataclass(frozen=True)
class Comparison:
    """``groups``: by hardness and by each feature of the gold; ``moved``: most frequent first; all by ``metric``."""

    metric: str
    metrics: dict[str, PairedMetric]
    groups: dict[str, dict[str, Group]]
    failures_a: dict[str, int]
    failures_b: dict[str, int]
    moved: list[Move]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_scores(a: Scores, b: Scores, *, metric: str | None = None) -> Comparison:
    """Compare A with B over the items that both scored. ``metric`` decides wins by group and moved causes (EX).

    Raises UsageError where they share no item, or ``metric`` is not one of both.
    """
    theirs = {item.id: item for item in b.items}
    pairs = [(item, theirs[item.id]) for item in a.items if item.id in theirs]
    if not pairs:
        raise UsageError("the two scores share no item; score both on the same benchmark and split")
    verdicts = {
        name: verdict
        for name, verdict in a.columns().items()
        if name in b.columns() and name not in {*a.extra, *b.extra}
    }
    chosen = one_metric(metric or "EX", list(verdicts))
    verdict = verdicts[chosen]
    golds = a.gold_sql
    keyed = [({"hardness": a.hardness or UNKNOWN, **features(golds.get(a.id, ""))}, (a, b)) for a, b in pairs]
    orders: Mapping[str, Sequence[str]] = {"hardness": LEVELS, **FEATURES}
    return Comparison(
        chosen,
        {name: _paired(pairs, of) for name, of in verdicts.items()},
        {name: _groups([(keys[name], pair) for keys, pair in keyed], order, verdict) for name, order in orders.items()},
        _failures((first for first, _ in pairs), verdict),
        _failures((second for _, second in pairs), verdict),
        _moved(pairs, verdict),
    )


def _verdicts(pairs: Sequence[Pair], verdict: Verdict) -> tuple[list[tuple[bool, bool]], float, float]:
    """The verdicts of A and B on each item, and their means."""
    verdicts = [(bool(verdict(a)), bool(verdict(b))) for a, b in pairs]
    ours, theirs = (sum(side) / len(pairs) for side in zip(*verdicts, strict=True))
    return verdicts, ours, theirs


def _paired(pairs: Sequence[Pair], verdict: Verdict) -> PairedMetric:
    verdicts, ours, theirs = _verdicts(pairs, verdict)
    test = mcnemar(verdicts, [a.db_id for a, _ in pairs])
    wins, losses = ([a.id for (a, _), v in zip(pairs, verdicts, strict=True) if v == won] for won in (WIN, LOSS))
    return PairedMetric(ours, theirs, len(pairs), test.p, test.p_databases, wins, losses)


def _groups(keyed: Sequence[tuple[str, Pair]], order: Sequence[str], verdict: Verdict) -> dict[str, Group]:
    groups, names = {}, [key for key, _ in keyed]
    for name in sorted(set(names), key=[*order, *names].index):
        verdicts, ours, theirs = _verdicts([pair for key, pair in keyed if key == name], verdict)
        groups[name] = Group(len(verdicts), ours, theirs, verdicts.count(WIN), verdicts.count(LOSS))
    return groups


def _cause(item: ItemScore, verdict: Verdict) -> str:
    return RIGHT if verdict(item) else item.cause or "unknown"


def _failures(items: Iterable[ItemScore], verdict: Verdict) -> dict[str, int]:
    counts = Counter(_cause(item, verdict) for item in items)
    return {cause: count for cause, count in counts.most_common() if cause != RIGHT}


def _moved(pairs: Sequence[Pair], verdict: Verdict) -> list[Move]:
    moved: dict[tuple[str, str], list[str]] = {}
    for a, b in pairs:
        causes = _cause(a, verdict), _cause(b, verdict)
        if causes[0] != causes[1]:
            moved.setdefault(causes, []).append(a.id)
    return [Move(*causes, ids) for causes, ids in sorted(moved.items(), key=lambda entry: (-len(entry[1]), entry[0]))]


# -------------------------------------------------------------------- as published and as corrected


@dataclass(frozen=True)
class Overlay:
    """One prediction file scored twice. ``to_right``, ``to_wrong``, ``left_out``, ``added``: ids whose EX changed, or
    that only one of the two scorings has."""

    predictions: str
    published: dict[str, float]
    corrected: dict[str, float]
    rank: tuple[int, int]
    to_right: list[str]
    to_wrong: list[str]
    left_out: list[str]
    added: list[str]


def overlays(published: Mapping[str, Scores], corrected: Mapping[str, Scores]) -> list[Overlay]:
    """An overlay for each prediction file, in the order of ``published``."""
    before, after = (
        {name: scores.metrics()[f"EX[{scores.rule}]"] for name, scores in of.items()} for of in (published, corrected)
    )
    places = [ranks({name: interval.value for name, interval in of.items()}) for of in (before, after)]
    overlays = []
    for name in published:
        was, now = ({item.id: item.ex for item in scores[name].items} for scores in (published, corrected))
        ranked = places[0][name], places[1][name]
        to_right = [id_ for id_ in was if now.get(id_) and not was[id_]]
        to_wrong = [id_ for id_ in was if was[id_] and now.get(id_) is False]
        gone, new = [id_ for id_ in was if id_ not in now], [id_ for id_ in now if id_ not in was]
        intervals = before[name].to_dict(), after[name].to_dict()
        overlays.append(Overlay(name, *intervals, ranked, to_right, to_wrong, gone, new))
    return overlays


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the highest value; equal values share the better rank."""
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}


def overlay_text(rule: str, items: int, found: Sequence[Overlay]) -> str:
    """The table that is printed. ``items``: how many questions have a correction."""
    about = f"EX[{rule}], {items} questions corrected"
    header = [about, "as published", "as corrected", "to right", "to wrong", "rank"]
    rows = [
        [
            overlay.predictions,
            f"{percent(overlay.published)} of {overlay.published['n']}",
            f"{percent(overlay.corrected)} of {overlay.corrected['n']}",
            str(len(overlay.to_right)),
            str(len(overlay.to_wrong)),
            str(overlay.rank[0]) if overlay.rank[0] == overlay.rank[1] else "{} to {}".format(*overlay.rank),
        ]
        for overlay in found
    ]
    return "\n".join(table_text([header, *rows]))


def overlay_record(items: int, found: Sequence[Overlay]) -> dict[str, object]:
    """The same for JSON."""
    return {"questions": items, "runs": [asdict(overlay) for overlay in found]}


# ------------------------------------------------------------------ before and after a perturbation


def before_after(questions: Iterable[Question], items: Iterable[ItemScore]) -> dict[str, Any]:
    """EX before and after a perturbation of the same question (Dr.Spider), paired.

    ``before``, ``after``: intervals of EX; ``paired``: McNemar's test; ``kept``: right after of right before. Over
    pairs of a question of split ``pre`` and one of ``post`` with the same ``meta["pair"]``, both of them scored; empty
    without any. A win of ``paired`` is a question that was right before alone.
    """
    scored = {item.id: item for item in items}
    asked = [q for q in questions if "pair" in q.meta and q.id in scored]
    halves = {(q.split, q.meta["pair"]): scored[q.id] for q in asked}
    pairs = [
        (item, halves["post", place])
        for (half, place), item in halves.items()
        if half == "pre" and ("post", place) in halves
    ]
    if not pairs:
        return {}
    verdicts, databases = [(a.ex, b.ex) for a, b in pairs], [a.db_id for a, _ in pairs]
    before, after = (clustered_interval(side, databases).to_dict() for side in zip(*verdicts, strict=True))
    right = [after for before, after in verdicts if before]
    kept = sum(right) / len(right) if right else None
    paired = mcnemar(verdicts, databases).to_dict()
    return {"n": len(pairs), "before": before, "after": after, "paired": paired, "kept": kept}
