"""The answer of a dry run: whether the statement is valid, and if not, guidance on what to do about it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import BaseModel


class SimilarFix(BaseModel):
    """A stored query that repaired a similar failure. ``similarity_score`` is a cosine: larger is closer."""

    query_id: UUID
    sql: str
    description: str
    similarity_score: float


class RepairGuidance(BaseModel):
    """The rule that a failed statement broke, what to do instead, and similar failures with their repairs.

    ``category`` is one of ``nl2sql.repair.registry.categories()``; "unknown" where no pattern matched.
    """

    violated_constraint: str | None = None
    alternative_approach: str | None = None
    category: str
    similar_fixes: list[SimilarFix] = []


class ExplainAnalyzeResponse(BaseModel):
    """The outcome of compiling a statement without running it.

    ``explain`` is the engine's plan (``{"plan": [...]}``) of a valid statement; ``error`` the engine's message and
    ``repair_guidance`` what to do about it of an invalid one.
    """

    valid: bool
    explain: dict[str, Any] | None = None
    error: str | None = None
    repair_guidance: RepairGuidance | None = None
