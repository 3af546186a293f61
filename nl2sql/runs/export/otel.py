"""A run's traces as OpenTelemetry spans, named after its GenAI conventions: to a collector, or to a file.

Needs the extra ``otel``. An episode keeps no time of day, so every trace begins when its run did.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from tqdm.auto import tqdm

from nl2sql import __version__
from nl2sql.agents.record import json_text
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.machine import install_command, written_whole
from nl2sql.runs.export import Contents, into

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


# -------------------------------------------------------------------------- the spans of an episode
# ``invoke_agent`` is the episode, ``chat`` a model call, ``execute_tool`` a tool that ran;
# overrides and blocked actions are events of the episode. Plain data: ``otel`` sends them.
# Identifiers come from the run's key and the question, so an episode that is exported twice is the
# same trace.
#
# What a trace does not keep: times of day (an episode's clock starts at 0) and the times of tools.
# A tool begins where what came before it ended; it ends with its own model calls, or else where the
# next model call begins.

NOT_RUN = ("blocked: ", "format_error:", "unknown_tool:")  # observations of actions that no tool saw
WRITERS = ("generate_sql", "repair_sql")  # tools that ask the model, once
Attributes: TypeAlias = dict[str, Any]


@dataclass
class Span:
    """``start`` and ``end`` in seconds since the episode began; ``error`` is OpenTelemetry's ``error.type``."""

    name: str
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
    """The spans of one episode, the episode itself first. ``id``: 16 bytes."""

    id: bytes
    spans: Sequence[Span]


def trace_of(episode: Mapping[str, Any], model: Mapping[str, Any], *, content: bool = False) -> Trace:
    """The spans of a line of ``traces.jsonl``. ``content``: with prompts, answers, arguments and results.

    model: as the run's manifest describes it.
    """
    spans = list(_spans(episode, model, content))
    seed = hashlib.sha256(f"{episode['key']} {episode['db_id']} {episode['id']}".encode()).digest()
    for number, span in enumerate(spans):
        for part in ("name", "message", "error", "attributes", "events"):
            setattr(span, part, _encodable(getattr(span, part)))
        span.id = hashlib.sha256(seed + number.to_bytes(4, "big")).digest()[:8]
    return Trace(seed[:16], spans)


def _spans(episode: Mapping[str, Any], model: Mapping[str, Any], content: bool) -> Iterator[Span]:
    """Walks a trace's records and the model calls beside them, which are in the same order."""
    calls = deque(episode.get("calls", ()))
    provider, name = str(model.get("backend") or "nl2sql"), str(model.get("name") or "unknown")
    shared = {"gen_ai.provider.name": provider, "gen_ai.request.model": name}
    clock = 0.0

    def chats(parent: Span, kinds: Sequence[str] = ("act", "sql"), most: int = -1) -> Iterator[Span]:
        """Spans of the next calls, at most ``most``, as long as they are of ``kinds``."""
        nonlocal clock
        while calls and calls[0]["kind"] in kinds and most:
            call, most = calls.popleft(), most - 1
            clock = float(call["started"]) + float(call["usage"].get("seconds", 0.0))
            attributes = _of_call(call, content) | shared
            yield Span(f"chat {name}", attributes, float(call["started"]), clock, parent=parent)

    root = Span(f"invoke_agent {episode['controller']}", _of_episode(episode, content) | shared, 0.0)
    if episode["error"]:
        root.error, _, root.message = str(episode["error"]).partition(": ")
    yield root
    for record in episode["trace"]:
        seen = record.get("observation")
        facts: Attributes = {"nl2sql.step": record["step"]}
        if "llm" in record:
            yield from chats(root, ("sql",))
            yield from chats(root, most=1)
        elif "forced_action" in record:
            facts |= {part: str(record[part]) for part in ("forced_action", "requested_action", "reason")}
            root.events.append(("nl2sql.override", clock, facts))
        elif isinstance(seen, Mapping) and set(seen) == {"error"} and str(seen["error"]).startswith(NOT_RUN):
            facts |= {"action": str(record["action"]), "reason": str(seen["error"])}
            root.events.append(("nl2sql.blocked", clock, facts))
        else:
            span = Span(f"execute_tool {record['action']}", _of_tool(record, content) | facts, clock, parent=root)
            if isinstance(seen, Mapping) and seen.get("error"):
                span.error, span.message = str(seen.get("error_kind") or "tool"), str(seen["error"])
            yield span
            own = list(chats(span, ("sql",), most=1)) if record["action"] in WRITERS else []
            if not own and calls:
                clock = max(clock, float(calls[0]["started"]))
            span.end = clock
            yield from own
    yield from chats(root)
    root.end = max(float(episode["seconds"]), clock)


def _of_episode(episode: Mapping[str, Any], content: bool) -> Attributes:
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": episode["controller"],
        "gen_ai.data_source.id": episode["db_id"],
        **_tokens(episode["usage"]),
        "nl2sql.question.id": episode["id"],
        "nl2sql.finish": episode["finish"],
        "nl2sql.steps": episode["steps"],
        "nl2sql.model_calls": episode["usage"].get("model_calls", 0),
        "nl2sql.run.key": episode["key"],
    }
    if content:
        attributes["gen_ai.input.messages"] = _messages(("user", episode["question"]))
        attributes["gen_ai.output.messages"] = _messages(("assistant", episode["sql"]))
    return attributes


def _of_call(call: Mapping[str, Any], content: bool) -> Attributes:
    attributes = {
        "gen_ai.operation.name": "chat",
        **_tokens(call["usage"]),
        "gen_ai.response.finish_reasons": [call["finish_reason"]],
        "nl2sql.call.kind": call["kind"],
        "nl2sql.call.cached": bool(call["usage"].get("cached_calls")),
    }
    if content and call["messages"]:
        attributes["gen_ai.input.messages"] = _messages(*((m["role"], m["content"]) for m in call["messages"]))
    if content:
        attributes["gen_ai.output.messages"] = _messages(("assistant", call["text"]))
    return attributes


def _of_tool(record: Mapping[str, Any], content: bool) -> Attributes:
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": record["action"]}
    attributes["gen_ai.tool.type"] = "function"
    if content:
        attributes["gen_ai.tool.call.arguments"] = json_text(record["args"])
        attributes["gen_ai.tool.call.result"] = json_text(record["observation"])
    return attributes


def _encodable(value: Any) -> Any:
    """Texts as UTF-8 takes them: a lone surrogate, which a model can write, as its escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return {name: _encodable(item) for name, item in value.items()} if isinstance(value, dict) else value


def _tokens(usage: Mapping[str, Any]) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens"] - usage["prefill_tokens"],
    }


def _messages(*said: tuple[str, str]) -> str:
    return json_text([{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in said])


# --------------------------------------------------------------------------------------- the export

INSTALL = f"the export needs OpenTelemetry: {install_command('otel')}"
BATCH = 64  # episodes in a request
TIMEOUT_S = 10.0  # of a request, with its repetitions
PATH = "/v1/traces"
SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
Send: TypeAlias = "Callable[[Sequence[ReadableSpan]], None]"


def export_spans(contents: Contents, send: Send, *, progress: bool = True) -> int:
    """Pass the spans of every episode of a run (of all its seeds) to ``send``; returns the number of episodes.

    Texts (prompts, answers, arguments, results) only where ``contents.content`` is set. Raises what ``send`` raises.
    """
    sent = 0
    began, model = int(contents.began.timestamp() * 1e9), contents.run.manifest["model"]
    total = sum(len(part.report["items"]) for part in contents.parts.values())
    with tqdm(total=total, desc="spans", unit="episode", disable=not progress) as bar:
        episodes = contents.episodes()
        while taken := list(islice(episodes, BATCH)):
            traces = [trace_of(episode.line, model, content=contents.content) for episode in taken]
            send([span for trace in traces for span in readable_spans(trace, began, contents)])
            bar.update(len(taken))
            sent += len(taken)
    return sent


def readable_spans(trace: Trace, began: int, contents: Contents) -> list[ReadableSpan]:
    """The spans of one episode as the SDK's own. ``began``: Unix time in nanoseconds."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
    except ImportError:
        raise UsageError(INSTALL) from None
    resource = Resource(
        {
            "service.name": "nl2sql",
            "service.version": __version__,
            "nl2sql.benchmark": contents.run.report["benchmark"],
            "nl2sql.run.state": contents.state,
        }
    )
    scope = InstrumentationScope("nl2sql", __version__, SCHEMA)
    number = int.from_bytes(trace.id, "big")

    def context(span: Span) -> SpanContext:
        return SpanContext(number, int.from_bytes(span.id, "big"), is_remote=False, trace_flags=TraceFlags(1))

    def at(seconds: float) -> int:
        return began + round(seconds * 1e9)

    return [
        ReadableSpan(
            span.name,
            context=context(span),
            parent=context(span.parent) if span.parent else None,
            resource=resource,
            attributes=span.attributes | ({"error.type": span.error} if span.error else {}),
            events=[Event(name, facts, at(when)) for name, when, facts in span.events],
            kind=SpanKind.CLIENT if span.name.startswith("chat ") else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.message) if span.error else Status(),
            start_time=at(span.start),
            end_time=at(span.end),
            instrumentation_scope=scope,
        )
        for span in trace.spans
    ]


def to_collector(endpoint: str) -> Send:
    """Sends to ``endpoint``: a collector's address, with or without /v1/traces.

    Headers are taken from ``OTEL_EXPORTER_OTLP_HEADERS``. The returned function raises Nl2SqlError where the collector
    does not take the spans.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--endpoint {endpoint!r}; expected a collector's address, e.g. http://localhost:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError:
        raise UsageError(INSTALL) from None
    url = endpoint if endpoint.endswith(PATH) else endpoint.rstrip("/") + PATH
    exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the error below says it

    def send(spans: Sequence[ReadableSpan]) -> None:
        if exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise Nl2SqlError(
                f"the collector at {url} did not take the spans within {TIMEOUT_S:g} s; is it running? Sent again, "
                "they are the same spans"
            )

    return send


@contextmanager
def to_file(path: Path) -> Iterator[Send]:
    """Writes ``path``, which must not exist: one OTLP JSON object a line, as collectors' file receivers read it.

    The file appears when the block has ended well. Raises UsageError where it is there or cannot be written.
    """
    try:
        from google.protobuf.json_format import MessageToDict
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    except ImportError:
        raise UsageError(INSTALL) from None
    with into(path), written_whole(path, new=True) as file:
        yield lambda spans: _write(file, MessageToDict(encode_spans(spans), use_integers_for_enums=True))


def _write(file: IO[str], data: dict[str, Any]) -> None:
    for span in (s for r in data["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]):
        for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
            span[name] = base64.b64decode(span[name]).hex()  # OTLP's own rule; Protobuf's JSON has base64
    file.write(json.dumps(data, ensure_ascii=False) + "\n")
