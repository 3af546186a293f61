"""The traces of a report: cut to size, packed in compressed chunks that the page opens one at a time.

An index (one short row per question) is opened with the page; an episode's chunk when it is clicked. Episodes of one
question and one database lie together, so that what they share is stored once.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from nl2sql.agents.checks.suspicions import texts
from nl2sql.agents.display import blocked_steps, mark
from nl2sql.agents.record import json_text, json_value
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Benchmark, Question, RunResult
from nl2sql.runs.folder import QuestionKey
from nl2sql.runs.plan import Trust, benchmark_of
from nl2sql.runs.rescore import questions_of, stores_of
from nl2sql.runs.run import Collected, Run, notes_of, right_of
from nl2sql.sql.features import features
from nl2sql.sql.text import in_lines

CHUNK = 24  # episodes: opening one takes milliseconds, and its neighbours share the schema's words
SHORT = 300  # characters of a value, a reason, a question in the list
ROWS, COLUMNS = 20, 30  # shown of a result
LONG = (2_000, 800, 300)  # characters of a model's text or an observation; the first by which the page stays in size
EXACT = 2**53 - 1  # a larger whole number loses digits in a browser
MOST_BYTES, MOST_PER_EPISODE = 39_000_000, 3_900  # of the traces in a page; whichever is more
CALLS, KINDS = 60, 3  # model calls listed of an episode; kinds of them whose messages are shown
GOLD_ROWS, GOLD_TIMEOUT_S = 1_000, 10.0


@dataclass(frozen=True)
class Packed:
    """``index`` and ``chunks`` are base64 of gzip of JSON; ``notes`` says what could not be shown."""

    index: str
    chunks: list[str]
    notes: list[str]


def pack(collected: Collected, *, golds: bool = True, progress: bool = True, trust: Trust | bool = False) -> Packed:
    """Read every trace and pack it. ``golds``: run the golds, so that their rows stand beside the predicted ones.

    Where the page would grow too large, it is done again with shorter texts, and a note says so.
    """
    notes: list[str] = []
    asked = _questions(collected, golds, notes, trust)
    gold_rows = _run_golds(asked, progress) if golds else {}
    room = max(MOST_BYTES, MOST_PER_EPISODE * sum(len(run.report["items"]) for run in collected.runs.values()))
    for long in LONG:
        index, chunks, lost = _pack(collected, asked, gold_rows, long, progress)
        if len(index) + sum(map(len, chunks)) <= room:
            break
    notes += lost
    if long < LONG[0]:
        notes.append(f"texts are cut at {long} characters, so that the page stays under {room / 1e6:.0f} MB")
    return Packed(index, chunks, notes)


def _pack(
    collected: Collected,
    asked: Mapping[QuestionKey, tuple[Question, Benchmark]],
    gold_rows: Mapping[QuestionKey, RunResult],
    long: int,
    progress: bool,
) -> tuple[str, list[str], list[str]]:
    """The index and the chunks, with texts of at most ``long`` characters, and what is lost."""
    episodes: dict[tuple[QuestionKey, int], bytes] = {}
    rows: dict[QuestionKey, dict[str, Any]] = {}
    lost: list[str] = []
    for number, (label, run) in enumerate(collected.runs.items()):
        items = {item["id"]: item for item in run.report["items"]}
        controls, noted = _control_sql(run, long), notes_of(run)
        most = run.manifest["config"]["execution"]["max_rows"]
        verdicts: dict[QuestionKey, dict[str, Any]] = {}
        traces = (trace for trace in run.lines("traces.jsonl") if trace.get("id") in items)
        for trace in tqdm(traces, total=len(items), desc="traces", unit="trace", disable=not progress):
            item = items[trace["id"]]
            key = run.key_of(item)
            question, _ = asked.get(key, (None, None))
            episode = _episode(trace, item, question, gold_rows.get(key), controls.get(item["id"]), long, most)
            episodes[(key, number)] = json_text(episode).encode()  # a repeated line replaces the one before it
            verdicts[key] = _verdict(trace, item)
            rows.setdefault(key, _row(trace["question"], item, question, len(collected.runs)))
        if without := len(items) - len(verdicts):
            lost.append(f"{label}: {without} of {len(items)} traces are missing")
        for item in items.values():
            key = run.key_of(item)
            question, _ = asked.get(key, (None, None))
            row = rows.setdefault(key, _row(question.text if question else "", item, question, len(collected.runs)))
            row["r"][number] = verdicts.get(key) or _verdict({}, item)
            if note := noted.get((item["db_id"], item["id"])):
                row["r"][number]["note"] = note
    order = sorted(episodes)
    chunks: list[str] = []
    for start in range(0, len(order), CHUNK):
        keys = order[start : start + CHUNK]
        for place, (key, number) in enumerate(keys):
            rows[key]["r"][number]["at"] = [len(chunks), place]
        chunks.append(_squeeze(b"[" + b",".join(episodes.pop(key) for key in keys) + b"]"))
    index = {
        "runs": list(collected.runs),
        "keys": [run.manifest["key"] for run in collected.runs.values()],
        "questions": [rows[key] for key in sorted(rows)],
    }
    return _squeeze(json_text(index).encode()), chunks, lost


def _squeeze(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _questions(
    collected: Collected, golds: bool, notes: list[str], trust: Trust | bool
) -> dict[QuestionKey, tuple[Question, Benchmark]]:
    """The questions of all runs with the benchmarks that they are from; a note for a run whose is not at hand."""
    questions: dict[QuestionKey, tuple[Question, Benchmark]] = {}
    for label, run in collected.runs.items() if golds else ():
        if {run.key_of(item) for item in run.report["items"]} <= set(questions):
            continue
        try:
            benchmark = benchmark_of(run.folder, trust)
            name = run.report["benchmark"]
            questions |= {(name, q.db_id, q.id): (q, benchmark) for q in questions_of(run.folder, benchmark)}
        except Nl2SqlError as error:
            notes.append(f"{label}: no golds, because the benchmark is not at hand: {error}")
    return questions


def _run_golds(asked: Mapping[QuestionKey, tuple[Question, Benchmark]], progress: bool) -> dict[QuestionKey, RunResult]:
    """Question -> the result of its first gold, in the sandbox."""

    def run(question: Question, benchmark: Benchmark) -> RunResult:
        try:
            database = benchmark.database(question.db_id)
            return database.run(question.gold[0], timeout_s=GOLD_TIMEOUT_S, max_rows=GOLD_ROWS)
        except Nl2SqlError as error:
            return RunResult(False, error=str(error), error_kind="other")

    with_gold = {key: pair for key, pair in asked.items() if pair[0].gold}
    with ThreadPoolExecutor(4, thread_name_prefix="gold") as pool:
        done = pool.map(run, *zip(*with_gold.values(), strict=True)) if with_gold else ()
        results = list(tqdm(done, total=len(with_gold), desc="golds", unit="gold", disable=not progress))
    return dict(zip(with_gold, results, strict=True))


def _control_sql(run: Run, long: int) -> dict[str, dict[str, Any]]:
    """Question id -> what the single-shot control answered, and whether that was right."""
    _, controls = stores_of(run.folder)
    if "single_shot" not in controls:
        return {}
    right, raw = right_of(run, "ex_single_shot"), right_of(run, "ex_single_shot_raw")
    return {
        row["id"]: {
            "sql": _cut(in_lines(row["sql"]), long),
            "raw": _cut(row.get("prefill", "") + row["raw_sql"], long),
            "ex": right.get(run.key_of(row)),
            "raw_ex": raw.get(run.key_of(row)),
        }
        for row in controls["single_shot"].predictions()
    }


# ---------------------------------------------------------------------------------------------- one episode


def _row(text: str, item: Mapping[str, Any], question: Question | None, runs: int) -> dict[str, Any]:
    """A question's row of the index; ``r`` has a place for each run, ``g`` the features of the gold for the slices."""
    row = {"id": item["id"], "db": item["db_id"], "q": _cut(text, SHORT), "h": item.get("hardness") or "unknown"}
    row["r"] = [None] * runs
    return row | ({"g": features(question.gold[0])} if question and question.gold else {})


def _verdict(trace: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    """What the list of questions filters by. trace: empty where it is missing."""
    usage = trace.get("usage", {})
    return {
        "ex": int(item["ex"]),
        "va": int(item["va"]),
        "s": int(item["ex_single_shot"]) if "ex_single_shot" in item else None,
        "c": None if item["ex"] else item.get("cause") or "unknown",
        "f": trace.get("finish"),
        "n": trace.get("steps", 0),
        "t": usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0),
        "o": int(any("forced_action" in record for record in trace.get("trace", ()))),
    }


def _episode(
    trace: Mapping[str, Any],
    item: Mapping[str, Any],
    question: Question | None,
    gold: RunResult | None,
    control: Mapping[str, Any] | None,
    long: int,
    most: int,
) -> dict[str, Any]:
    """What the page shows of an episode. most: rows at which its result was cut."""
    usage, blocked = trace["usage"], blocked_steps(trace["decision_log"])
    episode: dict[str, Any] = {
        "question": _cut(trace["question"], long),
        "evidence": _cut(question.evidence, long) if question and question.evidence else None,
        "sql": _cut(in_lines(trace["sql"]), long),
        "raw_sql": _cut(_otherwise(trace.get("prefill", "") + trace["raw_sql"], trace["sql"]), long),
        "error": _cut(item["error"] or trace["error"] or "", long),
        "verdicts": {name: item[name] for name in ("va", "em", "ex", "ts") if item.get(name) is not None},
        "cause": item.get("cause"),
        "result": _result(trace["columns"], trace["rows"], trace["row_count"], more=trace["row_count"] >= most),
        "golds": [_cut(in_lines(sql), long) for sql in question.gold[:3]] if question else [],
        "gold_error": item.get("gold_error"),
        "control": control,
        "suspicions": [_cut(line, SHORT) for line in texts(trace["flags"].get("suspicions", ()))],
        "finish": trace["finish"],
        "steps": trace["steps"],
        "seconds": round(trace["seconds"], 2),
        "usage": {name: usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens", "model_calls")},
        "saw": _saw(trace, 4 * long),
        "calls": [_call(call) for call in trace.get("calls") or ()][:CALLS],
        "violations": [name for name, on in trace["compliance"].items() if on],
        "trace": [_record(record, blocked, long) for record in trace["trace"]],
        "decisions": [
            {"step": entry["step"], "status": entry["status"], "reason": _cut(str(entry["reason"]), SHORT)}
            for entry in trace["decision_log"]
            if entry["status"] in ("reject", "blocked")
        ],
    }
    session = trace["flags"].get("session")
    if isinstance(session, Mapping) and "resolved_query" in session:
        episode["session"] = _session(session, long)
    if gold is not None:
        episode["gold_result"] = _result(gold.columns, gold.rows, len(gold.rows), more=gold.truncated)
        episode["gold_error"] = episode["gold_error"] or (None if gold.success else gold.error)
    return episode


def _saw(trace: Mapping[str, Any], long: int) -> list[dict[str, Any]]:
    """The messages that the loop began with, and those of the first call of each other kind (sql, repair, ...)."""
    calls = trace.get("calls") or ()
    seen = {"act": trace.get("messages") or ()} if any(call.get("kind") == "act" for call in calls) else {}
    for call in calls:
        if call.get("messages"):
            seen.setdefault(call["kind"], call["messages"])
    return [
        {"kind": kind, "messages": [[m["role"], _cut(str(m.get("content") or ""), long)] for m in messages[:4]]}
        for kind, messages in list(seen.items())[:KINDS]
        if messages
    ]


def _call(call: Mapping[str, Any]) -> list[Any]:
    """Of a model call: kind, prompt tokens, those computed, completion tokens, seconds, whether the cache answered."""
    usage = call["usage"]
    numbers = [usage.get(name, 0) for name in ("prompt_tokens", "prefill_tokens", "completion_tokens")]
    return [call["kind"], *numbers, round(usage.get("seconds", 0.0), 2), int(bool(usage.get("cached_calls")))]


def _session(session: Mapping[str, Any], long: int) -> dict[str, Any]:
    """What a turn of a dialogue was understood as, and on what evidence."""
    evidence = [{"kind": item["kind"], "text": _cut(item["text"], SHORT)} for item in session["evidence"]]
    facts = {name: session[name] for name in ("turn", "is_followup", "strategy")}
    said = {name: _cut(session[name], long) for name in ("resolved_query", "fallback")}
    return {**facts, **said, "evidence": evidence}


def _otherwise(raw: str, sql: str) -> str:
    """What the model wrote, where it differs from the SQL that was made of it; SELECT may have been written for it."""
    wrote, made = (text.strip().rstrip("; \n") for text in (raw, sql))
    return "" if made in (wrote, f"SELECT {wrote}") else raw


def _record(record: Mapping[str, Any], blocked: Collection[int], long: int) -> dict[str, Any]:
    """A trace record with how it ended, its texts cut; an observation is kept as JSON where it is short."""
    if "llm" in record:
        return {"step": record["step"], "llm": _cut(str(record["llm"]), long)}
    if "forced_action" in record:
        return {**record, "reason": _cut(str(record["reason"]), SHORT)}
    seen = record.get("observation")
    if isinstance(seen, Mapping) and isinstance(seen.get("rows"), list):
        seen = {**seen, "rows": _result(seen.get("columns", []), seen["rows"], len(seen["rows"]))["rows"]}
    if isinstance(seen, Mapping) and isinstance(seen.get("sql"), str):
        raw = {"raw_sql": _otherwise(str(seen["raw_sql"]), seen["sql"])} if "raw_sql" in seen else {}
        seen = {**seen, "sql": in_lines(seen["sql"]), **raw}
    text = json_text(seen)
    arguments = record.get("args")
    short = arguments if len(json_text(arguments)) <= SHORT else {"": _cut(json_text(arguments), SHORT)}
    if len(text) <= long:
        observation: Any = seen
    elif isinstance(seen, Mapping) and isinstance(seen.get("sql"), str):  # an attempt, which the page compares
        kept = {name: seen[name] for name in ("sql", "raw_sql", "error") if name in seen}
        observation = {name: _cut(value, long) if isinstance(value, str) else value for name, value in kept.items()}
    else:
        observation = _cut(seen if isinstance(seen, str) else text, long)
    facts = {"step": record["step"], "action": record["action"], "mark": mark(record, blocked)}
    return {**facts, "args": short, "observation": observation}


def _result(columns: Sequence[str], rows: Sequence[Sequence[Any]], count: int, more: bool = False) -> dict[str, Any]:
    shown = [list(map(shown_cell, row[:COLUMNS])) for row in rows[:ROWS]]
    names = [_cut(str(name), SHORT) for name in columns[:COLUMNS]]
    return {"columns": names, "width": len(columns), "rows": shown, "count": count, "more": more}


def shown_cell(value: Any) -> Any:
    """A value of a result as a page shows it, for JSON: blobs as hexadecimal text, what is long cut."""
    value = json_value(value)
    if isinstance(value, int) and abs(value) > EXACT:
        return str(value)
    return _cut(value, SHORT) if isinstance(value, str) else value


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … [{len(text) - limit:,} more characters]"
