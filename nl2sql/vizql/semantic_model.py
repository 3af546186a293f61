"""A semantic model of Open Semantic Interchange 1.0 as a data source over its database.

A model has no types: those, keys and roles are the database's (``infer``). From the model come captions,
descriptions, relationships, and calculations: of the fields that are expressions, and of its metrics. A
column that the model does not list is hidden.

Not covered: expressions in other dialects than ANSI_SQL, or that formulas do not have, and datasets that
are queries: they are named, and left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.errors import UsageError, one_line
from nl2sql.machine import from_yaml
from nl2sql.sql.parse import SLIPS, parse_bounded
from nl2sql.vizql.from_sql.conditions import formula
from nl2sql.vizql.from_sql.reading import NotStructured, SourceSelect
from nl2sql.vizql.infer import caption_of, relationship
from nl2sql.vizql.source import DataSource, source_from


def described(inferred: DataSource, file: str | Path) -> tuple[DataSource, list[str]]:
    """The data source of a model's file, and a line for each part of it that is left out.

    inferred: the data source of the model's database. Raises UsageError for a file that is missing or no model.
    """
    try:
        told = from_yaml(Path(file).read_text(encoding="utf-8-sig"))
        return _described(inferred, told.get("semantic_model", [told])[0], str(file))
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
        said = one_line(error, 200) or type(error).__name__
        expected = "expected semantic_model: [{name, datasets: [{name, source, fields}]}]"
        raise UsageError(f"semantic model {str(file)!r} cannot be read: {said}; {expected}") from None


def _described(inferred: DataSource, model: Mapping[str, Any], origin: str) -> tuple[DataSource, list[str]]:
    data, left = inferred.model_dump(mode="json", exclude_unset=True), list[str]()
    tables = {table["table"].lower(): table for table in data["logicalTables"]}
    places = [(inferred.table_of(field).lower(), field.column.lower()) for field in inferred.fields]
    columns = dict(zip(places, data["fields"], strict=True))
    names: dict[str, str] = {}  # of the tables, by dataset
    calculations: list[tuple[Mapping[str, Any], dict[str, Any], dict[str, str]]] = []
    for part in data["fields"]:
        part["hidden"] = True

    def named(item: Mapping[str, Any], part: dict[str, Any], beside: str) -> dict[str, Any]:
        caption = str(item.get("label") or caption_of(item["name"]))
        taken = {other["fieldCaption"].casefold() for other in data["fields"] if other is not part}
        caption = f"{caption} ({beside})" if caption.casefold() in taken else caption
        return {"fieldCaption": caption, "description": str(item.get("description") or "")}

    for dataset in model["datasets"]:
        physical = str(dataset.get("source") or dataset["name"]).rpartition(".")[2].strip('"`[] ').lower()
        if physical not in tables:
            left.append(f"dataset {dataset['name']}: the database has no table {physical!r}")
            continue
        table = tables[physical]
        names[dataset["name"].lower()] = table["table"]
        table["description"] = str(dataset.get("description") or "")
        keys = [columns[physical, name.lower()]["fieldName"] for name in dataset.get("primary_key") or ()]
        table |= {"key": keys} if keys else {}
        for item in dataset.get("fields") or ():
            role = {"fieldRole": "DIMENSION" if "dimension" in item else "MEASURE"}
            part = columns.get((physical, (_expression(item) or item["name"]).lower()))
            if part is None:
                calculations.append((item, role, {physical: table["table"]}))
            else:
                part |= named(item, part, table["caption"]) | {"hidden": False} | (role if "dimension" in item else {})
    relations = data.setdefault("logicalTableRelationships", [])
    for join in model.get("relationships") or ():
        ends = [names.get(str(join[side]).lower(), "") for side in ("from", "to")]
        if not all(ends):
            left.append(f"relationship {join.get('name', '')}: a dataset of it is left out")
            continue
        sides = zip(ends, (join["from_columns"], join["to_columns"]), strict=True)
        fields = [[columns[end.lower(), name.lower()]["fieldName"] for name in of] for end, of in sides]
        made = relationship(*(tables[end.lower()]["logicalTableId"] for end in ends), *fields)
        relations += [made] if made not in relations else []
    source, role = source_from(data, origin), {"fieldRole": "MEASURE", "defaultAggregation": "AGG"}
    both = {name.lower(): name for name in names.values()} | names  # a metric may name tables or datasets
    calculations += [(item, dict(role), both) for item in model.get("metrics") or ()]
    for item, known, among in calculations:
        select = SourceSelect(exp.Select(), source, among, frozenset())
        try:
            tree = parse_bounded(f"SELECT {_expression(item)}", "sqlite")
            known["formula"] = formula(tree.expressions[0].unalias(), select)
        except (*SLIPS, SqlglotError, NotStructured) as reason:
            left.append(f"{item['name']}: {one_line(reason, 100)}")
            continue
        data["fields"].append({**named(item, known, "calculated"), "columnClass": "CALCULATION", **known})
    return source_from(data, origin), left


def _expression(item: Mapping[str, Any]) -> str:
    """The ANSI_SQL expression of a field or a metric, from a list under ``dialects`` or alone."""
    told = item.get("expression") or []
    entries = told.get("dialects") or [] if isinstance(told, dict) else told
    return next((str(e["expression"]).strip() for e in entries if e.get("dialect", "ANSI_SQL") == "ANSI_SQL"), "")
