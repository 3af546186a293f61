"""Reflection and retry: an attempt is executed, judged, and made again with what went wrong (docs/reflection.md).

``reflect`` is the controller, ``stream`` the same with an event for every node, and with checkpoints where they are
asked for. Both work on the loop's tools, prompts, guardrails and runner; the state machine is in ``graph``, its nodes
in ``nodes``, what is worth another attempt in ``errors`` and ``judge``, other strategies in ``strategies``.

Not covered: a wrong answer that runs and looks sound is accepted, unless the critique is switched on and objects.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.agents.opening import open_task
from nl2sql.agents.record import Episode
from nl2sql.agents.reflection.graph import build_graph, check_installed, compiled, recursion_limit
from nl2sql.agents.reflection.state import Context, ReflectState, initial_state
from nl2sql.agents.task import Task
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.interfaces import Question, Resources

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver

__all__ = ["NodeEvent", "check_installed", "reflect", "stream"]
CHECKPOINT_TABLES = frozenset(("checkpoints", "writes"))  # LangGraph's


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


def stream(
    question: Question, resources: Resources, config: Config, *, checkpoints: str | Path = "", thread: str = "default"
) -> Iterator[NodeEvent]:
    """The same as events, one for each visit of a node.

    checkpoints: a SQLite file that keeps the state after each node; empty: none. A thread that was interrupted there
    goes on where it stopped, with the ``max_iterations`` that it began with (usage and calls are then those since); a
    finished one begins anew. Raises UsageError also for a thread that stopped at another question or over another
    database.
    """
    task = open_task(question, resources, config)
    state = initial_state(task.nlq, config.reflect.max_iterations)
    settings: dict[str, Any] = {}
    start: ReflectState | None = state
    with _saver(checkpoints) as saver:
        graph: Any = build_graph(saver) if saver else compiled()
        if saver:
            settings["configurable"] = {"thread_id": thread}
            state["database"] = task.resources.database.fingerprint
            if (stopped := _stopped(graph, saver, settings, state, thread)) is not None:
                state, start = stopped, None
        settings["recursion_limit"] = recursion_limit(state["max_iterations"])
        values: dict[str, Any] = {}
        last: dict[str, Any] = {}
        visits = graph.stream(start, settings, context=Context(task), stream_mode=["updates", "values"])
        with closing(visits):  # before the file of the checkpoints is
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


@contextmanager
def _saver(path: str | Path) -> Iterator[SqliteSaver | None]:
    if not path:
        yield None
        return
    check_installed()
    from langgraph.checkpoint.sqlite import SqliteSaver

    with ExitStack() as opened:
        try:
            connection = opened.enter_context(closing(sqlite3.connect(path, check_same_thread=False)))
            found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
            names = [name for (name,) in found]
            if not CHECKPOINT_TABLES.issuperset(names):  # LangGraph would add its tables to anybody's database
                raise UsageError(
                    f"checkpoints={str(path)!r} is a SQLite database but no file of checkpoints (it holds "
                    f"{', '.join(names[:5])}); name another file"
                )
            if "checkpoints" in names:
                connection.execute("SELECT thread_id FROM checkpoints LIMIT 0")
            saver = SqliteSaver(connection)
            saver.setup()
        except sqlite3.Error as error:
            raise UsageError(f"checkpoints={str(path)!r} cannot be opened: {error}; name a file in a folder") from None
        yield saver


def _stopped(graph: Any, saver: SqliteSaver, settings: dict[str, Any], asked: ReflectState, thread: str) -> Any | None:
    """The state of a thread that stopped half-way, at this question over this database. A finished one is forgotten."""
    snapshot = graph.get_state(settings)
    if not snapshot.next:
        saver.delete_thread(thread)
        return None
    stopped: Any = snapshot.values
    if stopped.get("question") != asked["question"]:
        raise UsageError(
            f"thread {thread!r} stopped at another question: {stopped.get('question')!r}; name another thread"
        )
    if stopped.get("database", asked["database"]) != asked["database"]:  # older threads do not say
        raise UsageError(
            f"thread {thread!r} stopped over another database, or this one has changed since; name another thread"
        )
    return stopped


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
