"""Neighbours of single values, by type, fresh values for keys, and values as a column compares them.

Everything is drawn from the ``Random`` given.

>>> fresh("item7", taken={"item7", "item8"}, highest=0)
'item9'
"""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import Sequence
from typing import Any

from nl2sql.eval.replicas.moments import Moments

_DATE = re.compile(r"(\d{4})([-/])(\d{2})\2(\d{2})(?!\d)")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE | re.ASCII)
_TRAILING_NUMBER = re.compile(r"[0-9]{1,15}$")
_DIGITS = re.compile(r"(?<![0-9])[0-9]{1,15}(?![0-9])")
_LARGEST = 2**63 - 1
_ISO = Moments("ymd", frozenset("ymd"))
_LOWER = {ord(letter): letter.lower() for letter in string.ascii_uppercase}  # NOCASE folds no other letter


def neighbour(value: Any, own: Sequence[Any], rng: random.Random, moments: Moments | None = None) -> Any:
    """A value near ``value`` of the same type: a number close by, a date or time moved, a string slightly different.

    ``own`` are the column's own values; a column of at most two values (a flag) only takes those. ``moments``: how
    the column writes dates or times.
    """
    if isinstance(value, bytes) or value is None:
        return rng.choice(own) if own else value
    if moments is not None:
        written = moments.moved(str(value), rng.choice(moments.roles.rstrip("f")), rng.choice((-1, 1)))
        if written is not None:
            return type(value)(written)
    if isinstance(value, int):
        moved = value + rng.choice((-2, -1, 1, 2))
        return moved if abs(moved) <= _LARGEST and (value < 0 or moved >= 0) else value
    if isinstance(value, float):
        return _near_number(value, rng)
    return _near_text(value, own, rng)


def beyond(value: Any, other: Any, up: bool, moments: Moments | None = None) -> Any:
    """A value above ``value``, its column's largest, or below it, the smallest (not ``up``); None: there is none.

    ``other`` is the one at the other end: fractional numbers go on by a tenth of the way between them. What is not
    below zero does not get there.

    >>> beyond(41, 25, True), beyond(0, 9, False), beyond(1.5, 0.5, True), beyond("Rome", "Bonn", True)
    (42, None, 1.6, 'Romea')
    """
    step = 1 if up else -1
    if moments is not None and (moved := moments.moved(str(value), moments.roles.rstrip("f")[-1], step)) is not None:
        return type(value)(moved)
    if isinstance(value, str):
        if date := _DATE.search(value):
            return value[: date.start()] + _shifted(date, step, "d") + value[date.end() :]
        return value + ("0" if value[-1:].isdigit() else "a") if up else value[:-1] or None
    if isinstance(value, float):
        places = _places(value)
        step *= max(abs(value - other) / 10, 10.0 ** -(places or 0))
    moved = value + step
    if isinstance(value, float) and places is not None:
        moved = round(moved, places)
    return moved if (value < 0 or moved >= 0) and -_LARGEST <= moved <= _LARGEST else None


def is_date(value: Any) -> bool:
    """Whether a value is text with a calendar date in it."""
    return isinstance(value, str) and _DATE.search(value) is not None


def as_compared(value: Any, collation: str, declared: str = "") -> Any:
    """``value`` in a form that is the same for all that a column calls equal: by ``collation`` (NOCASE, RTRIM or
    nothing) and by its ``declared`` type, which makes a number of the text '1', or a text of the number.

    >>> as_compared("A1", "NOCASE"), as_compared("a ", "RTRIM"), as_compared("01", "", "INTEGER")
    ('a1', 'a', 1)
    """
    kind = declared.upper()
    if "INT" not in kind and any(name in kind for name in ("CHAR", "CLOB", "TEXT")):
        value = str(value) if isinstance(value, int | float) else value
    elif kind and "BLOB" not in kind and isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value) if set(value) & set(".eE") else int(value)
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
    places = _places(value)
    moved = value * rng.choice((0.5, 0.9, 1.1, 2.0)) if rng.random() < 0.5 else value + rng.choice((-1.0, 1.0))
    if value >= 0 > moved:
        moved = value + 1.0
    return round(moved, places) if places is not None else moved


def _places(value: float) -> int | None:
    shown = repr(value)
    return len(shown.partition(".")[2]) if "e" not in shown and "." in shown else None


def _near_text(value: str, own: Sequence[Any], rng: random.Random) -> str:
    date = _DATE.search(value)
    if date:
        return value[: date.start()] + _shifted(date, rng.choice((-1, 1)), rng.choice("dmy")) + value[date.end() :]
    groups = list(_DIGITS.finditer(value))
    if groups and not any(map(str.isalpha, value)):  # 555-1234, 2:1, 10.5%
        group = rng.choice(groups)
        moved = str(max(0, int(group[0]) + rng.choice((-1, 1)))).zfill(len(group[0]))
        return value[: group.start()] + moved + value[group.end() :]
    kind = rng.randrange(4)
    if kind == 0 and len(value) > 2:
        return value[:-1]
    if kind == 1:
        return value + rng.choice("aeinrs")
    other = rng.choice(own) if own else value
    if kind == 2 and isinstance(other, str) and len(value) > 3 and len(other) > 3:
        return value[: len(value) // 2] + other[len(other) // 2 :]
    return value.swapcase() if kind == 3 and value.isascii() else value + rng.choice("aeinrs")


def _shifted(date: re.Match[str], by: int, unit: str) -> str:
    """The date by so many days, months or years later."""
    return _ISO.moved(date[0], unit, by) or date[0]  # 0000-00-00 and other text that only looks like a date
