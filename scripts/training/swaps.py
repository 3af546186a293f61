"""A training question asked about another column or another value of the same table, in its own words.

A small model learns a question's columns by heart and copies names badly; a question whose column is another one each
time can only be answered by reading the schema. Where the question says a column's name word for word, it and the
query's column become another column of the same table and kind; where it says a value of the query's, it becomes
another value of that column. What gives no rows, or what a gate refuses, is not used.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

from nl2sql.agents.checks import constraints
from nl2sql.databases import validation
from nl2sql.databases.schema import Column, Schema, Table, quote_name
from nl2sql.interfaces import Database, Question
from nl2sql.runs.repair_bench import slips
from nl2sql.sql.parse import SLIPS, parse_bounded
from nl2sql.sql.text import words

LONGEST = 30  # characters of a value
LONGEST_NUMBER = 8
_NUMBER = re.compile(r"INT|REAL|NUM|DEC|FLOAT|DOUBLE")
_DATE = re.compile(r"DATE|TIME|YEAR")


def swapped(question: Question, schema: Schema, database: Database, rng: random.Random) -> Question | None:
    """``question`` with its text and first gold changed; None where nothing can be swapped."""
    from sqlglot.errors import SqlglotError

    try:
        tree: Any = parse_bounded(question.gold[0])
        text = _swap_column(tree, question.text, schema, database, rng)
        text = _swap_value(tree, text or question.text, schema, database, rng) or text
        sql = str(tree.sql(dialect="sqlite"))
    except (SqlglotError, *SLIPS):
        return None
    if text in (None, question.text) or not sound(sql, text, schema, database):
        return None
    return replace(question, text=text, gold=(sql,))


def sound(sql: str, text: str, schema: Schema, database: Database) -> bool:
    """Whether the query has something to show, and the gates find what ``text`` asks for in it."""
    result = database.run(sql, timeout_s=2, max_rows=1000)
    found = result.success and any(value not in (None, 0, "") for row in result.rows for value in row)
    return found and error_of(sql, text, schema, database) is None


def kind_of(column: Column) -> str:
    """number, date or text."""
    declared = f"{column.type} {column.name}".upper()
    return "date" if _DATE.search(declared) else "number" if _NUMBER.search(column.type) else "text"


def is_key(table: Table, column: Column) -> bool:
    return (
        column.primary_key
        or words(column.name)[-1:] == ["id"]
        or any(column.name.lower() in map(str.lower, key.columns) for key in table.foreign_keys)
    )


def drawn_value(table: Table, column: Column, database: Database, rng: random.Random) -> Any:
    """A value of the column that can be said in a sentence; None where there is none."""
    name = quote_name(column.name)
    sql = f"SELECT DISTINCT {name} FROM {quote_name(table.name)} WHERE {name} IS NOT NULL LIMIT 200"
    result = database.run(sql, timeout_s=2, max_rows=200)
    usable = [row[0] for row in result.rows if _sayable(row[0])]
    return rng.choice(usable) if usable else None


def _sayable(value: Any) -> bool:
    if isinstance(value, int | float):
        return len(str(value)) <= LONGEST_NUMBER
    return isinstance(value, str) and 0 < len(value.strip()) <= LONGEST and value.isprintable()


def spoken(name: str) -> str:
    """A name as a sentence says it: "net_worth" -> "net worth"."""
    return " ".join(words(name))


def plural(name: str) -> str:
    said = spoken(name)
    if said.endswith("s"):
        return said
    if said.endswith(("x", "ch", "sh")):
        return said + "es"
    return said[:-1] + "ies" if said.endswith("y") and said[-2:-1] not in set("aeiou") else said + "s"


def _swap_column(tree: Any, text: str, schema: Schema, database: Database, rng: random.Random) -> str | None:
    """``text`` with another column's name; ``tree`` is changed along. None where no column can be swapped."""
    from sqlglot import expressions as exp

    uses: dict[tuple[Table, Column], list[Any]] = {}
    for node in tree.find_all(exp.Column):
        if (owner := _owner(node, tree, schema)) is not None:
            uses.setdefault(owner, []).append(node)
    said = [owner for owner in uses if _phrase(owner[1].name).search(text)]
    rng.shuffle(said)
    for table, old in said:
        if is_key(table, old) or _part_of_another(old.name, text, schema):
            continue
        nodes = uses[table, old]
        if len(nodes) < sum(node.name.lower() == old.name.lower() for node in tree.find_all(exp.Column)):
            continue  # the question may say the name for another table's column as well
        if any(isinstance(n.parent, exp.Binary) and _literal_beside(n) is not None for n in nodes):
            continue  # its values would have to change too
        others = [
            column
            for column in table.columns
            if kind_of(column) == kind_of(old)
            and not is_key(table, column)
            and (table, column) not in uses
            and words(column.name)
            and not _phrase(column.name).search(text)
        ]
        if not others:
            continue
        new = rng.choice(others)
        for node in nodes:
            node.set("this", exp.to_identifier(new.name, quoted=quote_name(new.name) != new.name))
        return _renamed(text, old.name, new.name)
    return None


def _renamed(text: str, old: str, new: str) -> str:
    return _phrase(old).sub(lambda match: plural(new) if match.group(1) else spoken(new), text)


def _swap_value(tree: Any, text: str, schema: Schema, database: Database, rng: random.Random) -> str | None:
    from sqlglot import expressions as exp

    found = []
    for node in tree.find_all(exp.Column):
        literal = _literal_beside(node) if isinstance(node.parent, exp.Binary) else None
        owner = _owner(node, tree, schema)
        if literal is None or owner is None:
            continue
        place = re.compile(rf"(?<![\w.]){re.escape(str(literal.this))}(?![\w])", re.IGNORECASE)
        if len(place.findall(text)) == 1:
            found.append((literal, owner, place))
    if not found:
        return None
    literal, (table, column), place = rng.choice(found)
    value = drawn_value(table, column, database, rng)
    if value is None or isinstance(value, str) != literal.is_string or str(value) == literal.this:
        return None
    literal.replace(exp.convert(value))
    return place.sub(lambda _: str(value), text)


def _literal_beside(node: Any) -> Any:
    from sqlglot import expressions as exp

    sides = (node.parent.left, node.parent.right)
    return next((side for side in sides if isinstance(side, exp.Literal)), None)


def _owner(node: Any, tree: Any, schema: Schema) -> tuple[Table, Column] | None:
    """The table and column that a column of the query is, where only one can be meant."""
    from sqlglot import expressions as exp

    sources = [t for t in tree.find_all(exp.Table) if not node.table or t.alias_or_name.lower() == node.table.lower()]
    tables = [table for name in {t.name.lower() for t in sources} if (table := schema.table(name)) is not None]
    owners = [(table, column) for table in tables if (column := _column(table, node.name)) is not None]
    return owners[0] if len(owners) == 1 else None


def _column(table: Table, name: str) -> Column | None:
    return next((column for column in table.columns if column.name.lower() == name.lower()), None)


def _phrase(name: str) -> re.Pattern[str]:
    """Finds a column's name in a question, with a plural ending that is kept."""
    return re.compile(rf"\b{'[ _]+'.join(map(re.escape, words(name)))}(s?)\b", re.IGNORECASE)


def _part_of_another(name: str, text: str, schema: Schema) -> bool:
    """Whether the question says it within a longer name: "name" in "first name"."""
    own = words(name)
    names = {c.name for t in schema.tables for c in t.columns} | {t.name for t in schema.tables}
    longer = (other for other in names if len(words(other)) > len(own) and set(own) <= set(words(other)))
    return any(_phrase(other).search(text) for other in longer)


# ------------------------------------------------------------ queries as a small model gets them wrong
# Kinds: an invented column, a column of another table, a mistyped table, a missing join, a lost GROUP
# BY or ORDER BY, an invented function, broken syntax. What happens to pass every gate is not used.

SMALL_MODEL_KINDS = (
    slips.invented_column,
    slips.invented_column,
    slips.other_table_s_column,
    slips.mistyped_table,
    slips.missing_join,
    slips.lost_clause,
    slips.broken_syntax,
)


def corrupted(
    sql: str, question: str, schema: Schema, database: Database, rng: random.Random
) -> tuple[str, str] | None:
    """(a wrong query, the error that the loop would repair it with); None where nothing was found in a few tries."""
    kinds = list(SMALL_MODEL_KINDS)
    rng.shuffle(kinds)
    for kind in kinds:
        bad = kind(sql, schema, rng)
        if bad is None or bad == sql:
            continue
        error = error_of(bad, question, schema, database)
        if error is not None:
            return bad + ";", error
    return None


def error_of(sql: str, question: str, schema: Schema, database: Database) -> str | None:
    """What the loop's gates say first about ``sql``; None when they let it pass."""
    verdict = validation.validate_sql(sql, schema, database)
    if not verdict["valid"]:
        return str(verdict["reason"])
    checked = constraints.validate_constraints(sql, constraints.extract_constraints(question), schema)
    return None if checked["valid"] else str(checked["reason"])
