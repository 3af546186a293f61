"""What ``bench_eval.py`` measures scoring against: the reference's execution pattern, and the floor.

*reference*: a re-implementation of the execution pattern of the 2020 test-suite evaluator: per prediction and database
a fresh event loop, coroutine and connection for the gold and again for the prediction, column permutations compared,
stop at the first difference, one process. *floor*: given statements executed once per database on a persistent
connection, in several processes, without sandbox and comparison.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

Answer = tuple[str, Any]
SHUFFLES = (None, 0, 1, 2, 3, 4, 5)  # other physical orders of the same rows; None reverses


async def _exec_on_db(path: str, sql: str) -> Answer:
    try:
        connection = sqlite3.connect(path)
        connection.text_factory = lambda raw: raw.decode(errors="ignore")
        cursor = connection.cursor()
        cursor.execute(sql)
        rows = cursor.fetchall()
        cursor.close()
        connection.close()
        return "result", rows
    except Exception as error:  # noqa: BLE001  the pattern: whatever goes wrong is an answer
        return "exception", error


async def _with_timeout(path: str, sql: str, timeout: float) -> Answer:
    return await asyncio.wait_for(_exec_on_db(path, sql), timeout)


def _result_eq(gold: list[tuple], predicted: list[tuple], ordered: bool) -> bool:
    if not gold and not predicted:
        return True
    if len(gold) != len(predicted) or len(gold[0]) != len(predicted[0]):
        return False
    if not _quick_reject(gold, predicted, ordered):
        return False
    width = len(gold[0])
    columns = [set(column) for column in zip(*gold, strict=True)]
    if width <= 3:
        candidates: Iterator[tuple[int, ...]] = itertools.permutations(range(width))
    else:
        fitting = [set(range(width)) for _ in range(width)]
        for _ in range(20):
            row = random.choice(predicted)
            for i in range(width):
                for j in set(fitting[i]):
                    if row[j] not in columns[i]:
                        fitting[i].remove(j)
        candidates = (p for p in itertools.product(*fitting) if len(set(p)) == width)
    for permutation in candidates:
        permuted = [tuple(row[i] for i in permutation) for row in predicted]
        if gold == permuted if ordered else Counter(gold) == Counter(permuted):
            return True
    return False


def _quick_reject(gold: list[tuple], predicted: list[tuple], ordered: bool) -> bool:
    ours = [tuple(sorted(row, key=lambda x: str(x) + str(type(x)))) for row in gold]
    theirs = [tuple(sorted(row, key=lambda x: str(x) + str(type(x)))) for row in predicted]
    return ours == theirs if ordered else set(ours) == set(theirs)


def reference_verdict(files: Sequence[Path], gold: str, predicted: str, timeout: float = 30.0) -> tuple[bool, int]:
    """(verdict, number of the database that decided it)."""
    ordered = "order by" in gold.lower()
    for number, file in enumerate(files):
        kind, expected = asyncio.run(_with_timeout(str(file), gold, timeout))
        kind_found, found = asyncio.run(_with_timeout(str(file), predicted, timeout))
        if kind == "exception":
            continue  # theirs asserts; golds that fail on a replica say nothing
        if kind_found == "exception" or not _result_eq(expected, found, ordered):
            return False, number
    return True, len(files)


def explain_difference(file: Path, gold: str, predicted: str) -> str | None:
    """Why a prediction that differs from the gold on ``file`` may be right all the same; None where nothing says so.

    Shown by execution outside of our evaluator: the gold's own answer is another one when the same rows lie in another
    physical order, so that it is no standard; where only the order of its rows changes, the prediction must have the
    same rows.
    """
    from nl2sql.eval.replicas import shuffled_copies

    answers = []
    for copy in (file, *shuffled_copies(file, SHUFFLES)):
        with closing(sqlite3.connect(f"{copy.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            answers.append(connection.execute(gold).fetchall())
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        theirs = connection.execute(predicted).fetchall()
    tried = f"in {len(answers)} physical orders of the same rows"
    if (count := _distinct(answers, ordered=False)) > 1:
        return f"the gold has {count} different answers {tried}"
    count = _distinct(answers, ordered="order by" in gold.lower())
    if count > 1 and _result_eq(answers[0], theirs, ordered=False):
        return f"the gold's rows come in {count} different orders {tried}; the prediction has the same rows"
    return None


def _distinct(answers: Sequence[list[tuple]], *, ordered: bool) -> int:
    found: list[list[tuple]] = []
    for answer in answers:
        if not any(_result_eq(answer, other, ordered) for other in found):
            found.append(answer)
    return len(found)


def execute_all(jobs: Sequence[tuple[str, Sequence[str]]]) -> int:
    done = 0
    for uri, statements in jobs:
        connection = sqlite3.connect(uri, uri=True)
        for sql in statements:
            with suppress(sqlite3.Error):
                connection.execute(sql).fetchall()
            done += 1
        connection.close()
    return done


def floor(statements: dict[str, list[str]], processes: Any, workers: int) -> tuple[float, int]:
    """(seconds, statements): every statement once on its database, in processes that were started beforehand."""
    jobs = sorted((f"{Path(file).resolve().as_uri()}?mode=ro", sorted(sql)) for file, sql in statements.items())
    size = max(1, len(jobs) // (workers * 12))
    portions = [jobs[n : n + size] for n in range(0, len(jobs), size)]
    began = time.perf_counter()
    done = sum(processes.imap_unordered(execute_all, portions))
    return time.perf_counter() - began, done
