"""The nodes of the graph and its two routes, as functions over plain state [VizQL specification, "Graph Flow"].

A node reads the graph's state, works with ``Work`` (whose trace and decision log grow as in the loop) and returns an
update. Nodes do not know LangGraph; the package does. Planner and schema fetch have done their work before the first
node that asks the model: ``Context`` holds it.

The versions, on which the specification disagrees with itself: a query that is built has version 1, refinements have
2, 3 and 4, and a version 4 that fails goes to the error handler (``docs/vizql.md``).

A valid query is compiled to SQL over the database, or executed as it is by a database that takes such queries. That one
says so by its dialect ``vizql``; its errors tell by their code whether another query may mend them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from nl2sql.agents import prompts
from nl2sql.agents.vizql.state import (
    Context,
    VizqlState,
    Work,
    draft_text,
    drafts_in_sql,
    mended,
    query_of,
    read_reply,
    sql_draft,
    with_valid_parts,
)
from nl2sql.config import VizqlConfig
from nl2sql.interfaces import RunResult
from nl2sql.vizql.mending import Place, as_json
from nl2sql.vizql.query import DIALECT, is_request
from nl2sql.vizql.querying import reaction, statement
from nl2sql.vizql.validator import Validation

Update: TypeAlias = dict[str, Any]
SHOWN_SUGGESTIONS = 16  # in the refiner's prompt; that there are more is said
PREVIEW = 5  # rows of a result in the trace


def query_builder(state: VizqlState, work: Work) -> Update:
    """The first draft: as SQL that is translated, with ``vizql.draft: sql``; else, or where it has no structured form,
    by one call of the model under the data source's grammar where there is one."""
    task, here = work.task, work.here
    if drafts_in_sql(here):
        written = sql_draft(work)
        seen = {"sql": written.sql, "query": written.query} | ({"error": written.reason} if written.reason else {})
        log(work, "build_query", {"version": 1, "by": "sql"}, seen, written.reason or "ok")
        if written.query is not None:
            return {"query_draft": written.query, "query_version": 1}
    examples = [
        prompts.prompt("vizql_example", task.config.prompts, question=asked, query=query)
        for asked, query in here.examples
    ]
    user = prompts.prompt(
        "vizql_user",
        task.config.prompts,
        schema=here.schema,
        question=here.question,
        examples="".join(f"{example}\n\n" for example in examples),
    )
    reply, draft = ask(work, user)
    made = draft if draft is not None else reply
    reason = "ok" if draft is not None else "no query in the reply"
    log(work, "build_query", {"version": 1, "by": "model"}, {"query": made}, reason)
    return {"query_draft": made, "query_version": 1}


def validator(state: VizqlState, work: Work) -> Update:
    """What is wrong with the draft, and what would mend it."""
    draft, version = state["query_draft"], state["query_version"]
    validation = work.here.check(draft)
    errors = validation.validation_errors
    observation = {
        "is_valid": validation.is_valid,
        "validation_errors": errors,
        "validation_suggestions": validation.validation_suggestions,
        "warnings": list(validation.warnings),
    }
    log(work, "validate_query", {"version": version}, observation, errors[0] if errors else "ok")
    update: Update = {
        "is_valid": validation.is_valid,
        "validation_errors": errors,
        "validation_suggestions": validation.validation_suggestions,
        "execution_result": None,
    }
    if not validation.is_valid:
        update["attempts"] = [_attempt(state, "validation", errors)]
    return update


def executor(state: VizqlState, work: Work) -> Update:
    """The valid draft executed. What fails, and what is odd about a result, are errors for the refiner."""
    ran = execute(work.here, state["query_draft"])
    result, errors = ran.result, ran.errors
    observation: Update = {"success": result.success, "sql": ran.sql, "row_count": len(result.rows)}
    if result.success:
        observation |= {"columns": list(result.columns), "rows": [list(row) for row in result.rows[:PREVIEW]]}
    else:
        observation |= {"error": result.error, "error_kind": result.error_kind}
    version = state["query_version"]
    log(work, "execute_query", {"version": version}, observation, errors[0] if errors else "ok")
    stage = "execution" if not result.success else "result" if errors else "answered"
    return {
        "execution_result": {
            "success": result.success,
            "refinable": ran.refinable,
            "odd": bool(errors),
            "error_kind": result.error_kind,
        },
        "validation_errors": errors,
        "validation_suggestions": [],
        "attempts": [{**_attempt(state, stage, errors), "sql": ran.sql, "success": result.success}],
    }


def refiner(state: VizqlState, work: Work) -> Update:
    """The next version: the likeliest suggestions carried out, or the model asked to mend the draft.

    A reply without a query uses up the refinement; the draft stays, and the next prompt says so.
    """
    settings, before = work.task.config.vizql, state["query_draft"]
    version = state["query_version"] + 1
    validation = work.here.check(before)
    draft, by = None, "suggestions"
    if settings.apply_suggestions and not validation.is_valid:
        draft = mended(before, validation, work.here.check)
    reply = ""
    if draft is None:
        reply, draft = ask(work, refine_prompt(state, work))
        by = "model"
    broken = _broken(state, work, validation) if settings.keep_valid else frozenset()
    if draft is not None and broken:
        kept = with_valid_parts(before, broken, draft)
        # what was valid alone may not go with a part that the reply mended
        draft = draft if not work.here.check(kept).is_valid and work.here.check(draft).is_valid else kept
    reason = "ok" if draft is not None else "no query in the reply"
    log(work, "refine_query", {"version": version, "by": by}, {"query": draft if draft is not None else reply}, reason)
    return {
        "query_draft": before if draft is None else draft,
        "query_version": version,
        "unread": reply if draft is None else "",
    }


def _broken(state: VizqlState, work: Work, validation: Validation) -> frozenset[Place]:
    """The parts of the draft that are known to be wrong; none, where what is wrong with it is not known of a part."""
    ran = state["execution_result"]
    if ran is None:
        return validation.broken
    if ran["success"] or ran["error_kind"] == "timeout":  # and each part may take as long
        return frozenset()
    return failing_parts(work.here, state["query_draft"])


def formatter(state: VizqlState, work: Work) -> Update:
    """The answer: the attempt that was executed last; an earlier one where the last one's result is no better."""
    ran = [i for i, attempt in enumerate(state["attempts"]) if attempt.get("success")]
    sound = [i for i in ran if state["attempts"][i]["stage"] == "answered"]
    answer = sound[-1] if sound else ran[0]
    log(work, "format_result", {}, {"version": state["attempts"][answer]["version"]}, "ok")
    return {"answer": answer, "finish": "finish", "error": None}


def error_handler(state: VizqlState, work: Work) -> Update:
    """What is left when no version is valid and runs: errors, suggestions, and what was valid.

    Where an earlier version ran, with an odd result, it is the answer after all, also where the model failed since.
    """
    ran, failure = [i for i, attempt in enumerate(state["attempts"]) if attempt.get("success")], state["failure"]
    if ran:
        log(work, "format_result", {}, {"version": state["attempts"][ran[0]]["version"]}, failure or "ok")
        return {"answer": ran[0], "finish": "error" if failure else "best_so_far", "error": None}
    said = error_text(state, work)
    log(work, "format_result", {}, {"error": said}, said.partition("\n")[0])
    return {"finish": "error" if failure else "empty", "error": said}


# ---------------------------------------------------------------------------------------------------------- routes


def route_after_validation(state: VizqlState, settings: VizqlConfig) -> str:
    """``execute`` a valid query, ``refine`` another one while versions are left, else ``error_handler``."""
    if state["failure"]:
        return "error_handler"
    if state["is_valid"]:
        return "execute"
    return "refine" if refinements_left(state, settings) else "error_handler"


def route_after_execution(state: VizqlState, settings: VizqlConfig) -> str:
    """``format`` a result; ``refine`` what failed or is odd, with ``vizql.feedback``; else ``error_handler``."""
    ran = state["execution_result"] or {}
    if state["failure"]:
        return "error_handler"
    again = settings.feedback and ran.get("refinable") and refinements_left(state, settings)
    if ran.get("success"):
        seen = sum(attempt.get("success", False) for attempt in state["attempts"])
        return "refine" if ran.get("odd") and again and seen == 1 else "format"  # an odd result is doubted once
    return "refine" if again else "error_handler"


def refinements_left(state: VizqlState, settings: VizqlConfig) -> bool:
    """Whether another version may be made."""
    return state["query_version"] <= settings.refinements


# ----------------------------------------------------------------------------------------------------------- texts


def refine_prompt(state: VizqlState, work: Work) -> str:
    """The specification's six parts, and with ``vizql.accumulate`` the errors of earlier versions."""
    config, here = work.task.config, work.here
    errors = [*state["validation_errors"]]
    if state["unread"]:
        errors.insert(0, "The last reply held no query as JSON")
    suggestions = state["validation_suggestions"] if config.vizql.suggestions else []
    shown, left = suggestions[:SHOWN_SUGGESTIONS], len(suggestions) - SHOWN_SUGGESTIONS
    shown += [f"and {left} that are less likely"] if left > 0 else []
    earlier = _earlier(state) if config.vizql.accumulate else ""
    return prompts.prompt(
        "vizql_refine",
        config.prompts,
        question=here.question,
        query=draft_text(state["query_draft"]),
        errors="\n".join(f"- {error}" for error in errors),
        earlier=earlier,
        suggestions="\nSuggestions:\n" + "".join(f"- {line}\n" for line in shown) if shown else "",
        schema=here.schema,
        rules=prompts.prompt("vizql_rules", config.prompts),
    )


def _earlier(state: VizqlState) -> str:
    """The errors of the versions before this one; an error that was gone and is back is said to."""
    *before, last = [attempt["errors"] for attempt in state["attempts"]]
    if not before:
        return ""
    lines = [f"- version {n}: {error}" for n, errors in enumerate(before, 1) for error in errors]
    gone = {error for errors in before for error in errors if error not in before[-1]}
    lines += [f"- It was mended before and is back: {error}" for error in last if error in gone]
    return "\nErrors of earlier versions:\n" + "".join(f"{line}\n" for line in dict.fromkeys(lines))


def error_text(state: VizqlState, work: Work) -> str:
    """The error handler's message: errors, suggestions, and the captions that were valid."""
    where = "model: the query cannot be executed" if state["is_valid"] else "model: the query is not valid"
    lines = [state["failure"] or f"{where} after {max(0, len(state['attempts']) - 1)} refinements"]
    lines += [f"- {error}" for error in state["validation_errors"]]
    if state["validation_suggestions"]:
        lines += ["suggestions:", *(f"- {line}" for line in state["validation_suggestions"])]
    query = query_of(state["query_draft"])
    broken = work.here.check(state["query_draft"]).broken
    fields = query.get("fields") if isinstance(query, dict) else None
    valid = [part for i, part in enumerate(fields) if ("fields", i) not in broken] if isinstance(fields, list) else []
    if valid and not state["is_valid"] and ("fields",) not in broken and () not in broken:
        lines.append("valid: " + ", ".join(as_json(part) for part in valid))
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------- records


def ask(work: Work, user: str) -> tuple[str, Any | None]:
    """The model's reply to a prompt, and the query in it, if there is one."""
    task = work.task
    rules = prompts.prompt("vizql_rules", task.config.prompts)
    system = prompts.prompt("vizql_system", task.config.prompts, rules=rules)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    options: dict[str, Any] = {"grammar": work.here.grammar} if work.here.grammar else {}
    tokens = task.config.vizql.max_new_tokens
    reply = task.ask(messages, "vizql", max_new_tokens=tokens, **options).text
    return reply, read_reply(reply)


def log(work: Work, action: str, args: Mapping[str, Any], observation: Any, reason: str) -> None:
    """Append a trace record and a decision; ``reason`` is ``ok`` for what was accepted."""
    step = int(work.trace[-1]["step"]) + 1 if work.trace else 0
    work.decide(step, action, reason, "accept" if reason == "ok" else "reject", {})
    work.record({"step": step, "action": action, "args": dict(args), "observation": observation})


def _attempt(state: VizqlState, stage: str, errors: list[str]) -> Update:
    return {"version": state["query_version"], "query": state["query_draft"], "stage": stage, "errors": list(errors)}


# -------------------------------------------------------------------------------------------------------- execution


@dataclass(frozen=True)
class Ran:
    """The statement that was executed, its result, what is wrong with that, and whether another query may help."""

    sql: str
    result: RunResult
    errors: list[str]
    refinable: bool = True


def execute(here: Context, draft: dict[str, Any]) -> Ran:
    """Execute a valid draft within ``execution.*``."""
    task = here.task
    dialect = task.resources.database.dialect
    sql, not_executable = statement(draft, here.source, dialect, task.config.vizql)
    if not_executable:
        reasons = [f"not executable: {reason}" for reason in not_executable]
        return Ran("", RunResult(False, error="; ".join(reasons), error_kind="not_executable"), reasons)
    result = task.result_of(sql)
    mendable = dialect != DIALECT or reaction(result.error_kind) == "refine"  # else the server's, or of the sign-in
    return Ran(sql, result, errors_of(result), result.success or mendable)


def failing_parts(here: Context, draft: dict[str, Any]) -> frozenset[Place]:
    """The fields and filters of a valid draft that fail alone; none where only all together fail, or where a service
    would be asked for each."""
    database, query = here.task.resources.database, query_of(draft)
    if database.dialect == DIALECT:
        return frozenset()

    def fails(**parts: Any) -> bool:
        alone = {**query, "filters": [], **parts}
        request = {**draft, "query": alone} if is_request(draft) else alone
        sql, reasons = statement(request, here.source, database.dialect, here.task.config.vizql)
        return bool(reasons) or not here.task.result_of(sql).success

    def failing() -> Iterator[Place]:
        sound = None
        for i, field in enumerate(query["fields"]):
            if fails(fields=[field]):
                yield ("fields", i)
            else:
                sound = sound or field
        for i, part in enumerate(query.get("filters") or ()):
            if sound is not None and fails(fields=[sound], filters=[part]):
                yield ("filters", i)

    return frozenset(failing())


def errors_of(result: RunResult) -> list[str]:
    """The error of a result that failed; of one that succeeded, what is odd about it."""
    if not result.success:
        return [f"The query failed: {result.error}"]
    if not result.rows:
        return ["The query runs and gives no rows: a filter may hold a wrong value or field"]
    if all(value is None for row in result.rows for value in row):
        return ["The query runs and all of its values are NULL"]
    return ["The result was cut: it has too many rows; aggregate it or filter it"] if result.truncated else []
