"""Structured queries compiled and executed, held to a second, independent evaluation in pandas.

    python scripts/vizql_reference.py --cases 5000 [--seed 0] [--engine sqlite|duckdb|both] [--json]

Valid queries are drawn over the tables of ``vizql_naive/tables.py``, compiled, and executed on each engine; the rows
must be those of ``vizql_naive/evaluation.py``, which reads the query and the data source itself and shares no code
with the compiler. A query that is not executed here, or that is decided by the last bit of a float, is counted by its
reason and is no case. Exit code 1 on any difference. Ctrl-C prints what was done. No model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from vizql_naive.agreement import constructs, difference
from vizql_naive.drawn import drawn
from vizql_naive.evaluation import Answer, Naive, Undecided
from vizql_naive.tables import databases, generated, superstore

from nl2sql.interfaces import Database
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.query import Request
from nl2sql.vizql.validator import validate

ENGINES = ("sqlite", "duckdb")
SHOWN = 5  # differences that are printed


@dataclass
class Tally:
    """What became of the queries on one engine."""

    cases: int = 0
    equal: int = 0
    no_rows: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)
    not_executed: Counter[str] = field(default_factory=Counter)


@dataclass
class Report:
    """All engines, how often each construct was in a case, and the queries that were not valid (there must be none)."""

    engines: dict[str, Tally]
    constructs: Counter[str] = field(default_factory=Counter)
    not_valid: list[dict[str, Any]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.not_valid and not any(tally.differences for tally in self.engines.values())

    def to_dict(self) -> dict[str, Any]:
        engines = {
            name: vars(tally) | {"not_executed": dict(tally.not_executed.most_common())}
            for name, tally in self.engines.items()
        }
        return {"engines": engines, "constructs": dict(sorted(self.constructs.items())), "not_valid": self.not_valid}


def compare(cases: int, seed: int, engines: tuple[str, ...], report: Report, folder: Path) -> None:
    """Fill ``report`` with so many cases on each engine."""
    rows, source = generated(seed), superstore()
    naive = Naive(source, rows)
    measures = frozenset(known.fieldCaption for known in source.fields if known.fieldRole == "MEASURE")
    made = databases(folder, rows, engines)
    with contextlib.ExitStack() as stack, tqdm(total=cases, unit="case") as bar:
        for database in made.values():
            stack.callback(database.close)
        for request in _requests(cases, seed, source, rows, report):
            tables = [_compare(request, naive, made[engine], tally) for engine, tally in report.engines.items()]
            if any(tables):
                report.constructs.update(constructs(request, measures) | {f"tables joined: {max(map(len, tables))}"})
            bar.update(min(tally.cases for tally in report.engines.values()) - bar.n)


def _requests(cases: int, seed: int, source: Any, rows: Any, report: Report) -> Iterator[dict[str, Any]]:
    """Valid queries until each engine has its cases."""
    number = 0
    while min(tally.cases for tally in report.engines.values()) < cases:
        request = drawn(source, rows, f"{seed}/{number}")
        number += 1
        errors = [error for error in validate(request, source).errors if error.kind != "measure"]
        if errors:  # a measure without its function is not valid, and has its default one all the same
            report.not_valid.append({"request": request, "said": [error.message for error in errors]})
        else:
            yield request


def _compare(request: dict[str, Any], naive: Naive, database: Database, tally: Tally) -> frozenset[str]:
    """Count one request; the tables that it needs, none where it is no case."""
    made = compiled(Request.model_validate(request), naive.source, database.dialect, today=naive.today)
    if made.not_executable:
        tally.not_executed.update({_reason(reason) for reason in made.not_executable})
        return frozenset()
    try:
        answer = naive.answer(request)
    except Undecided as reason:
        tally.not_executed[str(reason)] += 1
        return frozenset()
    tally.cases += 1
    said, rows = _difference(made, answer, database)
    tally.no_rows += not answer.rows
    tally.equal += not said
    if said:
        shown = {"engine_rows": [list(row) for row in rows[:8]], "expected_rows": [list(r) for r in answer.rows[:8]]}
        tally.differences.append({"said": said, "request": request, "sql": made.sql} | shown)
    return answer.tables


def _difference(made: Any, answer: Answer, database: Database) -> tuple[str, Sequence[Any]]:
    result = database.run(made.sql)
    if not result.success:
        return f"error: {result.error}", []
    if list(made.columns) != answer.columns:
        return f"columns {made.columns}, expected {answer.columns}", result.rows
    return difference(answer, result.rows), result.rows


def _reason(text: str) -> str:
    """A reason without the field, filter or aggregate that it is about."""
    text = re.sub(r"^(?:field '.*?'|filter \d+ \(\w+\)): ", "", text)
    return re.sub(r"^[A-Z]+\(.*?\): | \([A-Z]+\(.*\)\)$", "", text)


def shown(report: Report) -> Iterator[str]:
    """The lines of a report."""
    for engine, tally in report.engines.items():
        counts = f"{tally.cases:,} cases, {tally.equal:,} equal, {len(tally.differences):,} different"
        yield f"{engine}: {counts}, {tally.no_rows:,} of them without rows"
        yield from (f"  not compared: {count:,} {reason}" for reason, count in tally.not_executed.most_common())
        for one in tally.differences[:SHOWN]:
            yield from ("", f"  different: {one['said']}", f"  {json.dumps(one['request'])}", f"  {one['sql']}")
            yield from (f"  {engine}: {one['engine_rows']}", f"  expected: {one['expected_rows']}")
    yield from (f"not valid: {one}" for one in report.not_valid[:SHOWN])
    width = max(map(len, report.constructs), default=0)
    yield from ("", "constructs in these cases")
    yield from (f"  {name:{width}} {count:6,}" for name, count in sorted(report.constructs.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=[*ENGINES, "both"], default="both")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    if arguments.cases < 1:
        parser.error(f"--cases {arguments.cases}: expected at least 1; try --cases 5000")
    engines = ENGINES if arguments.engine == "both" else (arguments.engine,)
    report, stopped = Report({engine: Tally() for engine in engines}), False
    with tempfile.TemporaryDirectory() as folder:
        try:
            compare(arguments.cases, arguments.seed, engines, report, Path(folder))
        except KeyboardInterrupt:
            stopped = True
    print(json.dumps(report.to_dict(), default=str) if arguments.json else "\n".join(shown(report)))
    sys.exit(130 if stopped else 0 if report.good else 1)


if __name__ == "__main__":
    main()
