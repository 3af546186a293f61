"""Why a statement fails and what to do about it, in lines for a person: ``nl2sql data explain``, and a failed ``ask``.

On the packaged ``scale_models`` database, ``SELECT nam FROM product_lines`` gives the error, its category, the
violated constraint, an alternative and, where a repair without a model is known, the mended statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nl2sql.repair.analyzer import ErrorAnalyzer
from nl2sql.repair.deterministic import mend
from nl2sql.repair.dry_run import ExplainAnalyzeResponse, engine_version, explain_analyze

if TYPE_CHECKING:
    from nl2sql.interfaces import Database
    from nl2sql.repair.corpus import Corpus


SEARCH_S = 60.0  # for similar fixes: a person waits, and the one search of a process first reads all vectors


@dataclass(frozen=True)
class Explanation:
    """What is known of a statement: the dry run's response, and the statement mended without a model ("" without)."""

    response: ExplainAnalyzeResponse
    mended: str = ""

    def lines(self) -> list[str]:
        """The error, its category, what it violates, what to do instead, similar fixes; ``valid`` for a sound one."""
        if self.response.valid:
            return ["valid"]
        lines = [f"error: {self.response.error}"]
        if guidance := self.response.repair_guidance:
            lines += [
                f"category: {guidance.category}",
                f"violated constraint: {guidance.violated_constraint or 'N/A'}",
                f"alternative approach: {guidance.alternative_approach or 'N/A'}",
            ]
            fixes = guidance.similar_fixes
            lines += [f"similar fix ({fix.similarity_score:.3f}): {' '.join(fix.sql.split())}" for fix in fixes]
        return lines


def explanation(
    sql: str, database: Database, *, corpus: Corpus | None = None, threshold: float = 0.7, mending: bool = True
) -> Explanation:
    """Dry-run a statement; with ``mending`` also repair an invalid one without a model. Raises DatabaseError."""
    version = engine_version(database)
    analyzer = ErrorAnalyzer(database.dialect, corpus, threshold=threshold, search_s=SEARCH_S, version=version)
    try:
        response = explain_analyze(sql, database, analyzer=analyzer)
    finally:
        analyzer.close()
    if response.valid or not mending:
        return Explanation(response)
    return Explanation(response, mend(sql, response.error or "", database, database.schema()) or "")
