"""The work of an episode: the task (fixed, and what is counted) and the loop's state.

A ``Task`` is opened by ``agents.setup``; ``agents.writing`` has a model write SQL for it, and ``agents.record`` makes
the ``Episode`` of it in the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nl2sql.agents.ranking import Candidate
from nl2sql.agents.record import completions, run_bounded
from nl2sql.config import Config
from nl2sql.databases.schema import Schema
from nl2sql.interfaces import Completion, Message, Question, Resources, RunResult, Sampling, Usage

if TYPE_CHECKING:
    from nl2sql.agents.context.grounding import Match
    from nl2sql.agents.writing import Draft


@dataclass
class Task:
    """The facts that stay fixed while a question is worked on, and the counts."""

    question: Question
    resources: Resources
    config: Config
    schema: Schema
    samples: Mapping[str, Mapping[str, Sequence[Any]]] | None
    nlq: str  # the question, with its evidence where the benchmark has any, and the values that it names
    schema_text_full: str = ""
    schema_text_focus: str = ""
    schema_summary: str = ""
    values: Sequence[Match] = ()  # those of the question's line of values
    examples: Sequence[tuple[str, str]] = ()  # few-shot (question, SQL), the likest last
    usage: Usage = field(default_factory=Usage)
    calls: list[dict[str, Any]] = field(default_factory=list)  # one record per completion, see Episode.calls
    began: float = field(default_factory=time.perf_counter)
    flags: dict[str, Any] = field(default_factory=dict)
    rejected: list[dict[str, Any]] = field(default_factory=list)  # candidates that a gate or guardrail refused
    drafts: dict[str, Draft] = field(default_factory=dict)  # by raw text
    candidates: dict[str, Candidate] = field(default_factory=dict)  # by SQL: all that is known of a query
    best_sql: str | None = None  # the last SQL that ran and passed the intent check
    bootstrap_lines: int = 0  # history lines before step 0, which are never elided

    def count(self, flag: str, by: int = 1) -> None:
        self.flags[flag] = self.flags.get(flag, 0) + by

    def result_of(self, sql: str) -> RunResult:
        """The result of executing ``sql``, once per episode."""
        if not sql:
            return RunResult(False, error="no SQL", error_kind="empty")
        candidate = self.candidate(sql)
        if candidate.result is None:
            candidate.result = run_bounded(self.resources.database, sql, self.config.execution)
        return candidate.result

    def candidate(self, sql: str) -> Candidate:
        """What is known of a query in this episode."""
        return self.candidates.setdefault(sql, Candidate(sql))

    def sampling(self) -> Sampling | None:
        """The loop's sampling; None (greedy) unless ``do_sample``."""
        react = self.config.react
        return Sampling(react.temperature, react.top_p) if react.do_sample else None

    def ask(self, messages: Sequence[Message], kind: str = "act", **options: Any) -> Completion:
        """The loop's next turn: greedy, or seeded with ``do_sample``. Raises EpisodeError."""
        return completions(self, messages, kind, sampling=self.sampling(), n=1, **options)[0]


@dataclass
class State:
    """The loop's state: the specification's twelve variables (section 6) and the task they belong to."""

    task: Task
    history: list[str] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    decision_log: list[dict[str, Any]] = field(default_factory=list)
    last_sql: str | None = None
    last_error: str | None = None
    last_run: dict[str, Any] | None = None
    last_valid: bool | None = None
    last_constraints_ok: bool | None = None
    constraints: dict[str, Any] | None = None
    pending_repair_error: str | None = None
    pending_force_generate: str | None = None
    clean_reject_retries: int = 0

    @property
    def candidate_failed(self) -> bool:
        """Has the current SQL failed a validation or its run?"""
        ran = self.last_run if self.last_run and self.last_run.get("sql") == self.last_sql else {"success": True}
        return self.last_valid is False or self.last_constraints_ok is False or not ran["success"]

    def record(self, entry: dict[str, Any]) -> None:
        """Append a trace record (8.1) and pass it to the event sink."""
        self.trace.append(entry)
        self._tell(entry)

    def decide(self, step: int, decision: str, reason: str, status: str, data: Mapping[str, Any]) -> None:
        """Append a decision log entry (8.2) and pass it to the event sink."""
        entry = {"step": step, "decision": decision, "reason": reason, "status": status, "data": dict(data)}
        self.decision_log.append(entry)
        self._tell(entry)
        if status == "blocked":
            self.task.count("blocked")

    def _tell(self, event: Mapping[str, Any]) -> None:
        question = self.task.question
        self.task.resources.sink({"question": question.id or question.text, **event})

    def refuse(self, step: int, by: str, sql: str, reason: str) -> None:
        """Remember a refused candidate, so that a run can report what gates and guardrails cost and save."""
        self.task.rejected.append({"step": step, "by": by, "sql": sql, "reason": reason})
