"""Conversations for any controller: a question with a history is made whole before the controller sees it.

>>> from nl2sql.agents.controllers import get_controller
>>> conversational(get_controller("single_shot").run).__name__
'single_shot'

The resolution is part of the episode: its model calls are counted and stand first in ``Episode.calls`` (kind
``resolve``), and ``Episode.flags["session"]`` says what was understood. The loop and its control get the same resolved
question, because a resolution depends on question, history, database and config alone. A question without a history
reaches the controller as the very same object, at no cost.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from nl2sql.agents import prompts
from nl2sql.agents.context.grounding import ground
from nl2sql.agents.opening import open_task
from nl2sql.agents.record import Episode
from nl2sql.agents.task import State, guard
from nl2sql.config import Config
from nl2sql.databases.validation import validate_sql
from nl2sql.interfaces import Controller, Question, Resources, without_adapter
from nl2sql.sessions.detection import cue_words, names_nothing
from nl2sql.sessions.resolution import Resolution, resolve
from nl2sql.sql.words import words


def conversational(controller: Controller) -> Controller:
    """``controller``, handed a question that is whole. Own loops work as well; what they raise is raised."""

    @functools.wraps(controller)
    def in_conversation(question: Question, resources: Resources, config: Config) -> Episode:
        if (episode := _talk(question, resources, config)) is not None:
            episode.flags["session"] = Resolution(question).flags(question)
            return episode
        resolution = resolve(question, resources, config) if question.history else Resolution(question)
        episode = _clarification(resolution, resources, config) or _edited_answer(resolution, resources, config)
        if episode is None:
            episode = controller(resolution.question, *_without_adapter(resolution, resources, config))
        episode.calls = [*resolution.calls, *episode.calls]
        episode.flags["session"] = resolution.flags(question)
        return episode

    return in_conversation


def _without_adapter(resolution: Resolution, resources: Resources, config: Config) -> tuple[Resources, Config]:
    """Beside a previous query a model answers without its adapter, and in its own style: the adapters know questions
    that stand alone (docs/sessions.md). Where the model cannot leave it out, nothing changes."""
    beside = resolution.question.previous_sql and not resolution.edited_sql
    plain = without_adapter(resources.model) if beside else resources.model
    if plain is resources.model:
        return resources, config
    style = {"constrain": "none"} if config.constrain in ("auto", "plain") else {}
    return replace(resources, model=plain), config.model_copy(update=style)


def _talk(question: Question, resources: Resources, config: Config) -> Episode | None:
    """The answer in words to "thanks", "hello", "why?", "ok great": no query, and so no turn of a session."""
    said, known = {word.partition("'")[0] for word in words(question.text)}, cue_words()
    if not said & set(known["talk"]) or said - {*known["talk"], *known["beside_talk"]}:
        return None
    tables = ", ".join(table.name for table in resources.database.schema().tables)
    return Episode(question, "", finish="talk", flags={"talk": prompts.prompt("talk", config.prompts, tables=tables)})


def _clarification(resolution: Resolution, resources: Resources, config: Config) -> Episode | None:
    """With ``session.clarify``: a question back, where nothing that was asked is in schema, values or history."""
    question, database = resolution.question, resources.database
    if not config.session.clarify or resolution.is_followup:
        return None
    schema = database.schema()
    if not names_nothing(question.text, schema) or ground(question.text, database, 1):
        return None
    tables = ", ".join(table.name for table in schema.tables)
    text = prompts.prompt("clarify", config.prompts, tables=tables)
    flags = {"clarification": text}
    return Episode(question, "", finish="clarification_needed", error="question: " + text, flags=flags)


def _edited_answer(resolution: Resolution, resources: Resources, config: Config) -> Episode | None:
    """With ``session.answer: edited``: the edited SQL as it is, where guardrails, validation and the run accept it."""
    if config.session.answer != "edited" or not resolution.edited_sql:
        return None
    # Its columns, order and limit were asked for, now or earlier; the words of the one text need not say so.
    react = config.react.model_copy(update={"postprocess": False, "projection_contract": False})
    task = open_task(resolution.question, resources, config.model_copy(update={"react": react}))
    sql, refused = guard(task, resolution.edited_sql, enabled=config.react.guardrails)
    if refused or not validate_sql(sql, task.schema, resources.database)["valid"] or not task.result_of(sql).success:
        return None
    state = State(task)
    state.record({"step": 0, "llm": resolution.edited_sql})
    state.decide(0, "generate_sql", "edited", "accept", {"operations": list(resolution.operations)})
    return task.episode(
        "",
        sql,
        raw_sql=resolution.edited_sql,
        finish="answered",
        error=None,
        steps=1,
        trace=state.trace,
        decision_log=state.decision_log,
        messages=[],
        transcript=resolution.edited_sql,
    )
