"""Rules: when do two results give the same answer? ``get_rule(name)`` gives one; ``docs/evaluation.md`` describes all.

A rule's name is part of every metric that rests on it. ``bag`` is ours and the default; ``bag~1e-3`` is ``bag`` with
fractional numbers equal within that relative tolerance; the others do what a published evaluator does.

>>> get_rule("bag~1e-3").name
'bag~1e-3'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from nl2sql.config.plugins import FORMS, own_function
from nl2sql.errors import UsageError
from nl2sql.eval.rules import bag, bird, defog, livesqlbench, spider, spider2
from nl2sql.eval.rules.bag import results_match, suites_match
from nl2sql.eval.rules.order import gold_order, order_keys, order_matters, placed
from nl2sql.eval.rules.rule import OwnCompare, Rule

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

BIRD: dict[str, Any] = {"blank_is_empty": True, "failed_gold": False}
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule("bag", bag.compare, settled="bag", ordered=True, joint=True),
            Rule("spider", spider.compare, prepare=spider.prepare, blank_is_empty=True, blank_is_wrong=True),
            Rule("bird-set", bird.bird_set, prepare=bird.prepare, settled="set", **BIRD),
            Rule("bird-soft-f1", bird.bird_soft_f1, prepare=bird.prepare, half_points=True, **BIRD),
            Rule("defog-subset", defog.compare, accepts=defog.accepts),
            Rule("spider2", spider2.compare),
            Rule("spider2-rows", spider2.compare_rows),
            Rule("livesqlbench", livesqlbench.compare, prepare=livesqlbench.prepare, failed_gold=False),
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
