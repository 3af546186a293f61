"""The beginning of every controller: arguments checked, the schema read, and its texts written within the window.

task = open_task(question, resources, config)
link(task)  # task.schema_text_focus: the tables that matter to the question

With ``knowledge.verified`` a question that asks the same as one of the file (``benchmarks.verified.alike``) is answered
before, by that one's SQL.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.context import few_shot, grounding, knowledge
from nl2sql.agents.record import Episode, cut_rows, run_bounded
from nl2sql.agents.resources import completed, fitted
from nl2sql.agents.task import Task
from nl2sql.agents.writing import linked_schema, tables_kept, takes_no_sql
from nl2sql.benchmarks.verified import alike, read_verified
from nl2sql.config import Config, KnowledgeConfig
from nl2sql.databases import schema
from nl2sql.errors import UsageError
from nl2sql.interfaces import USER, Controller, Database, EventSink, Model, Question, Resources, no_sink
from nl2sql.sql.same import normalise_sql

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
    config, resources = fitted(config, resources), completed(resources, config)
    database, model, text_config, settings = resources.database, resources.model, config.schema_text, config.knowledge
    text, evidence = question.text.strip(), question.evidence if text_config.evidence else ""
    nlq = prompts.question_text(text, evidence)
    if not text:
        raise UsageError("the question is empty; example: nl2sql ask 'How many orders were shipped?' --db FILE.sqlite")
    window, count = model.context_window, _counter(model)
    tokens = count(nlq)
    if tokens > window // 8:
        raise UsageError(
            f"the question is {len(question.text):,} characters ({tokens:,} tokens); with a window of {window:,} "
            f"tokens {model.name} takes questions of at most {window // 8:,} tokens: shorten it"
        )
    if config.constrains_sql and database.dialect != "sqlite":
        problem = f"constrain {config.constrain} knows SQLite only"
        raise UsageError(f"{problem}, and {database.name!r} is {database.dialect}; use action")
    described, takes_sql = database.schema(), not takes_no_sql(database)
    asked, (facts, flags) = nlq, _facts(nlq, described, settings, count, window // 8)
    if facts:
        nlq = prompts.question_text(text, "\n".join(filter(None, (evidence, facts))))
    values: Sequence[grounding.Match] = ()
    if text_config.values and takes_sql:
        nlq, values = grounding.with_values(nlq, database, text_config.values, nlq if settings.values else asked)
    if not described.tables:
        raise UsageError(f"database {database.name!r} has no tables; nothing can be asked of it")
    samples = schema.column_samples(database, described, text_config.samples) if text_config.samples else None
    task = Task(question, resources, config, described, samples, nlq, values=values, flags=flags)
    full = NO_SCHEMA if text_config.form == "none" else _within_budget(task, described)
    summary = "\n".join(f"{t.name}: {', '.join(c.name for c in t.columns)}" for t in described.tables)
    short = text_config.form != "none" and count(summary) <= min(text_config.max_tokens, window // 4)
    task.schema_text_full = task.schema_text_focus = full
    task.schema_summary = summary if short else full

    def fits(text: str) -> bool:
        return count(text) <= window // 8

    if config.few_shot.k:
        pool, pair = resources.examples, shown or few_shot.prompt_pair
        chosen = few_shot.choose(question, database, pool, config, fits, pair)
        task.examples = [written for example in chosen if (written := pair(example)) is not None]
        task.flags["few_shot"] = [example.id for example in chosen]
    if settings.verified and settings.examples and takes_sql:
        near = examples_for(question, database, settings, fits, shown)
        task.examples = [*task.examples, *near.values()]
        task.flags[VERIFIED] = {"examples": list(near)}
    return task


def _counter(model: Model) -> Callable[[str], int]:
    return lambda text: model.count_tokens([{"role": "user", "content": text}])


def _facts(
    nlq: str, described: schema.Schema, settings: KnowledgeConfig, count: Callable[[str], int], most: int
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
    """``{schema_text, changed}``: the text of the tables that matter most; sets ``task.schema_text_focus``."""
    focus = linked_schema(task, tables_kept(task.config))
    changed = len(focus.tables) < len(task.schema.tables)
    whole = task.config.schema_text.form == "none" or not changed
    task.schema_text_focus = task.schema_text_full if whole else _within_budget(task, focus)
    return {"schema_text": task.schema_text_focus, "changed": changed}


def other_orders(task: Task, count: int) -> list[str]:
    """Up to ``count`` further texts of the focused tables, in other orders of them, drawn by the question's words.

    Fewer where the tables have fewer orders, none without a schema text. Where not all tables fit into
    ``schema_text.max_tokens``, another order shows other tables.
    """
    if task.config.schema_text.form == "none" or not count:
        return []
    focus = linked_schema(task, tables_kept(task.config))
    tables, random = list(focus.tables), Random(task.question.text)
    seen = {tuple(table.name for table in tables)}
    wanted = min(count + 1, math.factorial(len(tables)))
    orders = []
    while len(seen) < wanted:
        random.shuffle(tables)
        names = tuple(table.name for table in tables)
        if names not in seen:
            seen.add(names)
            orders.append(_within_budget(task, schema.Schema(tuple(tables), focus.dialect)))
    return orders


def _within_budget(task: Task, shown: schema.Schema) -> str:
    model, config = task.resources.model, task.config.schema_text
    assert config.form != "none"
    most = min(config.max_tokens, model.context_window // 4)
    count = _counter(model)
    return schema.budget_schema(shown, count, most, config.form, task.samples)


# ------------------------------------------------------------------------ verified queries before a controller
# SQL that somebody vouches for answers its own question, run in the sandbox like any other; no model is asked. The
# trace, the decision log and ``Episode.flags["verified"]["reused"]`` say so, and ``["stale"]`` what of the file runs
# no more. A benchmark's question is the controller's. In a conversation a question of the file is whole, whatever
# came before it.

VERIFIED = "verified"  # the flag of an episode


def reusing(controller: Controller) -> Controller:
    """``controller``, asked where no verified query answers. Raises UsageError for a broken file."""

    @functools.wraps(controller)
    def verified_first(question: Question, resources: Resources, config: Config) -> Episode:
        database, sink = resources.database, resources.sink
        episode, failed = verified_answer(question, database, config, sink)
        if episode is not None:
            return episode
        episode = controller(question, resources, config)
        if config.knowledge.verified and not takes_no_sql(database):
            stale = read_verified(config.knowledge.verified).stale(database) | failed
            if stale:
                episode.flags[VERIFIED] = {**episode.flags.get(VERIFIED, {}), "stale": stale}
        return episode

    return verified_first


def verified_answer(
    question: Question, database: Database, config: Config, sink: EventSink = no_sink
) -> tuple[Episode | None, dict[str, str]]:
    """The answer of the verified query that asks the same as ``question``, which needs no model.

    None where there is no such query, it does not run after all (then its question -> why), or a
    benchmark asks. Raises UsageError for a broken file.
    """
    settings = config.knowledge
    asked_by_a_user = question.split == USER and not question.previous_sql
    if not (settings.verified and settings.reuse and asked_by_a_user) or takes_no_sql(database):
        return None, {}
    queries = read_verified(settings.verified)
    found = queries.answering(question.text, database, settings.closeness)
    if found is None:
        return None, {}
    query, share = found
    result = run_bounded(database, query.sql, config.execution)
    if not result.success:
        return None, {query.question: str(result.error)}
    answer: dict[str, Any] = {**query.to_dict(), "alike": round(share, 2)}
    reason = "the same words" if share == 1 else f"all but an opening or articles ({share:.0%} of the words)"
    seen = {"success": True, "sql": query.sql, "rows": len(result.rows)}
    action = "verified_query"
    record = {"step": 0, "action": action, "args": {"question": query.question}, "observation": seen}
    entry = {"step": 0, "decision": action, "reason": reason, "status": "accept", "data": answer}
    for event in (record, entry):
        sink({"question": question.id or question.text, **event})
    episode = Episode(question, "", query.sql, finish="verified", trace=[record], decision_log=[entry])
    episode.columns, episode.rows = result.columns, result.rows
    episode.flags = {VERIFIED: {"reused": answer}, **cut_rows(result)}
    return episode, {}


def examples_for(
    question: Question,
    database: Database,
    settings: KnowledgeConfig,
    fits: Callable[[str], bool],
    shown: Callable[[Question], tuple[str, str] | None] | None = None,
) -> dict[str, tuple[str, str]]:
    """The questions of ``knowledge.verified`` likest to ``question`` -> each as a prompt shows it.

    The likest stands last. fits: whether a text of examples may go into the prompt. shown: as for
    ``agents.setup.open_task``. One without a word in common is not shown, nor is a benchmark's
    question or gold shown to itself.
    """
    queries = read_verified(settings.verified).usable(database)
    scores = knowledge.relevance(question.text, [query.question for query in queries])
    golds = {normalise_sql(gold) for gold in question.gold}
    near: dict[str, tuple[str, str]] = {}
    for at in sorted(range(len(queries)), key=lambda at: -scores[at]):
        query = queries[at]
        itself = question.split != USER and alike(question.text, query.question) > 0
        if scores[at] == 0 or itself or normalise_sql(query.sql) in golds:
            continue
        solved = Question(query.question, database.name, query.name, gold=(query.sql,))
        pair = (shown or few_shot.prompt_pair)(solved)
        if pair is None or not fits("\n\n".join("\n".join(texts) for texts in [*near.values(), pair])):
            continue
        near[query.question] = pair
        if len(near) == settings.examples:
            break
    return dict(reversed(near.items()))
