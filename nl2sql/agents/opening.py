"""The beginning of every controller: arguments checked, the schema read, and its texts written within the window.

task = open_task(question, resources, config)
link(task)  # task.schema_text_focus: the tables that matter to the question
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from nl2sql.agents import prompts, verified
from nl2sql.agents.context import grounding, knowledge
from nl2sql.agents.resources import completed, fitted
from nl2sql.agents.task import Task, takes_no_sql
from nl2sql.config import Config, KnowledgeConfig
from nl2sql.databases import schema
from nl2sql.errors import UsageError
from nl2sql.interfaces import Question, Resources

TOOL_NAME = re.compile(r"[A-Za-z_]\w*")  # as an action is written and read
NO_SCHEMA = "(the schema is not shown)"


def open_task(
    question: Question,
    resources: Resources,
    config: Config,
    shown: Callable[[Question], tuple[str, str] | None] | None = None,
) -> Task:
    """Read the schema and write its texts within the model's window.

    shown: a few-shot example as the prompt shows it (question, answer), None for one that cannot be shown; without
    it, question and SQL.

    Raises UsageError for an empty question or one that leaves no room for the schema, DatabaseError.
    """
    _check_arguments(question, resources, config)
    config = fitted(config, resources)
    resources = completed(resources, config)
    text, evidence = question.text.strip(), question.evidence if config.schema_text.evidence else ""
    nlq = prompts.question_text(text, evidence)
    if not text:
        raise UsageError("the question is empty; example: nl2sql ask 'How many orders were shipped?' --db FILE.sqlite")
    window = resources.model.context_window

    def count(text: str) -> int:
        return resources.model.count_tokens([{"role": "user", "content": text}])

    tokens = count(nlq)
    if tokens > window // 8:
        raise UsageError(
            f"the question is {len(question.text):,} characters ({tokens:,} tokens); with a window of {window:,} "
            f"tokens {resources.model.name} takes questions of at most {window // 8:,} tokens: shorten it"
        )
    text_config = config.schema_text
    dialect = resources.database.dialect
    if config.constrains_sql and dialect != "sqlite":
        known = f"constrain {config.constrain} knows SQLite only"
        raise UsageError(f"{known}, and {resources.database.name!r} is {dialect}; use action")
    described, settings = resources.database.schema(), config.knowledge
    asked, (facts, flags) = nlq, _facts(nlq, described, settings, count, window // 8)
    if facts:
        nlq = prompts.question_text(text, "\n".join(filter(None, (evidence, facts))))
    values: Sequence[grounding.Match] = ()
    if text_config.values and not takes_no_sql(resources.database):
        read = nlq if settings.values else asked
        nlq, values = grounding.with_values(nlq, resources.database, text_config.values, read)
    samples = schema.column_samples(resources.database, described, text_config.samples) if text_config.samples else None
    if not described.tables:
        raise UsageError(f"database {resources.database.name!r} has no tables; nothing can be asked of it")
    budget = min(text_config.max_tokens, window // 4)
    summary = "\n".join(f"{t.name}: {', '.join(c.name for c in t.columns)}" for t in described.tables)
    if text_config.form == "none":
        full = summary = NO_SCHEMA
    else:
        full = schema.budget_schema(
            described, count, budget, text_config.form, samples, descriptions=text_config.descriptions
        )
    task = Task(
        question=question,
        resources=resources,
        config=config,
        schema=described,
        samples=samples,
        nlq=nlq,
        schema_text_full=full,
        schema_text_focus=full,
        schema_summary=summary if count(summary) <= budget else full,
        values=values,
        flags=flags,
    )

    def fits(text: str) -> bool:
        return count(text) <= window // 8

    if config.few_shot.k:
        from nl2sql.agents.context import few_shot

        pool, pair = resources.examples, shown or few_shot.prompt_pair
        chosen = few_shot.choose(question, resources.database, pool, config, fits, pair)
        task.examples = [written for example in chosen if (written := pair(example)) is not None]
        task.flags["few_shot"] = [example.id for example in chosen]
    if settings.verified and settings.examples and not takes_no_sql(resources.database):
        near = verified.examples_for(question, resources.database, settings, fits, shown)
        task.examples = [*task.examples, *near.values()]
        task.flags[verified.FLAG] = {"examples": list(near)}
    return task


def _facts(
    nlq: str,
    described: schema.Schema,
    settings: KnowledgeConfig,
    count: Callable[[str], int],
    most: int,
) -> tuple[str, dict[str, Any]]:
    """What is known of the database and ``nlq`` is about, as lines, and the episode's flag of it."""
    if not (settings.file or settings.descriptions):
        return "", {}
    facts = knowledge.facts_for(settings.file, described, descriptions=settings.descriptions)
    about = knowledge.chosen(facts, nlq, count, min(settings.max_tokens, most))
    return knowledge.lines(about), {"knowledge": {"facts": len(about), "of": len(facts)}}


def _check_arguments(question: Question, resources: Resources, config: Config) -> None:
    """The usual slips of a notebook, each with the call that was meant."""
    if not isinstance(question.text, str):
        raise UsageError(f"the question is a {type(question.text).__name__}; expected text or a Question")
    if not hasattr(resources.database, "schema"):
        raise UsageError(f"database={resources.database!r} is no database; pass nl2sql.SqliteDatabase('FILE.sqlite')")
    if not hasattr(resources.model, "generate"):
        raise UsageError(f"model={resources.model!r} is no model; pass nl2sql.load_model('smollm2-135m')")
    for name in resources.tools:
        if not TOOL_NAME.fullmatch(name):
            raise UsageError(f"the tool {name!r} cannot be called: give it a name of letters, digits and _")
    if not isinstance(config, Config):
        raise UsageError(f"config is a {type(config).__name__}; pass nl2sql.Config(react=nl2sql.ReactConfig(...))")


def link(task: Task) -> dict[str, Any]:
    """``{schema_text, changed}``: the focus text; sets ``task.schema_text_focus``."""
    task.schema_text_focus, changed = focus_text(task, task.tables_kept)
    return {"schema_text": task.schema_text_focus, "changed": changed}


def focus_text(task: Task, keep: int) -> tuple[str, bool]:
    """The schema text of the ``keep`` tables that matter most (0: of all), and whether any is left out."""
    focus = task.linked(keep)
    changed, form = len(focus.tables) < len(task.schema.tables), task.config.schema_text.form
    if form == "none" or not changed:
        return task.schema_text_full, changed
    return _within_budget(task, focus, form), changed


def other_orders(task: Task, count: int) -> list[str]:
    """Up to ``count`` further texts of the focused tables, in other orders of them, drawn by the question's words.

    Fewer where the tables have fewer orders, none without a schema text. Where not all tables fit into
    ``schema_text.max_tokens``, another order shows other tables.
    """
    form = task.config.schema_text.form
    if form == "none" or not count:
        return []
    focus = task.linked(task.tables_kept)
    tables, random = list(focus.tables), Random(task.question.text)
    seen = {tuple(table.name for table in tables)}
    wanted = min(count + 1, math.factorial(len(tables)))
    orders = []
    while len(seen) < wanted:
        random.shuffle(tables)
        names = tuple(table.name for table in tables)
        if names not in seen:
            seen.add(names)
            orders.append(_within_budget(task, schema.Schema(tuple(tables), focus.dialect), form))
    return orders


def _within_budget(task: Task, shown: schema.Schema, form: schema.Form) -> str:
    model = task.resources.model
    return schema.budget_schema(
        shown,
        lambda text: model.count_tokens([{"role": "user", "content": text}]),
        min(task.config.schema_text.max_tokens, model.context_window // 4),
        form,
        task.samples,
        descriptions=task.config.schema_text.descriptions,
    )
