"""What an observation does to the loop's state (7.3): accepted candidates, voided validations, pending repairs.

``react.act`` dispatches a tool and hands its observation to ``AFTER[action]``, which returns what the model is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nl2sql.agents.agent_tools import State, guard
from nl2sql.agents.checks import constraints
from nl2sql.agents.turns import failed


def after_candidate(state: State, step: int, action: str, raw_sql: Any) -> dict[str, Any]:
    """Guardrails (4): accept sets ``last_sql`` and clears pending flags; reject forces a bounded regenerate.

    A rejected repair steps back for one regenerate; when that is rejected too, repair is demanded again.
    """
    sql, reason = guard(state.task, str(raw_sql), enabled=state.task.config.react.guardrails)
    if reason is None:
        state.last_sql, state.task.raw_sql[sql] = sql, str(raw_sql)
        state.last_valid = state.last_constraints_ok = None
        state.pending_repair_error = state.pending_force_generate = state.last_error = None
        state.clean_reject_retries = 0
        decide(state, step, action, "ok", "accept", {"sql": sql})
        return {"sql": sql, "raw_sql": str(raw_sql)}
    refuse(state, step, "guardrails", str(raw_sql), reason)
    failing = state.last_error if candidate_failed(state) else None
    state.last_error = failing or reason
    state.pending_repair_error = state.pending_force_generate = None
    if state.clean_reject_retries < state.task.config.react.max_clean_reject_retries:
        state.clean_reject_retries += 1
        state.pending_force_generate = reason
    elif failing:
        demand_repair(state, failing)
    decide(state, step, action, reason, "reject", {"raw_sql": str(raw_sql)[:500]})
    return {"error": reason, "raw_sql": str(raw_sql)}


def candidate_failed(state: State) -> bool:
    """Has the current SQL failed a validation or its run?"""
    ran = state.last_run if state.last_run and state.last_run.get("sql") == state.last_sql else {"success": True}
    return state.last_valid is False or state.last_constraints_ok is False or not ran["success"]


def after_extract(state: State, step: int, action: str, observation: Any) -> Any:
    state.constraints = observation
    decide(state, step, action, "ok", "accept", observation)
    return observation


def after_validation(state: State, step: int, action: str, observation: Any) -> Any:
    """A failed validation demands repair."""
    valid = observation["valid"] is True
    if action == "validate_sql":
        state.last_valid = valid
    else:
        state.last_constraints_ok = valid
    if not valid:
        refuse(state, step, action, state.last_sql or "", observation["reason"])
        demand_repair(state, observation["reason"])
    decide(state, step, action, observation["reason"], "accept" if valid else "reject", {"sql": state.last_sql})
    return observation


def after_run(state: State, step: int, action: str, observation: Any) -> Any:
    """Execution feedback [2]; then the intent check, whose mismatch counts as a failure."""
    reason = "ok" if observation["success"] else str(observation.get("error", "failed"))
    if observation["success"] and state.task.config.react.intent_gate:
        ok, why = constraints.intent_constraints(state.task.question.text, state.last_sql or "", state.task.schema)
        if not ok:
            reason = f"intent_mismatch:{why}"
            observation = {**observation, "success": False, "error": reason}
            refuse(state, step, "intent_constraints", state.last_sql or "", why)
    state.last_run = observation
    if observation["success"]:
        state.task.best_sql = state.last_sql
    else:
        demand_repair(state, reason)
    status = "accept" if observation["success"] else "reject"
    decide(state, step, action, reason, status, {"row_count": observation.get("row_count")})
    return observation


def after_other(state: State, step: int, action: str, observation: Any) -> Any:
    error = observation["error"] if failed(observation) else None
    decide(state, step, action, str(error or "ok"), "reject" if error else "accept", {})
    return observation


AFTER = {
    "generate_sql": after_candidate,
    "repair_sql": after_candidate,
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


def decide(state: State, step: int, decision: str, reason: str, status: str, data: Mapping[str, Any]) -> None:
    """Append a decision log entry (8.2)."""
    entry = {"step": step, "decision": decision, "reason": reason, "status": status, "data": dict(data)}
    state.decision_log.append(entry)
    if status == "blocked":
        state.task.count("blocked")


def refuse(state: State, step: int, by: str, sql: str, reason: str) -> None:
    """Remember a refused candidate, so that a run can report what gates and guardrails cost and save."""
    state.task.rejected.append({"step": step, "by": by, "sql": sql, "reason": reason})
