"""Neighbours of single values, by type, fresh values for keys, and values as a collation sees them.

Everything is drawn from the ``Random`` given.

>>> fresh("item7", taken={"item7", "item8"}, highest=0)
'item9'
"""

from __future__ import annotations

import calendar
import datetime
import math
import random
import re
import string
from collections.abc import Sequence
from typing import Any

_DATE = re.compile(r"(\d{4})([-/])(\d{2})\2(\d{2})(?!\d)")
_TRAILING_NUMBER = re.compile(r"[0-9]{1,15}$")
_LARGEST = 2**63 - 1
_LOWER = {ord(letter): letter.lower() for letter in string.ascii_uppercase}  # NOCASE folds no other letter


def neighbour(value: Any, own: Sequence[Any], rng: random.Random) -> Any:
    """A value near ``value`` of the same type: a number close by, a date shifted, a string slightly different.

    ``own`` are the column's own values; a column of at most two values (a flag) only takes those.
    """
    if isinstance(value, bytes) or value is None:
        return rng.choice(own) if own else value
    if isinstance(value, int):
        moved = value + rng.choice((-2, -1, 1, 2))
        return moved if abs(moved) <= _LARGEST and (value < 0 or moved >= 0) else value
    if isinstance(value, float):
        return _near_number(value, rng)
    return _near_text(value, own, rng)


def is_date(value: Any) -> bool:
    """Whether a value is text with a calendar date in it."""
    return isinstance(value, str) and _DATE.search(value) is not None


def as_compared(value: Any, collation: str) -> Any:
    """``value`` in a form that is the same for all that ``collation`` (NOCASE, RTRIM or nothing) calls equal.

    >>> as_compared("A1", "NOCASE"), as_compared("a ", "RTRIM"), as_compared("A1", "")
    ('a1', 'a', 'A1')
    """
    if not isinstance(value, str) or not collation:
        return value
    return value.translate(_LOWER) if collation == "NOCASE" else value.rstrip(" ")


def fresh(value: Any, taken: set[Any], highest: int) -> Any:
    """A value of the same type and look that is not in ``taken``; ``highest`` is the column's largest integer."""
    if isinstance(value, int):
        new = max(highest, value) + 1
        return new if new <= _LARGEST else min((v for v in taken if isinstance(v, int)), default=0) - 1
    if isinstance(value, float):
        while value in taken:
            following = max(value + 1.0, math.nextafter(value, math.inf))  # a large number plus one is itself
            value = following if following < math.inf else 0.0
        return value
    if isinstance(value, bytes):
        while value in taken:
            value += b"\x00"
        return value
    if not isinstance(value, str):
        return None
    match = _TRAILING_NUMBER.search(value)
    stem, digits = (value[: match.start()], match[0]) if match else (value, "1")
    for step in range(1, len(taken) + 2):
        text = f"{stem}{int(digits) + step:0{len(digits)}d}"
        if text not in taken:
            return text
    raise AssertionError("unreachable: one more candidate than taken values")


def _near_number(value: float, rng: random.Random) -> float:
    shown = repr(value)
    places = len(shown.partition(".")[2]) if "e" not in shown and "." in shown else None
    moved = value * rng.choice((0.5, 0.9, 1.1, 2.0)) if rng.random() < 0.5 else value + rng.choice((-1.0, 1.0))
    if value >= 0 > moved:
        moved = value + 1.0
    return round(moved, places) if places is not None else moved


def _near_text(value: str, own: Sequence[Any], rng: random.Random) -> str:
    date = _DATE.search(value)
    if date:
        return value[: date.start()] + _shifted(date, rng) + value[date.end() :]
    if value.isdigit() and value.isascii() and len(value) < 16:
        return str(max(0, int(value) + rng.choice((-1, 1)))).zfill(len(value))
    kind = rng.randrange(4)
    if kind == 0 and len(value) > 2:
        return value[:-1]
    if kind == 1:
        return value + rng.choice("aeinrs")
    other = rng.choice(own) if own else value
    if kind == 2 and isinstance(other, str) and len(value) > 3 and len(other) > 3:
        return value[: len(value) // 2] + other[len(other) // 2 :]
    return value.swapcase() if kind == 3 and value.isascii() else value + rng.choice("aeinrs")


def _shifted(date: re.Match[str], rng: random.Random) -> str:
    year, month, day = int(date[1]), int(date[3]), int(date[4])
    step = rng.randrange(3)
    try:
        if step == 0:
            moved = datetime.date(year, month, day) + datetime.timedelta(days=rng.choice((-1, 1)))
        else:
            months = year * 12 + month - 1 + rng.choice((-1, 1)) * (1 if step == 1 else 12)
            year, month = divmod(months, 12)
            moved = datetime.date(year, month + 1, min(day, calendar.monthrange(year, month + 1)[1]))
    except (ValueError, OverflowError):  # 0000-00-00 and other text that only looks like a date
        return date[0]
    return f"{moved.year:04d}{date[2]}{moved.month:02d}{date[2]}{moved.day:02d}"
