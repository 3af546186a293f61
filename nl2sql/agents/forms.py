"""How a turn is asked for: the tools as prompt, definitions and grammar, in text or as a chat model's own tool calls.

>>> as_action('<tool_call>{"name": "get_schema", "arguments": {}}</tool_call>')
('Action: get_schema[{}]', 0)

A ``Form`` says how a turn is asked for and what ends it. A native call is turned into the transcript's own ``Action:``
line, so that parsing and showing (``turns``) and the window are the same for both.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.agent_tools import TOOLS
from nl2sql.agents.grammars import select
from nl2sql.agents.record import EpisodeError, blaming_model
from nl2sql.agents.task import State, Task
from nl2sql.agents.turns import ACTION, actions, parse_action
from nl2sql.config import Config
from nl2sql.interfaces import Completion, Grammar, Resources, ToolDefinition
from nl2sql.sql.parse import decode_json, load_json, past_limits

LINE_END = re.compile(r"[ \t]*+(?:\n|\Z)")
Prompt = tuple[list[dict[str, Any]], dict[str, Any]]  # messages, and the open turn or the tools beside them
TurnGrammar = Callable[[tuple[tuple[str, str], ...], int], Grammar]


@dataclass(frozen=True)
class ToolRecord:
    """One tool as a model is told of it.

    description: what it is for. example: its arguments as the prompt shows them. parameters: the JSON Schema of its
    arguments, None for any object. grammar: the arguments as Lark, given the names of the tables.
    """

    description: str
    example: str = "{}"
    parameters: Mapping[str, Any] | None = None
    grammar: Callable[[Sequence[str]], str] = select.no_arguments


NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}}
SAMPLES: Mapping[str, Any] = {
    "type": "object",
    "properties": {"table": {"type": "string"}, "n": {"type": "integer", "minimum": 1, "maximum": 10}},
    "required": ["table"],
}
TEXTS = {name: (text, example) for name, example, text in prompts.TOOL_LINE.findall(prompts.REACT_SYSTEM_PROMPT)}
ACTIONS = {name: ToolRecord(*TEXTS[name], NOTHING) for name in TOOLS}
ACTIONS["get_table_samples"] = ToolRecord(*TEXTS["get_table_samples"], SAMPLES, select.sample_arguments)


def action_space(resources: Resources) -> dict[str, ToolRecord]:
    """All tools by name: the built-in ones, those that replace some of them, then the user's own."""
    space = dict(ACTIONS)
    for name, function in resources.tools.items():
        described = (inspect.getdoc(function) or name).partition("\n")[0]
        schema = getattr(function, "parameters", None)
        if schema is not None or name not in ACTIONS:
            description = ACTIONS[name].description if name in ACTIONS else described
            example = json.dumps(dict.fromkeys((schema or {}).get("properties", {}), "..."))
            space[name] = ToolRecord(description, example, schema, select.json_arguments(schema))
    return space


def own_tools(resources: Resources) -> list[tuple[str, str, str]]:
    """(name, arguments, what it is for) of the tools that the packaged prompt does not name."""
    space = action_space(resources)
    return [(name, space[name].example, space[name].description) for name in resources.tools if name not in TOOLS]


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


def form_of(config: Config) -> Form:
    """The form in which a turn is asked for: the specification's text, or a chat model's own tool calls."""
    return NATIVE if config.react.native_tools else TEXT


def ask_turn(state: State) -> Completion:
    """The model's next turn, in the form of the config, within the window and under the grammar, where there is one."""
    react, form = state.task.config.react, form_of(state.task.config)
    messages, options = fit_window(state, form)
    grammar = turn_grammar(state.task, form)
    cut_behind = react.stop_at_action and grammar is None  # a grammar ends behind the action by itself
    options["stop"] = (*form.stops, form.end) if cut_behind else form.stops
    if grammar is not None:
        options["grammar"] = grammar
    completion = state.task.ask(messages, max_new_tokens=react.max_new_tokens, **options)
    if cut_behind:
        text = form.ended(completion.text, completion.finish_reason == "stop")
        completion = replace(completion, text=text)
    return completion


def transcribed(state: State, reply: str) -> str:
    """A reply as the transcript writes it: its first call where it is one of tools; the others are counted."""
    text, dropped = form_of(state.task.config).read(reply)
    if dropped:
        state.task.count("dropped_calls", dropped)
    return text


def turn_grammar(task: Task, form: Form) -> Grammar | None:
    """The grammar of a turn; None without constraints."""
    if task.config.constrain == "none":
        return None
    tables = [table.name for table in task.schema.tables]
    tools = tuple((name, tool.grammar(tables)) for name, tool in action_space(task.resources).items())
    return form.grammar(tools, task.config.react.thought_characters)


def fit_window(state: State, form: Form) -> Prompt:
    """The form's prompt of a history that fits the model's window.

    Window rule: when transcript plus ``max_new_tokens`` would outgrow it, the oldest observations after the
    bootstrap are replaced by a line that says how much was left out (``flags["elided_observations"]`` counts);
    if that is not enough, EpisodeError("controller", "window_exceeded: ..."). Nothing is cut silently.
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
            raise EpisodeError("controller", f"window_exceeded: the transcript needs more than {left}; {advice}")
        state.history[at] = f"Observation: ({len(state.history[at]) - 13} characters left out)"
        task.count("elided_observations")


# ---------------------------------------------------------------------------------------------------- as text


def _opening(state: State) -> list[dict[str, Any]]:
    task = state.task
    return [*prompts.react_messages(state.history[0], task.config.prompts, own_tools(task.resources))]


def first_action(text: str, *, stopped: bool) -> str:
    """``text`` up to its first complete action that ends a line, what a stop string took put back; else ``text``.

    stopped: the model was not cut off at its limit, so that ``TEXT.end`` may be what is missing.
    """
    if past_limits(text):
        return text
    for taken in ("", "]", TEXT.end.rstrip()) if stopped else ("", "]"):
        whole = text + taken
        for _, _, end in actions(whole, ACTION.finditer(whole)):
            if LINE_END.match(whole, end):
                return whole[:end]
    return text


TEXT = Form(
    opening=_opening,
    prompt=lambda state: (_opening(state), {"prefill": "\n".join(state.history[1:]) + "\n"}),
    read=lambda reply: (reply, 0),
    grammar=select.action_grammar,
    stops=("Observation:",),
    end="}]\n",  # not "]\n", with which a line of a thought may end
    ended=lambda reply, stopped: first_action(reply, stopped=stopped),
)


# ------------------------------------------------------------------------------------------ native tool calls
# ``react.native_tools``: the back end is offered the tools as definitions and the history as a conversation of calls
# and answers. Forms of a call that are read: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes,
# Qwen, SmolLM and what ``models.http`` makes of a server's ``tool_calls``), and a reply that is nothing but such an
# object or a list of them (Llama, Mistral).

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def definitions(task: Task) -> list[ToolDefinition]:
    """The action space as OpenAI-style definitions; descriptions are those of the prompt ``react_system``.

    A registered tool that the prompt does not name is described by the first line of its docstring; its arguments are
    what its attribute ``parameters`` says, or any.
    """
    text = prompts.prompt("react_system", task.config.prompts)
    described = {name: description for name, _, description in prompts.TOOL_LINE.findall(text)}
    functions: list[ToolDefinition] = []
    for name, tool in action_space(task.resources).items():
        parameters = {"type": "object"} if tool.parameters is None else tool.parameters
        about = {"name": name, "description": described.get(name, tool.description), "parameters": parameters}
        functions.append({"type": "function", "function": about})
    return functions


def conversation(history: Sequence[str], overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """The transcript as messages: each turn one call (the last action of the turn, as for the parser) and its answer.

    A forced action stands in place of the call that it overrides. A turn without a call is answered by the user.
    """
    messages: list[dict[str, Any]] = prompts.native_messages(history[0], overrides)
    turn: list[str] = []
    for line in history[1:]:
        if line.startswith(prompts.HINT) and not turn:
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
    before, written = _calls(text)
    calls = [call for call in map(_call, written) if call is not None]
    if not calls:
        return text, 0
    lines = [before.strip(), prompts.action_line(*calls[0])]
    return "\n".join(line for line in lines if line), len(calls) - 1


def _calls(text: str) -> tuple[str, list[Any]]:
    """The text before the calls, and the JSON of the calls."""
    before, *marked = text.split(OPENING)
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
    return before, calls


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


NATIVE = Form(
    opening=lambda state: [*prompts.native_messages(state.history[0], state.task.config.prompts)],
    prompt=lambda state: (
        conversation(state.history, state.task.config.prompts),
        {"tools": definitions(state.task)},
    ),
    read=as_action,
    grammar=select.tool_call_grammar,
    stops=("<tool_response>", "Observation:"),  # an answer that the model makes up itself
    end=CLOSING,
    ended=lambda reply, stopped: reply,  # one call at a time
)
