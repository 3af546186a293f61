"""The reflection: what is wrong with an attempt, whether another one is worth it, and what that one should know.

>>> empty = {"success": True, "row_count": 0, "columns": ["name"]}
>>> judge_attempt(empty, {"is_valid": True}).result["issues"]
['Query returned no results']

A failed execution is never acceptable; whether it is tried again is another matter, which its class decides
(``errors.classify``). An empty result is an issue that is reported and accepted: it may be the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from nl2sql.agents.reflection.errors import Severity, classify
from nl2sql.errors import one_line

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema

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
