"""Is a structured query a gold: valid over its data source, executable, and with the SQL gold's rows everywhere?

Everywhere is the packaged database and its perturbed replicas, those that scores are taken on. Rows are equal by the
rule ``bag``, over all databases at once; beside it, every column by itself has to equal the SQL's column in its place,
because the rule alone would take columns in another order. Not covered: other dialects than SQLite.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nl2sql.config import EvalConfig, VizqlConfig
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import one_line
from nl2sql.eval.replicas import perturbed_replicas
from nl2sql.eval.rules import get_rule, suites_match
from nl2sql.interfaces import RunResult
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.from_sql import nullable_captions, structured
from nl2sql.vizql.infer import infer
from nl2sql.vizql.query import read_request
from nl2sql.vizql.validator import validate

_NOT_EXECUTABLE = {  # a part of what the compiler says, and the reason that is counted
    "(fan-out)": "not executable: fan-out",
    "leads to all of them": "not executable: no one table leads to all others",
    "more than one way": "not executable: more than one way to a table",
    "mixes rows and aggregates": "not executable: rows and aggregates mixed",
}


class LeftOut(Exception):
    """A gold that has no structured query; the text is the reason that is counted."""


class Prover:
    """One packaged database with its data source and its replicas; ``prove`` finds the gold query of a SQL gold."""

    def __init__(self, database: SqliteDatabase) -> None:
        count = EvalConfig().replicas
        assert isinstance(count, int)
        self.database, self.source = database, infer(database)
        self.nullable = nullable_captions(self.source, database.schema())
        replicas = perturbed_replicas(database.path, count)
        self.databases = [database, *(SqliteDatabase(path, name=database.name) for path in replicas)]

    def prove(self, sql: str) -> dict[str, Any]:
        """The plainest structured query with the rows of ``sql``. Raises LeftOut, with the last one's reason."""
        written = structured(sql, self.source, nullable=self.nullable)
        results = self.rows(sql) if written.candidates else []
        last = LeftOut("no way to write it")
        for document in written.candidates:
            try:
                self.check(document, sql, results)
            except LeftOut as reason:
                last = reason
            else:
                return document
        raise LeftOut(written.reason) if written.reason else last

    def check(self, document: Any, sql: str, results: list[RunResult]) -> None:
        """Raises LeftOut for a query that is not valid, not executable, or has other rows than the SQL."""
        validation = validate(document, self.source, VizqlConfig(), self.database)
        if not validation.is_valid:
            raise LeftOut(f"not valid: {validation.errors[0].kind}")
        request = read_request(document)
        assert not isinstance(request, list)
        query = compiled(request, self.source, "sqlite")
        if query.not_executable:
            raise LeftOut(_not_executable(query.not_executable[0]))
        rows = self.rows(query.sql)
        if not same_rows(results, rows, sql):
            here = same_rows(results[:1], rows[:1], sql)
            raise LeftOut("rows differ on a replica" if here else "rows differ")

    def rows(self, sql: str) -> list[RunResult]:
        """The rows on the packaged database and on each replica."""
        return [database.run(sql, max_rows=100_000) for database in self.databases]


def _not_executable(said: str) -> str:
    known = [reason for part, reason in _NOT_EXECUTABLE.items() if part in said]
    return known[0] if known else f"not executable: {one_line(said, 100)}"


def same_rows(gold: list[RunResult], other: list[RunResult], sql: str) -> bool:
    """Are the results the same by the rule ``bag``, with the columns in the same order?"""
    if not get_rule("bag").judge(gold, other, gold_sql=sql):
        return False
    places = range(len(gold[0].columns))
    return all(suites_match(_only(gold, i), _only(other, i), ordered=False) for i in places)


def _only(results: list[RunResult], place: int) -> list[RunResult]:
    return [
        replace(result, columns=(result.columns[place],), rows=tuple((row[place],) for row in result.rows))
        for result in results
    ]
