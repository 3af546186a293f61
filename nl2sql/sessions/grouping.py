"""What a follow-up groups by: a column, the rows of another table by their name, a part of a date.

On ``library_network``, "by patron type" behind loans gives ``patron_types.label``, grouped with the table's key so that
two of one name stay two; "per year" the year of the date that a condition compares. Conditions on what is grouped by
are dropped: "by country" behind one country means all of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sqlglot import exp

from nl2sql.agents.context.linking import stem
from nl2sql.sessions import members
from nl2sql.sessions.cells import yes_or_no
from nl2sql.sessions.conditions import Conditions
from nl2sql.sessions.flags import COLUMN_WORDS, flag_words
from nl2sql.sessions.naming import Named, edit_words, label_of, named_column, named_group, named_table
from nl2sql.sessions.reading import Phrase
from nl2sql.sessions.statement import Statement
from nl2sql.sessions.tables import key_columns
from nl2sql.sql.words import words

FORMATS = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
_DATES = ("date", "datetime")
_MOST = re.compile(
    r"\b(?:which|what) (?P<what>[a-z_]+(?: [a-z_]+)?)"
    r" (?:has|have|had|gets?|got|pays?|paid|earns?|sells?|sold|buys?|bought|makes?|made|wins?|won|[a-z]{3,}ed)"
    r" (?:the )?(?P<end>most|fewest|least|highest|lowest|largest|smallest)(?: (?:one|figure|number|amount))?"
    r"(?: of (?:them|these|those))?\s*[.?!]*\s*$"
)
_DOES_MOST = re.compile(  # behind a figure of what they do: "which donor gave the most?"
    r"\b(?:which|what) (?P<what>[a-z_]+(?: [a-z_]+)?)"
    r" (?!the |is |are |was |were |costs? |weighs? |lasts? |do |did )[a-z]+"
    r" (?:the )?(?P<end>most|fewest|least)\s*[.?!]*\s*$"
)
_WHO = re.compile(
    r"\b(?:who|which (?:one|of (?:them|these|those))) (?!earn|paid|pays?|cost|spen)[a-z]+ (?:the )?"
    r"(?P<end>most|fewest|least)\s*[.?!]*\s*$"
)


_GROUPED = "grouped|sorted|ordered|divided|separated|summed|ranked|listed|arranged"
_DONE = "made|written|sold|held|led|won|run|given|taken|paid|built|drawn|shown|driven|flown|done|sent|kept"


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


def is_a_doer(phrase: Phrase, conditions: Conditions) -> bool:
    """ "Taught by tenured instructors" is a condition. Raises LookupError for "by vip guests": maybe groups."""
    named = named_group(phrase, conditions.statement) or named_group(phrase[:1], conditions.statement)
    if named is None:
        return False
    flag = conditions.kind_of(named) == "flag" or bool(yes_or_no(named, conditions.database))
    flag = flag and not {stem(word) for word in phrase if word not in COLUMN_WORDS} <= {*flag_words(named.column)}
    asked = (made.split()[-1].split(".")[0] for made in conditions.made if made.startswith(("filter ", "replace ")))
    rows = named.table in asked and named_table(phrase, conditions.statement.schema) and phrase[0].endswith("s")
    if not flag and not rows:
        return False
    doing = rf"\b(?!{_GROUPED}\b)(?:[a-z]{{2,}}ed|[a-z]+ght|{_DONE}) by (?:the )?{phrase[0]}\b"
    if not re.search(doing, conditions.reading.text):
        raise LookupError(f"groups by {' '.join(phrase)}")
    return True


def busiest_group(conditions: Conditions) -> bool:
    """ "which genre has the most?": one row, the group with the most rows, or with the highest of what was measured.

    Whether it was asked: of rows, a count or one other figure.
    """
    statement = conditions.statement
    measures = statement.aggregates()
    match = _MOST.search(conditions.reading.text) or (_DOES_MOST.search(conditions.reading.text) if measures else None)
    if (who := _WHO.search(conditions.reading.text)) and not statement.grouped and _several_each(statement):
        _put_first(rows_of_main(statement), exp.Count(this=exp.Star()), who["end"] == "most", conditions)
        return True
    if not match or len(measures) > 1 or (measures and not statement.grouped and not statement.counts_only):
        return False
    if not measures and match["end"] not in ("most", "fewest", "least"):
        return False
    phrase = tuple(words(match["what"]))
    named = named_group(phrase, statement)
    if named and not measures and named == label_of(statement.main, statement):
        return False  # each of the rows has its own
    if statement.grouped and (named is None or named in conditions.selected()):
        return False  # of the groups that are there
    grouped = grouped_by(phrase, conditions)
    if grouped is None:
        return False
    measure = measures[-1].unalias().copy() if measures else exp.Count(this=exp.Star())
    _put_first(grouped, measure, match["end"] in ("most", "highest", "largest"), conditions)
    return True


def _put_first(grouped: Grouped, measure: exp.Expr, desc: bool, conditions: Conditions) -> None:
    """Each group with its figure; the first, by the figure."""
    statement = conditions.statement
    statement.clear("group", "having", "order", "limit", "distinct")
    statement.select([grouped.shown, measure])
    statement.tree.set("group", exp.Group(expressions=[key.copy() for key in grouped.keys]))
    statement.order_by([(measure.copy(), desc)])
    statement.limit(1, conditions.reading.skipped)
    conditions.made += ["group", "order", "limit"]


def _several_each(statement: Statement) -> bool:
    """Are rows of another table counted, of which one of the main table may have several?"""
    counts = statement.counts_only and isinstance(statement.tree.expressions[0].unalias(), exp.Count)
    others = list(statement.sources().values())[1:]
    return counts and any(statement.alone().step_to_many(table.name) for table in others)


def rows_of_main(statement: Statement) -> Grouped:
    label = label_of(statement.main, statement)
    if label is None or label.table != statement.main.name:
        raise LookupError("a name of each row")
    shown = statement.column(label.table, label.column)
    return Grouped(shown, [*(statement.column(statement.main.name, key) for key in key_columns(statement.main)), shown])


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
