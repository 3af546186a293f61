"""The one figure that a follow-up asks for: an average, a sum, the highest or lowest value; and rows compared with it.

Behind ``SELECT AVG(credit_limit) FROM customers`` on ``scale_models``, "and the maximum?" is ``SELECT
MAX(credit_limit) FROM customers``, "who has more than that?" the customers whose limit is above the average. Not
covered: shares, medians and other arithmetic, and what is compared with an average that was not asked for before
(LookupError).
"""

from __future__ import annotations

import re
from dataclasses import replace

from sqlglot import exp

from nl2sql.sessions.conditions import Conditions
from nl2sql.sessions.counting import figure_of_shown, measures_what_is_shown, says_more
from nl2sql.sessions.grouping import rows_of_main
from nl2sql.sessions.naming import edit_words, named_column, named_table
from nl2sql.sessions.ordering import figure_said
from nl2sql.sessions.people import figure_of_ages
from nl2sql.sessions.reading import SO_MANY, is_negated
from nl2sql.sessions.statement import Statement
from nl2sql.sql.words import words

_OTHER = re.compile(
    r"\b(?:shares?|percentages?|what percent|proportions?|fractions?|ratios?|medians?|variance|deviation"
    r"|differences?)\b"
)
_THAN_IT = re.compile(
    r"\b(?:(?P<word>[a-z]+) than|above|below|over|under|exceed(?:s|ing)?|beyond) "
    r"(?:(?:that|this|it)\b(?! \w)|(?:the |their |its |an? )?(?:\w+ )?(?:average|mean|median)\b)"
)
_LESS = ("less", "lower", "fewer", "smaller", "shorter", "younger", "cheaper", "lighter", "below", "under")
_IN_EACH = re.compile(r"\b(?:each|every one)(?: of (?:them|these|those))?\s*[?.!]*$")
_IS_IT = re.compile(r"\b(?:which|what) (?!is |was )[a-z_ ]+ (?:is|was) (?:it|that|this)\s*[?.!]*$")
_WHO_DOES_IT = re.compile(r"\bwho [a-z]+ (?:it|that|this)\b")  # of a sum: all that did


def other_figure(conditions: Conditions) -> None:
    """Raise LookupError for "what share of them is ...?", where nothing that is read is called so."""
    match = _OTHER.search(conditions.reading.text)
    names = [c.name for table in conditions.statement.sources().values() for c in table.columns]
    if match and match[0].removesuffix("s") not in {part for name in names for part in words(name)}:
        raise LookupError(f"the {match[0]}")


def compared_with_figure(conditions: Conditions, before: Statement) -> None:
    """ "who earns less than that?" behind an average: rows below it. Raises LookupError behind anything else."""
    text = conditions.reading.text
    aggregates = before.aggregates()
    figure = aggregates[0].unalias() if before.counts_only and len(aggregates) == 1 else None
    match = _THAN_IT.search(text)
    if match is None:
        many = isinstance(figure, exp.Avg) or (isinstance(figure, exp.Sum) and not _WHO_DOES_IT.search(text))
        if many and (_IS_IT.search(text) or _WHO_DOES_IT.search(text)):
            raise LookupError("one row of a figure of many")  # "which booking is it?" behind an average
        return
    column = figure.this if isinstance(figure, (exp.Avg, exp.Max, exp.Min)) else None
    table = before.table_of(column) if isinstance(column, exp.Column) else None
    if table is None or column is None or conditions.made or is_negated(text, match.start()):
        raise LookupError("more or less than what")
    if conditions.kinds.get((table.name.lower(), column.name.lower())) != "number":
        raise LookupError(f"more or less {column.name}")
    less = (match["word"] or match[0].split()[0]) in _LESS
    mean = exp.Subquery(this=before.tree.copy())
    conditions.statement.add_condition((exp.LT if less else exp.GT)(this=column.copy(), expression=mean))
    conditions.made.append("filter figure")
    blank = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    conditions.reading = replace(conditions.reading, text=blank, aggregate="", adjective=None)


def aggregate(conditions: Conditions, before: Statement) -> bool:
    """The figure that the reading names, of all rows, of those shown or of each group; whether one is known."""
    text, statement = conditions.reading.text, conditions.statement
    if re.search(rf"[a-z]{{3,}}est {SO_MANY}\b", text):  # "the smallest two" are no figure
        return False
    column = aggregated_column(conditions)
    if column is None:
        return False
    made = aggregated(figure_of_ages(conditions.reading.aggregate, column, text), column)
    if statement.grouped:
        dropped = [each.unalias() for each in statement.aggregates()]
        of_each(statement, made)
        order = statement.tree.args.get("order") if "instead" in text else None
        for key in order.expressions if order else ():
            if key.this in dropped:  # "average instead" of the total that the groups are ordered by
                key.set("this", made.copy())
    elif _IN_EACH.search(text):
        _of_each_row(conditions, made, before)
    elif measures_what_is_shown(text, before) and (tree := figure_of_shown(before, statement, made)) is not None:
        statement.tree = tree
    else:
        statement.clear("order", "limit", "distinct")
        statement.select([made])
    conditions.made.append("aggregate")
    return True


def _of_each_row(conditions: Conditions, figure: exp.Expr, before: Statement) -> None:
    """ "the average salary in each" behind departments. Raises LookupError where no rows are shown, or not all."""
    statement = conditions.statement
    if before.aggregates() or before.tree.args.get("limit") is not None or before.tables() == statement.tables():
        raise LookupError("what each is")
    rows = rows_of_main(statement)
    statement.clear("order", "distinct")
    statement.select([rows.shown, figure])
    statement.tree.set("group", exp.Group(expressions=[key.copy() for key in rows.keys]))


def counts_a_number(conditions: Conditions) -> bool:
    """ "how many platforms in total?", where a column has the number of them."""
    match = re.search(r"\bhow many (?P<what>[a-z_]+)\b.* (?:in total|altogether|in all)\b", conditions.reading.text)
    if not match or conditions.reading.aggregate != "SUM" or named_table([match["what"]], conditions.statement.schema):
        return False
    named = named_column([match["what"]], conditions.statement, conditions.kinds, ("number",))
    return named is not None and conditions.statement.away(named.table) < 1


def extreme_value(conditions: Conditions) -> None:
    """ "the largest one?" behind a sum or an average. Raises LookupError where a row is asked for."""
    reading = conditions.reading
    column = conditions.statement.aggregates()[0].find(exp.Column)
    counted = conditions.statement.aggregates()[0].find(exp.Count) is not None
    if reading.limit or counted or reading.orders or re.search(r"\b(?:who|which)\b", reading.text):
        raise LookupError("rows behind a figure")
    if column is not None and reading.adjective:
        figure_said(column, conditions)
        kind = "MAX" if reading.adjective[1] == "desc" else "MIN"
        conditions.statement.select([aggregated(figure_of_ages(kind, column, reading.text), column)])
        conditions.made.append("aggregate")


def aggregated_column(conditions: Conditions) -> exp.Expr | None:
    """The column behind "average", "highest"; the one that was aggregated before where none is named."""
    reading, statement = conditions.reading, conditions.statement
    listed = edit_words()["aggregates"][reading.aggregate]
    said = [match for word in listed for match in [re.search(rf"\b{word}\b", reading.text)] if match]
    behind = words(re.split(r"[,.;?!]", reading.text[said[0].end() :])[0])[:4] if said else []
    wanted = ("number", "year", "date", "datetime") if reading.aggregate in ("MAX", "MIN") else ("number", "year")
    if many := re.search(r"\bhow (?:many|much|long|old|high|large) (?P<what>[a-z_]+)", reading.text):
        behind = behind or words(many["what"])
    for phrase in (behind[:n] for n in range(len(behind), 0, -1)):
        named = named_column(phrase, statement, conditions.kinds, wanted)
        if named and not conditions.is_key(named):  # "the oldest captain" is no captain_id
            return statement.column(named.table, named.column)
    for measure in statement.aggregates():
        if (column := measure.find(exp.Column)) is not None and not measure.find(exp.Count):
            return figure_said(column, conditions).copy()
    rows = not statement.grouped and not statement.aggregates()
    if rows and reading.aggregate in ("MAX", "MIN"):
        return None  # "the youngest?" of a list is one of its rows
    if says_more(behind, conditions):
        return None
    named = conditions.only_one(("number",))
    return figure_said(statement.column(named.table, named.column), conditions) if named else None


def of_each(statement: Statement, figure: exp.Expr) -> None:
    """``figure`` in the place of those that are shown of each group."""
    aggregates = statement.aggregates()
    kept = [e for e in statement.tree.expressions if not any(e is a for a in aggregates)]
    statement.select([*kept, figure])


def aggregated(kind: str, column: exp.Expr) -> exp.Expr:
    made = {"AVG": exp.Avg, "SUM": exp.Sum, "MAX": exp.Max, "MIN": exp.Min}[kind]
    return made(this=column.copy())
