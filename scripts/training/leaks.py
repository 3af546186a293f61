"""Does training data hold anything of an evaluation set? By database content, by schema, and by question with SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nl2sql.agents.context.few_shot import wordings
from nl2sql.databases.schema import Schema
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import Benchmark, Question
from nl2sql.sql.same import normalise_sql


@dataclass(frozen=True)
class Leak:
    """kind: database (same rows), schema (same tables and columns), or question (same words and same SQL text)."""

    kind: str
    trained: str
    evaluated: str


def leaks(
    trained: tuple[Benchmark, Sequence[Question]], evaluated: Iterable[tuple[str, Benchmark, Sequence[Question]]]
) -> list[Leak]:
    """What training questions share with evaluation questions. ``evaluated``: (name, benchmark, questions).

    The same SQL text over another schema (``SELECT COUNT(*) FROM student``) is no leak unless the question has the
    same words too. Every training question and database that is concerned is named, twins too; a question's other
    wording and its other accepted golds count as well. Raises UsageError where an evaluated database cannot be read:
    nothing can be said of it.
    """
    benchmark, questions = trained
    fingerprints, shapes, _ = _contents(benchmark, questions)  # what cannot be read is not trained on
    asked: dict[tuple[str, str], list[str]] = {}
    for question in questions:
        for key in asked_keys(question):
            asked.setdefault(key, []).append(question.id)
    found: dict[Leak, None] = {}
    for name, other, theirs in evaluated:
        theirs_fingerprints, theirs_shapes, unread = _contents(other, theirs)
        if unread:
            raise UsageError(f"{name} cannot be checked for leaks: database {unread[0]}; mend it, or leave {name} out")
        for kind, mine, others in (("database", fingerprints, theirs_fingerprints), ("schema", shapes, theirs_shapes)):
            pairs = [(db, e) for content in others if content in mine for db in mine[content] for e in others[content]]
            found |= dict.fromkeys(Leak(kind, db, f"{name}:{evaluated_db}") for db, evaluated_db in pairs)
        for question in theirs:
            ids = [id_ for key in asked_keys(question) for id_ in asked.get(key, ())]
            found |= dict.fromkeys(Leak("question", id_, f"{name}:{question.id}") for id_ in ids)
    return list(found)


def asked_keys(question: Question) -> set[tuple[str, str]]:
    """(words, SQL) of a question, in each of its wordings and for each accepted gold."""
    return {(text, normalise_sql(gold)) for text in wordings(question) for gold in question.gold}


def _contents(
    benchmark: Benchmark, questions: Sequence[Question]
) -> tuple[dict[str, list[str]], dict[str, list[str]], list[str]]:
    """(fingerprint of the rows -> databases, tables and columns -> databases, what cannot be read and why)."""
    fingerprints: dict[str, list[str]] = {}
    shapes: dict[str, list[str]] = {}
    unread = []
    for name in sorted({question.db_id for question in questions}):
        try:
            database = benchmark.database(name)
            fingerprint, shape = database.fingerprint, _shape(database.schema())
        except Nl2SqlError as error:
            unread.append(f"{name}: {error}")
            continue
        fingerprints.setdefault(fingerprint, []).append(name)
        shapes.setdefault(shape, []).append(name)
    return fingerprints, shapes, unread


def _shape(schema: Schema) -> str:
    tables = (f"{t.name.lower()}({','.join(sorted(c.name.lower() for c in t.columns))})" for t in schema.tables)
    return ";".join(sorted(tables))
