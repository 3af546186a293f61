"""The action space: one record per tool, from which prompt, JSON schema and grammar are made.

A tool is ``(state, args) -> observation``. It reads the shared ``State`` and may ignore the model's arguments
(specification, section 3). It computes an observation; what an observation *does* to the loop (pending repairs, voided
validations) is written in ``react.py``. Users add a tool by passing ``{"name": function}`` as ``Resources.tools``:

    def count_rows(state, args):
        "The number of rows of a table."
        return state.task.result_of(f"SELECT count(*) FROM {args['table']}").rows[0][0]

    count_rows.parameters = {"type": "object", "properties": {"table": {"type": "string"}}}
    nl2sql.react_sql("How many customers?", database, model, tools={"count_rows": count_rows})

The first line of its docstring tells the model what it is for, ``parameters`` (a JSON Schema) what it may be given. A
tool with the name of a built-in one replaces its function.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nl2sql.agents import prompts, react_plus, repairing
from nl2sql.agents.checks import constraints
from nl2sql.agents.grammars import select
from nl2sql.agents.record import EpisodeError, json_tree
from nl2sql.agents.setup import link
from nl2sql.agents.task import State
from nl2sql.config import Config, RepairConfig
from nl2sql.databases import validation
from nl2sql.errors import Cancelled, DatabaseError, ModelError
from nl2sql.interfaces import Question, Resources, Tool
from nl2sql.sql.text import stem, words

KEPT_ROWS = 20  # of a result in an observation, and so in the trace
NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class ToolRecord:
    """One tool of the loop.

    description: what the prompt and the native definition tell the model. parameters: the JSON Schema of its arguments,
    None for any object. grammar: the arguments as Lark, given the names of the tables. returns: the keys of an
    observation that the loop reads, whoever wrote the tool. example: its arguments as the prompt shows them.
    """

    name: str
    function: Tool
    description: str
    parameters: Mapping[str, Any] | None = field(default_factory=lambda: NOTHING)
    grammar: Callable[[Sequence[str]], str] = select.no_arguments
    returns: tuple[str, ...] = ()
    example: str = "{}"


def get_schema(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """The database's tables, columns and foreign keys as a dict."""
    return {
        "tables": [
            {
                "name": t.name,
                "columns": [{"name": c.name, "type": c.type, "primary_key": c.primary_key} for c in t.columns],
                "foreign_keys": [
                    {"columns": list(k.columns), "table": k.ref_table, "ref_columns": list(k.ref_columns)}
                    for k in t.foreign_keys
                ],
            }
            for t in state.task.schema.tables
        ]
    }


def link_schema(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """Schema text of the (at most six) tables that matter for the question [17]; all of it when linking is off."""
    return link(state.task)


def extract_constraints(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """What the question demands: agg, needs_group_by, needs_order_by, limit, distinct."""
    return constraints.extract_constraints(state.task.question.text)


def generate_sql(state: State, args: Mapping[str, Any]) -> str:
    """Raw SQL text from the model, for the question under the focused schema and the constraints."""
    task = state.task
    messages = task.sql_messages(state.constraints)
    return task.write_sql(messages, task.config.react.max_new_tokens, sampling=task.sampling())[0]


def repair_sql(state: State, args: Mapping[str, Any]) -> str:
    """Raw SQL text from the model, given the failed query and its error [2]."""
    task = state.task
    error = state.pending_repair_error or state.last_error or "the query may be wrong"
    if fixed := repairing.fixed(state, error):  # with repair.deterministic
        return fixed
    if other := react_plus.another(state):  # with react.repair_samples
        return other
    messages = prompts.repair_messages(
        task.nlq, state.last_sql or "(none)", error, task.schema_text_focus, task.config.prompts
    )
    if task.config.repair != RepairConfig():  # not the specification's loop
        messages = repairing.messages(state, state.last_sql or "", error) or messages
    return repairing.written(state, messages)


def validate_sql(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """``{valid, reason}``: form, tables and columns of the current SQL, before it is executed."""
    react, database = state.task.config.react, state.task.resources.database
    if not react.validation_gate:
        return {"valid": True, "reason": "gate_off"}
    asked = database if react.explain or database.dialect != "sqlite" else None  # react_plus
    verdict = validation.validate_sql(state.last_sql or "", state.task.schema, asked)
    if not (react.suggestions and verdict["suggestions"]):  # react_plus
        del verdict["suggestions"]
    return verdict


def validate_constraints(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """``{valid, reason}``: does the current SQL have the structure that the question demands? [13]"""
    if not state.task.config.react.constraints_gate:
        return {"valid": True, "reason": "gate_off"}
    return constraints.validate_constraints(state.last_sql or "", state.constraints or {}, state.task.schema)


def run_sql(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """``{success, rows, ...}`` or ``{success: False, error}`` of executing the current SQL, read-only and bounded."""
    sql = state.last_sql or ""
    result = state.task.result_of(sql)
    if not result.success:
        return {"success": False, "error": result.error, "error_kind": result.error_kind, "sql": sql}
    return {
        "success": True,
        "sql": sql,
        "columns": list(result.columns),
        "rows": [list(row) for row in result.rows[:KEPT_ROWS]],
        "row_count": len(result.rows),
        "truncated": result.truncated,
    }


def get_table_samples(state: State, args: Mapping[str, Any]) -> Any:
    """The first rows of the table that the arguments name, long values cut."""
    table, n = args.get("table"), args.get("n", 3)
    if not isinstance(table, str) or state.task.schema.table(table) is None:
        names = ", ".join(t.name for t in state.task.schema.tables[:20])
        return {"error": f"unknown_table:{table}", "tables": names}
    wanted = n if isinstance(n, int) and not isinstance(n, bool) else 3
    return prompts.samples_text(state.task.resources.database.sample(table, max(1, min(wanted, 10))))


def finish(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """The terminal container: the last run's rows (as text), the SQL that gave them, and where it came from."""
    run = state.last_run or {}
    return {
        "answer": prompts.observation_text(run.get("rows", []), 500),
        "sql": run.get("sql") or "",
        "provenance": {"row_count": run.get("row_count"), "constraints": state.constraints},
    }


SAMPLES: Mapping[str, Any] = {
    "type": "object",
    "properties": {"table": {"type": "string"}, "n": {"type": "integer", "minimum": 1, "maximum": 10}},
    "required": ["table"],
}
CHECKED = ("valid", "reason")


TEXTS = {
    name: (example, description)
    for name, example, description in prompts.TOOL_LINE.findall(prompts.REACT_SYSTEM_PROMPT)
}


def _built_in(name: str, function: Tool, **options: Any) -> ToolRecord:
    example, description = TEXTS[name]
    return ToolRecord(name, function, description, example=example, **options)


ACTIONS: tuple[ToolRecord, ...] = (
    _built_in("get_schema", get_schema),
    _built_in("link_schema", link_schema, returns=("schema_text",)),
    _built_in("extract_constraints", extract_constraints),
    _built_in("generate_sql", generate_sql),
    _built_in("validate_sql", validate_sql, returns=CHECKED),
    _built_in("validate_constraints", validate_constraints, returns=CHECKED),
    _built_in("run_sql", run_sql, returns=("success",)),
    _built_in("repair_sql", repair_sql),
    _built_in("get_table_samples", get_table_samples, parameters=SAMPLES, grammar=select.sample_arguments),
    _built_in("finish", finish),
)
TOOLS: dict[str, Tool] = {record.name: record.function for record in ACTIONS}


def action_space(resources: Resources) -> dict[str, ToolRecord]:
    """All tools by name: the built-in ones, with the functions that replace some of them, then the user's own."""
    space = {record.name: record for record in ACTIONS}
    for name, function in resources.tools.items():
        described = (inspect.getdoc(function) or name).partition("\n")[0]
        own = replace(space.get(name) or ToolRecord(name, function, described, parameters=None), function=function)
        schema = getattr(function, "parameters", None)
        if schema is not None or name not in TOOLS:
            example = json.dumps(dict.fromkeys((schema or {}).get("properties", {}), "..."))
            grammar = select.json_arguments(schema)
            own = replace(own, parameters=schema, grammar=grammar, example=example)
        space[name] = own
    return space


def dispatch(state: State, action: str, args: Mapping[str, Any]) -> Any:
    """Run the tool. What it raises ends the episode, attributed to the tool, the database or the model."""
    tool = action_space(state.task.resources)[action]
    try:
        observation = tool.function(state, dict(args))  # a tool may take them out of its own copy
        if tool.function is not TOOLS.get(action) and not (tool.returns or action == "extract_constraints"):
            observation = json_tree(observation)  # a copy that JSON can hold: the tool may change its own later
    except DatabaseError as error:
        raise EpisodeError("database", str(error)) from error
    except ModelError as error:
        raise EpisodeError("model", str(error)) from error
    except (EpisodeError, Cancelled):
        raise
    except Exception as error:  # tools are users' code too: attribute, record, never crash the run
        raise EpisodeError("tool", f"{action}: {type(error).__name__}: {error}") from error
    if action == "extract_constraints" and not isinstance(observation, Mapping):
        raise EpisodeError("tool", f"{action}: its observation is no dict of constraints: {str(observation)[:100]}")
    missing = [key for key in tool.returns if not isinstance(observation, Mapping) or key not in observation]
    if missing:
        raise EpisodeError("tool", f"{action}: its observation lacks {', '.join(missing)}: {str(observation)[:100]}")
    return observation


def own_tools(resources: Resources) -> list[tuple[str, str, str]]:
    """(name, arguments, what it is for) of the tools that the packaged prompt does not name."""
    space = action_space(resources)
    return [(name, space[name].example, space[name].description) for name in resources.tools if name not in TOOLS]


# ------------------------------------------------------------------------------ a user who is asked
# The user is scripted and answers with the benchmark's own record, SQL included, which is more than
# BIRD-Interact's user, a model, may say. Not covered: that model, bird-coins, a second question.

KEY = "user"  # of a question's meta
ASKED = "asked_user"  # the episode's flag: how many questions it put to the user
CANNOT_SAY = "I cannot say."
MOST_CHARS = 400  # of a question or an answer: BIRD-Interact's bound


def before_user(question: Question, resources: Resources, config: Config) -> tuple[Question, Resources]:
    """The question as a simulated user asks it, and the resources with ``ask_user``; else both as
    they are.

    With ``user.simulated`` a question that has an ambiguous form (``meta["user"]``: ``question``,
    ``evidence``, ``description``, pairs of a term and what it means, and ``points``, how many of these
    have to be cleared up) is asked in that form. An answer goes below the question, so that every
    prompt after it shows it. A controller without tools answers the ambiguous question as it is.
    """
    hidden = question.meta.get(KEY)
    if not (hidden and config.user.simulated):
        return question, resources
    asked = replace(question, text=hidden["question"], evidence=hidden["evidence"])
    return asked, replace(resources, tools={**resources.tools, "ask_user": ask_user})


def ask_user(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the user what one term of the question means, before generate_sql."""
    task = state.task
    hidden, question = task.question.meta[KEY], str(args.get("question") or "")[:MOST_CHARS]
    left = hidden["points"] + task.config.user.patience - task.flags.get(ASKED, 0)
    if left <= 0:
        return {"error": "the user answers no further question"}
    task.count(ASKED)
    answer = meaning(question, hidden["says"])[:MOST_CHARS]
    if answer != CANNOT_SAY:
        task.nlq += f"\n{answer}"
    return {"answer": answer, "questions_left": left - 1}


ask_user.parameters = {  # type: ignore[attr-defined]
    "type": "object",
    "properties": {"question": {"type": "string"}},
    "required": ["question"],
}


def meaning(question: str, definitions: Sequence[Sequence[str]]) -> str:
    """What the term means of which ``question`` has most words, at least half; or CANNOT_SAY.

    definitions: pairs of a term and what it means. Of equal shares the longer term counts.

    >>> told = [["big spender", "a customer whose orders come to more than 100"]]
    >>> meaning("What do you mean by big spenders?", told)
    "By 'big spender' I mean: a customer whose orders come to more than 100"
    >>> meaning("Which city?", told)
    'I cannot say.'
    """
    asked = {stem(word) for word in words(question)}
    best, answer = (0.5, 0), CANNOT_SAY
    for term, meant in definitions:
        named = {stem(word) for word in words(term)}
        share = len(named & asked) / max(1, len(named))
        if (share, len(named)) > best:
            best, answer = (share, len(named)), f"By {term!r} I mean: {meant}"
    return answer
