"""Pairs of statements on a database that takes them one at a time: any ``Database``, by its ``run`` alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from nl2sql.databases.sqlite.batch import Pair, PairsResult
from nl2sql.databases.sqlite.process import Interrupted
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database, RunResult


def run_statements(
    database: Database,
    sql: Sequence[str],
    pairs: Sequence[Pair],
    *,
    timeout_s: float,
    max_rows: int,
    stop: threading.Event,
) -> PairsResult:
    """As ``run_pairs`` on one file: every statement of ``pairs`` once. All come with their rows, and no pair with a
    verdict. A database that cannot be reached fails the statement. Raises Interrupted once ``stop`` is set."""
    outcome = PairsResult()
    for index in sorted({index for pair in pairs for index in pair[:2] if index >= 0}):
        if stop.is_set():
            raise Interrupted
        result = _run(database, sql[index], timeout_s, max_rows)
        outcome.results[0, index] = result
        outcome.executed += 1
        if result.success:
            outcome.rows_sent.add((0, index))
    outcome.verdicts = {(0, number): None for number in range(len(pairs))}
    return outcome


def _run(database: Database, sql: str, timeout_s: float, max_rows: int) -> RunResult:
    try:
        return database.run(sql, timeout_s=timeout_s, max_rows=max_rows)
    except Nl2SqlError as error:
        return RunResult(False, error=str(error), error_kind="other")
