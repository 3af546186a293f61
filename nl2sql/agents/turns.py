"""The transcript between model and loop: parsing the model's action, showing observations, fitting the window."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.agent_tools import EpisodeFailed, State
from nl2sql.errors import ModelError, one_line

SHOWN_ROWS = 5


def parse_action(text: str) -> tuple[str, dict[str, Any], str]:
    """The last well-formed ``Action: tool[json]`` of ``text`` as ``(tool, args, "")``; else ``("", {}, found)``."""
    for match in reversed(list(re.finditer(r"Action:\s*([A-Za-z_]\w*)\s*\[", text))):
        rest = text[match.end() :].lstrip()
        if rest.startswith("]"):
            return match[1], {}, ""
        try:
            args, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):  # ValueError: not JSON, or a number of thousands of digits
            continue
        if isinstance(args, dict) and rest[end:].lstrip().startswith("]"):
            return match[1], args, ""
    at = text.rfind("Action:")
    found = text[at:] if at >= 0 else text
    return "", {}, one_line(found, 120) or "nothing"


def fit_window(state: State, render: Callable[[], tuple[list[dict[str, Any]], dict[str, Any]]]) -> Any:
    """``render()``: the messages and their ``prefill`` or ``tools``, of a history that fits the model's window.

    Window rule: when transcript plus ``max_new_tokens`` would outgrow it, the oldest observations after the
    bootstrap are replaced by a line that says how much was left out (``flags["elided_observations"]`` counts);
    if that is not enough, EpisodeFailed("controller", "window_exceeded: ..."). Nothing is cut silently.
    """
    task = state.task
    room = task.resources.model.context_window - task.config.react.max_new_tokens
    first = task.bootstrap_lines
    while True:
        messages, options = render()
        try:
            if task.resources.model.count_tokens(messages, **options) <= room:
                return messages, options
        except ModelError as error:
            raise EpisodeFailed("model", str(error)) from error
        long = (i for i in range(first, len(state.history)) if state.history[i].startswith("Observation: "))
        at = next((i for i in long if not state.history[i].endswith("left out)")), None)
        if at is None:
            raise EpisodeFailed("controller", f"window_exceeded: the transcript needs more than {room} tokens")
        state.history[at] = f"Observation: ({len(state.history[at]) - 13} characters left out)"
        task.count("elided_observations")


def failed(observation: Any) -> bool:
    """Is this the observation of a blocked, rejected or failed action?"""
    return isinstance(observation, Mapping) and "error" in observation


def shown(state: State, action: str, observation: Any) -> str:
    """An observation as the transcript shows it: schema as text, a candidate as SQL, the first rows of a run."""
    if failed(observation):
        return prompts.observation_text(observation["error"])
    if action == "get_schema":
        return state.task.schema_text_full
    if action == "link_schema":
        return state.task.schema_text_focus
    if action in ("generate_sql", "repair_sql"):
        return observation["sql"]
    if action == "run_sql":
        rows = {**observation, "rows": observation.get("rows", [])[:SHOWN_ROWS]}
        return prompts.observation_text({k: v for k, v in rows.items() if k != "sql"})
    return prompts.observation_text(observation)
