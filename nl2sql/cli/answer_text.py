"""An answer as a terminal shows it, and the line that says meanwhile what is being done."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO

from nl2sql.agents.checks.suspicions import texts
from nl2sql.agents.record import json_text, json_value
from nl2sql.errors import printable
from nl2sql.eval.tables import records_text
from nl2sql.machine import masked

if TYPE_CHECKING:
    from nl2sql.agents.record import Episode
    from nl2sql.interfaces import Database

MOST_ROWS = 20
MOST_STALE = 3
MOST_LINES, WIDTH = 40, 10  # of a record of a trace, and of its head
FIXED = "-- mended without the model; it runs, and may still not be what was asked:"


def answer_text(episode: Episode, database: Database) -> str:
    """The whole answer; a query that failed comes with what is known about it, and mended where that runs."""
    told, structured = episode.flags.get("verified", {}), episode.flags.get("vizql", {})
    lines = []
    if again := told.get("reused"):
        who = " on ".join(filter(None, (again.get("verified_by", ""), again.get("verified_at", ""))))
        by = f" by {who}" if who else ""
        lines.append(escaped(f"-- verified{by}: the query of {again['question']!r}; no model was asked"))
    if structured.get("query"):
        lines.append(f"-- query, version {structured['query_version']}: {escaped(episode.raw_sql)}")
    lines.append(printable(episode.sql) or "(no SQL)")
    if episode.error:
        lines.append(f"-- {escaped(episode.error)}")
    if episode.columns:
        lines += rows_text(episode.columns, episode.rows)
    lines += [f"-- suspicious, {escaped(line)}" for line in texts(episode.flags.get("suspicions", ()))]
    lines += [f"-- {escaped(line)}" for line in stale_lines(told.get("stale", {}))]
    if near := told.get("examples"):
        lines.append(escaped(f"-- verified questions like it: {'; '.join(reversed(near))}"))
    lines += _explained(episode, database)
    if "confidence" in episode.flags:
        lines.append(f"-- confidence {episode.flags['confidence']:.2f}")
    usage = episode.usage
    lines.append(
        f"-- {episode.controller}: {episode.finish} after {episode.steps} steps, {usage.model_calls} model calls, "
        f"{usage.completion_tokens} tokens, {episode.seconds:.1f} s"
        + (f", {usage.cached_calls} calls from the response cache" if usage.cached_calls else "")
        + (f", cost {usage.cost:.6g}" if usage.cost else "")
    )
    return "\n".join(lines)


def stale_lines(stale: Mapping[str, str]) -> list[str]:
    """Verified queries that run no more, one a line; of many the first."""
    lines = [f"stale, not used: {question!r}: {why}" for question, why in list(stale.items())[:MOST_STALE]]
    more = len(stale) - MOST_STALE
    return [*lines, f"stale, not used: {more} more verified queries"] if more > 0 else lines


def _explained(episode: Episode, database: Database) -> list[str]:
    if not episode.sql or not (episode.error or "").startswith("database:"):
        return []
    from nl2sql.repair.analyzer import explanation

    known = explanation(episode.sql, database)
    lines = [f"-- {escaped(line)}" for line in known.lines()[1:] if not line.endswith(": N/A")]
    if not known.fixed:
        return lines
    result = database.run(known.fixed, timeout_s=10.0, max_rows=MOST_ROWS + 1)
    shown = rows_text(result.columns, result.rows) if result.success else [f"-- {escaped(str(result.error))}"]
    return [*lines, FIXED, printable(known.fixed), *shown]


def rows_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The first rows as a table, and how many more there are."""
    table = [[escaped(str(column)) for column in columns]]
    for row in rows[:MOST_ROWS]:
        table.append(["NULL" if value is None else escaped(str(json_value(value))) for value in row])
    more = [f"... {len(rows) - MOST_ROWS} more rows"] if len(rows) > MOST_ROWS else []
    return [*records_text(table), *more]


class StatusLine(AbstractContextManager["StatusLine"]):
    """Writes to standard error where that is a terminal, and nothing elsewhere; as a block it ends empty."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._on = self._stream.isatty()

    def say(self, text: str) -> None:
        """Show a text in place of the last one, cut to the terminal's width."""
        if self._on:
            width = shutil.get_terminal_size().columns - 1
            line = masked(printable(" ".join(text.split())))[:width]
            print(f"\r\x1b[K{line}", end="", file=self._stream, flush=True)

    def event(self, event: Mapping[str, Any]) -> None:
        """Show a trace record: the action that was done, or what the model wrote."""
        if "action" in event:
            seen = event.get("observation")
            sql = seen.get("sql") if isinstance(seen, Mapping) else None
            self.say(f"step {event['step']}: {event['action'] or 'no action'} {sql or ''}")
        elif "llm" in event:
            self.say(f"step {event['step']}: {event['llm']}")

    def __exit__(self, *_: object) -> None:
        self.say("")


# ------------------------------------------------------------------------------------------------ a record as text
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
