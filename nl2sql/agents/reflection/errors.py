"""The severity of an error: worth another attempt, not worth one, or the end.

>>> classify("no such column: nme")
ErrorClass(severity='critical', rule='pattern:unknown_column')

``classify`` asks, in this order: the engine's own error code, the kind under which the runner and the validators file
the message, the pattern registry of ``nl2sql.repair``, and last the specification's seven keywords. The rules are data,
in ``error_classes.yaml``. Not covered: engines without a pattern file, whose messages only the keywords know.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import yaml

from nl2sql.repair import registry

Severity: TypeAlias = Literal["critical", "non_critical", "fatal"]
FILE = Path(__file__).with_name("error_classes.yaml")
LOOP = "loop"  # the patterns of the loop's own validators
MAX_MESSAGE = 4000  # characters read: the patterns' time grows with the text


@dataclass(frozen=True)
class ErrorClass:
    """``severity``, and the rule that said so, e.g. ``code``, ``kind:syntax``, ``pattern:unknown_column``."""

    severity: Severity
    rule: str


def classify(
    message: str, dialect: str = "sqlite", *, kind: str | None = None, sql: str = "", version: str = ""
) -> ErrorClass:
    """The class of an error message. Never raises for what is in its arguments.

    kind: ``RunResult.error_kind`` or the head of a validator's reason. sql: the statement that failed. version: of the
    engine, so that patterns of other versions are skipped. What no rule knows is non-critical, as in the specification.
    """
    rules, text = _rules(), message[:MAX_MESSAGE].strip()
    for pattern, severity in rules.codes.get(dialect, ()):
        if pattern.match(text):
            return ErrorClass(severity, "code")
    if kind in rules.kinds:
        return ErrorClass(rules.kinds[kind], f"kind:{kind}")
    for patterns, of in ((registry.packaged(dialect), version), (registry.packaged(LOOP), "")):
        match = patterns.find(text, sql, of)
        if match is not None and match[0].category in rules.categories:
            return ErrorClass(rules.categories[match[0].category], f"pattern:{match[0].category}")
    keyword = next((word for word in rules.keywords if word in text.lower()), None)
    return ErrorClass("critical", f"keyword:{keyword}") if keyword else ErrorClass("non_critical", "unknown")


@dataclass(frozen=True)
class _Rules:
    codes: dict[str, tuple[tuple[re.Pattern[str], Severity], ...]]
    kinds: dict[str, Severity]
    categories: dict[str, Severity]
    keywords: tuple[str, ...]


@functools.cache
def _rules() -> _Rules:
    data: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    codes = {
        dialect: tuple((re.compile(rule["pattern"], re.DOTALL), rule["class"]) for rule in rules)
        for dialect, rules in data["codes"].items()
    }
    kinds, categories = (
        {name: severity for severity, names in data[part].items() for name in names} for part in ("kinds", "categories")
    )
    return _Rules(codes, kinds, categories, tuple(data["keywords"]))
