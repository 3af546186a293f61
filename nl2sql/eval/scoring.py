"""Scoring prediction files: what is to be executed, in which portions, and what the verdicts say of each item.

>>> round(pass_at(2, [True, False, False]), 3)
0.667
>>> majority([{"rows": 0}, {"rows": 1}, {"rows": 1}, {"rows": None}], 4)
1
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from nl2sql.config import EvalConfig
from nl2sql.errors import UsageError
from nl2sql.eval.pairs import PairJudge, QueryPair, Verdict
from nl2sql.eval.rules import get_rule
from nl2sql.eval.scores import ItemScore, Judged, Scores, replicas_name
from nl2sql.eval.settings import ScoredDatabases, Settings, check_ts, settings_of
from nl2sql.interfaces import Benchmark, Question, RunResult
from nl2sql.machine import in_threads
from nl2sql.sql.features import hardness
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.same import same_text

Portion: TypeAlias = tuple[str, list[Question]]  # questions of one database that are judged in one go
Statements: TypeAlias = Mapping[str, Sequence[str | None]]  # question id -> its distinct predictions

PORTIONS = 3  # per worker, of the items of all databases: every further one loads its replicas anew
SMALLEST_PORTION = 12  # items
REPEATABLE = (None, "syntax", "unknown_table", "unknown_column", "ambiguous_column")  # outcomes that a text has always


def score(
    benchmark: Benchmark,
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    settings: Settings | None = None,
    **options: Any,
) -> Scores:
    """Score ``predictions`` (question id -> SQL) on exactly the ``questions`` given (see ``benchmarks.scorable``).

    A missing or blank prediction is wrong; an item whose golds all fail is wrong and has ``gold_error``. Failures of
    databases and statements are recorded in the items. ``options``, in place of ``settings``: fields of
    ``config.EvalConfig`` and ``eval.settings.Settings``, such as ``rule="bag"``, ``replicas=5``, ``method="perturb"``,
    ``timeout_s=30.0``, ``max_rows=100_000``, ``causes=True``; UsageError for impossible ones.
    """
    return score_many(benchmark, questions, {"": predictions}, settings, **options)[""]


def score_many(
    benchmark: Benchmark,
    questions: Sequence[Question],
    predictions: Mapping[str, Mapping[str, str]],
    settings: Settings | None = None,
    **options: Any,
) -> dict[str, Scores]:
    """``score`` for several prediction files (name -> question id -> SQL) at once: what they share is executed once."""
    means = settings or settings_of(**options)
    chosen = means.chosen
    rule = get_rule(chosen.rule).name
    ids = Counter(question.id for question in questions)
    if twice := [id_ for id_, count in ids.items() if count > 1]:
        raise UsageError(f"question id {twice[0]!r} occurs {ids[twice[0]]} times; ids must be unique")
    for answers in predictions.values():
        if strange := [key for key in answers if not isinstance(key, str)]:
            raise UsageError(f"predictions have the id {strange[0]!r}; ids are texts: {str(strange[0])!r}")
    find = means.executor.verdicts if means.executor else judge
    judged = find(benchmark, questions, predictions, means)
    shared: dict[str, Any] = {
        "replicas": chosen.replicas if isinstance(chosen.replicas, int) else judged.most,
        "rule": rule,
        "ts_name": _ts_name(chosen, rule),
        "gold_sql": {question.id: question.gold[0] for question in questions if question.gold},
        "extra": dict(means.metrics or {}),
        "executed": judged.executed,
    }
    return {
        name: Scores(
            [judged.items[question.id][answers.get(question.id)] for question in questions],
            missing=[id_ for id_ in ids if id_ not in answers],
            surplus=sorted(set(answers) - set(ids)),
            warnings=list(judged.warnings),
            **shared,
        )
        for name, answers in predictions.items()
    }


def metric_names(chosen: EvalConfig) -> list[str]:
    """The metrics of a scoring, before it is done. Raises UsageError for an unknown rule."""
    rule = get_rule(chosen.rule).name
    return list(Scores([], rule=rule, ts_name=_ts_name(chosen, rule)).columns())


def _ts_name(chosen: EvalConfig, rule: str) -> str | None:
    return f"TS[{rule},{replicas_name(chosen.replicas, chosen.method)}]" if chosen.replicas else None


def judge(
    benchmark: Benchmark,
    questions: Sequence[Question],
    predictions: Mapping[str, Mapping[str, str]],
    settings: Settings,
) -> Judged:
    """Execute and compare everything here, in ``settings.pool``. Every distinct prediction of a question once."""
    pool = settings.pool
    if pool is None:
        from nl2sql.databases.sqlite.database import default_pool

        pool = default_pool()
    chosen = settings.chosen
    check_ts(benchmark, questions, chosen)
    judging = PairJudge(pool, get_rule(chosen.rule), chosen.timeout_s, chosen.max_rows, explain=settings.causes)
    databases = ScoredDatabases(benchmark, questions, settings, pool.workers)
    statements = {q.id: list(dict.fromkeys(p.get(q.id) for p in predictions.values())) for q in questions}
    portions = _portions(questions, pool.workers, alone=databases.of_questions is not None)
    databases.left = Counter(db_id for db_id, _ in portions)
    items: dict[str, dict[str | None, ItemScore]] = {}
    parse_bounded("SELECT 1")  # imported by several threads at once, sqlglot's modules may fail
    from tqdm.auto import tqdm

    with tqdm(total=len(questions), desc="scoring", unit="item", disable=not settings.progress) as bar:
        jobs = [partial(_judge, judging, databases, portion, statements) for portion in portions]
        for number, scores in in_threads(jobs, pool.workers, judging.stop):
            items.update(scores)
            bar.update(len(portions[number][1]))
    return Judged(items, databases.warnings, databases.most, judging.executed)


def _portions(questions: Sequence[Question], workers: int, alone: bool) -> list[Portion]:
    """Databases in turn, large ones cut up, where questions of one gold lie side by side.

    ``alone``: each question has databases of its own, and makes a portion of its own.
    """
    size = 1 if alone else max(SMALLEST_PORTION, len(questions) // (workers * PORTIONS))
    by_database: dict[str, list[Question]] = {}
    for question in sorted(questions, key=lambda q: q.gold[:1]):
        by_database.setdefault(question.db_id, []).append(question)
    databases = sorted(by_database.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return [(db_id, of[at : at + size]) for db_id, of in databases for at in range(0, len(of), size)]


def _judge(
    judging: PairJudge, databases: ScoredDatabases, portion: Portion, statements: Statements
) -> dict[str, dict[str | None, ItemScore]]:
    """The scores of a portion; never raises for what a prediction, a gold or a database does."""
    db_id, questions = portion
    database, trouble = databases.original(db_id)
    golds = {q.id: [gold for text in q.gold for gold in judging.rule.accepts(text)] for q in questions}
    cases: list[QueryPair] = []
    places: dict[tuple[str, str], list[int]] = {}
    single: list[tuple[str | None, str | None]] = []
    for question in questions:
        texts = [sql for sql in statements[question.id] if sql and sql.strip()]
        for sql in texts:
            places[question.id, sql] = [len(cases) + n for n in range(len(golds[question.id]))]
            cases += [QueryPair(gold, sql, question.text) for gold in golds[question.id]]
            if not golds[question.id]:
                single.append((None, sql))
        if not texts:
            single += [(gold, None) for gold in golds[question.id]]
    verdicts: list[Verdict] = []
    results: dict[str, RunResult] = {}
    judged: dict[str, dict[str | None, ItemScore]] = {}
    try:
        if database is not None:
            ask = partial(databases.replicas, db_id, questions) if databases.wanted else None
            verdicts, results = judging.judge_pairs(database, cases, single, ask)
        for question in questions:
            facts = _Facts(question, golds[question.id], results, databases, trouble, judging)
            judged[question.id] = {
                sql: facts.item(sql, [verdicts[n] for n in places.get((question.id, sql or ""), ()) if verdicts])
                for sql in statements[question.id]
            }
    finally:
        databases.done(db_id)
    return judged


@dataclass
class _Facts:
    """The facts of one question; ``item`` makes the score of one prediction of it."""

    question: Question
    golds: Sequence[str]
    results: Mapping[str, RunResult]
    databases: ScoredDatabases
    trouble: str | None  # why there is no database
    judging: PairJudge

    def __post_init__(self) -> None:
        # A gold that is not among the results is one whose result is known from an earlier run.
        results = (self.results.get(gold) for gold in self.golds)
        self.failed = [result for result in results if result is not None and not self.judging.rule.usable(result)]
        self.gold_error = self._gold_error()

    def item(self, prediction: str | None, verdicts: Sequence[Verdict]) -> ItemScore:
        sql = prediction or ""
        result = self.results.get(sql) if sql.strip() else None
        error, kind = self._error(prediction, sql, result)
        best = next((v for v in verdicts if v.robust), None) or next((v for v in verdicts if v.right), None)
        ex = best is not None
        ts = bool(best and best.robust) if self.databases.wanted else None
        wrong = not ex or ts is False
        return ItemScore(
            self.question.id,
            self.question.db_id,
            sql,
            va=kind is None,
            em=not self._other_text(sql, ex, kind) and any(same_text(gold, sql) for gold in self.question.gold),
            ex=ex,
            ts=ts,
            ts_replicas=best.replicas if best and self.databases.wanted else None,
            error=error,
            error_kind=kind,
            hardness=self.question.difficulty or (hardness(self.question.gold[0]) if self.question.gold else None),
            seconds=round(result.seconds, 4) if result else 0.0,
            gold_error=self.gold_error,
            cause=self._cause(sql, verdicts, kind, result) if wrong and self.judging.explain else None,
        )

    def _other_text(self, sql: str, ex: bool, kind: str | None) -> bool:
        """Whether the outcomes alone say that ``sql`` is no gold's text, which takes longer to find out by parsing."""
        if not sql.strip():
            return True
        return not ex and bool(self.golds) and not self.failed and kind in REPEATABLE and "random" not in sql.lower()

    def _error(self, prediction: str | None, sql: str, result: RunResult | None) -> tuple[str | None, str | None]:
        if prediction is None:
            return "no prediction for this id", "missing"
        if not sql.strip():
            return "blank prediction", "empty"
        if self.trouble is not None:
            return self.trouble, "database"
        failed = result is not None and (result.truncated or not result.success)
        return _failure(result) if result is not None and failed else (None, None)

    def _gold_error(self) -> str | None:
        if self.trouble is not None:
            return self.trouble
        if not self.golds:
            return "the question has no gold"
        return _failure(self.failed[0])[0] if len(self.failed) == len(self.golds) else None

    def _cause(self, sql: str, verdicts: Sequence[Verdict], kind: str | None, result: RunResult | None) -> str | None:
        from nl2sql.eval.causes import cause_of

        verdict = verdicts[0] if verdicts else Verdict()
        gold = self.golds[0] if self.golds else None
        equal = RunResult(True) if verdict.right else None
        schema = self.databases.schema(self.question.db_id)
        ran, predicted = verdict.gold or equal, verdict.predicted or equal or result
        return cause_of(self.question, sql, ran, predicted, gold, schema, right=False, error_kind=kind)


def _failure(result: RunResult) -> tuple[str, str]:
    if result.truncated:
        return result.error or "more rows than the bound", "too_many_rows"
    return result.error or "failed", result.error_kind or "other"


# --------------------------------------------------------------- drawn samples: pass@k and majority
# An episode keeps what it wrote in ``flags["samples"]``: ``[{"sql", "rows"}, ...]`` in the order of
# writing, with one number in ``rows`` for all that gave the same rows, None where a query did not
# run. pass@k (arXiv 2107.03374) is the chance that one of k samples, drawn from those of the
# question, is right; with all of them, whether any is. majority@k is the verdict on the rows that
# most of the first k gave, ties going to the earliest. A question with fewer than k samples counts
# with all that it has, one without any as wrong.

Samples = Mapping[str, Sequence[Mapping[str, Any]]]  # question id -> what was written


def sample_metrics(
    benchmark: Benchmark, questions: Sequence[Question], drawn: Samples, settings: Settings
) -> dict[str, dict[str, Any]]:
    """Metric -> its interval as data, clustered by database; {} where nothing was drawn. Scored without TS."""
    most = max(map(len, drawn.values()), default=0)
    if most < 2:
        return {}
    ks = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    files = {
        str(place): {id_: samples[place]["sql"] for id_, samples in drawn.items() if place < len(samples)}
        for place in range(most)
    }
    chosen = settings.chosen.model_copy(update={"replicas": 0})
    scored = score_many(benchmark, questions, files, replace(settings, chosen=chosen, causes=False, metrics=None))
    first = scored["0"]
    right = {
        item.id: [scored[str(place)].items[number].ex for place in range(len(drawn.get(item.id, ())))]
        for number, item in enumerate(first.items)
    }
    values = {f"pass@{k}": {id_: pass_at(k, verdicts) for id_, verdicts in right.items()} for k in ks}
    for k in ks[2:]:
        places = {id_: majority(drawn.get(id_, ()), k) for id_ in right}
        values[f"majority@{k}"] = {id_: float(at is not None and right[id_][at]) for id_, at in places.items()}
    metrics = {name: (lambda item, of=of: of[item.id]) for name, of in values.items()}
    shown = first.metrics(metrics)
    return {name: shown[name].to_dict() for name in values}


def pass_at(k: int, right: Sequence[bool]) -> float:
    """The chance that k of the samples, drawn without putting back, hold a right one; 0 without samples."""
    n, wrong = len(right), len(right) - sum(right)
    k = min(k, n)
    return 1 - math.comb(wrong, k) / math.comb(n, k)


def majority(samples: Sequence[Mapping[str, Any]], k: int) -> int | None:
    """The place of the first sample with the rows that most of the first ``k`` gave; None where none ran."""
    rows = [sample["rows"] for sample in samples[:k]]
    votes = Counter(given for given in rows if given is not None)  # the earliest of equals comes first
    return rows.index(votes.most_common(1)[0][0]) if votes else None
