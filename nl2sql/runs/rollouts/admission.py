"""Which questions of a benchmark may be learned from: its training split, and golds that earn the full reward.

>>> admissible_split("spider", {"train": ["1"], "holdout": ["2"]}, None)
'train'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nl2sql.benchmarks import left_out_reason
from nl2sql.config import Config
from nl2sql.databases.schema import quote_text
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Benchmark, Question, Row, RunResult
from nl2sql.repair.corpus import LEARNING_SPLITS

PREFERRED = ("train", "training", "train_spider", "train_others", "dev", "development")
WRITTEN = 100  # rows; a query with more of them written into it is none that a policy finds


def admissible_split(name: str, splits: Mapping[str, Sequence[str]], asked: str | None) -> str:
    """The split that an environment takes: the one asked for by name, else one that is for learning.

    Raises UsageError where there is none, for one that the benchmark has not, and for ``all`` where that may hold
    questions that are for testing.
    """
    if not splits and asked != "all":
        raise UsageError(f"benchmark {name!r} has no splits: split='all' takes every question")
    others = [split for split in splits if split not in LEARNING_SPLITS]
    if asked == "all" and "all" not in splits and others:
        raise UsageError(f"split 'all' of {name} holds {', '.join(others)}; name one split: {', '.join(splits)}")
    if asked is not None and asked != "all" and asked not in splits:
        raise UsageError(f"benchmark {name!r} has no split {asked!r}; it has: {', '.join(splits)}")
    if asked is not None:
        return asked
    for split in PREFERRED:
        if split in splits:
            return split
    raise UsageError(
        f"benchmark {name} has no split for training; it has: {', '.join(splits)}. A split that is for "
        f"testing must be asked for by name: split={next(iter(splits))!r}"
    )


def admitted(
    benchmark: Benchmark, questions: Iterable[Question], config: Config
) -> tuple[dict[str, Question], dict[str, int]]:
    """(question id -> question, reason -> number of questions left out).

    A gold must earn EX, and TS where replicas are asked for. A gold without rows, or with nothing but NULL, is left out
    as well: any query that finds nothing would be right. So is one whose rows, written down, earn TS (``constant``).
    """
    reasons: Counter[str] = Counter()
    candidates: list[Question] = []
    constants: dict[str, list[str]] = {}  # question id -> the rows of each gold, as a query that reads no table
    for question in questions:
        found = _results(benchmark, question)
        if isinstance(found, str):
            reasons[found] += 1
            continue
        candidates.append(question)
        short = [result.rows for result in found if config.eval.replicas and len(result.rows) <= WRITTEN]
        constants[question.id] = list(map(rows_as_sql, short))
    files = {"gold": {question.id: question.gold[0] for question in candidates}}
    for id_, statements in constants.items():
        for number, sql in enumerate(statements):
            files.setdefault(f"constant {number}", {})[id_] = sql
    items = judge(benchmark, candidates, files, Settings(config.eval, causes=False)).items if candidates else {}
    kept: dict[str, Question] = {}
    for question in candidates:
        judged = items[question.id]
        item = judged[question.gold[0]]
        if not item.ex:
            reasons["gold_error"] += 1
        elif item.ts is not None and not (item.ts and item.ts_replicas):
            reasons["gold_fails_ts"] += 1
        elif any(judged[sql].ts for sql in constants[question.id]):
            reasons["constant"] += 1
        else:
            kept[question.id] = question
    return kept, dict(sorted(reasons.items()))


def rows_as_sql(rows: Iterable[Row]) -> str:
    """A query that gives these rows and reads no table.

    >>> rows_as_sql([(2328, "O'Hara"), (None, 0.5)])
    "SELECT * FROM (VALUES (2328, 'O''Hara'), (NULL, 0.5))"
    """
    written = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    return f"SELECT * FROM (VALUES {written})"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return quote_text(value)
    return repr(value).replace("inf", "9e999")


def _results(benchmark: Benchmark, question: Question) -> str | list[RunResult]:
    """The results of a question's golds, or why nothing can be learned from it."""
    if reason := left_out_reason(question):
        return reason
    if not question.gold:
        return "no_gold"
    try:
        database = benchmark.database(question.db_id)
    except Nl2SqlError:
        return "db_missing"
    results = [database.run(gold) for gold in question.gold]
    for result in results:
        if not result.success:
            return "gold_error"
        if not any(value is not None for row in result.rows for value in row):
            return "gold_rows=0" if not result.rows else "gold_null"
    return results
