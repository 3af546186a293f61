"""The process that writes replicas: what a file's own constraints cost is not the caller's time or memory.

A CHECK, a generated column or an index on an expression is executed for every row that is written, and
SQLite cannot be interrupted inside of one: this process is killed where it takes too long. Started by
``nl2sql.eval.replicas`` as a ``framed_child``.

Requests: ``{"task": "read", "path", "seed", "table_rows"}``, answered with the number of ``rows``; then
``{"task": "write", "target", "number"}`` for each replica; or ``{"task": "shuffle", "path", "target",
"seed"}``. Replies have ``log`` (warnings), and ``error`` where it failed.
"""

from __future__ import annotations

import logging
import signal
import sqlite3
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.framed_child import PATIENCE, reply, requests
from nl2sql.databases.sqlite.worker import restrict_process
from nl2sql.eval.replicas import perturb
from nl2sql.eval.replicas.shuffle import write_shuffled

LARGEST_FILE = 2**32
LAST_RESORT_S = 30  # after which an orphan ends; the parent kills sooner


class _Warnings(logging.Handler):
    """Collects what would have been logged, for the parent to log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class _Work:
    """What was read of the last database."""

    perturber: perturb.Perturber | None = None

    def done(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request."""
        if request["task"] == "shuffle":
            write_shuffled(Path(request["path"]), Path(request["target"]), seed=request["seed"])
            return {}
        if request["task"] == "read":
            perturb.TABLE_ROWS = request["table_rows"]
            self.perturber = None
            self.perturber = perturb.Perturber(Path(request["path"]), seed=request["seed"])
            return {"rows": sum(map(len, self.perturber.rows.values()))}
        assert self.perturber is not None, "read comes first"
        self.perturber.write(Path(request["target"]), request["number"])
        return {}


def main() -> None:
    """Answer requests until the socket closes."""
    restrict_process(LARGEST_FILE)
    warnings, work = _Warnings(), _Work()
    logging.getLogger("nl2sql").addHandler(warnings)
    for request in requests():
        signal.alarm(int(request["seconds"] * PATIENCE) + LAST_RESORT_S)
        warnings.lines.clear()
        try:
            answer = work.done(request)
        except MemoryError:
            answer = {"error": "it takes too much memory"}
        except (OSError, sqlite3.Error) as error:
            answer = {"error": str(error)}
        signal.alarm(0)
        reply({**answer, "log": warnings.lines})
