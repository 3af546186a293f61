"""Questions over synthetic queries: a query of a common shape over a training database, and a sentence that asks it.

They read what no annotator asked about: every table, column and foreign key of the database in turn. The sentences are
templates, so they teach where names belong, not how people speak. What gives no rows, or what a gate refuses, is not
used. Covered: projections, conditions, aggregates, groups, superlatives, joins over one foreign key, NOT IN, and a
comparison with an average.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from nl2sql.databases.schema import Column, Schema, Table, quote_name
from nl2sql.interfaces import Database, Question
from nl2sql.sql.words import words
from training.swaps import drawn_value, is_key, kind_of, plural, sound, spoken

TRIES = 4  # per question
Draft = tuple[str, str]  # a question and its query


def synthetic(db_id: str, database: Database, rng: random.Random, count: int) -> Iterator[Question]:
    """At most ``count`` questions; the same for the same arguments."""
    draw = Draw(database, rng)
    for number in range(count):
        for _ in range(TRIES):
            made = rng.choice(SHAPES)(draw)
            if made is not None and sound(made[1], made[0], draw.schema, database):
                yield Question(made[0], db_id, f"synthetic:{db_id}:{number}", gold=(made[1],))
                break


class Draw:
    """Random parts of queries over one database, each as (how a question says it, SQL)."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        self.database, self.rng = database, rng
        self.schema: Schema = database.schema()
        self.tables = [table for table in self.schema.tables if not table.is_view and len(table.columns) > 1]

    def table(self) -> Table | None:
        return self.rng.choice(self.tables) if self.tables else None

    def columns(self, table: Table, most: int, *kinds: str) -> list[Column]:
        """One to ``most`` columns that are no keys."""
        usable = [c for c in table.columns if not is_key(table, c) and words(c.name)]
        usable = [c for c in usable if not kinds or kind_of(c) in kinds]
        return self.rng.sample(usable, min(len(usable), self.rng.randint(1, most))) if usable else []

    def column(self, table: Table, *kinds: str) -> Column | None:
        return next(iter(self.columns(table, 1, *kinds)), None)

    def condition(self, table: Table) -> Draft | None:
        """("whose age is above 3", "t.age > 3")."""
        column = self.column(table)
        value = column and drawn_value(table, column, self.database, self.rng)
        if column is None or value is None:
            return None
        said, name = f"{self.rng.choice(('whose', 'where the'))} {spoken(column.name)}", place(table, column.name)
        if isinstance(value, str):
            shown = self.rng.choice((value, f"'{value}'", f'"{value}"'))
            if self.rng.random() < 0.12:
                return f"{said} is not {shown}", f"{name} <> {literal(value)}"
            return f"{said} is {shown}", f"{name} = {literal(value)}"
        phrase, operator = self.rng.choice(COMPARED)
        return f"{said} is {phrase} {value}", f"{name} {operator} {literal(value)}"

    def link(self) -> tuple[Table, Table, str, str] | None:
        """(the table that refers, the one referred to, the column of each that a join compares)."""
        found = []
        for table in self.tables:
            for key in table.foreign_keys:
                other = self.schema.table(key.ref_table)
                if other is not None and other is not table and len(key.columns) == 1:
                    refers = place(table, key.columns[0])
                    found.append((table, other, refers, place(other, key.ref_columns[0])))
        return self.rng.choice(found) if found else None


def place(table: Table, column: str) -> str:
    return f"{quote_name(table.name)}.{quote_name(column)}"


def select(table: Table, columns: list[Column]) -> Draft:
    """The columns in a sentence, and the SELECT that shows them, without FROM."""
    return listed([spoken(c.name) for c in columns]), "SELECT " + ", ".join(place(table, c.name) for c in columns)


def literal(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


COMPARED = (
    ("more than", ">"),
    ("greater than", ">"),
    ("above", ">"),
    ("at least", ">="),
    ("less than", "<"),
    ("below", "<"),
    ("at most", "<="),
    ("equal to", "="),
)
AGGREGATES = (("average", "AVG"), ("maximum", "MAX"), ("minimum", "MIN"), ("total", "SUM"))
ASK = ("What are the {}?", "List the {}.", "Show the {}.", "Find the {}.", "Give me the {}.", "Return the {}.")


def projection(draw: Draw) -> Draft | None:
    table = draw.table()
    columns = draw.columns(table, 3) if table else []
    if not table or not columns:
        return None
    said, shown = select(table, columns)
    text, sql = f"{said} of all {plural(table.name)}", f"{shown} FROM {quote_name(table.name)}"
    filtered = draw.rng.random() < 0.6 and draw.condition(table)
    if filtered:
        text = f"{said} of {plural(table.name)} {filtered[0]}"
        sql += f" WHERE {filtered[1]}"
        second = draw.rng.random() < 0.25 and draw.condition(table)
        if second:
            word = draw.rng.choice(("and", "or"))
            text += f" {word} {second[0]}"
            sql += f" {word.upper()} {second[1]}"
    elif draw.rng.random() < 0.3 and len(columns) == 1:
        text = f"different {plural(columns[0].name)} of the {plural(table.name)}"
        sql = sql.replace("SELECT ", "SELECT DISTINCT ", 1)
    ordered = draw.rng.random() < 0.3 and draw.column(table)
    if ordered:
        direction = draw.rng.choice(("ascending", "descending"))
        text += f", sorted by {spoken(ordered.name)} in {direction} order"
        sql += f" ORDER BY {place(table, ordered.name)} {'DESC' if direction == 'descending' else 'ASC'}"
    return draw.rng.choice(ASK).format(text), sql


def count(draw: Draw) -> Draft | None:
    table = draw.table()
    if not table:
        return None
    sql = f"SELECT COUNT(*) FROM {quote_name(table.name)}"
    filtered = draw.rng.random() < 0.7 and draw.condition(table)
    if not filtered:
        return f"How many {plural(table.name)} are there?", sql
    start = draw.rng.choice(("How many {} are there {}?", "Count the {} {}.", "What is the number of {} {}?"))
    return start.format(plural(table.name), filtered[0]), f"{sql} WHERE {filtered[1]}"


def aggregate(draw: Draw) -> Draft | None:
    table = draw.table()
    column = draw.column(table, "number") if table else None
    if not table or not column:
        return None
    chosen = draw.rng.sample(AGGREGATES, draw.rng.choice((1, 1, 2)))
    said = listed([word for word, _ in chosen])
    shown = ", ".join(f"{function}({place(table, column.name)})" for _, function in chosen)
    text = f"{said} {spoken(column.name)} of {plural(table.name)}"
    sql = f"SELECT {shown} FROM {quote_name(table.name)}"
    filtered = draw.rng.random() < 0.5 and draw.condition(table)
    if filtered:
        text, sql = f"{text} {filtered[0]}", f"{sql} WHERE {filtered[1]}"
    return draw.rng.choice(("What is the {}?", "Find the {}.", "Show the {}.")).format(text), sql


def superlative(draw: Draw) -> Draft | None:
    table = draw.table()
    by = draw.column(table, "number", "date") if table else None
    columns = [c for c in draw.columns(table, 2) if c is not by] if table and by else []
    if not table or not by or not columns:
        return None
    highest = draw.rng.random() < 0.6
    number = draw.rng.choice((1, 1, 1, 3, 5))
    word = draw.rng.choice(("highest", "largest") if highest else ("lowest", "smallest"))
    whose = f"the {spoken(table.name)}" if number == 1 else f"the {number} {plural(table.name)}"
    said, shown = select(table, columns)
    text = f"{said} of {whose} with the {word} {spoken(by.name)}"
    order = f"ORDER BY {place(table, by.name)} {'DESC' if highest else 'ASC'} LIMIT {number}"
    return draw.rng.choice(ASK).format(text), f"{shown} FROM {quote_name(table.name)} {order}"


def groups(draw: Draw) -> Draft | None:
    """COUNT or an aggregate for each value of a column, the most common value, or those with enough rows."""
    table = draw.table()
    by = draw.column(table, "text", "date") if table else None
    if not table or not by:
        return None
    name, many, key = quote_name(table.name), plural(table.name), place(table, by.name)
    kind = draw.rng.choice(("count", "aggregate", "most", "having"))
    if kind == "most":
        word, direction = draw.rng.choice((("most", "DESC"), ("fewest", "ASC")))
        text = f"Which {spoken(by.name)} has the {word} {many}?"
        return text, f"SELECT {key} FROM {name} GROUP BY {key} ORDER BY COUNT(*) {direction} LIMIT 1"
    if kind == "having":
        least = draw.rng.randint(2, 4)
        text = f"Which {plural(by.name)} have at least {least} {many}?"
        return text, f"SELECT {key} FROM {name} GROUP BY {key} HAVING COUNT(*) >= {least}"
    if kind == "count":
        text = f"number of {many} for each {spoken(by.name)}"
        shown = f"{key}, COUNT(*)"
    else:
        column = draw.column(table, "number")
        if column is None:
            return None
        word, function = draw.rng.choice(AGGREGATES)
        text = f"{word} {spoken(column.name)} of {many} for each {spoken(by.name)}"
        shown = f"{key}, {function}({place(table, column.name)})"
    return draw.rng.choice(("Show the {}.", "What is the {}?", "Find the {}.")).format(text), (
        f"SELECT {shown} FROM {name} GROUP BY {key}"
    )


def joined(draw: Draw) -> Draft | None:
    """Columns of one table where a condition on the other holds, or columns of both."""
    link = draw.link()
    if not link:
        return None
    first, other, refers, referred = link
    if draw.rng.random() < 0.5:
        first, other = other, first
    columns = draw.columns(first, 2)
    filtered = draw.condition(other)
    if not columns or not filtered:
        return None
    said, shown = select(first, columns)
    tables = f"{quote_name(first.name)} JOIN {quote_name(other.name)} ON {refers} = {referred}"
    if draw.rng.random() < 0.3 and (pair := draw.column(other)) is not None:
        text = f"{said} of {plural(first.name)} and the {spoken(pair.name)} of their {spoken(other.name)}"
        return draw.rng.choice(ASK).format(text), f"{shown}, {place(other, pair.name)} FROM {tables}"
    text = f"{said} of {plural(first.name)} that have a {spoken(other.name)} {filtered[0]}"
    return draw.rng.choice(ASK).format(text), f"{shown} FROM {tables} WHERE {filtered[1]}"


def joined_count(draw: Draw) -> Draft | None:
    """How many rows refer to each row of the other table, or to which most do."""
    link = draw.link()
    name = draw.column(link[1], "text") if link else None
    if not link or not name:
        return None
    first, other, refers, referred = link
    joined_by = f"{refers} = {referred} GROUP BY {referred}"
    tables = f"{quote_name(other.name)} JOIN {quote_name(first.name)} ON {joined_by}"
    if draw.rng.random() < 0.5:
        text = f"What is the {spoken(name.name)} of the {spoken(other.name)} with the most {plural(first.name)}?"
        return text, f"SELECT {place(other, name.name)} FROM {tables} ORDER BY COUNT(*) DESC LIMIT 1"
    text = f"Show the {spoken(name.name)} of each {spoken(other.name)} and the number of its {plural(first.name)}."
    return text, f"SELECT {place(other, name.name)}, COUNT(*) FROM {tables}"


def without(draw: Draw) -> Draft | None:
    link = draw.link()
    columns = draw.columns(link[1], 2) if link else []
    if not link or not columns:
        return None
    first, other, refers, referred = link
    said, shown = select(other, columns)
    text = f"{said} of {plural(other.name)} that do not have any {plural(first.name)}"
    inner = f"SELECT {refers} FROM {quote_name(first.name)}"
    sql = f"{shown} FROM {quote_name(other.name)} WHERE {referred} NOT IN ({inner})"
    return draw.rng.choice(ASK).format(text), sql


def beyond_average(draw: Draw) -> Draft | None:
    table = draw.table()
    by = draw.column(table, "number") if table else None
    columns = draw.columns(table, 2) if table and by else []
    if not table or not by or not columns:
        return None
    word, operator = draw.rng.choice((("above", ">"), ("below", "<")))
    said, shown = select(table, columns)
    name, compared = quote_name(table.name), place(table, by.name)
    text = f"{said} of {plural(table.name)} whose {spoken(by.name)} is {word} the average"
    sql = f"{shown} FROM {name} WHERE {compared} {operator} (SELECT AVG({compared}) FROM {name})"
    return draw.rng.choice(ASK).format(text), sql


SHAPES: tuple[Callable[[Draw], Draft | None], ...] = (
    *(projection, projection, projection, count, count, aggregate, superlative, superlative, groups, groups),
    *(joined, joined, joined, joined_count, joined_count, without, beyond_average),
)
