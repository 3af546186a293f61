"""The open assistant turn in a chat that cannot be continued, and how many tokens prompts have.

>>> without_echo(Answer("SELECT 1", "stop"), prefill="SELECT").text
' 1'

Where a server continues no turn, the turn is quoted in the user's message. Where it has no tokenizer to ask, what it
reported for earlier prompts bounds what those that grew from them can have.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nl2sql.errors import ModelError
from nl2sql.interfaces import Message, ToolDefinition
from nl2sql.models.chat import Chat, plain_prompt, without_system
from nl2sql.models.http.wire import Answer

CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_REMEMBERED_COUNTS = 4096  # the latest; each prompt takes two
_QUOTED = (
    "\n\nYour answer has already begun; it stands between the lines below. Go on exactly where it stops, and repeat "
    "nothing of it.\n-----\n{prefill}\n-----"
)


def for_chat(messages: Sequence[Message], systems: bool) -> list[dict[str, Any]]:
    """Messages as a chat request takes them: the arguments of calls as text, no system role where none is known."""
    chat = [
        {**m, "tool_calls": [_on_the_wire(call) for call in m["tool_calls"]]} if m.get("tool_calls") else dict(m)
        for m in messages
    ]
    return chat if systems else without_system(chat)


def _on_the_wire(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def rendered(
    chat: Chat | None, messages: Sequence[Message], prefill: str, drop_bos: str, tools: Sequence[ToolDefinition] = ()
) -> str:
    """The prompt as text: the tokenizer's chat template, or the plain one of a model that has none."""
    if chat is None and tools:
        raise ModelError("this server has no chat, so no native tool calls; leave react.native_tools at false")
    text = chat.prompt_text(messages, prefill, tools) if chat is not None else plain_prompt(messages) + prefill
    return text.removeprefix(drop_bos) if drop_bos else text


def quoting(chat: list[dict[str, Any]], prefill: str) -> list[dict[str, Any]]:
    """The conversation with the open turn quoted at its end, for a server that cannot continue one."""
    text = _QUOTED.format(prefill=prefill)
    if chat and chat[-1]["role"] == "user":
        return [*chat[:-1], {**chat[-1], "content": chat[-1]["content"] + text}]
    return [*chat, {"role": "user", "content": text.lstrip()}]


def without_echo(answer: Answer, prefill: str) -> Answer:
    """An answer without the text it was asked not to repeat."""
    last = prefill.rstrip().rpartition("\n")[2]
    for echo in (prefill, prefill.strip(), last):
        if echo.strip() and answer.text.lstrip().startswith(echo):
            return replace(answer, text=answer.text.lstrip().removeprefix(echo), logprob=None)
    return answer


class CountedPrompts:
    """The counts that a server gave, by prompt; the latest only. Thread-safe."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, messages: Sequence[Message], prefill: str, tools: Sequence[ToolDefinition] = ()) -> int | None:
        """The count of this very prompt."""
        with self._lock:
            return self._counts.get(_digest(messages, prefill, tools))

    def remember(
        self, messages: Sequence[Message], prefill: str, count: int | None, tools: Sequence[ToolDefinition] = ()
    ) -> None:
        """Keep a count that the server gave, if it did."""
        if count:
            with self._lock:
                self._counts[_digest(messages, prefill, tools)] = count
                self._counts[f"{_digest(messages, '', tools)}/"] = len(prefill)
                while len(self._counts) > _REMEMBERED_COUNTS:
                    self._counts.popitem(last=False)

    def bound(self, messages: Sequence[Message], prefill: str, tools: Sequence[ToolDefinition] = ()) -> int:
        """An upper bound: a token has at least one byte; templates add a few dozen tokens a message at most."""
        if tools:
            return self._bound_with_tools(messages, tools)
        with self._lock:
            known = self._counts.get(f"{_digest(messages, '')}/")  # length of the last open turn that was counted
            if known is not None and known <= len(prefill):
                count = self._counts.get(_digest(messages, prefill[:known]))
                if count is not None:
                    return count + len(prefill[known:].encode("utf-8", "replace")) + 4
        text = sum(len(message["content"].encode("utf-8", "replace")) + 64 for message in messages)
        return text + len(prefill.encode("utf-8", "replace")) + (len(_QUOTED) if prefill else 0) + 64

    def _bound_with_tools(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> int:
        """The same where the conversation grows by messages: what an earlier request counted, and the bytes since."""
        with self._lock:
            counted = ((at, self._counts.get(_digest(messages[:at], "", tools))) for at in range(len(messages), 0, -1))
            at, count = next(((at, count) for at, count in counted if count is not None), (0, None))
        start = count if count is not None else 2 * len(json.dumps(list(tools))) + 1024  # templates explain the form
        new = (json.dumps([m["content"], m.get("tool_calls", [])], ensure_ascii=False) for m in messages[at:])
        return start + sum(len(text.encode("utf-8", "replace")) + 64 for text in new) + 64


def _digest(messages: Sequence[Message], prefill: str, tools: Sequence[ToolDefinition] = ()) -> str:
    said = [f"{m['role']}\1{m['content']}" + (f"\1{m['tool_calls']}" if m.get("tool_calls") else "") for m in messages]
    text = "\0".join([*said, "", prefill, *([repr(list(tools))] if tools else [])])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
