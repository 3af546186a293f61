"""Neighbours of single values, by type and as their column writes them, and fresh values for keys.

Everything is drawn from the ``Random`` given.

>>> fresh("item7", taken={"item7", "item8"}, highest=0)
'item9'

>>> read_moments(["31/12/2019", "5/1/2020"]).moved("31/12/2019", "d", 1)
'1/1/2020'
>>> read_moments(["9:05 PM", "12:59 PM"]).moved("12:59 PM", "i", 1)
'12:00 PM'
"""

from __future__ import annotations

import calendar
import datetime
import math
import random
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# -------------------------------------------------------------- how a column writes dates and times
# A value is cut into numbers, words and what stands between; the order of year, month, day, hour,
# minute, second is the first of a few under which the values read as dates or times and are written
# back as they were.

PART = re.compile(r"\d+|[^\W\d_]+|[\W_]+")
COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)")  # 20190531
DATES, TIMES = ("ymd", "mdy", "dmy", "ym", "my", ""), ("", "hi", "his", "hisf")
ORDERS = [date + time for time in TIMES for date in DATES if date + time]
READABLE = 0.9  # share of a column's values; the others are no dates
SAMPLE = 200
MONTHS = {name[:size].lower(): n for n, name in enumerate(calendar.month_name) if n for size in (3, 9)}
CLOCK = {"h": 3600, "i": 60, "s": 1}  # seconds
NOON = ("am", "pm")


@dataclass(frozen=True)
class Moments:
    """A way to write dates or times. ``roles``: y, m, d, h, i (minute), s, f (fraction) in the order of their parts."""

    roles: str
    padded: frozenset[str]  # roles that are written with two digits at least
    short: bool = True  # names of months with three letters

    def read(self, value: str) -> dict[str, str] | None:
        """Role -> its part of ``value``; None where it is written otherwise."""
        found = _meaning(value)
        parts = dict(zip(self.roles, found, strict=True)) if len(found) == len(self.roles) else {}
        alike = parts and _fits(value, self.roles, parts) and self._written(value, _numbers(parts)) == value
        return parts if alike else None

    def moved(self, value: str, unit: str, by: int) -> str | None:
        """``value`` moved by so many of one of its units; None where it is no such date or the calendar ends."""
        parts = self.read(value)
        if parts is None:
            return None
        numbers = _numbers(parts)
        try:
            if unit in CLOCK:
                noon = any(word.lower() in NOON for word in PART.findall(value))
                _move_clock(numbers, unit, by, hours=noon or numbers["h"] < 24, held=noon)
            else:
                _move_date(numbers, unit, by)
        except (ValueError, OverflowError):
            return None
        return self._written(value, numbers)

    def _written(self, value: str, numbers: Mapping[str, int]) -> str:
        """``value`` with other numbers."""
        roles, parts = iter(self.roles), []
        for part in _parts(value):
            role = next(roles) if _means(part) else ""
            if role in ("", "f"):
                parts.append(part)
            elif part.isdigit():
                wide = max(2 if role in self.padded else 1, len(part) if role == "y" else 1)
                parts.append(str(numbers[role] % (100 if role == "y" and len(part) == 2 else 10_000)).zfill(wide))
            else:
                name = calendar.month_name[numbers[role]][: 3 if self.short else None]
                parts.append(name.upper() if part.isupper() else name.lower() if part.islower() else name)
        return "".join(parts)


def read_moments(values: Iterable[object]) -> Moments | None:
    """The way in which a column of texts (or of numbers such as 20190531) writes dates or times; None: it does not."""
    texts = [str(value) for value in values if isinstance(value, str | int)][:SAMPLE]
    if not texts:
        return None
    meanings = [_meaning(text) for text in texts]
    for roles in ORDERS:
        columns = [parts for parts in meanings if len(parts) == len(roles)]
        if len(columns) < READABLE * len(texts):
            continue
        by_role = dict(zip(roles, zip(*columns, strict=True), strict=True))
        padded = frozenset(role for role, parts in by_role.items() if all(len(part) > 1 for part in parts))
        short = all(len(part) == 3 for part in by_role.get("m", ()))
        moments = Moments(roles, padded, short)
        if sum(moments.read(text) is not None for text in texts) >= READABLE * len(texts):
            return moments
    return None


def _parts(value: str) -> list[str]:
    compact = COMPACT.fullmatch(value)
    return list(compact.groups()) if compact else PART.findall(value)


def _means(part: str) -> bool:
    return part.isdigit() or part.lower() in MONTHS


def _meaning(value: str) -> list[str]:
    return [part for part in _parts(value) if _means(part)]


def _numbers(parts: Mapping[str, str]) -> dict[str, int]:
    return {role: int(part) if part.isdigit() else MONTHS[part.lower()] for role, part in parts.items()}


def _fits(value: str, roles: str, parts: Mapping[str, str]) -> bool:
    """Whether the parts are in range, a name is a month, a year has four digits (or two, with a day), and colons part
    a time and no date."""
    if any(not part.isdigit() and role != "m" for role, part in parts.items()):
        return False
    numbers = _numbers(parts)
    if value.count(":") != max(0, sum(role in CLOCK for role in roles) - 1):
        return False
    if any(numbers.get(role, 0) > 59 or len(parts.get(role, "00")) != 2 for role in "is"):
        return False
    if "y" not in parts:
        return True
    if len(parts["y"]) != 4 and not (len(parts["y"]) == 2 and "d" in parts):
        return False
    try:
        datetime.date(numbers["y"] + (2000 if len(parts["y"]) == 2 else 0), numbers["m"], numbers.get("d", 1))
    except ValueError:
        return False
    return numbers["y"] > 999 or len(parts["y"]) == 2


def _move_clock(numbers: dict[str, int], unit: str, by: int, *, hours: bool, held: bool) -> None:
    """Move a time on its clock, or a duration; with ``held`` (of AM and PM) the hour stays."""
    if held:
        numbers["i"] = (numbers["i"] + by) % 60
        return
    seconds = sum(size * numbers.get(role, 0) for role, size in CLOCK.items()) + by * CLOCK[unit]
    seconds = seconds % 86_400 if hours else max(0, seconds)
    numbers |= {"h": seconds // 3600, "i": seconds // 60 % 60, "s": seconds % 60}


def _move_date(numbers: dict[str, int], unit: str, by: int) -> None:
    """Move a date in the calendar; one that ends with its month stays within the other month."""
    century = 2000 if numbers["y"] < 100 else 0
    if unit == "d":
        moved = datetime.date(numbers["y"] + century, numbers["m"], numbers["d"]) + datetime.timedelta(days=by)
        numbers |= {"y": moved.year - century, "m": moved.month, "d": moved.day}
        return
    year, month = divmod(numbers["y"] * 12 + numbers["m"] - 1 + by * (12 if unit == "y" else 1), 12)
    last = calendar.monthrange(year + century, month + 1)[1]
    numbers |= {"y": year, "m": month + 1, "d": min(numbers.get("d", 1), last)}


# --------------------------------------------------------------------------------------- neighbours

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
