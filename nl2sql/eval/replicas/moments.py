"""How a column writes its dates and times, learned from its values, so that a neighbour is written alike.

A value is cut into numbers, words and what stands between; the order of year, month, day, hour, minute, second is the
first of a few under which the values read as dates or times and are written back as they were.

>>> read_moments(["31/12/2019", "5/1/2020"]).moved("31/12/2019", "d", 1)
'1/1/2020'
>>> read_moments(["9:05 PM", "12:59 PM"]).moved("12:59 PM", "i", 1)
'12:00 PM'
"""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
