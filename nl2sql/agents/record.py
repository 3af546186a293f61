"""The records of an episode: the trace, the decision log, the compliance summary.

>>> run = {"step": 0, "action": "run_sql", "args": {}, "observation": {"success": True}}
>>> [flag for flag, is_set in summarize_trace([run]).items() if is_set]
['run_without_validate', 'run_without_validate_constraints']

The trace holds exactly three record shapes (specification 8.1):

- ``{"step", "llm"}``: what the model wrote;
- ``{"step", "action", "args", "observation"}``: a tool that was dispatched (or blocked by a gate);
- ``{"step", "forced_action", "requested_action", "reason"}``: an override.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nl2sql.errors import DatabaseError, ModelError, Nl2SqlError, UsageError
from nl2sql.interfaces import Completion, Database, Message, Question, Row, RunResult, Usage
from nl2sql.machine import install_command, masked

if TYPE_CHECKING:
    from nl2sql.config.sections import ExecutionConfig

TRACE_FORMAT = 1
MOST_LINES, WIDTH = 40, 10  # of a record as text, and of its head
COMPLIANCE_FLAGS = (
    "generate_without_constraints",
    "run_without_validate",
    "run_without_validate_constraints",
    "finish_without_run",
)


@dataclass(repr=False)
class Episode:
    """Everything one controller did for one question. A failed episode is an Episode with ``error`` set.

    ``trace`` holds exactly the specification's three record shapes (8.1), ``decision_log`` its 8.2 entries,
    ``compliance`` the flags of ``summarize_trace`` (8.3).
    """

    question: Question
    controller: str
    sql: str = ""
    raw_sql: str = ""  # the model's own text behind ``sql``, before the guardrails
    prefill: str = ""  # the opened turn that ``raw_sql`` continues, such as SELECT; empty where there was none
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    error: str | None = None  # "<where>: <what>", where = model | tool | database | benchmark | controller
    finish: str = ""  # finish | vanilla | best_so_far | last_sql | empty | answered | verified | error | cancelled
    steps: int = 0
    trace: list[dict[str, Any]] = field(default_factory=list)
    decision_log: list[dict[str, Any]] = field(default_factory=list)
    compliance: dict[str, bool] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)  # a loop's system prompt and opening user turn
    transcript: str = ""  # the open assistant turn after ``messages``, to its last line
    calls: list[dict[str, Any]] = field(default_factory=list)  # one per completion: kind, messages, text, usage, start
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    flags: dict[str, Any] = field(default_factory=dict)  # counts, e.g. {"exhausted_after_success": True}

    def __repr__(self) -> str:
        return f"<episode of {self.controller}: {self.finish} after {self.steps} steps, sql={self.sql!r}>"

    def to_dict(self) -> dict[str, Any]:
        return episode_to_dict(self)

    def _repr_html_(self) -> str:
        from nl2sql.agents.display import episode_html  # not before a notebook asks for it

        return episode_html(self.to_dict())


def failed(observation: Any) -> bool:
    """Is this the observation of a blocked, rejected or failed action?"""
    return isinstance(observation, Mapping) and observation.get("error") is not None


def in_shape(episode: Episode) -> None:
    """Give the records of somebody's own controller the keys that transcripts and reports read; nothing is lost.

    A trace record of none of the three shapes becomes the observation of an action ``note``.
    """
    episode.sql, episode.raw_sql = episode.sql or "", episode.raw_sql or ""
    episode.trace = [_trace_record(record) for record in episode.trace]
    blank = {"step": 0, "decision": "", "reason": "", "status": "", "data": {}}
    entries = [e if isinstance(e, Mapping) else {"reason": str(e)} for e in episode.decision_log]
    episode.decision_log = [{**blank, **entry} for entry in entries]


def _trace_record(record: Any) -> dict[str, Any]:
    shaped = isinstance(record, Mapping) and record.keys() & {"llm", "action", "forced_action"}
    entry = dict(record) if shaped else {"action": "note", "observation": record}
    wanted: dict[str, Any] = {"step": 0}
    if "forced_action" in entry:
        wanted |= {"requested_action": "", "reason": ""}
    elif "llm" not in entry:
        wanted |= {"args": {}, "observation": None}
    return entry | {key: value for key, value in wanted.items() if key not in entry}


def summarize_trace(trace: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    """Ordering violations in a trace (specification 8.3).

    An action counts when it was dispatched or tried and blocked by a gate: the flags say what the model asked
    for against the policy, not only what got through. A new SQL candidate voids earlier validations.
    """
    flags = dict.fromkeys(COMPLIANCE_FLAGS, False)
    constrained = valid = constraints_ok = ran = False
    for record in trace:
        action, seen = record.get("action"), record.get("observation")
        answer = seen if isinstance(seen, Mapping) else {}
        if action == "extract_constraints":
            constrained = constrained or "error" not in answer
        elif action in ("generate_sql", "repair_sql"):
            if action == "generate_sql" and not constrained:
                flags["generate_without_constraints"] = True
            if not answer.get("error"):
                valid = constraints_ok = False
        elif action == "validate_sql":
            valid = answer.get("valid") is True
        elif action == "validate_constraints":
            constraints_ok = answer.get("valid") is True
        elif action == "run_sql":
            flags["run_without_validate"] |= not valid
            flags["run_without_validate_constraints"] |= not constraints_ok
            ran = answer["success"] is True if "success" in answer else ran  # a blocked run changes nothing
        elif action == "finish":
            flags["finish_without_run"] |= not ran
    return flags


def repair_counts(trace: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How often the loop overrode the model, and how its repairs came about; what did not happen is left out.

    ``overrides``: forced actions. ``repairs_forced``, ``repairs_asked``: calls of ``repair_sql``, by who wanted them.
    ``repairs_accepted``: those whose query the guardrails accepted.
    """
    counts: Counter[str] = Counter()
    forced: tuple[Any, Any] | None = None  # step and action of the last override
    for record in trace:
        if "forced_action" in record:
            forced = (record["step"], record["forced_action"])
            counts["overrides"] += 1
        elif record.get("action") == "repair_sql":
            counts["repairs_forced" if forced == (record["step"], "repair_sql") else "repairs_asked"] += 1
            seen = record.get("observation")
            counts["repairs_accepted"] += isinstance(seen, Mapping) and "error" not in seen
    return {name: count for name, count in counts.items() if count}


def episode_to_dict(episode: Episode, max_rows: int = 1000) -> dict[str, Any]:
    """An episode as plain JSON. Rows past ``max_rows`` are left out and ``row_count`` says how many there were."""
    return {
        "id": episode.question.id,
        "db_id": episode.question.db_id,
        "question": episode.question.text,
        "controller": episode.controller,
        "sql": episode.sql,
        "raw_sql": episode.raw_sql,
        "prefill": episode.prefill,
        "columns": list(episode.columns),
        "rows": [[json_value(v) for v in row] for row in episode.rows[:max_rows]],
        "row_count": len(episode.rows),
        "error": episode.error,
        "finish": episode.finish,
        "steps": episode.steps,
        "usage": episode.usage.to_dict(),
        "seconds": round(episode.seconds, 4),
        "flags": json_tree(episode.flags),
        "compliance": episode.compliance,
        "trace": json_tree(episode.trace),
        "decision_log": json_tree(episode.decision_log),
    }


def json_tree(value: Any) -> Any:
    """The same structure with every leaf as ``json_value`` writes it."""
    if isinstance(value, Mapping):
        return {str(key): json_tree(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_tree(item) for item in value]
    return json_value(value)


def json_text(value: Any, indent: int | None = None) -> str:
    """Strict JSON in UTF-8: no Infinity, no NaN, and a lone surrogate (a model can write one) as its escape.

    Whatever is written down goes through here, so that the server's key is in none of it.
    """
    text = json.dumps(json_tree(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return masked(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def json_value(value: Any) -> Any:
    """A database value (or anything else) that JSON can hold; blobs as hexadecimal text."""
    if isinstance(value, bytes):
        return "x'" + value.hex() + "'"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def call_record(
    kind: str, messages: Sequence[Message] | None, completion: Completion, started: float, prefill: str = ""
) -> dict[str, Any]:
    """One call of a model as ``Episode.calls`` holds it; ``started`` in seconds since the episode began."""
    return {
        "kind": kind,
        "messages": messages,
        "prefill_characters": len(prefill),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "usage": completion.usage.to_dict(),
        "started": started,
    }


# ------------------------------------------------------------------------------------------------ as text
#     step 1 | model     Action: run_sql[{}]
#            | forced    run_sql -> repair_sql: pending_repair:unknown_column:orders.stat
#            | repair_sql  {"sql": "SELECT COUNT(*) FROM orders;", ...}
#            | accept    ok


def event_text(event: Mapping[str, Any]) -> str:
    """One trace record (8.1) or decision-log entry (8.2) as lines; control characters as escapes."""
    if "llm" in event:
        return _lines(event, "model", str(event["llm"]).strip())
    if "forced_action" in event:
        asked = event["requested_action"] or "no action"
        return _lines(event, "forced", f"{asked} -> {event['forced_action']}: {event['reason']}")
    if "decision" in event:
        return _lines(event, str(event["status"]), f"{event['decision']}: {event['reason']}")
    seen = event.get("observation")
    arguments = json_text(event["args"]) if event.get("args") else ""
    text = seen if isinstance(seen, str) else json_text(seen)
    return _lines(event, str(event.get("action") or "none"), f"{arguments} {text}".strip())


def escaped(text: str) -> str:
    """The text on one line, control characters as escapes: nobody's data drives a terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _lines(event: Mapping[str, Any], head: str, text: str) -> str:
    lines: Sequence[str] = text.splitlines() or [""]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"... {len(lines) - MOST_LINES} more lines (all of them: --json)"]
    start = f"step {event.get('step', '?')}".ljust(8)
    heads = [f"{start}| {head.ljust(WIDTH)}", *[f"{' ' * 8}| {' ' * WIDTH}"] * (len(lines) - 1)]
    return "\n".join(f"{left} {escaped(line)}".rstrip() for left, line in zip(heads, lines, strict=True))


# ----------------------------------------------------------------------------- what ends an episode


class EpisodeError(Exception):
    """An episode cannot go on. ``where`` is the boundary at which it failed: model, tool, database, controller.

    >>> print(EpisodeError("model", "no answer"))
    model: no answer
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where


@contextmanager
def blaming_model() -> Iterator[None]:
    """What a model raises as EpisodeError: a user's own model may raise anything."""
    try:
        yield
    except ModelError as error:
        raise EpisodeError("model", str(error)) from error
    except Nl2SqlError:
        raise
    except Exception as error:
        raise EpisodeError("model", f"{type(error).__name__}: {error}") from error


def run_bounded(database: Database, sql: str, limits: ExecutionConfig) -> RunResult:
    """A statement's result within the limits; what the database raises, a user's own too, is a failure of the run."""
    try:
        return database.run(sql, timeout_s=limits.timeout_s, max_rows=limits.max_rows)
    except DatabaseError as error:
        return RunResult(False, error=str(error), error_kind="other")
    except Nl2SqlError:
        raise
    except Exception as error:  # noqa: BLE001  users' code: recorded as what the run gave
        return RunResult(False, error=f"{type(error).__name__}: {error}", error_kind="other")


def cut_rows(result: RunResult) -> dict[str, int]:
    """The flag of an answer that has more rows than ``execution.max_rows``: so many are kept."""
    return {"rows_cut": len(result.rows)} if result.truncated else {}


# ---------------------------------------------------------------------------- steps of a LangGraph state machine
# LangGraph is imported when a graph is built, so that its controllers can be imported without the extra ``graph``.


def check_langgraph(controller: str) -> None:
    """Raises UsageError with the command that installs what ``controller`` lacks."""
    try:
        import langgraph.graph  # noqa: F401
    except ImportError as error:
        needs = f"controller {controller} needs LangGraph ({error})"
        raise UsageError(f"{needs}; install it: {install_command('graph')}") from None


def as_node(step: Callable[[Any, Any], Mapping[str, Any]], work_of: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """``step(state, work)`` as LangGraph calls it; ``work_of(state, context)`` gives the work of one visit.

    What the step adds to the work's trace and decision log is added to the state's. A failure of the model, a tool or
    the database becomes ``failure`` of the state.
    """

    def visit(state: Any, runtime: Any) -> dict[str, Any]:
        work = work_of(state, runtime.context)
        try:
            update = step(state, work)
        except EpisodeError as failed:
            update = {"failure": str(failed)}
        except DatabaseError as error:  # outside of a tool
            update = {"failure": f"database: {error}"}
        return {
            **update,
            "trace": work.trace[len(state["trace"]) :],
            "decision_log": work.decision_log[len(state["decision_log"]) :],
        }

    return visit
