"""Two sets of predictions on the same questions: which items only one of them gets right, of what kind these are, and
how the causes of failure moved. Pure functions over two ``Scores``; ``nl2sql runs compare`` prints what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from nl2sql.errors import UsageError
from nl2sql.eval.scores import ItemScore, Scores, one_metric

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
    from nl2sql.sql.features import FEATURES, UNKNOWN, features
    from nl2sql.sql.hardness import LEVELS

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
