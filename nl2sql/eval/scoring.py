"""Executing predictions and golds, each (database, statement) once, and judging them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.exact import exact_match
from nl2sql.eval.rules import gold_order, results_match, suites_match
from nl2sql.eval.scores import ItemScore, Scores
from nl2sql.hardness import hardness
from nl2sql.interfaces import Benchmark, Question, RunResult

if TYPE_CHECKING:
    from nl2sql.query_runner import QueryPool

T = TypeVar("T")
ROW_ORDERS = (None, 0, 1, 2)  # reversed, and at random
THREADS = 8  # they wait for the pool's worker processes, which are the real limit


def score(
    benchmark: Benchmark,
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    *,
    replicas: int = 5,
    timeout_s: float = 30.0,
    max_rows: int = 100_000,
    pool: QueryPool | None = None,
    progress: bool = False,
    seed: int = 0,
) -> Scores:
    """Score ``predictions`` (question id -> SQL) on exactly the ``questions`` given (see ``benchmarks.scorable``).

    A missing or blank prediction is wrong; an item whose golds all fail is wrong and has ``gold_error``.
    ``replicas`` perturbed replicas per database (built with ``seed`` on first use) decide TS; 0 leaves TS out.
    ``timeout_s`` and ``max_rows`` bound each statement. Failures of databases and statements are recorded in the
    items; UsageError for impossible arguments.
    """
    if replicas < 0:
        raise UsageError(f"replicas {replicas} is negative; expected 0 (no TS) or more")
    if timeout_s <= 0 or max_rows < 1:
        raise UsageError(f"timeout {timeout_s} s and max_rows {max_rows}: both must be above 0")
    if pool is None:
        from nl2sql.query_runner import default_pool

        pool = default_pool()
    ids = Counter(question.id for question in questions)
    if twice := [id_ for id_, count in ids.items() if count > 1]:
        raise UsageError(f"question id {twice[0]!r} occurs {ids[twice[0]]} times; ids must be unique")
    judge = _Judge(benchmark, questions, pool, replicas, timeout_s, max_rows, seed)
    by_database = sorted(range(len(questions)), key=lambda index: questions[index].db_id)  # frees results early
    items: list[ItemScore | None] = [None] * len(questions)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="score") as threads:
        futures = {
            index: threads.submit(judge.item, questions[index], predictions.get(questions[index].id))
            for index in by_database
        }
        for index, future in _with_progress(futures, progress):
            items[index] = future.result()
    return Scores(
        [item for item in items if item is not None],
        replicas=replicas,
        missing=[id_ for id_ in ids if id_ not in predictions],
        surplus=sorted(set(predictions) - set(ids)),
        warnings=judge.warnings,
    )


def _with_progress(futures: dict[int, Future[ItemScore]], progress: bool) -> Any:
    if not progress:
        return futures.items()
    from tqdm.auto import tqdm

    return tqdm(futures.items(), total=len(futures), desc="scoring", unit="item")


class _Judge:
    """Judges single items from many threads; results are kept until the last item of their database is done."""

    def __init__(
        self,
        benchmark: Benchmark,
        questions: Sequence[Question],
        pool: QueryPool,
        replicas: int,
        timeout_s: float,
        max_rows: int,
        seed: int,
    ) -> None:
        self.benchmark, self.pool, self.replicas, self.seed = benchmark, pool, replicas, seed
        self.timeout_s, self.max_rows = timeout_s, max_rows
        self.warnings: list[str] = []
        self._once = _Once(Counter(question.db_id for question in questions))

    def item(self, question: Question, prediction: str | None) -> ItemScore:
        """One item's verdicts; never raises for what a prediction, gold or database does."""
        try:
            return self._judge(question, prediction)
        finally:
            self._once.done(question.db_id)

    def _judge(self, question: Question, prediction: str | None) -> ItemScore:
        sql = prediction if prediction is not None else ""
        blank = ("missing", "no prediction for this id") if prediction is None else ("empty", "blank prediction")
        path, trouble = self._path(question.db_id)
        level = question.difficulty or (hardness(question.gold[0]) if question.gold else None)
        em = bool(sql.strip()) and any(exact_match(gold, sql) for gold in question.gold)
        if path is None:
            kind, error = blank if not sql.strip() else ("database", trouble)
            return self._item(question, sql, level, em=em, error=error, error_kind=kind, gold_error=trouble)
        golds = {gold: self._run(question.db_id, path, gold) for gold in question.gold}
        usable = {gold: result for gold, result in golds.items() if _usable(result)}
        gold_error = None if usable else _gold_error(golds)
        if not sql.strip():
            return self._item(question, sql, level, error=blank[1], error_kind=blank[0], gold_error=gold_error)
        result = self._run(question.db_id, path, sql)
        if not _usable(result):
            error, kind = _failure(result)
            return self._item(
                question, sql, level, em=em, error=error, error_kind=kind, seconds=result.seconds, gold_error=gold_error
            )
        matching = {g: r for g, r in usable.items() if results_match(r, result, **gold_order(g, r))}
        ts, used = (False, 0) if self.replicas else (None, None)
        if self.replicas and matching:
            ts, used = self._holds_on_replicas(question.db_id, path, matching, sql, result)
        return ItemScore(
            question.id,
            question.db_id,
            sql,
            va=True,
            em=em,
            ex=bool(matching),
            ts=ts,
            ts_replicas=used,
            hardness=level,
            seconds=round(result.seconds, 4),
            gold_error=gold_error,
        )

    def _item(
        self, question: Question, sql: str, level: str | None, *, em: bool = False, seconds: float = 0.0, **why: Any
    ) -> ItemScore:
        """An item whose prediction did not run."""
        ts = False if self.replicas else None
        return ItemScore(
            question.id,
            question.db_id,
            sql,
            va=False,
            em=em,
            ex=False,
            ts=ts,
            hardness=level,
            seconds=round(seconds, 4),
            **why,
        )

    def _holds_on_replicas(
        self, db_id: str, path: Path, golds: Mapping[str, RunResult], sql: str, on_original: RunResult
    ) -> tuple[bool, int]:
        """Whether one gold is matched on the original and every replica under one column assignment, and how many
        replicas took part.

        A replica says nothing, and is passed over, where the gold itself fails there, or where the two differ and
        the gold's own answer depends on the physical order of rows (a LIMIT that cuts through ties).
        """
        replicas = self._replicas(db_id, path)
        if replicas is None:
            return False, 0
        for gold, gold_on_original in golds.items():
            order = gold_order(gold, gold_on_original)
            ours, theirs = [gold_on_original], [on_original]
            for replica in replicas:
                expected = self._run(db_id, replica, gold)
                if not _usable(expected):
                    continue
                found = self._run(db_id, replica, sql)
                if not results_match(expected, found, **order):
                    if self._rests_on_row_order(db_id, replica, gold, expected):
                        continue
                    break
                ours.append(expected)
                theirs.append(found)
            else:
                if suites_match(ours, theirs, **order):
                    return True, len(ours) - 1
        return False, len(replicas)

    def _rests_on_row_order(self, db_id: str, replica: Path, gold: str, expected: RunResult) -> bool:
        from nl2sql.replicas import shuffled_copy

        for seed in ROW_ORDERS:
            copy = self._once.get(db_id, (seed, replica), partial(shuffled_copy, replica, seed=seed))
            other = self._run(db_id, copy, gold)
            if _usable(other) and not results_match(expected, other, **gold_order(gold, expected)):
                return True
        return False

    def _run(self, db_id: str, path: Path, sql: str) -> RunResult:
        return self._once.get(
            db_id,
            (str(path), sql),
            lambda: self.pool.run(path, sql, timeout_s=self.timeout_s, max_rows=self.max_rows),
        )

    def _path(self, db_id: str) -> tuple[Path | None, str | None]:
        def find() -> tuple[Path | None, str | None]:
            try:
                database: Any = self.benchmark.database(db_id)
                return Path(database.path), None
            except Nl2SqlError as error:
                self.warnings.append(f"database {db_id!r}: {error}")
                return None, str(error)

        return self._once.get(db_id, "path", find)

    def _replicas(self, db_id: str, path: Path) -> list[Path] | None:
        def build() -> list[Path] | None:
            from nl2sql.replicas import perturbed_replicas

            try:
                return perturbed_replicas(path, self.replicas, seed=self.seed)
            except Nl2SqlError as error:
                self.warnings.append(f"no replicas of {db_id!r}, TS counts as failed there: {error}")
                return None

        return self._once.get(db_id, "replicas", build)


class _Once:
    """Computes each value once, whichever thread asks first, and forgets a group when its last item is done."""

    def __init__(self, items_left: Counter[str]) -> None:
        self._items_left = items_left
        self._futures: dict[str, dict[Hashable, Future[Any]]] = {}
        self._lock = threading.Lock()

    def get(self, group: str, key: Hashable, compute: Callable[[], T]) -> T:
        with self._lock:
            known = self._futures.setdefault(group, {})
            future: Future[T] | None = known.get(key)
            mine = future is None
            if future is None:
                future = known[key] = Future()
        if mine:
            try:
                future.set_result(compute())
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    def done(self, group: str) -> None:
        with self._lock:
            self._items_left[group] -= 1
            if self._items_left[group] <= 0:
                self._futures.pop(group, None)


def _usable(result: RunResult) -> bool:
    return result.success and not result.truncated


def _failure(result: RunResult) -> tuple[str, str]:
    if result.truncated:
        return result.error or f"more than {len(result.rows)} rows", "too_many_rows"
    return result.error or "failed", result.error_kind or "other"


def _gold_error(golds: Mapping[str, RunResult]) -> str:
    if not golds:
        return "the question has no gold"
    return _failure(next(iter(golds.values())))[0]
