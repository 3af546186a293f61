"""The quality of an attempt, told without its gold: 0 to 100 from named parts, each of which can be missing.

>>> quality_score({"executes": True, "constraints": True, "non_empty": False})
87

===============  ======  ==================================================================================
part             weight  1 when
===============  ======  ==================================================================================
executes             40  the query ran; a query that did not scores 0, whatever else it has
constraints          25  it has the structure that the question asks for (the constraint and the intent gate)
projection           15  it has as many columns as the question enumerates; missing where it enumerates none
non_empty            10  it has rows
===============  ======  ==================================================================================

The score is the share of the weights of the parts that could be told. It chooses between attempts that both ran, and is
shown; it does not decide whether another attempt is made. Not covered: whether the answer is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nl2sql.agents.checks.projection import enumerated_fields

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
