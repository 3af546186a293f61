"""Slips that make a right statement wrong, as people and small models make them; errors are the engine's own.

A slip takes (SQL in SQLite's dialect, schema, random) and returns the wrong statement, or None where it finds nothing
to get wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.databases.schema import Schema
from nl2sql.sql.parse import SLIPS, parse_bounded

Slip: TypeAlias = Callable[[str, Schema, random.Random], str | None]

BALANCED = r"(?:[^()]|\([^()]*\))*?"
END_OF_CLAUSE = r"(?=\s+(?:ORDER BY|LIMIT|HAVING|UNION|EXCEPT|INTERSECT)\b|\s*;?\s*$)"
FOREIGN = ("tsql", "postgres", "mysql", "oracle", "bigquery", "snowflake", "duckdb")


def _tree(sql: str) -> Any:
    try:
        return parse_bounded(sql)
    except (SqlglotError, *SLIPS):
        return None


def of_the_tree(change: Callable[[Any, Schema, random.Random], bool]) -> Slip:
    """A slip that changes the parsed statement in place; ``change`` says whether it found something."""

    @wraps(change)
    def slip(sql: str, schema: Schema, rng: random.Random) -> str | None:
        tree = _tree(sql)
        return str(tree.sql(dialect="sqlite")) if tree is not None and change(tree, schema, rng) else None

    return slip


def _columns(tree: Any) -> list[Any]:
    return [column for column in tree.find_all(exp.Column) if isinstance(column.this, exp.Identifier)]


def _names_of_tables(select: Any) -> dict[str, str]:
    """Alias (or name) -> table of one SELECT's own FROM clause."""
    first = select.args.get("from_")
    nodes = [first.this] if first is not None else []
    nodes += [join.this for join in select.args.get("joins") or ()]
    return {node.alias_or_name: node.name for node in nodes if isinstance(node, exp.Table)}


@of_the_tree
def invented_column(tree: Any, schema: Schema, rng: random.Random) -> bool:
    columns = list(tree.find_all(exp.Column))
    if not columns:
        return False
    column = rng.choice(columns)
    name = column.name
    parts = [part for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name) if part]
    table = column.table or rng.choice(schema.tables).name
    invented = [f"{table}_{name}", f"{name}_name", f"{name}_id", f"{name}s", *(parts if len(parts) > 1 else ())]
    if len(parts) > 1:
        invented += ["".join(parts), "_".join(parts[:-1]), "_".join(parts[1:])]
    column.set("this", exp.to_identifier(rng.choice(invented)))
    return True


@of_the_tree
def other_table_s_column(tree: Any, schema: Schema, rng: random.Random) -> bool:
    columns = list(tree.find_all(exp.Column))
    others = [c.name for table in schema.tables for c in table.columns]
    if columns and others:
        rng.choice(columns).set("this", exp.to_identifier(rng.choice(others), quoted=False))
    return bool(columns and others)


def mistyped_table(sql: str, schema: Schema, rng: random.Random) -> str | None:
    tree = _tree(sql)
    tables = [] if tree is None else list(tree.find_all(exp.Table))
    if not tables:
        return None
    name = rng.choice(tables).name
    wrong = rng.choice([name + "s", name.rstrip("s"), name.replace("_", ""), name.split("_")[0], name + "_info"])
    return re.sub(rf"\b{re.escape(name)}\b", wrong, str(tree.sql(dialect="sqlite")))


@of_the_tree
def missing_join(tree: Any, schema: Schema, rng: random.Random) -> bool:
    joined = [select for select in tree.find_all(exp.Select) if select.args.get("joins")]
    if joined:
        select = rng.choice(joined)
        joins = list(select.args["joins"])
        joins.pop(rng.randrange(len(joins)))
        select.set("joins", joins)
    return bool(joined)


@of_the_tree
def lost_clause(tree: Any, schema: Schema, rng: random.Random) -> bool:
    present = [clause for clause in ("group", "order", "limit", "having", "distinct") if tree.args.get(clause)]
    if present:
        tree.set(rng.choice(present), None)
    return bool(present)


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


@of_the_tree
def mistyped_column(tree: Any, schema: Schema, rng: random.Random) -> bool:
    """A letter of a column's name left out, doubled, or changed for the one beside it."""
    columns = [column for column in _columns(tree) if len(column.name) > 3]
    if not columns:
        return False
    column = rng.choice(columns)
    name, at = column.name, rng.randrange(1, len(column.name) - 1)
    left_out, doubled = name[:at] + name[at + 1 :], name[: at + 1] + name[at:]
    changed = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    column.set("this", exp.to_identifier(rng.choice([left_out, doubled, changed])))
    return True


@of_the_tree
def without_its_table(tree: Any, schema: Schema, rng: random.Random) -> bool:
    """A column written without its table, where several tables of the SELECT have one of this name."""
    shared = []
    for select in tree.find_all(exp.Select):
        tables = [table for name in _names_of_tables(select).values() if (table := schema.table(name)) is not None]
        for column in _columns(select):
            owners = sum(any(c.name.lower() == column.name.lower() for c in table.columns) for table in tables)
            if column.table and owners > 1:
                shared.append(column)
    if shared:
        rng.choice(shared).set("table", None)
    return bool(shared)


def _under_another_table(choices: list[tuple[Any, str]], rng: random.Random) -> bool:
    """Changes one of ``choices``: a column of the tree, and the table to write before it."""
    if choices:
        column, name = rng.choice(choices)
        column.set("table", exp.to_identifier(name))
    return bool(choices)


@of_the_tree
def wrong_table_before_a_column(tree: Any, schema: Schema, rng: random.Random) -> bool:
    """A column under the alias of another table of the SELECT."""
    choices = [
        (column, other)
        for select in tree.find_all(exp.Select)
        for column in _columns(select)
        for other in _names_of_tables(select)
        if column.table and other != column.table
    ]
    return _under_another_table(choices, rng)


@of_the_tree
def table_for_its_alias(tree: Any, schema: Schema, rng: random.Random) -> bool:
    """The table's own name before a column, where it is known under an alias."""
    choices = []
    for select in tree.find_all(exp.Select):
        aliased = {alias: name for alias, name in _names_of_tables(select).items() if alias != name}
        choices += [(column, aliased[column.table]) for column in _columns(select) if column.table in aliased]
    return _under_another_table(choices, rng)


@of_the_tree
def aggregate_in_where(tree: Any, schema: Schema, rng: random.Random) -> bool:
    """HAVING's condition written into WHERE."""
    selects = [select for select in tree.find_all(exp.Select) if select.args.get("having")]
    if selects:
        select = rng.choice(selects)
        having, where = select.args["having"].this, select.args.get("where")
        select.set("having", None)
        select.set("where", exp.Where(this=exp.and_(where.this, having) if where is not None else having))
    return bool(selects)


def clauses_in_the_wrong_order(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """LIMIT before ORDER BY, ORDER BY before GROUP BY, or GROUP BY before WHERE, of the outermost SELECT."""
    swaps = []
    for first, second in (("ORDER BY", "LIMIT"), ("GROUP BY", "ORDER BY"), ("WHERE", "GROUP BY")):
        form = rf"\b({first}\b{BALANCED})\s+({second}\b{BALANCED}){END_OF_CLAUSE}"
        if (clauses := re.search(form, sql, re.IGNORECASE | re.DOTALL)) is not None:
            swaps.append(f"{sql[: clauses.start()]}{clauses[2].strip()} {clauses[1].strip()}{sql[clauses.end() :]}")
    return rng.choice(swaps) if swaps else None


def unclosed_parenthesis(sql: str, schema: Schema, rng: random.Random) -> str | None:
    places = [at for at, sign in enumerate(sql) if sign == ")"]
    at = rng.choice(places) if places else 0
    return sql[:at] + sql[at + 1 :] if places else None


def comma_before_a_clause(sql: str, schema: Schema, rng: random.Random) -> str | None:
    places = [clause.start() for clause in re.finditer(r"\s+(?:FROM|ORDER BY|LIMIT)\b", sql, re.IGNORECASE)]
    at = rng.choice(places) if places else 0
    return f"{sql[:at]},{sql[at:]}" if places else None


def another_dialect(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """The statement as another engine's users write it: TOP 5, ILIKE, YEAR(d), INTERVAL, CONCAT, other quotes."""
    tree = _tree(sql)
    for dialect in rng.sample(FOREIGN, len(FOREIGN)) if tree is not None else ():
        try:
            text = str(tree.sql(dialect=dialect))
        except (SqlglotError, *SLIPS):
            continue
        if _plain(text) != _plain(sql):
            return text
    return None


def sqlite_s_own(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """The statement as it is: on another engine than SQLite it may fail."""
    return sql


def another_s_function(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """A function called by the name that another engine has for it."""
    swaps = [
        re.sub(form, name, sql, count=1, flags=re.IGNORECASE)
        for form, name in OTHER_NAMES
        if re.search(form, sql, re.IGNORECASE)
    ]
    return rng.choice(swaps) if swaps else None


OTHER_NAMES = (
    (r"\bstrftime\('%Y',\s*([\w.]+)\)", r"YEAR(\1)"),
    (r"\bstrftime\('%m',\s*([\w.]+)\)", r"EXTRACT(MONTH FROM \1)"),
    (r"\bstrftime\('%Y-%m',\s*([\w.]+)\)", r"DATE_FORMAT(\1, '%Y-%m')"),
    (r"\bsubstr\(([\w.]+),\s*1,\s*(\d+)\)", r"LEFT(\1, \2)"),
    (r"\blength\(", "LEN("),
    (r"\bavg\(", "AVERAGE("),
    (r"\bavg\(", "MEAN("),
    (r"\bcount\(DISTINCT ([\w.]+)\)", r"COUNT_DISTINCT(\1)"),
    (r"\bmax\(([\w.]+)\)", r"MAXIMUM(\1)"),
    (r"\bround\(", "ROUNDED("),
    (r"\bifnull\(", "NVL("),
    (r"\bsum\(", "TOTAL_OF("),
)


def _plain(sql: str) -> str:
    return re.sub(r"[\s;\"`\[\]]", "", sql).lower()


KINDS: dict[str, Slip] = {
    slip.__name__: slip
    for slip in (
        *(invented_column, mistyped_column, other_table_s_column, wrong_table_before_a_column),
        *(table_for_its_alias, without_its_table, mistyped_table, missing_join, aggregate_in_where),
        *(lost_clause, clauses_in_the_wrong_order, unclosed_parenthesis, comma_before_a_clause),
        *(broken_syntax, another_dialect, another_s_function),
    )
}
FROM_SQLITE: dict[str, Slip] = {"sqlite_s_own": sqlite_s_own}  # for another engine only
