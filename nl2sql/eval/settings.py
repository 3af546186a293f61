"""What may be chosen about a scoring run, in one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nl2sql.errors import UsageError
from nl2sql.eval.scores import Judged, Metric
from nl2sql.interfaces import Benchmark, Question

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.pool import QueryPool

METHODS = ("perturb", "suite")


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
    """The keyword arguments of ``score`` and ``score_many``. UsageError for impossible ones."""

    rule: str = "bag"  # what counts as the same answer (``eval.rules``)
    replicas: int | str | Path = 5  # decides TS; 0: no TS. See ``method``; or a folder with databases in
    # FOLDER/<db_id>/, or one that ``nl2sql replicas build --out`` wrote
    method: str = "perturb"  # that many replicas per database; "suite": that many databases per question
    timeout_s: float = 30.0  # of each statement
    max_rows: int = 100_000  # of each statement's result
    pool: QueryPool | None = None  # None: the shared one
    executor: Judge | None = None  # who executes the statements; None: this process, in ``pool``
    progress: bool = False
    seed: int = 0  # of replicas and suites
    causes: bool = True  # find out why a wrong item is wrong
    cache_golds: bool = True  # remember the results of golds that take long, on disk
    metrics: Mapping[str, Metric] | None = None  # functions of an item, shown beside ours

    def __post_init__(self) -> None:
        if isinstance(self.replicas, int):
            if self.replicas < 0:
                raise UsageError(f"replicas {self.replicas} is negative; expected 0 (no TS) or more")
        elif not Path(self.replicas).is_dir():
            raise UsageError(
                f"replicas {self.replicas} is neither a number nor a folder; expected FOLDER/<database>/*.sqlite"
            )
        if self.timeout_s <= 0 or self.max_rows < 1:
            raise UsageError(f"timeout {self.timeout_s} s and max_rows {self.max_rows}: both must be above 0")
        if self.method not in METHODS:
            raise UsageError(f"no method is called {self.method!r}; choose {' or '.join(METHODS)}")
