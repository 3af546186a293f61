"""An episode in a notebook: question, SQL, rows, and a trace in colours; the report draws by the same marks.

``mark`` says of a trace record whether its action passed, failed or was blocked. ``trace.css`` has the colours. The
style is left out where a notebook is not trusted (on GitHub, before the first execution); the words and signs stay.
"""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from nl2sql.machine import masked
from nl2sql.sql.text import in_lines

MOST = 1500  # characters of an observation
SIGNS = {"good": "✓", "reject": "✗", "blocked": "✗", "forced": "→", "": "·"}
PLAIN = {"good": "#2c8a63", "reject": "#c2483f", "blocked": "#c2483f", "forced": "#b8741a"}  # without trace.css


@dataclass(frozen=True)
class Shown:
    """An episode that a notebook shows with its trace open; ``data`` as for ``episode_html``."""

    data: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<episode of {self.data['id'] or self.data['question']!r}: {self.data['finish']}>"

    def _repr_html_(self) -> str:
        return episode_html(self.data, folded=False)


def blocked_steps(decisions: Iterable[Mapping[str, Any]]) -> set[Any]:
    """The steps whose action a gate has blocked."""
    return {entry["step"] for entry in decisions if entry["status"] == "blocked"}


def mark(record: Mapping[str, Any], blocked: Collection[Any]) -> tuple[str, str]:
    """How a dispatched action ended: a class of ``trace.css`` and a word; both empty where there is nothing to judge.

    >>> mark({"step": 2, "action": "validate_sql", "observation": {"valid": False, "reason": "unknown_table:x"}}, ())
    ('reject', 'failed')
    """
    if record["step"] in blocked:
        return "blocked", "blocked"
    seen = record.get("observation")
    if not isinstance(seen, Mapping):
        return "", ""
    if judged := seen.get("reflection_result"):
        return ("good", "accepted") if judged.get("is_acceptable") else ("reject", "not accepted")
    if seen.get("error") or seen.get("valid") is False or seen.get("success") is False:
        return "reject", "failed"
    if seen.get("success") is True:
        return "good", "ran"
    return ("good", "passed") if seen.get("valid") is True else ("", "")


def episode_html(episode: Mapping[str, Any], max_rows: int = 10, folded: bool = True) -> str:
    """An episode, as ``Episode.to_dict`` or a line of ``traces.jsonl`` has it, for a notebook. All text is escaped."""
    e = html.escape
    usage = episode["usage"]
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    facts = [episode["controller"], f"ended by {episode['finish']}", _many(episode["steps"], "step")]
    facts += [_many(usage["model_calls"], "model call"), _many(tokens, "token"), f"{episode['seconds']:.1f} s"]
    if (p_correct := episode["flags"].get("confidence")) is not None:
        facts.append(f"confidence {p_correct:.2f}")
    parts = [
        f"<div class='question'><b>{e(episode['question'])}</b></div><div class='dim'>{e(' · '.join(facts))}</div>"
    ]
    parts.append(f"<pre>{e(in_lines(episode['sql']) or '(no SQL)')}</pre>")
    if episode["error"]:
        parts.append(f"<div class='bad'>{e(episode['error'])}</div>")
    if episode["columns"]:
        parts.append(_rows(episode["columns"], episode["rows"][:max_rows], episode["row_count"]))
    for item in episode["flags"].get("suspicions", ()):
        parts.append(f"<div class='suspicion'>suspicious, {e(item['check'])}: {e(item['text'])}</div>")
    parts.append(_trace(episode["trace"], episode["decision_log"], folded))
    if violated := [name for name, on in episode["compliance"].items() if on]:
        parts.append(f"<div class='dim'>order violations: {e(', '.join(violated))}</div>")
    return masked(f"<style>{style()}</style><div class='nl2sql'>{''.join(parts)}</div>")


@cache
def style() -> str:
    """The rules of ``trace.css`` for an element of the class ``nl2sql``, in light and dark notebooks."""
    here = files("nl2sql.agents")
    colours, rules = (here.joinpath(name).read_text(encoding="utf-8") for name in ("notebook.css", "trace.css"))
    return f"{colours}.nl2sql {{\n{rules}}}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _tag(kind: str, word: str) -> str:
    colour = f" style='color:{PLAIN[kind]}'" if kind in PLAIN else ""
    return f"<span class='tag {kind}'{colour}>{SIGNS[kind]} {html.escape(word)}</span>"


def _rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], count: int) -> str:
    from nl2sql.eval.tables import table_html  # not before a notebook asks for it

    shown = [list(map(str, columns)), *(["NULL" if value is None else str(value) for value in row] for row in rows)]
    more = f"<div class='dim'>{_many(count - len(rows), 'more row')}</div>" if count > len(rows) else ""
    return f"<div class='result'>{table_html(shown)}{more}</div>"


def _trace(trace: Sequence[Mapping[str, Any]], decisions: Iterable[Mapping[str, Any]], folded: bool) -> str:
    """The steps, folded under one line that names each action with its mark."""
    blocked = blocked_steps(decisions)
    parts, line = [], []
    for record in trace:
        kind, body = _record(record, blocked)
        parts.append(f"<div class='step {kind}'>{body}</div>")
        if name := record.get("action"):
            line.append(_tag(kind, str(name)))
    if not parts:
        return ""
    head = f"<summary><span class='dim'>trace</span> {' '.join(line) or _many(len(parts), 'record')}</summary>"
    return f"<details{'' if folded else ' open'}>{head}{''.join(parts)}</details>"


def _record(record: Mapping[str, Any], blocked: Collection[Any]) -> tuple[str, str]:
    """The class of a record's step, and what stands in it."""
    e, step = html.escape, f"<span class='dim'>step {record['step']}"
    if "llm" in record:
        return "", f"{step}, model</span><pre>{e(str(record['llm']).strip() or '(nothing)')}</pre>"
    if "forced_action" in record:
        asked = record["requested_action"] or "no action"
        text = f"{asked} → <b>{e(record['forced_action'])}</b> <span class='dim'>{e(str(record['reason']))}</span>"
        return "forced", f"{step}</span> {_tag('forced', 'forced')} {text}"
    kind, word = mark(record, blocked)
    tag = f"{_tag(kind, word)} " if word else ""
    return kind, f"{step}</span> {tag}<b>{e(str(record.get('action')))}</b>{_observation(record.get('observation'))}"


def _observation(seen: Any) -> str:
    """SQL in lines, rows as a table, an error or a reason by itself, anything else as JSON."""
    e = html.escape
    if isinstance(seen, Mapping):
        if isinstance(seen.get("rows"), list) and isinstance(seen.get("columns"), list):
            return _rows(seen["columns"], seen["rows"][:5], seen.get("row_count", len(seen["rows"])))
        if isinstance(seen.get("sql"), str) and "raw_sql" in seen:
            refused = f"<div class='bad'>{e(str(seen['error']))}</div>" if seen.get("error") else ""
            return f"<pre>{e(in_lines(seen['sql']))}</pre>{refused}"
        if set(seen) in ({"error"}, {"valid", "reason"}):
            return f" {e(str(seen.get('error', seen.get('reason'))))}"
    text = seen if isinstance(seen, str) else json.dumps(seen, ensure_ascii=False, default=str)
    more = f" … {len(text) - MOST:,} more characters" if len(text) > MOST else ""
    return f"<pre>{e(text[:MOST] + more)}</pre>"
