"""Suspicious joins: beside the key that the schema declares, or repeating the rows that are added up."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from nl2sql.agents.checks.suspicions.evidence import Evidence, Place
from nl2sql.databases.schema import Schema, Table

MOST_GROUPS = 1_000


def join_beside_key(evidence: Evidence) -> Iterator[str]:
    """Two tables that a declared key links, joined by other columns than any declared one."""
    for scope in evidence.scopes:
        pairs: dict[tuple[str, str], list[tuple[Place, Place]]] = {}
        for node in scope.find_all(exp.EQ):
            left, right = evidence.place(scope, node.left), evidence.place(scope, node.right)
            if left is not None and right is not None and left.table != right.table:
                one, other = sorted((left, right), key=lambda place: place.alias)
                pairs.setdefault((one.alias, other.alias), []).append((one, other))
        for joined in pairs.values():
            keys = _keys(evidence.schema, joined[0][0].table, joined[0][1].table)
            used = {frozenset(((a.table, a.column.lower()), (b.table, b.column.lower()))) for a, b in joined}
            if keys and not used & keys.keys():
                yield f"{joined[0][0]} = {joined[0][1]} is joined beside the declared key {next(iter(keys.values()))}"


def _keys(schema: Schema, first: str, second: str) -> dict[frozenset[tuple[str, str]], str]:
    """The columns that foreign keys between two tables link, each with how it is written."""
    keys: dict[frozenset[tuple[str, str]], str] = {}
    for own, other in ((first, second), (second, first)):
        table = schema.table(own)
        for key in table.foreign_keys if table else ():
            if key.ref_table.lower() == other.lower():
                for column, target in zip(key.columns, key.ref_columns, strict=False):
                    pair = frozenset(((own, column.lower()), (other, target.lower())))
                    keys[pair] = f"{own}.{column} = {other}.{target}"
    return keys


def fan_out(evidence: Evidence) -> Iterator[str]:
    """A sum or mean over a table's rows that a join repeats."""
    for scope in evidence.scopes:
        select = scope.expression
        if not isinstance(select, exp.Select) or not select.args.get("joins"):
            continue
        for call in scope.find_all(exp.Sum, exp.Avg):
            if isinstance(call.parent, exp.Window):
                continue
            place = evidence.place(scope, call.this)
            key = _row_key(evidence.schema.table(place.table)) if place else ""
            if place is None or not key or not _repeats(evidence, select, place.alias, key):
                continue
            yield f"the join repeats rows of {place.table}, so that {place.column} is added up more than once"


def _row_key(table: Table | None) -> str:
    """The column that tells a table's rows apart; "" where it is not one column."""
    keys = [column.name for column in table.columns if column.primary_key] if table else []
    return keys[0] if len(keys) == 1 else ""


def _repeats(evidence: Evidence, select: exp.Select, alias: str, key: str) -> bool:
    """Whether a row of ``alias`` stands more than once in a group of what the select reads."""
    column = exp.column(key, alias, quoted=True)
    probe = exp.select(exp.Count(this=column), exp.Count(this=exp.Distinct(expressions=[column.copy()])))
    for part in ("with_", "from_", "joins", "where", "group"):
        if select.args.get(part) is not None:
            value = select.args[part]
            probe.set(part, [e.copy() for e in value] if isinstance(value, list) else value.copy())
    seen = evidence.read(probe.limit(MOST_GROUPS), MOST_GROUPS)
    return seen.success and any(rows > distinct for rows, distinct in seen.rows)
