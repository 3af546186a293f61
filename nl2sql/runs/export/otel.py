"""A run's traces as OpenTelemetry spans, named after its GenAI conventions: to a collector, or to a file.

Needs the extra ``otel``. An episode keeps no time of day, so every trace begins when
its run did.
"""

from __future__ import annotations

import hashlib
import json
import logging
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
from nl2sql.runs.export.contents import Contents

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
            kind=SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
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
    try:
        with written_whole(path, new=True) as file:
            yield lambda spans: _write(file, encode_spans(spans), MessageToDict)
    except FileExistsError:
        raise UsageError(f"--out {path} exists; name another file") from None
    except OSError as error:
        raise UsageError(f"--out {path} cannot be written: {error.strerror}; name another file") from None


def _write(file: IO[str], request: Any, as_dict: Callable[..., dict[str, Any]]) -> None:
    data = as_dict(request, use_integers_for_enums=True)
    for sent, span in zip(_spans_in(request), _spans_in_json(data), strict=True):
        for name, value in (("traceId", sent.trace_id), ("spanId", sent.span_id)):
            span[name] = value.hex()  # OTLP's own rule; Protobuf's JSON has base64
        if sent.parent_span_id:
            span["parentSpanId"] = sent.parent_span_id.hex()
    file.write(json.dumps(data, ensure_ascii=False) + "\n")


def _spans_in(request: Any) -> Iterator[Any]:
    return (s for resource in request.resource_spans for scope in resource.scope_spans for s in scope.spans)


def _spans_in_json(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (s for resource in data["resourceSpans"] for scope in resource["scopeSpans"] for s in scope["spans"])
