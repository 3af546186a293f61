"""A step as a node of a LangGraph state machine: its records kept, and a failure of it recorded as the episode's end.

LangGraph is imported when a graph is built, so that controllers with one can be imported without the extra ``graph``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nl2sql.agents.failures import EpisodeFailed
from nl2sql.agents.task import State
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.machine import install_command

W = TypeVar("W", bound=State)


def check_langgraph(controller: str) -> None:
    """Raises UsageError with the command that installs what ``controller`` lacks."""
    try:
        import langgraph.graph  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"controller {controller} needs LangGraph ({error}); install it: {install_command('graph')}"
        ) from None


def as_node(step: Callable[[Any, W], Mapping[str, Any]], work_of: Callable[[Any, Any], W]) -> Callable[..., Any]:
    """``step(state, work)`` as LangGraph calls it; ``work_of(state, context)`` gives the work of one visit.

    What the step adds to the work's trace and decision log is added to the state's. A failure of the model, a tool or
    the database becomes ``failure`` of the state.
    """

    def visit(state: Any, runtime: Any) -> dict[str, Any]:
        work = work_of(state, runtime.context)
        try:
            update = step(state, work)
        except EpisodeFailed as failed:
            update = {"failure": str(failed)}
        except DatabaseError as error:  # outside of a tool
            update = {"failure": f"database: {error}"}
        return {
            **update,
            "trace": work.trace[len(state["trace"]) :],
            "decision_log": work.decision_log[len(state["decision_log"]) :],
        }

    return visit
