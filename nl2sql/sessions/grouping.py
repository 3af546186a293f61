"""What a follow-up groups by: a column, the rows of another table by their name, a part of a date.

On ``library_network``, "by patron type" behind loans gives ``patron_types.label``, grouped with the table's key so that
two of one name stay two; "per year" the year of the date that a condition compares. Conditions on what is grouped by
are dropped: "by country" behind one country means all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from nl2sql.agents.context.linking import stem
from nl2sql.sessions import members
from nl2sql.sessions.conditions import Conditions
from nl2sql.sessions.naming import Named, edit_words, label_of, named_column, named_group
from nl2sql.sessions.reading import Phrase
from nl2sql.sessions.tables import key_columns

FORMATS = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
_DATES = ("date", "datetime")


class Grouped(NamedTuple):
    """The column that is shown of each group, and the keys of GROUP BY."""

    shown: exp.Expr
    keys: list[exp.Expr]


def grouped_by(phrase: Phrase, conditions: Conditions) -> Grouped | None:
    """What ``phrase`` means in the statement of ``conditions``, joined in where it must be; None for nothing known.

    Raises LookupError where a join is missing.
    """
    if part := _date_part(phrase, conditions):
        return Grouped(part, [part])
    named = named_group(phrase, conditions.statement)
    if named is None:
        return None
    _drop_conditions(named, conditions)
    column = conditions.statement.column(named.table, named.column)
    return Grouped(column, [*_own_key(named, conditions), column])


def _own_key(named: Named, conditions: Conditions) -> list[exp.Expr]:
    """The key of the table that ``named`` is the label of; none for a column of the main table."""
    statement = conditions.statement
    table = statement.schema.table(named.table)
    if (
        table is None
        or table.name == statement.main.name
        or label_of(table, statement) != Named(named.table, named.column)
    ):
        return []
    keys = key_columns(table)
    return [statement.column(table.name, keys[0])] if len(keys) == 1 and named.column not in keys else []


def _drop_conditions(named: Named, conditions: Conditions) -> None:
    table = conditions.statement.schema.table(named.table)
    same = [named.column, *(key_columns(table) if table else [])]
    if any(f"{done} {named.table}.{column}" in conditions.made for done in ("filter", "replace") for column in same):
        return  # "by genre, for crime and poetry": what this follow-up asks for
    if members.drop_conditions_on(conditions.statement, named.table, same):
        conditions.made.append(f"drop {named.table}.{named.column}")


def _date_part(phrase: Phrase, conditions: Conditions) -> exp.Expr | None:
    """ "per year" where no column is called so: that part of the date that is compared, or of the only one."""
    unit = next((name for name in edit_words()["units"] if stem(name) == stem(phrase[-1])), "")
    if unit not in FORMATS or len(phrase) > 2:
        return None
    exact = named_column(phrase, conditions.statement)
    kind = conditions.kinds[exact.table.lower(), exact.column.lower()] if exact else ""
    if exact and kind not in _DATES and conditions.statement.away(exact.table) < 1:
        return None
    named = conditions.compared_before(_DATES) or conditions.only_one(_DATES)
    if named is None:
        return None
    column = conditions.statement.column(named.table, named.column)
    return exp.TimeToStr(this=column, format=exp.Literal.string(FORMATS[unit]))
