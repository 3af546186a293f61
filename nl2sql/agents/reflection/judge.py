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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import yaml

from nl2sql.agents.checks.projection import enumerated_fields
from nl2sql.errors import one_line
from nl2sql.repair import registry

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
# The score is the share of the weights of the parts that could be told. It chooses between attempts
# that both ran, and is shown; it does not decide whether another attempt is made. Not covered:
# whether the answer is right.

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
RefineOn: TypeAlias = Literal["critical", "failure", "mismatch"]
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
    refine_on: RefineOn = "critical",
    slow_s: float = 5.0,
    repeats: int | None = None,
) -> Judgement:
    """Reflect on one attempt. Never raises for what is in its arguments; calls no model, touches no database.

    Args:
        execution: ``{success, error, error_kind, ...}`` of the attempt; None: it never came to a run.
        validation: ``{is_valid, has_results, reason}``; None: it was not looked at.
        refine_on: ``critical`` errors only (the specification), any ``failure`` that is not fatal, or also a query
            that ran but is a ``mismatch``: it lacks what the question asks for.
        slow_s: a query that takes longer is reported as slow.
        repeats: the earlier attempt that was the same SQL.
    """
    executed, checked = execution or {}, validation or {}
    issues = [] if repeats is None else [f"the same SQL as attempt {repeats}"]
    if not executed.get("success"):
        return _failed(executed, issues, sql, dialect, version, schema, refine_on)
    mismatch = "" if checked.get("is_valid", True) else str(checked.get("reason") or "not valid")
    if mismatch:
        issues.append(f"Query lacks what the question asks for: {one_line(mismatch, MAX_ISSUE)}")
    if validation is not None and not checked.get("has_results"):
        issues.append("Query returned no results")
    if (seconds := executed.get("seconds") or 0.0) > slow_s:
        issues.append(f"Query took {seconds:.1f} s")
    if executed.get("truncated"):
        issues.append("Query returned more rows than are kept")
    refine = bool(mismatch) and refine_on == "mismatch"
    reasoning = "SQL runs, but does not answer the question" if refine else "SQL quality acceptable"
    result = ReflectionResult(is_acceptable=not refine, should_refine=refine, issues=issues, reasoning=reasoning)
    advice = _advice(mismatch, sql, dialect, version, schema) if mismatch else []
    return Judgement(result, error=mismatch, suggestions=advice)


def _failed(
    executed: Mapping[str, Any],
    issues: list[str],
    sql: str,
    dialect: str,
    version: str,
    schema: Schema | None,
    refine_on: RefineOn,
) -> Judgement:
    error = str(executed.get("error") or "the query was not executed")
    kind = executed.get("error_kind")
    error_class = classify(error, dialect, kind=kind if isinstance(kind, str) else None, sql=sql, version=version)
    refine = error_class.severity == "critical" or (error_class.severity == "non_critical" and refine_on != "critical")
    name = error_class.severity.replace("_", "-").capitalize()
    result = ReflectionResult(
        is_acceptable=False,
        should_refine=refine,
        issues=[f"{name} SQL error: {one_line(error, MAX_ISSUE)}", *issues],
        reasoning=f"{REASONING[error_class.severity]} ({error_class.rule})",
    )
    advice = _advice(error, sql, dialect, version, schema) if refine else []
    return Judgement(result, error_class.severity, error_class.rule, error, advice)


def _advice(error: str, sql: str, dialect: str, version: str, schema: Schema | None) -> list[str]:
    """The advice of the pattern registry and the schema: the constraint that was violated, and what to do instead."""
    from nl2sql.repair.analyzer import ErrorAnalyzer

    guidance = ErrorAnalyzer(dialect, version=version).analyze_error(error, sql, schema)
    return [text for text in (guidance.violated_constraint, guidance.alternative_approach) if text]
