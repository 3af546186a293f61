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
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nl2sql.errors import Cancelled, DatabaseError, ModelError, Nl2SqlError
from nl2sql.interfaces import Completion, Database, Message, Question, Row, RunResult, Usage
from nl2sql.machine import masked
from nl2sql.sql.parse import bounded

if TYPE_CHECKING:
    from nl2sql.agents.task import Task
    from nl2sql.config.sections import ExecutionConfig

TRACE_FORMAT = 1
THINKING_CHARS = 20_000  # of a call's thoughts that its record keeps
BEGAN_CHARS = 500  # shown of a text past the limits
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


@contextmanager
def blaming_tool(action: str) -> Iterator[None]:
    """What a tool raises as EpisodeError, attributed to the tool, the database or the model."""
    try:
        yield
    except DatabaseError as error:
        raise EpisodeError("database", str(error)) from error
    except ModelError as error:
        raise EpisodeError("model", str(error)) from error
    except (EpisodeError, Cancelled):
        raise
    except Exception as error:  # tools are users' code too: attribute, record, never crash the run
        raise EpisodeError("tool", f"{action}: {type(error).__name__}: {error}") from error


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


# ---------------------------------------------------------------------------- a task's calls and its Episode


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


def completions(task: Task, messages: Sequence[Message], kind: str, **options: Any) -> list[Completion]:
    """``n`` completions of one prompt, each recorded in ``task.calls``. Raises EpisodeError("model", ...).

    A text past the limits (``sql.bounds``) is replaced by a line that says so, which is neither an action nor SQL,
    and counted in ``flags["past_limits"]``.
    """
    seed = task.config.seed * 1_000_003 + len(task.calls) if options.get("sampling") else None
    began = time.perf_counter()
    with blaming_model():
        model, cancel = task.resources.model, task.resources.cancel
        written = model.generate(messages, seed=seed, cancel=cancel, **options)
        if len(written) != (wanted := options.get("n", 1)):
            raise ModelError(f"it gave {len(written)} completions where {wanted} were asked for")
    # act: Episode.messages and its transcript, unless they are a conversation of calls
    sent = None if kind == "act" and "tools" not in options else list(messages)
    admitted = [replace(completion, text=bounded(completion.text)) for completion in written]
    for original, completion in zip(written, admitted, strict=True):
        call = call_record(kind, sent, completion, round(began - task.began, 4), options.get("prefill", ""))
        if completion.text != original.text:
            task.count("past_limits")
            call["began"] = original.text[:BEGAN_CHARS]
        if original.thinking:
            call["thinking"] = original.thinking[:THINKING_CHARS]
        task.calls.append(call)
        task.usage = task.usage + completion.usage
        if completion.finish_reason == "length":
            task.count("truncated")
    return admitted


def prefill_of(task: Task, raw_sql: str) -> str:
    """The prefill that a raw SQL text begins with; "" where no model wrote it."""
    return task.drafts[raw_sql].prefill if raw_sql in task.drafts else ""


def own_text(task: Task, raw_sql: str) -> str:
    """The part of a raw SQL text that the model wrote: without the prefill that opened its turn."""
    return raw_sql[len(prefill_of(task, raw_sql)) :]


def make_episode(
    task: Task,
    controller: str,
    sql: str,
    *,
    raw_sql: str,
    error: str | None,
    trace: list[dict[str, Any]],
    why_none: str = "controller: no SQL",
    flags: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Episode:
    """The Episode of a task: ``sql`` with its rows, and all that was recorded.

    raw_sql: the text behind ``sql``, its prefill included. why_none: the error of an episode without SQL.
    fields: of the Episode besides; its compliance is that of the trace, where no other is given.
    """
    result = task.result_of(sql)
    if error is None and not result.success:
        error = f"database: {result.error}" if sql else why_none
    if not sql and (thoughts := task.flags.get("only_thoughts")):
        error = f"{error}; {thoughts} of the model's answers held thoughts and nothing else: allow it more tokens "
        error += "(--server thinking=4096), or ask it not to think (--server thinking=0)"
    counts = task.flags | repair_counts(trace) | {"rejected": task.rejected} | cut_rows(result)
    fields = {"compliance": summarize_trace(trace), "flags": {**counts, **(flags or {})}, **fields}
    fields |= {"columns": result.columns, "rows": result.rows, "calls": task.calls, "usage": task.usage}
    own, prefill = own_text(task, raw_sql), prefill_of(task, raw_sql)
    seconds = time.perf_counter() - task.began
    return Episode(task.question, controller, sql, own, prefill, error=error, trace=trace, seconds=seconds, **fields)
