"""The one figure that a follow-up asks for: an average, a sum, the highest or lowest value.

Behind ``SELECT AVG(credit_limit) FROM customers`` on ``scale_models``, "and the maximum?" is ``SELECT
MAX(credit_limit) FROM customers``. Not covered: figures of each group and of the rows that a LIMIT lets through
(LookupError), and other arithmetic.
"""

from __future__ import annotations

import re

from sqlglot import exp

from nl2sql.sessions.conditions import Conditions
from nl2sql.sessions.naming import edit_words, named_column
from nl2sql.sessions.ordering import figure_said
from nl2sql.sessions.reading import SO_MANY
from nl2sql.sql.words import words


def aggregate(conditions: Conditions) -> bool:
    """The figure that the reading names, of all rows; whether one is known."""
    text, statement = conditions.reading.text, conditions.statement
    if re.search(rf"[a-z]{{3,}}est {SO_MANY}\b", text):  # "the smallest two" are no figure
        return False
    column = aggregated_column(conditions)
    if column is None:
        return False
    if statement.grouped or statement.tree.args.get("limit") is not None:
        raise LookupError("a figure of each group, or of a few rows")
    statement.clear("order", "limit", "distinct")
    statement.select([aggregated(conditions.reading.aggregate, column)])
    conditions.made.append("aggregate")
    return True


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
    named = conditions.only_one(("number",))
    return figure_said(statement.column(named.table, named.column), conditions) if named else None


def aggregated(kind: str, column: exp.Expr) -> exp.Expr:
    made = {"AVG": exp.Avg, "SUM": exp.Sum, "MAX": exp.Max, "MIN": exp.Min}[kind]
    return made(this=column.copy())
