"""What "how many" counts and "their average" is of: rows of another table, or those that a query with LIMIT shows.

On ``scale_models``, behind ``SELECT company FROM customers ORDER BY credit_limit DESC LIMIT 5``, "how many of them are
in Norway?" is ``SELECT COUNT(*) FROM (SELECT company, country FROM customers ORDER BY credit_limit DESC LIMIT 5) AS
shown WHERE country = 'Norway'``. "How many customers are in Norway?" names what is counted, and asks of all of them.

Not covered, behind a LIMIT: conditions on groups, on rows that are shown once each, and on tables that are not read
yet (LookupError).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.databases.schema import Table
from nl2sql.sessions.conditions import Conditions
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.naming import Kinds, alike, edit_words, label_of, named_table
from nl2sql.sessions.reading import Reading
from nl2sql.sessions.statement import Statement
from nl2sql.sessions.tables import key_columns
from nl2sql.sql.words import words

_EACH = re.compile(
    r"\bhow many (?!(?:per|by|each|for) )(?:of (?:its|their|his|her|the|these|those) )?"
    r"(?P<what>[a-z_]+(?: (?!each\b|every\b)[a-z_]+)?)\b(?P<rest>[^.;?!]*)"
)
_LIGHT = frozenset(["there", "left", "now", "total", "shown", "listed", "altogether", "overall", "they", "each"])
_THESE = re.compile(r"\b(?:them|they|these|those|of which)\b")
_THEIR = re.compile(rf"{_THESE.pattern}|\btheir\b")
_ALL = re.compile(r"\b(?:in total|altogether|overall|in all)\b")
_ARE = re.compile(
    r"\b(?:how many|which)(?: of (?:them|these|those)| ones?)? (?:are|is|were|was|(?=(?:in|on|at|from|with|under)\b))"
    r" ?(?P<rest>[^.,;?!]+)[.?! ]*$"
)
_DONE = re.compile(
    r"\bwho (?:is|was|were|are)(?: not)? [a-z]+(?:ed|en)\b|\bhow many times\b|\bhow often\b|\bmost often\b"
    r"|\bwhich (?:is|are|was|were) [a-z]+ed (?:the )?(?:most|least)\b"
)
_COUNTED = re.compile(r"\b(?:how many|number of|count of) (?P<what>[^,.;:?!]+)")


def count_of_others(text: str, statement: Statement) -> bool:
    """ "how many players does each one have?": of another table, for each row of what was listed. Whether it was asked.

    Raises LookupError where only some of the rows were shown.
    """
    match = _EACH.search(text)
    if not match:
        return False
    table = named_table(words(match["what"]), statement.schema)
    if table is None or table.name in statement.tables():
        return False
    label = label_of(statement.main, statement)
    away = statement.distance(table.name)
    if away > 2 or label is None:
        return False
    each = re.search(r"\b(?:each|every)\b", match["rest"])
    if statement.tree.args.get("limit") is not None and (each or _THESE.search(text)):
        raise LookupError(f"{table.name} of the rows that are shown")
    statement.column(table.name, table.columns[0].name)
    once = _repeats(table, statement) or (away > 1 and not each)
    count = _once_each(table, statement) if once else exp.Count(this=exp.Star())
    statement.clear("group", "having", "order", "limit", "distinct")
    if not each:
        statement.select([count])
    else:
        shown = statement.column(label.table, label.column)
        keys = [statement.column(statement.main.name, key) for key in key_columns(statement.main)]
        statement.select([shown, count])
        statement.tree.set("group", exp.Group(expressions=[*keys, shown.copy()]))
    return True


def count_of_read(text: str, statement: Statement) -> exp.Expr | None:
    """ "How many animals?" behind what they gave: each row of a table that is read, once; None where none repeats."""
    counted = _COUNTED.search(text)
    said = words(counted["what"])[:2] if counted else []
    table = named_table(said[:1], statement.schema) or named_table(said, statement.schema)
    read = table is not None and table.name in statement.tables()
    return _once_each(table, statement) if table and read and _repeats(table, statement) else None


def _repeats(table: Table, statement: Statement) -> bool:
    """May a row of a table that is read stand there several times: a patient beside each of his visits?"""
    alone = Statement(exp.select("1").from_(exp.table_(table.name)), statement.schema)
    return any(alone.step_to_many(other) for other in statement.tables() - {table.name})


def _once_each(table: Table, statement: Statement) -> exp.Expr:
    """Raises LookupError where no one key tells the rows."""
    keys = key_columns(table)
    if len(keys) != 1:
        raise LookupError(f"a key of {table.name}")
    return exp.Count(this=exp.Distinct(expressions=[statement.column(table.name, keys[0])]))


def counts_something_else(text: str, statement: Statement, kinds: Kinds) -> bool:
    """ "how many transactions did they send?": is it a word of the name of another table, and of none that is read? Or
    of a column of numbers: "how many hours a week?"
    """
    counted = _COUNTED.search(text)
    said = list(itertools.takewhile(lambda word: word not in _auxiliaries(), words(counted["what"]))) if counted else []
    read = list(statement.sources().values())
    names = {stem(word) for table in read for word in words(table.name)}
    own, others = _stems_in(read), _stems_in(statement.others())
    content = [stem(word) for word in said if word not in STOP_WORDS]
    asked = set(content)
    numbers = {
        stem(word)
        for table in read
        for column in table.columns
        if kinds[table.name.lower(), column.name.lower()] == "number"
        for word in words(column.name)
    } - names
    return (bool(asked & others) and not asked & own) or bool(set(content[:1]) & numbers)


def _stems_in(tables: Iterable[Table]) -> set[str]:
    """Of the words in the names of tables and of their columns."""
    names = [name for table in tables for name in (table.name, *(column.name for column in table.columns))]
    return {stem(word) for name in names for word in words(name)}


@cache
def _auxiliaries() -> frozenset[str]:
    return frozenset(cue_words()["auxiliaries"])


def says_what_they_are(reading: Reading) -> bool:
    """ "how many are shut down?", "which of them are in stock?": a condition, in words that may be read as nothing."""
    if _DONE.search(reading.text):
        return True
    match = _ARE.search(reading.text)
    if not match or reading.adjective or reading.groupings or reading.comparisons:
        return False
    return any(word not in STOP_WORDS and word not in _LIGHT for word in words(match["rest"]))


def says_more(behind: Sequence[str], conditions: Conditions) -> bool:
    """Says a figure of what is read more than that: "how much have they paid in total?", "total donations"?

    behind: the words behind the one that asks for a figure. True where a word is like the name of a table that is not
    read, or where nothing explains it.
    """
    reading, statement = conditions.reading, conditions.statement
    others = [word for table in statement.others() for word in words(table.name)]
    long = [word for word in words(reading.text) if word not in STOP_WORDS and len(word) > 3]
    if any(alike(word, name) for word in long for name in others):
        return True
    grouped = {word for phrase in reading.groupings for word in phrase}
    read = [word for name in statement.tables() for word in words(name)]
    values = " ".join(conditions.question[start:end].lower() for start, end in conditions.used)
    known = {*STOP_WORDS, *edit_words()["units_of_numbers"], *grouped, "number", "count", "figure", "per", "by"}
    return any(w not in known and w not in values and not any(alike(w, part) for part in read) for w in behind)


def counts_what_is_shown(text: str, before: Statement) -> bool:
    """Does "how many" mean the rows of the answer: no table is named behind it, or "of these" is said?"""
    if _ALL.search(text) or _THESE.search(text):
        return not _ALL.search(text)
    counted = _COUNTED.search(text)
    said = words(counted["what"])[:3] if counted else []
    parts = {stem(word) for table in before.sources().values() for word in words(table.name)}
    named = named_table(said, before.schema) or (said and stem(said[0]) in parts)
    return not named and not any(measure.find(exp.Count) for measure in before.aggregates())


def measures_what_is_shown(text: str, before: Statement) -> bool:
    """Is "their average" that of the rows which a LIMIT lets through?"""
    return before.tree.args.get("limit") is not None and bool(_THEIR.search(text)) and not _ALL.search(text)


def figure_of_shown(before: Statement, after: Statement, figure: exp.Expr) -> exp.Select | None:
    """``figure``, a count or another aggregate, over the rows of ``before`` that the other conditions of ``after`` let
    through.

    None where a condition was replaced or dropped: then other rows are asked about. Raises LookupError for what is not
    covered.
    """
    if set(before.sources()) != set(after.sources()):
        raise LookupError("a table to join")
    old = before.conditions()
    new = [condition for condition in after.conditions() if condition not in old]
    if any(condition not in after.conditions() for condition in old):
        return None
    columns = [column for part in (*new, figure) for column in _outer_columns(part)]
    shown = _with_columns(before, columns)
    made = exp.select(figure.copy()).from_(shown.subquery("shown"))
    if new:
        made = made.where(exp.and_(*(condition.copy() for condition in new)))
    for part in (*made.expressions, *([made.args["where"].this] if new else [])):
        for column in _outer_columns(part):
            column.set("table", None)
    return made


def _outer_columns(part: exp.Expr) -> list[exp.Column]:
    """The columns of ``part`` but those of queries within it."""
    within = {id(column) for query in part.find_all(exp.Query) for column in query.find_all(exp.Column)}
    return [column for column in part.find_all(exp.Column) if id(column) not in within]


def _with_columns(before: Statement, columns: list[exp.Column]) -> exp.Select:
    """The query, which also shows what is compared outside it."""
    shown: exp.Select = before.tree.copy()
    star = any(expression.is_star for expression in shown.expressions)
    several = before.grouped or shown.args.get("distinct") is not None
    if columns and (several or (star and len(before.sources()) > 1)):
        raise LookupError("rows that stand for several, or names that stand for several columns")
    for column in () if star else columns:
        same = [e for e in shown.expressions if e.alias_or_name.lower() == column.name.lower()]
        if not same:
            shown.append("expressions", column.copy())
        elif any(not _is_column(each.unalias(), column, before) for each in same):
            raise LookupError(column.name)
    return shown


def _is_column(expression: exp.Expr, column: exp.Column, before: Statement) -> bool:
    return (
        isinstance(expression, exp.Column)
        and expression.name.lower() == column.name.lower()
        and before.table_of(expression) == before.table_of(column)
    )
