"""Which questions of a benchmark may be learned from: its training split, and golds that earn the full reward.

>>> admissible_split("spider", {"train": ["1"], "holdout": ["2"]}, None)
'train'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nl2sql.benchmarks import left_out_reason
from nl2sql.config import Config
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Benchmark, Question
from nl2sql.repair.transfer import LEARNING_SPLITS

PREFERRED = ("train", "training", "train_spider", "train_others", "dev", "development")


def admissible_split(name: str, splits: Mapping[str, Sequence[str]], asked: str | None) -> str:
    """The split that an environment takes: the one asked for by name, else one that is for learning.

    Raises UsageError where there is none, and for ``all``, which may hold questions that are for testing.
    """
    others = [split for split in splits if split not in LEARNING_SPLITS]
    if asked == "all" and "all" not in splits and others:
        raise UsageError(f"split 'all' of {name} holds {', '.join(others)}; name one split: {', '.join(splits)}")
    if asked is not None:
        return asked
    for split in PREFERRED:
        if split in splits:
            return split
    raise UsageError(
        f"benchmark {name} has no split for training; it has: {', '.join(splits) or 'none'}. A split that is for "
        f"testing must be asked for by name: split={next(iter(splits), 'test')!r}"
    )


def admitted(
    benchmark: Benchmark, questions: Iterable[Question], config: Config
) -> tuple[dict[str, Question], dict[str, int]]:
    """(question id -> question, reason -> number of questions left out).

    A gold must earn EX, and TS where replicas are asked for. A gold without rows, or with nothing but NULL, is left out
    as well: any query that finds nothing would be right.
    """
    reasons: Counter[str] = Counter()
    candidates: list[Question] = []
    for question in questions:
        if reason := left_out_reason(question) or _nothing_found(benchmark, question):
            reasons[reason] += 1
        else:
            candidates.append(question)
    golds = {question.id: question.gold[0] for question in candidates}
    items = judge(benchmark, candidates, {"": golds}, Settings(config.eval, causes=False)).items if golds else {}
    kept: dict[str, Question] = {}
    for question in candidates:
        item = items[question.id][question.gold[0]]
        if (item.ts is None and item.ex) or (item.ts and item.ts_replicas):
            kept[question.id] = question
        else:
            reasons["gold_error" if not item.ex else "gold_fails_ts"] += 1
    return kept, dict(sorted(reasons.items()))


def _nothing_found(benchmark: Benchmark, question: Question) -> str | None:
    if not question.gold:
        return "no_gold"
    try:
        database = benchmark.database(question.db_id)
    except Nl2SqlError:
        return "db_missing"
    for gold in question.gold:
        result = database.run(gold)
        if not result.success:
            return "gold_error"
        if not any(value is not None for row in result.rows for value in row):
            return "gold_rows=0" if not result.rows else "gold_null"
    return None
