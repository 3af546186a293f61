"""Many statements on several database files, compared where they are executed: one request, any number of results.

``run_pairs`` judges pairs (gold, prediction) on several files: equal results never leave the worker process. A worker
that dies or hangs loses nothing: what it had not reported is run again, and only the statement that it fell over
(twice, or past its deadline) is recorded as failed.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.databases.sqlite.files import reason, shown_path
from nl2sql.databases.sqlite.process import GRACE_S, MAX_SQL_CHARS, WorkerGone, check_bounds, reported
from nl2sql.databases.sqlite.worker_batch import ORDERED, ROWS, ROWS_IF_WRONG
from nl2sql.interfaces import RunResult

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import QueryPool

__all__ = ["ORDERED", "ROWS", "ROWS_IF_WRONG", "Pair", "PairsResult", "run_pairs"]

SLACK_S = 0.1  # by which a worker may be late with its news, above the grace that a single statement has
OWN_WORK_S = 30.0  # for comparing and sending large results
STUCK = 3  # workers lost beside one pair before its statements are given up
TRIES = 2  # how often a statement may be what a worker died of

Pair = tuple[int, int, int]  # indexes of gold and prediction (-1: none), flags (ORDERED | ROWS | ROWS_IF_WRONG)


@dataclass
class PairsResult:
    """The results and verdicts of ``run_pairs``. Keys are (file, index of statement or pair)."""

    results: dict[tuple[int, int], RunResult] = field(default_factory=dict)
    right: dict[int, set[int]] = field(default_factory=dict)  # file -> pairs with verdict 1
    verdicts: dict[tuple[int, int], int | None] = field(default_factory=dict)  # of the other pairs that were tried
    rows_sent: set[tuple[int, int]] = field(default_factory=set)  # results that are complete with their rows
    times_right: Counter[int] = field(default_factory=Counter)  # pair -> files on which it is right
    executed: int = 0  # statements executed, on all files together
    restarts: int = 0  # workers lost on the way

    def verdict(self, file: int, pair: int) -> int | None:
        """The verdict on a pair. Raises RuntimeError where none came: nothing is right because nothing was heard."""
        if pair in self.right.get(file, ()):
            return 1
        try:
            return self.verdicts[file, pair]
        except KeyError:
            raise RuntimeError(f"the worker gave no verdict on pair {pair} of file {file}") from None


def run_pairs(
    pool: QueryPool,
    paths: Sequence[str | Path],
    sql: Sequence[str],
    pairs: Sequence[Pair],
    *,
    timeout_s: float,
    max_rows: int,
    mode: str = "equal",
    blank: bool = False,
    stop: threading.Event | None = None,
) -> PairsResult:
    """Judge ``pairs`` of statements on every file of ``paths``; a pair that is wrong on one file is not tried further.

    ``mode`` says what equality alone may decide (``worker_batch.verdict_by_equality``); pairs with verdict None come
    with the rows of both. ``blank``: a statement without content may be right. Results of the first file are
    complete but for the rows; of the others only failures and what a verdict needs. Never raises for what a statement
    does; a file that cannot be read fails every statement on it. Raises Interrupted once ``stop`` is set.
    """
    check_bounds(timeout_s, max_rows)
    bounds = {"timeout": timeout_s, "max_rows": max_rows, "mode": mode, "blank": blank}
    return _Conversation(pool, paths, sql, pairs, bounds, stop).finish()


class _Conversation:
    """One batch, over as many workers as it takes."""

    def __init__(
        self,
        pool: QueryPool,
        paths: Sequence[str | Path],
        sql: Sequence[str],
        pairs: Sequence[Pair],
        bounds: dict[str, Any],
        stop: threading.Event | None,
    ) -> None:
        self.pool, self.pairs, self.timeout_s, self.stop = pool, pairs, bounds["timeout"], stop
        self.judged = PairsResult()
        self.dead: set[int] = set()
        self.file = self.start = 0  # where to go on
        self.lost: Counter[tuple[int, int]] = Counter()  # workers, by file and statement
        self.stuck: Counter[tuple[int, int]] = Counter()  # workers, by file and pair, where nothing was executing
        self.failed: dict[tuple[int, int], tuple[str, str]] = {}
        self.files = [self._opened(number, path, len(sql)) for number, path in enumerate(paths)]
        self.request = {
            "sql": [self._bounded(index, text) for index, text in enumerate(sql)],
            "pairs": pairs,
            **bounds,
        }

    def _opened(self, number: int, path: str | Path, statements: int) -> tuple[str, str]:
        try:
            return self.pool.readable(os.fspath(path))
        except (OSError, sqlite3.Error) as error:
            why = ("other", f"database {shown_path(path)} cannot be read: {reason(error)}")
            self.failed.update({(number, index): why for index in range(statements)})
            return "", ""

    def _bounded(self, index: int, text: str) -> str:
        if len(text) <= MAX_SQL_CHARS:
            return text
        why = ("too_large", f"the SQL has {len(text)} characters; at most {MAX_SQL_CHARS} are allowed")
        self.failed.update({(number, index): why for number in range(len(self.files))})
        return ""

    def finish(self) -> PairsResult:
        while self.file < len(self.files) and len(self.dead) < len(self.pairs):
            base = self.file
            try:
                for message in self.pool.converse(self._request(), self._silence, self.stop):
                    if message[0] == "parts":
                        for part in message[1:]:
                            self._take_in(base, *part)
                    elif message[0] == "end":
                        self.judged.executed += message[1]
                        return self.judged
            except (TimeoutError, WorkerGone) as error:
                self.judged.restarts += 1
                self._blame(base, error)
        return self.judged

    def _blame(self, base: int, error: TimeoutError | WorkerGone) -> None:
        """A statement past its deadline has failed; one that a worker dies of is run once more, elsewhere.

        Where the worker was not executing, what it died of is something of ours (a result that cannot be compared):
        that, too, has to come to an end.
        """
        place = getattr(error, "place", None)
        if place is None:
            here = (self.file, self.start)
            self.stuck[here] += 1
            if self.stuck[here] >= STUCK:
                why = ("worker_died", "the process that compared the results died")
                self.failed.update({(self.file, index): why for index in self.pairs[self.start][:2]})
            return
        at = (base + place[0], place[1])
        self.lost[at] += 1
        if isinstance(error, TimeoutError):
            self.failed[at] = ("timeout", f"no result within {self.timeout_s:g} s")
        elif self.lost[at] >= TRIES:
            self.failed[at] = ("worker_died", f"the process that executed the statement died ({error}), twice")

    def _silence(self, message: list[Any] | None) -> float:
        """Seconds to wait for the next message."""
        return OWN_WORK_S if message and message[0] == "busy" else self.timeout_s + GRACE_S + SLACK_S

    def _request(self) -> dict[str, Any]:
        return {
            **self.request,
            "files": self.files[self.file :],
            "failed": [(f - self.file, i, *why) for (f, i), why in self.failed.items() if f >= self.file],
            "dead": sorted(self.dead),
            "start": self.start,
            "report": -self.file,  # the file whose outcomes are wanted
        }

    def _take_in(self, base: int, number: int, next_pair: int, news: dict[str, Any]) -> None:
        file = base + number
        judged = self.judged
        for index, outcome in news.get("outcomes", {}).items():
            judged.results[file, int(index)] = _result(outcome, self.timeout_s)
        if right := news.get("right"):
            judged.right.setdefault(file, set()).update(right)
            judged.times_right.update(right)
        for pair, verdict in news.get("verdicts", {}).items():
            judged.verdicts[file, int(pair)] = verdict
            if verdict == 0:
                self.dead.add(int(pair))
        for index, sent in news.get("rows", {}).items():
            key = (file, int(index))
            self._add_rows(key, *sent)
        done = next_pair >= len(self.pairs)
        self.file, self.start = (file + 1, 0) if done else (file, next_pair)

    def _add_rows(self, key: tuple[int, int], columns: Iterable[str], rows: Iterable[list[Any]], cut: bool) -> None:
        known = self.judged.results.get(key)
        seconds = known.seconds if known else 0.0
        complete = RunResult(True, tuple(columns), tuple(map(tuple, rows)), truncated=cut, seconds=seconds)
        self.judged.results[key] = complete
        self.judged.rows_sent.add(key)


def _result(outcome: list[Any], timeout_s: float) -> RunResult:
    """The result without its rows."""
    if len(outcome) == 3:
        seconds, exception, message = outcome
        return reported(exception, message, timeout_s, seconds)
    seconds, columns, _, truncated = outcome
    return RunResult(True, ("",) * columns, truncated=truncated, seconds=seconds)
