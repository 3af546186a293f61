"""What is odd about a valid query. A warning never makes a query invalid.

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "Sales"}]})
>>> warnings_of(Checked({"fields": [{"fieldCaption": "Sales", "sortDirection": "ASC"}]}, source))
["Field 'Sales' has a sortDirection and no sortPriority: it is not sorted by"]

Not covered: what a result shows (no rows, all NULL); that is seen after execution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from nl2sql.vizql.functions import groups
from nl2sql.vizql.lookup import Checked
from nl2sql.vizql.mending import Place
from nl2sql.vizql.rules import field_name


def warnings_of(checked: Checked) -> list[str]:
    """One line for each oddity of a query whose shape is right."""
    return [line for rule in _RULES for line in rule(checked)]


def _sorted_by_nothing(checked: Checked) -> Iterator[str]:
    for part in checked.query["fields"]:
        if "sortDirection" in part and "sortPriority" not in part:
            yield f"Field {field_name(part)} has a sortDirection and no sortPriority: it is not sorted by"


def _top_beside_others(checked: Checked) -> Iterator[str]:
    filters = checked.query.get("filters") or []
    tops = [part for part in filters if part["filterType"] == "TOP"]
    for part in filters if tops else ():
        if part["filterType"] != "TOP" and not part.get("context") and groups(part["field"].get("function")):
            about = f"the TOP filter on {field_name(tops[0]['field'])}"
            said = f"The filter on {field_name(part['field'])} is applied beside {about}"
            yield f"{said}; context: true applies it before"


def _disaggregated(checked: Checked) -> Iterator[str]:
    if checked.options.get("disaggregate") is not True:
        return
    for part in checked.query["fields"]:
        if not groups(part.get("function")) and "tableCalculation" not in part:
            yield f"disaggregate gives rows as they are; {field_name(part)} is aggregated over one row each"


def _one_alias_twice(checked: Checked) -> Iterator[str]:
    names = Counter(part["fieldAlias"] for part in checked.query["fields"] if "fieldAlias" in part)
    for name, times in names.items():
        if times > 1:
            yield f"Alias '{name}' is given {times} times: a result as objects keeps one of them"


def _date_and_its_part(checked: Checked) -> Iterator[str]:
    plain = {
        part["fieldCaption"] for part in checked.query["fields"] if set(part) & {"function", "calculation"} == set()
    }
    for part in checked.query["fields"]:
        if part.get("function") and groups(part["function"]) and part["fieldCaption"] in plain:
            yield f"{field_name(part)} stands beside '{part['fieldCaption']}' itself: each date is a group of its own"


def _along_fields_that_are_asked(checked: Checked) -> Iterator[str]:
    asked = {part["fieldCaption"] for part in checked.query["fields"]}
    for part in checked.query["fields"]:
        for reference in part.get("tableCalculation", {}).get("dimensions", ()):
            if reference["fieldCaption"] not in asked:
                yield f"{field_name(part)} runs along '{reference['fieldCaption']}', which the query does not ask for"


def _of_two_fields(checked: Checked) -> Iterator[str]:
    """A service may describe two fields of one name; the first is meant, whichever was."""
    of = Counter(map(checked.name_of, checked.source.fields))
    places: list[Place] = [("fields", i) for i in range(len(checked.query["fields"]))]
    places += [("filters", i, "field") for i in range(len(checked.query.get("filters") or ()))]
    known = [field for place in places if (field := checked.field_at(place)) is not None]
    for field in {checked.name_of(field): field for field in known if of[checked.name_of(field)] > 1}.values():
        table = checked.source.table_of(field) or field.logicalTableId
        name = checked.name_of(field)
        yield f"'{name}' is the name of {of[name]} fields; that of table '{table}' is meant"


def _unrelated_tables(checked: Checked) -> Iterator[str]:
    source = checked.source
    fields = [checked.field_at(("fields", i)) for i in range(len(checked.query["fields"]))]
    ids = dict.fromkeys(known.logicalTableId for known in fields if known and known.logicalTableId)
    near: dict[str, set[str]] = {}
    for relation in source.logicalTableRelationships:
        one, other = relation.fromLogicalTable.logicalTableId, relation.toLogicalTable.logicalTableId
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    for first, second in pairwise(ids):
        if second not in _reached(first, near):
            yield f"No relationship leads from table '{first}' to '{second}'"


def _reached(start: str, near: dict[str, set[str]]) -> set[str]:
    reached, open_ = {start}, [start]
    while open_:
        further = near.get(open_.pop(), set()) - reached
        reached |= further
        open_ += further
    return reached


_RULES = (
    _sorted_by_nothing,
    _top_beside_others,
    _disaggregated,
    _one_alias_twice,
    _date_and_its_part,
    _along_fields_that_are_asked,
    _of_two_fields,
    _unrelated_tables,
)
