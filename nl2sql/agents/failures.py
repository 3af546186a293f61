"""The boundaries of an episode, where what a model or a database raises becomes data: its end, or a failed run.

>>> print(EpisodeFailed("model", "no answer"))
model: no answer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nl2sql.config.sections import ExecutionConfig
from nl2sql.errors import DatabaseError, ModelError, Nl2SqlError, UsageError
from nl2sql.interfaces import Database, RunResult
from nl2sql.machine import install_command


class EpisodeFailed(Exception):
    """An episode cannot go on. ``where`` is the boundary at which it failed: model, tool, database, controller."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where


@contextmanager
def blaming_model() -> Iterator[None]:
    """What a model raises as EpisodeFailed: a user's own model may raise anything."""
    try:
        yield
    except ModelError as error:
        raise EpisodeFailed("model", str(error)) from error
    except Nl2SqlError:
        raise
    except Exception as error:
        raise EpisodeFailed("model", f"{type(error).__name__}: {error}") from error


def run_bounded(database: Database, sql: str, limits: ExecutionConfig) -> RunResult:
    """A statement's result within the limits; what the database raises, a user's own too, is a failure of the run."""
    try:
        return database.run(sql, timeout_s=limits.timeout_s, max_rows=limits.max_rows)
    except DatabaseError as error:
        return RunResult(False, error=str(error), error_kind="other")
    except Nl2SqlError:
        raise
    except Exception as error:  # noqa: BLE001  users' code: recorded as what the run gave
        return RunResult(False, error=f"{type(error).__name__}: {error}", error_kind="other")


def cut_rows(result: RunResult) -> dict[str, int]:
    """The flag of an answer that has more rows than ``execution.max_rows``: so many are kept."""
    return {"rows_cut": len(result.rows)} if result.truncated else {}


# ---------------------------------------------------------------------------- steps of a LangGraph state machine
# LangGraph is imported when a graph is built, so that its controllers can be imported without the extra ``graph``.


def check_langgraph(controller: str) -> None:
    """Raises UsageError with the command that installs what ``controller`` lacks."""
    try:
        import langgraph.graph  # noqa: F401
    except ImportError as error:
        needs = f"controller {controller} needs LangGraph ({error})"
        raise UsageError(f"{needs}; install it: {install_command('graph')}") from None


def as_node(step: Callable[[Any, Any], Mapping[str, Any]], work_of: Callable[[Any, Any], Any]) -> Callable[..., Any]:
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
