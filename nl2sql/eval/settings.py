"""What scoring is given beside questions and predictions: the record of what decides verdicts, and the means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nl2sql.config import EvalConfig, build_config
from nl2sql.errors import UsageError
from nl2sql.eval.rules import get_rule
from nl2sql.eval.scores import Judged, Metric
from nl2sql.interfaces import Benchmark, Question

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.pool import QueryPool


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
