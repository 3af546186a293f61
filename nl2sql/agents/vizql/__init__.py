"""Structured queries over a data source: written, validated, refined and executed (docs/vizql.md).

``vizql`` is the controller. The planner picks the tables that a question is about, the schema fetch writes their
fields and looks up values (``state``); then the graph runs, as the specification draws it: query builder -> validator
-> executor -> formatter, with the refiner back to the validator, and the error handler (``nodes``). ``Episode.sql`` is
the compiled SQL, ``Episode.raw_sql`` the query as JSON, and ``flags["vizql"]`` has the query, its version and the
errors of each version.

Not covered: table calculations and LOD expressions, which are valid and not executed here; more than one draft.

>>> from nl2sql.vizql.source import DataSource
>>> source = DataSource.model_validate({"fields": [{"fieldCaption": "Region", "dataType": "STRING"}]})
>>> schema = query_schema(source.fields, {"Region": ["East", "West"]})
>>> sorted(schema["$defs"])
['dimension', 'field', 'filter', 'first', 'row', 'sorted']
"""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nl2sql.agents.failures import as_node, check_langgraph
from nl2sql.agents.opening import open_task
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import takes_grammars
from nl2sql.agents.task import Task
from nl2sql.agents.vizql import nodes, state
from nl2sql.agents.vizql.state import Context, VizqlState, draft_text, initial_state, work_of
from nl2sql.config import Config
from nl2sql.interfaces import Grammar, Question, Resources
from nl2sql.vizql.fields import DATE_PARTS, DATE_TRUNCATIONS
from nl2sql.vizql.lookup import distinct_texts
from nl2sql.vizql.mending import as_json
from nl2sql.vizql.query import is_request
from nl2sql.vizql.source import DataSource, FieldMetadata, fits

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

__all__ = ["check_installed", "vizql"]


# ------------------------------------- the grammar: a JSON schema of the queries over a data source
# A model that writes under it cannot misspell a key, a caption or a value, nor give a function to a
# field that it does not fit. Some errors are left: a field twice, ends of a range in the wrong
# order, two filters of one field.
#
# Not covered, so that a query under the schema has none: calculations, bins, table calculations,
# CONDITION and relative date filters, parameters, MATCH filters that exclude.

_AGGREGATES = ("SUM", "AVG", "MEDIAN", "MIN", "MAX", "COUNT", "COUNTD")
_COUNTS = ("COUNT", "COUNTD")
_DATES = tuple(sorted(DATE_PARTS)) + tuple(sorted(DATE_TRUNCATIONS))
_NUMBERS = ("INTEGER", "REAL")
_DAY = {"type": "string", "pattern": "^(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"}
_NULL = {"type": "null"}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 100}
MOST_FIELDS = 6
MOST_FILTERS = 4
MOST_TEXT = 60  # characters of a text that is not taken from the data source

Schema = dict[str, Any]


def query_grammar(fields: Sequence[FieldMetadata], values: Mapping[str, Sequence[str]]) -> Grammar:
    """The grammar of requests ``{"query": ..., "options": ...}`` over these fields."""
    return Grammar("json_schema", json.dumps(query_schema(fields, values), ensure_ascii=False))


def query_schema(fields: Sequence[FieldMetadata], values: Mapping[str, Sequence[str]]) -> Schema:
    """The JSON schema. values: by caption, all texts of a column; a column without an entry takes any text.

    A request is grouped, or gives rows as they are (``disaggregate``): then no field has a function.
    """
    plain = {"dimension": _field(_captions(fields, measures=False))}
    kinds = [kind for kind in _functions(fields) if kind["properties"]["fieldCaption"]["enum"]]
    shown = [_ref("dimension"), *kinds] if plain["dimension"]["properties"]["fieldCaption"]["enum"] else kinds
    rows = _field([field.fieldCaption for field in fields if not field.is_aggregate])
    definitions: Schema = {
        **plain,
        "field": {"anyOf": shown},
        "sorted": {"anyOf": [_sorted(kind) for kind in (plain["dimension"], *kinds)]},
        "row": {"anyOf": [rows, _sorted(rows)]},
        "filter": {"anyOf": list(_filters(fields, values))},
        "first": _object({"rowLimit": _COUNT}),
    }
    grouped = _query({"anyOf": [_ref("field"), _ref("sorted")]})
    raw = {"disaggregate": {"const": True}, "rowLimit": _COUNT}
    return {
        "anyOf": [
            _object({"query": grouped, "options": _ref("first")}, optional=("options",)),
            _object({"query": _query(_ref("row")), "options": _object(raw, optional=("rowLimit",))}),
        ],
        "$defs": definitions,
    }


def _query(field: Schema) -> Schema:
    fields = {"type": "array", "items": field, "minItems": 1, "maxItems": MOST_FIELDS}
    filters = {"type": "array", "items": _ref("filter"), "minItems": 1, "maxItems": MOST_FILTERS}
    return _object({"fields": fields, "filters": filters}, optional=("filters",))


# --------------------------------------------------------------------------------------------------------- fields


def _functions(fields: Sequence[FieldMetadata]) -> list[Schema]:
    """A field with a function: numeric measures, counts of anything, parts of dates."""
    dates = [field.fieldCaption for field in fields if field.dataType in ("DATE", "DATETIME")]
    whole = [field.fieldCaption for field in fields if field.is_aggregate]
    return [
        _field(_captions(fields, measures=True), _AGGREGATES),
        _field(_captions(fields, measures=False), _COUNTS),
        _field(dates, _DATES),
        _field(whole),
    ]


def _captions(fields: Sequence[FieldMetadata], *, measures: bool) -> list[str]:
    """The captions of measures that take functions, or of dimensions."""
    chosen = [field for field in fields if (field.fieldRole == "MEASURE") == measures and not field.is_aggregate]
    return [field.fieldCaption for field in chosen if not measures or fits("SUM", field.dataType)]


def _field(captions: Sequence[str], functions: Sequence[str] = ()) -> Schema:
    parts: Schema = {"fieldCaption": {"enum": list(captions)}}
    return _object(parts | ({"function": {"enum": list(functions)}} if functions else {}))


def _sorted(field: Schema) -> Schema:
    order = {"sortDirection": {"enum": ["ASC", "DESC"]}, "sortPriority": {"enum": [1, 2, 3]}}
    return _object(field["properties"] | order)


# -------------------------------------------------------------------------------------------------------- filters


def _filters(fields: Sequence[FieldMetadata], values: Mapping[str, Sequence[str]]) -> list[Schema]:
    plain = [field for field in fields if not field.is_aggregate]
    texts = [field for field in plain if field.dataType in ("STRING", "UNKNOWN") and field.fieldRole != "MEASURE"]
    numbers = [field.fieldCaption for field in plain if field.dataType in _NUMBERS]
    dates = [field.fieldCaption for field in plain if field.dataType in ("DATE", "DATETIME")]
    whole = [field.fieldCaption for field in plain if field.dataType == "INTEGER" and field.fieldRole != "MEASURE"]
    flags = [field.fieldCaption for field in plain if field.dataType == "BOOLEAN"]
    text = {"type": "string", "minLength": 1, "maxLength": MOST_TEXT}
    known = [field.fieldCaption for field in texts if values.get(field.fieldCaption)]
    free = [field.fieldCaption for field in texts if not values.get(field.fieldCaption)]
    made = [_set([caption], {"enum": list(values[caption])}) for caption in known]
    made += [_set(free, text), _set(whole, {"type": "integer"}), _set(flags, {"type": "boolean"})]
    made += [_set([field.fieldCaption for field in plain if field.dataType == "DATE"], _DAY)]
    captions = [field.fieldCaption for field in texts]
    made += [_filter(_field(captions), "MATCH", {key: text}) for key in ("contains", "startsWith", "endsWith")]
    made += _ranges(_field(numbers), "QUANTITATIVE_NUMERICAL", "min", "max", {"type": "number"})
    for kind in (_field(numbers, _AGGREGATES), _field(captions, _COUNTS)):
        made += _ranges(kind, "QUANTITATIVE_NUMERICAL", "min", "max", {"type": "number"})
    made += _ranges(_field(dates), "QUANTITATIVE_DATE", "minDate", "maxDate", _DAY)
    dimensions = _captions(fields, measures=False)
    for measure in _functions(fields)[:2]:
        top: Schema = {"howMany": _COUNT, "fieldToMeasure": measure, "direction": {"enum": ["TOP", "BOTTOM"]}}
        made.append(_filter(_field(dimensions), "TOP", top))
    return [kind for kind in made if _names_something(kind)]


def _set(captions: Sequence[str], value: Schema) -> Schema:
    listed = {"type": "array", "items": {"anyOf": [value, _NULL]}, "minItems": 1, "maxItems": MOST_FIELDS}
    parts = {"values": listed, "exclude": {"const": True}}
    return _filter(_field(captions), "SET", parts, optional=("exclude",))


def _ranges(field: Schema, kind: str, least: str, most: str, value: Schema) -> list[Schema]:
    ends: tuple[tuple[str, Schema], ...] = (("MIN", {least: value}), ("MAX", {most: value}))
    both = (*ends, ("RANGE", {least: value, most: value}))
    made = [_filter(field, kind, {"quantitativeFilterType": {"const": name}, **parts}) for name, parts in both]
    nulls: Schema = {"quantitativeFilterType": {"enum": ["ONLY_NULL", "ONLY_NON_NULL"]}}
    return [*made, *([] if "function" in field["properties"] else [_filter(field, kind, nulls)])]


def _filter(field: Schema, kind: str, parts: Schema, *, optional: Sequence[str] = ()) -> Schema:
    return _object({"field": field, "filterType": {"const": kind}, **parts}, optional=optional)


def _names_something(part: Schema) -> bool:
    """Is there a caption wherever one is wanted? A data source without dates has no filters of dates."""
    inside = part.get("properties", {})
    if inside.get("fieldCaption", {}).get("enum") == []:
        return False
    return all(_names_something(value) for value in inside.values())


# -------------------------------------------------------------------------------------------------- JSON schema


def _object(properties: Schema, *, optional: Sequence[str] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


# ----------------------------------------------------------------------------------- the controller

MOST_VALUES = 100  # distinct texts of a column that the grammar lists
RECURSION_LIMIT = 18  # validator, executor, refiner for each of four versions; builder and end
_AFTER: dict[Hashable, str] = {
    "execute": "executor",
    "refine": "refiner",
    "format": "formatter",
    "error_handler": "error_handler",
}


def vizql(question: Question, resources: Resources, config: Config) -> Episode:
    """Answer by a structured query. Raises UsageError and DatabaseError as the loop does, also without LangGraph."""
    task = open_task(question, resources, config, shown_example)
    source = state.source_of(task)
    fields = state.linked_fields(task, source)
    here = Context(
        task,
        source,
        fields,
        state.within_budget(task, fields, source),
        state.asked(task, source),
        _grammar(task, source, fields),
        task.examples,
    )
    task.examples = ()  # a prompt for SQL shows no JSON
    values = graph().invoke(initial_state(), {"recursion_limit": RECURSION_LIMIT}, context=here)
    return _episode(task, values)


def shown_example(question: Question) -> tuple[str, str] | None:
    """A few-shot example as the prompt shows it; None where the question has no structured query."""
    query = question.meta.get("vizql")
    if query is None:
        return None
    return question.text.strip(), as_json(query if is_request(query) else {"query": query})


def _grammar(task: Task, source: DataSource, fields: Sequence[FieldMetadata]) -> Grammar | None:
    wanted = task.config.vizql.constrain
    if wanted == "none" or (wanted == "auto" and not takes_grammars(task.resources.model, "json_schema")):
        return None
    values = distinct_texts(source, fields, task.resources.database, most=MOST_VALUES)
    for field in fields:  # of a column with more texts: those that the question names
        if field.fieldCaption not in values and field.dataType == "STRING":
            place = source.table_of(field).lower(), field.column.lower()
            there = {m.value for m in task.values if (m.table.lower(), m.column.lower()) == place}
            values |= {field.fieldCaption: sorted(there)} if there else {}
    return query_grammar(fields, values)


def _episode(task: Task, values: dict[str, Any]) -> Episode:
    """The Episode of the final state: its SQL with the rows, and all that was recorded."""
    attempts, answer = values["attempts"], values["answer"]
    chosen = attempts[answer] if answer is not None else (attempts[-1] if attempts else {})
    sql = str(chosen.get("sql", "")) if answer is not None else ""
    errors: dict[str, list[str]] = {}
    for attempt in attempts:
        errors.setdefault(str(attempt["version"]), []).extend(attempt["errors"])
    said: dict[str, Any] = {
        "query": chosen.get("query"),
        "query_version": chosen.get("version", 0),
        "errors": errors,
        "stages": [attempt["stage"] for attempt in attempts],
    }
    return task.episode(
        "vizql",
        sql,
        raw_sql=draft_text(chosen["query"]) if chosen.get("query") is not None else "",
        finish=values["finish"],
        error=values["failure"] or values["error"],
        steps=len(values["trace"]),
        trace=values["trace"],
        decision_log=values["decision_log"],
        messages=next((call["messages"] for call in task.calls if call["messages"]), []),
        transcript="",
        flags={"vizql": said},
    )


# ------------------------------------------------------------------------------------------- the graph on LangGraph


@functools.cache
def graph() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The compiled graph; any number of threads may run it at once. Raises UsageError without LangGraph."""
    check_installed()
    from langgraph.graph import END, START, StateGraph

    drawn = StateGraph(VizqlState, context_schema=Context)
    for name in ("query_builder", "validator", "executor", "refiner", "formatter", "error_handler"):
        drawn.add_node(name, as_node(getattr(nodes, name), work_of))

    def after_validation(state: VizqlState, runtime: Any) -> str:
        return nodes.route_after_validation(state, runtime.context.task.config.vizql)

    def after_execution(state: VizqlState, runtime: Any) -> str:
        return nodes.route_after_execution(state, runtime.context.task.config.vizql)

    drawn.add_edge(START, "query_builder")
    drawn.add_edge("query_builder", "validator")
    drawn.add_conditional_edges("validator", after_validation, _AFTER)
    drawn.add_conditional_edges("executor", after_execution, _AFTER)
    drawn.add_edge("refiner", "validator")
    drawn.add_edge("formatter", END)
    drawn.add_edge("error_handler", END)
    return drawn.compile()


def check_installed() -> None:
    """Raises UsageError with the command that installs what is missing."""
    check_langgraph("vizql")
