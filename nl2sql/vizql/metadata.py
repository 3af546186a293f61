"""The service's own descriptions of a data source, read and written: ``read-metadata`` and ``get-datasource-model``.

>>> source = from_metadata({"data": [{"fieldCaption": "Region", "fieldRole": "DIMENSION"}]})
>>> to_metadata(source)
{'data': [{'fieldCaption': 'Region', 'fieldRole': 'DIMENSION'}]}

What comes back has the keys that were read, and no others. Not covered: ``dateProperties`` and other extra data.
"""

from __future__ import annotations

from typing import Any

from nl2sql.errors import UsageError
from nl2sql.vizql.source import DataSource, source_from

_OURS = {"table", "key"}  # of a logical table: in YAML only


def from_metadata(metadata: Any, model: Any = None, *, name: str = "", luid: str = "") -> DataSource:
    """The data source of two answers of the service.

    metadata: the JSON of ``read-metadata``. model: of ``get-datasource-model``, for tables and relationships.
    Raises UsageError where either is something else.
    """
    if not isinstance(metadata, dict) or not isinstance(metadata.get("data"), list):
        raise UsageError("this is no answer of read-metadata; expected an object with a list 'data'")
    if model is not None and not isinstance(model, dict):
        raise UsageError("this is no answer of get-datasource-model; expected an object with 'logicalTables'")
    extra = metadata.get("extraData") or {}
    data = {"name": name, "luid": luid, "fields": metadata["data"]}
    if isinstance(extra, dict) and "parameters" in extra:
        data["parameters"] = extra["parameters"]
    for key in ("logicalTables", "logicalTableRelationships"):
        if model is not None and key in model:
            data[key] = model[key]
    given = {key: value for key, value in data.items() if value != ""}
    return source_from(given, "read-metadata", names_once=False)  # a query with such a name is warned of


def to_metadata(source: DataSource) -> dict[str, Any]:
    """What ``read-metadata`` answers for this data source."""
    data = source.model_dump(mode="json", exclude_unset=True)
    answer: dict[str, Any] = {"data": data["fields"]}
    if "parameters" in data:
        answer["extraData"] = {"parameters": data["parameters"]}
    return answer


def to_datasource_model(source: DataSource) -> dict[str, Any]:
    """What ``get-datasource-model`` answers for this data source."""
    data = source.model_dump(mode="json", exclude_unset=True)
    tables = [{k: v for k, v in table.items() if k not in _OURS} for table in data.get("logicalTables", ())]
    answer = {"logicalTables": tables} if "logicalTables" in data else {}
    if "logicalTableRelationships" in data:
        answer["logicalTableRelationships"] = data["logicalTableRelationships"]
    return answer
