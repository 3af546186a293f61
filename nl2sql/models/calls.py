"""What every back end asks of a call before it is made."""

from __future__ import annotations

from collections.abc import Sequence

from nl2sql.errors import UsageError


def check_call(n: int, max_new_tokens: int, stop: Sequence[str]) -> None:
    """Raises UsageError for no completions, no tokens, or a text in place of the list of stop strings."""
    if n < 1 or max_new_tokens < 1:
        raise UsageError(f"n={n}, max_new_tokens={max_new_tokens}: both must be at least 1")
    if isinstance(stop, str):  # else each of its letters would end the answer
        raise UsageError(f"stop={stop!r} is one text; expected a list of them: stop=[{stop!r}]")
