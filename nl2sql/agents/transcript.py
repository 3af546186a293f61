"""An episode as text for people: what the model wrote, what the loop made of it, and why.

    step 1 | model     Action: run_sql[{}]
           | forced    run_sql -> repair_sql: pending_repair:unknown_column:orders.stat
           | repair_sql  {"sql": "SELECT COUNT(*) FROM orders;", ...}
           | accept    ok

Trace records and decision-log entries come in the order in which the loop made them; ``event_text`` takes one of
either, so that a terminal can show them as they happen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nl2sql.agents.record import Episode, json_text

MOST_LINES = 40  # of one record
WIDTH = 10


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


def episode_text(episode: Episode) -> str:
    """The whole transcript: each step's records, each followed by the decisions that were taken on it."""
    by_step: dict[int, tuple[list[Any], list[Any]]] = {}
    for place, events in enumerate((episode.trace, episode.decision_log)):
        for event in events:
            by_step.setdefault(event["step"], ([], []))[place].append(event)
    lines: list[str] = []
    for _, (records, decisions) in sorted(by_step.items()):
        lines += map(event_text, [*records, *(entry for entry in decisions if entry["status"] != "forced")])
    return "\n".join(lines)


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
