"""Faults planted in valid structured queries: is each reported, and do the validator's suggestions mend it?

    python scripts/vizql_faults.py --cases 2000 [--seed 0] [--json]

Valid queries come from the strategies of ``tests/vizql``; each gets one fault, of the kind that is rarest so far among
those that it can have. Counted are faults that are reported at all, those whose first suggestion gives a valid query,
those where that is the query before the fault (``restored``), and those that are valid after at most three steps of
applying the first suggestion that there is. Exit code 1 where less than all are reported, less than 90% mended by the
first suggestion, or less than 95% within three steps. No database, no model.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "vizql"))

from strategies import SUPERSTORE, queries

from nl2sql.vizql.validator import apply, validate

STEPS = 3
COLUMNS = ("planted", "reported", "first", "restored", "within_3")
Case = tuple[str, dict[str, Any], dict[str, Any]]  # the fault's name, the query with it, and without
Fault = Callable[[dict[str, Any], random.Random], bool]


def _pick(draw: random.Random, parts: Iterator[Any]) -> Any:
    there = list(parts)
    return draw.choice(there) if there else None


def _plain(query: dict[str, Any], *kinds: str) -> Iterator[dict[str, Any]]:
    """The fields of one of the kinds: '' is a dimension or a measure that stands for itself."""
    for field in query["fields"]:
        keys = {"function", "calculation", "binSize", "tableCalculation"} & set(field)
        if (not keys and "" in kinds) or (len(keys) == 1 and keys & set(kinds)):
            yield field


def _captioned(query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _plain(query, "", "function", "binSize")
    yield from (part["field"] for part in query.get("filters", ()) if "fieldCaption" in part["field"])


def _filters(query: dict[str, Any], *kinds: str) -> Iterator[dict[str, Any]]:
    return (part for part in query.get("filters", ()) if part["filterType"] in kinds)


def misspelt_caption(query: dict[str, Any], draw: random.Random) -> bool:
    """Two letters that stand side by side change places."""
    part = _pick(draw, _captioned(query))
    if part is None:
        return False
    text = part["fieldCaption"]
    places = [i for i in range(1, len(text) - 1) if text[i] != text[i + 1]]
    i = draw.choice(places)
    part["fieldCaption"] = text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    return SUPERSTORE.field_any_case(part["fieldCaption"]) is None


def lost_letter(query: dict[str, Any], draw: random.Random) -> bool:
    part = _pick(draw, _captioned(query))
    if part is None or len(part["fieldCaption"]) < 5:
        return False
    i = draw.randrange(len(part["fieldCaption"]))
    part["fieldCaption"] = part["fieldCaption"][:i] + part["fieldCaption"][i + 1 :]
    return SUPERSTORE.field_any_case(part["fieldCaption"]) is None


def other_case(query: dict[str, Any], draw: random.Random) -> bool:
    part = _pick(draw, _captioned(query))
    if part is None:
        return False
    part["fieldCaption"] = draw.choice([str.upper, str.lower])(part["fieldCaption"])
    return SUPERSTORE.field(part["fieldCaption"]) is None


def measure_without_function(query: dict[str, Any], draw: random.Random) -> bool:
    fields = [f for f in _plain(query, "function") if _role(f) == "MEASURE"]
    if not fields:
        return False
    del draw.choice(fields)["function"]
    return True


def dimension_with_function(query: dict[str, Any], draw: random.Random) -> bool:
    fields = [f for f in _plain(query, "") if _role(f) == "DIMENSION"]
    if not fields:
        return False
    draw.choice(fields)["function"] = draw.choice(["SUM", "AVG", "MEDIAN", "STDEV"])
    return True


def function_of_another_type(query: dict[str, Any], draw: random.Random) -> bool:
    fields = [f for f in _plain(query, "function") if _role(f) == "MEASURE"]
    if not fields:
        return False
    draw.choice(fields)["function"] = draw.choice(["YEAR", "TRUNC_MONTH", "COLLECT"])
    return True


def unknown_function(query: dict[str, Any], draw: random.Random) -> bool:
    field = _pick(draw, _plain(query, "function"))
    if field is None:
        return False
    name = field["function"]
    field["function"] = draw.choice([name.lower(), name + "S", name[:-1] + name[-1] * 2])
    return True


def misspelt_key(query: dict[str, Any], draw: random.Random) -> bool:
    field = draw.choice(query["fields"])
    key = draw.choice(sorted(field))
    i = draw.randrange(1, len(key) - 1)
    field[key[:i] + key[i + 1] + key[i] + key[i + 2 :]] = field.pop(key)
    return key not in field


def number_as_text(query: dict[str, Any], draw: random.Random) -> bool:
    fields = [(f, k) for f in query["fields"] for k in ("sortPriority", "maxDecimalPlaces", "binSize") if k in f]
    if not fields:
        return False
    field, key = draw.choice(fields)
    field[key] = str(field[key])
    return True


def sorted_twice(query: dict[str, Any], draw: random.Random) -> bool:
    if len(query["fields"]) < 2:
        return False
    for field in draw.sample(query["fields"], 2):
        field["sortPriority"] = 1
    return True


def null_for_nothing(query: dict[str, Any], draw: random.Random) -> bool:
    draw.choice(query["fields"])["fieldAlias"] = None
    return True


def function_beside_calculation(query: dict[str, Any], draw: random.Random) -> bool:
    field = _pick(draw, _plain(query, "calculation"))
    if field is not None:
        field["function"] = "SUM"
    return field is not None


def field_twice(query: dict[str, Any], draw: random.Random) -> bool:
    field = copy.deepcopy(draw.choice(query["fields"]))
    field.pop("sortPriority", None)
    query["fields"].append(field)
    return True


def turned_range(query: dict[str, Any], draw: random.Random) -> bool:
    for low, high in (("min", "max"), ("minDate", "maxDate")):
        part = _pick(draw, (p for p in query.get("filters", ()) if low in p and high in p and p[low] != p[high]))
        if part is not None:
            part[low], part[high] = part[high], part[low]
            return True
    return False


def missing_end(query: dict[str, Any], draw: random.Random) -> bool:
    keys = ("min", "max", "minDate", "maxDate")
    parts = [p for p in query.get("filters", ()) if p.get("quantitativeFilterType") == "RANGE"]
    if not parts:
        return False
    part = draw.choice(parts)
    del part[draw.choice([key for key in keys if key in part])]
    return True


def date_of_another_form(query: dict[str, Any], draw: random.Random) -> bool:
    parts = [(p, k) for p in query.get("filters", ()) for k in ("minDate", "maxDate", "anchorDate") if k in p]
    if not parts:
        return False
    part, key = draw.choice(parts)
    part[key] = draw.choice([part[key].replace("-", "/"), part[key] + "T00:00:00Z", part[key].replace("-0", "-")])
    return "-0" in part[key] or "/" in part[key] or "T" in part[key] or len(part[key]) < 10


def value_of_another_type(query: dict[str, Any], draw: random.Random) -> bool:
    for part in _filters(query, "SET"):
        for i, value in enumerate(part["values"]):
            if isinstance(value, bool | int | float):
                part["values"][i] = str(value)
                return True
    return False


def second_filter(query: dict[str, Any], draw: random.Random) -> bool:
    part = _pick(draw, iter(query.get("filters", ())))
    if part is not None:
        query["filters"].append(copy.deepcopy(part))
    return part is not None


def lost_filter_type(query: dict[str, Any], draw: random.Random) -> bool:
    part = _pick(draw, _filters(query, "SET", "MATCH", "TOP", "DATE"))
    if part is not None:
        del part["filterType"]
    return part is not None


def filter_type_in_another_case(query: dict[str, Any], draw: random.Random) -> bool:
    part = _pick(draw, iter(query.get("filters", ())))
    if part is not None:
        part["filterType"] = part["filterType"].capitalize()
    return part is not None


def field_as_text(query: dict[str, Any], draw: random.Random) -> bool:
    places = [i for i, f in enumerate(query["fields"]) if set(f) == {"fieldCaption"}]
    if not places:
        return False
    i = draw.choice(places)
    query["fields"][i] = query["fields"][i]["fieldCaption"]
    return True


def parameter_misspelt(query: dict[str, Any], draw: random.Random) -> bool:
    for part in query.get("parameters", ()):
        part["parameterCaption"] += "s"
        return True
    return False


def parameter_out_of_range(query: dict[str, Any], draw: random.Random) -> bool:
    for part in query.get("parameters", ()):
        if part["parameterCaption"] == "Profit Bin Size":
            part["value"] = draw.choice([part["value"] + 1, 5000, -50, str(part["value"])])
            return True
    return False


def _role(field: dict[str, Any]) -> str:
    known = SUPERSTORE.field(field["fieldCaption"])
    return "" if known is None or known.is_aggregate else known.fieldRole


FAULTS: tuple[Fault, ...] = (
    misspelt_caption,
    lost_letter,
    other_case,
    measure_without_function,
    dimension_with_function,
    function_of_another_type,
    unknown_function,
    misspelt_key,
    number_as_text,
    sorted_twice,
    null_for_nothing,
    function_beside_calculation,
    field_twice,
    turned_range,
    missing_end,
    date_of_another_form,
    value_of_another_type,
    second_filter,
    lost_filter_type,
    filter_type_in_another_case,
    field_as_text,
    parameter_misspelt,
    parameter_out_of_range,
)


def planted(count: int, start: int) -> list[Case]:
    """``count`` queries with one fault each; the same for the same start."""
    draw, cases = random.Random(start), []

    @seed(start)
    @settings(
        max_examples=count + count // 10 + 10,  # nearly every query takes some fault
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(queries())
    def collect(query: dict[str, Any]) -> None:
        if len(cases) < count:
            planted_so_far = Counter(case[0] for case in cases)
            for fault in sorted(FAULTS, key=lambda fault: (planted_so_far[fault.__name__], draw.random())):
                faulty = copy.deepcopy(query)
                if fault(faulty, draw):
                    cases.append((fault.__name__, faulty, query))
                    return

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collect()
    return cases


def steps_to_valid(query: Any) -> int | None:
    """How many first suggestions make a query valid; None where three do not."""
    for step in range(STEPS + 1):
        validation = validate(query, SUPERSTORE)
        if validation.is_valid:
            return step
        if not validation.suggestions:
            return None
        query = apply(query, validation.suggestions[0])
    return None


def measure(cases: list[Case]) -> dict[str, dict[str, int]]:
    """The counts per kind of fault, by ``COLUMNS``."""
    table: dict[str, dict[str, int]] = {}
    for name, query, before in cases:
        row = table.setdefault(name, dict.fromkeys(COLUMNS, 0))
        steps = steps_to_valid(query)
        row["planted"] += 1
        row["reported"] += steps != 0
        row["first"] += steps == 1
        ways = validate(query, SUPERSTORE).suggestions
        row["restored"] += bool(ways) and apply(query, ways[0]) == before
        row["within_3"] += steps is not None and steps > 0
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    arguments = parser.parse_args()
    table = measure(planted(arguments.cases, arguments.seed))
    total = {key: sum(row[key] for row in table.values()) for key in COLUMNS}
    if arguments.json:
        print(json.dumps({"total": total, "faults": table}))
    else:
        print("| fault | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 1))
        for name, row in [*sorted(table.items()), ("all", total)]:
            print(f"| {name.replace('_', ' ')} | " + " | ".join(str(row[key]) for key in COLUMNS) + " |")
    good = total["reported"] == total["planted"] and total["first"] >= 0.9 * total["planted"]
    sys.exit(0 if good and total["within_3"] >= 0.95 * total["planted"] else 1)


if __name__ == "__main__":
    main()
