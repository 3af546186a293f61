"""Queries as a small model gets them wrong, made from right ones; the error is the product's own.

Kinds: an invented column, a column of another table, a mistyped table, a missing join, a lost GROUP BY or ORDER BY,
an invented function, broken syntax. What happens to pass every gate is not used.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from nl2sql.agents.checks import constraints
from nl2sql.databases import validation
from nl2sql.databases.schema import Schema
from nl2sql.interfaces import Database
from nl2sql.sql.parse import SLIPS, parse_bounded


def corrupted(
    sql: str, question: str, schema: Schema, database: Database, rng: random.Random
) -> tuple[str, str] | None:
    """(a wrong query, the error that the loop would repair it with); None where nothing was found in a few tries."""
    kinds = list(KINDS)
    rng.shuffle(kinds)
    for kind in kinds:
        bad = kind(sql, schema, rng)
        if bad is None or bad == sql:
            continue
        error = error_of(bad, question, schema, database)
        if error is not None:
            return bad + ";", error
    return None


def error_of(sql: str, question: str, schema: Schema, database: Database) -> str | None:
    """What the loop's gates say first about ``sql``; None when they let it pass."""
    verdict = validation.validate_sql(sql, schema, database)
    if not verdict["valid"]:
        return str(verdict["reason"])
    checked = constraints.validate_constraints(sql, constraints.extract_constraints(question), schema)
    return None if checked["valid"] else str(checked["reason"])


def _tree(sql: str) -> Any:
    from sqlglot.errors import SqlglotError

    try:
        return parse_bounded(sql)
    except (SqlglotError, *SLIPS):
        return None


def _columns(sql: str) -> tuple[Any, list[Any]]:
    from sqlglot import expressions as exp

    tree = _tree(sql)
    return tree, [] if tree is None else list(tree.find_all(exp.Column))


def invented_column(sql: str, schema: Schema, rng: random.Random) -> str | None:
    from sqlglot import expressions as exp

    tree, columns = _columns(sql)
    if not columns:
        return None
    column = rng.choice(columns)
    name = column.name
    parts = [part for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name) if part]
    table = column.table or rng.choice(schema.tables).name
    invented = [f"{table}_{name}", f"{name}_name", f"{name}_id", f"{name}s", *(parts if len(parts) > 1 else ())]
    if len(parts) > 1:
        invented += ["".join(parts), "_".join(parts[:-1]), "_".join(parts[1:])]
    column.set("this", exp.to_identifier(rng.choice(invented)))
    return str(tree.sql(dialect="sqlite"))


def other_table_s_column(sql: str, schema: Schema, rng: random.Random) -> str | None:
    from sqlglot import expressions as exp

    tree, columns = _columns(sql)
    others = [c.name for table in schema.tables for c in table.columns]
    if not columns or not others:
        return None
    rng.choice(columns).set("this", exp.to_identifier(rng.choice(others), quoted=False))
    return str(tree.sql(dialect="sqlite"))


def mistyped_table(sql: str, schema: Schema, rng: random.Random) -> str | None:
    from sqlglot import expressions as exp

    tree = _tree(sql)
    tables = [] if tree is None else list(tree.find_all(exp.Table))
    if not tables:
        return None
    name = rng.choice(tables).name
    wrong = rng.choice([name + "s", name.rstrip("s"), name.replace("_", ""), name.split("_")[0], name + "_info"])
    return re.sub(rf"\b{re.escape(name)}\b", wrong, str(tree.sql(dialect="sqlite")))


def missing_join(sql: str, schema: Schema, rng: random.Random) -> str | None:
    from sqlglot import expressions as exp

    tree = _tree(sql)
    joined = [] if tree is None else [s for s in tree.find_all(exp.Select) if s.args.get("joins")]
    if not joined:
        return None
    select = rng.choice(joined)
    joins = list(select.args["joins"])
    joins.pop(rng.randrange(len(joins)))
    select.set("joins", joins)
    return str(tree.sql(dialect="sqlite"))


def lost_clause(sql: str, schema: Schema, rng: random.Random) -> str | None:
    tree = _tree(sql)
    if tree is None:
        return None
    present = [clause for clause in ("group", "order", "limit", "having", "distinct") if tree.args.get(clause)]
    if not present:
        return None
    tree.set(rng.choice(present), None)
    return str(tree.sql(dialect="sqlite"))


def broken_syntax(sql: str, schema: Schema, rng: random.Random) -> str | None:
    cuts: list[Callable[[], str]] = [
        lambda: re.sub(r"\bON\b.*", "", sql, count=1),
        lambda: sql.replace("(", "", 1),
        lambda: sql.replace(" FROM ", " FROM FROM ", 1),
        lambda: re.sub(r"\bGROUP BY\b", "GROUPED BY", sql),
        lambda: re.sub(r"\bCOUNT\(\*\)", "NUMBER(*)", sql),
        lambda: re.sub(r"\bAVG\(", "AVERAGE(", sql),
        lambda: re.sub(r"\bWHERE (.*)", r"WHERE WHERE \1", sql),
        lambda: sql + " AND",
    ]
    return rng.choice(cuts)()


KINDS = (
    invented_column,
    invented_column,
    other_table_s_column,
    mistyped_table,
    missing_join,
    lost_clause,
    broken_syntax,
)
