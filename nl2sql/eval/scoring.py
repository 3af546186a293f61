"""Scoring prediction files: what is to be executed, in which portions, and what the verdicts say of each item."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.exact import exact_match
from nl2sql.eval.executor import Case, Executor, Verdict
from nl2sql.eval.gold_cache import GoldCache, gold_cache
from nl2sql.eval.rules import get_rule
from nl2sql.eval.scores import ItemScore, Metric, Scores, replicas_name
from nl2sql.hardness import hardness
from nl2sql.interfaces import Benchmark, Question, RunResult
from nl2sql.stats import Interval

if TYPE_CHECKING:
    from nl2sql.query_runner import QueryPool
    from nl2sql.schema import Schema

METHODS = ("perturb", "suite")
PORTIONS = 6  # per worker, of the items of all databases: enough for the workers to end at about the same time
SMALLEST_PORTION = 12  # items
SUFFIXES = (".sqlite", ".sqlite3", ".db")

__all__ = ["Interval", "score", "score_many"]


def score(
    benchmark: Benchmark,
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    *,
    rule: str = "bag",
    replicas: int | str | Path = 5,
    method: str = "perturb",
    timeout_s: float = 30.0,
    max_rows: int = 100_000,
    pool: QueryPool | None = None,
    progress: bool = False,
    seed: int = 0,
    causes: bool = True,
    cache_golds: bool = True,
    metrics: Mapping[str, Metric] | None = None,
) -> Scores:
    """Score ``predictions`` (question id -> SQL) on exactly the ``questions`` given (see ``benchmarks.scorable``).

    A missing or blank prediction is wrong; an item whose golds all fail is wrong and has ``gold_error``.
    ``rule`` names what counts as the same answer (``eval.rules``). ``replicas`` decides TS: that many replicas per
    database (``method`` "perturb") or databases per question ("suite"), made with ``seed``; or a folder with databases
    in ``FOLDER/<db_id>/``, or one that ``nl2sql replicas build --out`` wrote; 0 leaves TS out. ``timeout_s`` and
    ``max_rows`` bound each statement. ``causes`` finds out why a wrong item is wrong; ``cache_golds`` remembers golds'
    results on disk; ``metrics`` are functions of an item, shown beside ours. Failures of databases and statements are
    recorded in the items; UsageError for impossible arguments.
    """
    return score_many(
        benchmark,
        questions,
        {"": predictions},
        rule=rule,
        replicas=replicas,
        method=method,
        timeout_s=timeout_s,
        max_rows=max_rows,
        pool=pool,
        progress=progress,
        seed=seed,
        causes=causes,
        cache_golds=cache_golds,
        metrics=metrics,
    )[""]


def score_many(
    benchmark: Benchmark,
    questions: Sequence[Question],
    predictions: Mapping[str, Mapping[str, str]],
    *,
    rule: str = "bag",
    replicas: int | str | Path = 5,
    method: str = "perturb",
    timeout_s: float = 30.0,
    max_rows: int = 100_000,
    pool: QueryPool | None = None,
    progress: bool = False,
    seed: int = 0,
    causes: bool = True,
    cache_golds: bool = True,
    metrics: Mapping[str, Metric] | None = None,
) -> dict[str, Scores]:
    """``score`` for several prediction files (name -> question id -> SQL) at once: what they share is executed once."""
    if isinstance(replicas, int) and replicas < 0:
        raise UsageError(f"replicas {replicas} is negative; expected 0 (no TS) or more")
    if timeout_s <= 0 or max_rows < 1:
        raise UsageError(f"timeout {timeout_s} s and max_rows {max_rows}: both must be above 0")
    if method not in METHODS:
        raise UsageError(f"no method is called {method!r}; choose {' or '.join(METHODS)}")
    ids = Counter(question.id for question in questions)
    if twice := [id_ for id_, count in ids.items() if count > 1]:
        raise UsageError(f"question id {twice[0]!r} occurs {ids[twice[0]]} times; ids must be unique")
    if pool is None:
        from nl2sql.query_runner import default_pool

        pool = default_pool()
    executor = Executor(pool, get_rule(rule), timeout_s, max_rows, explain=causes)
    suites = _Suites(benchmark, questions, replicas, method, seed, cache_golds)
    suites.build_for(questions, pool.workers, progress)
    judged = _judge_all(executor, suites, questions, predictions, progress)
    found = {}
    for name, given in predictions.items():
        found[name] = Scores(
            [judged[question.id][given.get(question.id)] for question in questions],
            replicas=replicas if isinstance(replicas, int) else suites.most,
            missing=[id_ for id_ in ids if id_ not in given],
            surplus=sorted(set(given) - set(ids)),
            warnings=list(suites.warnings),
            rule=rule,
            ts_name=f"TS[{rule},{replicas_name(replicas, method)}]" if suites.wanted else None,
            gold_sql={question.id: question.gold[0] for question in questions if question.gold},
            extra=dict(metrics or {}),
            executed=executor.executed,
        )
    return found


@dataclass
class _Portion:
    """Items of one database that are judged in one go."""

    db_id: str
    questions: list[Question] = field(default_factory=list)


def _judge_all(
    executor: Executor,
    suites: _Suites,
    questions: Sequence[Question],
    predictions: Mapping[str, Mapping[str, str]],
    progress: bool,
) -> dict[str, dict[str | None, ItemScore]]:
    """question id -> prediction -> its score. Every distinct prediction of a question is judged once."""
    given = {q.id: list(dict.fromkeys(p.get(q.id) for p in predictions.values())) for q in questions}
    portions = _portions(questions, given, executor, alone=suites.of_questions is not None)
    suites.expect(Counter(portion.db_id for portion in portions))
    judged: dict[str, dict[str | None, ItemScore]] = {}
    with ThreadPoolExecutor(executor.pool.workers, thread_name_prefix="score") as threads:
        futures = {threads.submit(_judge, executor, suites, portion, given): portion for portion in portions}
        with _bar(len(questions), progress) as advance:
            try:
                for future in as_completed(futures):
                    judged.update(future.result())
                    advance(len(futures[future].questions))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
    return judged


class _bar:
    """``with _bar(total, shown) as advance``."""

    def __init__(self, total: int, shown: bool) -> None:
        self.total, self.shown = total, shown

    def __enter__(self) -> Callable[[int], Any]:
        if not self.shown:
            return lambda _: None
        from tqdm.auto import tqdm

        self.tqdm = tqdm(total=self.total, desc="scoring", unit="item")
        return self.tqdm.update

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.tqdm.close()


def _portions(
    questions: Sequence[Question], given: Mapping[str, Sequence[str | None]], executor: Executor, alone: bool
) -> list[_Portion]:
    """Databases in turn, large ones cut up; questions that share a statement stay together.

    ``alone``: each question has databases of its own, and makes a portion of its own.
    """
    if alone:
        return [_Portion(question.db_id, [question]) for question in sorted(questions, key=lambda q: q.db_id)]
    size = max(SMALLEST_PORTION, len(questions) // (executor.pool.workers * PORTIONS))
    by_database: dict[str, list[Question]] = {}
    for question in questions:
        by_database.setdefault(question.db_id, []).append(question)
    portions: list[_Portion] = []
    for db_id, members in sorted(by_database.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        portions.append(_Portion(db_id))
        for group in _connected(members, given) if len(members) > size else [members]:
            if portions[-1].questions and len(portions[-1].questions) + len(group) > size:
                portions.append(_Portion(db_id))
            portions[-1].questions.extend(group)
    return portions


def _connected(questions: Iterable[Question], given: Mapping[str, Sequence[str | None]]) -> list[list[Question]]:
    """Groups of questions such that no statement is in two of them."""
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    questions = list(questions)
    for question in questions:
        for sql in (*question.gold, *given[question.id]):
            if sql and sql.strip():
                parents[root(f"sql {sql}")] = root(f"id {question.id}")
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(root(f"id {question.id}"), []).append(question)
    return list(groups.values())


def _judge(
    executor: Executor, suites: _Suites, portion: _Portion, given: Mapping[str, Sequence[str | None]]
) -> dict[str, dict[str | None, ItemScore]]:
    try:
        return _judge_portion(executor, suites, portion, given)
    finally:
        suites.done(portion.db_id)


def _judge_portion(
    executor: Executor, suites: _Suites, portion: _Portion, given: Mapping[str, Sequence[str | None]]
) -> dict[str, dict[str | None, ItemScore]]:
    """The scores of a portion; never raises for what a prediction, a gold or a database does."""
    path, trouble = suites.path(portion.db_id)
    golds = {q.id: [gold for text in q.gold for gold in executor.rule.accepts(text)] for q in portion.questions}
    cases: list[Case] = []
    places: dict[tuple[str, str], list[int]] = {}
    single: list[tuple[str | None, str | None]] = []
    for question in portion.questions:
        texts = [sql for sql in given[question.id] if sql and sql.strip()]
        for sql in texts:
            places[question.id, sql] = [len(cases) + n for n in range(len(golds[question.id]))]
            cases += [Case(gold, sql, question.text) for gold in golds[question.id]]
            if not golds[question.id]:
                single.append((None, sql))
        if not texts:
            single += [(gold, None) for gold in golds[question.id]]
    verdicts: list[Verdict] = []
    results: dict[str, RunResult] = {}
    if path is not None:
        ask = (lambda: suites.replicas(portion.db_id, portion.questions)) if suites.wanted else None
        verdicts, results = executor.judge_pairs(path, cases, single, ask, suites.cache(portion.db_id))
    judged: dict[str, dict[str | None, ItemScore]] = {}
    for question in portion.questions:
        facts = _Facts(question, golds[question.id], results, suites, trouble)
        judged[question.id] = {
            sql: facts.item(sql, [verdicts[n] for n in places.get((question.id, sql or ""), ()) if verdicts], executor)
            for sql in given[question.id]
        }
    return judged


@dataclass
class _Facts:
    """What is known of one question; ``item`` makes the score of one prediction of it."""

    question: Question
    golds: Sequence[str]
    results: Mapping[str, RunResult]
    suites: _Suites
    trouble: str | None  # why there is no database

    def item(self, prediction: str | None, verdicts: Sequence[Verdict], executor: Executor) -> ItemScore:
        sql = prediction if prediction is not None else ""
        result = self.results.get(sql) if sql.strip() else None
        error, kind = self._error(prediction, sql, result)
        best = next((v for v in verdicts if v.robust), None) or next((v for v in verdicts if v.right), None)
        ex = best is not None
        ts = bool(best and best.robust) if self.suites.wanted else None
        wrong = not ex or ts is False
        return ItemScore(
            self.question.id,
            self.question.db_id,
            sql,
            va=kind is None,
            em=bool(sql.strip()) and any(_same_text(gold, sql) for gold in self.question.gold),
            ex=ex,
            ts=ts,
            ts_replicas=best.replicas if best and self.suites.wanted else None,
            error=error,
            error_kind=kind,
            hardness=self.question.difficulty or (hardness(self.question.gold[0]) if self.question.gold else None),
            seconds=round(result.seconds, 4) if result else 0.0,
            gold_error=self._gold_error(executor),
            cause=self._cause(sql, verdicts, kind, result) if wrong and executor.explain else None,
        )

    def _error(self, prediction: str | None, sql: str, result: RunResult | None) -> tuple[str | None, str | None]:
        if prediction is None:
            return "no prediction for this id", "missing"
        if not sql.strip():
            return "blank prediction", "empty"
        if self.trouble is not None:
            return self.trouble, "database"
        return _failure(result) if result is not None and not _usable(result) else (None, None)

    def _gold_error(self, executor: Executor) -> str | None:
        if self.trouble is not None:
            return self.trouble
        if not self.golds:
            return "the question has no gold"
        # A gold that is not among the results is one whose result is known from an earlier run.
        failed = [found for gold in self.golds if (found := self.results.get(gold)) and not executor.rule.usable(found)]
        return _failure(failed[0])[0] if len(failed) == len(self.golds) else None

    def _cause(self, sql: str, verdicts: Sequence[Verdict], kind: str | None, result: RunResult | None) -> str | None:
        from nl2sql.eval.causes import cause_of

        verdict = verdicts[0] if verdicts else Verdict()
        gold = self.golds[0] if self.golds else None
        ran = verdict.gold if verdict.gold is not None else (RunResult(True) if verdict.right else None)
        predicted = (
            verdict.predicted if verdict.predicted is not None else (RunResult(True) if verdict.right else result)
        )
        schema = self.suites.schema(self.question.db_id)
        return cause_of(self.question, sql, ran, predicted, gold, schema, right=False, error_kind=kind)


class _Suites:
    """The databases of a benchmark with their replicas and caches, each looked up once, forgotten when done with."""

    def __init__(
        self,
        benchmark: Benchmark,
        questions: Sequence[Question],
        replicas: int | str | Path,
        method: str,
        seed: int,
        cache_golds: bool,
    ) -> None:
        self.benchmark, self.wanted, self.method, self.seed = benchmark, replicas, method, seed
        self.warnings: list[str] = []
        self.most = 0  # replicas of a database, at most
        self.of_questions: dict[str, list[Path] | None] | None = None  # where each question has its own databases
        self._cache_golds = cache_golds
        self._known: dict[tuple[str, str], Any] = {}
        self._locks = {question.db_id: threading.Lock() for question in questions}
        self._left: Counter[str] = Counter()
        if not isinstance(replicas, int) and not Path(replicas).is_dir():
            raise UsageError(
                f"replicas {replicas} is neither a number nor a folder; expected FOLDER/<database>/*.sqlite"
            )

    def build_for(self, questions: Sequence[Question], workers: int, progress: bool) -> None:
        """Suites belong to single questions and are built ahead, several at once; replicas are built on first use."""
        if self.method != "suite" and isinstance(self.wanted, int):
            return
        from nl2sql.suites.questions import read_index, suites_of

        if not isinstance(self.wanted, int):
            self.of_questions = read_index(Path(self.wanted))
            lost = [q.id for q in questions if self.of_questions is not None and q.id not in self.of_questions]
            if lost:
                self.warnings.append(
                    f"{self.wanted} has no databases for {len(lost)} of {len(questions)} questions (the first: "
                    f"{lost[0]}): TS counts as failed there"
                )
        elif self.wanted:
            found = suites_of(
                questions,
                lambda db_id: self.path(db_id)[0],
                self.wanted,
                seed=self.seed,
                workers=workers,
                progress=progress,
            )
            self.of_questions = found.files
            self.warnings += found.warnings
        if self.of_questions is not None:
            self.most = max((len(files or ()) for files in self.of_questions.values()), default=0)

    def expect(self, portions: Counter[str]) -> None:
        self._left = portions

    def done(self, db_id: str) -> None:
        """One portion of ``db_id`` is finished; with the last one its gold results are written."""
        with self._locks[db_id]:
            self._left[db_id] -= 1
            cache = self._known.get((db_id, "cache"))
            if isinstance(cache, GoldCache):
                cache.save()
            if self._left[db_id] <= 0:
                for what in ("cache", "schema", "replicas"):
                    self._known.pop((db_id, what), None)

    def path(self, db_id: str) -> tuple[Path | None, str | None]:
        """(file, None), or (None, what is wrong with it)."""

        def find() -> tuple[Path | None, str | None]:
            try:
                database: Any = self.benchmark.database(db_id)
                return Path(database.path), None
            except Nl2SqlError as error:
                self.warnings.append(f"database {db_id!r}: {error}")
                return None, str(error)

        found: tuple[Path | None, str | None] = self._once(db_id, "path", find)
        return found

    def schema(self, db_id: str) -> Schema | None:
        def find() -> Schema | None:
            try:
                return self.benchmark.database(db_id).schema()
            except Nl2SqlError:
                return None

        found: Schema | None = self._once(db_id, "schema", find)
        return found

    def cache(self, db_id: str) -> GoldCache | None:
        path, _ = self.path(db_id)
        if not self._cache_golds or path is None:
            return None
        found: GoldCache | None = self._once(db_id, "cache", lambda: gold_cache(path))
        return found

    def replicas(self, db_id: str, questions: Sequence[Question]) -> list[Path] | None:
        """The databases that TS of ``questions`` (of one database) rests on; None where there are none."""
        if self.of_questions is not None:
            (question,) = questions
            return self.of_questions.get(question.id)
        path, _ = self.path(db_id)

        def find() -> list[Path] | None:
            try:
                found = self._build(db_id, path) if path is not None else []
            except Nl2SqlError as error:
                self.warnings.append(f"no replicas of {db_id!r}, TS counts as failed there: {error}")
                return None
            self.most = max(self.most, len(found))
            return found

        found: list[Path] | None = self._once(db_id, "replicas", find)
        return found

    def _build(self, db_id: str, path: Path) -> list[Path]:
        if not isinstance(self.wanted, int):
            folder = Path(self.wanted) / db_id
            files = sorted(f for f in folder.glob("*") if f.suffix in SUFFIXES and not f.name.startswith("."))
            if not files:
                raise UsageError(f"no databases ({', '.join(SUFFIXES)}) in {folder}")
            return files
        from nl2sql.replicas import perturbed_replicas

        return perturbed_replicas(path, self.wanted, seed=self.seed)

    def _once(self, db_id: str, what: str, find: Callable[[], Any]) -> Any:
        with self._locks[db_id]:
            key = (db_id, what)
            if key not in self._known:
                self._known[key] = find()
            return self._known[key]


def _usable(result: RunResult) -> bool:
    return result.success and not result.truncated


def _failure(result: RunResult) -> tuple[str, str]:
    if result.truncated:
        return result.error or "more rows than the bound", "too_many_rows"
    return result.error or "failed", result.error_kind or "other"


WRITTEN = re.compile(  # what every writing of the same query shares, whatever its case, quotes and aliases
    r"\b(?:select|where|group|having|union|intersect|except|limit|distinct|between|like|exists|order)\b"
    r"|(?<![\w.])\d+(?:\.\d+)?(?![\w.])|'(?:[^']|'')*'",
    re.IGNORECASE,
)


def _same_text(gold: str, sql: str) -> bool:
    """``exact_match``, with a look at keywords and literals first: most pairs need no parsing."""
    if gold == sql:
        return True
    return _written(gold) == _written(sql) and exact_match(gold, sql)


@lru_cache(maxsize=8192)
def _written(sql: str) -> Counter[str]:
    if "--" in sql or "/*" in sql:
        sql = re.sub(r"--[^\n]*|/\*.*?\*/", " ", sql, flags=re.DOTALL)
    sql = re.sub(r'"((?:[^"\']|"")*)"', r"'\1'", sql)
    return Counter(text.lower() for text in WRITTEN.findall(sql))
