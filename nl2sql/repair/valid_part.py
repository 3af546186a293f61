"""The part of a failing statement that is sound, so that a repair leaves it alone.

On the packaged ``scale_models`` database, ``SELECT nam FROM customers WHERE country = 'France'`` gives
``FROM customers WHERE country = 'France'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nl2sql.interfaces import Database

CLAUSES = ("where", "group")
MAX_CHARS = 600  # in a prompt; a longer part is left out


def valid_part(sql: str, database: Database) -> str:
    """The longest beginning of ``FROM ... WHERE ... GROUP BY ...`` that compiles on its own; "" where not even FROM
    does, where the statement is sound as it is, or where it cannot be parsed."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from nl2sql.sql.parse import parse_bounded

    try:
        tree = parse_bounded(sql, database.dialect)
    except SqlglotError:
        return ""
    if not isinstance(tree, exp.Select) or tree.args.get("from_") is None or database.explain(sql).success:
        return ""
    probe = exp.select("1")
    for part in ("with_", "from_", "joins", "laterals"):
        if tree.args.get(part):
            probe.set(part, tree.args[part])
    sound = ""
    for clause in ("", *CLAUSES):
        if clause:
            if tree.args.get(clause) is None:
                continue
            probe.set(clause, tree.args[clause])
        text = probe.sql(dialect=database.dialect)
        if not database.explain(text).success:
            break
        sound = text.replace("SELECT 1 ", "", 1)
    return sound if len(sound) <= MAX_CHARS else ""
