"""Does training data hold anything of an evaluation set? By database content, by schema, and by question with SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nl2sql.errors import Nl2SqlError
from nl2sql.eval.exact import normalise_sql
from nl2sql.interfaces import Benchmark, Question
from nl2sql.linking import words
from nl2sql.schema import Schema


@dataclass(frozen=True)
class Leak:
    """kind: database (same rows), schema (same tables and columns), or question (same words, or same SQL text)."""

    kind: str
    trained: str
    evaluated: str


def leaks(
    trained: tuple[Benchmark, Sequence[Question]], evaluated: Iterable[tuple[str, Benchmark, Sequence[Question]]]
) -> list[Leak]:
    """What training questions share with evaluation questions. ``evaluated``: (name, benchmark, questions).

    The same SQL text over another schema (``SELECT COUNT(*) FROM student``) is no leak unless the question has the
    same words too.
    """
    benchmark, questions = trained
    prints, shapes = _contents(benchmark, questions)
    asked = {(_words(q.text), normalise_sql(q.gold[0])): q.id for q in questions if q.gold}
    found: list[Leak] = []
    for name, other, theirs in evaluated:
        other_prints, other_shapes = _contents(other, theirs)
        found += [Leak("database", prints[p], f"{name}:{db}") for p, db in other_prints.items() if p in prints]
        found += [Leak("schema", shapes[s], f"{name}:{db}") for s, db in other_shapes.items() if s in shapes]
        for question in theirs:
            key = (_words(question.text), normalise_sql(question.gold[0])) if question.gold else None
            if key in asked:
                found.append(Leak("question", asked[key], f"{name}:{question.id}"))
    return found


def _words(text: str) -> str:
    return " ".join(words(text))


def _contents(benchmark: Benchmark, questions: Sequence[Question]) -> tuple[dict[str, str], dict[str, str]]:
    """(fingerprint of the rows -> database, tables and columns -> database)."""
    prints: dict[str, str] = {}
    shapes: dict[str, str] = {}
    for name in sorted({question.db_id for question in questions}):
        try:
            database = benchmark.database(name)
            prints[database.fingerprint] = name
            shapes[_shape(database.schema())] = name
        except Nl2SqlError:
            continue  # a database that is missing is trained on by nobody
    return prints, shapes


def _shape(schema: Schema) -> str:
    tables = (f"{t.name.lower()}({','.join(sorted(c.name.lower() for c in t.columns))})" for t in schema.tables)
    return ";".join(sorted(tables))
