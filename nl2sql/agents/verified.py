"""Verified queries before a controller: SQL that somebody vouches for answers its own question.

>>> from nl2sql.agents.controllers import get_controller
>>> reusing(get_controller("single_shot").run).__name__
'single_shot'

With ``knowledge.verified`` a question that asks the same as one of the file
(``benchmarks.verified.alike``) gets its SQL, run in the sandbox like any other; no model is asked.
The trace, the decision log and ``Episode.flags["verified"]["reused"]`` say so, and
``flags["verified"]["stale"]`` what of the file runs no more. A benchmark's question is the
controller's. In a conversation a question of the file is whole, whatever came before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from nl2sql.agents.context.few_shot import prompt_pair
from nl2sql.agents.context.knowledge import relevance
from nl2sql.agents.failures import cut_rows, run_bounded
from nl2sql.agents.record import Episode
from nl2sql.agents.task import takes_no_sql
from nl2sql.benchmarks.verified import alike, read_verified
from nl2sql.config import Config, KnowledgeConfig
from nl2sql.interfaces import USER, Controller, Database, EventSink, Question, Resources, no_sink
from nl2sql.sql.same import normalise_sql

FLAG = "verified"  # of an episode


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
                episode.flags[FLAG] = {**episode.flags.get(FLAG, {}), "stale": stale}
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
    told: dict[str, Any] = {**query.to_dict(), "alike": round(share, 2)}
    reason = "the same words" if share == 1 else f"all but an opening or articles ({share:.0%} of the words)"
    seen = {"success": True, "sql": query.sql, "rows": len(result.rows)}
    record = {
        "step": 0,
        "action": "verified_query",
        "args": {"question": query.question},
        "observation": seen,
    }
    entry = {"step": 0, "decision": "verified_query", "reason": reason, "status": "accept", "data": told}
    for event in (record, entry):
        sink({"question": question.id or question.text, **event})
    episode = Episode(
        question,
        "",
        sql=query.sql,
        columns=result.columns,
        rows=result.rows,
        finish="verified",
        trace=[record],
        decision_log=[entry],
        flags={FLAG: {"reused": told}, **cut_rows(result)},
    )
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
    ``agents.opening.open_task``. One without a word in common is not shown, nor is a benchmark's
    question or gold shown to itself.
    """
    queries = read_verified(settings.verified).usable(database)
    scores = relevance(question.text, [query.question for query in queries])
    golds = {normalise_sql(gold) for gold in question.gold}
    near: dict[str, tuple[str, str]] = {}
    for at in sorted(range(len(queries)), key=lambda at: -scores[at]):
        query = queries[at]
        itself = question.split != USER and alike(question.text, query.question) > 0
        if scores[at] == 0 or itself or normalise_sql(query.sql) in golds:
            continue
        solved = Question(query.question, database.name, query.name, gold=(query.sql,))
        pair = (shown or prompt_pair)(solved)
        if pair is None or not fits("\n\n".join("\n".join(told) for told in [*near.values(), pair])):
            continue
        near[query.question] = pair
        if len(near) == settings.examples:
            break
    return dict(reversed(near.items()))
