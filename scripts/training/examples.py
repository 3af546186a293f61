"""Examples from a benchmark's training questions, with the very prompts that the product uses later.

An example is a conversation and one open assistant turn in pieces, of which some are learned. Examples that share a
database and its schema text make a group: they are packed behind one copy of the schema (``packing``), which is what
makes an epoch cheap. In half of the groups the order of tables is shuffled, so that nobody learns a schema by heart.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.checks import constraints
from nl2sql.agents.context.grounding import with_values
from nl2sql.agents.context.linking import link_schema
from nl2sql.agents.writing import LINK_MAX_TABLES
from nl2sql.databases.schema import Schema, focus, schema_to_text
from nl2sql.interfaces import Database, Question
from nl2sql.repair.analyzer import ErrorAnalyzer, engine_version
from nl2sql.repair.deterministic import valid_part
from training.sql_style import in_style, tables_of

GROUP = 12  # examples behind one schema text
QUESTION_PROMPT = "SQL query:\n{sql}\n\nWhat question does this query answer?"


@dataclass(frozen=True)
class Example:
    """task: write, draft, question, repair or act. pieces: the assistant's turn as (text, learned), which ends there if
    ``closed``."""

    task: str
    id: str
    db_id: str
    messages: tuple[dict[str, str], ...]
    pieces: tuple[tuple[str, bool], ...]
    closed: bool = True

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Example:
        pieces = tuple((str(text), bool(learned)) for text, learned in data["pieces"])
        return cls(data["task"], data["id"], data["db_id"], tuple(data["messages"]), pieces, bool(data["closed"]))


@dataclass(frozen=True)
class Asked:
    """A question with its answer in the taught style, the database's schema and the tables that the answer reads."""

    question: Question
    text: str  # the question's wording in this group
    nlq: str  # the same with its evidence and the values that it names, as prompts show it
    sql: str
    schema: Schema
    tables: frozenset[str]


_NO_CONDITION = re.compile(r" ON TRUE\b| ON ([\w.]+) = \1(?![\w.])")  # a join that joins everything


def asked(question: Question, database: Database, values: int = 0) -> Asked | None:
    """None where the gold cannot be written in the taught style. ``values``: of cells that the question names."""
    schema = database.schema()
    sql = in_style(question.gold[0], schema)
    if sql is None or not sql.upper().startswith("SELECT ") or _NO_CONDITION.search(sql):
        return None
    tables = frozenset(tables_of(sql, schema))
    nlq = prompts.question_text(question.text, question.evidence)
    if values:
        nlq = with_values(nlq, database, values)[0]
    return Asked(question, question.text, nlq, sql, schema, tables) if tables else None


def groups(items: Sequence[Asked], rng: random.Random, size: int = GROUP) -> Iterator[tuple[Schema, list[Asked]]]:
    """Questions of one database, at most ``size`` to a focused schema that holds all the tables they need."""
    waiting = list(items)
    rng.shuffle(waiting)
    while waiting:
        first = waiting.pop()
        linked = {table.name for table in link_schema(first.nlq, first.schema, LINK_MAX_TABLES).tables}
        names = linked | first.tables
        members = [first]
        rest: list[Asked] = []
        for item in waiting:
            (members if item.tables <= names and len(members) < size else rest).append(item)
        waiting = rest
        part = focus(first.schema, sorted(names))
        if rng.random() < 0.5:
            shuffled = list(part.tables)
            rng.shuffle(shuffled)
            part = Schema(tuple(shuffled), part.dialect)
        yield part, members


def write_example(item: Asked, schema_text: str) -> Example:
    """Question and schema -> SQL: ``generate_sql``'s own prompt."""
    messages = prompts.generate_messages(item.nlq, schema_text, constraints.extract_constraints(item.text))
    return Example("write", item.question.id, item.question.db_id, tuple(messages), answer(item.sql))


def draft_example(item: Asked, schema_text: str, draft: str) -> Example:
    """Question, schema and an earlier query -> SQL: the prompt of a follow-up question."""
    demanded = constraints.extract_constraints(item.text)
    messages = prompts.generate_messages(item.nlq, schema_text, demanded, previous_sql=draft)
    return Example("draft", item.question.id, item.question.db_id, tuple(messages), answer(item.sql))


def question_example(item: Asked) -> Example:
    """SQL -> its question: a second task beside writing."""
    asked = {"role": "user", "content": QUESTION_PROMPT.format(sql=item.sql + ";")}
    return Example("question", item.question.id, item.question.db_id, (asked,), ((item.text, True),))


def repair_example(
    item: Asked, schema_text: str, bad_sql: str, error: str, guided_by: Database | None = None
) -> Example:
    """A query and its error -> the right one: ``repair_sql``'s own prompt, with the guidance of ``patterns`` where
    the database is given."""
    if guided_by is None:
        messages = prompts.repair_messages(item.nlq, bad_sql, error, schema_text)
    else:
        analyzer = ErrorAnalyzer(guided_by.dialect, version=engine_version(guided_by))
        guidance = analyzer.analyze_error(error, bad_sql, item.schema)
        valid = valid_part(bad_sql, guided_by)
        messages = prompts.guided_repair_messages(item.nlq, bad_sql, error, schema_text, guidance, valid_part=valid)
    return Example("repair", item.question.id, item.question.db_id, tuple(messages), answer(item.sql))


def answer(sql: str) -> tuple[tuple[str, bool], ...]:
    """The turn that the SQL prompts open, and the rest of the statement."""
    opening = prompts.prompt("generate_prefill")
    return (opening, False), (sql[len(opening) :] + ";", True)


def schema_text(schema: Schema) -> str:
    """The schema as the default config shows it."""
    return schema_to_text(schema)
