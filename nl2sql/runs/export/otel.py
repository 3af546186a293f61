"""Export of a run's traces as OpenTelemetry spans: to a collector over OTLP/HTTP, or to a file of OTLP JSON lines.

Needs the extra ``otel``. ``spans`` says what the spans are. An episode keeps no time of day, so every trace begins when
its run did.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from tqdm.auto import tqdm

from nl2sql import __version__
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.machine import install_command, written_whole
from nl2sql.runs.export.contents import Contents
from nl2sql.runs.export.spans import Span, Trace, trace_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

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
