"""Anthropic's messages interface, spoken to as if it were OpenAI's: requests and answers are translated, both ways.

>>> _, url, body, _ = request_of("POST", "https://api.anthropic.com/v1/chat/completions", {
...     "model": "claude", "max_tokens": 8, "stop": [";"],
...     "messages": [{"role": "system", "content": "You write SQL."}, {"role": "user", "content": "Hello"}]}, None)
>>> url, body["system"], body["stop_sequences"]
('https://api.anthropic.com/v1/messages', 'You write SQL.', [';'])

An open assistant turn is a last message of the assistant, which the server continues (older models; newer ones refuse
it). What the interface does not have (``n``, ``seed``, ``logprobs``) is left out, so a probe finds that it is ignored.
Not covered: images, prompt caching, structured output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nl2sql.errors import ModelError
from nl2sql.models.http.transport import LineSink
from nl2sql.sql.parse import load_json

_SAME = ("model", "temperature", "top_p", "stream")
_DROPPED = (
    *("messages", "tools", "max_tokens", "max_completion_tokens", "stop", "n", "seed", "logprobs", "stream_options"),
    *("continue_final_message", "add_generation_prompt", "chat_template_kwargs"),
)
_NOTHING = "(nothing)"  # in place of an empty turn, which is refused but as the last
_FINISH = {"max_tokens": "length", "model_context_window_exceeded": "length", "tool_use": "tool_calls"}
_FINISH |= {"refusal": "content_filter"}


def request_of(
    method: str, url: str, body: Mapping[str, Any] | None, lines: LineSink | None
) -> tuple[str, str, Mapping[str, Any] | None, LineSink | None]:
    """A request for a chat completion as one for a message; any other stays as it is."""
    if body is None or not url.endswith("/chat/completions"):
        return method, url, body, lines
    sent = {name: body[name] for name in body if name not in _DROPPED}  # a user's own fields among them
    sent["max_tokens"] = body.get("max_tokens") or body.get("max_completion_tokens")
    if isinstance(sent.get("temperature"), int | float):
        sent["temperature"] = min(1, sent["temperature"])  # the highest it knows
    stops = [text for text in body.get("stop", ()) if text.strip()]  # white space alone is refused; we cut there
    if stops:
        sent["stop_sequences"] = stops
    system = "\n\n".join(m["content"] for m in body["messages"] if m["role"] == "system")
    if system:
        sent["system"] = system
    sent["messages"] = _turns([m for m in body["messages"] if m["role"] != "system"])
    if body.get("tools"):
        sent["tools"] = [_tool(tool["function"]) for tool in body["tools"]]
    return method, url.removesuffix("/chat/completions") + "/messages", sent, _Lines(lines) if lines else None


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "input_schema": function["parameters"],
    }


def _turns(messages: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    turns = [_turn(message) for message in messages]
    for turn in turns[:-1]:
        if isinstance(turn["content"], str) and not turn["content"].strip():
            turn["content"] = _NOTHING
    if turns and turns[-1]["role"] == "assistant" and isinstance(turns[-1]["content"], str):
        turns[-1]["content"] = turns[-1]["content"].rstrip()  # white space at the end is refused
    return turns


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [result]}
    if not message.get("tool_calls"):
        return {"role": message["role"], "content": message["content"]}
    said = [{"type": "text", "text": message["content"]}] if message["content"].strip() else []
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": [*said, *calls]}


def answer_of(data: Any) -> Any:
    """A message as a chat completion. Raises ModelError for another shape; an error stays as it is."""
    if not isinstance(data, Mapping) or data.get("type") == "error" or "content" not in data:
        return data
    blocks = data["content"]
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise ModelError(f"the server's answer has a {type(blocks).__name__} as content; expected a list of blocks")
    message: dict[str, Any] = {
        "role": "assistant",
        "content": _joined(blocks, "text", "text"),
        "reasoning_content": _joined(blocks, "thinking", "thinking"),
    }
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    return {
        "choices": [{"message": message, "finish_reason": _finish(data.get("stop_reason"))}],
        "usage": _usage(data.get("usage")),
    }


def _joined(blocks: list[Mapping[str, Any]], kind: str, field: str) -> str:
    texts = [block.get(field) for block in blocks if block.get("type") == kind]
    if not all(isinstance(text, str) for text in texts):
        raise ModelError(f"the server's answer has a block of type {kind} without text")
    return "".join(str(text) for text in texts)


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def _finish(reason: Any) -> str | None:
    return None if reason is None else _FINISH.get(str(reason), "stop")


def _usage(usage: Any) -> dict[str, Any]:
    """Tokens as OpenAI counts them: those read from a cache belong to the prompt."""
    if not isinstance(usage, Mapping):
        return {}
    parts = [usage.get(f"{kind}input_tokens") for kind in ("", "cache_read_", "cache_creation_")]
    counts = [part for part in parts if isinstance(part, int) and not isinstance(part, bool)]
    counted = {"prompt_tokens": sum(counts)} if counts else {}
    return counted | {
        "completion_tokens": usage.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": usage.get("cache_read_input_tokens")},
    }


class _Lines:
    """The events of a streamed message, given on as those of a chat completion."""

    def __init__(self, lines: LineSink) -> None:
        self._lines = lines
        self._prompt: dict[str, Any] = {}

    def restart(self) -> None:
        """Forget what came: the request is made again."""
        self._prompt = {}
        self._lines.restart()

    def __call__(self, line: str | None) -> bool:
        if line is None or not line.startswith("data:"):
            return self._lines(line)
        try:
            event = load_json(line[5:])
        except ValueError:
            return self._lines(line)  # says so
        return self._lines(f"data: {json.dumps(self._chunk(event))}") if isinstance(event, Mapping) else False

    def _chunk(self, event: Mapping[str, Any]) -> dict[str, Any]:
        delta = event.get("delta")
        change: Mapping[str, Any] = delta if isinstance(delta, Mapping) else {}
        kind = event.get("type")
        if kind == "error":
            return {"error": event.get("error") or "an error"}
        if kind == "message_start":
            begun = event.get("message")
            self._prompt = _usage(begun.get("usage") if isinstance(begun, Mapping) else None)
        if kind == "content_block_delta":
            piece = {"content": change.get("text"), "reasoning_content": change.get("thinking")}
            return {"choices": [{"delta": {name: text for name, text in piece.items() if text}}]}
        if kind == "message_delta":
            ended = _usage(event.get("usage"))
            counts = self._prompt | {"completion_tokens": ended.get("completion_tokens")}
            return {"choices": [{"delta": {}, "finish_reason": _finish(change.get("stop_reason"))}], "usage": counts}
        return {}
