"""What scoring gives: one record per item, and the metrics, groups and paired tests over them."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nl2sql.hardness import LEVELS
from nl2sql.stats import Interval, clustered_interval, mcnemar


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


@dataclass
class Scores:
    """Scored items in the order of the questions. Every metric is over all of them: wrong is never left out."""

    items: list[ItemScore]
    replicas: int = 0
    missing: list[str] = field(default_factory=list)  # ids without a prediction (scored as wrong)
    surplus: list[str] = field(default_factory=list)  # predictions for ids that were not asked
    warnings: list[str] = field(default_factory=list)

    @property
    def ts_name(self) -> str:
        return f"TS[bag,perturb,N={self.replicas}]"

    def columns(self) -> dict[str, Callable[[ItemScore], bool]]:
        """Metric name -> the item's verdict."""
        columns: dict[str, Callable[[ItemScore], bool]] = {
            "VA": lambda item: item.va,
            "EM": lambda item: item.em,
            "EX[bag]": lambda item: item.ex,
        }
        if self.replicas:
            columns[self.ts_name] = lambda item: bool(item.ts)
        return columns

    def metrics(self) -> dict[str, Interval]:
        """Metric name -> proportion with its 95% interval, clustered by database."""
        return self._metrics_of(self.items)

    def by_hardness(self) -> dict[str, dict[str, Interval]]:
        """The same for each level that occurs (``unknown``: the gold could not be parsed)."""
        groups = self.grouped(lambda item: item.hardness or "unknown")
        order = [level for level in (*LEVELS, "unknown") if level in groups]
        return {level: self._metrics_of(groups[level]) for level in [*order, *sorted(set(groups) - set(order))]}

    def by_database(self) -> dict[str, dict[str, Interval]]:
        """The same for each database."""
        return {name: self._metrics_of(items) for name, items in sorted(self.grouped(lambda i: i.db_id).items())}

    def grouped(self, key: Callable[[ItemScore], str]) -> dict[str, list[ItemScore]]:
        groups: dict[str, list[ItemScore]] = {}
        for item in self.items:
            groups.setdefault(key(item), []).append(item)
        return groups

    def paired(self, other: Scores) -> dict[str, dict[str, Any]]:
        """Per metric that both have: wins, losses, n and exact McNemar p over the items that both scored."""
        theirs = {item.id: item for item in other.items}
        pairs = [(item, theirs[item.id]) for item in self.items if item.id in theirs]
        shared = [name for name in self.columns() if name in other.columns()]
        ours = self.columns()
        return {name: mcnemar((ours[name](a), ours[name](b)) for a, b in pairs).to_dict() for name in shared}

    def to_dict(self, *, items: bool = True) -> dict[str, Any]:
        """Plain data for JSON: n, metrics, by_hardness, warnings, missing, surplus and (``items``) the items."""
        result: dict[str, Any] = {
            "n": len(self.items),
            "metrics": _plain(self.metrics()),
            "by_hardness": {level: _plain(metrics) for level, metrics in self.by_hardness().items()},
            "gold_errors": [item.id for item in self.items if item.gold_error],
            "missing": self.missing,
            "surplus": self.surplus,
            "warnings": self.all_warnings(),
        }
        if items:
            result["items"] = [asdict(item) for item in self.items]
        return result

    def all_warnings(self) -> list[str]:
        """What a reader of the numbers has to know."""
        found = list(self.warnings)
        untested = sum(bool(item.ts) and item.ts_replicas == 0 for item in self.items)
        if untested:
            found.append(f"{untested} item(s) count as {self.ts_name} though no replica could say anything about them")
        databases = len({item.db_id for item in self.items})
        if self.items and any(interval.method == "wilson" for interval in self.metrics().values()):
            found.append(
                f"only {databases} database(s): intervals treat items as independent and say nothing about others"
            )
        return found

    def _metrics_of(self, items: Sequence[ItemScore]) -> dict[str, Interval]:
        databases = [item.db_id for item in items]
        return {
            name: clustered_interval([verdict(item) for item in items], databases)
            for name, verdict in self.columns().items()
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {interval}" for name, interval in self.metrics().items())
        return f"<scores of {len(self.items)} items: {shown}>"

    def _repr_html_(self) -> str:
        rows = {"all": self.metrics(), **self.by_hardness()}
        names = list(self.columns())
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", "n", *names))
        body = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{metrics[names[0]].n}</td>"
            + "".join(f"<td>{metrics[name]}</td>" for name in names)
            + "</tr>"
            for label, metrics in rows.items()
        )
        notes = "".join(f"<p><small>{html.escape(note)}</small></p>" for note in self.all_warnings())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _plain(metrics: Mapping[str, Interval]) -> dict[str, dict[str, Any]]:
    return {name: interval.to_dict() for name, interval in metrics.items()}
