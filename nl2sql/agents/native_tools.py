"""The loop in the native tool-calling form of a chat model: ``react.native_tools``.

>>> as_action('<tool_call>{"name": "get_schema", "arguments": {}}</tool_call>')
('Action: get_schema[{}]', 0)

Only how an action is asked for and read differs. The back end is offered the tools as definitions and the history as a
conversation of calls and answers; a call is turned into the transcript's own ``Action: tool[json]`` line, so that the
transcript, the parser, the gates and the trace are those of the textual form. Forms of a call that are read:
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen, SmolLM and what
``models.http`` makes of a server's ``tool_calls``), and a reply that is nothing but such an object or a list of
them (Llama, Mistral).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.agent_tools import action_space
from nl2sql.agents.grammars import select
from nl2sql.agents.prompt_texts import HINT
from nl2sql.agents.task import State, Task
from nl2sql.agents.turns import TEXT, Form, Prompt, parse_action
from nl2sql.config import Config
from nl2sql.interfaces import ToolDefinition
from nl2sql.sql.parse import decode_json, load_json, past_limits

OPENING, CLOSING = "<tool_call>", "</tool_call>"
STOPS = ("<tool_response>", "Observation:")  # an answer that the model makes up itself


def definitions(task: Task) -> list[ToolDefinition]:
    """The action space as OpenAI-style definitions; descriptions are those of the prompt ``react_system``.

    A registered tool that the prompt does not name is described by the first line of its docstring; its arguments are
    what its attribute ``parameters`` says, or any.
    """
    text = prompts.prompt("react_system", task.config.prompts)
    described = dict(re.findall(r"^(\w+)\[.*\] - (.+)$", text, re.MULTILINE))
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": described.get(name, tool.says),
                "parameters": {"type": "object"} if tool.parameters is None else tool.parameters,
            },
        }
        for name, tool in action_space(task.resources).items()
    ]


def conversation(history: Sequence[str], overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """The transcript as messages: each turn one call (the last action of the turn, as for the parser) and its answer.

    A forced action stands in place of the call that it overrides. A turn without a call is answered by the user.
    """
    messages: list[dict[str, Any]] = prompts.native_messages(history[0], overrides)
    turn: list[str] = []
    for line in history[1:]:
        if line.startswith(HINT) and not turn:
            messages[-1]["content"] += f"\n{line}"
        elif line.startswith("Observation: "):
            messages += _exchange("\n".join(turn), line.removeprefix("Observation: "), len(messages))
            turn = []
        else:
            turn.append(line)
    return messages


def _exchange(turn: str, answer: str, number: int) -> list[dict[str, Any]]:
    action, args, _ = parse_action(turn)
    if not action:
        return [{"role": "assistant", "content": turn}, {"role": "user", "content": answer}]  # some insist on turns
    call_id = f"call{number:05d}"  # nine letters and digits: Mistral's templates insist
    call = {"id": call_id, "type": "function", "function": {"name": action, "arguments": args}}
    return [
        {"role": "assistant", "content": turn.partition("Action:")[0].strip(), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "name": action, "content": answer},
    ]


def as_action(text: str) -> tuple[str, int]:
    """A reply as the transcript writes it, and how many calls behind the first one were dropped.

    A reply without a well-formed call stays as it is, and so does one past the limits (``sql.bounds``).
    """
    if past_limits(text):
        return text, 0
    said, written = _calls(text)
    calls = [call for call in map(_call, written) if call is not None]
    if not calls:
        return text, 0
    lines = [said.strip(), prompts.action_line(*calls[0])]
    return "\n".join(line for line in lines if line), len(calls) - 1


def _calls(text: str) -> tuple[str, list[Any]]:
    """The text before the calls, and the JSON of the calls."""
    said, *marked = text.split(OPENING)
    calls: list[Any] = []
    if not marked:
        try:
            whole = load_json(text)
        except ValueError:
            return text, []
        return "", whole if isinstance(whole, list) else [whole]
    for part in marked:
        try:
            calls.append(decode_json(part.lstrip())[0])
        except ValueError:
            continue
    return said, calls


def _call(call: Any) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    args = call.get("arguments", call.get("parameters"))
    if isinstance(args, str):
        try:
            args = load_json(args or "{}")
        except ValueError:
            return None
    args = {} if args is None else args
    return (call["name"], args) if isinstance(args, dict) else None


def _opening(state: State) -> list[dict[str, Any]]:
    return [*prompts.native_messages(state.history[0], state.task.config.prompts)]


def _asked(state: State) -> Prompt:
    return conversation(state.history, state.task.config.prompts), {"tools": definitions(state.task)}


NATIVE = Form(
    opening=_opening,
    prompt=_asked,
    read=as_action,
    grammar=select.tool_call_grammar,
    stops=STOPS,
    end=CLOSING,
    ended=lambda reply, stopped: reply,  # one call at a time
)


def form_of(config: Config) -> Form:
    """The form in which a turn is asked for: the specification's text, or a chat model's own tool calls."""
    return NATIVE if config.react.native_tools else TEXT
