"""The boundaries of an episode, where what a model or a database raises becomes data: its end, or a failed run.

>>> print(EpisodeFailed("model", "no answer"))
model: no answer
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nl2sql.config.sections import ExecutionConfig
from nl2sql.errors import DatabaseError, ModelError, Nl2SqlError
from nl2sql.interfaces import Database, RunResult


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
