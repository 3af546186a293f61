"""EM: are two queries the same text, once writing habits are taken away? Diagnostic only [9.1 of the specification].

Taken away: case (outside strings), white space, comments, identifier quotes, the names of table aliases, column
aliases nobody refers to, ``INNER``/``ASC``/``AS``, ``<>`` for ``!=``, double quotes round a compared string.
Kept: the order of conditions, columns and tables, and every choice of construct. No schema is looked at, so a
qualified column differs from the same column unqualified, except in a query over one table.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from nl2sql.sql.parse import SLIPS, parse_bounded

if TYPE_CHECKING:
    from sqlglot.expressions import Expr


def exact_match(gold: str, predicted: str) -> bool:
    """Whether the two normalised texts are equal."""
    return normalise_sql(gold) == normalise_sql(predicted)


@lru_cache(maxsize=8192)
def normalise_sql(sql: str, dialect: str = "sqlite") -> str:
    """The normalised text; for SQL that sqlglot cannot parse, lower case with single spaces."""
    from sqlglot.errors import SqlglotError

    try:
        tree = parse_bounded(sql, dialect)
        read_double_quoted_values(tree)
        _name_tables_plainly(tree)
        _drop_column_aliases(tree)
        return _plain(tree).sql(dialect=dialect, comments=False, normalize_functions="upper", copy=False)
    except (SqlglotError, *SLIPS):
        return " ".join(sql.rstrip("; \n\t").lower().split())


def read_double_quoted_values(tree: Expr) -> None:
    """``x = "France"``: SQLite takes a double-quoted name that is no column for a string."""
    from sqlglot import expressions as exp

    for node in list(tree.find_all(exp.Binary, exp.In, exp.Between)):
        if isinstance(node, (exp.Dot, exp.Connector)):
            continue
        values = [
            node.args.get("expression"),
            node.args.get("low"),
            node.args.get("high"),
            *node.args.get("expressions", ()),
        ]
        for value in values:
            if isinstance(value, exp.Column) and not value.table and getattr(value.this, "quoted", False):
                value.replace(exp.Literal.string(value.name))


def _name_tables_plainly(tree: Expr) -> None:
    """Replace table aliases by the table's own name, numbered where a table is used more than once."""
    from sqlglot import expressions as exp

    tables = list(tree.find_all(exp.Table, bfs=False))
    uses = Counter(table.name.lower() for table in tables)
    seen: Counter[str] = Counter()
    names: dict[str, str] = {}
    for table in tables:
        name = table.name.lower()
        seen[name] += 1
        names.setdefault((table.alias or name).lower(), name if uses[name] == 1 else f"{name}__{seen[name]}")
    derived = [node for node in tree.find_all(exp.Subquery, bfs=False) if node.alias]
    for number, node in enumerate(derived, 1):
        names.setdefault(node.alias.lower(), f"derived__{number}")
        node.set("alias", exp.TableAlias(this=exp.to_identifier(names[node.alias.lower()])))
    for column in tree.find_all(exp.Column):
        if column.table:
            if len(tables) == 1 and not derived:
                column.set("table", None)
            else:
                column.set("table", exp.to_identifier(names.get(column.table.lower(), column.table)))
    for table in tables:
        key = (table.alias or table.name).lower()
        shown = names[key] if uses[table.name.lower()] > 1 else None
        table.set("alias", exp.TableAlias(this=exp.to_identifier(shown)) if shown else None)


def _drop_column_aliases(tree: Expr) -> None:
    """Drop aliases of result columns that nothing refers to; number the others."""
    from sqlglot import expressions as exp

    referred = {column.name.lower() for column in tree.find_all(exp.Column) if not column.table}
    names: dict[str, str] = {}
    for alias in list(tree.find_all(exp.Alias)):
        name = alias.alias.lower()
        if name in referred:
            names.setdefault(name, f"alias__{len(names) + 1}")
            alias.set("alias", exp.to_identifier(names[name]))
        else:
            alias.replace(alias.this)
    for column in tree.find_all(exp.Column):
        if not column.table and column.name.lower() in names:
            column.this.set("this", names[column.name.lower()])


def _plain(tree: Expr) -> Expr:
    """Lower-case, unquoted identifiers; no INNER; ASC as the default it is."""
    from sqlglot import expressions as exp

    for node in tree.find_all(exp.Identifier, exp.Join, exp.Ordered):
        if isinstance(node, exp.Identifier):
            node.set("this", node.name.lower())
            node.set("quoted", False)
        elif isinstance(node, exp.Join):
            if node.args.get("kind") == "INNER":
                node.set("kind", None)
        elif not node.args.get("desc"):
            node.set("desc", None)
    return tree
