"""Turns of a conversation: what one holds, how its result is summed up, and the names that owners and sessions have.

>>> summarize_results(RunResult(True, ("name", "city", "total", "day"), (("Ada", "Bern", 20.0, "Mon"),)))
'1 rows, columns: name, city, total'
>>> new_turn("How many?", "SELECT 1 AS n", RunResult(True, ("n",), ((1,),))).results_summary
'1 rows, columns: n'

A turn is the specification's entry: ``user_query, resolved_query, sql, results_summary, timestamp``. No value of the
database enters a summary: it counts the rows, and names the first three columns as the query calls them.

Not covered: a value that the user writes in the question, or the query as a column's name, is in the turn.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

from nl2sql.errors import Nl2SqlError, UsageError, one_line
from nl2sql.interfaces import RunResult, Turn
from nl2sql.machine import from_json
from nl2sql.sql.parse import MAX_CHARS

KEPT = 10  # turns of a session; older ones are forgotten
NAMED_COLUMNS = 3  # of a summary
LONGEST_COLUMN = 60  # characters of a column's name in a summary
NO_RESULTS = "No results"
FIELDS = tuple(field.name for field in fields(Turn))

_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def summarize_results(execution_result: RunResult | Mapping[str, Any] | None) -> str:
    """The result of a query in a line, ``10 rows, columns: a, b, c``; ``No results`` for a failure and for None.

    execution_result: a RunResult, or the specification's ``{success, data, columns}``.
    """
    if execution_result is None:
        return NO_RESULTS
    if isinstance(execution_result, RunResult):
        seen: Mapping[str, Any] = vars(execution_result) | {"data": execution_result.rows}
    else:
        seen = execution_result
    if not seen.get("success"):
        return NO_RESULTS
    names = (one_line(column, LONGEST_COLUMN) for column in tuple(seen.get("columns", ()))[:NAMED_COLUMNS])
    return f"{len(seen.get('data', ()))} rows, columns: {', '.join(names)}"


def new_turn(user_query: str, sql: str, result: RunResult | None, resolved_query: str = "") -> Turn:
    """The turn of a query that was run just now. resolved_query: what the controller was asked; default: the same."""
    summary = summarize_results(result)
    return Turn(user_query, resolved_query or user_query, sql, summary, timestamp())


def timestamp() -> str:
    """This moment as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def turn_of(entry: Turn | Mapping[str, Any]) -> Turn:
    """A turn as it may be stored, from itself or from a mapping of its fields; one without a time gets this moment.

    Raises UsageError for another field, one that is no text, a turn without a question, and a text that is too long.
    """
    given = asdict(entry) if isinstance(entry, Turn) else dict(entry)
    if unknown := sorted(set(map(str, given)) - set(FIELDS)):
        raise UsageError(f"a turn has no field {unknown[0]!r}; its fields are {', '.join(FIELDS)}")
    for name, text in given.items():
        if not isinstance(text, str):
            raise UsageError(f"{name} of a turn is {one_line(repr(text), 60)}; expected text")
        if len(text) > MAX_CHARS:
            raise UsageError(f"{name} of a turn has {len(text):,} characters; a session keeps at most {MAX_CHARS:,}")
    if not given.get("user_query", "").strip():
        raise UsageError("a turn without a user_query; expected the question as the user asked it")
    return Turn(**given | {"timestamp": given.get("timestamp") or timestamp()})


def turn_to_text(turn: Turn, **more: str) -> str:
    """A turn as JSON in ASCII, for stores that keep text; ``more`` stands before its fields."""
    return json.dumps(more | asdict(turn))


def turn_from_text(text: str, where: str) -> Turn:
    """The turn that ``turn_to_text`` wrote; ``where`` names the store. Raises Nl2SqlError for what is none."""
    try:
        entry = from_json(text)
        return turn_of({name: entry[name] for name in FIELDS})
    except (ValueError, KeyError, TypeError, UsageError) as error:
        reason = one_line(f"{type(error).__name__}: {error}", 100)
        raise Nl2SqlError(f"{where} holds a turn that nl2sql did not write ({reason}); begin another session") from None


# ------------------------------------------------------------------------------------------ names and times


def new_session_id() -> str:
    """A session id that nobody can guess: 128 random bits."""
    return secrets.token_hex(16)


def checked_owner(owner: str) -> str:
    """``owner`` where it can be one. Raises UsageError."""
    return _checked(owner, _OWNER, "owner", "letters, digits and . _ @ + -, at most 128, a letter or digit first")


def checked_session(session_id: str) -> str:
    """``session_id`` where it can be one. Raises UsageError."""
    return _checked(session_id, _SESSION, "session id", "letters, digits and . _ -, at most 128, no sign first")


def checked_ttl(ttl_s: float) -> float:
    """Seconds to live where they can be. Raises UsageError."""
    if not 0 <= ttl_s < 1e10:
        raise UsageError(f"a session cannot live {ttl_s} seconds; expected 0 (no end) or more")
    return ttl_s


def _checked(name: str, form: re.Pattern[str], noun: str, expected: str) -> str:
    if not isinstance(name, str) or not form.fullmatch(name):
        raise UsageError(f"{noun} {one_line(repr(name), 60)}; expected {expected}")
    return name
