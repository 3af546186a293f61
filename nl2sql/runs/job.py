"""What is to be carried out, and the executor that carries it out: this process, or the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nl2sql.agents.controllers import NamedController
from nl2sql.agents.record import Episode
from nl2sql.config import Config
from nl2sql.eval.settings import Judge
from nl2sql.interfaces import Benchmark, Gate, Model, Question, Tool
from nl2sql.runs.plan import Plan


class Executor(Judge, Protocol):
    """Whoever does the work of a run, its verdicts too: ``runs.local.Local``, ``runs.distributed.Ray``."""

    def check(self, plan: Plan, config: Config) -> None:
        """Raises UsageError for a plan that cannot be carried out there; nothing has been opened yet."""
        ...

    def episodes(self, phase: Phase) -> None:
        """Run every question of ``phase``; ``phase.keep`` takes each episode, ``phase.job.advance`` counts it.

        Raises KeyboardInterrupt after the running episodes were cancelled.
        """
        ...


def no_bar(questions: int) -> None:
    """Nobody counts over several runs."""


@dataclass(frozen=True)
class Job:
    """A plan with everything opened: what one run, or each seed of it, works with."""

    plan: Plan
    controller: NamedController
    benchmark: Benchmark
    questions: Sequence[Question]
    model: Model
    top: Path
    tools: Mapping[str, Tool]
    gates: Mapping[str, Gate]
    progress: bool
    executor: Executor
    advance: Callable[[int], object] = no_bar  # told how many more questions are done, for a bar over several runs


@dataclass(frozen=True)
class Phase:
    """One controller of a job, under its config, over the questions that are owed."""

    job: Job
    controller: NamedController
    config: Config
    questions: Sequence[Question]
    keep: Callable[[Episode], None]
