"""Rules: when do two results give the same answer? ``get_rule(name)`` gives one; ``docs/evaluation.md`` states them.

A rule's name is part of every metric that rests on it. ``bag`` is ours and the default; ``bag~1e-3`` is ``bag`` with
fractional numbers equal within that relative tolerance; the others do what a published evaluator does.

>>> get_rule("bag~1e-3").name
'bag~1e-3'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from nl2sql.config.plugins import FORMS, own_function
from nl2sql.errors import UsageError, one_line
from nl2sql.eval.rules import bag, published
from nl2sql.eval.rules.bag import results_match, suites_match
from nl2sql.eval.rules.order import gold_order, order_keys, order_matters, placed
from nl2sql.interfaces import RunResult

__all__ = [
    "RULES",
    "Rule",
    "get_rule",
    "gold_order",
    "order_keys",
    "order_matters",
    "placed",
    "results_match",
    "suites_match",
]


# ----------------------------------------------------------------------------- the record of a rule


Results: TypeAlias = Sequence[RunResult]  # one per database


class Compare(Protocol):
    """The agreement of usable results, 0 to 1 (``bool`` for rules without half points)."""

    def __call__(
        self, gold: Results, predicted: Results, *, gold_sql: str, predicted_sql: str, question: str
    ) -> float: ...


@dataclass(frozen=True)
class OwnCompare:
    """A comparison of a user's own. Raises UsageError, with its name, for what it raises and points beyond 0 to 1."""

    name: str
    compare: Compare

    def __call__(self, gold: Results, predicted: Results, **texts: str) -> float:
        try:
            points = float(self.compare(gold, predicted, **texts))
        except Exception as error:  # a user's code raises what it likes
            raise UsageError(f"rule {self.name}: {type(error).__name__}: {one_line(error, 200)}") from error
        if not 0 <= points <= 1:
            raise UsageError(f"rule {self.name} gave {points:g} points; expected 0 to 1")
        return points


@dataclass(frozen=True)
class Rule:
    """When two queries count as the same answer. ``docs/evaluation.md`` describes every rule and its known faults.

    The caller executes ``prepare(sql)`` of gold and prediction on each database and hands both lists of results over.
    ``accepts(gold_sql)`` gives the golds that one gold text stands for; a match with any of them counts.
    ``blank_is_empty``: a statement of nothing but comments and semicolons is a result without rows, not a failure.
    ``failed_gold``: the verdict where the gold itself fails; None: no verdict.
    ``settled``: what equality decides without ``compare``: ``equal``, that the same rows in the same order are right;
    ``set``, that the same multiset of rows is, unless the gold orders them; ``bag``, also what is wrong for certain.
    ``ordered``: the gold's ORDER BY counts. ``joint``: what ``compare`` finds on one database (an assignment of
    columns) has to fit all others. ``half_points``: ``points`` may lie between 0 and 1.
    ``blank_is_wrong``: a prediction without any text is wrong, even where the gold is empty.
    """

    name: str
    compare: Compare
    prepare: Callable[[str], str] = str  # the statement as it is
    accepts: Callable[[str], tuple[str, ...]] = lambda gold_sql: (gold_sql,)
    blank_is_empty: bool = False
    failed_gold: bool | None = None
    settled: Literal["equal", "set", "bag"] = "equal"
    ordered: bool = False
    joint: bool = False
    half_points: bool = False
    blank_is_wrong: bool = False

    def usable(self, result: RunResult) -> bool:
        """Whether this rule can compare ``result``; a failed or truncated one it cannot."""
        if self.blank_is_empty and result.error_kind == "empty":
            return True
        return result.success and not result.truncated

    def judge(self, gold: Results, predicted: Results, **texts: str) -> bool:
        """Whether the prediction is right; ``gold[i]`` and ``predicted[i]`` are the results on database i.

        ``texts``: ``gold_sql``, and ``predicted_sql`` and ``question`` ("" where they are left out), as they were
        given, before ``prepare``. A gold that fails matches nothing here; ``verdict`` tells that case apart.
        """
        return self.points(gold, predicted, **texts) == 1

    def points(self, gold: Results, predicted: Results, **texts: str) -> float:
        """The prediction's points, 0.0 to 1.0; only 1 is right. Between lie ``bird-soft-f1`` (mean of databases) and
        rules of a user's own."""
        if len(gold) != len(predicted):
            raise ValueError(f"{len(gold)} gold results but {len(predicted)} predicted ones")
        if not all(map(self.usable, (*gold, *predicted))):
            return 0.0
        return float(self.compare(gold, predicted, **{"predicted_sql": "", "question": "", **texts}))

    def verdict(self, gold: Results, predicted: Results, **texts: str) -> bool | None:
        """``judge``, or ``failed_gold`` where the gold fails on some database."""
        if not all(map(self.usable, gold)):
            return self.failed_gold
        return self.judge(gold, predicted, **texts)


# -------------------------------------------------------------------------------- the rules by name

BIRD: dict[str, Any] = {"prepare": published.bird_prepare, "blank_is_empty": True, "failed_gold": False}
SPIDER: dict[str, Any] = {"blank_is_empty": True, "blank_is_wrong": True}
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule("bag", bag.compare, settled="bag", ordered=True, joint=True),
            Rule("spider", published.spider, prepare=published.spider_prepare, **SPIDER),
            Rule("bird-set", published.bird_set, settled="set", **BIRD),
            Rule("bird-soft-f1", published.bird_soft_f1, half_points=True, **BIRD),
            Rule("defog-subset", published.defog_subset, accepts=published.defog_accepts),
            Rule("spider2", published.spider2),
            Rule("spider2-rows", published.spider2_rows),
            Rule("livesqlbench", published.livesqlbench, prepare=published.live_prepare, failed_gold=False),
        )
    }
)
TOLERANT = re.compile(r"bag~(\d*\.?\d+(?:e-?\d+)?)", re.IGNORECASE)


def get_rule(name: str) -> Rule:
    """The rule of that name, or a comparison of one's own in one of ``config.plugins.FORMS``.

    Raises UsageError, with the names there are, for any other.
    """
    if name in RULES:
        return RULES[name]
    if (match := TOLERANT.fullmatch(name)) and 0 < float(match[1]) < 1:
        return replace(RULES["bag"], name=name, compare=partial(bag.compare, tolerance=float(match[1])), settled="set")
    if own := own_function("rules", name):
        rule = own.function if isinstance(own.function, Rule) else Rule(own.name, own.function)
        return replace(rule, compare=OwnCompare(name, rule.compare))
    raise UsageError(
        f"no rule is called {name!r}; choose {', '.join(RULES)}, or bag~REL with a relative tolerance between 0 and 1, "
        f"such as bag~1e-3, or a comparison of your own as {FORMS}"
    )
