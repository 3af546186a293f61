"""Slips that make a right statement wrong, as people and small models make them. Not every result fails on an engine:
``cases`` keeps those that do.

A slip takes (SQL in SQLite's dialect, schema, random) and returns the wrong statement, or None where it finds nothing
to get wrong. Those of ``corruptions`` are part of the list.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from nl2sql.databases.schema import Schema
from nl2sql.runs.repair_bench import corruptions
from nl2sql.sql.parse import SLIPS as PARSER_SLIPS
from nl2sql.sql.parse import parse_bounded

Slip: TypeAlias = Callable[[str, Schema, random.Random], str | None]

BALANCED = r"(?:[^()]|\([^()]*\))*?"
END_OF_CLAUSE = r"(?=\s+(?:ORDER BY|LIMIT|HAVING|UNION|EXCEPT|INTERSECT)\b|\s*;?\s*$)"
FOREIGN = ("tsql", "postgres", "mysql", "oracle", "bigquery", "snowflake", "duckdb")


def _tree(sql: str) -> Any:
    from sqlglot.errors import SqlglotError

    try:
        return parse_bounded(sql)
    except (SqlglotError, *PARSER_SLIPS):
        return None


def _written(tree: Any) -> str:
    return str(tree.sql(dialect="sqlite"))


def _columns(tree: Any) -> list[Any]:
    from sqlglot import exp

    return [] if tree is None else [c for c in tree.find_all(exp.Column) if isinstance(c.this, exp.Identifier)]


def _selects(tree: Any) -> list[Any]:
    from sqlglot import exp

    return [] if tree is None else list(tree.find_all(exp.Select))


def _names_of_tables(select: Any) -> dict[str, str]:
    """Alias (or name) -> table of one SELECT's own FROM clause."""
    from sqlglot import exp

    first = select.args.get("from_")
    nodes = [first.this] if first is not None else []
    nodes += [join.this for join in select.args.get("joins") or ()]
    return {node.alias_or_name: node.name for node in nodes if isinstance(node, exp.Table)}


def mistyped_column(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """A letter of a column's name left out, doubled, or changed for the one beside it."""
    from sqlglot import exp

    tree = _tree(sql)
    columns = [column for column in _columns(tree) if len(column.name) > 3]
    if not columns:
        return None
    column = rng.choice(columns)
    name, at = column.name, rng.randrange(1, len(column.name) - 1)
    typo = rng.choice(
        [name[:at] + name[at + 1 :], name[: at + 1] + name[at:], name[:at] + name[at + 1] + name[at] + name[at + 2 :]]
    )
    column.set("this", exp.to_identifier(typo))
    return _written(tree)


def without_its_table(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """A column written without its table, where several tables of the SELECT have one of this name."""
    tree = _tree(sql)
    shared = []
    for select in _selects(tree):
        tables = [table for name in _names_of_tables(select).values() if (table := schema.table(name)) is not None]
        for column in _columns(select):
            owners = sum(any(c.name.lower() == column.name.lower() for c in table.columns) for table in tables)
            if column.table and owners > 1:
                shared.append(column)
    if not shared:
        return None
    rng.choice(shared).set("table", None)
    return _written(tree)


def _under_another_table(tree: Any, choices: Sequence[tuple[Any, str]], rng: random.Random) -> str | None:
    """The statement with one of ``choices``: a column of the tree, and the table to write before it."""
    from sqlglot import exp

    if not choices:
        return None
    column, name = rng.choice(choices)
    column.set("table", exp.to_identifier(name))
    return _written(tree)


def wrong_table_before_a_column(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """A column under the alias of another table of the SELECT."""
    tree = _tree(sql)
    choices = [
        (column, other)
        for select in _selects(tree)
        for column in _columns(select)
        for other in _names_of_tables(select)
        if column.table and other != column.table
    ]
    return _under_another_table(tree, choices, rng)


def table_for_its_alias(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """The table's own name before a column, where it is known under an alias."""
    tree = _tree(sql)
    choices = []
    for select in _selects(tree):
        aliased = {alias: name for alias, name in _names_of_tables(select).items() if alias != name}
        choices += [(column, aliased[column.table]) for column in _columns(select) if column.table in aliased]
    return _under_another_table(tree, choices, rng)


def aggregate_in_where(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """HAVING's condition written into WHERE."""
    from sqlglot import exp

    tree = _tree(sql)
    selects = [select for select in _selects(tree) if select.args.get("having")]
    if not selects:
        return None
    select = rng.choice(selects)
    having, where = select.args["having"].this, select.args.get("where")
    select.set("having", None)
    select.set("where", exp.Where(this=exp.and_(where.this, having) if where is not None else having))
    return _written(tree)


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
    if not places:
        return None
    at = rng.choice(places)
    return sql[:at] + sql[at + 1 :]


def comma_before_a_clause(sql: str, schema: Schema, rng: random.Random) -> str | None:
    places = [clause.start() for clause in re.finditer(r"\s+(?:FROM|ORDER BY|LIMIT)\b", sql, re.IGNORECASE)]
    if not places:
        return None
    at = rng.choice(places)
    return f"{sql[:at]},{sql[at:]}"


def another_dialect(sql: str, schema: Schema, rng: random.Random) -> str | None:
    """The statement as another engine's users write it: TOP 5, ILIKE, YEAR(d), INTERVAL, CONCAT, other quotes."""
    from sqlglot.errors import SqlglotError

    tree = _tree(sql)
    if tree is None:
        return None
    for dialect in rng.sample(FOREIGN, len(FOREIGN)):
        try:
            text = str(tree.sql(dialect=dialect))
        except (SqlglotError, *PARSER_SLIPS):
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
    "invented_column": corruptions.invented_column,
    "mistyped_column": mistyped_column,
    "other_table_s_column": corruptions.other_table_s_column,
    "wrong_table_before_a_column": wrong_table_before_a_column,
    "table_for_its_alias": table_for_its_alias,
    "without_its_table": without_its_table,
    "mistyped_table": corruptions.mistyped_table,
    "missing_join": corruptions.missing_join,
    "aggregate_in_where": aggregate_in_where,
    "lost_clause": corruptions.lost_clause,
    "clauses_in_the_wrong_order": clauses_in_the_wrong_order,
    "unclosed_parenthesis": unclosed_parenthesis,
    "comma_before_a_clause": comma_before_a_clause,
    "broken_syntax": corruptions.broken_syntax,
    "another_dialect": another_dialect,
    "another_s_function": another_s_function,
}
FROM_SQLITE: dict[str, Slip] = {"sqlite_s_own": sqlite_s_own}  # for another engine only
