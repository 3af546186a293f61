"""Queries that are valid here are the service's own: its Python models give back the same JSON.

Needs the official client: ``pip install vizql-data-service-py==20263.0.0``. 5,000 queries, as for a release, with
``NL2SQL_VIZQL_QUERIES=5000``; 200 otherwise.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from strategies import FIXTURES, SUPERSTORE, queries

from nl2sql.vizql.query import Query, field_kind, to_json
from nl2sql.vizql.query_errors import read_query
from nl2sql.vizql.validator import validate

official = pytest.importorskip("vizql_data_service_py")
COUNT = int(os.environ.get("NL2SQL_VIZQL_QUERIES", "200"))
CLASSES = {
    "dimension": official.DimensionField,
    "measure": official.MeasureField,
    "calculation": official.CalculatedField,
    "bin": official.BinField,
    "table_calculation": official.TableCalcField,
}


def as_read(query: dict[str, Any]) -> Any:
    """The official model of a query; it takes no ``filterType`` from JSON, only its own enumeration."""
    query = copy.deepcopy(query)
    for part in query.get("filters", ()):
        part["filterType"] = official.FilterType[part["filterType"]]
    request = {"datasource": {"datasourceLuid": "superstore"}, "query": query}
    return official.QueryRequest.model_validate(request).query


@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(queries(newer=True))
def test_the_official_models_give_back_the_same_json(query: dict[str, Any]) -> None:
    validation = validate(query, SUPERSTORE)
    assert validation.is_valid, validation.validation_errors
    mine = read_query(query)
    assert isinstance(mine, Query) and to_json(mine) == query
    theirs = as_read(query)
    assert theirs.model_dump(mode="json", exclude_unset=True) == query
    for field, given_field in zip(theirs.fields, query["fields"], strict=True):
        assert type(field.root) is CLASSES[field_kind(given_field)]


def _payloads() -> list[Any]:
    from vizql_data_service_py.examples import payload

    return [*payload.QUERY_FUNCTIONS, *payload.WORKBOOK_QUERY_FUNCTIONS]


@pytest.mark.parametrize("make", _payloads(), ids=lambda make: make.__name__)
def test_the_client_s_own_examples_are_valid(make: Any) -> None:
    query = make().model_dump(mode="json", exclude_unset=True)
    validation = validate(query, SUPERSTORE)
    assert validation.is_valid, validation.validation_errors


def test_there_are_34_examples() -> None:
    assert len(_payloads()) == 34


SWALLOWED = yaml.safe_load((FIXTURES / "swallowed.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("fault", SWALLOWED, ids=lambda fault: fault["fault"])
def test_what_the_official_models_swallow_is_an_error_here(fault: dict[str, Any]) -> None:
    query = fault["query"]
    as_read(query)  # it raises nothing
    assert fault["kind"] in [error.kind for error in validate(query, SUPERSTORE).errors]


def test_at_least_25_faults_are_swallowed() -> None:
    assert len(SWALLOWED) >= 25
