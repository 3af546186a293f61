"""Scores side by side: which items only one of two sets gets right, and scores as published and as corrected.

>>> ranks({"a": 0.5, "b": 0.7, "c": 0.5})
{'a': 2, 'b': 1, 'c': 2}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from nl2sql.errors import UsageError
from nl2sql.eval.scores import ItemScore, Scores, one_metric
from nl2sql.eval.stats import percent
from nl2sql.eval.tables import table_text

Pair: TypeAlias = tuple[ItemScore, ItemScore]
Verdict: TypeAlias = Callable[[ItemScore], Any]
RIGHT = "right"


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
    moved: list[Move] = field(default_factory=list)

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
    return Comparison(
        chosen,
        {name: _paired(pairs, of) for name, of in verdicts.items()},
        {name: _groups(pairs, keys, verdict) for name, keys in _groupings(a, pairs).items()},
        _failures((first for first, _ in pairs), verdict),
        _failures((second for _, second in pairs), verdict),
        _moved(pairs, verdict),
    )


def _paired(pairs: Sequence[Pair], verdict: Verdict) -> PairedMetric:
    from nl2sql.eval.stats import mcnemar

    verdicts = [(bool(verdict(a)), bool(verdict(b))) for a, b in pairs]
    test = mcnemar(verdicts, [a.db_id for a, _ in pairs])
    return PairedMetric(
        sum(first for first, _ in verdicts) / len(pairs),
        sum(second for _, second in verdicts) / len(pairs),
        len(pairs),
        test.p,
        test.p_databases,
        [a.id for (a, _), (first, second) in zip(pairs, verdicts, strict=True) if first and not second],
        [a.id for (a, _), (first, second) in zip(pairs, verdicts, strict=True) if second and not first],
    )


def _groupings(scores: Scores, pairs: Sequence[Pair]) -> dict[str, list[tuple[str, Pair]]]:
    """Grouping -> (group, pair) in the order in which groups are shown."""
    from nl2sql.sql.features import FEATURES, LEVELS, UNKNOWN, features

    keyed = [({"hardness": a.hardness or UNKNOWN, **features(scores.gold_sql.get(a.id, ""))}, (a, b)) for a, b in pairs]
    orders: Mapping[str, Sequence[str]] = {"hardness": LEVELS, **FEATURES}
    return {
        name: sorted(
            ((keys[name], pair) for keys, pair in keyed),
            key=lambda entry: order.index(entry[0]) if entry[0] in order else len(order),
        )
        for name, order in orders.items()
    }


def _groups(pairs: Sequence[Pair], keyed: Sequence[tuple[str, Pair]], verdict: Verdict) -> dict[str, Group]:
    grouped: dict[str, list[tuple[bool, bool]]] = {}
    for key, (a, b) in keyed:
        grouped.setdefault(key, []).append((bool(verdict(a)), bool(verdict(b))))
    return {
        key: Group(
            len(verdicts),
            sum(first for first, _ in verdicts) / len(verdicts),
            sum(second for _, second in verdicts) / len(verdicts),
            sum(first and not second for first, second in verdicts),
            sum(second and not first for first, second in verdicts),
        )
        for key, verdicts in grouped.items()
    }


def _cause(item: ItemScore, verdict: Verdict) -> str:
    return RIGHT if verdict(item) else item.cause or "unknown"


def _failures(items: Iterable[ItemScore], verdict: Verdict) -> dict[str, int]:
    from collections import Counter

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
        {
            name: next(value for metric, value in scores.metrics().items() if metric.startswith("EX"))
            for name, scores in of.items()
        }
        for of in (published, corrected)
    )
    places = [ranks({name: interval.value for name, interval in of.items()}) for of in (before, after)]
    return [
        Overlay(
            name,
            before[name].to_dict(),
            after[name].to_dict(),
            (places[0][name], places[1][name]),
            *_changed(published[name], corrected[name]),
        )
        for name in published
    ]


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the highest value; equal values share the better rank."""
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}


def _changed(published: Scores, corrected: Scores) -> tuple[list[str], list[str], list[str], list[str]]:
    was, now = ({item.id: item.ex for item in scores.items} for scores in (published, corrected))
    both = [id_ for id_ in was if id_ in now]
    return (
        [id_ for id_ in both if now[id_] and not was[id_]],
        [id_ for id_ in both if was[id_] and not now[id_]],
        [id_ for id_ in was if id_ not in now],
        [id_ for id_ in now if id_ not in was],
    )


def overlay_text(rule: str, items: int, found: Sequence[Overlay]) -> str:
    """The table that is printed. ``items``: how many questions have a correction."""
    header = [
        f"EX[{rule}], {items} questions corrected",
        "as published",
        "as corrected",
        "to right",
        "to wrong",
        "rank",
    ]
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
