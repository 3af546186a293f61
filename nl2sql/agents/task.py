"""The work of an episode: the task (fixed, and what is counted) and the loop's state.

>>> behind_prefill("SELECT", " name FROM customers")
'SELECT name FROM customers'

A ``Task`` is opened by ``agents.opening``; it asks the model, executes queries once each, and makes the ``Episode`` in
the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nl2sql.agents import prompts
from nl2sql.agents.ahead import begun
from nl2sql.agents.checks import constraints, guardrails
from nl2sql.agents.checks.candidate import behind_prefill
from nl2sql.agents.context import grounding, linking
from nl2sql.agents.failures import blaming_model, cut_rows, run_bounded
from nl2sql.agents.grammars import select
from nl2sql.agents.grammars.plain_select import MOST_TABLES, plain_grammar
from nl2sql.agents.ranking import Candidate
from nl2sql.agents.record import Episode, call_record, repair_counts, summarize_trace
from nl2sql.config import Config
from nl2sql.databases import schema
from nl2sql.databases.schema import Schema
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Completion, Database, Message, Question, Resources, RunResult, Sampling, Usage
from nl2sql.sql.parse import bounded

if TYPE_CHECKING:
    from nl2sql.agents.checks.suspicions import Suspicion

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
    schema_text_full: str
    schema_text_focus: str
    schema_summary: str
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
    suspected: set[str] = field(default_factory=set)  # suspicions that have forced a repair

    def count(self, flag: str, by: int = 1) -> None:
        self.flags[flag] = self.flags.get(flag, 0) + by

    def result_of(self, sql: str) -> RunResult:
        """The result of executing ``sql``, once per episode."""
        if not sql:
            return RunResult(False, error="no SQL", error_kind="empty")
        known = self.candidate(sql)
        if known.result is None:
            known.result = run_bounded(self.resources.database, sql, self.config.execution)
        return known.result

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
        return prompts.generate_messages(self.nlq, shown, demanded, **self.prompt_options())

    def prompt_options(self) -> dict[str, Any]:
        """What every prompt for SQL gets beside question, schema and constraints."""
        return {
            "overrides": self.config.prompts,
            "examples": self.examples,
            "previous_sql": self.question.previous_sql,
        }

    def write_sql(self, messages: Sequence[Message], max_new_tokens: int, **options: Any) -> list[str]:
        """Raw SQL texts for an SQL prompt: the open turn's prefill and what the model made of it."""
        return [draft.raw_sql for draft in self.complete_sql(messages, max_new_tokens, **options)]

    def complete_sql(self, messages: Sequence[Message], max_new_tokens: int, **options: Any) -> list[Draft]:
        """The same with the completions behind them; options as for ``begin_sql``."""
        return self.begin_sql(messages, max_new_tokens, **options)()

    def begin_sql(
        self,
        messages: Sequence[Message],
        max_new_tokens: int,
        *,
        constrained: bool = False,
        prefill: str | None = None,
        **options: Any,
    ) -> Callable[[], list[Draft]]:
        """The same as a ``call``. constrained: under the schema's grammar in any case.

        prefill: the beginning of the answer, in place of the prompts' own. Raises UsageError where the database takes
        structured queries only.
        """
        if takes_no_sql(self.resources.database):
            raise UsageError(f"{self.resources.database.name} takes no SQL; ask it with --controller vizql")
        if prefill is None:
            prefill = prompts.prompt("generate_prefill", self.config.prompts)
        if self.config.constrain == "plain":
            shown = MOST_TABLES if self.schema_text_focus == self.schema_text_full else LINK_MAX_TABLES
            options["grammar"] = plain_grammar(self.linked(shown), prefill)
        elif constrained or self.config.constrain == "sql":
            options["grammar"] = select.select_grammar(self.schema, prefill)
        call = self.call(messages, "sql", prefill=prefill, stop=SQL_STOPS, max_new_tokens=max_new_tokens, **options)

        def ended() -> list[Draft]:
            completions = call()
            if thoughts := sum(bool(c.thinking) and not c.text.strip() for c in completions):
                self.count("only_thoughts", thoughts)
            dialect = self.schema.dialect
            joined = [(behind_prefill(prefill, completion.text, dialect), completion) for completion in completions]
            drafts = [Draft(raw, prefill if raw != completion.text else "", completion) for raw, completion in joined]
            self.drafts |= {draft.raw_sql: draft for draft in drafts}
            return drafts

        return ended

    def guardrail_options(self) -> dict[str, Any]:
        """How the guardrails are applied: those that an ablation leaves out, and whether an unasked order goes."""
        react = self.config.react
        cut = [name for name in guardrails.CUTTABLE if not getattr(react, name)]
        return {"cut": cut, "strip_unasked": react.strip_unasked}

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

    def ask(self, messages: Sequence[Message], **options: Any) -> Completion:
        """The loop's next turn: greedy, or seeded with ``do_sample``. Raises EpisodeFailed."""
        return self.ask_many(messages, "act", sampling=self.sampling(), n=1, **options)[0]

    def ask_many(self, messages: Sequence[Message], kind: str, **options: Any) -> list[Completion]:
        """``n`` completions of one prompt, each recorded in ``calls``; options as for ``call``."""
        return self.call(messages, kind, **options)()

    def call(
        self, messages: Sequence[Message], kind: str, *, before: int | None = None, **options: Any
    ) -> Callable[[], list[Completion]]:
        """``n`` completions of one prompt: a function that waits for them and records each in ``calls``.

        before: the model is asked at once, in a thread, while so many completions are still to be recorded. The
        function raises EpisodeFailed("model", ...).
        """
        at = len(self.calls) + (before or 0)
        seed = self.config.seed * 1_000_003 + at if options.get("sampling") else None
        generate = partial(self.resources.model.generate, messages, seed=seed, cancel=self.resources.cancel, **options)
        began = time.perf_counter()
        wait = generate if before is None else begun(generate)
        return lambda: self._ended(wait, messages, kind, began, options)

    def _ended(
        self,
        wait: Callable[[], list[Completion]],
        messages: Sequence[Message],
        kind: str,
        began: float,
        options: Mapping[str, Any],
    ) -> list[Completion]:
        """Every text of a model comes in here. One past the limits (``sql.bounds``) is replaced by a line that says so,
        which is neither an action nor SQL, and counted in ``flags["past_limits"]``; its call shows how it ``began``.
        """
        with blaming_model():
            completions = wait()
            if len(completions) != (wanted := options.get("n", 1)):
                raise ModelError(f"it gave {len(completions)} completions where {wanted} were asked for")
        admitted = [replace(completion, text=bounded(completion.text)) for completion in completions]
        for written, completion in zip(completions, admitted, strict=True):
            refused = completion.text != written.text
            if refused:
                self.count("past_limits")
            # act: Episode.messages and its transcript, unless they are a conversation of calls
            sent = None if kind == "act" and "tools" not in options else list(messages)
            record = call_record(kind, sent, completion, round(began - self.began, 4), options.get("prefill", ""))
            record |= {"began": written.text[:BEGAN_CHARS]} if refused else {}
            record |= {"thinking": written.thinking[:THINKING_CHARS]} if written.thinking else {}
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

    def suspicion(self, sql: str) -> str:
        """With ``react.suspicion_repair``: the first suspicion about a query that ran, "" without one. Each is told
        once: a model that answers with the same query again keeps it."""
        if not self.config.react.suspicion_repair:
            return ""
        for item in self._suspicions(sql):
            if item.text not in self.suspected:
                self.suspected.add(item.text)
                return f"{item.check}: {item.text}"
        return ""

    def suspected_by(self, sql: str) -> tuple[str, ...]:
        """The names of the checks that find a query that ran suspicious."""
        return tuple(dict.fromkeys(item.check for item in self._suspicions(sql)))

    def _suspicions(self, sql: str) -> list[Suspicion]:
        from nl2sql.agents.checks.suspicions import suspicions

        known = self.candidate(sql)
        if known.warnings is None:
            result, database = self.result_of(sql), self.resources.database
            known.warnings = suspicions(self.question.text, sql, database, result, self.config.suspicions)
        return known.warnings

    def episode(
        self,
        controller: str,
        sql: str,
        *,
        raw_sql: str,
        finish: str,
        error: str | None,
        steps: int,
        trace: list[dict[str, Any]],
        decision_log: list[dict[str, Any]],
        messages: list[dict[str, str]],
        transcript: str,
        compliance: Mapping[str, bool] | None = None,
        why_none: str = "controller: no SQL",
        flags: Mapping[str, Any] | None = None,
    ) -> Episode:
        """The Episode: ``sql`` with its rows, and all that was recorded.

        raw_sql: the text behind ``sql``, its prefill included. why_none: the error of an episode without SQL.
        compliance: of the trace, where nothing else is given.
        """
        result = self.result_of(sql)
        if error is None and not result.success:
            error = f"database: {result.error}" if sql else why_none
        if not sql and (thoughts := self.flags.get("only_thoughts")):
            error = f"{error}; {thoughts} of the model's answers held thoughts and nothing else: allow it more tokens "
            error += "(--server thinking=4096), or ask it not to think (--server thinking=0)"
        return Episode(
            question=self.question,
            controller=controller,
            sql=sql,
            raw_sql=self.own_text(raw_sql),
            prefill=self.prefill_of(raw_sql),
            columns=result.columns,
            rows=result.rows,
            error=error,
            finish=finish,
            steps=steps,
            trace=trace,
            decision_log=decision_log,
            compliance=dict(summarize_trace(trace) if compliance is None else compliance),
            messages=messages,
            transcript=transcript,
            calls=self.calls,
            usage=self.usage,
            seconds=time.perf_counter() - self.began,
            flags={
                **self.flags,
                **repair_counts(trace),
                "rejected": self.rejected,
                **cut_rows(result),
                **(flags or {}),
            },
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
    return guardrails.apply_guardrails(raw_sql, task.question.text, task.schema, **task.guardrail_options())
