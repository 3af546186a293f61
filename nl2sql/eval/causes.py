"""Why a prediction is wrong: one cause out of the closed list ``CAUSES`` (see docs/causes.md)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nl2sql.interfaces import Question, RunResult
from nl2sql.schema import Schema

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


def cause_of(
    question: Question | None,
    predicted_sql: str | None,
    gold: RunResult | None,
    predicted: RunResult | None,
    gold_sql: str | None,
    schema: Schema | None = None,
    *,
    right: bool | None = None,
) -> str | None:
    """The cause (a key of ``CAUSES``) for which ``predicted_sql`` is wrong, or None where it is right.

    ``gold`` is the result of ``gold_sql``, ``predicted`` that of ``predicted_sql`` (None: it was not executed).
    ``right``: the verdict; None: the ``bag`` rule decides. With ``right=False`` and equal results (wrong on a replica
    only) the syntax trees decide. ``schema`` tells to which table an unqualified column belongs.
    """
    raise NotImplementedError
