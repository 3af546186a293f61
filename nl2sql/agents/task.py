"""The work of an episode: the task (fixed, and what is counted) and the loop's state.

>>> behind_prefill("SELECT", " name FROM customers")
'SELECT name FROM customers'

A ``Task`` is opened by ``agents.setup``; it asks the model, executes queries once each, and makes the ``Episode`` in
the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.checks import constraints, guardrails
from nl2sql.agents.checks.candidate import behind_prefill
from nl2sql.agents.context import grounding, linking
from nl2sql.agents.grammars import select
from nl2sql.agents.grammars.plain_select import MOST_TABLES, plain_grammar
from nl2sql.agents.ranking import Candidate
from nl2sql.agents.record import (
    Episode,
    blaming_model,
    call_record,
    cut_rows,
    repair_counts,
    run_bounded,
    summarize_trace,
)
from nl2sql.config import Config
from nl2sql.databases import schema
from nl2sql.databases.schema import Schema
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Completion, Database, Message, Question, Resources, RunResult, Sampling, Usage
from nl2sql.sql.parse import bounded

LINK_MAX_TABLES = 6  # the specification's number
THINKING_CHARS = 20_000  # of a call's thoughts that its record keeps
BEGAN_CHARS = 500  # shown of a text past the limits
SQL_STOPS = (";\n", "\nQuestion:", "\nObservation:")


@dataclass(frozen=True)
class Draft:
    """SQL as a model wrote it: the raw text, the prefill that it begins with ("" where the model wrote that itself,
    too), and the completion behind both."""

    raw_sql: str
    prefill: str
    completion: Completion


@dataclass
class Task:
    """The facts that stay fixed while a question is worked on, and the counts."""

    question: Question
    resources: Resources
    config: Config
    schema: schema.Schema
    samples: Mapping[str, Mapping[str, Sequence[Any]]] | None
    nlq: str  # the question, with its evidence where the benchmark has any, and the values that it names
    schema_text_full: str = ""
    schema_text_focus: str = ""
    schema_summary: str = ""
    values: Sequence[grounding.Match] = ()  # those of the question's line of values
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

    @property
    def tables_kept(self) -> int:
        """The number of tables that schema linking keeps; 0: all."""
        return LINK_MAX_TABLES if self.config.react.use_link_schema else 0

    def linked(self, keep: int) -> Schema:
        """The part of the schema that the question is about, at most ``keep`` tables; 0: all."""
        return linking.link_schema(self.nlq, self.schema, keep)

    def sql_messages(
        self, constraints: Mapping[str, Any] | None, schema_text: str | None = None
    ) -> list[dict[str, str]]:
        """The prompt of ``generate_sql`` and of every baseline: the focused schema, and what the question demands."""
        demanded = constraints if self.config.react.constraints_gate else None
        shown = self.schema_text_focus if schema_text is None else schema_text
        return prompts.generate_messages(
            self.nlq, shown, demanded, self.config.prompts, self.examples, self.question.previous_sql
        )

    def write_sql(self, messages: Sequence[Message], max_new_tokens: int, **options: Any) -> list[str]:
        """Raw SQL texts for an SQL prompt: the open turn's prefill and what the model made of it."""
        return [draft.raw_sql for draft in self.complete_sql(messages, max_new_tokens, **options)]

    def complete_sql(
        self,
        messages: Sequence[Message],
        max_new_tokens: int,
        *,
        constrained: bool = False,
        **options: Any,
    ) -> list[Draft]:
        """The same with the completions behind them. constrained: under the schema's grammar in any case.

        Raises UsageError where the database takes structured queries only, EpisodeError where the model fails.
        """
        if takes_no_sql(self.resources.database):
            raise UsageError(f"{self.resources.database.name} takes no SQL; ask it with --controller vizql")
        prefill = prompts.prompt("generate_prefill", self.config.prompts)
        if self.config.constrain == "plain":
            shown = MOST_TABLES if self.schema_text_focus == self.schema_text_full else LINK_MAX_TABLES
            options["grammar"] = plain_grammar(self.linked(shown), prefill)
        elif constrained or self.config.constrain == "sql":
            options["grammar"] = select.select_grammar(self.schema, prefill)
        options |= {"prefill": prefill, "stop": SQL_STOPS, "max_new_tokens": max_new_tokens}
        drafts = []
        for completion in self.complete(messages, "sql", **options):
            if completion.thinking and not completion.text.strip():
                self.count("only_thoughts")
            raw = behind_prefill(prefill, completion.text, self.schema.dialect)
            drafts.append(Draft(raw, prefill if raw != completion.text else "", completion))
        self.drafts |= {draft.raw_sql: draft for draft in drafts}
        return drafts

    def own_text(self, raw_sql: str) -> str:
        """The part of a raw SQL text that the model wrote: without the prefill that opened its turn."""
        return raw_sql[len(self.prefill_of(raw_sql)) :]

    def prefill_of(self, raw_sql: str) -> str:
        """The prefill that a raw SQL text begins with; "" where no model wrote it."""
        return self.drafts[raw_sql].prefill if raw_sql in self.drafts else ""

    def sampling(self) -> Sampling | None:
        """The loop's sampling; None (greedy) unless ``do_sample``."""
        react = self.config.react
        return Sampling(react.temperature, react.top_p) if react.do_sample else None

    def ask(self, messages: Sequence[Message], kind: str = "act", **options: Any) -> Completion:
        """The loop's next turn: greedy, or seeded with ``do_sample``. Raises EpisodeError."""
        return self.complete(messages, kind, sampling=self.sampling(), n=1, **options)[0]

    def complete(self, messages: Sequence[Message], kind: str, **options: Any) -> list[Completion]:
        """``n`` completions of one prompt, each recorded in ``calls``. Raises EpisodeError("model", ...).

        A text past the limits (``sql.bounds``) is replaced by a line that says so, which is neither an action nor SQL,
        and counted in ``flags["past_limits"]``.
        """
        seed = self.config.seed * 1_000_003 + len(self.calls) if options.get("sampling") else None
        began = time.perf_counter()
        with blaming_model():
            model, cancel = self.resources.model, self.resources.cancel
            completions = model.generate(messages, seed=seed, cancel=cancel, **options)
            if len(completions) != (wanted := options.get("n", 1)):
                raise ModelError(f"it gave {len(completions)} completions where {wanted} were asked for")
        # act: Episode.messages and its transcript, unless they are a conversation of calls
        sent = None if kind == "act" and "tools" not in options else list(messages)
        admitted = [replace(completion, text=bounded(completion.text)) for completion in completions]
        for written, completion in zip(completions, admitted, strict=True):
            record = call_record(kind, sent, completion, round(began - self.began, 4), options.get("prefill", ""))
            if completion.text != written.text:
                self.count("past_limits")
                record["began"] = written.text[:BEGAN_CHARS]
            if written.thinking:
                record["thinking"] = written.thinking[:THINKING_CHARS]
            self.calls.append(record)
            self.usage = self.usage + completion.usage
            if completion.finish_reason == "length":
                self.count("truncated")
        return admitted

    def intent_mismatch(self, sql: str) -> str:
        """Why a query that ran is no answer to the question; "" where it may be one, or the intent gate is off."""
        if not self.config.react.intent_gate:
            return ""
        fits, reason = constraints.intent_constraints(self.question.text, sql, self.schema)
        return "" if fits else reason

    def suspected_by(self, sql: str) -> tuple[str, ...]:
        """The names of the checks that find a query that ran suspicious."""
        from nl2sql.agents.checks.suspicions import suspicions

        candidate = self.candidate(sql)
        if candidate.warnings is None:
            result, database = self.result_of(sql), self.resources.database
            warnings = suspicions(self.question.text, sql, database, result, self.config.suspicions)
            candidate.warnings = tuple(dict.fromkeys(item.check for item in warnings))
        return candidate.warnings

    def episode(
        self,
        controller: str,
        sql: str,
        *,
        raw_sql: str,
        error: str | None,
        trace: list[dict[str, Any]],
        why_none: str = "controller: no SQL",
        flags: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Episode:
        """The Episode: ``sql`` with its rows, and all that was recorded.

        raw_sql: the text behind ``sql``, its prefill included. why_none: the error of an episode without SQL.
        fields: of the Episode besides; its compliance is that of the trace, where no other is given.
        """
        result = self.result_of(sql)
        if error is None and not result.success:
            error = f"database: {result.error}" if sql else why_none
        if not sql and (thoughts := self.flags.get("only_thoughts")):
            error = f"{error}; {thoughts} of the model's answers held thoughts and nothing else: allow it more tokens "
            error += "(--server thinking=4096), or ask it not to think (--server thinking=0)"
        counts = self.flags | repair_counts(trace) | {"rejected": self.rejected} | cut_rows(result)
        fields = {"compliance": summarize_trace(trace), "flags": {**counts, **(flags or {})}, **fields}
        fields |= {"columns": result.columns, "rows": result.rows, "calls": self.calls, "usage": self.usage}
        own, prefill = self.own_text(raw_sql), self.prefill_of(raw_sql)
        seconds = time.perf_counter() - self.began
        return Episode(
            self.question, controller, sql, own, prefill, error=error, trace=trace, seconds=seconds, **fields
        )


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


def takes_no_sql(database: Database) -> bool:
    """Whether a database takes structured queries, and nothing else, as ``vizql.service`` says by its dialect."""
    return database.dialect == "vizql"


def guard(task: Task, raw_sql: str, *, enabled: bool = True) -> tuple[str, str | None]:
    """``_apply_guardrails``: ``(sql, None)`` or ``("", "clean_reject:<reason>")``; switched off: the raw text."""
    if not enabled:
        text = raw_sql.strip()
        return (text, None) if text else ("", "clean_reject:empty")
    react = task.config.react
    cut = [name for name in guardrails.CUTTABLE if not getattr(react, name)]  # by an ablation
    asked, schema = task.question.text, task.schema
    return guardrails.apply_guardrails(raw_sql, asked, schema, cut=cut, strip_unasked=react.strip_unasked)
