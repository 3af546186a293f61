"""The deterministic guardrails in their order, and the fallback candidate [the specification's sections 4 and 7.4].

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> schema = Schema((Table("customers", (Column("name"),)),))
>>> canonicalize_table_casing("SELECT name FROM CUSTOMERS", schema)
'SELECT name FROM customers'

clean -> postprocess -> projection contract -> table casing. Each works on tokens or the tree, is idempotent, and leaves
the statement alone when in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlglot import exp

from nl2sql.agents.checks.candidate import clean_candidate_with_reason
from nl2sql.agents.checks.constraints import intent_constraints
from nl2sql.agents.checks.postprocess import guarded_postprocess
from nl2sql.agents.checks.projection import enforce_projection_contract
from nl2sql.databases.schema import Schema
from nl2sql.sql.text import Tree, edited, parse, span

CUTTABLE = ("postprocess", "projection_contract", "table_casing")
__all__ = [
    "CUTTABLE",
    "apply_guardrails",
    "canonicalize_table_casing",
    "clean_candidate_with_reason",
    "enforce_projection_contract",
    "guarded_postprocess",
    "intent_constraints",
    "vanilla_candidate",
]


def apply_guardrails(
    raw_sql: str, nlq: str, schema: Schema, *, cut: Collection[str] = (), strip_unasked: bool = False
) -> tuple[str, str | None]:
    """All four guardrails: ``(sql, None)`` when accepted, ``("", "clean_reject:<reason>")`` when rejected.

    cut: those of ``CUTTABLE`` that are left out. strip_unasked: see ``guarded_postprocess``.
    """
    sql, reason = clean_candidate_with_reason(raw_sql, schema.dialect)
    if sql is None:
        return "", f"clean_reject:{reason}"
    if "postprocess" not in cut:
        sql = guarded_postprocess(sql, nlq, strip_unasked=strip_unasked, dialect=schema.dialect)
    if "projection_contract" not in cut:
        sql = enforce_projection_contract(sql, nlq)
    return sql if "table_casing" in cut else canonicalize_table_casing(sql, schema), None


def vanilla_candidate(
    nlq: str,
    schema_summary: str,
    generate: Callable[[str, str], str],
    schema: Schema,
    *,
    cut: Collection[str] = (),
    strip_unasked: bool = False,
) -> str:
    """The deterministic fallback: one single-shot ``generate(nlq, schema_summary)`` through the guardrails.

    cut, strip_unasked: as in ``apply_guardrails``. Returns "" when the guardrails reject what came. What ``generate``
    raises is the caller's.
    """
    sql, _ = apply_guardrails(generate(nlq, schema_summary), nlq, schema, cut=cut, strip_unasked=strip_unasked)
    return sql


def canonicalize_table_casing(sql: str, schema: Schema) -> str:
    """Table names in FROM and JOIN, and as prefixes of columns, in the schema's own casing.

    Every other character stays, aliases, strings, columns and quotes included. Names of CTEs and aliases are no
    table names even where they look like one. SQL that sqlglot cannot parse comes back as it is, and a name that is a
    table's own: other engines than SQLite have tables that differ in casing alone.
    """
    tree = parse(sql)
    if tree is None:
        return sql
    names = {table.name.lower(): table.name for table in schema.tables}
    own = {table.name for table in schema.tables}
    aliases = {alias.name.lower() for alias in tree.find_all(exp.TableAlias)}  # those of CTEs among them
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    replacements = []
    for identifier, is_prefix in _table_identifiers(tree):
        name = identifier.name
        canonical = names.get(name.lower())
        if canonical is None or name in own or name.lower() in (aliases if is_prefix else ctes):
            continue
        where = span(identifier)
        if where is not None and sql[where[0] : where[1]].strip('"`[]') == name:
            start, end = where
            quotes = (end - start - len(name)) // 2
            replacements.append((start + quotes, end - quotes, canonical))
    return edited(sql, replacements)


def _table_identifiers(tree: Tree) -> list[tuple[Tree, bool]]:
    identifiers: list[tuple[Tree, bool]] = []
    for node in tree.find_all(exp.Table, exp.Column):
        identifier = node.this if isinstance(node, exp.Table) else node.args.get("table")
        if isinstance(identifier, exp.Identifier):
            identifiers.append((identifier, isinstance(node, exp.Column)))
    return identifiers
