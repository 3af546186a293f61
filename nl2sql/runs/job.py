"""What is to be carried out, and the executor that carries it out: this process, or the workers of a cluster.

A ``Cell`` is one run as it was asked for: ``nl2sql eval`` has one, a run with seeds one per seed, an ablation one per
line of its table. A ``Job`` is the part of a cell that an executor is handed: one controller, and its questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nl2sql.agents.controllers import NamedController
from nl2sql.agents.record import Episode
from nl2sql.config import Config
from nl2sql.eval.settings import Judge
from nl2sql.interfaces import Benchmark, Gate, Model, Question, Tool
from nl2sql.runs.dialogues import OwnHistories
from nl2sql.runs.plan import Plan


class Executor(Judge, Protocol):
    """Whoever does the work of a run, its verdicts too: ``runs.local.Local``, ``runs.distributed.Ray``."""

    def check(self, plan: Plan, config: Config) -> None:
        """Raises UsageError for a plan that cannot be carried out there; nothing has been opened yet."""
        ...

    def episodes(self, job: Job) -> None:
        """Run every question of ``job``; ``job.keep`` takes each episode, ``job.advance`` counts it.

        Raises KeyboardInterrupt after the running episodes were cancelled.
        """
        ...


@dataclass(frozen=True)
class Cell:
    """One run: a plan under a config. ``name`` is its folder's, inside that of the other cells; "" for a run alone.

    changed: in which keys it differs from the base of its grid, as it was written.
    """

    name: str
    changed: Mapping[str, Any]
    plan: Plan
    config: Config


def not_kept(episode: Episode) -> None:
    """Where episodes go of a job that is only described."""


def no_bar(questions: int) -> None:
    """Nobody counts over several cells."""


@dataclass(frozen=True)
class Job:
    """One controller under its config, with everything opened, over the questions that are owed."""

    plan: Plan
    controller: NamedController
    config: Config
    questions: Sequence[Question]
    benchmark: Benchmark
    model: Model
    tools: Mapping[str, Tool]
    gates: Mapping[str, Gate]
    keep: Callable[[Episode], object] = not_kept
    progress: bool = False
    advance: Callable[[int], object] = no_bar  # told how many more questions are done, for a bar over several cells
    own: OwnHistories | None = None  # where turns get the history of what was answered before; None: they have theirs
