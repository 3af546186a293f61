"""Whether a query that ran can be an answer to its question: rules over question, query and schema together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nl2sql.constraints.cues import read_cues
from nl2sql.constraints.shape import Shape, aggregate_name, bare_columns, is_aggregate, read_shape
from nl2sql.constraints.validate import is_extreme

if TYPE_CHECKING:
    from nl2sql.schema import Schema


def intent_constraints(nlq: str, sql: str, schema: Schema | None = None) -> tuple[bool, str]:
    """Apply the SQL-structure heuristic of section 7.3.

    Returns:
        ``(ok, reason)``; reason ``ok`` or ``unparsed`` when ok, else what is missing, as in
        ``validate_constraints``. Not covered: wrong columns, wrong joins, wrong filters.
    """
    shape = read_shape(sql, schema)
    if shape is None:
        return True, "unparsed"
    cues = read_cues(nlq)
    if lacks_grouping(shape):
        return False, "missing_group_by"
    if "superlative" in cues and not shape.order and not is_extreme(shape):
        return False, "missing_order_by"
    return True, "ok"


def lacks_grouping(shape: Shape) -> bool:
    """An aggregate over all rows beside a column of single rows, or used to order or filter single rows."""
    return any(_ungrouped(leg) for leg in shape.legs)


def _ungrouped(leg) -> bool:  # type: ignore[no-untyped-def]
    from sqlglot import exp

    if leg.args.get("group"):
        return False
    named = {
        aggregate_name(node)
        for projection in leg.expressions
        for node in projection.walk()
        if is_aggregate(node) and not isinstance(node.parent, exp.Window) and node.find_ancestor(exp.Select) is leg
    }
    bare = any(True for projection in leg.expressions for _ in bare_columns(projection))
    if bare and named - {"MAX", "MIN"}:
        return True
    if leg.args.get("having"):
        return True
    order = leg.args.get("order")
    return bool(order and bare and any(is_aggregate(n) for n in order.walk()))
