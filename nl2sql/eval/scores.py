"""Scores: one record per item, and the metrics, groups and paired tests over them.

>>> replicas_name(5, "perturb")
'perturb,N=5'
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from nl2sql.errors import UsageError
from nl2sql.eval.stats import MIN_CLUSTERS, Interval, clustered_interval, mcnemar, t_quantile
from nl2sql.eval.tables import table_html
from nl2sql.interfaces import Question
from nl2sql.sql.features import FEATURES, LEVELS, UNKNOWN, features


@dataclass(frozen=True)
class ItemScore:
    """The verdicts on one question. ``ts`` is None where no replicas were asked for."""

    id: str
    db_id: str
    sql: str  # the prediction
    va: bool  # ran, within the bounds of time and rows
    em: bool
    ex: bool
    ts: bool | None
    error: str | None = None  # why the prediction did not run
    error_kind: str | None = None  # RunResult.error_kind, or: missing, empty, database
    hardness: str | None = None
    seconds: float = 0.0  # execution of the prediction on the original database
    ts_replicas: int | None = None  # how many replicas a true ``ts`` rests on (see docs: some say nothing)
    gold_error: str | None = None  # no accepted gold ran: the item counts as wrong
    cause: str | None = None  # why EX or TS is wrong (``causes.CAUSES``); None: neither is, or nobody asked


@dataclass(frozen=True)
class Judged:
    """The verdicts on several files. ``items``: question id -> prediction -> its score."""

    items: dict[str, dict[str | None, ItemScore]]
    warnings: list[str]
    most: int  # replicas of a database, at most
    executed: int  # statements


VERDICTS = {"VA": "va", "EM": "em", "EX": "ex", "TS": "ts"}  # a metric's name before its rule -> field of an item
Metric: TypeAlias = Callable[[ItemScore], float]  # a verdict (bool), or points between 0 and 1


@dataclass
class Scores:
    """Scored items in the order of the questions. Every metric is over all of them: wrong is never left out."""

    items: list[ItemScore]
    replicas: int = 0
    missing: list[str] = field(default_factory=list)  # ids without a prediction (scored as wrong)
    surplus: list[str] = field(default_factory=list)  # predictions for ids that were not asked
    warnings: list[str] = field(default_factory=list)
    rule: str = "bag"
    ts_name: str | None = None  # None: no TS, or the perturbed replicas that ``replicas`` counts
    gold_sql: dict[str, str] = field(default_factory=dict)  # id -> the first gold, for ``by_feature``
    extra: dict[str, Metric] = field(default_factory=dict)  # metrics of the user's own, by name
    executed: int = 0  # statements executed in the whole run, on all databases and for all files

    def __post_init__(self) -> None:
        if self.ts_name is None and self.replicas:
            self.ts_name = f"TS[{self.rule},{replicas_name(self.replicas, 'perturb')}]"
        if taken := [name for name in self.extra if name in self._own_columns()]:
            raise UsageError(f"a metric is called {taken[0]!r} already; give yours another name")

    def _own_columns(self) -> dict[str, Callable[[ItemScore], bool]]:
        columns: dict[str, Callable[[ItemScore], bool]] = {
            "VA": lambda item: item.va,
            "EM": lambda item: item.em,
            f"EX[{self.rule}]": lambda item: item.ex,
        }
        if self.ts_name:
            columns[self.ts_name] = lambda item: bool(item.ts)
        return columns

    def columns(self) -> dict[str, Metric]:
        """Metric name -> the item's verdict."""
        return {**self._own_columns(), **self.extra}

    def metrics(self, metrics: Mapping[str, Metric] | None = None) -> dict[str, Interval]:
        """Metric name -> proportion with its 95% interval, clustered by database. ``metrics``: further ones."""
        return self._metrics_of(self.items, metrics)

    def by_feature(self) -> dict[str, dict[str, dict[str, Interval]]]:
        """The metrics by what the gold is made of: feature -> value -> metrics (``features.features``)."""
        by_item = {item.id: features(self.gold_sql.get(item.id, "")) for item in self.items}
        return {
            feature: self._by(lambda item: by_item[item.id][feature], (*values, UNKNOWN))  # noqa: B023  called at once
            for feature, values in FEATURES.items()
        }

    def failures(self) -> dict[str, int]:
        """Cause -> number of items wrong under EX, most frequent first."""
        counts = Counter(item.cause for item in self.items if item.cause and not item.ex)
        return dict(counts.most_common())

    def by_hardness(self) -> dict[str, dict[str, Interval]]:
        """The metrics for each level of hardness that occurs (``unknown``: the gold could not be parsed)."""
        return self._by(lambda item: item.hardness or UNKNOWN, (*LEVELS, UNKNOWN))

    def by_database(self) -> dict[str, dict[str, Interval]]:
        """The metrics for each database."""
        return self._by(lambda item: item.db_id)

    def _by(self, key: Callable[[ItemScore], str], order: Sequence[str] = ()) -> dict[str, dict[str, Interval]]:
        """The metrics of each group; those that ``order`` names first."""
        groups: dict[str, list[ItemScore]] = {}
        for item in self.items:
            groups.setdefault(key(item), []).append(item)
        names = [*(name for name in order if name in groups), *sorted(set(groups) - set(order))]
        return {name: self._metrics_of(groups[name]) for name in names}

    def paired(self, other: Scores) -> dict[str, dict[str, Any]]:
        """Per metric that both have: ``stats.Paired`` as data, over the items that both scored."""
        theirs, ours = {item.id: item for item in other.items}, self._own_columns()
        pairs = [(item, theirs[item.id]) for item in self.items if item.id in theirs]
        databases = [a.db_id for a, _ in pairs]
        return {
            name: mcnemar([(bool(ours[name](a)), bool(ours[name](b))) for a, b in pairs], databases).to_dict()
            for name in ours
            if name in other.columns()
        }

    def to_dict(self, *, items: bool = True) -> dict[str, Any]:
        """Plain data for JSON: n, metrics, groups, failures, warnings, missing, surplus and (``items``) the items."""
        result: dict[str, Any] = {
            "n": len(self.items),
            "metrics": _plain(self.metrics()),
            "by_hardness": {level: _plain(metrics) for level, metrics in self.by_hardness().items()},
            "by_feature": {
                feature: {value: _plain(metrics) for value, metrics in groups.items()}
                for feature, groups in self.by_feature().items()
            },
            "by_database": {name: _plain(metrics) for name, metrics in self.by_database().items()},
            "failures": self.failures(),
            "gold_errors": [item.id for item in self.items if item.gold_error],
            "missing": self.missing,
            "surplus": self.surplus,
            "warnings": self.all_warnings(),
        }
        if items:
            result["items"] = [asdict(item) for item in self.items]
        return result

    def all_warnings(self) -> list[str]:
        """The warnings that a reader of the numbers has to know."""
        remarks = list(self.warnings)
        untested = sum(bool(item.ts) and item.ts_replicas == 0 for item in self.items)
        if untested:
            remarks.append(
                f"{untested} item(s) count as {self.ts_name} though no replica could say anything about them"
            )
        databases = len({item.db_id for item in self.items})
        if self.items and any(interval.method == "wilson" for interval in self.metrics().values()):
            remarks.append(
                f"only {databases} database(s): intervals treat items as independent and say nothing about others"
            )
        return remarks

    def _metrics_of(
        self, items: Sequence[ItemScore], metrics: Mapping[str, Metric] | None = None
    ) -> dict[str, Interval]:
        databases = [item.db_id for item in items]
        columns = {**self.columns(), **(metrics or {})}
        return {name: _interval([value(item) for item in items], databases) for name, value in columns.items()}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {interval}" for name, interval in self.metrics().items())
        return f"<scores of {len(self.items)} items: {shown}>"

    def _repr_html_(self) -> str:
        levels = {"all": self.metrics(), **self.by_hardness()}
        names = list(self.columns())
        body = [
            [label, str(metrics[names[0]].n), *(str(metrics[name]) for name in names)]
            for label, metrics in levels.items()
        ]
        return table_html([["", "n", *names], *body], self.all_warnings())


def replicas_name(replicas: int | str | Path, method: str) -> str:
    """The name of a suite of databases within a metric's name."""
    return f"{method},N={replicas}" if isinstance(replicas, int) else Path(replicas).name


def one_metric(name: str, known: Sequence[str]) -> str:
    """The one of ``known`` that ``name`` means: itself, or ``EX`` for ``EX[bag]``. Raises UsageError for another."""
    meant = [name] if name in known else [metric for metric in known if metric.partition("[")[0] == name]
    if len(meant) != 1:
        raise UsageError(f"no metric {name!r}; one of {', '.join(known)}")
    return meant[0]


FLAG = "is_impossible"  # in a question's meta: nothing in the database answers it
PENALTIES = (0, 5, 10)


def reliability(
    items: Iterable[ItemScore], predictions: Mapping[str, str], questions: Iterable[Question]
) -> dict[str, float]:
    """The reliability score of EHRSQL and TrustSQL by name, each at most 1: a wrong answer costs more than none.

    A question that the database can answer (``items``) gives 1 where EX holds, 0 without an answer, -c where it is
    wrong; one of ``questions`` that it cannot answer gives 1 without an answer and -c with one. RS(c) is the mean, for
    c = 0, 5, 10, and N, the number of questions. No answer: a missing or blank prediction, or ``null``. Empty where no
    question without an answer has a prediction: those were not asked. Not covered: intervals, since a mean of points so
    unlike has no useful one over one database.
    """

    def is_answer(id_: str) -> bool:
        return (predictions.get(id_) or "").strip().lower() not in ("", "null")

    impossible = [question.id for question in questions if question.meta.get(FLAG)]
    if not any(id_ in predictions for id_ in impossible):
        return {}
    points = [1 if item.ex else -1 if is_answer(item.id) else 0 for item in items]
    points += [-1 if is_answer(id_) else 1 for id_ in impossible]
    right, wrong, n = points.count(1), points.count(-1), len(points)
    names = {**{f"RS({cost})": cost for cost in PENALTIES}, "RS(N)": n}
    return {name: (right - cost * wrong) / n for name, cost in names.items()}


def item_field(metric: str) -> str:
    """The field of an item that holds the verdict of one of our metrics, whatever rule is in its name."""
    return VERDICTS[metric.partition("[")[0]]


def _interval(values: Sequence[float], databases: Sequence[str]) -> Interval:
    """The interval of a proportion; of the mean, by its cluster-robust standard error, where there are half points."""
    if all(value in (0, 1) for value in values):
        return clustered_interval([bool(value) for value in values], databases)
    mean = math.fsum(values) / len(values)
    sums: dict[str, float] = {}
    for value, database in zip(values, databases, strict=True):
        sums[database] = sums.get(database, 0.0) + value - mean
    clustered = len(sums) >= MIN_CLUSTERS
    parts = list(sums.values()) if clustered else [value - mean for value in values]
    if len(parts) < 2:  # one item says nothing about others
        return Interval(mean, 0.0, max(1.0, mean), len(values), "normal")
    spread = len(parts) / (len(parts) - 1) * math.fsum(part * part for part in parts)
    error = t_quantile(0.95, len(parts) - 1) * math.sqrt(spread) / len(values)
    method = "clustered" if clustered else "normal"
    return Interval(mean, max(0.0, mean - error), min(max(1.0, *values), mean + error), len(values), method)


def _plain(metrics: Mapping[str, Interval]) -> dict[str, dict[str, Any]]:
    return {name: interval.to_dict() for name, interval in metrics.items()}
