"""A turn of the loop as text: the prompt, the action that a reply asks for, the observation as the model reads it.

>>> parse_action("Action: get_table_samples[{" + '"table": "customers"}]')
('get_table_samples', {'table': 'customers'}, '')

    Thought: I need the tables.
    Action: get_schema[{}]
    Observation: customers(customer_id, name, city) ...

A chat model's own tool calls (``react.native_tools``, in ``forms``) are written as the same ``Action:`` line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.record import failed
from nl2sql.agents.task import State
from nl2sql.errors import one_line
from nl2sql.sql.parse import decode_json, past_limits

SHOWN_ROWS = 5  # of a result as the model reads it; the trace keeps KEPT_ROWS
TRIED_CHARS = 10_000_000  # read as JSON for one text, all tries together: a hundredth of a second
ACTION = re.compile(r"Action:\s*+([A-Za-z_]\w*+)\s*+\[\s*+")
CLOSED = re.compile(r"\s*+\]")


def parse_action(text: str) -> tuple[str, dict[str, Any], str]:
    """The last well-formed ``Action: tool[json]`` of ``text`` as ``(tool, args, "")``; else ``("", {}, excerpt)``.

    The excerpt of a text past the limits (``sql.bounds``) says which limit. Of very many actions the last are tried.
    """
    if reason := past_limits(text):
        return "", {}, f"past_limits: {reason}"
    for name, args, _ in actions(text, reversed(list(ACTION.finditer(text)))):
        return name, args, ""
    at = text.rfind("Action:")
    return "", {}, one_line(text[at:] if at >= 0 else text, 120) or "nothing"


def actions(text: str, matches: Iterable[re.Match[str]]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(tool, arguments, where it ends) of the well-formed actions among ``matches``, within ``TRIED_CHARS``."""
    left = TRIED_CHARS
    for match in matches:
        start = match.end()
        if text.startswith("]", start):
            yield match[1], {}, start + 1
            continue
        left -= len(text) - start
        if left < 0:
            return
        try:
            args, end = decode_json(text, start)
        except ValueError:
            continue
        if isinstance(args, dict) and (closed := CLOSED.match(text, end)):
            yield match[1], args, closed.end()


def shown_observation(state: State, action: str, observation: Any) -> str:
    """An observation as the transcript shows it: schema as text, a candidate as SQL, the first rows of a run."""
    if failed(observation):
        return prompts.observation_text(observation["error"])
    if action == "get_schema" and action not in state.task.resources.tools:
        return state.task.schema_text_full
    if action == "link_schema":
        return state.task.schema_text_focus
    if action in ("generate_sql", "repair_sql"):
        return str(observation["sql"])
    if action == "run_sql":
        rows = {**observation, "rows": observation.get("rows", [])[:SHOWN_ROWS]}
        return prompts.observation_text({k: v for k, v in rows.items() if k != "sql"})
    return prompts.observation_text(observation)
