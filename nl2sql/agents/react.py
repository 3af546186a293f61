"""The reference loop: Thought -> Action -> Observation with gates, overrides and forced repair [16].

``react_sql`` reads top to bottom like section 7 of the specification. The transcript is one open assistant turn
that only grows: every Thought, Action and Observation is appended as lines, and an override appends its own
``Action:`` line after the model's (the last action wins, for the parser and for the reader).

Preset ``react`` is the specification to the letter. The switches of ``react_plus`` are marked where they act.
What an observation does to the state is in ``transitions``. ``transcript.fit_window`` states what happens when the
transcript outgrows the model's window; ``native_tools`` how a chat model is asked in its own form of tool calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from nl2sql.agents import native_tools, prompts, repairing
from nl2sql.agents.agent_tools import TOOLS, EpisodeFailed, State, open_task
from nl2sql.agents.checks import guardrails
from nl2sql.agents.record import Episode, summarize_trace
from nl2sql.agents.transitions import AFTER, after_other, candidate_failed, decide
from nl2sql.agents.turns import failed, fit_window, parse_action, shown
from nl2sql.config import Config
from nl2sql.errors import Cancelled, DatabaseError
from nl2sql.interfaces import Database, EventSink, Model, Question, Resources, Tool, no_sink

ACTION_END = "]\n"
NEEDS_SQL = ("validate_sql", "validate_constraints", "run_sql")
SHAPES = {  # what the loop reads of an observation, whoever wrote the tool
    "link_schema": ("schema_text",),
    "validate_sql": ("valid", "reason"),
    "validate_constraints": ("valid", "reason"),
    "run_sql": ("success",),
}


def react_sql(
    nlq: str | Question,
    database: Database,
    model: Model,
    config: Config | None = None,
    *,
    tools: Mapping[str, Tool] | None = None,
    sink: EventSink = no_sink,
    cancel: threading.Event | None = None,
) -> Episode:
    """Answer one question with the tool loop; returns the Episode: SQL, rows, trace, decision log, compliance.

    Failures of the model, a tool or the database end the episode and are recorded in ``Episode.error``.
    Raises UsageError for an empty or oversized question or an empty database, Cancelled when ``cancel`` is set.
    """
    started = time.perf_counter()
    resources = Resources(model, database, tools or {}, sink=sink, cancel=cancel)
    state = bootstrap(nlq if isinstance(nlq, Question) else Question(nlq), resources, config or Config())
    finish, error = "", None
    try:
        for step in range(state.task.config.react.max_steps):
            requested, args = think(state, step)
            action, args = override(state, step, requested, args)
            observation = act(state, step, action, args)
            if state.task.config.react.auto_finish and action == "run_sql" and not failed(observation):  # react_plus
                state.history.append(prompts.action_line("finish", {}))
                action, observation = "finish", act(state, step, "finish", {})
            if action == "finish" and not failed(observation):
                finish = "finish"
                break
        else:
            finish = fall_back(state)
    except EpisodeFailed as failure:
        finish, error = "error", str(failure)
    return close(state, finish, error, time.perf_counter() - started)


# ------------------------------------------------------------------------------------------------- bootstrap


def bootstrap(question: Question, resources: Resources, config: Config) -> State:
    """Before step 0 (7.1): the schema, then schema linking once, as the first lines of the history."""
    task = open_task(question, resources, config)
    opening = f"User question: {task.nlq}"
    if config.react.history_order == "schema_first":  # react_plus: all questions of a database share this prefix
        opening = f"Schema:\n{task.schema_text_full}\n\n{opening}"
        state = State(task, history=[opening])
    else:
        lines = [prompts.action_line("get_schema", {}), f"Observation: {task.schema_text_full}"]
        state = State(task, history=[opening, *lines])
    observation = dispatch(state, "link_schema", {"max_tables": task.tables_kept})
    task.schema_text_focus = observation["schema_text"] or task.schema_text_full
    state.history += [
        prompts.action_line("link_schema", {"max_tables": task.tables_kept}),
        f"Observation: {task.schema_text_focus}",
    ]
    task.bootstrap_lines = len(state.history)
    return state


# ------------------------------------------------------------------------------------------ think and parse


def think(state: State, step: int) -> tuple[str, dict[str, Any]]:
    """Prompt, model call, parse (7.2, 1-3). Returns the requested action, "" when none could be parsed."""
    config = state.task.config.react
    if config.skip_forced_calls and pending_override(state, "") is not None:  # react_plus
        return "", {}
    messages, options = fit_window(state, lambda: turn_prompt(state))
    grammar = state.task.turn_grammar()
    cut_behind = config.stop_at_action and grammar is None  # react_plus; a grammar ends behind the action by itself
    stops = native_tools.STOPS if config.native_tools else ("Observation:",)
    end = native_tools.CLOSING if config.native_tools else ACTION_END
    options["stop"] = (*stops, end) if cut_behind else stops
    if grammar is not None:
        options["grammar"] = grammar
    completion = state.task.ask(messages, max_new_tokens=config.max_new_tokens, **options)
    text = completion.text
    if cut_behind and not parse_action(text)[0] and parse_action(text + "]")[0]:
        text += "]"  # the stop string took it
    record(state, {"step": step, "llm": text})
    if config.native_tools:
        text, dropped = native_tools.as_action(text)
        if dropped:
            state.task.count("dropped_calls", dropped)
    text = text.rstrip()
    if text.strip():
        state.history.append(text.lstrip("\n"))
    action, args, found = parse_action(text)
    if not action:
        state.task.count("format_errors")
        cut = f"truncated at {config.max_new_tokens} tokens: " if completion.finish_reason == "length" else ""
        args = {"found": cut + found}
    return action, args


def turn_prompt(state: State) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages, and the open assistant turn behind them or the tools offered beside them."""
    overrides = state.task.config.prompts
    if state.task.config.react.native_tools:
        tools = native_tools.definitions(state.task)
        return native_tools.conversation(state.history, overrides), {"tools": tools}
    prefill = "\n".join(state.history[1:]) + "\n"
    return [*prompts.react_messages(state.history[0], overrides)], {"prefill": prefill}


# ------------------------------------------------------------------------------------------------ overrides


def pending_override(state: State, requested: str) -> tuple[str, str] | None:
    """The forced ``(action, reason)``, or None (2.3). Precedence: repair, then regenerate, then extract."""
    if state.pending_repair_error is not None:
        return ("repair_sql", f"pending_repair:{state.pending_repair_error}") if requested != "repair_sql" else None
    if state.pending_force_generate is not None:
        reason = f"pending_regenerate:{state.pending_force_generate}"
        return ("generate_sql", reason) if requested != "generate_sql" else None
    extraction = state.task.config.react.forced_extraction and state.constraints is None
    if extraction and requested not in ("extract_constraints", "repair_sql"):
        return "extract_constraints", "constraints_missing"
    return None


def override(state: State, step: int, requested: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Apply overrides (7.2, 4): the forced action is recorded and becomes the transcript's last Action line."""
    forced = pending_override(state, requested)
    if forced is None:
        return requested, args
    action, reason = forced
    record(state, {"step": step, "forced_action": action, "requested_action": requested, "reason": reason})
    decide(state, step, action, reason, "forced", {"requested": requested})
    state.history.append(prompts.action_line(action, {}))
    return action, {}


# ---------------------------------------------------------------------------------------- gates and dispatch


def act(state: State, step: int, action: str, args: dict[str, Any]) -> Any:
    """Dispatch one action behind its gate, update the state (7.3), append the observation (7.2, 5)."""
    blocked = gate(state, action, args)
    if blocked is not None:
        observation: Any = {"error": blocked}
        decide(state, step, action or "none", blocked, "blocked", {})
    else:
        observation = AFTER.get(action, after_other)(state, step, action, dispatch(state, action, args))
    last: dict[str, Any] = next((r for r in reversed(state.trace) if "action" in r), {})
    repeated = (last.get("action"), last.get("args"), last.get("observation")) == (action, args, observation)
    record(state, {"step": step, "action": action, "args": args, "observation": observation})
    state.history.append(f"Observation: {shown(state, action, observation)}")
    if repeated and state.task.config.react.repeat_hint:  # react_plus
        state.history.append(f"{prompts.HINT}{next_action(state)}.")
    return observation


def gate(state: State, action: str, args: Mapping[str, Any]) -> str | None:
    """Why an action is blocked (2.3), or None. Finish gate, run gate, and what cannot be dispatched at all."""
    if not action:
        return f"format_error:{args['found']}"
    if action not in TOOLS and action not in state.task.resources.tools:
        known = ", ".join([*TOOLS, *(name for name in state.task.resources.tools if name not in TOOLS)])
        return f"unknown_tool:{action}; tools: {known}"
    gates = state.task.config.react
    if action == "finish" and gates.finish_gate and not (state.last_run and state.last_run.get("success")):
        return "blocked: finish needs a successful run_sql first"
    if action in NEEDS_SQL and not state.last_sql:
        return f"blocked: {action} needs a query; use generate_sql first"
    if action == "run_sql" and gates.run_gate and not (state.last_valid is True and state.last_constraints_ok is True):
        missing = "validate_sql" if state.last_valid is not True else "validate_constraints"
        return f"blocked: run_sql needs {missing} to pass for the current query first"
    return None


def dispatch(state: State, action: str, args: Mapping[str, Any]) -> Any:
    """Run the tool. What it raises ends the episode, attributed to the tool or the database."""
    tool = state.task.resources.tools.get(action) or TOOLS[action]
    try:
        observation = tool(state, args)
    except DatabaseError as error:
        raise EpisodeFailed("database", str(error)) from error
    except (EpisodeFailed, Cancelled):
        raise
    except Exception as error:  # tools are users' code too: attribute, record, never crash the run
        raise EpisodeFailed("tool", f"{action}: {type(error).__name__}: {error}") from error
    missing = [key for key in SHAPES.get(action, ()) if not isinstance(observation, Mapping) or key not in observation]
    if missing:
        raise EpisodeFailed("tool", f"{action}: its observation lacks {', '.join(missing)}: {str(observation)[:100]}")
    return observation


def next_action(state: State) -> str:
    """The step that the policy (2.2) expects next, for the repeat hint."""
    if state.constraints is None:
        return "extract_constraints"
    if not state.last_sql:
        return "generate_sql"
    if state.last_valid is not True:
        return "validate_sql"
    if state.last_constraints_ok is not True:
        return "validate_constraints"
    return "finish" if state.last_run and state.last_run.get("success") else "run_sql"


# ---------------------------------------------------------------------------------------- exit and records


def fall_back(state: State) -> str:
    """Steps exhausted (7.4): ``vanilla_candidate`` from the schema summary, else ``last_sql``, else empty."""
    task = state.task
    task.flags["exhausted_after_success"] = task.best_sql is not None
    if task.config.react.best_so_far and (best := task.best_sql or waiting(state)):  # react_plus
        state.last_sql = best
        return "best_so_far"

    def generate(_: str, schema_summary: str) -> str:
        messages = prompts.generate_messages(task.nlq, schema_summary, None, task.config.prompts, task.examples)
        task.vanilla_raw = task.write_sql(messages, task.config.react.max_new_tokens)[0]
        return task.vanilla_raw

    if task.schema_summary and task.config.react.vanilla:
        if task.config.react.guardrails:
            vanilla = guardrails.vanilla_candidate(
                task.question.text, task.schema_summary, generate, task.schema, cut=task.cut_guardrails()
            )
        else:
            vanilla = generate(task.nlq, task.schema_summary).strip()
        if vanilla:
            state.last_sql, task.raw_sql[vanilla] = vanilla, task.vanilla_raw
            return "vanilla"
    return "last_sql" if state.last_sql else "empty"


def waiting(state: State) -> str | None:
    """The current SQL, if no check has refused it and it runs: only the steps were missing."""
    sql = state.last_sql
    return sql if sql and not candidate_failed(state) and state.task.result_of(sql).success else None


def close(state: State, finish: str, error: str | None, seconds: float) -> Episode:
    """The Episode: final SQL with its rows (of its run, else executed now), and all that was recorded."""
    task = state.task
    if task.config.repair.learn:
        repairing.remember(state)
    opening = prompts.native_messages if task.config.react.native_tools else prompts.react_messages
    ran = state.last_run if finish == "finish" and state.last_run else {}
    sql = str(ran.get("sql") or state.last_sql or "")
    result = task.result_of(sql)
    if error is None and not result.success:
        error = f"database: {result.error}" if sql else "controller: no SQL"
    return Episode(
        question=task.question,
        controller="react",
        sql=sql,
        raw_sql=task.raw_sql.get(sql, ""),
        columns=result.columns,
        rows=result.rows,
        error=error,
        finish=finish,
        steps=len({r["step"] for r in state.trace}),
        trace=state.trace,
        decision_log=state.decision_log,
        compliance=summarize_trace(state.trace),
        messages=opening(state.history[0], task.config.prompts),
        transcript="\n".join(state.history[1:]),
        calls=task.calls,
        usage=task.usage,
        seconds=seconds,
        flags={**task.flags, "rejected": task.rejected},
    )


def record(state: State, entry: dict[str, Any]) -> None:
    """Append a trace record (8.1) and pass it to the event sink."""
    state.trace.append(entry)
    state.task.resources.sink({"question": state.task.question.id or state.task.question.text, **entry})


def react(question: Question, resources: Resources, config: Config) -> Episode:
    """``react_sql`` as a registered controller."""
    r = resources
    return react_sql(question, r.database, r.model, config, tools=r.tools, sink=r.sink, cancel=r.cancel)
