"""What follow-ups say of people: "only the women", "older than 20", "how old are they?".

Over ``SELECT name FROM students``, "only the women" adds ``sex = 'F'`` where 'F' is what the column holds ('Female' or
'w' where it holds that), and "older than 20" adds ``age > 20``. Only columns of the tables that are read, named sex,
gender or age. Not covered: ages that have to be computed from a day of birth.
"""

from __future__ import annotations

import re

from sqlglot import exp

from nl2sql.interfaces import Database
from nl2sql.sessions.cells import texts_of
from nl2sql.sessions.naming import Kinds, Named, edit_words
from nl2sql.sessions.statement import Statement
from nl2sql.sql.words import words

_AGED = re.compile(r"\b(?:older|younger|aged?)(?: than| over| under| above| below| of| at least)?\s*$")
_OLDEST = re.compile(r"\b(?P<end>oldest|eldest|youngest)\b")


def sexes_said(text: str, statement: Statement, database: Database) -> tuple[tuple[int, int], Named, str] | None:
    """(place in ``text``, the column, its cell) for "the women"; None where no table that is read tells.

    Raises LookupError for both: together they are everybody, or two groups.
    """
    column = _column(statement, {"sex", "gender"})
    sexes = edit_words()["sexes"].values()
    found = [(re.search(rf"\b(?:{'|'.join(cells)})\b", text), cells) for cells in sexes]
    if column and all(said for said, _ in found):
        raise LookupError("men and women")
    for said, cells in found:
        if said and column:
            values = texts_of(column, database)
            known = next((value for value in values if value.casefold() in (*cells, cells[0][0])), None)
            if known:
                return said.span(), column, known
    return None


def people_words() -> list[str]:
    """Words for men and women."""
    return [word for cells in edit_words()["sexes"].values() for word in cells if len(word) > 1]


def age_compared(before: str, statement: Statement, kinds: Kinds) -> Named | None:
    """The column of ages, where the text before a number is "older than"."""
    column = _column(statement, {"age"}) if _AGED.search(before) else None
    return column if column and kinds[column.table.lower(), column.column.lower()] == "number" else None


def oldest(text: str, statement: Statement) -> tuple[Named, bool] | None:
    """The column of ages and whether the order by it is descending, for "the oldest"; None without such a column."""
    said = _OLDEST.search(text)
    column = _column(statement, {"age"}) if said else None
    return (column, said["end"] != "youngest") if said and column else None


def figure_of_ages(kind: str, column: exp.Expr, text: str) -> str:
    """MAX or MIN as "the youngest" asks of ages: the lowest; of days of birth it is the latest."""
    said = _OLDEST.search(text)
    if not said or kind not in ("MAX", "MIN") or "age" not in words(column.name):
        return kind
    return "MIN" if said["end"] == "youngest" else "MAX"


def _column(statement: Statement, wanted: set[str]) -> Named | None:
    columns = [(table, column) for table in statement.sources().values() for column in table.columns]
    return next((Named(table.name, c.name) for table, c in columns if wanted & set(words(c.name))), None)
