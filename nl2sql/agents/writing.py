"""SQL as a model writes it for a task: the prompt, the open turn, the grammar, the guardrails.

>>> behind_prefill("SELECT", " name FROM customers")
'SELECT name FROM customers'

The tools ``generate_sql`` and ``repair_sql``, the control and the candidates write by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.checks import constraints, guardrails
from nl2sql.agents.checks.candidate import behind_prefill
from nl2sql.agents.context import linking
from nl2sql.agents.grammars import select
from nl2sql.agents.grammars.plain_select import MOST_TABLES, plain_grammar
from nl2sql.agents.record import completions
from nl2sql.agents.task import Task
from nl2sql.config import Config
from nl2sql.databases.schema import Schema
from nl2sql.errors import UsageError
from nl2sql.interfaces import Completion, Database, Message

LINK_MAX_TABLES = 6  # the specification's number
SQL_STOPS = (";\n", "\nQuestion:", "\nObservation:")


@dataclass(frozen=True)
class Draft:
    """SQL as a model wrote it: the raw text, the prefill that it begins with ("" where the model wrote that itself,
    too), and the completion behind both."""

    raw_sql: str
    prefill: str
    completion: Completion


def tables_kept(config: Config) -> int:
    """The number of tables that schema linking keeps; 0: all."""
    return LINK_MAX_TABLES if config.react.use_link_schema else 0


def linked_schema(task: Task, keep: int) -> Schema:
    """The part of the schema that the question is about, at most ``keep`` tables; 0: all."""
    return linking.link_schema(task.nlq, task.schema, keep)


def sql_messages(task: Task, demands: Mapping[str, Any] | None, schema_text: str | None = None) -> list[dict[str, str]]:
    """The prompt of ``generate_sql`` and of every baseline: the focused schema, and what the question demands."""
    demanded = demands if task.config.react.constraints_gate else None
    shown = task.schema_text_focus if schema_text is None else schema_text
    return prompts.generate_messages(
        task.nlq, shown, demanded, task.config.prompts, task.examples, task.question.previous_sql
    )


def write_sql(task: Task, messages: Sequence[Message], max_new_tokens: int, **options: Any) -> list[str]:
    """Raw SQL texts for an SQL prompt: the open turn's prefill and what the model made of it."""
    return [draft.raw_sql for draft in complete_sql(task, messages, max_new_tokens, **options)]


def complete_sql(
    task: Task, messages: Sequence[Message], max_new_tokens: int, *, constrained: bool = False, **options: Any
) -> list[Draft]:
    """The same with the completions behind them. constrained: under the schema's grammar in any case.

    Raises UsageError where the database takes structured queries only, EpisodeError where the model fails.
    """
    if takes_no_sql(task.resources.database):
        raise UsageError(f"{task.resources.database.name} takes no SQL; ask it with --controller vizql")
    prefill = prompts.prompt("generate_prefill", task.config.prompts)
    if task.config.constrain == "plain":
        shown = MOST_TABLES if task.schema_text_focus == task.schema_text_full else LINK_MAX_TABLES
        options["grammar"] = plain_grammar(linked_schema(task, shown), prefill)
    elif constrained or task.config.constrain == "sql":
        options["grammar"] = select.select_grammar(task.schema, prefill)
    options |= {"prefill": prefill, "stop": SQL_STOPS, "max_new_tokens": max_new_tokens}
    drafts = []
    for completion in completions(task, messages, "sql", **options):
        if completion.thinking and not completion.text.strip():
            task.count("only_thoughts")
        raw = behind_prefill(prefill, completion.text, task.schema.dialect)
        drafts.append(Draft(raw, prefill if raw != completion.text else "", completion))
    task.drafts |= {draft.raw_sql: draft for draft in drafts}
    return drafts


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


def intent_mismatch(task: Task, sql: str) -> str:
    """Why a query that ran is no answer to the question; "" where it may be one, or the intent gate is off."""
    if not task.config.react.intent_gate:
        return ""
    fits, reason = constraints.intent_constraints(task.question.text, sql, task.schema)
    return "" if fits else reason
