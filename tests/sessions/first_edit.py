"""The edited query of a follow-up, as the tests compare it."""

from __future__ import annotations

from nl2sql.interfaces import Database, Turn
from nl2sql.sessions.edits import edited


def first_edit(database: Database, before: str, question: str) -> str:
    """The SQL of the first edit; "" where the follow-up is left to the model."""
    edits = edited(question, Turn("", sql=before), database)
    return edits[0][0] if edits else ""
