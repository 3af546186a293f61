"""Which values filters keep: SET, MATCH, QUANTITATIVE and DATE, as their JSON says.

>>> keeps({"filterType": "SET", "values": ["West", None], "exclude": True}, None)
False
>>> period({"periodType": "MONTHS", "dateRangeType": "LAST", "anchorDate": "2024-03-15"}, datetime.date.today())
(datetime.date(2024, 2, 1), datetime.date(2024, 3, 1))

NULL passes SET where it is listed, a filter with ``exclude`` where it is not, and the others with ``includeNulls``.
Not covered: TOP and CONDITION, which look at groups (``evaluation``).
"""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd

from nl2sql.vizql.source import FieldMetadata
from vizql_naive.formulas import alike, truncated

TODAY = datetime.date(2022, 3, 15)


def keeps(part: dict[str, Any], given: Any, known: FieldMetadata | None = None, today: datetime.date = TODAY) -> bool:
    """Does a value pass a filter? ``known``: the field, where the filter is about its own values."""
    kind = part["filterType"]
    if kind == "SET":
        return _listed(part["values"], given, known) != bool(part.get("exclude"))
    if kind == "MATCH":
        return _matches(part, given) != bool(part.get("exclude"))
    if part.get("quantitativeFilterType") in ("ONLY_NULL", "ONLY_NON_NULL"):
        return (given is None) == (part["quantitativeFilterType"] == "ONLY_NULL")
    if given is None:
        return bool(part.get("includeNulls"))
    if kind == "QUANTITATIVE_NUMERICAL":
        return part.get("min", given) <= given <= part.get("max", given)
    day = datetime.date(given.year, given.month, given.day)
    if kind == "QUANTITATIVE_DATE":
        return part.get("minDate", str(day)) <= str(day) <= part.get("maxDate", str(day))
    first, after = period(part, today)
    return first <= day < after


def _listed(values: list[Any], given: Any, known: FieldMetadata | None) -> bool:
    """Is a value among those of a SET filter? They may be members, too, of a field that is shown by aliases."""
    if given is None:
        return None in values
    if isinstance(given, datetime.date):
        days = [datetime.datetime.fromisoformat(text) for text in values if text is not None]
        return any(same == day for day in days for same, day in [alike(given, day)])
    shown = {alias["member"]: alias["value"] for alias in known.aliases} if known else {}
    return given in [shown.get(item, item) for item in values if item is not None]


def _matches(part: dict[str, Any], given: Any) -> bool:
    if given is None:
        return False
    text, asked = given.lower(), {key: item.lower() for key, item in part.items() if isinstance(item, str)}
    begins, ends = text.startswith(asked.get("startsWith", "")), text.endswith(asked.get("endsWith", ""))
    return begins and ends and asked.get("contains", "") in text


_OFFSETS = {"DAYS": "days", "WEEKS": "weeks", "MONTHS": "months", "YEARS": "years"}


def period(part: dict[str, Any], today: datetime.date) -> tuple[datetime.date, datetime.date]:
    """The days that a DATE filter is about: the first one, and the one after the last."""
    anchor = datetime.date.fromisoformat(part["anchorDate"]) if "anchorDate" in part else today
    unit, n = part["periodType"], part.get("rangeN", 1)
    start = pd.Timestamp(truncated(unit.removesuffix("S"), anchor))

    def moved(periods: int) -> datetime.date:
        names: dict[str, Any] = {"months": 3 * periods} if unit == "QUARTERS" else {_OFFSETS[unit]: periods}
        return (start + pd.DateOffset(**names)).date()

    tomorrow = anchor + datetime.timedelta(1)
    spans = {"CURRENT": (0, 1), "LAST": (-1, 0), "NEXT": (1, 2), "LASTN": (1 - n, 1), "NEXTN": (0, n)}
    if part["dateRangeType"] == "TODATE":
        return start.date(), tomorrow
    first, after = spans[part["dateRangeType"]]
    return moved(first), moved(after)
