"""What scoring is given beside questions and predictions: the settings that decide verdicts, and the databases."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nl2sql.config import EvalConfig, build_config
from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.rules import get_rule
from nl2sql.eval.scores import Judged, Metric
from nl2sql.interfaces import Benchmark, Database, Question

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema
    from nl2sql.databases.sqlite.database import QueryPool


T = TypeVar("T")


class Judge(Protocol):
    """Whoever finds verdicts in place of this process; every executor of ``runs`` does."""

    def verdicts(
        self,
        benchmark: Benchmark,
        questions: Sequence[Question],
        predictions: Mapping[str, Mapping[str, str]],
        settings: Settings,
    ) -> Judged:
        """What ``eval.scoring.judge`` gives for the same arguments."""
        ...


@dataclass(frozen=True)
class Settings:
    """A record of ``config.EvalConfig``, which decides the verdicts, and the means of this one scoring.

    Raises UsageError for an unknown rule, or a folder of replicas that is not there.
    """

    chosen: EvalConfig = field(default_factory=EvalConfig)
    pool: QueryPool | None = None  # None: the shared one
    executor: Judge | None = None  # who executes the statements; None: this process, in ``pool``
    progress: bool = False
    seed: int = 0  # of replicas and suites
    causes: bool = True  # find out why a wrong item is wrong
    metrics: Mapping[str, Metric] | None = None  # functions of an item, shown beside ours

    def __post_init__(self) -> None:
        get_rule(self.chosen.rule)
        replicas = self.chosen.replicas
        if isinstance(replicas, str) and not Path(replicas).is_dir():
            raise UsageError(
                f"replicas {replicas} is neither a number nor a folder; expected FOLDER/<database>/*.sqlite"
            )


def settings_of(**options: Any) -> Settings:
    """The settings of keyword arguments, each a field of ``EvalConfig`` or of ``Settings``. Raises UsageError."""
    means = {name: options.pop(name) for name in Settings.__dataclass_fields__ if name in options}
    return Settings(chosen=build_config({"eval": options}).eval, **means) if options else Settings(**means)


# ----------------------------------------------------- the databases: originals, replicas or suites

SUFFIXES = (".sqlite", ".sqlite3", ".db")


def check_ts(benchmark: Benchmark, questions: Sequence[Question], chosen: EvalConfig) -> None:
    """Raises UsageError where TS is asked of a database that is no SQLite file, or of golds that are tables of results:
    there are no replicas of it, and no other answers on them."""
    if chosen.replicas and (tables := [question.id for question in questions if question.meta.get("gold_tables")]):
        raise UsageError(
            f"TS needs golds that are SQL, and that of {tables[0]} is a table of results; leave TS out with --replicas "
            "0 (-c eval.replicas=0)"
        )
    for db_id in dict.fromkeys(question.db_id for question in questions) if chosen.replicas else ():
        try:
            database = benchmark.database(db_id)
        except Nl2SqlError:
            continue  # scoring says what is wrong with it
        if sqlite_file(database) is None:
            raise UsageError(
                f"TS needs SQLite files, and {db_id} is a {database.dialect} database; leave TS out with --replicas 0 "
                "(-c eval.replicas=0)"
            )


class ScoredDatabases:
    """The databases of a benchmark with their replicas, each looked up once, forgotten when done with.

    Suites belong to single questions and are built here, several at once; replicas are built on first use.
    """

    def __init__(self, benchmark: Benchmark, questions: Sequence[Question], settings: Settings, workers: int) -> None:
        self.benchmark, self.wanted, self.seed = benchmark, settings.chosen.replicas, settings.seed
        self.warnings: list[str] = []
        self.most = 0  # replicas of a database, at most
        self.of_questions: dict[str, list[Path] | None] | None = None  # where each question has its own databases
        self._known: dict[tuple[str, str], Any] = {}
        self._locks = {question.db_id: threading.Lock() for question in questions}
        self.left: Counter[str] = Counter()  # portions of a database that are not done with
        if settings.chosen.method == "suite" or not isinstance(self.wanted, int):
            self._read_suites(questions, workers, settings.progress)

    def _read_suites(self, questions: Sequence[Question], workers: int, progress: bool) -> None:
        from nl2sql.eval.suites import read_index, suites_of

        if not isinstance(self.wanted, int):
            self.of_questions = read_index(Path(self.wanted))
            lost = [q.id for q in questions if self.of_questions is not None and q.id not in self.of_questions]
            if lost:
                self.warnings.append(
                    f"{self.wanted} has no databases for {len(lost)} of {len(questions)} questions (the first: "
                    f"{lost[0]}): TS counts as failed there"
                )
        elif self.wanted:
            means: dict[str, Any] = {"seed": self.seed, "workers": workers, "progress": progress}
            self.of_questions, warnings = suites_of(questions, self.path, self.wanted, **means)
            self.warnings += warnings
        if self.of_questions is not None:
            self.most = max((len(files or ()) for files in self.of_questions.values()), default=0)

    def done(self, db_id: str) -> None:
        """One portion of ``db_id`` is finished; with the last one its schema and replicas are forgotten."""
        with self._locks[db_id]:
            self.left[db_id] -= 1
            if self.left[db_id] <= 0:
                for what in ("schema", "replicas"):
                    self._known.pop((db_id, what), None)

    def original(self, db_id: str) -> tuple[Database | None, str | None]:
        """(database, None), or (None, what is wrong with it)."""

        def find() -> tuple[Database | None, str | None]:
            try:
                return self.benchmark.database(db_id), None
            except Nl2SqlError as error:
                self.warnings.append(f"database {db_id!r}: {error}")
                return None, str(error)

        return self._once(db_id, "original", find)

    def path(self, db_id: str) -> Path | None:
        """The SQLite file of a database; None where there is none."""
        database, _ = self.original(db_id)
        return sqlite_file(database) if database is not None else None

    def schema(self, db_id: str) -> Schema | None:
        def find() -> Schema | None:
            try:
                return self.benchmark.database(db_id).schema()
            except Nl2SqlError:
                return None

        return self._once(db_id, "schema", find)

    def replicas(self, db_id: str, questions: Sequence[Question]) -> list[Path] | None:
        """The databases that TS of ``questions`` (of one database) rests on; None where there are none."""
        if self.of_questions is not None:
            (question,) = questions
            return self.of_questions.get(question.id)
        path = self.path(db_id)

        def find() -> list[Path] | None:
            try:
                files = self._build(db_id, path) if path is not None else []
            except Nl2SqlError as error:
                self.warnings.append(f"no replicas of {db_id!r}, TS counts as failed there: {error}")
                return None
            self.most = max(self.most, len(files))
            return files

        return self._once(db_id, "replicas", find)

    def _build(self, db_id: str, path: Path) -> list[Path]:
        if not isinstance(self.wanted, int):
            folder = Path(self.wanted) / db_id
            files = sorted(f for f in folder.glob("*") if f.suffix in SUFFIXES and not f.name.startswith("."))
            if not files:
                raise UsageError(f"no databases ({', '.join(SUFFIXES)}) in {folder}")
            return files
        from nl2sql.eval.replicas import perturbed_replicas

        return perturbed_replicas(path, self.wanted, seed=self.seed)

    def _once(self, db_id: str, what: str, find: Callable[[], T]) -> T:
        with self._locks[db_id]:
            if (db_id, what) not in self._known:
                self._known[db_id, what] = find()
            known: T = self._known[db_id, what]
            return known
