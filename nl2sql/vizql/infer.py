"""A data source from a database: keys and codes become dimensions, amounts measures, and names captions.

>>> caption_of("order_id"), caption_of("unitPrice"), is_measure("unit_price", "REAL"), is_measure("zip_code", "INTEGER")
('Order ID', 'Unit Price', True, False)

The rules go by names, declared types and keys, and for columns without a telling type, and the dates of SQLite, by
``SAMPLED`` rows; they read no other rows. Not covered: measures that are written as texts, hierarchies, calculations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nl2sql.sql.text import words
from nl2sql.vizql.source import DataSource, source_from

if TYPE_CHECKING:
    from nl2sql.databases.schema import Column, Table
    from nl2sql.interfaces import Database

_SAYS = yaml.safe_load(Path(__file__).with_name("infer.yaml").read_text("utf-8"))
_CODES, _RATES, _CAPITALS = (frozenset(_SAYS[key].split()) for key in ("codes", "rates", "capitals"))
_NESTED = re.compile(_SAYS["nested"], re.DOTALL)
SAMPLED = 100  # rows of a table: a date of SQLite may be written 2024-1-31 past the first few
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DATETIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d")


def infer(database: Database) -> DataSource:
    """The data source over all tables of ``database``; its name is the database's.

    A second column of the same caption is told apart by its table, as Tableau does: "Name (Customers)". Views and
    tables without rows are fields like others; a column whose name is "" is left out, and one of blanks is "Column 2",
    by its place. Raises DatabaseError where the schema cannot be read.
    """
    schema = database.schema()
    tables = [table for table in schema.tables if table.columns]
    samples = {table.name: database.sample(table.name, SAMPLED) for table in tables}
    taken: set[str] = set()
    fields: list[dict[str, Any]] = []
    names: dict[tuple[str, str], str] = {}
    for table in tables:
        keys = {c.lower() for key in table.foreign_keys for c in key.columns}
        for n, column in enumerate(table.columns, 1):
            if not column.name:  # no fieldName can be empty
                continue
            values = [row.get(column.name) for row in samples[table.name]]
            kind = data_type_of(column.type, values, dates_are_texts=database.dialect == "sqlite")
            caption = caption_of(column.name).strip() or f"Column {n}"
            field = _field(table, column, kind, caption, column.name.lower() in keys, taken)
            names[table.name.lower(), column.name.lower()] = field["fieldName"]
            fields.append(field)
    data = {
        "name": database.name,
        "luid": database.name,
        "fields": fields,
        "logicalTables": [_logical_table(table, names) for table in tables],
    }
    if relationships := [item for table in tables for item in _relationships(table, tables, names)]:
        data["logicalTableRelationships"] = relationships
    return source_from(data, database.name)


def caption_of(name: str) -> str:
    """A name as people write it: words apart, with capitals."""
    return " ".join(w.upper() if w in _CAPITALS else w.capitalize() for w in words(name)) or name


def is_measure(name: str, data_type: str) -> bool:
    """Is a column of this name and type an amount, and not the key or code of something?"""
    parts = words(name) or [""]
    code = parts[-1] in _CODES and " ".join(parts[-2:]) not in _SAYS["amounts"]
    return data_type in ("INTEGER", "REAL") and not code and parts[0] not in ("is", "has")


def default_aggregation(field: str, data_type: str, measure: bool) -> str:
    """The function that a field is summed up with where none is asked for."""
    if not measure:
        return "YEAR" if data_type in ("DATE", "DATETIME") else "COUNT"
    return "AVG" if set(words(field)) & _RATES else "SUM"


def data_type_of(declared: str, values: Sequence[Any], *, dates_are_texts: bool = False) -> str:
    """The service's type of a column: as declared; dates in texts, and columns without a type, by sample values.

    dates_are_texts: as in SQLite, where a column that is declared a date or a boolean holds anything, and is one by
    its values: a boolean that is written 'true' or 'T' is a text there, which no truth value is equal to.
    """
    if _NESTED.fullmatch(declared.upper()):
        return "UNKNOWN"
    kind = next((kind for part, kind in _SAYS["types"].items() if part in declared.upper()), "UNKNOWN")
    there = [value for value in values if value is not None]
    if kind in ("DATE", "DATETIME") and dates_are_texts and there:
        if all(isinstance(v, str) and (_DATE.fullmatch(v) or _DATETIME.match(v)) for v in there):
            return kind
        kind = "STRING" if any(isinstance(v, str) for v in there) else "UNKNOWN"
    if kind == "BOOLEAN" and dates_are_texts and any(isinstance(v, str) for v in there):
        kind = "STRING"
    if kind in ("STRING", "UNKNOWN") and there and all(isinstance(value, str) for value in there):
        if all(_DATETIME.match(value) for value in there):
            return "DATETIME"
        return "DATE" if all(_DATE.fullmatch(value) for value in there) else "STRING"
    if kind != "UNKNOWN" or not there:
        return kind
    types = {type(value) for value in there}
    return "INTEGER" if types <= {int} else "REAL" if types <= {int, float} else "UNKNOWN"


def _field(table: Table, column: Column, kind: str, caption: str, foreign: bool, taken: set[str]) -> dict[str, Any]:
    number = "DATE" not in column.type.upper() and is_measure(column.name, kind)  # a DATE of SQLite may hold 2004
    measure = number and not (foreign or column.primary_key)
    caption = _free(caption, table.name, taken)
    name = _free(column.name, table.name, taken, "name:")
    return {
        "fieldCaption": caption,
        "fieldName": name,
        "dataType": kind,
        "fieldRole": "MEASURE" if measure else "DIMENSION",
        "fieldType": "CONTINUOUS" if measure else "NOMINAL" if kind in ("STRING", "BOOLEAN") else "ORDINAL",
        "defaultAggregation": default_aggregation(column.name, kind, measure),
        "columnClass": "COLUMN",
        "logicalTableId": table.name,
    } | ({"remoteFieldName": column.name} if name != column.name else {})


def _free(name: str, table: str, taken: set[str], prefix: str = "") -> str:
    """``name`` where nobody has it yet, else with its table, else with a number."""
    of = caption_of(table)
    candidates = [name, f"{name} ({of})", *(f"{name} ({of} {n})" for n in range(2, 99)), f"{name} ({len(taken)})"]
    free = next((one for one in candidates if prefix + one.casefold() not in taken), candidates[-1])
    taken.add(prefix + free.casefold())
    return free


def _logical_table(table: Table, names: dict[tuple[str, str], str]) -> dict[str, Any]:
    key = [names.get((table.name.lower(), c.name.lower()), "") for c in table.columns if c.primary_key]
    known = {"logicalTableId": table.name, "caption": caption_of(table.name), "table": table.name}
    return known | ({"key": key} if all(key) and key else {})


def _relationships(table: Table, tables: Sequence[Table], names: dict[tuple[str, str], str]) -> list[dict[str, Any]]:
    """A table's foreign keys, from the table that refers to the one that is referred to."""
    ids = {other.name.lower(): other.name for other in tables}
    relationships = []
    for key in table.foreign_keys:
        own = [names.get((table.name.lower(), c.lower())) for c in key.columns]
        theirs = [names.get((key.ref_table.lower(), c.lower())) for c in key.ref_columns]
        if None not in (*own, *theirs) and key.ref_table.lower() != table.name.lower():
            relationships.append(relationship(table.name, ids[key.ref_table.lower()], own, theirs))
    return relationships


def relationship(one: str, other: str, own: Sequence[Any], theirs: Sequence[Any]) -> dict[str, Any]:
    """That a logical table refers to another, by equal fields (their ``fieldName``)."""
    pairs = [{"operator": "=", "fromField": f"[{a}]", "toField": f"[{b}]"} for a, b in zip(own, theirs, strict=True)]
    ends = {"fromLogicalTable": {"logicalTableId": one}, "toLogicalTable": {"logicalTableId": other}}
    return {**ends, "expression": {"op": "AND", "relationships": pairs}}
