"""Spans of an episode, derived from its trace and named after OpenTelemetry's GenAI conventions (1.41, development).

``invoke_agent`` is the episode, ``chat`` a model call, ``execute_tool`` a tool that ran; overrides and blocked actions
are events of the episode. Plain data: ``otel`` sends them. Identifiers come from the run's key and the question, so an
episode that is exported twice is the same trace.

What a trace does not keep: times of day (an episode's clock starts at 0) and the times of tools. A tool begins
where what came before it ended; it ends with its own model calls, or else where the next model call begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nl2sql.agents.record import json_text

NOT_RUN = ("blocked: ", "format_error:", "unknown_tool:")  # observations of actions that no tool saw
WRITERS = ("generate_sql", "repair_sql")  # tools that ask the model, once
Attributes: TypeAlias = dict[str, Any]


@dataclass
class Span:
    """``start`` and ``end`` in seconds since the episode began; ``error`` is OpenTelemetry's ``error.type``."""

    name: str
    kind: str  # "internal" | "client"
    attributes: Attributes
    start: float
    end: float = 0.0
    error: str | None = None
    message: str = ""  # what the error said
    events: list[tuple[str, float, Attributes]] = field(default_factory=list)
    parent: Span | None = None
    id: bytes = b""  # 8 bytes


@dataclass(frozen=True)
class Trace:
    """The spans of one episode, the episode itself first."""

    id: bytes  # 16 bytes
    spans: Sequence[Span]


def trace_of(episode: Mapping[str, Any], model: Mapping[str, Any], *, content: bool = False) -> Trace:
    """The spans of a line of ``traces.jsonl``. ``content``: with prompts, answers, arguments and results.

    model: as the run's manifest describes it.
    """
    spans = list(_Deriver(episode, model, content).spans())
    seed = hashlib.sha256(f"{episode['key']} {episode['db_id']} {episode['id']}".encode())
    for number, span in enumerate(spans):
        span.name, span.message, span.error = map(_encodable, (span.name, span.message, span.error))
        span.attributes = _encodable(span.attributes)
        span.events = [(name, at, _encodable(facts)) for name, at, facts in span.events]
        span.id = hashlib.sha256(seed.digest() + number.to_bytes(4, "big")).digest()[:8]
    return Trace(seed.digest()[:16], spans)


class _Deriver:
    """Walks a trace's records and the model calls beside them, which are in the same order."""

    def __init__(self, episode: Mapping[str, Any], model: Mapping[str, Any], content: bool) -> None:
        self.episode, self.content = episode, content
        self.calls: list[Mapping[str, Any]] = list(episode.get("calls", ()))
        self.next_call = 0
        self.clock = 0.0
        self.shared = {
            "gen_ai.provider.name": str(model.get("backend") or "nl2sql"),
            "gen_ai.request.model": str(model.get("name") or "unknown"),
        }

    def spans(self) -> Iterator[Span]:
        episode = self.episode
        root = self._root()
        yield root
        for record in episode["trace"]:
            if "llm" in record:
                yield from self._chats(root, ("sql",))
                yield from self._chats(root, most=1)
            elif "forced_action" in record:
                facts = {name: str(record[name]) for name in ("forced_action", "requested_action", "reason")}
                root.events.append(("nl2sql.override", self.clock, {"nl2sql.step": record["step"], **facts}))
            elif _was_blocked(record):
                facts = {"action": str(record["action"]), "reason": str(record["observation"]["error"])}
                root.events.append(("nl2sql.blocked", self.clock, {"nl2sql.step": record["step"], **facts}))
            else:
                yield from self._tool(root, record)
        yield from self._chats(root)
        root.end = max(float(episode["seconds"]), self.clock)

    def _root(self) -> Span:
        episode, usage = self.episode, self.episode["usage"]
        where, _, what = str(episode["error"] or "").partition(": ")
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": episode["controller"],
            "gen_ai.data_source.id": episode["db_id"],
            **self.shared,
            **_tokens(usage),
            "nl2sql.question.id": episode["id"],
            "nl2sql.finish": episode["finish"],
            "nl2sql.steps": episode["steps"],
            "nl2sql.model_calls": usage.get("model_calls", 0),
            "nl2sql.run.key": episode["key"],
        }
        if self.content:
            attributes["gen_ai.input.messages"] = _messages("user", episode["question"])
            attributes["gen_ai.output.messages"] = _messages("assistant", episode["sql"])
        root = Span(f"invoke_agent {episode['controller']}", "internal", attributes, 0.0)
        if episode["error"]:
            root.error, root.message = where, what
        return root

    def _chats(self, parent: Span, kinds: Sequence[str] = ("act", "sql"), most: int | None = None) -> Iterator[Span]:
        """Spans of the next calls, at most ``most``, as long as they are of ``kinds``."""
        while self.next_call < len(self.calls) and most != 0:
            call = self.calls[self.next_call]
            if call["kind"] not in kinds:
                return
            self.next_call += 1
            most = None if most is None else most - 1
            yield self._chat(parent, call)

    def _chat(self, parent: Span, call: Mapping[str, Any]) -> Span:
        attributes = {
            "gen_ai.operation.name": "chat",
            **self.shared,
            **_tokens(call["usage"]),
            "gen_ai.response.finish_reasons": [call["finish_reason"]],
            "nl2sql.call.kind": call["kind"],
            "nl2sql.call.cached": bool(call["usage"].get("cached_calls")),
        }
        if self.content:
            if call["messages"]:
                attributes["gen_ai.input.messages"] = json_text(
                    [_part(m["role"], m["content"]) for m in call["messages"]]
                )
            attributes["gen_ai.output.messages"] = _messages("assistant", call["text"])
        start = float(call["started"])
        self.clock = start + float(call["usage"].get("seconds", 0.0))
        name = f"chat {self.shared['gen_ai.request.model']}"
        return Span(name, "client", attributes, start, self.clock, parent=parent)

    def _tool(self, root: Span, record: Mapping[str, Any]) -> Iterator[Span]:
        seen = record["observation"]
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": record["action"],
            "gen_ai.tool.type": "function",
            "nl2sql.step": record["step"],
        }
        if self.content:
            attributes["gen_ai.tool.call.arguments"] = json_text(record["args"])
            attributes["gen_ai.tool.call.result"] = json_text(seen)
        span = Span(f"execute_tool {record['action']}", "internal", attributes, self.clock, parent=root)
        error = seen.get("error") if isinstance(seen, Mapping) else None
        if error:
            span.error, span.message = str(seen.get("error_kind") or "tool"), str(error)
        yield span
        own = list(self._chats(span, ("sql",), most=1)) if record["action"] in WRITERS else []
        if not own and self.next_call < len(self.calls):
            self.clock = max(self.clock, float(self.calls[self.next_call]["started"]))
        span.end = self.clock
        yield from own


def _encodable(value: Any) -> Any:
    """Texts as UTF-8 takes them: a lone surrogate, which a model can write, as its escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return {name: _encodable(item) for name, item in value.items()} if isinstance(value, dict) else value


def _was_blocked(record: Mapping[str, Any]) -> bool:
    seen = record["observation"]
    return isinstance(seen, Mapping) and set(seen) == {"error"} and str(seen["error"]).startswith(NOT_RUN)


def _tokens(usage: Mapping[str, Any]) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens"] - usage["prefill_tokens"],
    }


def _part(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _messages(role: str, text: str) -> str:
    return json_text([_part(role, text)])
