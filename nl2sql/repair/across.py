"""Fixes of other dialects, written in the one that is asked for: what was learned on one engine helps on another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nl2sql.repair.guidance import SimilarFix

if TYPE_CHECKING:
    from nl2sql.repair.corpus import Corpus


def search_across(
    corpus: Corpus, error: str, failed_sql: str, *, dialect: str, limit: int, threshold: float, exclude: str = ""
) -> list[SimilarFix]:
    """The closest fixes of every dialect; among equally close ones those of ``dialect`` come first.

    The SQL of another dialect is transpiled, and its description says from where; what cannot be is left out.
    """
    found: list[SimilarFix] = []
    for other in (dialect, *(name for name in corpus.dialects() if name != dialect)):
        fixes = corpus.search(error, failed_sql, dialect=other, limit=limit, threshold=threshold, exclude=exclude)
        if other == dialect:
            found += fixes
            continue
        for fix in fixes:
            if text := transpiled(fix.sql, other, dialect):
                about = f"{fix.description} (from {other})".strip()
                found.append(fix.model_copy(update={"sql": text, "description": about}))
    return sorted(found, key=lambda fix: -fix.similarity_score)[:limit]


def transpiled(sql: str, source: str, target: str) -> str:
    """``sql`` of one dialect in another; "" where that cannot be done without loss."""
    from sqlglot import ErrorLevel
    from sqlglot.errors import SqlglotError

    from nl2sql.repair.rewrites import rewritten
    from nl2sql.sql.parse import SLIPS, parse_bounded

    try:
        tree = rewritten(parse_bounded(sql, source), target)
        return str(tree.sql(dialect=target, unsupported_level=ErrorLevel.RAISE))
    except (SqlglotError, *SLIPS):
        return ""
