"""One way of writing SQL, so that a small model has one thing to learn: tables by their own names, columns qualified
only where several tables are read, keywords in capitals, identifiers as the schema writes them [17].

Not covered: statements that use a table twice keep their aliases.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nl2sql.databases.schema import Schema
from nl2sql.sql.parse import SLIPS, parse_bounded


def in_style(sql: str, schema: Schema) -> str | None:
    """``sql`` in that style, without a semicolon; None for what sqlglot cannot parse or write."""
    from sqlglot.errors import SqlglotError

    from nl2sql.sql.same import read_double_quoted_values

    try:
        tree: Any = parse_bounded(sql)
        _read_values(tree, schema, read_double_quoted_values)
        for select in _selects(tree):
            _name_tables(select, schema)
        _spell(tree, schema)
        text: str = tree.sql(dialect="sqlite", comments=False, normalize_functions="upper")
    except (SqlglotError, *SLIPS):
        return None
    return text


def tables_of(sql: str, schema: Schema) -> set[str]:
    """The schema's tables that ``sql`` reads, as the schema spells them; empty for what cannot be parsed."""
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        names = {table.name for table in parse_bounded(sql).find_all(exp.Table)}
    except (SqlglotError, *SLIPS):
        return set()
    return {found.name for name in names if (found := schema.table(name)) is not None}


def _read_values(tree: Any, schema: Schema, read: Any) -> None:
    """Double-quoted values become strings, unless a column of that name exists."""
    from sqlglot import expressions as exp

    columns = {column.name.lower() for table in schema.tables for column in table.columns}
    names = {c.name.lower() for c in tree.find_all(exp.Column) if getattr(c.this, "quoted", False)}
    if not names & columns:
        read(tree)


def _selects(tree: Any) -> list[Any]:
    from sqlglot import expressions as exp

    return list(tree.find_all(exp.Select))


def _name_tables(select: Any, schema: Schema) -> None:
    """Replace the aliases of one SELECT by table names; unqualify where it reads one table only."""
    from sqlglot import expressions as exp

    sources = [s for s in (select.args.get("from_"), *(select.args.get("joins") or ())) if s is not None]
    tables = [source.this for source in sources]
    if not tables or not all(isinstance(table, exp.Table) for table in tables):
        return
    uses = Counter(table.name.lower() for table in tables)
    if max(uses.values()) > 1:
        return
    outer = {t.alias_or_name.lower() for s in _enclosing(select) for t in s.find_all(exp.Table)}
    inner = [s for s in select.find_all(exp.Select) if s is not select]
    if outer & {t.name.lower() for t in tables} or any(_shares(select, s) for s in inner):
        return  # a correlated query over the same table needs its aliases
    names = {table.alias_or_name.lower(): table.name for table in tables}
    single = len(tables) == 1 and not inner and not outer
    for column in select.find_all(exp.Column):
        if column.table and column.table.lower() in names:
            if single:
                column.set("table", None)
            else:
                column.set("table", exp.to_identifier(names[column.table.lower()]))
    for table in tables:
        table.set("alias", None)


def _enclosing(select: Any) -> list[Any]:
    from sqlglot import expressions as exp

    found, node = [], select.parent
    while node is not None:
        if isinstance(node, exp.Select):
            found.append(node)
        node = node.parent
    return found


def _shares(select: Any, inner: Any) -> bool:
    """Whether an inner query reads a table of the outer one's, or has aliases of its own for the same names."""
    from sqlglot import expressions as exp

    def own(s: Any) -> set[str]:
        sources = [x.this for x in (s.args.get("from_"), *(s.args.get("joins") or ())) if x is not None]
        return {t.name.lower() for t in sources if isinstance(t, exp.Table)} | {
            t.alias_or_name.lower() for t in sources if isinstance(t, exp.Table)
        }

    return bool(own(select) & own(inner))


def _spell(tree: Any, schema: Schema) -> None:
    """Identifiers as the schema spells them, quoted only where SQL needs it."""
    from sqlglot import expressions as exp

    from nl2sql.databases.schema import quote_name

    spelled = {t.name.lower(): t.name for t in schema.tables}
    columns: dict[str, str] = {}
    for table in schema.tables:
        for column in table.columns:
            columns.setdefault(column.name.lower(), column.name)
    for node in tree.find_all(exp.Table, exp.Column):
        known = spelled if isinstance(node, exp.Table) else columns
        name = known.get(node.name.lower())
        if name is not None and isinstance(node.this, exp.Identifier):
            node.set("this", exp.Identifier(this=name, quoted=quote_name(name) != name))
        if isinstance(node, exp.Column) and node.table and node.table.lower() in spelled:
            owner = spelled[node.table.lower()]
            node.set("table", exp.Identifier(this=owner, quoted=quote_name(owner) != owner))
