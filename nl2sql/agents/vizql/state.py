r"""The state of the graph, its context (what a node may touch, the model reads), drafts, the grammar of queries.

>>> fields = [{"fieldCaption": "Region"}, {"fieldCaption": "Sales", "fieldRole": "MEASURE", "dataType": "REAL"}]
>>> source_text(DataSource.model_validate({"fields": fields}).fields, DataSource.model_validate({"fields": fields}))
'dimensions: Region\nmeasures: Sales'

The text leaves out descriptions, hierarchies, parameters and formulas.

>>> read_reply('Here it is: {"fields": [{"fieldCaption": "Region"}]}')
{'fields': [{'fieldCaption': 'Region'}]}
>>> before = {"fields": [{"fieldCaption": "Region"}, {"fieldCaption": "Sales"}]}
>>> after = {"fields": [{"fieldCaption": "Sales", "function": "SUM"}]}
>>> with_valid_parts(before, frozenset({("fields", 1)}), after)
{'fields': [{'fieldCaption': 'Region'}, {'fieldCaption': 'Sales', 'function': 'SUM'}]}
>>> sorted(query_schema(DataSource.model_validate({"fields": fields}).fields, {"Region": ["East", "West"]})["$defs"])
['field', 'filter', 'first', 'row']
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.checks import constraints
from nl2sql.agents.resources import takes_grammars
from nl2sql.agents.setup import link
from nl2sql.agents.task import State, Task
from nl2sql.agents.writing import guard, linked_schema, sql_messages, tables_kept, takes_no_sql, write_sql
from nl2sql.interfaces import Grammar
from nl2sql.sql.parse import decode_json
from nl2sql.vizql.autofix import LEAST, Place, as_json
from nl2sql.vizql.from_sql import nullable_captions, structured
from nl2sql.vizql.infer import infer
from nl2sql.vizql.query import DATE_PARTS, DATE_TRUNCATIONS, is_request
from nl2sql.vizql.querying import statement
from nl2sql.vizql.source import DATES, NUMBERS, DataSource, FieldMetadata, fits, read_source
from nl2sql.vizql.validator import Validation, apply, distinct_texts, validate


@dataclasses.dataclass(frozen=True)
class Context:
    """The runtime context: the task, the data source, and what of both the model is shown."""

    task: Task
    source: DataSource
    schema: str
    question: str
    grammar: Grammar | None
    examples: Sequence[tuple[str, str]]  # few-shot (question, query as JSON)

    def check(self, draft: Any) -> Validation:
        """The validation of a draft against the data source and its database."""
        return validate(draft, self.source, self.task.config.vizql, self.task.resources.database)


@dataclasses.dataclass
class VizqlState(State):
    """What one question has led to; of the fields here, those up to ``error`` are the specification's."""

    query_draft: Any = None  # the request as JSON; the model's text where that is no JSON
    query_version: int = 0  # 0: not built; 1: built; 2, 3, 4: refined
    is_valid: bool = False
    validation_errors: list[str] = dataclasses.field(default_factory=list)  # of the validation, or of the execution
    validation_suggestions: list[str] = dataclasses.field(default_factory=list)
    error: str | None = None  # what the error handler says
    context: Context | None = None
    failure: str | None = None  # "<where>: <what>" when the episode cannot go on
    unread: str = ""  # a reply of the refiner that held no query
    execution_result: dict[str, Any] | None = None
    finish: str = ""
    answer: int | None = None  # the attempt that is the answer
    attempts: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # version, query, errors, stage, sql

    @property
    def here(self) -> Context:
        assert self.context is not None
        return self.context


# ------------------------------------------------------------------------------ the data source as a model reads it

_TYPES_SHOWN = {"DATE": "date", "DATETIME": "time", "BOOLEAN": "true or false", "INTEGER": "number", "REAL": "number"}
_SHORTEST = 8  # fields that are shown however small the budget is


def source_of(task: Task) -> DataSource:
    """The data source that ``vizql.source`` names, else the database's own, else one that is inferred from it.

    Raises UsageError for a file that is no data source, and DatabaseError.
    """
    if named := task.config.vizql.source:
        return read_source(Path(named))
    own: DataSource | None = getattr(task.resources.database, "source", None)
    return own or infer(task.resources.database)


def linked_fields(task: Task, source: DataSource) -> tuple[FieldMetadata, ...]:
    """The fields of the tables that the question is about, as ``link_schema`` chooses them; hidden ones are none."""
    tables = {table.name.lower() for table in linked_schema(task, tables_kept(task.config)).tables}
    shown = tuple(field for field in source.fields if not field.hidden)
    linked = tuple(field for field in shown if source.table_of(field).lower() in tables)
    beside = tuple(field for field in shown if not source.table_of(field))  # calculations belong to no table
    return linked + beside if linked else shown


def source_text(fields: Sequence[FieldMetadata], source: DataSource) -> str:
    """One block per logical table: its dimensions and measures by caption; then what joins the tables."""
    blocks: list[str] = []
    for table_id in dict.fromkeys(field.logicalTableId for field in fields):
        table, inside = source.table(table_id), [field for field in fields if field.logicalTableId == table_id]
        lines = [f"{table.caption}:"] if table else []
        for role, measured in (("dimensions", False), ("measures", True)):
            names = [_shown(field) for field in inside if (field.fieldRole == "MEASURE") == measured]
            lines += [f"{role}: {', '.join(names)}"] if names else []
        blocks.append("\n  ".join(lines) if table else "\n".join(lines))
    return "\n".join(blocks)


def within_budget(task: Task, fields: Sequence[FieldMetadata], source: DataSource) -> str:
    """The text of as many fields as ``schema_text.max_tokens`` and the model's window leave room for."""
    model, shown = task.resources.model, list(fields)
    budget = min(task.config.schema_text.max_tokens, model.context_window // 4)
    while True:
        text = source_text(shown, source)
        used = model.count_tokens([{"role": "user", "content": text}])
        if used <= budget or len(shown) <= _SHORTEST:
            return text
        shown = shown[: max(_SHORTEST, len(shown) * budget // used)]


def asked(task: Task, source: DataSource) -> str:
    """The question with its evidence, the values of the data source that it names, and the query it speaks of."""
    config, question = task.config.schema_text, task.question
    lines = [prompts.question_text(question.text.strip(), question.evidence if config.evidence else "")]
    if values := list(_values(task, source)):
        lines.append("Values: " + ", ".join(values))
    if question.previous_sql:
        lines.append(f"Previous query: {question.previous_sql}")
    return "\n".join(lines)


def _values(task: Task, source: DataSource) -> Iterable[str]:
    for match in task.values:
        for field in source.fields:
            if source.table_of(field).lower() == match.table.lower() and field.column.lower() == match.column.lower():
                yield f"{field.fieldCaption} = {match.value!r}"


def _shown(field: FieldMetadata) -> str:
    kind = _TYPES_SHOWN.get(field.dataType, "") if field.fieldRole != "MEASURE" else ""
    return f"{field.fieldCaption} ({kind})" if kind else field.fieldCaption


# ---------------------------------------------- drafts: read from a reply, kept where valid, mended

MOST_STEPS = 12  # suggestions that one refinement carries out
LONGEST = 2000  # characters of a reply that is no JSON, as the next attempt is shown it


def read_reply(text: str) -> dict[str, Any] | None:
    """The first JSON object in a reply that is meant as a query, else the first of all; None where there is none.

    An object around it, such as ``{"json": {...}}``, is looked through; what is in front and behind is left out.
    """
    first = None
    at = text.find("{")
    while at != -1:
        try:
            value, end = decode_json(text, at)
        except ValueError:
            at = text.find("{", at + 1)
            continue
        inside = next((v for v in (value, *value.values()) if isinstance(v, dict) and _is_query(v)), None)
        if inside is not None:
            return inside
        first = value if first is None else first
        at = text.find("{", end)
    return first


def _is_query(value: dict[str, Any]) -> bool:
    return "fields" in value or is_request(value)


def query_of(draft: Any) -> Any:
    """The query inside a draft: the draft itself, or that of a request."""
    return draft.get("query") if is_request(draft) else draft


def draft_text(draft: Any) -> str:
    """A draft as a prompt shows it: JSON on one line; a reply that is none as it is, cut."""
    return draft[:LONGEST] if isinstance(draft, str) else as_json(draft)


def with_valid_parts(before: Any, broken: frozenset[Place], after: Any) -> Any:
    """``after`` with the fields and filters of ``before`` that no error was about, where it lost or changed them.

    broken: ``Validation.broken`` of ``before``. A part of the same caption that ``after`` has in its place goes. An
    error about the whole list, or about the whole query, leaves ``after`` as it is.
    """
    old, made = query_of(before), copy.deepcopy(after)
    new = query_of(made)
    if not isinstance(old, dict) or not isinstance(new, dict) or () in broken:
        return made
    for name in ("fields", "filters"):
        listed = old.get(name)
        if not isinstance(listed, list) or (name,) in broken or not isinstance(new.get(name, []), list):
            continue
        valid = [(i, part) for i, part in enumerate(listed) if (name, i) not in broken]
        if kept := _merged(valid, list(new.get(name, [])), listed):
            new[name] = kept
    return made


def _merged(valid: list[tuple[int, Any]], parts: list[Any], before: list[Any]) -> list[Any]:
    for i, part in valid:
        if part in parts:
            continue
        twin = next((n for n, other in enumerate(parts) if _of(other) == _of(part) and other not in before), None)
        if twin is None or any(_of(other) == _of(part) and other != part for other in before):
            parts.insert(min(i, len(parts)), part)
        else:
            parts[twin] = part
    return parts


def _of(part: Any) -> Any:
    """The caption that a field or a filter is about."""
    inside = part.get("field", part) if isinstance(part, dict) else {}
    return inside.get("fieldCaption") if isinstance(inside, dict) else None


def fixed(draft: Any, validation: Validation, check: Callable[[Any], Validation]) -> Any | None:
    """The draft after its likeliest suggestions, one at a time; None where they do not lead to a valid one.

    What is hardly alike (``autofix.LEAST``) is suggested, and not carried out: it answers another question.
    """
    for _ in range(MOST_STEPS):
        ways = validation.suggestions
        if not ways or ways[0].likelihood < LEAST:
            return None
        draft = apply(draft, ways[0])
        validation = check(draft)
        if validation.is_valid:
            return draft
    return None


# ------------------------------------------------------------------------ a first draft through SQL
# A small model has seen far more SQL than structured queries. The prompt, its schema and its
# grammar are those of the control (``single_shot``), so that both write the same SQL. Of the
# translations that are valid and executable, the draft is the most literal one: rows instead of
# groups where the SQL does not group, its LIMIT instead of a TOP filter. Without such a translation
# it is the plainest. SQL that groups by what it does not show is used where the database says that
# its groups are those of what it shows. Not covered: databases that take no SQL, for which there is
# no such draft.


@dataclasses.dataclass(frozen=True)
class SqlDraft:
    """What the model wrote, and the query that it is; None with the reason where it is none."""

    sql: str
    query: dict[str, Any] | None = None
    reason: str = ""


def drafts_in_sql(here: Context) -> bool:
    """Whether the first draft is written as SQL: ``vizql.draft``, over a database that takes SQL."""
    return here.task.config.vizql.draft == "sql" and not takes_no_sql(here.task.resources.database)


def sql_draft(state: VizqlState) -> SqlDraft:
    """One call of the model with the control's prompt, translated. Raises EpisodeError."""
    task, here = state.task, state.here
    link(task)
    messages = sql_messages(task, constraints.extract_constraints(task.question.text))
    [raw] = write_sql(task, messages, task.config.vizql.max_new_tokens, sampling=task.sampling(), n=1)
    sql, refused = guard(task, raw)
    if refused is not None:
        state.refuse(0, "guardrails", raw, refused)
        return SqlDraft(raw, reason=f"no structured form: {refused}")
    nullable = nullable_captions(here.source, task.schema)
    translation = structured(sql, here.source, task.resources.database.dialect, nullable)
    if not translation.candidates:
        return SqlDraft(sql, reason=f"no structured form: {translation.reason}")
    if not _grouped_alike(here, translation.groups):
        return SqlDraft(sql, reason="no structured form: grouped by something else than what is asked for")
    usable = (candidate for candidate in reversed(translation.candidates) if _is_executable(here, candidate))
    return SqlDraft(sql, next(usable, translation.candidates[0]))


def _grouped_alike(here: Context, groups: str) -> bool:
    """Do the rows say that the SQL's groups are the query's? Where nobody can tell, they are not."""
    result = here.task.result_of(groups) if groups else None
    return result is None or (result.success and len(set(result.rows[0])) == 1)


def _is_executable(here: Context, draft: dict[str, Any]) -> bool:
    if not here.check(draft).is_valid:
        return False
    settings, dialect = here.task.config.vizql, here.task.resources.database.dialect
    return not statement(draft, here.source, dialect, settings)[1]


# ------------------------------------- the grammar: a JSON schema of the queries over a data source
# A model that writes under it cannot misspell a key, a caption or a value, nor give a function to a
# field that it does not fit. Some errors are left: a field twice, ends of a range in the wrong
# order, two filters of one field.
#
# Not covered, so that a query under the schema has none: calculations, bins, table calculations,
# CONDITION and relative date filters, parameters, MATCH filters that exclude.

_AGGREGATES = ("SUM", "AVG", "MEDIAN", "MIN", "MAX", "COUNT", "COUNTD")
_COUNTS = ("COUNT", "COUNTD")
_DAY = {"type": "string", "pattern": "^(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 100}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 60}  # one that is not taken from the data source
_NUMBER = {"type": "number"}
MOST_FIELDS = 6
MOST_FILTERS = 4
MOST_VALUES = 100  # distinct texts of a column that the grammar lists

Schema = dict[str, Any]
Fields = Sequence[FieldMetadata]


def grammar_of(task: Task, source: DataSource, fields: Fields) -> Grammar | None:
    """The grammar of requests over these fields; None where ``vizql.constrain`` or the model has none."""
    wanted = task.config.vizql.constrain
    if wanted == "none" or (wanted == "auto" and not takes_grammars(task.resources.model, "json_schema")):
        return None
    values = distinct_texts(source, fields, task.resources.database, most=MOST_VALUES)
    for field in fields:  # of a column with more texts: those that the question names
        if field.fieldCaption not in values and field.dataType == "STRING":
            place = source.table_of(field).lower(), field.column.lower()
            there = {m.value for m in task.values if (m.table.lower(), m.column.lower()) == place}
            values |= {field.fieldCaption: sorted(there)} if there else {}
    return Grammar("json_schema", json.dumps(query_schema(fields, values), ensure_ascii=False))


def query_schema(fields: Fields, values: Mapping[str, Sequence[str]]) -> Schema:
    """The JSON schema. values: by caption, all texts of a column; a column without an entry takes any text.

    A request is grouped, or gives rows as they are (``disaggregate``): then no field has a function.
    """
    plain = [field for field in fields if not field.is_aggregate]
    dimensions = [field for field in plain if field.fieldRole != "MEASURE"]
    amounts = [field for field in plain if field.fieldRole == "MEASURE" and fits("SUM", field.dataType)]
    dates = [field for field in plain if field.dataType in DATES]
    measures = [_field(amounts, _AGGREGATES), _field(dimensions, _COUNTS)]
    whole = _field([field for field in fields if field.is_aggregate])
    of_dates = _field(dates, (*sorted(DATE_PARTS), *sorted(DATE_TRUNCATIONS)))
    kinds = [kind for kind in (_field(dimensions), *measures, of_dates, whole) if _names_something(kind)]
    filters = [*_filters(plain, dimensions, dates, values)]
    for measure in measures:
        top = {"howMany": _COUNT, "fieldToMeasure": measure, "direction": {"enum": ["TOP", "BOTTOM"]}}
        filters.append(_filter(dimensions, "TOP", top))
    definitions: Schema = {
        "field": {"anyOf": [*kinds, *map(_sorted, kinds)]},
        "row": {"anyOf": [_field(plain), _sorted(_field(plain))]},
        "filter": {"anyOf": [kind for kind in filters if _names_something(kind)]},
        "first": _object({"rowLimit": _COUNT}),
    }
    raw = {"disaggregate": {"const": True}, "rowLimit": _COUNT}
    return {
        "anyOf": [
            _object({"query": _query("field"), "options": _ref("first")}, optional=("options",)),
            _object({"query": _query("row"), "options": _object(raw, optional=("rowLimit",))}),
        ],
        "$defs": definitions,
    }


def _filters(plain: Fields, dimensions: Fields, dates: Fields, values: Mapping[str, Sequence[str]]) -> Iterable[Schema]:
    texts = [field for field in dimensions if field.dataType in ("STRING", "UNKNOWN")]
    numbers = [field for field in plain if field.dataType in NUMBERS]
    sets: list[tuple[Fields, Schema]] = [
        *(([field], {"enum": list(members)}) for field in texts if (members := values.get(field.fieldCaption))),
        ([field for field in texts if not values.get(field.fieldCaption)], _TEXT),
        ([field for field in dimensions if field.dataType == "INTEGER"], {"type": "integer"}),
        ([field for field in plain if field.dataType == "BOOLEAN"], {"type": "boolean"}),
        ([field for field in plain if field.dataType == "DATE"], _DAY),
    ]
    for about, value in sets:
        listed = _list({"anyOf": [value, {"type": "null"}]}, MOST_FIELDS)
        yield _filter(about, "SET", {"values": listed, "exclude": {"const": True}}, optional=("exclude",))
    for key in ("contains", "startsWith", "endsWith"):
        yield _filter(texts, "MATCH", {key: _TEXT})
    for about, functions in ((numbers, ()), (numbers, _AGGREGATES), (texts, _COUNTS)):
        yield from _ranges(about, "QUANTITATIVE_NUMERICAL", {"min": _NUMBER, "max": _NUMBER}, functions)
    yield from _ranges(dates, "QUANTITATIVE_DATE", {"minDate": _DAY, "maxDate": _DAY})


def _ranges(about: Fields, kind: str, ends: Schema, functions: Sequence[str] = ()) -> Iterable[Schema]:
    least, most = ends
    for name, keys in (("MIN", [least]), ("MAX", [most]), ("RANGE", [least, most])):
        parts = {"quantitativeFilterType": {"const": name}, **{key: ends[key] for key in keys}}
        yield _filter(about, kind, parts, functions)
    if not functions:
        yield _filter(about, kind, {"quantitativeFilterType": {"enum": ["ONLY_NULL", "ONLY_NON_NULL"]}})


def _filter(
    about: Fields, kind: str, parts: Schema, functions: Sequence[str] = (), optional: Sequence[str] = ()
) -> Schema:
    return _object({"field": _field(about, functions), "filterType": {"const": kind}, **parts}, optional)


def _field(fields: Fields, functions: Sequence[str] = ()) -> Schema:
    parts: Schema = {"fieldCaption": {"enum": [field.fieldCaption for field in fields]}}
    return _object(parts | ({"function": {"enum": list(functions)}} if functions else {}))


def _sorted(field: Schema) -> Schema:
    order = {"sortDirection": {"enum": ["ASC", "DESC"]}, "sortPriority": {"enum": [1, 2, 3]}}
    return _object(field["properties"] | order)


def _query(field: str) -> Schema:
    parts = {"fields": _list(_ref(field), MOST_FIELDS), "filters": _list(_ref("filter"), MOST_FILTERS)}
    return _object(parts, ("filters",))


def _list(items: Schema, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def _names_something(part: Schema) -> bool:
    """Is there a caption wherever one is wanted? A data source without dates has no filters of dates."""
    inside = part.get("properties", {})
    named = inside.get("fieldCaption", {}).get("enum") != []
    return named and all(_names_something(value) for value in inside.values())


def _object(properties: Schema, optional: Sequence[str] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
