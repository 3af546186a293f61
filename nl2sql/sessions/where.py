"""How a condition goes into the statement that a follow-up edits, also where several rows belong to one.

What one row has several of is asked by ``key IN (SELECT ...)``, unless just those rows are counted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.linking import stem
from nl2sql.databases.schema import Column, Table
from nl2sql.interfaces import Database
from nl2sql.sessions.amounts import DATES, excludes, excluding
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.naming import Named, column_kinds
from nl2sql.sessions.reading import Reading
from nl2sql.sessions.statement import Statement, Step, identifier
from nl2sql.sessions.tables import key_columns, refers
from nl2sql.sql.words import words

# ------------------------------------------------- tables with several rows to one of the statement
# Behind ``SELECT COUNT(*) FROM customers`` on ``scale_models``, "those who paid by card" adds
# ``customer_id IN (SELECT customer_id FROM payments WHERE method = 'card')``. A join would count a
# customer once for each payment. What is asked of the same table later goes into the same SELECT,
# so that it holds of one payment.
#
# Not covered: tables that hang together by several columns (LookupError).


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


def join_instead(statement: Statement, tables: Collection[str]) -> None:
    """Where the statement reads one of ``tables`` after all, the conditions on it are on the rows that are joined."""
    kept: list[exp.Expr] = []
    within = {id(condition): inner for condition, inner, negated in statement.selects_within() if not negated}
    sources = statement.tables()
    for condition in statement.conditions():
        inner = within.get(id(condition))
        if inner and inner.main.name in tables and inner.tables() <= sources:
            kept += [_moved(part, inner, statement) for part in _asked_of_rows(inner)] or [condition]
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


# ----------------------------------------------------------------------- the condition in its place

_MARKS = frozenset(["id", "ssn", "phone", "zip", "code", "postcode"])
NARROWS = re.compile(r"\b(?:only|those|them|these|of which)\b")


_WITH = re.compile(r"(?:and |but )?with\b")


@dataclass
class Where:
    """The WHERE of one statement; ``made`` names the edits, ``used`` the places of the question that they rest on."""

    question: str
    reading: Reading
    statement: Statement
    database: Database
    made: list[str] = field(default_factory=list)
    used: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._others: set[str] = set()  # tables that conditions of this follow-up ask about by ``IN (SELECT ...)``
        self.bounded: dict[tuple[str, str], int] = {}  # (table, column) that this follow-up compares -> where it ended
        self._hidden: set[str] = set()  # columns that are no longer selected
        self.kinds = column_kinds(self.database)

    def _is_used(self, start: int, end: int) -> bool:
        return any(start < other[1] and other[0] < end for other in self.used)

    def _compared(self, table: str, column: str) -> list[exp.Expr]:
        return conditions_on(self.statement, table, column)

    def compared(self, named: Named) -> list[exp.Expr]:
        return self._compared(named.table, named.column)

    def replace_by(self, named: Named, condition: exp.Expr, *, left_out: bool = False) -> None:
        """A condition on a column in the place of those on it."""
        self._put(named.table, condition, self.compared(named), left_out=left_out)

    def spelled(self, table: str, column: str) -> Named | None:
        """The column, given in lower case, as the schema writes it."""
        known = self.statement.schema.table(table)
        name = next((c.name for c in known.columns if c.name.lower() == column), None) if known else None
        return Named(known.name, name) if known and name else None

    def _keys_compared(self, table: str) -> list[exp.Expr]:
        """Conditions on a table's only key to ``table``: "the History department" for ``dept_code = 'PHY'``."""
        found: list[exp.Expr] = []
        for source in self.statement.sources().values():
            keys = [key.columns for key in source.foreign_keys if key.ref_table.lower() == table.lower()]
            if len(keys) == 1 and len(keys[0]) == 1:
                found += self.statement.conditions_on(source.name, keys[0][0])
        return [condition for condition in found if isinstance(condition, (exp.EQ, exp.In))]

    def _put(
        self, table: str, condition: exp.Expr, replaced: Sequence[exp.Expr] = (), *, left_out: bool = False
    ) -> None:
        """A condition on one column of ``table``, or its opposite, alone or in the place of those on the column."""
        statement, column = self.statement, next(condition.find_all(exp.Column)).name
        if not replaced and self._is_alternative(table, column):
            raise LookupError(f"which of two conditions, with {column}")
        step = None if self._is_counted(table) else statement.step_to_many(table)
        if step is not None:
            if replaced:
                drop_conditions_on(statement, table, [column], whole=left_out)
            add_condition(statement, step, table, condition, left_out)
            self._others.add(step.table)
        else:
            alias = statement.alias_of(replaced[0]) if replaced else ""
            condition = statement.over(table, excluding(condition) if left_out else condition, alias)
            if replaced:
                statement.replace_conditions(replaced, condition)
            else:
                statement.add_condition(condition)
        self.made.append(f"{'replace' if replaced else 'filter'} {table}.{column}")

    def _is_alternative(self, table: str, column: str) -> bool:
        """Is the column in a condition that OR joins to one on another column: "city = 'Leeds' OR active = 0"?"""
        either = [c for c in self.statement.conditions() if isinstance(c.unnest(), exp.Or)]
        inside = [each for c in either if not self.statement.column_compared(c) for each in c.find_all(exp.Column)]
        owners = ((self.statement.table_of(each), each.name.lower()) for each in inside)
        return any(owner and (owner.name.lower(), name) == (table.lower(), column.lower()) for owner, name in owners)

    def _is_counted(self, table: str) -> bool:
        """Does the follow-up to a count ask how many rows of this table there are: "and cancelled orders?"?"""
        named, asked = {stem(word) for word in words(table)}, words(self.reading.text)
        at = next((at for at, word in enumerate(asked) if stem(word) in named), 0)
        counted = isinstance(self.statement.tree.expressions[0], exp.Count) and self.statement.counts_only
        return counted and bool(asked) and stem(asked[at]) in named and not _relating() & set(asked[:at])

    def _stays_excluded(self, replaced: Sequence[exp.Expr], condition: exp.Expr) -> bool:
        """ "What about Norway?" behind all but Germany: all but Norway. Not of what was left out, nor for "those"."""
        values, known = ({v.this for c in those for v in c.find_all(exp.Literal)} for those in ([condition], replaced))
        narrows = NARROWS.search(self.reading.text) or _WITH.match(self.reading.text)
        return bool(replaced) and all(map(excludes, replaced)) and not narrows and not values <= known

    def settle(self, joined: set[str]) -> None:
        """Conditions on tables that were ``joined`` after all, to be shown or counted, are on the joined rows."""
        join_instead(self.statement, joined | self._others)

    def compared_before(self, wanted: Sequence[str]) -> Named | None:
        """The first column of such a kind that a condition compares."""
        for condition, column in compared_columns(self.statement):
            if self.kinds.get(column) in wanted and not is_missing(condition):
                return Named(*column)
        return None

    def is_never(self, named: Named) -> bool:
        """Do only rows count that have none of it: ``paid_on IS NULL``?"""
        return any(map(is_missing, self.compared(named)))

    def only_one(self, wanted: Sequence[str]) -> Named | None:
        """The column of such a kind that is selected, or the one of the main table (none of its keys); a date also of
        the tables that are joined."""
        shown = [named for named in self.selected() if self.kind_of(named) in wanted]
        if shown := [named for named in shown if "number" not in wanted or not self.is_key(named)]:
            return shown[0]
        for table in self._dated() if wanted[0] in DATES else self.statement.sources().values():
            own = [c for c in table.columns if not (refers(table, c.name) or ("number" in wanted and _is_mark(c)))]
            fits = [c.name for c in own if self.kinds[table.name.lower(), c.name.lower()] in wanted]
            fits = [name for name in fits if not self.is_never(Named(table.name, name))]
            if len(fits) == 1 or (fits and wanted[0] in DATES):
                return Named(table.name, fits[0])
            if wanted[0] not in DATES:
                break
        return None

    def _dated(self) -> list[Table]:
        """The tables that are read, in the order in which a date is looked for.

        Behind a figure of visits per doctor, "in 2023" is about the visits.
        """
        tables, alone = list(self.statement.sources().values()), self.statement.alone()
        many = [table for table in tables[1:] if self.statement.aggregates() and alone.step_to_many(table.name)]
        return [*reversed(many), *(table for table in tables if table not in many)]

    def selected(self) -> list[Named]:
        """The columns that are selected, also within an aggregate."""
        columns = [column for each in self.statement.tree.expressions for column in each.find_all(exp.Column)]
        pairs = [(self.statement.table_of(column), column) for column in columns]
        return [Named(table.name, column.name) for table, column in pairs if table]

    def kind_of(self, named: Named) -> str | None:
        """The kind of a column (``naming.column_kinds``); None for one that the schema lacks."""
        return self.kinds.get((named.table.lower(), named.column.lower()))

    def is_key(self, named: Named) -> bool:
        table = self.statement.schema.table(named.table)
        return table is not None and (refers(table, named.column) or named.column in key_columns(table))


def is_missing(condition: exp.Expr) -> bool:
    return isinstance(condition, exp.Is) and isinstance(condition.expression, exp.Null)


def _is_mark(column: Column) -> bool:
    """Is it a number that counts nothing: a key, or an identifier of another kind?"""
    return column.primary_key or bool(_MARKS & set(words(column.name)))


@cache
def _relating() -> frozenset[str]:
    """Words behind which a table is said of other rows: "those with orders"."""
    cues = cue_words()
    return frozenset([*cues["relatives"], *cues["prepositions"], *cues["pronouns"], "those", "these"]) - {"about"}
