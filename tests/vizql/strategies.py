"""Valid queries over the data source of ``fixtures/vizql/superstore.yaml``, of every kind that the service knows.

A query is built field by field so that no rule is broken; nothing is filtered by our validator, which is what these
queries test. ``newer``: with what the service knows since 20263 only.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from nl2sql.vizql.source import DataSource, FieldMetadata, read_source

FIXTURES = Path(__file__).parents[1] / "fixtures" / "vizql"
SUPERSTORE: DataSource = read_source(FIXTURES / "superstore.yaml")
TEXTS = st.text("abc é'\"[]0", min_size=1, max_size=6).filter(str.strip)
NUMBERS = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3)))
DATES = st.dates(date(2015, 1, 1), date(2026, 12, 31)).map(date.isoformat)
PARTS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY")
ANY = ("COUNT", "COUNTD", "MIN", "MAX")
OF_TYPE = {
    "REAL": (*ANY, "SUM", "AVG", "MEDIAN", "STDEV", "VAR"),
    "INTEGER": (*ANY, "SUM", "AVG", "MEDIAN", "STDEV", "VAR"),
    "STRING": ANY,
    "BOOLEAN": ANY,
    "DATE": (*ANY, *PARTS, *(f"TRUNC_{part}" for part in PARTS)),
}
OF_TYPE["DATETIME"] = OF_TYPE["DATE"]
FORMULAS = (
    "SUM([Profit])/COUNTD([Order ID])",
    "[Ship Mode] = 'First [Class'",
    "COUNT([Orders])",
    "{FIXED [Region]: SUM([Sales])}",
)
COLUMNS = [field for field in SUPERSTORE.fields if field.columnClass == "COLUMN"]
DIMENSIONS = [field for field in COLUMNS if field.fieldRole == "DIMENSION"]
MEASURES = [field for field in SUPERSTORE.fields if field.fieldRole == "MEASURE" and not field.is_aggregate]


def functions_of(field: FieldMetadata) -> tuple[str, ...]:
    """The functions that are valid for a field, dimensions without those for amounts."""
    allowed = OF_TYPE[field.dataType]
    if field.fieldRole == "MEASURE":
        return allowed
    return tuple(name for name in allowed if name in ANY or field.dataType in ("DATE", "DATETIME"))


@st.composite
def _named(draw: st.DrawFn, part: dict[str, Any]) -> dict[str, Any]:
    """``part`` with some of the keys that any field can have; sortPriority comes later, since it must be unique."""
    optional = st.fixed_dictionaries(
        {},
        optional={
            "fieldAlias": TEXTS,
            "maxDecimalPlaces": st.integers(0, 9),
            "sortDirection": st.sampled_from(["ASC", "DESC"]),
        },
    )
    return part | (draw(optional) if draw(st.integers(0, 3)) == 0 else {})


@st.composite
def _dimension(draw: st.DrawFn) -> dict[str, Any]:
    others = [field for field in SUPERSTORE.fields if field.fieldRole == "DIMENSION" or field.is_aggregate]
    return {"fieldCaption": draw(st.sampled_from(others)).fieldCaption}


@st.composite
def with_function(draw: st.DrawFn, among: list[FieldMetadata] | None = None) -> dict[str, Any]:
    """A field with a function that fits it."""
    field = draw(st.sampled_from(among or [*MEASURES, *DIMENSIONS]))
    return {"fieldCaption": field.fieldCaption, "function": draw(st.sampled_from(functions_of(field)))}


@st.composite
def _calculated(draw: st.DrawFn) -> dict[str, Any]:
    caption = f"Own {draw(st.integers(1, 40))}"
    return {"fieldCaption": caption, "calculation": draw(st.sampled_from(FORMULAS))}


@st.composite
def _bin(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.one_of(st.integers(1, 10**5), st.sampled_from([1.5, 12.25])))
    return {"fieldCaption": draw(st.sampled_from(MEASURES)).fieldCaption, "binSize": size}


SORTS = st.builds(lambda field, to: field | {"direction": to}, with_function(), st.sampled_from(["ASC", "DESC"]))


@st.composite
def _table_calculation(draw: st.DrawFn, depth: int = 0, newer: bool = False) -> dict[str, Any]:
    """A specification of each type, with some of its keys."""
    reference = st.one_of(_dimension(), with_function())
    kinds = {
        "CUSTOM": {"levelAddress": reference, "restartEvery": reference, "customSort": SORTS},
        "NESTED": {"levelAddress": reference, "customSort": SORTS},
        "PERCENT_OF_TOTAL": {"levelAddress": reference, "customSort": SORTS},
        "PERCENTILE": {"direction": st.sampled_from(["ASC", "DESC"])},
        "RANK": {"rankType": _among(newer, "COMPETITION", "MODIFIED COMPETITION", "DENSE", "UNIQUE")},
        "RUNNING_TOTAL": {"aggregation": _among(newer, "SUM", "AVG", "MIN", "MAX"), "restartEvery": reference},
        "MOVING_CALCULATION": {
            "aggregation": _among(newer, "SUM", "AVG", "MIN", "MAX"),
            **{key: st.integers(0, 9) for key in ("previous", "next")},
            **{key: st.booleans() for key in ("includeCurrent", "fillInNull")},
        },
    }
    for name in ("DIFFERENCE_FROM", "PERCENT_DIFFERENCE_FROM", "PERCENT_FROM"):
        kinds[name] = {"relativeTo": _among(newer, "PREVIOUS", "NEXT", "FIRST", "LAST"), "levelAddress": reference}
    kind = draw(st.sampled_from(sorted(kinds)))
    if depth < 2 and kind in ("RUNNING_TOTAL", "MOVING_CALCULATION"):
        kinds[kind]["secondaryTableCalculation"] = _table_calculation(depth + 1, newer)
    needed = {"dimensions": st.lists(reference, max_size=2)}
    if kind == "NESTED":
        needed["fieldCaption"] = TEXTS
    return {"tableCalcType": kind} | draw(st.fixed_dictionaries(needed, optional=kinds[kind]))


def _among(newer: bool, *names: str) -> st.SearchStrategy[str]:
    return st.sampled_from([*names, "UNSPECIFIED"] if newer else list(names))


@st.composite
def _over_the_table(draw: st.DrawFn, newer: bool = False) -> dict[str, Any]:
    field = draw(st.one_of(with_function(), _calculated()))
    nested = st.lists(_table_calculation(newer=newer), max_size=2)
    more = {"tableCalculation": draw(_table_calculation(newer=newer))}
    return field | more | ({"nestedTableCalculations": draw(nested)} if draw(st.booleans()) else {})


# ------------------------------------------------------------------------------------------------------ filters


def value_of(data_type: str) -> st.SearchStrategy[Any]:
    """Values that a SET filter of this type may have."""
    kinds = {"STRING": TEXTS, "BOOLEAN": st.booleans(), "DATE": DATES, "DATETIME": DATES}
    return kinds.get(data_type, NUMBERS)


@st.composite
def _set(draw: st.DrawFn) -> dict[str, Any]:
    field = draw(st.sampled_from(COLUMNS))
    about, kind = {"fieldCaption": field.fieldCaption}, field.dataType
    if field.dataType == "DATE" and draw(st.booleans()):
        about, kind = about | {"function": draw(st.sampled_from(PARTS))}, "INTEGER"
    values = draw(st.lists(st.one_of(st.none(), value_of(kind)), min_size=1, max_size=4))
    return {"field": about, "filterType": "SET", "values": values} | draw(_exclude())


def _exclude() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={"exclude": st.booleans()})


@st.composite
def _match(draw: st.DrawFn) -> dict[str, Any]:
    texts = [field for field in COLUMNS if field.dataType == "STRING"]
    keys = draw(st.sets(st.sampled_from(["contains", "startsWith", "endsWith"]), min_size=1))
    about = {"fieldCaption": draw(st.sampled_from(texts)).fieldCaption}
    return {"field": about, "filterType": "MATCH"} | {k: draw(TEXTS) for k in sorted(keys)} | draw(_exclude())


@st.composite
def _quantitative(draw: st.DrawFn) -> dict[str, Any]:
    dated = draw(st.booleans())
    if dated:
        about = {"fieldCaption": draw(st.sampled_from(["Order Date", "Ship Date"]))}
        about |= {"function": draw(st.sampled_from(["MIN", "MAX", "TRUNC_MONTH"]))} if draw(st.booleans()) else {}
    else:
        field = draw(st.sampled_from(MEASURES))
        about = {"fieldCaption": field.fieldCaption}
        about |= {"function": draw(st.sampled_from(functions_of(field)))} if draw(st.booleans()) else {}
    kind = draw(st.sampled_from(["RANGE", "MIN", "MAX", "ONLY_NULL", "ONLY_NON_NULL"]))
    low, high = sorted(draw(st.tuples(DATES, DATES) if dated else st.tuples(NUMBERS, NUMBERS)))
    ends = {"RANGE": (1, 1), "MIN": (1, 0), "MAX": (0, 1)}.get(kind, (0, 0))
    names = ("minDate", "maxDate") if dated else ("min", "max")
    part = {"field": about, "filterType": "QUANTITATIVE_DATE" if dated else "QUANTITATIVE_NUMERICAL"}
    part |= {"quantitativeFilterType": kind}
    part |= {name: value for name, value, is_there in zip(names, (low, high), ends, strict=True) if is_there}
    return part | ({"includeNulls": draw(st.booleans())} if any(ends) and draw(st.booleans()) else {})


@st.composite
def _relative(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["CURRENT", "LAST", "LASTN", "NEXT", "NEXTN", "TODATE"]))
    period = draw(st.sampled_from(["MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS", "QUARTERS", "YEARS"]))
    about = {"fieldCaption": draw(st.sampled_from(["Order Date", "Ship Date"]))}
    part = {"field": about, "filterType": "DATE", "periodType": period, "dateRangeType": kind}
    part |= {"rangeN": draw(st.integers(1, 99))} if kind in ("LASTN", "NEXTN") else {}
    return part | draw(st.fixed_dictionaries({}, optional={"anchorDate": DATES, "includeNulls": st.booleans()}))


@st.composite
def _top(draw: st.DrawFn) -> dict[str, Any]:
    about = {"fieldCaption": draw(st.sampled_from(DIMENSIONS)).fieldCaption}
    part = {"field": about, "filterType": "TOP", "howMany": draw(st.integers(1, 99))}
    part["fieldToMeasure"] = draw(with_function(MEASURES))
    return part | draw(st.fixed_dictionaries({}, optional={"direction": st.sampled_from(["TOP", "BOTTOM"])}))


@st.composite
def _condition(draw: st.DrawFn) -> dict[str, Any]:
    part = {"field": {"fieldCaption": draw(st.sampled_from(DIMENSIONS)).fieldCaption}, "filterType": "CONDITION"}
    if draw(st.booleans()):
        return part | {"calculation": "SUM([Sales]) > 10"}
    sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    return part | {"condition": draw(with_function(MEASURES)) | {"comparison": sign, "value": draw(NUMBERS)}}


@st.composite
def _of_formula(draw: st.DrawFn) -> dict[str, Any]:
    part = {"field": {"calculation": draw(st.sampled_from(FORMULAS))}, "filterType": "QUANTITATIVE_NUMERICAL"}
    return part | {"quantitativeFilterType": "MIN", "min": draw(NUMBERS)}


FILTERS = st.one_of(_set(), _match(), _quantitative(), _relative(), _top(), _condition(), _of_formula())
VALUES = {
    "Profit Bin Size": st.integers(1, 20).map(lambda n: 50 * n),
    "Top Segment": st.sampled_from(["Consumer", "Corporate"]),
    "Start": st.dates(date(2020, 1, 1), date(2024, 12, 31)).map(date.isoformat),
    "Churn Rate": st.floats(0, 1),
    "With Gifts": st.booleans(),
}


@st.composite
def _parameters(draw: st.DrawFn) -> list[dict[str, Any]]:
    captions = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    return [{"parameterCaption": caption, "value": draw(VALUES[caption])} for caption in captions]


def _unlike(field: dict[str, Any]) -> Any:
    """What no two fields of a query may share."""
    if "calculation" in field:
        return field["fieldCaption"]
    return (field["fieldCaption"], field.get("function"), field.get("binSize"), str(field.get("tableCalculation")))


def _filter_about(part: dict[str, Any]) -> Any:
    return tuple(sorted(part["field"].items()))


@st.composite
def queries(draw: st.DrawFn, newer: bool = False) -> dict[str, Any]:
    """A valid query over ``SUPERSTORE``."""
    kinds = st.one_of(_dimension(), with_function(), _calculated(), _bin(), _over_the_table(newer))
    fields = draw(st.lists(kinds.flatmap(_named), min_size=1, max_size=5, unique_by=_unlike))
    priorities = draw(st.permutations(range(1, 9)))
    for field, priority in zip(fields, priorities, strict=False):
        if draw(st.integers(0, 2)) == 0:
            field["sortPriority"] = priority
    query: dict[str, Any] = {"fields": fields}
    if draw(st.booleans()):
        parts = draw(st.lists(FILTERS, max_size=3, unique_by=_filter_about))
        query["filters"] = [part | ({"context": True} if draw(st.integers(0, 3)) == 0 else {}) for part in parts]
    if draw(st.integers(0, 3)) == 0:
        query["parameters"] = draw(_parameters())
    return query
