"""Are a benchmark's golds fit to score with? No model is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.benchmarks.core import left_out_reason
from nl2sql.benchmarks.slips import TEXTS, TODAY, depends_on_today, without_slips
from nl2sql.errors import DatabaseError, Nl2SqlError
from nl2sql.eval.rules import gold_order, placed, results_match
from nl2sql.interfaces import Benchmark, Question
from nl2sql.sql.features import UNKNOWN, hardness

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import QueryPool

FOUND_HERE = ("db_missing", "no_gold")  # reasons that no benchmark declares: they are faults, not known exceptions
ORDERS = (None, 0, 1)  # physical row orders that golds are run on: reversed, and two at random


@dataclass(frozen=True)
class Fault:
    """One reason why a question's gold cannot be relied on."""

    id: str
    db_id: str
    reason: str


def check_questions(
    benchmark: Benchmark,
    questions: Sequence[Question],
    *,
    timeout_s: float = 30.0,
    max_rows: int = 100_000,
    pool: QueryPool | None = None,
    progress: bool = False,
) -> list[Fault]:
    """Faults of the golds: does not run, no rows, another answer under another row order, wrong difficulty; and what
    runs and does not answer (``slips``): NULL stands first, numbers stand as text, today's date.

    Questions that the benchmark itself flags (``benchmarks.scorable``) are passed over. Every accepted gold is run;
    that it returns rows is asked of the first only.
    """
    if pool is None:
        from nl2sql.databases.sqlite.database import default_pool

        pool = default_pool()
    wanted = [q for q in questions if (left_out_reason(q) or "no_gold") in FOUND_HERE]
    checker = _Checker(benchmark, pool, timeout_s, max_rows)
    for db_id in dict.fromkeys(question.db_id for question in wanted):
        checker.prepare(db_id)
    with ThreadPoolExecutor(8, thread_name_prefix="check") as threads:
        by_question: Any = threads.map(lambda question: list(checker.faults(question)), wanted)
        if progress:
            from tqdm.auto import tqdm

            by_question = tqdm(by_question, total=len(wanted), desc="checking", unit="item")
        return [fault for faults in by_question for fault in faults]


class _Checker:
    def __init__(self, benchmark: Benchmark, pool: QueryPool, timeout_s: float, max_rows: int) -> None:
        self.benchmark, self.pool = benchmark, pool
        self.bounds: dict[str, Any] = {"timeout_s": timeout_s, "max_rows": max_rows}
        self.paths: dict[str, tuple[Path, list[Path]]] = {}
        self.troubles: dict[str, str] = {}

    def prepare(self, db_id: str) -> None:
        """Find the database and build its reordered copies."""
        from nl2sql.databases.sqlite.files import sqlite_file
        from nl2sql.eval.replicas import shuffled_copies

        try:
            database = self.benchmark.database(db_id)
            path = sqlite_file(database)
            if path is None:
                raise DatabaseError(
                    f"its database is one of {database.dialect}; golds are checked on SQLite files only"
                )
            self.paths[db_id] = path, shuffled_copies(path, ORDERS)
        except Nl2SqlError as error:
            self.troubles[db_id] = str(error)

    def faults(self, question: Question) -> Iterator[Fault]:
        def fault(reason: str) -> Fault:
            return Fault(question.id, question.db_id, reason)

        if not question.gold:
            yield fault("has no gold")
            return
        if question.db_id in self.troubles:
            yield fault(self.troubles[question.db_id])
            return
        for number, gold in enumerate(question.gold):
            reason = self._gold_fault(question.db_id, gold, needs_rows=number == 0)
            if reason:
                yield fault(reason if number == 0 else f"accepted gold {number + 1}: {reason}")
        level = hardness(question.gold[0])
        if question.difficulty not in (None, UNKNOWN, level):
            yield fault(f"difficulty is declared {question.difficulty}, its SQL is {level}")

    def _gold_fault(self, db_id: str, gold: str, *, needs_rows: bool) -> str | None:
        path, copies = self.paths[db_id]
        result = self.pool.run(path, gold, **self.bounds)
        if not result.success:
            return f"does not run: {result.error}"
        if result.truncated:
            return f"returns more than {self.bounds['max_rows']} rows"
        if needs_rows and not result.rows:
            return "returns no rows"
        if depends_on_today(gold):
            return TODAY
        for reason, *pair in without_slips(gold):
            other, as_it_is = (self.pool.run(path, sql, **self.bounds) for sql in pair)
            order = gold_order(gold, result) if reason == TEXTS else {"ordered": False}
            if other.success and as_it_is.success and not results_match(as_it_is, other, **order):
                return reason
        for copy in copies:
            other = self.pool.run(copy, gold, **self.bounds)
            if other.error_kind == "unknown_table":  # a virtual table, which the copies leave out
                continue
            if not other.success:
                return f"does not run on reordered rows: {other.error}"
            if not results_match(result, other, ordered=False):
                return "the answer depends on the order of rows (LIMIT over ties, or a bare column beside GROUP BY)"
            order = gold_order(gold, result)
            if not results_match(result, other, **order) and not results_match(
                placed(gold, result, lambda sql: self.pool.run(path, sql, **self.bounds)), other, **order
            ):
                return "ORDER BY leaves ties by a key that is not in the result: other right answers differ in order"
        return None
