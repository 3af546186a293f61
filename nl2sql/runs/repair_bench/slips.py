"""Slips that make a right statement wrong, as people and small models make them; errors are the engine's own.

A slip takes (SQL in SQLite's dialect, schema, random) and returns the wrong statement, or None where it finds nothing
to get wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from nl2sql.agents.checks import constraints
from nl2sql.databases import validation
from nl2sql.databases.schema import Schema
from nl2sql.interfaces import Database
from nl2sql.sql.parse import SLIPS, parse_bounded
from nl2sql.sql.parse import SLIPS as PARSER_SLIPS

# ----------------------------------------------------------------- as a small model gets them wrong
# Kinds: an invented column, a column of another table, a mistyped table, a missing join, a lost
# GROUP BY or ORDER BY, an invented function, broken syntax. What happens to pass every gate is not
# used.


def corrupted(
    sql: str, question: str, schema: Schema, database: Database, rng: random.Random
) -> tuple[str, str] | None:
    """(a wrong query, the error that the loop would repair it with); None where nothing was found in a few tries."""
    kinds = list(SMALL_MODEL_KINDS)
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


def _parsed(sql: str) -> Any:
    from sqlglot.errors import SqlglotError

    try:
        return parse_bounded(sql)
    except (SqlglotError, *SLIPS):
        return None


def _parsed_columns(sql: str) -> tuple[Any, list[Any]]:
    from sqlglot import expressions as exp

    tree = _parsed(sql)
    return tree, [] if tree is None else list(tree.find_all(exp.Column))


def invented_column(sql: str, schema: Schema, rng: random.Random) -> str | None:
    from sqlglot import expressions as exp

    tree, columns = _parsed_columns(sql)
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

    tree, columns = _parsed_columns(sql)
    others = [c.name for table in schema.tables for c in table.columns]
    if not columns or not others:
        return None
    rng.choice(columns).set("this", exp.to_identifier(rng.choice(others), quoted=False))
    return str(tree.sql(dialect="sqlite"))


def mistyped_table(sql: str, schema: Schema, rng: random.Random) -> str | None:
    from sqlglot import expressions as exp

    tree = _parsed(sql)
    tables = [] if tree is None else list(tree.find_all(exp.Table))
    if not tables:
        return None
    name = rng.choice(tables).name
    wrong = rng.choice([name + "s", name.rstrip("s"), name.replace("_", ""), name.split("_")[0], name + "_info"])
    return re.sub(rf"\b{re.escape(name)}\b", wrong, str(tree.sql(dialect="sqlite")))


def missing_join(sql: str, schema: Schema, rng: random.Random) -> str | None:
    from sqlglot import expressions as exp

    tree = _parsed(sql)
    joined = [] if tree is None else [s for s in tree.find_all(exp.Select) if s.args.get("joins")]
    if not joined:
        return None
    select = rng.choice(joined)
    joins = list(select.args["joins"])
    joins.pop(rng.randrange(len(joins)))
    select.set("joins", joins)
    return str(tree.sql(dialect="sqlite"))


def lost_clause(sql: str, schema: Schema, rng: random.Random) -> str | None:
    tree = _parsed(sql)
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


SMALL_MODEL_KINDS = (
    invented_column,
    invented_column,
    other_table_s_column,
    mistyped_table,
    missing_join,
    lost_clause,
    broken_syntax,
)


# ------------------------------------------------------------------------------------- as people do

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
    "invented_column": invented_column,
    "mistyped_column": mistyped_column,
    "other_table_s_column": other_table_s_column,
    "wrong_table_before_a_column": wrong_table_before_a_column,
    "table_for_its_alias": table_for_its_alias,
    "without_its_table": without_its_table,
    "mistyped_table": mistyped_table,
    "missing_join": missing_join,
    "aggregate_in_where": aggregate_in_where,
    "lost_clause": lost_clause,
    "clauses_in_the_wrong_order": clauses_in_the_wrong_order,
    "unclosed_parenthesis": unclosed_parenthesis,
    "comma_before_a_clause": comma_before_a_clause,
    "broken_syntax": broken_syntax,
    "another_dialect": another_dialect,
    "another_s_function": another_s_function,
}
FROM_SQLITE: dict[str, Slip] = {"sqlite_s_own": sqlite_s_own}  # for another engine only
