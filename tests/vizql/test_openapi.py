"""Queries that are valid here are valid by the published OpenAPI schema of 20261, too.

The schema lies beside the benchmarks (``NL2SQL_BENCHMARKS/../spec``). A filter is held to its own type's schema, by
the discriminator's mapping, which JSON Schema does not know. Not held to: the schemas of table calculations beyond
what all share, since each of them forbids the key by which it is told.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import SUPERSTORE, queries

from nl2sql.config import VizqlConfig
from nl2sql.vizql.validator import validate

SPEC = Path(os.environ.get("NL2SQL_BENCHMARKS", "/nowhere")).parent / "spec" / "vds-openapi-20261.json"
COUNT = int(os.environ.get("NL2SQL_VIZQL_QUERIES", "200"))
HEAD = "#/components/schemas/"


@cache
def validator(name: str) -> Any:
    if not SPEC.is_file():
        pytest.skip("no OpenAPI schema beside NL2SQL_BENCHMARKS")
    document = json.loads(SPEC.read_text(encoding="utf-8"))
    schema = {"$ref": HEAD + name, "components": document["components"]}
    return jsonschema.Draft7Validator(schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)


@cache
def filter_schemas() -> dict[str, str]:
    mapping = json.loads(SPEC.read_text(encoding="utf-8"))["components"]["schemas"]["Filter"]["discriminator"][
        "mapping"
    ]
    return {kind: target.removeprefix(HEAD) for kind, target in mapping.items()}


def check(query: dict[str, Any]) -> None:
    validator("Query").validate(query)
    for part in query.get("filters", ()):
        validator(filter_schemas()[part["filterType"]]).validate(part)


def has_newer_filters(query: dict[str, Any]) -> bool:
    """Functions in SET, MATCH and DATE filters: the schema has them, Tableau's page of limitations has not."""
    kinds = ("SET", "MATCH", "DATE")
    return any(p["filterType"] in kinds and set(p["field"]) != {"fieldCaption"} for p in query.get("filters", ()))


@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(queries())
def test_valid_queries_are_valid_by_the_published_schema(query: dict[str, Any]) -> None:
    older = VizqlConfig(api=20261)
    assert validate(query, SUPERSTORE, older).is_valid is not has_newer_filters(query)
    check(query)


@pytest.mark.parametrize(
    "query",
    [
        {"fields": [{"fieldCaption": "Sales", "functoin": "SUM"}]},
        {"fields": [{"fieldCaption": "Sales", "sortPriority": 0}]},
        {
            "fields": [{"fieldCaption": "Region"}],
            "filters": [{"field": {"fieldCaption": "Region"}, "filterType": "SET"}],
        },
    ],
)
def test_the_published_schema_refuses_what_is_wrong(query: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(query)
