"""Are a benchmark's golds fit to score with? No model is needed.

Golds that run and do not answer are found by running them without a slip:

>>> [reason.split(":")[0] for reason, *_ in without_slips("SELECT name FROM t ORDER BY size LIMIT 1")]
['NULL stands first', 'numbers stand as text']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.benchmarks.core import left_out_reason
from nl2sql.errors import DatabaseError, Nl2SqlError
from nl2sql.eval.rules import gold_order, placed, results_match
from nl2sql.interfaces import Benchmark, Question
from nl2sql.sql.features import UNKNOWN, hardness
from nl2sql.sql.parse import parse_bounded, parse_query

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import QueryPool

FOUND_HERE = ("db_missing", "no_gold")  # reasons that no benchmark declares: they are faults, not known exceptions
NULLS = "NULL stands first: ORDER BY with LIMIT takes rows without a value (add IS NOT NULL, or NULLS LAST)"
TEXTS = "numbers stand as text: '9' is more than '10' in what is sorted, compared, or the largest (CAST them)"
TODAY = "the answer depends on today's date"
NUMBER = (  # an expression, written otherwise where it is the text of a whole or decimal number
    "CASE WHEN typeof({0}) = 'text' AND trim({0}, '+-.') <> '' AND NOT ltrim({0}, '+-') GLOB '*[^0-9.]*' "
    "AND NOT {0} LIKE '%.%.%' THEN {1} ELSE {0} END"
)
CLOCK = frozenset(("date", "time", "datetime", "julianday", "unixepoch"))  # of now where they are given nothing
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
    runs and does not answer (``without_slips``): NULL stands first, numbers stand as text, today's date.

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


# --------------------------------------------------------------------------------------- slips


def depends_on_today(sql: str) -> bool:
    """Whether a query reads the clock. False where it cannot be parsed."""
    from sqlglot import expressions as exp

    tree = parse_query(sql)
    return tree is not None and any(
        isinstance(node, exp.CurrentDate | exp.CurrentTime | exp.CurrentTimestamp)
        or (isinstance(node, exp.Literal) and node.is_string and node.this.lower() == "now")
        or (isinstance(node, exp.Func) and not any(node.iter_expressions()) and _name(node) in CLOCK)
        for node in tree.walk()
    )


def without_slips(sql: str) -> Iterator[tuple[str, str, str]]:
    """(what would be wrong, the query without it, the query beside it) for every slip that ``sql`` may have."""
    from sqlglot import expressions as exp

    tree = parse_query(sql)
    if tree is None:
        return
    if any(order.parent and order.parent.args.get("limit") for order in tree.find_all(exp.Order)):
        copy = tree.copy()
        for ordered in copy.find_all(exp.Ordered):
            ordered.set("nulls_first", False)
        yield NULLS, copy.sql("sqlite"), sql
    text, number = _sides_as(tree, "{0}"), _sides_as(tree, "CAST({0} AS NUMERIC)")
    if text != number:
        yield TEXTS, number, text


def _sides_as(tree: Any, written: str) -> str:
    """The query with each text that is a number, where it is sorted, compared or the largest, ``written`` so."""
    from sqlglot import expressions as exp

    copy = tree.copy()
    for node in list(copy.find_all(exp.Ordered, exp.Max, exp.Min, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between)):
        for key in ("this", "expression", "low", "high"):
            side = node.args.get(key)
            constant = isinstance(side, exp.Literal) and side.is_string and not isinstance(node, exp.Ordered)
            if isinstance(side, exp.Column) or constant:
                text = side.sql("sqlite")
                side.replace(parse_bounded(NUMBER.format(text, written.format(text)), "sqlite"))
    return str(copy.sql("sqlite"))


def _name(function: Any) -> str:
    return str(function.name or function.key).lower()
