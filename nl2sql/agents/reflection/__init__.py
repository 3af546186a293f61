"""Reflection and retry: an attempt is executed, judged, and made again with what went wrong (docs/reflection.md).

``reflect`` is the controller, ``stream`` the same with an event for every node. Both work on the loop's tools, prompts,
guardrails and runner; the state machine is in ``graph``, its nodes in ``nodes``, what is worth another attempt in
``errors`` and ``judge``.

Not covered: a wrong answer that runs and looks sound is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nl2sql.agents.opening import open_task
from nl2sql.agents.record import Episode
from nl2sql.agents.reflection.graph import check_installed, compiled, recursion_limit
from nl2sql.agents.reflection.state import Context, initial_state
from nl2sql.agents.task import Task
from nl2sql.config import Config
from nl2sql.interfaces import Question, Resources

__all__ = ["NodeEvent", "check_installed", "reflect", "stream"]


@dataclass(frozen=True)
class NodeEvent:
    """The change of the state by one visit of a node; the last one, of ``complete``, carries the episode."""

    node: str
    update: dict[str, Any]
    episode: Episode | None = None


def reflect(question: Question, resources: Resources, config: Config) -> Episode:
    """Answer with up to ``config.reflect.max_iterations`` generations, each judged before the next.

    Raises UsageError and DatabaseError as the loop does, and UsageError where LangGraph is not installed.
    """
    *_, last = stream(question, resources, config)
    assert last.episode is not None
    return last.episode


def stream(question: Question, resources: Resources, config: Config) -> Iterator[NodeEvent]:
    """The same as events, one for each visit of a node."""
    task = open_task(question, resources, config)
    state = initial_state(task.nlq, config.reflect.max_iterations)
    settings: Any = {"recursion_limit": recursion_limit(state["max_iterations"])}
    values: dict[str, Any] = {}
    last: dict[str, Any] = {}
    visits: Any = compiled().stream(state, settings, context=Context(task), stream_mode=["updates", "values"])
    for mode, content in visits:
        if mode == "values":
            values = content
            continue
        for node, update in content.items():
            if node == "complete":
                last = update
            else:
                yield NodeEvent(node, update)
    yield NodeEvent("complete", last, _episode(task, values))


def _episode(task: Task, values: dict[str, Any]) -> Episode:
    """The Episode of the final state: its SQL with the rows, and all that was recorded."""
    sql = values["sql_query"] or ""
    asked: list[dict[str, str]] = next((call["messages"] for call in task.calls if call["messages"]), [])
    last = {sql: values["raw_sql"] or ""} if sql else {}  # no attempt where the reflection on it failed
    raw = (last | {attempt["sql"]: attempt["raw_sql"] for attempt in values["attempts"]}).get(sql, "")
    return task.episode(
        "reflect",
        sql,
        raw_sql=raw,
        finish=values["finish"],
        error=values["failure"],
        why_none=_why_none(values),
        steps=len({record["step"] for record in values["trace"]}),
        trace=values["trace"],
        decision_log=values["decision_log"],
        messages=asked,
        transcript=raw,
        flags={"iterations": values["iteration"], "quality_score": values["quality_score"]},
    )


def _why_none(values: dict[str, Any]) -> str:
    return f"model: {values['attempts'][-1]['error']}" if values["attempts"] else "controller: no SQL"
