"""Traces as OpenTelemetry spans: what they say, and that a collector can read them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.runs.evaluate import start
from nl2sql.runs.export import Contents
from nl2sql.runs.export.otel import Span, export_spans, to_collector, to_file, trace_of
from nl2sql.runs.plan import RunSpec
from nl2sql.runs.run import Run

INSTALL = "pip install 'nl2sql-harness[otel]'"
GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every second question: a wrong query, a blocked finish, a forced repair, the right one. The others: no model."""
    folder = tmp_path_factory.mktemp("otel")
    begin = ["Action: finish[{}]", "Action: generate_sql[{}]", "SELECT 1 AS one FROM nowhere", "Action: finish[{}]"]
    replies: dict[str, Any] = {}
    for number, question in enumerate(load_benchmark("packaged", split="quick").questions):
        fixed = [*begin, GATES[0], "done", question.gold[0], *GATES]
        replies[question.text] = {"react": [{"error": "gone"}] if number % 2 else fixed}
    (folder / "s.json").write_text(json.dumps({"replies": replies}), encoding="utf-8")
    plan = RunSpec(split="quick", limit=12, model=f"scripted:{folder / 's.json'}", control=False)
    return start(
        plan, build_config({"react": {"max_steps": 9}, "eval": {"replicas": 0}}), out=folder / "run", progress=False
    )


def contents(run: Run) -> Contents:
    return Contents.of(run.folder, content=False)


def spans_of(run: Run, finish: str, **options: Any) -> list[Span]:
    line = next(line for line in run.traces() if line["finish"] == finish)
    return list(trace_of(line, run.manifest["model"], **options).spans)


def test_an_episode_is_a_tree_of_agent_tools_and_calls(run: Run) -> None:
    root, *others = spans_of(run, "finish")
    assert root.name == "invoke_agent react" and root.parent is None and root.error is None
    tools = [span.attributes["gen_ai.tool.name"] for span in others if span.name.startswith("execute_tool")]
    assert tools == ["extract_constraints", "generate_sql", "validate_sql", "repair_sql", *(g[8:-4] for g in GATES)]
    chats = [span for span in others if span.name.startswith("chat ")]
    written = [span for span in chats if span.attributes["nl2sql.call.kind"] == "sql"]
    assert [span.parent.name for span in written if span.parent] == [
        "execute_tool generate_sql",
        "execute_tool repair_sql",
    ]
    assert all(span.parent is root for span in chats if span not in written)
    for name in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"):
        assert sum(span.attributes[name] for span in chats) == root.attributes[name] > 0
    for span in others:
        assert 0 <= root.start <= span.start <= span.end <= root.end


def test_overrides_and_blocked_actions_are_events(run: Run) -> None:
    root = spans_of(run, "finish")[0]
    events = [(name, facts.get("forced_action") or facts["reason"].split(":")[0]) for name, _, facts in root.events]
    assert ("nl2sql.override", "repair_sql") in events and ("nl2sql.blocked", "blocked") in events


def test_a_failed_episode_has_the_error_where_it_arose(run: Run) -> None:
    (root,) = spans_of(run, "error")
    assert (root.error, root.attributes["nl2sql.finish"]) == ("model", "error") and "gone" in root.message


def test_texts_are_exported_only_when_asked_for(run: Run) -> None:
    def texts(**options: Any) -> str:
        return json.dumps([span.attributes for span in spans_of(run, "finish", **options)])

    assert "SELECT" not in texts() and "SELECT" in texts(content=True)


def test_a_lone_surrogate_goes_along_as_its_escape(run: Run) -> None:
    line = next(line for line in run.traces() if line["finish"] == "finish")
    odd = json.loads(json.dumps(line).replace("SELECT", "\\ud83d SELECT").replace("blocked: ", "blocked: \\ud83d "))
    odd |= {"error": "database: \ud83d", "question": "\ud83d?"}
    spans = trace_of(odd, run.manifest["model"], content=True).spans
    written = repr([(span.name, span.message, span.attributes, span.events) for span in spans])
    assert "\\ud83d" in written and "\ud83d" not in "".join(_texts(spans))


def _texts(spans: Sequence[Span]) -> Iterator[str]:
    for span in spans:
        facts = [span.attributes, *(facts for _, _, facts in span.events)]
        yield from (span.message, *(str(value) for each in facts for value in each.values()))


def test_the_same_episode_is_the_same_trace_every_time(run: Run) -> None:
    lines = run.traces()
    ids = [trace_of(line, {}).id for line in lines]
    assert ids == [trace_of(line, {}).id for line in lines] and len(set(ids)) == len(lines) == 12
    spans = trace_of(lines[0], {}).spans
    assert len({span.id for span in spans}) == len(spans)


# --------------------------------------------------------------------------------------- with OpenTelemetry


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP/HTTP receiver; what it was sent, decoded."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=INSTALL)
    import gzip

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def test_a_collector_gets_every_span_of_every_episode(run: Run, collector: tuple[str, list[Any]]) -> None:
    address, received = collector
    command = [sys.executable, "-m", "nl2sql.cli", "runs", "export", str(run.folder), "--to", "otel"]
    command += ["--endpoint", address, "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"exported 12 episodes of {run.folder} to {address}, without their texts\n"
    assert not any(b"SELECT" in request.SerializeToString() for _, request in received)
    assert {path for path, _ in received} == {"/v1/traces"}
    spans = [
        s for _, request in received for r in request.resource_spans for scope in r.scope_spans for s in scope.spans
    ]
    wanted = [span for line in run.traces() for span in trace_of(line, run.manifest["model"]).spans]
    assert [(span.name, span.span_id) for span in spans] == [(span.name, span.id) for span in wanted]
    parents = {span.span_id: span.parent_span_id for span in spans}
    assert [parents[span.id] for span in wanted] == [span.parent.id if span.parent else b"" for span in wanted]
    failed = [span for span in spans if span.status.code == 2]
    assert failed and "error.type" in {attribute.key for span in failed for attribute in span.attributes}
    began = datetime.fromisoformat(run.manifest["environment"]["began"])
    assert min(span.start_time_unix_nano for span in spans) == began.timestamp() * 1e9


def test_a_file_holds_the_same_spans_as_otlp_json(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=INSTALL)
    file = tmp_path / "spans.jsonl"
    with to_file(file) as send:
        assert export_spans(contents(run), send, progress=False) == 12
        assert not file.exists()
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    spans = [s for line in lines for r in line["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]
    wanted = [
        (trace.id.hex(), s.id.hex()) for line in run.traces() for trace in [trace_of(line, {})] for s in trace.spans
    ]
    assert [(span["traceId"], span["spanId"]) for span in spans] == wanted
    assert {span["kind"] for span in spans} == {1, 3}  # internal, client: numbers, as OTLP's JSON wants them
    with pytest.raises(UsageError, match="exists; name another file"), to_file(file):
        pass


def test_a_collector_that_is_not_there_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=INSTALL)
    monkeypatch.setattr("nl2sql.runs.export.otel.TIMEOUT_S", 1.0)
    with pytest.raises(Nl2SqlError, match=r"the collector at http://127.0.0.1:1/v1/traces did not take the spans"):
        export_spans(contents(run), to_collector("http://127.0.0.1:1"), progress=False)
    with pytest.raises(UsageError, match="expected a collector's address"):
        to_collector("localhost:4318")


def test_without_opentelemetry_the_error_says_how_to_install_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("opentelemetry.sdk.resources", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.common.trace_encoder", None)
    for what in (
        lambda: to_collector("http://localhost:4318"),
        lambda: to_file(tmp_path / "f").__enter__(),
        lambda: export_spans(contents(run), list, progress=False),
    ):
        with pytest.raises(UsageError, match=r"pip install .*\[otel\]'"):
            what()
    assert not (tmp_path / "f").exists()
