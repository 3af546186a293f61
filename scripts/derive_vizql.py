"""Make data/vizql.json: structured queries for the packaged questions, each with the rows of the SQL gold.

    python scripts/derive_vizql.py               write the file, and print counts and left-outs by reason
    python scripts/derive_vizql.py --check       exit 1 unless the committed file is what would be written
    python scripts/derive_vizql.py --left-out    every question without a structured query, and why

Each SQL gold is read, written as a structured query over the data source that ``vizql.infer`` gives for its database,
validated, compiled and executed. It is kept where its rows are those of the SQL, by the rule ``bag``, on the packaged
database and on its perturbed replicas, over all of them at once; beside it, every column by itself has to equal the
SQL's column in its place, because the rule alone would take columns in another order. No model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nl2sql.benchmarks.packaged import load_packaged
from nl2sql.config import EvalConfig, VizqlConfig
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import one_line
from nl2sql.eval.replicas import perturbed_replicas
from nl2sql.eval.rules import get_rule, suites_match
from nl2sql.interfaces import Question, RunResult
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.from_sql import nullable_captions, structured
from nl2sql.vizql.infer import infer
from nl2sql.vizql.query import read_request
from nl2sql.vizql.validator import validate

FILE = Path(__file__).resolve().parents[1] / "data" / "vizql.json"
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


def derived(db_ids: Sequence[str] = ()) -> tuple[list[dict[str, Any]], list[tuple[Question, str]]]:
    """The records of the file, and the questions that are left out with their reasons, of these databases or all."""
    benchmark = load_packaged()
    provers: dict[str, Prover] = {}
    records: list[dict[str, Any]] = []
    left_out: list[tuple[Question, str]] = []
    for question in benchmark.questions:
        if db_ids and question.db_id not in db_ids:
            continue
        if question.db_id not in provers:
            provers[question.db_id] = Prover(benchmark.database(question.db_id))
        try:
            query = provers[question.db_id].prove(question.gold[0])
        except LeftOut as reason:
            left_out.append((question, str(reason)))
        else:
            records.append({"id": question.id, "split": question.split, "query": query})
    return records, left_out


def to_text(records: Sequence[dict[str, Any]]) -> str:
    """The file: a JSON list, one object per line."""
    return "[\n" + ",\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n]\n"


def counts(records: Sequence[dict[str, Any]], left_out: Sequence[tuple[Question, str]]) -> str:
    """How many questions have a query, by split, and why the others have none."""
    splits = Counter(record["split"] for record in records)
    shown = ", ".join(f"{count} {split}" for split, count in splits.items())
    lines = [f"{len(records)} of {len(records) + len(left_out)} questions have a structured query: {shown}", ""]
    reasons = Counter(reason for _, reason in left_out)
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return "\n".join([*lines, "| left out for | questions |", "|---|--:|", *(f"| {r} | {n} |" for r, n in ranked)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    parser.add_argument("--left-out", action="store_true", help="name the questions that are left out, write nothing")
    arguments = parser.parse_args()
    records, left_out = derived()
    text = to_text(records)
    if arguments.check:
        same = FILE.exists() and FILE.read_bytes() == text.encode()
        print("data/vizql.json is what would be written" if same else "differs: data/vizql.json")
        return 0 if same else 1
    if arguments.left_out:
        print("\n".join(f"{question.id}: {reason}" for question, reason in left_out))
        return 0
    FILE.write_text(text, encoding="utf-8", newline="\n")
    print(counts(records, left_out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
