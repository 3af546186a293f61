"""An answer as a terminal shows it: query, rows, what is suspicious, why it failed, what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nl2sql.agents.checks.suspicions import texts
from nl2sql.agents.record import escaped, json_value
from nl2sql.errors import printable
from nl2sql.eval.tables import records_text

if TYPE_CHECKING:
    from nl2sql.agents.record import Episode
    from nl2sql.interfaces import Database

MOST_ROWS = 20
MOST_STALE = 3
MENDED = "-- mended without the model; it runs, and may still not be what was asked:"


def answer_text(episode: Episode, database: Database) -> str:
    """The whole answer; a query that failed comes with what is known about it, and mended where that runs."""
    lines = [*_reused(episode), *_structured(episode), printable(episode.sql) or "(no SQL)"]
    if episode.error:
        lines.append(f"-- {escaped(episode.error)}")
    if episode.columns:
        lines += rows_text(episode.columns, episode.rows)
    lines += [f"-- suspicious, {escaped(line)}" for line in texts(episode.flags.get("suspicions", ()))]
    told = episode.flags.get("verified", {})
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


def _reused(episode: Episode) -> list[str]:
    """Which verified query the answer is, and who vouches for it."""
    told = episode.flags.get("verified", {}).get("reused")
    if not told:
        return []
    who = " on ".join(filter(None, (told.get("verified_by", ""), told.get("verified_at", ""))))
    return [escaped(f"-- verified{f' by {who}' if who else ''}: the query of {told['question']!r}; no model was asked")]


def _structured(episode: Episode) -> list[str]:
    """The structured query behind the SQL, where the controller writes one."""
    told = episode.flags.get("vizql", {})
    if not told.get("query"):
        return []
    return [f"-- query, version {told['query_version']}: {escaped(episode.raw_sql)}"]


def _explained(episode: Episode, database: Database) -> list[str]:
    if not episode.sql or not (episode.error or "").startswith("database:"):
        return []
    from nl2sql.repair.analyzer import explanation

    known = explanation(episode.sql, database)
    lines = [f"-- {escaped(line)}" for line in known.lines()[1:] if not line.endswith(": N/A")]
    if not known.mended:
        return lines
    result = database.run(known.mended, timeout_s=10.0, max_rows=MOST_ROWS + 1)
    shown = rows_text(result.columns, result.rows) if result.success else [f"-- {escaped(str(result.error))}"]
    return [*lines, MENDED, printable(known.mended), *shown]


def rows_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The first rows as a table, and how many more there are."""
    table = [[escaped(str(column)) for column in columns]]
    for row in rows[:MOST_ROWS]:
        table.append(["NULL" if value is None else escaped(str(json_value(value))) for value in row])
    more = [f"... {len(rows) - MOST_ROWS} more rows"] if len(rows) > MOST_ROWS else []
    return [*records_text(table), *more]
