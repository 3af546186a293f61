"""R-VES, BIRD's reward-based valid efficiency score: what a right prediction costs beside its gold.

An item's points are the square root of the reward for gold's cost / prediction's cost, 0 where EX is
wrong, so that the mean may be above 1. The cost is the time of execution, which differs from run
to run, or the number of steps of SQLite's virtual machine, which does not. The rewards and the
treatment of times are those of ``evaluation_ves.py`` in bird-bench/mini_dev (commit 4d970a9).

>>> [reward(ratio) for ratio in (4, 2, 1.9, 1, 0.5, 0.25, 0.1, 0)]
[1.25, 1.25, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from statistics import fmean, pstdev
from typing import Any, Literal, TypeAlias

from nl2sql.databases.sqlite.batch import run_pairs
from nl2sql.databases.sqlite.database import default_pool
from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.errors import UsageError
from nl2sql.eval.scores import ItemScore, Scores
from nl2sql.interfaces import Benchmark, Database, Question, RunResult
from nl2sql.machine import MAX_TIMEOUT_S

Cost: TypeAlias = Literal["steps", "time"]

REWARDS = ((2, 1.25), (1, 1.0), (0.5, 0.75), (0.25, 0.5))  # ratio from which on, reward
LEAST_REWARD = 0.25  # of a right prediction
REPEATS = 100  # of both statements, where they are timed
COUNTING = 30  # counting steps may take as many times as long as executing
TICK = 1e-6  # seconds: the precision of a worker's times


def reward(ratio: float) -> float:
    """The reward for a right prediction whose gold costs ``ratio`` times as much; 0 for 0."""
    if ratio == 0:
        return 0.0
    return next((points for least, points in REWARDS if ratio >= least), LEAST_REWARD)


def usual_ratio(ratios: Sequence[float]) -> float:
    """The mean of the ratios that lie less than three standard deviations from their mean.

    Of equal ratios it is their value; the official script fails on such and gives 0.
    """
    mean, most = fmean(ratios), 3 * pstdev(ratios)
    return fmean([ratio for ratio in ratios if mean - most < ratio < mean + most] or ratios)


def add_efficiency(
    benchmark: Benchmark,
    questions: Sequence[Question],
    scored: Mapping[str, Scores],
    cost: Cost,
    *,
    timeout_s: float,
    max_rows: int,
) -> None:
    """Add the metric ``R-VES[RULE,COST]`` to every one of ``scored``, the scores of ``questions``.

    Each item that is right under EX is executed again beside the question's first gold: once for
    steps, 100 times for times, or as often as ``timeout_s`` seconds allow, one at a time. One that
    fails now counts 0, with a warning. Raises UsageError for golds that are no SQL, and for steps
    of another engine.
    """
    by_id = {question.id: question for question in questions}
    measure = Measure(timeout_s, max_rows)

    @cache
    def points(id_: str, sql: str) -> float | None:
        question = by_id[id_]
        if question.meta.get("gold_tables"):
            raise UsageError(f"R-VES needs golds that are SQL, not a table as {id_}: no --rves")
        database = benchmark.database(question.db_id)
        ratio = getattr(measure, cost)(database, question.gold[0], sql)
        return None if ratio is None else math.sqrt(reward(ratio))

    for scores in scored.values():
        found = {item.id: points(item.id, item.sql) if item.ex else 0.0 for item in scores.items}
        name = f"R-VES[{scores.rule},{cost}]"
        metric = partial(_of_item, found)
        scores.extra = {**scores.extra, name: metric}  # files that were scored at once share theirs
        if failed := [id_ for id_, value in found.items() if value is None]:
            scores.warnings.append(
                f"{name}: {len(failed)} right item(s) or their golds failed when executed again "
                f"and count 0 (the first: {failed[0]}); a longer --timeout may help"
            )


def _of_item(found: Mapping[str, float | None], item: ItemScore) -> float:
    return found[item.id] or 0.0


class Measure:
    """Ratios of a gold's cost to a prediction's; None where one of them fails."""

    def __init__(self, timeout_s: float, max_rows: int) -> None:
        self.bounds: dict[str, Any] = {"timeout_s": timeout_s, "max_rows": max_rows}

    def steps(self, database: Database, gold: str, sql: str) -> float | None:
        path = sqlite_file(database)
        if path is None:
            raise UsageError(f"SQLite alone has steps, not {database.dialect}; try --rves time")
        longer = min(COUNTING * self.bounds["timeout_s"], MAX_TIMEOUT_S)
        bounds = {**self.bounds, "timeout_s": longer}
        counted = [default_pool().steps(path, text, **bounds) for text in (gold, sql)]
        if not all(result.success for result in counted):
            return None
        ours, theirs = (int(result.rows[0][0]) for result in counted)
        return ours / theirs

    def time(self, database: Database, gold: str, sql: str) -> float | None:
        ratios: list[float] = []
        end = time.monotonic() + self.bounds["timeout_s"]
        while len(ratios) < REPEATS and (not ratios or time.monotonic() < end):
            swapped = len(ratios) % 2 == 1  # the second finds the file's pages in memory
            timed = self._timed(database, gold, sql, swapped=swapped)
            if not all(result.success for result in timed):
                return None
            ours, theirs = (max(result.seconds, TICK) for result in timed)
            ratios.append(ours / theirs)
        return usual_ratio(ratios)

    def _timed(self, database: Database, gold: str, sql: str, *, swapped: bool) -> list[RunResult]:
        """Both executed, the gold first unless ``swapped``.

        Of a SQLite file in one process, which has opened it before and whose times leave out the way back.
        """
        path = sqlite_file(database)
        if path is None:
            ran = [database.run(text, **self.bounds) for text in ((sql, gold) if swapped else (gold, sql))]
            return ran[::-1] if swapped else ran
        statements = ["SELECT 1", gold, sql]
        pairs = [(0, -1, 0), (2, 1, 0) if swapped else (1, 2, 0)]
        outcome = run_pairs(default_pool(), [path], statements, pairs, **self.bounds)
        return [outcome.results[0, place] for place in (1, 2)]
