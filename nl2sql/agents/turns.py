"""A turn of the loop: how an action is asked for, read and shown. This file holds the text form of the specification.

>>> parse_action("Action: get_table_samples[{" + '"table": "customers"}]')
('get_table_samples', {'table': 'customers'}, '')

    Thought: I need the tables.
    Action: get_schema[{}]
    Observation: customers(customer_id, name, city) ...

A ``Form`` says how a turn is asked for and what ends it; ``native_tools`` has the other one. Parsing, showing and
fitting the window are the same for both, since a native call is turned into the transcript's own ``Action:`` line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.agent_tools import action_space, own_tools
from nl2sql.agents.failures import EpisodeFailed, blaming_model
from nl2sql.agents.grammars import select
from nl2sql.agents.task import State, Task
from nl2sql.errors import one_line
from nl2sql.interfaces import Grammar
from nl2sql.sql.parse import decode_json, past_limits

SHOWN_ROWS = 5  # of a result as the model reads it; the trace keeps KEPT_ROWS
TRIED_CHARS = 10_000_000  # read as JSON for one text, all tries together: a hundredth of a second
ACTION = re.compile(r"Action:\s*+([A-Za-z_]\w*+)\s*+\[\s*+")
CLOSED = re.compile(r"\s*+\]")
LINE_END = re.compile(r"[ \t]*+(?:\n|\Z)")
Prompt = tuple[list[dict[str, Any]], dict[str, Any]]  # messages, and the open turn or the tools beside them
TurnGrammar = Callable[[tuple[tuple[str, str], ...], int], Grammar]


@dataclass(frozen=True)
class Form:
    """One way of asking for an action.

    opening: system prompt and first user turn. prompt: messages and options of the next turn. read: a reply as the
    transcript writes it, and how many further calls it held. stops: where a reply ends in any case. end: what stands
    behind a complete action. ended: a reply that ``end`` may have cut (True: it was stopped), up to its first action.
    """

    opening: Callable[[State], list[dict[str, Any]]]
    prompt: Callable[[State], Prompt]
    read: Callable[[str], tuple[str, int]]
    grammar: TurnGrammar
    stops: Sequence[str]
    end: str
    ended: Callable[[str, bool], str]


def _opening(state: State) -> list[dict[str, Any]]:
    task = state.task
    return [*prompts.react_messages(state.history[0], task.config.prompts, own_tools(task.resources))]


def _continued(state: State) -> Prompt:
    """The transcript as the open assistant turn, which the model continues."""
    return _opening(state), {"prefill": "\n".join(state.history[1:]) + "\n"}


TEXT = Form(
    opening=_opening,
    prompt=_continued,
    read=lambda reply: (reply, 0),
    grammar=select.action_grammar,
    stops=("Observation:",),
    end="}]\n",  # not "]\n", with which a line of a thought may end
    ended=lambda reply, stopped: first_action(reply, stopped=stopped),
)


def turn_grammar(task: Task, form: Form) -> Grammar | None:
    """The grammar of a turn; None without constraints."""
    if task.config.constrain == "none":
        return None
    tables = [table.name for table in task.schema.tables]
    tools = tuple((name, tool.grammar(tables)) for name, tool in action_space(task.resources).items())
    return form.grammar(tools, task.config.react.thought_characters)


def parse_action(text: str) -> tuple[str, dict[str, Any], str]:
    """The last well-formed ``Action: tool[json]`` of ``text`` as ``(tool, args, "")``; else ``("", {}, excerpt)``.

    The excerpt of a text past the limits (``sql.bounds``) says which limit. Of very many actions the last are tried.
    """
    if reason := past_limits(text):
        return "", {}, f"past_limits: {reason}"
    for name, args, _ in _actions(text, reversed(list(ACTION.finditer(text)))):
        return name, args, ""
    at = text.rfind("Action:")
    return "", {}, one_line(text[at:] if at >= 0 else text, 120) or "nothing"


def first_action(text: str, *, stopped: bool) -> str:
    """``text`` up to its first complete action that ends a line, what a stop string took put back; else ``text``.

    stopped: the model was not cut off at its limit, so that ``TEXT.end`` may be what is missing.
    """
    if past_limits(text):
        return text
    for taken in ("", "]", TEXT.end.rstrip()) if stopped else ("", "]"):
        whole = text + taken
        for _, _, end in _actions(whole, ACTION.finditer(whole)):
            if LINE_END.match(whole, end):
                return whole[:end]
    return text


def _actions(text: str, matches: Iterable[re.Match[str]]) -> Iterator[tuple[str, dict[str, Any], int]]:
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


def fit_window(state: State, form: Form) -> Prompt:
    """The form's prompt of a history that fits the model's window.

    Window rule: when transcript plus ``max_new_tokens`` would outgrow it, the oldest observations after the
    bootstrap are replaced by a line that says how much was left out (``flags["elided_observations"]`` counts);
    if that is not enough, EpisodeFailed("controller", "window_exceeded: ..."). Nothing is cut silently.
    """
    task = state.task
    room = task.resources.model.context_window - task.config.react.max_new_tokens
    first = task.bootstrap_lines
    while True:
        messages, options = form.prompt(state)
        with blaming_model():
            if task.resources.model.count_tokens(messages, **options) <= room:
                return messages, options
        long = (i for i in range(first, len(state.history)) if state.history[i].startswith("Observation: "))
        at = next((i for i in long if not state.history[i].endswith("left out)")), None)
        if at is None:
            spent = f"react.max_new_tokens={task.config.react.max_new_tokens}"
            left = f"the {max(room, 0)} tokens that {spent} leaves of {task.resources.model.context_window}"
            advice = "lower it, or schema_text.max_tokens"
            raise EpisodeFailed("controller", f"window_exceeded: the transcript needs more than {left}; {advice}")
        state.history[at] = f"Observation: ({len(state.history[at]) - 13} characters left out)"
        task.count("elided_observations")


def failed(observation: Any) -> bool:
    """Is this the observation of a blocked, rejected or failed action?"""
    return isinstance(observation, Mapping) and observation.get("error") is not None


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
