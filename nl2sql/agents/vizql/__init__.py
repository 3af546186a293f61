"""Structured queries over a data source: written, validated, refined and executed (docs/vizql.md).

``vizql`` is the controller. The planner picks the tables that a question is about, the schema fetch writes their
fields and looks up values (``state``); then the graph runs, as the specification draws it: query builder -> validator
-> executor -> formatter, with the refiner back to the validator, and the error handler. ``Episode.sql`` is the compiled
SQL, ``Episode.raw_sql`` the query as JSON, and ``flags["vizql"]`` has the query, its version and the errors of each
version.

The versions, on which the specification disagrees with itself: a query that is built has version 1, refinements have
2, 3 and 4, and a version 4 that fails goes to the error handler.

A valid query is compiled to SQL over the database, or executed as it is by a database that takes such queries. That one
says so by its dialect ``vizql``; its errors tell by their code whether another query may mend them.

Not covered: table calculations and LOD expressions, which are valid and not executed here; more than one draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.record import Episode, EpisodeError, make_episode
from nl2sql.agents.setup import open_task
from nl2sql.agents.vizql.state import (
    Context,
    VizqlState,
    asked,
    draft_text,
    drafts_in_sql,
    fixed,
    grammar_of,
    linked_fields,
    query_of,
    read_reply,
    source_of,
    sql_draft,
    with_valid_parts,
    within_budget,
)
from nl2sql.config import Config, VizqlConfig
from nl2sql.errors import DatabaseError
from nl2sql.interfaces import Question, Resources, RunResult
from nl2sql.vizql.autofix import Place, as_json
from nl2sql.vizql.query import DIALECT, as_request, is_request
from nl2sql.vizql.querying import statement
from nl2sql.vizql.service import known_code
from nl2sql.vizql.validator import Validation

__all__ = ["vizql"]

SHOWN_SUGGESTIONS = 16  # in the refiner's prompt; that there are more is said
PREVIEW = 5  # rows of a result in the trace


def vizql(question: Question, resources: Resources, config: Config) -> Episode:
    """Answer by a structured query. Raises UsageError and DatabaseError as the loop does."""
    task = open_task(question, resources, config, shown_example)
    source = source_of(task)
    fields = linked_fields(task, source)
    schema, grammar = within_budget(task, fields, source), grammar_of(task, source, fields)
    here = Context(task, source, schema, asked(task, source), grammar, task.examples)
    task.examples = ()  # a prompt for SQL shows no JSON
    state = VizqlState(task, context=here)
    step: Callable[[VizqlState], None] | None = query_builder
    while step is not None:
        try:
            step(state)
        except EpisodeError as failed:
            state.failure = str(failed)
        except DatabaseError as error:  # outside of a tool
            state.failure = f"database: {error}"
        step = _NEXT[step](state) if step in _NEXT else None
    return _episode(state)


def shown_example(question: Question) -> tuple[str, str] | None:
    """A few-shot example as the prompt shows it; None where the question has no structured query."""
    query = question.meta.get("vizql")
    return None if query is None else (question.text.strip(), as_json(as_request(query)))


def _episode(state: VizqlState) -> Episode:
    """The Episode of the final state: its SQL with the rows, and all that was recorded."""
    task, attempts, answer = state.task, state.attempts, state.answer
    chosen = attempts[answer] if answer is not None else (attempts[-1] if attempts else {})
    errors: dict[str, list[str]] = {}
    for attempt in attempts:
        errors.setdefault(str(attempt["version"]), []).extend(attempt["errors"])
    summary: dict[str, Any] = {
        "query": chosen.get("query"),
        "query_version": chosen.get("version", 0),
        "errors": errors,
        "stages": [attempt["stage"] for attempt in attempts],
    }
    return make_episode(
        task,
        "vizql",
        str(chosen.get("sql", "")) if answer is not None else "",
        raw_sql=draft_text(chosen["query"]) if chosen.get("query") is not None else "",
        finish=state.finish,
        error=state.failure or state.error,
        steps=len(state.trace),
        trace=state.trace,
        decision_log=state.decision_log,
        messages=next((call["messages"] for call in task.calls if call["messages"]), []),
        transcript="",
        flags={"vizql": summary},
    )


# -------------------------------------------------------------------------------------------- routes


def route_after_validation(state: VizqlState, settings: VizqlConfig) -> str:
    """``execute`` a valid query, ``refine`` another one while versions are left, else ``error_handler``."""
    if state.failure:
        return "error_handler"
    if state.is_valid:
        return "execute"
    return "refine" if refinements_left(state, settings) else "error_handler"


def route_after_execution(state: VizqlState, settings: VizqlConfig) -> str:
    """``format`` a result; ``refine`` what failed or is odd, with ``vizql.feedback``; else ``error_handler``."""
    ran = state.execution_result or {}
    if state.failure:
        return "error_handler"
    again = settings.feedback and ran.get("refinable") and refinements_left(state, settings)
    if ran.get("success"):
        seen = sum(attempt.get("success", False) for attempt in state.attempts)
        return "refine" if ran.get("odd") and again and seen == 1 else "format"  # an odd result is doubted once
    return "refine" if again else "error_handler"


def refinements_left(state: VizqlState, settings: VizqlConfig) -> bool:
    """Whether another version may be made."""
    return state.query_version <= settings.refinements


# --------------------------------------------------------------------------------------------- nodes
# Each reads and writes the state, whose trace and decision log grow as in the loop [VizQL
# specification, "Graph Flow"].


def query_builder(state: VizqlState) -> None:
    """The first draft: as SQL that is translated, with ``vizql.draft: sql``; else, or where it has no structured form,
    by one call of the model under the data source's grammar where there is one."""
    here, config = state.here, state.task.config.prompts
    if drafts_in_sql(here):
        written = sql_draft(state)
        seen = {"sql": written.sql, "query": written.query} | ({"error": written.reason} if written.reason else {})
        log(state, "build_query", {"version": 1, "by": "sql"}, seen, written.reason or "ok")
        if written.query is not None:
            state.query_draft, state.query_version = written.query, 1
            return
    examples = [prompts.prompt("vizql_example", config, question=asked, query=query) for asked, query in here.examples]
    shown = "".join(f"{example}\n\n" for example in examples)
    reply, draft = ask(
        state,
        prompts.prompt("vizql_user", config, schema=here.schema, question=here.question, examples=shown),
    )
    made = draft if draft is not None else reply
    reason = "ok" if draft is not None else "no query in the reply"
    log(state, "build_query", {"version": 1, "by": "model"}, {"query": made}, reason)
    state.query_draft, state.query_version = made, 1


def validator(state: VizqlState) -> None:
    """What is wrong with the draft, and what would mend it."""
    validation = state.here.check(state.query_draft)
    errors = validation.validation_errors
    observation = {
        "is_valid": validation.is_valid,
        "validation_errors": errors,
        "validation_suggestions": validation.validation_suggestions,
        "warnings": list(validation.warnings),
    }
    log(state, "validate_query", {"version": state.query_version}, observation, errors[0] if errors else "ok")
    state.is_valid, state.validation_errors, state.execution_result = validation.is_valid, errors, None
    state.validation_suggestions = validation.validation_suggestions
    if errors:
        state.attempts.append(_attempt(state, "validation", errors))


def executor(state: VizqlState) -> None:
    """The valid draft executed within ``execution.*``. What fails, and what is odd about a result, are errors for the
    refiner."""
    task, dialect = state.task, state.task.resources.database.dialect
    sql, reasons = statement(state.query_draft, state.here.source, dialect, task.config.vizql)
    if reasons:
        errors = [f"not executable: {reason}" for reason in reasons]
        result = RunResult(False, error="; ".join(errors), error_kind="not_executable")
    else:
        result = task.result_of(sql)
        errors = errors_of(result)
    # else the error is the server's, or one of the sign-in
    mendable = bool(reasons) or dialect != DIALECT or known_code(result.error_kind).reaction == "refine"
    observation: dict[str, Any] = {"success": result.success, "sql": sql, "row_count": len(result.rows)}
    if result.success:
        observation |= {"columns": list(result.columns), "rows": [list(row) for row in result.rows[:PREVIEW]]}
    else:
        observation |= {"error": result.error, "error_kind": result.error_kind}
    log(state, "execute_query", {"version": state.query_version}, observation, errors[0] if errors else "ok")
    stage = "execution" if not result.success else "result" if errors else "answered"
    state.execution_result = {
        "success": result.success,
        "refinable": result.success or mendable,
        "odd": bool(errors),
        "error_kind": result.error_kind,
    }
    state.validation_errors, state.validation_suggestions = errors, []
    state.attempts.append({**_attempt(state, stage, errors), "sql": sql, "success": result.success})


def errors_of(result: RunResult) -> list[str]:
    """The error of a result that failed; of one that succeeded, what is odd about it."""
    if not result.success:
        return [f"The query failed: {result.error}"]
    if not result.rows:
        return ["The query runs and gives no rows: a filter may hold a wrong value or field"]
    if all(value is None for row in result.rows for value in row):
        return ["The query runs and all of its values are NULL"]
    return ["The result was cut: it has too many rows; aggregate it or filter it"] if result.truncated else []


def refiner(state: VizqlState) -> None:
    """The next version: the likeliest suggestions carried out, or the model asked to mend the draft.

    A reply without a query uses up the refinement; the draft stays, and the next prompt says so.
    """
    settings, before = state.task.config.vizql, state.query_draft
    version = state.query_version + 1
    validation = state.here.check(before)
    draft, reply, by = None, "", "suggestions"
    if settings.apply_suggestions and not validation.is_valid:
        draft = fixed(before, validation, state.here.check)
    if draft is None:
        reply, draft = ask(state, refine_prompt(state))
        by = "model"
    broken = _broken(state, validation) if settings.keep_valid else frozenset()
    if draft is not None and broken:
        kept = with_valid_parts(before, broken, draft)
        # what was valid alone may not go with a part that the reply mended
        draft = draft if not state.here.check(kept).is_valid and state.here.check(draft).is_valid else kept
    reason = "ok" if draft is not None else "no query in the reply"
    log(state, "refine_query", {"version": version, "by": by}, {"query": draft if draft is not None else reply}, reason)
    state.query_draft = before if draft is None else draft
    state.query_version, state.unread = version, reply if draft is None else ""


def _broken(state: VizqlState, validation: Validation) -> frozenset[Place]:
    """The parts of the draft that are known to be wrong; none, where what is wrong with it is not known of a part."""
    ran = state.execution_result
    if ran is None:
        return validation.broken
    if ran["success"] or ran["error_kind"] == "timeout":  # and each part may take as long
        return frozenset()
    return frozenset(failing_parts(state.here, state.query_draft))


def failing_parts(here: Context, draft: dict[str, Any]) -> Iterator[Place]:
    """The fields and filters of a valid draft that fail alone; none where only all together fail, or where a service
    would be asked for each."""
    database, query = here.task.resources.database, query_of(draft)
    if database.dialect == DIALECT:
        return

    def fails(**parts: Any) -> bool:
        alone = {**query, "filters": [], **parts}
        request = {**draft, "query": alone} if is_request(draft) else alone
        sql, reasons = statement(request, here.source, database.dialect, here.task.config.vizql)
        return bool(reasons) or not here.task.result_of(sql).success

    sound = None
    for i, field in enumerate(query["fields"]):
        if fails(fields=[field]):
            yield ("fields", i)
        else:
            sound = sound or field
    for i, part in enumerate(query.get("filters") or ()):
        if sound is not None and fails(fields=[sound], filters=[part]):
            yield ("filters", i)


def formatter(state: VizqlState) -> None:
    """The answer: the attempt that was executed last; an earlier one where the last one's result is no better."""
    ran = _ran(state)
    sound = [i for i in ran if state.attempts[i]["stage"] == "answered"]
    answer = sound[-1] if sound else ran[0]
    log(state, "format_result", {}, {"version": state.attempts[answer]["version"]}, "ok")
    state.answer, state.finish = answer, "finish"


def error_handler(state: VizqlState) -> None:
    """What is left when no version is valid and runs: errors, suggestions, and what was valid.

    Where an earlier version ran, with an odd result, it is the answer after all, also where the model failed since.
    """
    ran, failure = _ran(state), state.failure
    if ran:
        log(state, "format_result", {}, {"version": state.attempts[ran[0]]["version"]}, failure or "ok")
        state.answer, state.finish = ran[0], "error" if failure else "best_so_far"
        return
    state.error = error_text(state)
    log(state, "format_result", {}, {"error": state.error}, state.error.partition("\n")[0])
    state.finish = "error" if failure else "empty"


def _routed(route: Callable[[VizqlState, VizqlConfig], str]) -> Callable[[VizqlState], Callable[[VizqlState], None]]:
    nodes = {"execute": executor, "refine": refiner, "format": formatter, "error_handler": error_handler}
    return lambda state: nodes[route(state, state.task.config.vizql)]


_NEXT: dict[Callable[[VizqlState], None], Callable[[VizqlState], Callable[[VizqlState], None]]] = {
    query_builder: lambda state: validator,
    validator: _routed(route_after_validation),
    executor: _routed(route_after_execution),
    refiner: lambda state: validator,
}


# --------------------------------------------------------------------------------- texts and records


def refine_prompt(state: VizqlState) -> str:
    """The specification's six parts, and with ``vizql.accumulate`` the errors of earlier versions."""
    config, here = state.task.config, state.here
    errors = [*state.validation_errors]
    if state.unread:
        errors.insert(0, "The last reply held no query as JSON")
    suggestions = state.validation_suggestions if config.vizql.suggestions else []
    shown, left = suggestions[:SHOWN_SUGGESTIONS], len(suggestions) - SHOWN_SUGGESTIONS
    shown += [f"and {left} that are less likely"] if left > 0 else []
    return prompts.prompt(
        "vizql_refine",
        config.prompts,
        question=here.question,
        query=draft_text(state.query_draft),
        errors="\n".join(f"- {error}" for error in errors),
        earlier=_earlier(state) if config.vizql.accumulate else "",
        suggestions="\nSuggestions:\n" + "".join(f"- {line}\n" for line in shown) if shown else "",
        schema=here.schema,
        rules=prompts.prompt("vizql_rules", config.prompts),
    )


def _earlier(state: VizqlState) -> str:
    """The errors of the versions before this one; an error that was gone and is back is said to."""
    *before, last = [attempt["errors"] for attempt in state.attempts]
    if not before:
        return ""
    lines = [f"- version {n}: {error}" for n, errors in enumerate(before, 1) for error in errors]
    gone = {error for errors in before for error in errors if error not in before[-1]}
    lines += [f"- It was mended before and is back: {error}" for error in last if error in gone]
    return "\nErrors of earlier versions:\n" + "".join(f"{line}\n" for line in dict.fromkeys(lines))


def error_text(state: VizqlState) -> str:
    """The error handler's message: errors, suggestions, and the captions that were valid."""
    where = "model: the query cannot be executed" if state.is_valid else "model: the query is not valid"
    lines = [state.failure or f"{where} after {max(0, len(state.attempts) - 1)} refinements"]
    lines += [f"- {error}" for error in state.validation_errors]
    if state.validation_suggestions:
        lines += ["suggestions:", *(f"- {line}" for line in state.validation_suggestions)]
    query, broken = query_of(state.query_draft), state.here.check(state.query_draft).broken
    fields = query.get("fields") if isinstance(query, dict) else None
    valid = [part for i, part in enumerate(fields) if ("fields", i) not in broken] if isinstance(fields, list) else []
    if valid and not state.is_valid and ("fields",) not in broken and () not in broken:
        lines.append("valid: " + ", ".join(as_json(part) for part in valid))
    return "\n".join(lines)


def ask(state: VizqlState, user: str) -> tuple[str, Any | None]:
    """The model's reply to a prompt, and the query in it, if there is one."""
    task = state.task
    rules = prompts.prompt("vizql_rules", task.config.prompts)
    system = prompts.prompt("vizql_system", task.config.prompts, rules=rules)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    options: dict[str, Any] = {"grammar": state.here.grammar} if state.here.grammar else {}
    tokens = task.config.vizql.max_new_tokens
    reply = task.ask(messages, "vizql", max_new_tokens=tokens, **options).text
    return reply, read_reply(reply)


def log(state: VizqlState, action: str, args: Mapping[str, Any], observation: Any, reason: str) -> None:
    """Append a trace record and a decision; ``reason`` is ``ok`` for what was accepted."""
    step = int(state.trace[-1]["step"]) + 1 if state.trace else 0
    state.decide(step, action, reason, "accept" if reason == "ok" else "reject", {})
    state.record({"step": step, "action": action, "args": dict(args), "observation": observation})


def _attempt(state: VizqlState, stage: str, errors: list[str]) -> dict[str, Any]:
    return {"version": state.query_version, "query": state.query_draft, "stage": stage, "errors": list(errors)}


def _ran(state: VizqlState) -> list[int]:
    """The attempts that were executed."""
    return [i for i, attempt in enumerate(state.attempts) if attempt.get("success")]
