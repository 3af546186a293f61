"""What makes a row of the corpus the same as another, and the rows of an older corpus computed anew."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from nl2sql.repair.signatures import error_signature, mask_error, normalised_sql


def query_identity(sql: str, dialect: str) -> str:
    return _identity(dialect, normalised_sql(sql, dialect))


def fix_identity(signature: str, failed_sql: str, successful_sql: str, dialect: str) -> str:
    """A pair is told by its type of error and both trees."""
    return _identity(dialect, signature, normalised_sql(failed_sql, dialect), normalised_sql(successful_sql, dialect))


def compute_anew(read: Callable[[str], list[tuple]], run: Any, vector: Callable[[str, str, str], bytes]) -> None:
    """Signatures, identities and vectors of a file that has none. ``run`` writes inside the upgrade's transaction."""
    for id, error, failed, fixed, dialect in read(
        "SELECT id, error_msg, failed_sql, successful_sql, dialect FROM error_fix_history"
    ):
        signature = error_signature(error, failed, dialect)
        run(
            "UPDATE OR IGNORE error_fix_history SET identity = ? WHERE id = ?",  # a pair stored twice keeps NULL
            (fix_identity(signature, failed, fixed, dialect), id),
            rewrite=True,
        )
        halves = vector(mask_error(error, failed, dialect), failed, dialect)
        run("UPDATE error_fix_history SET error_signature = ?, embedding = ? WHERE id = ?", (signature, halves, id))
    for id, sql, text, dialect in read("SELECT query_id, sql, description, dialect FROM successful_queries"):
        run(
            "UPDATE OR IGNORE successful_queries SET identity = ? WHERE query_id = ?",
            (query_identity(sql, dialect), id),
        )
        halves = vector(text or "", sql, dialect)
        run("UPDATE successful_queries SET embedding = ? WHERE query_id = ?", (halves, id))


def _identity(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
