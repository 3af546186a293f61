"""Why a prediction is wrong: one cause out of the closed list ``CAUSES``, told without a model.

``cause_of`` goes through the rules of ``RULES`` from the top; the first that holds gives the cause. First comes what
execution tells for certain (nothing to run, did not run, no rows). Then what the syntax trees tell where the two
queries differ in one respect only. Where they differ in several, the results are asked again (same rows in another
order, same rows repeated, same columns and one more), and last the respects in the order in which they matter.
Written down, with examples and measured, in ``docs/evaluation.md``.

>>> one_row, no_rows = RunResult(True, ("a",), ((1,),)), RunResult(True, ("a",), ())
>>> cause_of(None, "SELECT a FROM t WHERE a > 9", one_row, no_rows, "SELECT a FROM t")
'empty_result'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from nl2sql.databases.schema import Schema
from nl2sql.eval.rules import gold_order, results_match
from nl2sql.interfaces import Question, RunResult
from nl2sql.sql.facets import differing

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "blank": "no prediction, or a blank one",
        "timeout": "no result within the time allowed",
        "too_many_rows": "more rows than the bound",
        "invalid:unknown_table": "a table that the database does not have",
        "invalid:unknown_column": "a column that none of the tables in scope has",
        "invalid:ambiguous": "a column name that several tables in scope have",
        "invalid:syntax": "not SQL, or not SQLite's",
        "invalid:other": "refused or failed for any other reason: a write, several statements, misuse of a function",
        "empty_result": "no rows, where the gold has some",
        "join_path": "other tables, other join conditions, or another kind of join",
        "grouping_aggregate": "other aggregate functions, other keys of GROUP BY, HAVING on something else",
        "filter_value": "another condition: its value, operator, column, or the condition as a whole",
        "projection": "other columns in the result, or another number of them",
        "order_limit": "the right rows in another order, or cut at another place",
        "duplicates": "the right rows, repeated another number of times: DISTINCT, UNION ALL",
        "other": "none of the above can be told (a set operation, a query that cannot be compared, a failing gold)",
    }
)


# RunResult.error_kind (or ItemScore.error_kind) -> cause, for predictions that did not run; any other kind is
# "invalid:other".
_FAILURES: Mapping[str, str] = MappingProxyType(
    {
        "missing": "blank",
        "empty": "blank",
        "timeout": "timeout",
        "too_many_rows": "too_many_rows",
        "unknown_table": "invalid:unknown_table",
        "unknown_column": "invalid:unknown_column",
        "ambiguous_column": "invalid:ambiguous",
        "syntax": "invalid:syntax",
        "database": "other",  # the database itself is missing: no fault of the query
    }
)

# The cause that a difference in each facet of the syntax trees (``facets.Facets``) speaks for.
FACET_CAUSES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("tables", "table_uses", "edges", "outer_joins"), "join_path"),
        **dict.fromkeys(("aggregates", "grouped", "group_uses", "group_keys"), "grouping_aggregate"),
        **dict.fromkeys(("having", "counted"), "grouping_aggregate"),
        **dict.fromkeys(("counted_distinct", "projection"), "projection"),
        **dict.fromkeys(("order", "limit"), "order_limit"),
        **dict.fromkeys(("distinct", "distinct_aggregates"), "duplicates"),
        "filters": "filter_value",
        "set_operations": "other",
    }
)


@dataclass(frozen=True)
class _Facts:
    """The facts that the rules look at: the two statements, and their results where both ran."""

    gold_sql: str
    predicted_sql: str
    gold: RunResult
    predicted: RunResult
    schema: Schema | None

    @cached_property
    def differing(self) -> frozenset[str]:
        """The facets in which the syntax trees differ; none where they cannot be compared."""
        names = differing(self.gold_sql, self.predicted_sql, self.schema) or frozenset()
        if len(names) > 1 and "distinct" in names and not _repeats(self.gold) and not _repeats(self.predicted):
            names -= {"distinct"}  # nothing is repeated: DISTINCT or not makes no difference here
        return names

    @cached_property
    def single_cause(self) -> str | None:
        """The cause for which all differing facets speak, where there is but one."""
        causes = {FACET_CAUSES[name] for name in self.differing}
        return causes.pop() if len(causes) == 1 else None

    def differs(self, *facets: str) -> bool:
        return not self.differing.isdisjoint(facets)

    @cached_property
    def same_answer(self) -> bool:
        """Whether the results match after all (the prediction is wrong on other databases only)."""
        return results_match(self.gold, self.predicted, **gold_order(self.gold_sql, self.gold))


class CauseRule(NamedTuple):
    """``cause`` holds where ``test`` does and no rule above it did."""

    cause: str
    test: Callable[[_Facts], bool]


def _only(cause: str) -> CauseRule:
    return CauseRule(cause, lambda facts: facts.single_cause == cause)


def _when(cause: str, *facets: str) -> CauseRule:
    return CauseRule(cause, lambda facts: facts.differs(*facets))


def _rows_in_another_order(facts: _Facts) -> bool:
    return not facts.same_answer and results_match(facts.gold, facts.predicted, ordered=False)


def _rows_repeated(facts: _Facts) -> bool:
    if facts.same_answer or facts.differs("projection") or len(facts.gold.rows) == len(facts.predicted.rows):
        return False
    return results_match(_without_repeats(facts.gold), _without_repeats(facts.predicted), ordered=False)


def _other_columns(facts: _Facts) -> bool:
    """One result has all columns of the other and more; or, of several columns, some are the same and some not."""
    if len(facts.gold.rows) != len(facts.predicted.rows) or (facts.differing and not facts.differs("projection")):
        return False
    gold, predicted = _columns(facts.gold), _columns(facts.predicted)
    shared = (Counter(gold) & Counter(predicted)).total()
    if len(gold) != len(predicted):
        return shared > 0 and shared == min(len(gold), len(predicted))
    structure = facts.differs("tables", "aggregates", "grouped", "having")
    return 0 < shared < len(gold) and len(facts.gold.rows) > 1 and not structure


RULES: Sequence[CauseRule] = (
    CauseRule("empty_result", lambda facts: not facts.predicted.rows and bool(facts.gold.rows)),
    _only("join_path"),
    _only("grouping_aggregate"),
    _only("filter_value"),
    _only("projection"),
    _only("order_limit"),
    _only("duplicates"),
    CauseRule("order_limit", _rows_in_another_order),
    CauseRule("projection", _other_columns),
    CauseRule("duplicates", _rows_repeated),
    _when("join_path", "tables"),
    _when("grouping_aggregate", "aggregates", "grouped", "having"),
    _when("filter_value", "filters"),
    _when("join_path", "edges", "outer_joins"),
    _when("grouping_aggregate", "group_keys", "counted"),
    _when("projection", "projection"),
    _when("order_limit", "order", "limit"),
    _when("duplicates", "distinct", "distinct_aggregates"),
    _when("grouping_aggregate", "group_uses"),
    _when("join_path", "table_uses"),
)


def cause_of(
    question: Question | None,
    predicted_sql: str | None,
    gold: RunResult | None,
    predicted: RunResult | None,
    gold_sql: str | None,
    schema: Schema | None = None,
    *,
    right: bool | None = None,
    error_kind: str | None = None,
) -> str | None:
    """The cause (a key of ``CAUSES``) for which ``predicted_sql`` is wrong, or None where it is right.

    ``gold`` is the result of ``gold_sql`` (None: the first of ``question.gold``), ``predicted`` that of
    ``predicted_sql``; None: not executed, and ``error_kind`` (as in ``ItemScore``) may say why.
    ``right``: the verdict; None: the ``bag`` rule decides. With ``right=False`` and equal results (wrong on a replica
    only) the syntax trees decide. ``schema`` tells to which table an unqualified column belongs.
    Never raises for what the statements are.
    """
    if right:
        return None
    if not (predicted_sql or "").strip():
        return "blank"
    kind = error_kind or _failure(predicted)
    if kind is not None:
        return _FAILURES.get(kind, "invalid:other")
    gold_sql = gold_sql or (question.gold[0] if question is not None and question.gold else None)
    if gold_sql is None or gold is None or predicted is None or _failure(gold) is not None:
        return "other"
    facts = _Facts(gold_sql, predicted_sql or "", gold, predicted, schema)
    if right is None and facts.same_answer:
        return None
    return next((rule.cause for rule in RULES if rule.test(facts)), "other")


def _failure(result: RunResult | None) -> str | None:
    """The kind of a failure; None where the result can be used, or where there is none."""
    if result is None:
        return None
    if result.truncated:
        return "too_many_rows"
    return None if result.success else result.error_kind or "other"


def _repeats(result: RunResult) -> bool:
    return len(set(result.rows)) < len(result.rows)


def _without_repeats(result: RunResult) -> RunResult:
    return replace(result, rows=tuple(dict.fromkeys(result.rows)))


def _columns(result: RunResult) -> list[tuple[object, ...]]:
    """The columns of a result, each with its values in an order of their own: rows are not matched up."""

    def sortable(value: object) -> object:
        return float(value) if isinstance(value, int) and abs(value) < 2**53 else value

    return [tuple(sorted(map(sortable, column), key=repr)) for column in zip(*result.rows, strict=True)]
