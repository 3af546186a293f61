"""The parameters of a query held to those of its data source: name, type, list, range.

>>> from nl2sql.vizql.source import DataSource
>>> parameter = {"parameterCaption": "Top", "dataType": "INTEGER", "parameterType": "QUANTITATIVE_RANGE", "max": 20}
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "a"}], "parameters": [parameter]})
>>> query = {"fields": [], "parameters": [{"parameterCaption": "Top", "value": 50}]}
>>> [error.message for error in parameter_errors(Checked(query, source), ("parameters", 0))]
["Parameter 'Top' must be at most 20; it is 50"]

Not covered: the periods of date parameters.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

from nl2sql.vizql.filters import is_full_date, is_moment
from nl2sql.vizql.lookup import Checked
from nl2sql.vizql.mending import Change, Place, QueryError, did_you_mean, part_at, shown
from nl2sql.vizql.shape import nearest_date
from nl2sql.vizql.source import ParameterRecord

_TYPES = {
    "INTEGER": (int,),
    "REAL": (int, float),
    "STRING": (str,),
    "BOOLEAN": (bool,),
    "DATE": (str,),
    "DATETIME": (str,),
}
_DATES = {
    "DATE": (is_full_date, "a date of RFC 3339 (YYYY-MM-DD)"),
    "DATETIME": (is_moment, "a date or a moment of RFC 3339 (YYYY-MM-DDThh:mm:ss)"),
}


def parameter_errors(checked: Checked, place: Place) -> Iterator[QueryError]:
    """What is wrong with the parameter at ``place``, whose shape is right, for this data source."""
    part = part_at(checked.query, place)
    caption, here = part["parameterCaption"], (*place, "parameterCaption")
    known = checked.source.parameter(caption)
    if known is None:
        ranked = did_you_mean(caption, [parameter.parameterCaption for parameter in checked.source.parameters])
        text = f"Parameter '{caption}' not found. Did you mean: {', '.join(name for name, _ in ranked)}?"
        ways = [checked.way(place, text, Change(here, name), likelihood=likely) for name, likely in ranked]
        ways.append(checked.way(place, f"Remove parameter '{caption}'", Change(place), likelihood=0.2))
        yield QueryError("not_found", here, f"Parameter '{caption}' not found in schema", tuple(ways))
    elif (wrong := _wrong(known, part["value"])) is not None:
        said, meant = wrong
        here = (*place, "value")
        text = f"Set '{caption}' to {shown(meant)}: {{json}}"
        ways = [checked.way(place, text, Change(here, meant))] if meant is not None else []
        message = f"Parameter '{caption}' must be {said}; it is {shown(part['value'])}"
        yield QueryError("parameter", here, message, tuple(ways))


def _wrong(known: ParameterRecord, value: Any) -> tuple[str, Any] | None:
    """What a value must be that is not, and the nearest one that is."""
    types = _TYPES.get(known.dataType)
    if types and not (isinstance(value, types) and isinstance(value, bool) == (types == (bool,))):
        return f"of type {known.dataType}", _as_type(value, known.dataType)
    is_one, said = _DATES.get(known.dataType, (None, ""))
    if is_one is not None and not is_one(value):
        return said, nearest_date(value)
    if known.parameterType == "LIST":
        return _not_listed(known, value)
    if known.parameterType == "QUANTITATIVE_DATE" and isinstance(value, str) and is_moment(value):
        return _outside_days(known, value)
    if known.parameterType == "QUANTITATIVE_RANGE" and isinstance(value, int | float):
        return _outside(known.min, known.max, value) or _off_step(known, value)
    return None


def _not_listed(known: ParameterRecord, value: Any) -> tuple[str, Any] | None:
    listed = [member.get("value") for member in known.members]
    if value in listed or not listed:
        return None
    near = did_you_mean(str(value), [str(member) for member in listed])[0][0]
    return f"one of {shown(listed)}", next(member for member in listed if str(member) == near)


def _outside(least: Any, most: Any, value: Any, key: Callable[[Any], Any] = lambda end: end) -> tuple[str, Any] | None:
    if least is not None and key(value) < key(least):
        return f"at least {_plain(least)}", _plain(least)
    if most is not None and key(value) > key(most):
        return f"at most {_plain(most)}", _plain(most)
    return None


def _outside_days(known: ParameterRecord, value: str) -> tuple[str, Any] | None:
    """The same of dates and moments, without their time zones; an end that is none says nothing."""
    least, most = (end if end is not None and is_moment(end) else None for end in (known.minDate, known.maxDate))
    return _outside(least, most, value, lambda text: datetime.datetime.fromisoformat(text).replace(tzinfo=None))


def _off_step(known: ParameterRecord, value: float) -> tuple[str, Any] | None:
    """Values go up from ``min`` (without one, 0) by ``step``; a billionth of a step off is rounding."""
    if not known.step:
        return None
    start, step = known.min or 0, known.step
    if isinstance(start, int) and isinstance(step, int) and isinstance(value, int):
        steps = (2 * (value - start) + step) // (2 * step)  # rounded in whole numbers: a float has 53 bits
    else:
        steps = round((value - start) / step)
    nearest = start + steps * step
    if abs(nearest - value) <= 1e-9 * step:
        return None
    return f"{_plain(start)} and steps of {_plain(step)}", _plain(nearest)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_type(value: Any, data_type: str) -> Any:
    text = str(value).strip()
    try:
        if data_type == "INTEGER":
            return int(text) if text.lstrip("+-").isdecimal() else round(float(text))
        if data_type == "REAL":
            return float(text)
    except (ValueError, OverflowError):
        return None
    if data_type == "BOOLEAN":
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    return nearest_date(value) if data_type in _DATES else text if data_type == "STRING" else None
