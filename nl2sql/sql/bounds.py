"""The door for texts that a model wrote: what is too long or nested too deep is read by no parser and no pattern.

A back end may answer anything: megabytes, thousands of open brackets, ``Action: x[`` ten thousand times. The compiled
SQL parser recurses without looking at its stack, and patterns that look for a closing bracket take quadratic time
where none comes. ``past_limits`` says in linear time whether a text may be read at all. ``bounded`` is the door of an
episode; what reads texts from elsewhere (prediction files, a user's tool) asks ``past_limits`` itself.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MAX_CHARS = 40_000  # reading one of these takes up to 50 MB
MAX_NESTING = 200  # brackets of one kind that are open at once; SQLite's own parser stops at 100 levels
CACHED_CHARS = 500  # longer texts, and the trees of longer texts, are not kept
REFUSED = "(past_limits: "  # begins the text that stands for one past the limits

_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))
_JSON_MARK = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


def past_limits(text: str) -> str:
    """Why ``text`` may not be read, as ``nested 4000 deep; ...``; "" for one within the limits. Takes linear time."""
    if len(text) > MAX_CHARS:
        return f"{len(text)} characters; at most {MAX_CHARS} are read"
    for opening, closing in _PAIRS:
        if text.count(opening) > MAX_NESTING and (depth := _nesting(text, opening, closing)) > MAX_NESTING:
            return f"{depth} {opening} open at once; at most {MAX_NESTING} levels are read"
    return ""


def bounded(text: str) -> str:
    """``text`` as an episode reads it: as it is, or one line that begins with ``REFUSED``, neither action nor SQL."""
    reason = past_limits(text)
    return f"{REFUSED}{reason})" if reason else text


def decode_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at ``start``, and where it ends.

    Raises ValueError for what is not JSON, holds a number of thousands of digits, or nests deeper than the limit.
    """
    if text.count("[", start) + text.count("{", start) > MAX_NESTING:
        _refuse_deep_json(text, start)
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deep") from None


def load_json(text: str) -> Any:
    """The JSON value that ``text`` is. Raises ValueError, as ``decode_json``."""
    text = text.strip(" \t\r\n")
    value, end = decode_json(text)
    if end < len(text):
        raise ValueError("more behind the value")
    return value


def remember_short(size: int) -> Callable[[Callable[Concatenate[str, P], T]], Callable[Concatenate[str, P], T]]:
    """``lru_cache(size)`` for functions of a text, by which long texts pass: a cache holds what its keys weigh."""

    def decorate(read: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
        kept: Any = functools.lru_cache(maxsize=size)(read)

        @functools.wraps(read)
        def reading(text: str, *args: P.args, **options: P.kwargs) -> T:
            result: T = (kept if len(text) <= CACHED_CHARS else read)(text, *args, **options)
            return result

        reading.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
        return reading

    return decorate


def _nesting(text: str, opening: str, closing: str) -> int:
    """The most brackets of one kind that are open at once; strings and comments are read like all else."""
    deepest = depth = 0
    for mark in re.findall(f"[{re.escape(opening + closing)}]", text):
        depth = depth + 1 if mark == opening else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _refuse_deep_json(text: str, start: int) -> None:
    """Raises ValueError where the value at ``start`` nests deeper than the limit; brackets in strings do not count."""
    depth = 0
    for mark in _JSON_MARK.finditer(text, start):
        sign = mark[0]
        depth += (sign in "[{") - (sign in "]}")
        if depth > MAX_NESTING:
            raise ValueError(f"nested more than {MAX_NESTING} deep")
        if depth <= 0:
            return
