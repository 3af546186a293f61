"""Documents that are hard to validate: too many of something, too deep, too long, half a surrogate pair."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Field = dict[str, Any]
TOTAL = {"fieldCaption": "Order ID", "function": "COUNT"}


def documents(count: int, seed: int = 7) -> Iterator[tuple[str, Any]]:
    """The name of a kind and a document of it, drawn by ``seed``; each kind comes once in a row of all kinds."""
    draw = random.Random(seed)
    for i in range(count):
        name, make = list(KINDS.items())[i % len(KINDS)]
        field = {"fieldCaption": draw.choice(["Status", "City", "Order ID", "nowhere", "stat\ud800us", "é" * 300])}
        yield name, make(draw.choice([60, 490, 5_000]), field)


def _nested(depth: int, sign: str = "(") -> str:
    return sign * depth + "1" + {"(": ")", "{{": "}}"}[sign] * depth


def _deep(n: int, field: Field) -> Any:
    made: Any = field
    for i in range(100 if n < 5_000 else 200):
        made = {"fields": [made]} if i % 2 else {"tableCalculation": made}
    return {"fields": [made]}


def _calculations(formula: str) -> Callable[[int, Field], Any]:
    def make(n: int, field: Field) -> Any:
        return {"fields": [{"fieldCaption": f"c{i}", "calculation": formula.format(i=i, j=i + 1)} for i in range(n)]}

    return make


def _filters(**parts: Any) -> Callable[[int, Field], Any]:
    def make(n: int, field: Field) -> Any:
        return {"fields": [field], "filters": [{"field": {**field}, **parts} for _ in range(n)]}

    return make


KINDS: dict[str, Callable[[int, Field], Any]] = {
    "parameters": lambda n, f: {
        "fields": [f],
        "parameters": [{"parameterCaption": f"p{i}", "value": i} for i in range(n)],
    },
    "unknown keys": lambda n, f: {"fields": [f], **{f"k{i}": i for i in range(n)}},
    "unknown keys of a field": lambda n, f: {"fields": [f | {f"fieldCaptio{i}": i for i in range(n)}]},
    "unknown keys of a request": lambda n, f: {"query": {"fields": [f]}, "options": {f"debu{i}": i for i in range(n)}},
    "equal fields": lambda n, f: {"fields": [f] * n},
    "equal aggregates": lambda n, f: {"fields": [TOTAL | {"sortPriority": 1}] * n},
    "aggregates": lambda n, f: {"fields": [TOTAL | {"fieldAlias": f"a{i}", "binSize": 1 + i} for i in range(n)]},
    "unknown fields": lambda n, f: {"fields": [{"fieldCaption": f"{'ab' * 100}{i}"} for i in range(n)]},
    "priorities": lambda n, f: {"fields": [f | {"fieldAlias": f"a{i}", "sortPriority": 10**300} for i in range(n)]},
    "values": lambda n, f: {
        "fields": [f],
        "filters": [{"field": f, "filterType": "SET", "values": [f"v{i}" for i in range(n)]}],
    },
    "values of a wrong type": lambda n, f: {
        "fields": [f],
        "filters": [{"field": f, "filterType": "SET", "values": [[i] for i in range(n)]}],
    },
    "filters": _filters(filterType="MATCH", contains="x"),
    "TOP filters": _filters(filterType="TOP", howMany=1, fieldToMeasure=TOTAL, context=True),
    "dimensions": lambda n, f: {
        "fields": [TOTAL | {"tableCalculation": {"tableCalcType": "RANK", "dimensions": [f] * n}}]
    },
    "calculations that name one another": _calculations("[c{j}] + [c{j}]"),
    "calculations that are long": _calculations("1" + "+[Order ID]" * 90),
    "calculations that are nested": _calculations(_nested(200)),
    "calculations that are not closed": _calculations('SUM([x] + "' + '""' * 40),
    "calculations in braces": _calculations(_nested(39, "{{")),
    "a text": lambda n, f: {"fields": [{"fieldCaption": "a" * n * 60}]},
    "numbers": lambda n, f: {"fields": [f | {"binSize": 10**4000}], "parameters": [10**4000] * (n // 10)},
    "depth": _deep,
    "lists": lambda n, f: {"fields": [[[f] * n]], "filters": [[]] * n, "parameters": "\udfff"},
}
