"""Advice from the schema on a failed statement, whatever the error: names that are not there, joins without a key.

Over the packaged ``scale_models`` database, ``SELECT city FROM custmers`` gives
``["There is no table custmers; the closest is customers."]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nl2sql.databases.schema import quote_name
from nl2sql.repair.rewrites import UNIT
from nl2sql.repair.schema_names import similar_columns, similar_names, with_derived

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

    from nl2sql.databases.schema import Schema, Table

MOST = 3  # sentences


def schema_advice(sql: str, schema: Schema, dialect: str) -> list[str]:
    """At most three sentences: columns that another table has, with the way to it; unknown tables and columns (units of
    time in a call are none) with the closest real ones; and for tables that are joined by other columns than their
    foreign key, that key. Empty where the statement cannot be parsed or nothing is odd."""
    from sqlglot.errors import SqlglotError

    from nl2sql.sql.parse import parse_bounded

    try:
        tree = parse_bounded(sql, dialect)
    except SqlglotError:
        return []
    schema = with_derived(schema, sql, dialect)
    parts = (_misplaced, _tables, _columns, _joins)
    return [sentence for part in parts for sentence in part(tree, schema, dialect)][:MOST]


def _defined(tree: Expr) -> set[str]:
    """Names that the statement itself gives: WITH parts, aliases."""
    from sqlglot import exp

    named = [*tree.find_all(exp.CTE), *tree.find_all(exp.Alias), *tree.find_all(exp.TableAlias)]
    columns = [column.name for alias in tree.find_all(exp.TableAlias) for column in alias.columns]
    return {node.alias_or_name.lower() for node in named} | {name.lower() for name in columns}


def _misplaced(tree: Expr, schema: Schema, dialect: str) -> list[str]:
    """For a column of another table: how it is written where that table is in FROM, else how that table is joined."""
    from sqlglot import exp

    sentences = []
    for column in tree.find_all(exp.Column):
        near = _in_reach(column, schema)
        name, beside = column.name, near.get(column.table)
        if not near or (column.table and beside is None) or (not column.table and name in _defined(tree)):
            continue
        owners = [alias for alias, table in near.items() if _has(table, name)]
        if _has(beside, name) if beside else owners:
            continue
        if owners and beside is not None and column.find_ancestor(exp.Join) is not None:
            sentences.append(_no_such_join(beside, near[owners[0]], name, schema, dialect))
        elif owners:
            right = ".".join(quote_name(part, dialect) for part in (owners[0], name))
            sentences.append(f"Write {right}, not {column.sql(dialect)}.")
        elif others := [table for table in schema.tables if _has(table, name)]:
            sentences.append(_way_to(others, near, name, dialect))
    return list(dict.fromkeys(sentences))


def _in_reach(column: Expr, schema: Schema) -> dict[str, Table]:
    """Alias -> table of the FROM clauses around a column."""
    from sqlglot import exp

    reach: dict[str, Table] = {}
    select = column.find_ancestor(exp.Select)
    while select is not None:
        for source in (select.args.get("from_"), *select.args.get("joins", ())):
            if source is not None and (table := schema.table(source.this.name)) is not None:
                reach.setdefault(source.this.alias_or_name, table)
        select = select.find_ancestor(exp.Select)
    return reach


def _no_such_join(table: Table, other: Table, column: str, schema: Schema, dialect: str) -> str:
    """``Research_Staff has no role_code: join it through Project_Staff, or leave it out.``"""
    ends = {table.name.lower(), other.name.lower()}
    middle = [m for m in schema.tables if ends <= {key.ref_table.lower() for key in m.foreign_keys}]
    way = f"join it through {quote_name(middle[0].name, dialect)}, or leave it out" if middle else "leave it out"
    return f"{quote_name(table.name, dialect)} has no {column}: {way}."


def _has(table: Table, column: str) -> bool:
    return any(own.name.lower() == column.lower() for own in table.columns)


def _way_to(others: list[Table], near: dict[str, Table], column: str, dialect: str) -> str:
    """``HS is a column of Player: JOIN Player ON Player.pID = Tryout.pID, or select from Player alone.``"""
    for other in others:
        for alias, table in near.items():
            for child, parent in ((other, table), (table, other)):
                for key in child.foreign_keys:
                    if key.ref_table.lower() != parent.name.lower():
                        continue
                    names = {id(other): other.name, id(table): alias}
                    on = " AND ".join(
                        f"{_dotted(names[id(child)], own, dialect)} = {_dotted(names[id(parent)], ref, dialect)}"
                        for own, ref in zip(key.columns, key.ref_columns, strict=True)
                    )
                    there = quote_name(other.name, dialect)
                    return f"{column} is a column of {there}: JOIN {there} ON {on}, or select from {there} alone."
    return (
        f"{column} is a column of {' and of '.join(quote_name(o.name, dialect) for o in others[:2])}: use that table."
    )


def _dotted(table: str, column: str, dialect: str) -> str:
    return f"{quote_name(table, dialect)}.{quote_name(column, dialect)}"


def _tables(tree: Expr, schema: Schema, dialect: str) -> list[str]:
    from sqlglot import exp

    known = {table.name.lower() for table in schema.tables} | _defined(tree)
    names = dict.fromkeys(table.name for table in tree.find_all(exp.Table) if table.name)
    sentences = []
    for name in names:
        if name.lower() not in known and (close := similar_names(name, (t.name for t in schema.tables), 1)):
            sentences.append(f"There is no table {name}; the closest is {quote_name(close[0], dialect)}.")
    return sentences


def _columns(tree: Expr, schema: Schema, dialect: str) -> list[str]:
    from sqlglot import exp

    known = {column.name.lower() for table in schema.tables for column in table.columns} | _defined(tree)
    columns = (c for c in tree.find_all(exp.Column) if isinstance(c.this, exp.Identifier))
    names = dict.fromkeys(c.name for c in columns if not (isinstance(c.parent, exp.Func) and UNIT.fullmatch(c.name)))
    named = {table.name.lower() for table in tree.find_all(exp.Table)}
    used = [table for table in schema.tables if table.name.lower() in named]
    sentences = []
    for name in names:
        if name.lower() not in known and (close := similar_columns(name, schema, None, used)):
            full = ".".join(quote_name(part, dialect) for part in close[0])
            sentences.append(f"No table has a column {name}; the closest is {full}.")
    return sentences


def _joins(tree: Expr, schema: Schema, dialect: str) -> list[str]:
    """For two joined tables that foreign keys link, the keys where the statement names the columns of none."""
    from sqlglot import exp

    def name(plain: str) -> str:
        return quote_name(plain, dialect)

    joined = {table.name.lower() for table in tree.find_all(exp.Table)}
    if not any(tree.find_all(exp.Join)):
        return []
    named = {column.name.lower() for column in tree.find_all(exp.Column)}
    named |= {using.name.lower() for join in tree.find_all(exp.Join) for using in join.args.get("using") or ()}
    keys: dict[tuple[str, str], list[str]] = {}
    linked: set[tuple[str, str]] = set()
    for table in schema.tables:
        for key in table.foreign_keys:
            pair = (table.name, key.ref_table)
            if len(lower := {part.lower() for part in pair}) < 2 or not lower <= joined:
                continue
            if {c.lower() for c in (*key.columns, *key.ref_columns)} <= named:
                linked.add(pair)
            on = " AND ".join(
                f"{name(table.name)}.{name(own)} = {name(key.ref_table)}.{name(other)}"
                for own, other in zip(key.columns, key.ref_columns, strict=True)
            )
            keys.setdefault(pair, []).append(on)
    return [
        f"Join {name(pair[0])} and {name(pair[1])} ON {' or '.join(conditions)}."
        for pair, conditions in keys.items()
        if pair not in linked
    ]
