"""Signs that a query which ran may still be wrong: each a named check with a sentence for the user.

On the packaged ``scale_models`` database, ``SELECT count(*) FROM offices WHERE city = 'paris'`` runs and gives 0:

    unknown_literal: no cell of offices.city is 'paris'; the closest is 'Paris'

A check reads the statement (through sqlglot's scopes), its rows, the question and, where it must, the database: bounded
reads of a second at most. A check never fails: what it cannot read, it says nothing about. ``suspicions.NAME=false``
switches one off. Not covered: statements that sqlglot cannot parse, columns of derived tables and WITH parts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot.errors import SqlglotError

from nl2sql.agents.checks.suspicions.evidence import Evidence
from nl2sql.agents.checks.suspicions.joins import fan_out, join_beside_key
from nl2sql.agents.checks.suspicions.literals import type_mismatch, unknown_literal
from nl2sql.agents.checks.suspicions.wording import repeated_column, unused_column, unused_value
from nl2sql.config import SuspicionsConfig
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database, RunResult


@dataclass(frozen=True)
class Suspicion:
    """What is suspicious: ``check`` names the kind, ``text`` says it to the user."""

    check: str
    text: str

    def to_dict(self) -> dict[str, str]:
        return {"check": self.check, "text": self.text}


Check = Callable[[Evidence], Iterator[str]]


def suspicions(
    question: str, sql: str, database: Database, result: RunResult, config: SuspicionsConfig
) -> list[Suspicion]:
    """The signs that a query which ran may be wrong, in the order of ``CHECKS``; each sentence once."""
    noted: dict[Suspicion, None] = {}
    evidence: Evidence | None = None
    for name, check in CHECKS.items():
        if not getattr(config, name):
            continue
        try:
            evidence = evidence or Evidence(question, sql, database.schema(), database, result)
            noted |= dict.fromkeys(Suspicion(name, text) for text in check(evidence))
        except (Nl2SqlError, SqlglotError, sqlite3.Error, OSError, RecursionError):
            continue  # a database that is gone, a statement that nobody can read: there is nothing to say
    return list(noted)


def empty_result(evidence: Evidence) -> Iterator[str]:
    """No row at all."""
    if not evidence.result.rows:
        yield "the query gives no row"


def null_aggregate(evidence: Evidence) -> Iterator[str]:
    """One row whose only values are NULL: an aggregate over nothing."""
    rows = evidence.result.rows
    if len(rows) == 1 and rows[0] and all(value is None for value in rows[0]):
        yield "the answer is NULL: there was nothing to compute it from"


CHECKS: Mapping[str, Check] = {
    "unknown_literal": unknown_literal,
    "type_mismatch": type_mismatch,
    "join_beside_key": join_beside_key,
    "fan_out": fan_out,
    "empty_result": empty_result,
    "null_aggregate": null_aggregate,
    "unused_value": unused_value,
    "unused_column": unused_column,
    "repeated_column": repeated_column,
}


def low_confidence(confidence: float | None, least: float) -> Iterator[Suspicion]:
    """The suspicion of an answer whose confidence is below ``least``; none where the controller gives no confidence."""
    if confidence is not None and confidence < least:
        yield Suspicion("low_confidence", f"it is held for right with a probability of {confidence:.2f} only")


def cut_result(kept: int | None) -> Iterator[Suspicion]:
    """What is said of an answer with more rows than ``execution.max_rows``, of which so many are kept."""
    if kept is not None:
        more = f"the query gives more than {kept:,} rows, and the rest is left out (execution.max_rows)"
        yield Suspicion("cut_result", more)


def texts(suspected: Sequence[Mapping[str, str]]) -> list[str]:
    """``Episode.flags["suspicions"]`` as lines."""
    return [f"{item['check']}: {item['text']}" for item in suspected]
