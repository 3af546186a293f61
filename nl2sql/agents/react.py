"""The reference loop: Thought -> Action -> Observation with gates, overrides and forced repair [16].

``react_sql`` reads top to bottom like section 7 of the specification:

    bootstrap                 schema, linking once            (7.1)
    think                     prompt, model call, parse       (7.2, 1-3)
    override                  OVERRIDES, in their precedence  (7.2, 4)
    act                       GATES, the tool, AFTER          (7.2, 5 and 7.3)
    fall_back, close_episode  steps exhausted; the Episode    (7.4)

The transcript is one open assistant turn that only grows: every Thought, Action and Observation is appended as lines,
and an override appends its own ``Action:`` line after the model's (the last action wins, for the parser and for the
reader). Preset ``react`` is the specification to the letter; module ``react_plus`` has what that preset adds.

A user's gates (docs/adding/gate.md) are asked after ``GATES``, or in the place of those of the same name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nl2sql.agents import prompts, react_plus, repairing
from nl2sql.agents.agent_tools import TOOLS, dispatch
from nl2sql.agents.forms import ask_turn, form_of, transcribed
from nl2sql.agents.record import Episode, EpisodeError, failed, make_episode, own_text
from nl2sql.agents.setup import open_task
from nl2sql.agents.task import State
from nl2sql.agents.turns import parse_action, shown_observation
from nl2sql.agents.writing import guard, intent_mismatch, sql_messages, tables_kept, write_sql
from nl2sql.config import Config
from nl2sql.interfaces import USER, Database, EventSink, Gate, Model, Question, Resources, Tool, no_sink


def react_sql(
    nlq: str | Question,
    database: Database,
    model: Model,
    config: Config | None = None,
    *,
    tools: Mapping[str, Tool] | None = None,
    gates: Mapping[str, Gate] | None = None,
    sink: EventSink = no_sink,
    cancel: threading.Event | None = None,
) -> Episode:
    """Answer one question with the tool loop; returns the Episode: SQL, rows, trace, decision log, compliance.

    tools, gates: added to the loop's own, or in place of those of the same name. sink: is given every trace record, and
    every entry of the decision log, as it is made.
    Failures of the model, a tool or the database end the episode and are recorded in ``Episode.error``.
    Raises UsageError for an empty or oversized question or an empty database, Cancelled when ``cancel`` is set.
    """
    resources = Resources(model, database, tools or {}, gates=gates or {}, sink=sink, cancel=cancel)
    return react(nlq if isinstance(nlq, Question) else Question(nlq, split=USER), resources, config or Config())


def react(question: Question, resources: Resources, config: Config) -> Episode:
    """``react_sql`` as a registered controller."""
    try:
        state = bootstrap(question, resources, config)
    except EpisodeError as broken:  # of a user's link_schema
        return Episode(question, "react", error=str(broken), finish="error")
    finish, error = "", None
    try:
        for step in range(config.react.max_steps):
            requested, args = think(state, step)
            action, args = override(state, step, requested, args)
            observation = act(state, step, action, args)
            if react_plus.ends(state, action, observation):
                state.history.append(prompts.action_line("finish", {}))
                action, observation = "finish", act(state, step, "finish", {})
            if action == "finish" and not failed(observation):
                finish = "finish"
                break
        else:
            finish = fall_back(state)
    except EpisodeError as broken:
        finish, error = "error", str(broken)
    return close_episode(state, finish, error)


def bootstrap(question: Question, resources: Resources, config: Config) -> State:
    """Before step 0 (7.1): the schema, then schema linking once, as the first lines of the history."""
    task = open_task(question, resources, config)
    question_line = f"User question: {task.nlq}"
    shown = [question_line, prompts.action_line("get_schema", {}), f"Observation: {task.schema_text_full}"]
    state = State(task, history=react_plus.opening(question_line, task) or shown)
    observation = dispatch(state, "link_schema", {"max_tables": tables_kept(task.config)})
    task.schema_text_focus = observation["schema_text"] or task.schema_text_full
    state.history += [
        prompts.action_line("link_schema", {"max_tables": tables_kept(task.config)}),
        f"Observation: {task.schema_text_focus}",
    ]
    task.bootstrap_lines = len(state.history)
    return state


def think(state: State, step: int) -> tuple[str, dict[str, Any]]:
    """Prompt, model call, parse (7.2, 1-3). Returns the requested action, "" when none could be parsed."""
    task = state.task
    if task.config.react.skip_forced_calls and pending_override(state, "") is not None:
        return "", {}
    completion = ask_turn(state)
    state.record({"step": step, "llm": completion.text})
    text = transcribed(state, completion.text).rstrip()
    if text.strip():
        state.history.append(text.lstrip("\n"))
    action, args, excerpt = parse_action(text)
    if not action:
        task.count("format_errors")
        if completion.finish_reason == "length":
            excerpt = f"truncated at {task.config.react.max_new_tokens} tokens: {excerpt}"
        args = {"found": excerpt}
    return action, args


@dataclass(frozen=True)
class Override:
    """An action that is forced: ``reason(state)`` says why, None when it is not due. ``spared`` actions go through."""

    action: str
    reason: Callable[[State], str | None]
    spared: tuple[str, ...]


def _repair_due(state: State) -> str | None:
    error = state.pending_repair_error
    return None if error is None else f"pending_repair:{error}"


def _regenerate_due(state: State) -> str | None:
    rejected = state.pending_force_generate
    return None if rejected is None else f"pending_regenerate:{rejected}"


def _extraction_due(state: State) -> str | None:
    due = state.task.config.react.forced_extraction and state.constraints is None
    return "constraints_missing" if due else None


OVERRIDES = (  # in their order of precedence (2.3): the first that is due decides
    Override("repair_sql", _repair_due, spared=("repair_sql",)),
    Override("generate_sql", _regenerate_due, spared=("generate_sql",)),
    Override("extract_constraints", _extraction_due, spared=("extract_constraints", "repair_sql")),
)


def pending_override(state: State, requested: str) -> tuple[str, str] | None:
    """The forced ``(action, reason)``, or None."""
    for forced in OVERRIDES:
        reason = forced.reason(state)
        if reason is not None:
            return None if requested in forced.spared else (forced.action, reason)
    return react_plus.next_step(state, requested)


def override(state: State, step: int, requested: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Apply overrides (7.2, 4): the forced action is recorded and becomes the transcript's last Action line."""
    pending = pending_override(state, requested)
    if pending is None:
        return requested, args
    action, reason = pending
    state.record({"step": step, "forced_action": action, "requested_action": requested, "reason": reason})
    state.decide(step, action, reason, "forced", {"requested": requested})
    state.history.append(prompts.action_line(action, {}))
    return action, {}


def _parsed(state: State, action: str, args: Mapping[str, Any]) -> str | None:
    return None if action else f"format_error:{args['found']}"


def _known(state: State, action: str, args: Mapping[str, Any]) -> str | None:
    space = {**TOOLS, **state.task.resources.tools}
    return None if action in space else f"unknown_tool:{action}; tools: {', '.join(space)}"


def _ran_before_finish(state: State, action: str, args: Mapping[str, Any]) -> str | None:
    if action != "finish" or (state.last_run and state.last_run.get("success")):
        return None
    return "blocked: finish needs a successful run_sql first"


def _has_query(state: State, action: str, args: Mapping[str, Any]) -> str | None:
    if action not in ("validate_sql", "validate_constraints", "run_sql") or state.last_sql:
        return None
    return f"blocked: {action} needs a query; use generate_sql first"


def _validated_before_run(state: State, action: str, args: Mapping[str, Any]) -> str | None:
    if action != "run_sql" or (state.last_valid is True and state.last_constraints_ok is True):
        return None
    missing = "validate_sql" if state.last_valid is not True else "validate_constraints"
    return f"blocked: run_sql needs {missing} to pass for the current query first"


GATES: Mapping[str, Gate] = {  # asked in this order (2.3); one that ``ReactConfig`` has a switch for may be off
    "format": _parsed,
    "known_tool": _known,
    "finish_gate": _ran_before_finish,
    "query_gate": _has_query,
    "run_gate": _validated_before_run,
}


def blocked(state: State, action: str, args: Mapping[str, Any]) -> str | None:
    """Why a gate blocks the action, or None. What a user's gate raises ends the episode, attributed to it."""
    for name, gate in {**GATES, **state.task.resources.gates}.items():
        if name in GATES and getattr(state.task.config.react, name, True) is False:
            continue
        try:
            reason = gate(state, action, args)
        except Exception as error:  # users' code: attribute, record, never crash the run
            raise EpisodeError("tool", f"gate {name}: {type(error).__name__}: {error}") from error
        if not (reason is None or isinstance(reason, str)):
            expected = "expected why the action is blocked, or None"
            raise EpisodeError("tool", f"gate {name}: it gave {str(reason)[:100]!r}; {expected}")
        if reason is not None:
            return reason
    return None


def act(state: State, step: int, action: str, args: dict[str, Any]) -> Any:
    """Dispatch one action behind its gates, update the state (7.3), append the observation (7.2, 5)."""
    reason = blocked(state, action, args)
    if reason is not None:
        observation: Any = {"error": reason}
        state.decide(step, action or "none", reason, "blocked", {})
    else:
        observation = AFTER.get(action, after_other)(state, step, action, dispatch(state, action, args))
    hint = react_plus.hint(state, action, args, observation)
    state.record({"step": step, "action": action, "args": args, "observation": observation})
    state.history += [f"Observation: {shown_observation(state, action, observation)}", *hint]
    return observation


def after_candidate(state: State, step: int, action: str, raw_sql: Any) -> dict[str, Any]:
    """Guardrails (4): accept sets ``last_sql`` and clears pending flags; reject forces a bounded regenerate.

    A rejected repair steps back for one regenerate; when that is rejected too, repair is demanded again.
    """
    sql, reason = guard(state.task, str(raw_sql), enabled=state.task.config.react.guardrails)
    if reason is None:
        state.last_sql = sql
        state.task.candidate(sql).raw_sql = str(raw_sql)
        state.last_valid = state.last_constraints_ok = None
        state.pending_repair_error = state.pending_force_generate = state.last_error = None
        state.clean_reject_retries = 0
        state.decide(step, action, "ok", "accept", {"sql": sql})
        return {"sql": sql, "raw_sql": own_text(state.task, str(raw_sql))}
    state.refuse(step, "guardrails", str(raw_sql), reason)
    failing = state.last_error if state.candidate_failed else None
    state.last_error = failing or reason
    state.pending_repair_error = state.pending_force_generate = None
    if state.clean_reject_retries < state.task.config.react.max_clean_reject_retries:
        state.clean_reject_retries += 1
        state.pending_force_generate = reason
    elif failing:
        demand_repair(state, failing)
    own = own_text(state.task, str(raw_sql))
    state.decide(step, action, reason, "reject", {"raw_sql": own[:500]})
    return {"error": reason, "raw_sql": own}


def after_link(state: State, step: int, action: str, observation: Any) -> Any:
    """The schema text that SQL is written from, here on."""
    state.task.schema_text_focus = observation["schema_text"] or state.task.schema_text_full
    return after_other(state, step, action, observation)


def after_extract(state: State, step: int, action: str, observation: Any) -> Any:
    """The constraints of the question are known from here on."""
    state.constraints = observation
    state.decide(step, action, "ok", "accept", observation)
    return observation


def after_validation(state: State, step: int, action: str, observation: Any) -> Any:
    """A failed validation demands repair."""
    valid = observation["valid"] is True
    if action == "validate_sql":
        state.last_valid = valid
    else:
        state.last_constraints_ok = valid
    if not valid:
        state.refuse(step, action, state.last_sql or "", observation["reason"])
        demand_repair(state, observation["reason"])
    state.decide(step, action, observation["reason"], "accept" if valid else "reject", {"sql": state.last_sql})
    return observation


def after_run(state: State, step: int, action: str, observation: Any) -> Any:
    """Execution feedback [2]; then the checks of a query that ran, the first of which to object counts as a failure."""
    reason = "ok" if observation["success"] else str(observation.get("error", "failed"))
    for name, category, check in CHECKS_AFTER_RUN if observation["success"] else ():
        if objection := check(state):
            reason = f"{category}:{objection}"
            observation = {**observation, "success": False, "error": reason}
            state.refuse(step, name, state.last_sql or "", objection)
            break
    state.last_run = observation
    if observation["success"]:
        state.task.best_sql = state.last_sql
    else:
        demand_repair(state, reason)
    status = "accept" if observation["success"] else "reject"
    state.decide(step, action, reason, status, {"row_count": observation.get("row_count")})
    return observation


CHECKS_AFTER_RUN: tuple[tuple[str, str, Callable[[State], str]], ...] = (  # name, reason, why the query is no answer
    ("intent_constraints", "intent_mismatch", lambda state: intent_mismatch(state.task, state.last_sql or "")),
    ("resampling", "unlikely", react_plus.unlikely),  # react.confident_at
)


def after_other(state: State, step: int, action: str, observation: Any) -> Any:
    """Any other tool changes nothing but the log."""
    error = observation["error"] if failed(observation) else None
    state.decide(step, action, str(error or "ok"), "reject" if error else "accept", {})
    return observation


AFTER = {  # what an observation does to the state (7.3); it gives back what the model is shown
    "generate_sql": after_candidate,
    "repair_sql": after_candidate,
    "link_schema": after_link,
    "extract_constraints": after_extract,
    "validate_sql": after_validation,
    "validate_constraints": after_validation,
    "run_sql": after_run,
}


def demand_repair(state: State, reason: str) -> None:
    """Set the pending repair; with the repair switch off only the error is remembered."""
    state.last_error = reason
    if state.task.config.react.repair:
        state.pending_repair_error = reason


def fall_back(state: State) -> str:
    """Steps exhausted (7.4): the vanilla candidate from the schema summary, else ``last_sql``, else empty."""
    task = state.task
    task.flags["exhausted_after_success"] = task.best_sql is not None
    if best := react_plus.best_so_far(state):
        state.last_sql = best
        return "best_so_far"
    react = task.config.react
    if task.schema_summary and react.vanilla:
        raw = write_sql(task, sql_messages(task, None, task.schema_summary), react.max_new_tokens)[0]
        sql, _ = guard(task, raw, enabled=react.guardrails)
        if sql:
            state.last_sql = sql
            task.candidate(sql).raw_sql = raw
            return "vanilla"
    return "last_sql" if state.last_sql else "empty"


def close_episode(state: State, finish: str, error: str | None) -> Episode:
    """The Episode: final SQL with its rows (of its run, else executed now), and all that was recorded."""
    task = state.task
    if task.config.repair.learn:
        repairing.remember(state)
    ran = state.last_run if finish == "finish" and state.last_run else {}
    sql = str(ran.get("sql") or state.last_sql or "")
    answer = task.candidate(sql)
    return make_episode(
        task,
        "react",
        sql,
        raw_sql=answer.raw_sql,
        finish=finish,
        error=error,
        steps=len({record["step"] for record in state.trace}),
        trace=state.trace,
        decision_log=state.decision_log,
        messages=form_of(task.config).opening(state),
        transcript="\n".join(state.history[1:]),
    )
