"""Whether a query has the structure that was extracted from its question, or a legitimate alternative [13]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nl2sql.constraints.cues import lexicon
from nl2sql.constraints.shape import Shape, read_shape

if TYPE_CHECKING:
    from nl2sql.schema import Schema


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
    if constraints.get("needs_group_by") and not has_groups(shape):
        return {"valid": False, "reason": "missing_group_by"}
    if limit and not has_limit(shape, limit):
        return {"valid": False, "reason": f"missing_limit:{limit}"}
    if constraints.get("needs_order_by") and not has_order(shape, extreme=bool(limit)):
        return {"valid": False, "reason": "missing_order_by"}
    if constraints.get("distinct") and not has_distinct(shape):
        return {"valid": False, "reason": "missing_distinct"}
    return {"valid": True, "reason": "ok"}


def stores(shape: Shape, kind: str) -> bool:
    """Whether the query uses a column whose name says that it stores such a value."""
    words = lexicon().stored[kind]
    return any(use.words & words for use in shape.columns)


def projects_measure(shape: Shape) -> bool:
    return any(use.measure for use in shape.projected)


def has_aggregate(shape: Shape, agg: str) -> bool:
    """Whether the query computes ``agg``, or another legitimate way to the same value."""
    found = shape.aggregates
    if agg == "COUNT":
        return bool(found) or stores(shape, "count") or projects_measure(shape) or shape.ranked
    if agg == "SUM":
        return bool(found & {"SUM", "COUNT"}) or stores(shape, "sum") or stores(shape, "count") or shape.arithmetic
    if agg == "AVG":
        return "AVG" in found or shape.arithmetic or stores(shape, "avg")
    return bool(found & {"MAX", "MIN"}) or is_extreme(shape) or stores(shape, agg.lower())


def is_extreme(shape: Shape) -> bool:
    """Whether the query picks rows by rank: MAX or MIN, LIMIT, a rank window, ALL, or "none is greater"."""
    return (
        bool(shape.aggregates & {"MAX", "MIN"})
        or shape.has_limit
        or shape.ranked
        or shape.negated
        or stores(shape, "max")
        or stores(shape, "min")
        or stores(shape, "rank")
    )


def has_groups(shape: Shape) -> bool:
    """Whether rows are grouped, or aggregation per thing is done another way, or nothing is aggregated."""
    if shape.group or shape.window or shape.correlated:
        return True
    return not shape.projected_aggregates


def has_limit(shape: Shape, limit: int) -> bool:
    if limit == 1:
        return is_extreme(shape)
    return limit in shape.limits or (shape.ranked or shape.subquery) and float(limit) in shape.numbers


def has_order(shape: Shape, *, extreme: bool) -> bool:
    return shape.order or (extreme and is_extreme(shape))


def has_distinct(shape: Shape) -> bool:
    """Whether duplicates are removed, or cannot arise."""
    if shape.distinct or shape.group or shape.set_operation:
        return True
    single = len(shape.tables) == 1
    return any(use.unique for use in shape.projected) or (single and shape.subquery)
