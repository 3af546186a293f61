"""A ReAct loop to fork: think, act, observe, over the tools, the model and the database of nl2sql.

    nl2sql ask "How many customers are there?" --db packaged:scale_models --controller react_100.py:react_100
    nl2sql eval --controller react_100.py:react_100 --limit 8

It keeps one rule of the real loop (nl2sql/agents/react.py): a query that failed is repaired before it is run again or
answered. Not here: gates on the order of tools, a bound on the prompt's length, a query after the last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nl2sql import REACT_SYSTEM_PROMPT, TOOLS, Config, Episode, Question, Resources
from nl2sql.agents.react import bootstrap
from nl2sql.agents.task import State
from nl2sql.agents.turns import parse_action, shown_observation
from nl2sql.agents.writing import guard


def react_100(question: Question, resources: Resources, config: Config) -> Episode:
    """Answer one question. What the model or the database fails with ends the episode, and is recorded in it."""
    state = bootstrap(question, resources, config)  # the schema, and the part of it that the question is about
    finish, step = "last_sql", 0
    for step in range(config.react.max_steps):
        action, args = think(state, step)
        action = override(state, step, action)
        observation = act(state, action, args)
        state.record({"step": step, "action": action, "args": args, "observation": observation})
        state.history.append(f"Observation: {shown_observation(state, action, observation)}")
        if action == "finish" and "error" not in observation:
            finish = "finish"
            break
    sql = state.last_sql or ""
    result = state.task.result_of(sql)  # executed once: what run_sql had is kept
    return Episode(
        question,
        "react_100",
        sql=sql,
        columns=result.columns,
        rows=result.rows,
        error=None if result.success else f"database: {result.error}",
        finish=finish,
        steps=step + 1,
        trace=state.trace,
        calls=state.task.calls,
    )


def think(state: State, step: int) -> tuple[str, dict[str, Any]]:
    """Ask the model for the next step; gives the tool that it names and its arguments, "" for none."""
    opening, *lines = state.history
    messages = [{"role": "system", "content": REACT_SYSTEM_PROMPT}, {"role": "user", "content": opening}]
    turn = "\n".join(lines) + "\n"  # one open turn of the assistant, which only grows
    tokens = state.task.config.react.max_new_tokens
    reply = state.task.ask(messages, prefill=turn, stop=("Observation:",), max_new_tokens=tokens).text
    state.record({"step": step, "llm": reply})
    if reply.strip():
        state.history.append(reply.strip())
    action, args, _ = parse_action(reply)
    return action, args


def override(state: State, step: int, action: str) -> str:
    """The tool that is run: repair_sql in place of whatever would go on with a query that failed."""
    if state.last_error is None or action not in ("run_sql", "finish"):
        return action
    forced = {"forced_action": "repair_sql", "requested_action": action, "reason": state.last_error}
    state.record({"step": step, **forced})
    state.history.append("Action: repair_sql[{}]")  # the last action of a turn counts
    return "repair_sql"


def act(state: State, action: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Run a tool and keep what came of it: the query, its rows, its error."""
    if action not in TOOLS:
        return {"error": f"no such action; write one of {', '.join(TOOLS)} as: Action: NAME[{{}}]"}
    if action == "finish" and not (state.last_run or {}).get("success"):
        return {"error": "nothing has run yet; run_sql first"}
    seen = TOOLS[action](state, dict(args))
    if action in ("generate_sql", "repair_sql"):
        sql, refused = guard(state.task, seen)
        if refused:
            return {"error": refused}
        state.last_sql, state.last_error = sql, None
        return {"sql": sql}
    if action == "extract_constraints":
        state.constraints = seen
    elif action == "run_sql":
        state.last_run, state.last_error = seen, seen.get("error")
    elif action in ("validate_sql", "validate_constraints"):
        state.last_error = None if seen["valid"] else seen["reason"]
    return dict(seen) if isinstance(seen, Mapping) else {"text": seen}
