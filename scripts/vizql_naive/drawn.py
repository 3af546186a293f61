"""Valid structured queries, drawn so that most of them have rows: values of filters are those of the data.

>>> from vizql_naive.tables import generated, superstore
>>> drawn(superstore(), generated(0), "0/3") == drawn(superstore(), generated(0), "0/3")
True

Formulas come from ``grammar``. Some queries name something that is not executed, so that refusals are seen, too.
Not covered: table calculations but one, and keys that change no row (``debug``, ``connections``).
"""

from __future__ import annotations

import copy
import datetime
import random
from typing import Any

from nl2sql.vizql.source import DataSource, FieldMetadata
from vizql_naive.formulas import FUNCTIONS
from vizql_naive.grammar import Grammar
from vizql_naive.tables import Rows

PARTS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY")
OF_DATES = (*PARTS, *(f"TRUNC_{part}" for part in PARTS))
COUNTS = ("COUNT", "COUNTD", "MIN", "MAX")
AMOUNTS = (*COUNTS, "SUM", "AVG", "MEDIAN", "STDEV", "VAR")
NUMBERS, DATES = ("INTEGER", "REAL"), ("DATE", "DATETIME")
ALIASES = ("m0", "g0", "m1", "Sales", 'say "x"', "a'b", "b c", "Total")
REACHED = {"orders": ("orders", "products", "people", "suppliers"), "products": ("products", "suppliers")}
REFUSED = (
    {"fieldCaption": "Profit (bin)"},
    {"fieldCaption": "Target", "function": "SUM"},
    {"fieldCaption": "Own L", "calculation": "{FIXED [Region]: SUM([Sales])}"},
    {"fieldCaption": "Own R", "calculation": "RUNNING_SUM(SUM([Sales]))"},
    {"fieldCaption": "Own P", "calculation": "SUM([Quantity]) ^ 2"},
    {"fieldCaption": "Own D", "calculation": "ROUND(SUM([Sales]), -1)"},
    {
        "fieldCaption": "Discount",
        "function": "MAX",
        "tableCalculation": {"tableCalcType": "RANK", "dimensions": [{"fieldCaption": "Region"}]},
    },
)


def drawn(source: DataSource, rows: Rows, seed: str) -> dict[str, Any]:
    """A request with a valid query; the same for the same seed."""
    return _Drawn(source, rows, random.Random(seed)).request()


class _Drawn:
    def __init__(self, source: DataSource, rows: Rows, draw: random.Random) -> None:
        self.source, self.rows, self.draw = source, rows, draw
        home = draw.choices(["orders", "products", "people"], [8, 1.5, 0.5])[0]
        reached = REACHED.get(home, (home,))
        if draw.random() < 0.5:
            reached = (home,)
        usual = [f for f in source.fields if f.columnClass == "COLUMN" and f.logicalTableId in reached]
        own = [f for f in source.fields if f.columnClass == "CALCULATION" and home == "orders"]
        self.dimensions = [f for f in usual if f.fieldRole == "DIMENSION"]
        self.measures = [f for f in [*usual, *own] if f.fieldRole == "MEASURE"]
        self.home = home
        self.raw = draw.random() < 0.12
        self.grammar = Grammar(draw, [f for f in usual if f.logicalTableId == home], self.member)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    # -------------------------------------------------------------------------------------------------- the request

    def request(self) -> dict[str, Any]:
        query: dict[str, Any] = {"fields": self.fields()}
        if self.chance(0.65):
            query["filters"] = self.filters()
        if self.chance(0.15):
            query["parameters"] = self.parameters()
        request: dict[str, Any] = {"datasource": {"datasourceLuid": "superstore"}, "query": query}
        options: dict[str, Any] = {"disaggregate": True} if self.raw else {}
        if self.chance(0.2):
            options["rowLimit"] = self.draw.choice([1, 2, 3, 5, 10, 40])
        if self.chance(0.05):
            options["returnFormat"] = self.draw.choice(["OBJECTS", "ARRAYS"])
        if self.chance(0.06) and "calculation" not in str(query):
            options["interpretFieldCaptionsAsFieldNames"] = True
            self.by_name(query)
        return request | ({"options": options} if options else {})

    def by_name(self, part: Any) -> None:
        """Every caption becomes its field's name."""
        for inner in part.values() if isinstance(part, dict) else part:
            if isinstance(inner, dict | list):
                self.by_name(inner)
        if isinstance(part, dict) and "fieldCaption" in part:
            known = self.source.field(part["fieldCaption"])
            part["fieldCaption"] = known.fieldName if known else part["fieldCaption"]

    def fields(self) -> list[dict[str, Any]]:
        made: dict[Any, dict[str, Any]] = {}
        for i in range(self.draw.choice([1, 1, 2, 2, 3, 4])):
            part = self.field(i)
            made[part["fieldCaption"], part.get("function"), part.get("binSize")] = part
        if self.chance(0.08):
            last = [part for part in made.values() if "calculation" in part]
            more = f"[{last[0]['fieldCaption'].upper()}]" if last else "[Quantity]"
            made["over"] = {"fieldCaption": "Over", "calculation": f"ISNULL({more})"}
        if self.chance(0.04):
            made["refused"] = copy.deepcopy(self.draw.choice(REFUSED))
        fields = list(made.values())
        for priority, part in zip(self.draw.sample(range(1, 9), len(fields)), fields, strict=True):
            self.shown(part, priority)
        return fields

    def shown(self, part: dict[str, Any], priority: int) -> None:
        if self.chance(0.3):
            part["sortPriority"] = priority
        if self.chance(0.25):
            part["sortDirection"] = self.draw.choice(["ASC", "DESC"])
        if self.chance(0.15):
            part["maxDecimalPlaces"] = self.draw.choice([0, 0, 1, 2, 3, 9, 40])
        if self.chance(0.1):
            part["fieldAlias"] = self.draw.choice(ALIASES)

    def field(self, i: int) -> dict[str, Any]:
        kind = self.draw.choices(["dimension", "measure", "dated", "bin", "calculation"], [5, 6, 2, 1, 2.5])[0]
        part: dict[str, Any] = {}
        if kind == "dated" and (dates := [f for f in self.dimensions if f.dataType in DATES]):
            part |= {"fieldCaption": self.draw.choice(dates).fieldCaption, "function": self.draw.choice(OF_DATES)}
        elif kind == "bin":
            numbers = [f for f in self.measures if not f.is_aggregate]
            size = self.draw.choice([1, 2.5, 10, 100, 12.25])
            part |= {"fieldCaption": self.draw.choice(numbers or self.measures[:1]).fieldCaption, "binSize": size}
        elif kind == "calculation":
            level = "row" if self.raw or self.chance(0.35) else "aggregate"
            part = {"fieldCaption": f"Own {i}", "calculation": self.grammar.formula(level)}
        elif kind == "measure":
            part = self.measured(raw=self.raw)
        else:
            part = {"fieldCaption": self.draw.choice(self.dimensions).fieldCaption}
        return part

    def measured(self, raw: bool = False) -> dict[str, Any]:
        """A measure with a function, or a function of a dimension; ``raw``: as it is."""
        if raw:
            usual = [f for f in self.measures if not f.is_aggregate]
            return {"fieldCaption": self.draw.choice(usual).fieldCaption}
        among = self.dimensions if self.chance(0.2) else self.measures
        known = self.draw.choice(among)
        if known.is_aggregate:
            return {"fieldCaption": known.fieldCaption} | ({"function": "AGG"} if self.chance(0.3) else {})
        if known.fieldRole == "MEASURE" and self.chance(0.06):
            return {"fieldCaption": known.fieldCaption}  # its default function
        away = known.logicalTableId not in ("", self.home)
        allowed = ("MIN", "MAX", "COUNTD") if away else AMOUNTS if known.fieldRole == "MEASURE" else COUNTS
        return {"fieldCaption": known.fieldCaption, "function": self.draw.choice(allowed)}

    def parameters(self) -> list[dict[str, Any]]:
        values = {
            "Churn Rate": self.draw.choice([0.25, 0.5, 3]),
            "Profit Bin Size": self.draw.choice([50, 200]),
            "Top Segment": self.draw.choice(["Consumer", "Corporate"]),
            "Start": self.draw.choice(["2021-01-03", "2022-06-30"]),
            "With Gifts": self.chance(0.5),
        }
        asked = self.draw.sample(sorted(values), self.draw.choice([1, 2]))
        return [{"parameterCaption": name, "value": values[name]} for name in asked]

    # -------------------------------------------------------------------------------------------------- the filters

    def filters(self) -> list[dict[str, Any]]:
        kinds = (self.set, self.match, self.quantitative, self.dated, self.relative, self.top, self.condition)
        made: dict[str, dict[str, Any]] = {}
        for _ in range(self.draw.choice([1, 1, 2, 3])):
            part = self.draw.choices(kinds, [4, 2, 3, 1.5, 2, 2.5, 2])[0]()
            if part is not None:
                made[str(sorted(part["field"].items()))] = part
        for part in made.values():
            on_groups = part["field"].get("function") in AMOUNTS
            if self.chance(0.02 if on_groups else 0.25):
                part["context"] = self.chance(0.9)
        return list(made.values())

    def member(self, known: FieldMetadata) -> Any:
        """A value of a field, from the data, as a query writes it."""
        table = known.logicalTableId or "orders"
        column = "sales" if known.columnClass == "CALCULATION" else known.column
        values = [row[column] for row in self.rows[table] if row[column] is not None]
        return self.draw.choice(values)

    def nullable(self, values: list[Any]) -> list[Any]:
        return [*values, None] if self.chance(0.25) else values

    def away(self, part: dict[str, Any]) -> dict[str, Any]:
        return part | ({"exclude": self.chance(0.8)} if self.chance(0.35) else {})

    def set(self) -> dict[str, Any]:
        known = self.draw.choice(self.dimensions)
        about: dict[str, Any] = {"fieldCaption": known.fieldCaption}
        count = self.draw.choice([1, 2, 3, 5])
        members: list[Any] = [self.member(known) for _ in range(count)]
        if self.chance(0.1):
            about = {"calculation": self.grammar.of_kind("BOOLEAN", "row")}
            members = [self.chance(0.5)]
        elif known.dataType in DATES and self.chance(0.7):
            function = self.draw.choice(OF_DATES)
            about["function"] = function
            members = [FUNCTIONS[function](day) for day in members]
        elif self.chance(0.08) and not self.raw:
            about, members = {"fieldCaption": "Quantity", "function": "COUNT"}, [self.draw.randrange(5), 1]
        elif known.aliases and self.chance(0.5):
            members = [self.draw.choice(known.aliases)["value"], *members]
        elif known.dataType in DATES:
            members = [day.isoformat() for day in members]
        members = [day.isoformat() if isinstance(day, datetime.date) else day for day in members]
        members = list(dict.fromkeys(members))
        return self.away({"field": about, "filterType": "SET", "values": self.nullable(members)})

    def match(self) -> dict[str, Any] | None:
        known = self.draw.choice([f for f in self.dimensions if f.dataType == "STRING"])
        text = self.draw.choice([self.member(known), self.member(known), "a", "%"])
        about = {"fieldCaption": known.fieldCaption}
        if self.chance(0.1) and not self.raw:
            about["function"] = self.draw.choice(["MIN", "MAX"])
        if self.chance(0.1):
            about = {"calculation": self.grammar.of_kind("STRING", "row")}
        cut = self.draw.randrange(len(text) + 1)
        texts = {"startsWith": text[:cut], "contains": text[cut // 2 : cut + 1], "endsWith": text[cut:]}
        asked = {key: self.draw.choice([str.upper, str.lower, str])(item) for key, item in texts.items()}
        asked = {key: item for key, item in asked.items() if item.strip() and item.isascii()}
        kept = self.draw.sample(sorted(asked), min(len(asked), self.draw.choice([1, 1, 2])))
        part = {"field": about, "filterType": "MATCH"} | {key: asked[key] for key in kept}
        return self.away(part) if kept else None

    def quantitative(self) -> dict[str, Any]:
        about: dict[str, Any]
        if self.chance(0.15):
            about = {"calculation": self.grammar.of_kind("REAL", "row" if self.raw else "aggregate")}
            ends = [self.draw.choice([-50.125, 0.0625, 3.0625, 200.125]) for _ in range(2)]
        elif self.raw or self.chance(0.5):
            known = self.draw.choice([f for f in self.measures if not f.is_aggregate])
            about, ends = {"fieldCaption": known.fieldCaption}, [self.member(known), self.member(known)]
        else:
            about = self.measured()
            known = self.draw.choice(self.measures)
            ends = [self.amount(about, known) for _ in range(2)]
            if self.source.field(about["fieldCaption"]).dataType not in NUMBERS and "COUNT" not in str(about):  # type: ignore[union-attr]
                about = {"fieldCaption": known.fieldCaption}
        return self.ends(about, "QUANTITATIVE_NUMERICAL", ("min", "max"), ends)

    def amount(self, about: dict[str, Any], known: FieldMetadata) -> float:
        """A number near which a function's values may be."""
        function = about.get("function")
        if function in ("COUNT", "COUNTD"):
            return self.draw.randrange(8)
        if function in ("STDEV", "VAR", "AGG", None):
            return self.draw.randrange(300) + 0.0625
        times = self.draw.randrange(1, 20) if function == "SUM" else 1
        return sum(self.member(known) for _ in range(times))

    def ends(self, about: Any, kind: str, names: tuple[str, str], ends: list[Any]) -> dict[str, Any]:
        how = self.draw.choices(["RANGE", "MIN", "MAX", "ONLY_NULL", "ONLY_NON_NULL"], [4, 3, 3, 1, 1])[0]
        part = {"field": about, "filterType": kind, "quantitativeFilterType": how}
        low, high = sorted(ends)
        part |= {names[0]: low} if how in ("RANGE", "MIN") else {}
        part |= {names[1]: high} if how in ("RANGE", "MAX") else {}
        return part | ({"includeNulls": self.chance(0.7)} if "ONLY" not in how and self.chance(0.35) else {})

    def date(self) -> tuple[dict[str, Any], list[datetime.date]] | None:
        known = [f for f in self.dimensions if f.dataType in DATES]
        if not known:
            return None
        field = self.draw.choice(known)
        about: dict[str, Any] = {"fieldCaption": field.fieldCaption}
        if self.chance(0.3):
            more = () if self.raw else ("MIN", "MAX")
            about["function"] = self.draw.choice(("TRUNC_MONTH", "TRUNC_WEEK", "TRUNC_DAY", "TRUNC_YEAR", *more))
        return about, [self.member(field), self.member(field)]

    def dated(self) -> dict[str, Any] | None:
        if (date := self.date()) is None:
            return None
        ends = [day.isoformat()[:10] for day in date[1]]
        return self.ends(date[0], "QUANTITATIVE_DATE", ("minDate", "maxDate"), ends)

    def relative(self) -> dict[str, Any] | None:
        if (date := self.date()) is None:
            return None
        units = ["DAYS", "WEEKS", "MONTHS", "QUARTERS", "YEARS"]
        unit = self.draw.choice(units) if self.chance(0.98) else "HOURS"
        how = self.draw.choice(["CURRENT", "LAST", "LASTN", "NEXT", "NEXTN", "TODATE"])
        part = {"field": date[0], "filterType": "DATE", "periodType": unit, "dateRangeType": how}
        part |= {"rangeN": self.draw.choice([1, 2, 3, 12])} if how in ("LASTN", "NEXTN") else {}
        part |= {"anchorDate": date[1][0].isoformat()[:10]} if self.chance(0.8) else {}
        return part | ({"includeNulls": self.chance(0.7)} if self.chance(0.3) else {})

    def dimension(self) -> dict[str, Any]:
        known = self.draw.choice(self.dimensions)
        part: dict[str, Any] = {"fieldCaption": known.fieldCaption}
        if known.dataType in DATES and self.chance(0.6):
            part["function"] = self.draw.choice(OF_DATES)
        return {"calculation": self.grammar.of_kind("STRING", "row")} if self.chance(0.05) else part

    def top(self) -> dict[str, Any]:
        part = {"field": self.dimension(), "filterType": "TOP", "howMany": self.draw.choice([1, 2, 3, 5, 12])}
        measure = self.measured()
        while "function" not in measure:
            measure = self.measured()
        if self.chance(0.15):
            measure = {"calculation": self.grammar.of_kind("REAL", "aggregate")}
        part["fieldToMeasure"] = measure
        return part | ({"direction": self.draw.choice(["TOP", "BOTTOM"])} if self.chance(0.6) else {})

    def condition(self) -> dict[str, Any]:
        part = {"field": self.dimension(), "filterType": "CONDITION"}
        if self.chance(0.35):
            return part | {"calculation": self.grammar.of_kind("BOOLEAN", "aggregate")}
        sign = self.draw.choice(["=", "<>", "<", "<=", ">", ">="])
        about = self.measured()
        while "function" not in about or about["function"] == "AGG":
            about = self.measured()
        known = self.source.field(about["fieldCaption"])
        assert known is not None
        if about["function"] in ("MIN", "MAX"):
            given = self.member(known)
            given = given.isoformat() if isinstance(given, datetime.date) else given
            if isinstance(given, bool):
                about, given = about | {"function": "COUNT"}, 2
        else:
            given = self.amount(about, known)
        return part | {"condition": about | {"comparison": sign, "value": given}}
