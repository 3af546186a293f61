"""Constraints: what a question asks of the structure of its query, and whether a query has it [13].

``extract_constraints`` reads the question alone, ``validate_constraints`` the query against what was
extracted, ``intent_constraints`` both together (after a successful run). The gates abstain where sqlglot
cannot parse: syntax is ``validate_sql``'s matter. Measured both ways by ``scripts/gold_through_gates.py``.
"""

from __future__ import annotations

from nl2sql.agents.checks.constraints.cues import extract_constraints
from nl2sql.agents.checks.constraints.intent import intent_constraints, validate_constraints

__all__ = ["extract_constraints", "intent_constraints", "validate_constraints"]
