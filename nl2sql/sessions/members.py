"""Conditions on a table of which several rows belong to one row of the statement: ``key IN (SELECT ...)``.

Behind ``SELECT COUNT(*) FROM customers`` on ``scale_models``, "those who paid by card" adds ``customer_id IN (SELECT
customer_id FROM payments WHERE method = 'card')``. A join would count a customer once for each payment. What is asked
of the same table later goes into the same SELECT, so that it holds of one payment.

Not covered: tables that hang together by several columns (LookupError).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlglot import exp

from nl2sql.sessions.compared import excluding
from nl2sql.sessions.statement import Statement, Step, identifier


def compared_columns(statement: Statement) -> Iterator[tuple[exp.Expr, tuple[str, str]]]:
    """Each condition over one column, those within ``IN (SELECT ...)`` too, with (table, column) in lower case."""
    for each in (statement, *(inner for _, inner, _ in statement.selects_within())):
        for condition in each.conditions():
            if column := each.column_compared(condition):
                yield condition, column


def conditions_on(statement: Statement, table: str, column: str) -> list[exp.Expr]:
    """The conditions that compare this column; where the table is not read, those within ``IN (SELECT ...)``."""
    if statement.distance(table) == 0:
        return statement.conditions_on(table, column)
    return [
        excluding(condition.copy()) if negated else condition
        for _, inner, negated in statement.selects_within()
        for condition in inner.conditions_on(table, column)
    ]


def drop_conditions_on(statement: Statement, table: str, columns: Collection[str], *, whole: bool = False) -> bool:
    """Whether there was any. ``NOT IN (SELECT ...)`` goes with the last condition in it; ``IN`` where it is ``whole``:
    those who paid by card are, by any method, those who paid."""
    if statement.distance(table) == 0:
        return statement.drop_conditions_on(table, columns)
    changed, emptied = False, []
    for condition, inner, negated in statement.selects_within():
        if inner.drop_conditions_on(table, columns):
            changed = True
            if (negated or whole) and not _asked_of_rows(inner):
                emptied.append(condition)
    statement.set_conditions([c for c in statement.conditions() if not any(c is gone for gone in emptied)])
    return changed


def add_condition(statement: Statement, step: Step, table: str, condition: exp.Expr, left_out: bool) -> None:
    """Rows that have one of ``table`` of which ``condition`` holds; that have none where it is ``left_out``."""
    there = (inner for _, inner, negated in statement.selects_within() if not negated)
    inner = None if left_out else next((each for each in there if each.main.name == step.table), None)
    if inner is not None:
        inner.add_condition(inner.over(table, condition))
        return
    if len(step.pairs) != 1:
        raise LookupError(table)
    [(mine, theirs)] = step.pairs
    inner = select_of(statement, step.table, theirs, left_out)
    inner.add_condition(inner.over(table, condition))
    among = exp.In(this=statement.column_at(step.alias, mine), query=exp.Subquery(this=inner.tree))
    statement.add_condition(exp.Not(this=among) if left_out else among)


def select_of(statement: Statement, table: str, column: str, left_out: bool) -> Statement:
    """The SELECT of one column of a table; without its NULLs where rows are left out by it."""
    dialect = statement.schema.dialect
    key = exp.column(identifier(column, dialect))
    found = exp.select(key).from_(exp.Table(this=identifier(table, dialect)))
    known = statement.schema.table(table)
    listed = next((c for c in known.columns if c.name.lower() == column.lower()), None) if known else None
    if left_out and not (listed and (listed.not_null or listed.primary_key)):
        found = found.where(key.copy().is_(exp.null()).not_())
    return Statement(found, statement.schema)


def join_instead(statement: Statement, tables: Collection[str], left_out: Collection[str]) -> None:
    """Where the statement reads one of ``tables`` after all, the conditions on it are on the rows that are joined.

    left_out: those for which that holds of ``NOT IN (SELECT ...)`` too.
    """
    kept: list[exp.Expr] = []
    within = {id(condition): (inner, negated) for condition, inner, negated in statement.selects_within()}
    sources = statement.tables()
    for condition in statement.conditions():
        inner, negated = within.get(id(condition), (None, False))
        ours = left_out if negated else tables
        if inner and inner.main.name in ours and inner.tables() <= sources:
            moved = [_moved(part, inner, statement) for part in _asked_of_rows(inner)]
            kept += [excluding(exp.and_(*moved))] if negated and moved else moved or [condition]
        else:
            kept.append(condition)
    statement.set_conditions(kept)


def _asked_of_rows(inner: Statement) -> list[exp.Expr]:
    """The conditions but the one that keeps NULLs out."""
    key = inner.tree.expressions[0]
    no_null = exp.Not(this=exp.Is(this=key, expression=exp.null()))
    return [condition for condition in inner.conditions() if condition != no_null]


def _moved(condition: exp.Expr, inner: Statement, statement: Statement) -> exp.Expr:
    copy = condition.copy()
    for column in list(copy.find_all(exp.Column)):
        table = inner.table_of(column)
        if table is not None:
            column.replace(statement.column(table.name, column.name))
    return copy
