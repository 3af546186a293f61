"""Bounds of the SQLite workers, and the results that stand for what went wrong.

>>> reported("OperationalError", "no such table: order", timeout_s=5.0, seconds=0.1).error_kind
'unknown_table'
"""

from __future__ import annotations

import re
from typing import Any

from nl2sql.errors import UsageError
from nl2sql.interfaces import RunResult
from nl2sql.machine import MAX_TIMEOUT_S

GRACE_S = 0.25  # what a worker may overrun its deadline by before it is killed
SEND_S = 60.0  # for a worker to take a large request in
MAX_SQL_CHARS = 100_000  # bounds what a parser is asked to read

# What SQLite says -> RunResult.error_kind; the first rule that matches the message decides. Rules for messages that
# quote the statement come first and are anchored, so that no identifier can be taken for another message.
ERROR_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        (r"^no such table: |^no such view: ", "unknown_table"),
        (r"^no such column: |^cannot join using column .* not present in both", "unknown_column"),
        (r"^ambiguous column name: ", "ambiguous_column"),
        (r": syntax error$|^incomplete input|^unrecognized token|null character|surrogates not allowed", "syntax"),
        (r"clause should come after", "syntax"),
        (r"^no such |^wrong number of arguments|^misuse of |malformed", "other"),
        (r"^interrupted$", "timeout"),
        (r"^not authorized|is prohibited$|^attempt to write a readonly|may not be (modified|dropped)", "denied"),
        (r"only execute one statement", "multi_statement"),
        (r"stack overflow|too (big|large|complex|many)|^at most \d+ tables", "too_large"),
        (r"^out of memory", "memory"),
        (r"^Incorrect number of bindings", "syntax"),
    )
)


def check_bounds(timeout_s: float, max_rows: int) -> None:
    """Raises UsageError for bounds that no statement can be held to, infinity and NaN among them."""
    if not 0 < timeout_s <= MAX_TIMEOUT_S or max_rows < 0:
        raise UsageError(
            f"timeout_s must be above 0 and at most {MAX_TIMEOUT_S:.0f}, max_rows not negative; "
            f"got {timeout_s} and {max_rows}"
        )


def sqlite_error_kind(message: str) -> str:
    """The kind of a SQLite error message, by ``ERROR_RULES``; "other" when no rule matches."""
    return next((kind for pattern, kind in ERROR_RULES if pattern.search(message)), "other")


def failed_run(kind: str, message: str, seconds: float = 0.0) -> RunResult:
    return RunResult(False, error=message, error_kind=kind, seconds=seconds)


def run_result(reply: list[Any], timeout_s: float, seconds: float) -> RunResult:
    if reply[0] == "ok":
        _, columns, rows, truncated = reply
        return RunResult(True, tuple(columns), tuple(map(tuple, rows)), truncated=truncated, seconds=seconds)
    _, exception, message = reply
    return reported(exception, message, timeout_s, seconds)


def reported(exception: str, message: str, timeout_s: float, seconds: float) -> RunResult:
    """The result for what a worker reports: a kind of error (lower case) or the name of an exception."""
    message = " ".join(message.splitlines())  # a quoted identifier may hold line breaks
    kind = exception if exception.islower() else sqlite_error_kind(message)
    if kind == "timeout":
        message = f"no result within {timeout_s:g} s"
    return failed_run(kind, message, seconds)
