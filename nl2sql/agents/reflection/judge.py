"""The reflection: how severe an error is, what an attempt is worth, and whether another one is.

>>> empty = {"success": True, "row_count": 0, "columns": ["name"]}
>>> judge_attempt(empty, {"is_valid": True}).result["issues"]
['Query returned no results']

A failed execution is never acceptable; whether it is tried again is another matter, which its class decides
(``errors.classify``). An empty result is an issue that is reported and accepted: it may be the answer.

>>> classify("no such column: nme")
ErrorClass(severity='critical', rule='pattern:unknown_column')

>>> quality_score({"executes": True, "constraints": True, "non_empty": False})
87
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

from nl2sql.agents.checks.guardrails import enumerated_fields
from nl2sql.errors import one_line
from nl2sql.machine import from_yaml
from nl2sql.repair import registry
from nl2sql.repair.analyzer import ErrorAnalyzer

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema


# ------------------------------------------------------------------------- the severity of an error
# ``classify`` asks, in this order: the engine's own error code, the kind under which the runner and
# the validators file the message, the pattern registry of ``nl2sql.repair``, and last the
# specification's seven keywords. The rules are data, in ``error_classes.yaml``. Not covered:
# engines without a pattern file, whose messages only the keywords know.

Severity: TypeAlias = Literal["critical", "non_critical", "fatal"]
FILE = Path(__file__).with_name("error_classes.yaml")
LOOP = "loop"  # the patterns of the loop's own validators
MAX_MESSAGE = 4000  # characters read: the patterns' time grows with the text


class ErrorClass(NamedTuple):
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


class _Rules(NamedTuple):
    codes: dict[str, list[tuple[re.Pattern[str], Severity]]]  # by dialect
    kinds: dict[str, Severity]
    categories: dict[str, Severity]
    keywords: list[str]


@functools.cache
def _rules() -> _Rules:
    data: dict[str, Any] = from_yaml(FILE.read_text(encoding="utf-8"))
    codes = {
        dialect: [(re.compile(rule["pattern"], re.DOTALL), rule["class"]) for rule in rules]
        for dialect, rules in data["codes"].items()
    }
    kinds, categories = (
        {name: severity for severity, names in data[part].items() for name in names} for part in ("kinds", "categories")
    )
    return _Rules(codes, kinds, categories, data["keywords"])


# ------------------------------------------------------------------------ the quality of an attempt
# ===============  ======  ==================================================================================
# part             weight  1 when
# ===============  ======  ==================================================================================
# executes             40  the query ran; a query that did not scores 0, whatever else it has
# constraints          25  it has the structure that the question asks for (the constraint and the intent gate)
# projection           15  it has as many columns as the question enumerates; missing where it enumerates none
# non_empty            10  it has rows
# ===============  ======  ==================================================================================
#
# The score is the share of the weights of the parts that could be told. It is shown; it does not decide
# whether another attempt is made. Not covered: whether the answer is right.

WEIGHTS = {"executes": 40, "constraints": 25, "projection": 15, "non_empty": 10}


def quality_parts(question: str, execution: Mapping[str, Any], validation: Mapping[str, Any]) -> dict[str, bool]:
    """The parts that can be told of an attempt."""
    if not execution.get("success"):
        return {"executes": False}
    parts = {"executes": True, "constraints": validation.get("is_valid") is True}
    asked = enumerated_fields(question)
    if asked is not None:
        fields, closed = asked
        columns = len(execution.get("columns") or ())
        parts["projection"] = columns == len(fields) if closed else columns >= len(fields)
    parts["non_empty"] = bool(validation.get("has_results"))
    return parts


def quality_score(parts: Mapping[str, bool]) -> int:
    """0 to 100 of ``quality_parts``."""
    if not parts.get("executes"):
        return 0
    return round(100 * sum(WEIGHTS[name] for name, met in parts.items() if met) / sum(WEIGHTS[name] for name in parts))


# ------------------------------------------------------------------------------------ the judgement

MAX_ISSUE = 300  # characters: an issue is shown on one line
REASONING = {
    "critical": "SQL has critical errors requiring retry",
    "non_critical": "SQL failed for a reason that another query is not expected to mend",
    "fatal": "the database cannot be used; no query would run",
}


class ReflectionResult(TypedDict):
    """The specification's four fields, and no other."""

    is_acceptable: bool
    should_refine: bool
    issues: list[str]
    reasoning: str


@dataclass(frozen=True)
class Judgement:
    """A reflection with its class (None: the query ran), the rule behind it, and what the next attempt is told."""

    result: ReflectionResult
    severity: Severity | None = None
    rule: str = ""
    error: str = ""  # what the next attempt is shown as this one's error
    suggestions: list[str] = field(default_factory=list)


def judge_attempt(
    execution: Mapping[str, Any] | None,
    validation: Mapping[str, Any] | None,
    *,
    sql: str = "",
    dialect: str = "sqlite",
    version: str = "",
    schema: Schema | None = None,
    slow_s: float = 5.0,
    repeats: int | None = None,
) -> Judgement:
    """Reflect on one attempt. Never raises for what is in its arguments; calls no model, touches no database.

    Args:
        execution: ``{success, error, error_kind, ...}`` of the attempt; None: it never came to a run.
        validation: ``{is_valid, has_results, reason}``; None: it was not looked at.
        slow_s: a query that takes longer is reported as slow.
        repeats: the earlier attempt that was the same SQL.
    """
    executed, checked = execution or {}, validation or {}
    issues = [] if repeats is None else [f"the same SQL as attempt {repeats}"]
    if executed.get("success"):
        if not checked.get("is_valid", True):
            lacking = one_line(str(checked.get("reason") or "not valid"), MAX_ISSUE)
            issues.append(f"Query lacks what the question asks for: {lacking}")
        if validation is not None and not checked.get("has_results"):
            issues.append("Query returned no results")
        if (seconds := executed.get("seconds") or 0.0) > slow_s:
            issues.append(f"Query took {seconds:.1f} s")
        if executed.get("truncated"):
            issues.append("Query returned more rows than are kept")
        return Judgement(_result(True, issues, "SQL quality acceptable"))
    error, kind = str(executed.get("error") or "the query was not executed"), executed.get("error_kind")
    severity, rule = classify(error, dialect, kind=kind if isinstance(kind, str) else None, sql=sql, version=version)
    issues.insert(0, f"{severity.replace('_', '-').capitalize()} SQL error: {one_line(error, MAX_ISSUE)}")
    refine = severity == "critical"
    advice: list[str] = []
    if refine:  # of the pattern registry and the schema
        guidance = ErrorAnalyzer(dialect, version=version).analyze_error(error, sql, schema)
        advice = [text for text in (guidance.violated_constraint, guidance.alternative_approach) if text]
    result = _result(False, issues, f"{REASONING[severity]} ({rule})", refine)
    return Judgement(result, severity, rule, error, advice)


def _result(acceptable: bool, issues: list[str], reasoning: str, refine: bool = False) -> ReflectionResult:
    return ReflectionResult(is_acceptable=acceptable, should_refine=refine, issues=issues, reasoning=reasoning)
