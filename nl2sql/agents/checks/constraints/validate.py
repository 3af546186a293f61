"""The constraint gate: has a query the structure that its question asks for, or a legitimate alternative [13]?

>>> validate_constraints("SELECT name FROM customers", {"agg": "count"})
{'valid': False, 'reason': 'missing_agg:count'}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nl2sql.agents.checks.constraints.evidence import (
    has_average,
    has_count,
    has_distinct,
    has_groups,
    has_limit,
    has_order,
    has_sum,
    is_extreme,
    is_pinned,
)
from nl2sql.agents.checks.constraints.shape import QueryShape, read_shape

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema


def validate_constraints(sql: str, constraints: Mapping[str, Any], schema: Schema | None = None) -> dict[str, Any]:
    """Check a query against the output of ``extract_constraints``.

    Args:
        sql: one SELECT in SQLite's dialect. What cannot be parsed is valid here (reason ``unparsed``).
        constraints: missing fields ask for nothing.
        schema: when given, stored counts and totals and unique columns are recognised.

    Returns:
        ``{"valid": bool, "reason": str}``; reason ``ok``, ``unparsed``, ``missing_agg:COUNT``,
        ``missing_group_by``, ``missing_order_by``, ``missing_limit:3`` or ``missing_distinct``.
    """
    shape = read_shape(sql, schema)
    if shape is None:
        return {"valid": True, "reason": "unparsed"}
    agg = constraints.get("agg")
    limit = constraints.get("limit")
    if agg and not has_aggregate(shape, agg):
        return {"valid": False, "reason": f"missing_agg:{agg}"}
    single = len(shape.tables) == 1  # it may hold one row per asked thing: the question has to tell (intent)
    if constraints.get("needs_group_by") and not single and not has_groups(shape):
        return {"valid": False, "reason": "missing_group_by"}
    if limit and not has_limit(shape, limit):
        return {"valid": False, "reason": f"missing_limit:{limit}"}
    if constraints.get("needs_order_by") and not has_order(shape, extreme=bool(limit)):
        return {"valid": False, "reason": "missing_order_by"}
    if constraints.get("distinct") and not has_distinct(shape):
        return {"valid": False, "reason": "missing_distinct"}
    return {"valid": True, "reason": "ok"}


def has_aggregate(shape: QueryShape, agg: str) -> bool:
    """Whether the query computes ``agg``, or has another legitimate way to the same value."""
    if agg == "COUNT":
        return has_count(shape)
    if agg == "SUM":
        return has_sum(shape)
    if agg == "AVG":
        return has_average(shape)
    return is_extreme(shape) or is_pinned(shape)  # "maximum speed" of one named thing is stored
