"""The errors that a user is told of: one line that says what is wrong, with the value, and what to do next.

The command line prints ``str(error)`` and exits with ``exit_code``; nothing here is ever shown as a traceback.
Failures *inside* an episode are data (``Episode.error``), not these exceptions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # not tabs and line ends


class Nl2SqlError(Exception):
    """A failure with a message for the user. Exit code 1."""

    exit_code = 1


class UsageError(Nl2SqlError):
    """The user asked for something that cannot be: a bad path, name, number or combination. Exit code 2."""

    exit_code = 2


class ModelError(Nl2SqlError):
    """The model back end failed (missing weights, wrong hash, no network, a server that went away)."""


class DatabaseError(Nl2SqlError):
    """A database file cannot be used (missing, not SQLite, unreadable, gone)."""


class BenchmarkError(Nl2SqlError):
    """A benchmark folder is broken: a missing file, a gold that does not run, an unknown layout."""


class Cancelled(Nl2SqlError):
    """The run was interrupted by the user; finished episodes are kept. Exit code 130."""

    exit_code = 130


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C in the block is Cancelled with ``message``: what was lost, or how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Cancelled(message) from None


def one_line(error: object, limit: int | None = None) -> str:
    """The words of an error or a text, on one line of at most ``limit`` characters, without control characters."""
    return printable(" ".join(str(error).split()))[:limit]


def typed(path: object) -> str:
    """A path as it is typed into a shell: in quotes where it needs them."""
    return shlex.quote(str(path))


def printable(text: str) -> str:
    """``text`` as a terminal may be given it: ``?`` for what would move its cursor, colour it or name its window."""
    return CONTROL.sub("?", text)
