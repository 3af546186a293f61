"""``nl2sql export-otel``: a run's traces as OpenTelemetry spans. Loads no model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nl2sql.cli.runs import RunArgument
from nl2sql.errors import UsageError


def export_otel_command(
    run: RunArgument,
    endpoint: Annotated[
        str | None,
        typer.Option(envvar="OTEL_EXPORTER_OTLP_ENDPOINT", help="A collector's OTLP/HTTP address."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A new file of OTLP JSON lines instead.")] = None,
    content: Annotated[bool, typer.Option("--content", help="With prompts, answers, arguments and results.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Export a run's episodes as OpenTelemetry traces (GenAI conventions): a trace per question.

    invoke_agent is the episode, chat a model call, execute_tool a tool. Exported again they are the same traces.

    \b
    Examples:
      nl2sql export-otel runs/dev --endpoint http://localhost:4318
      nl2sql export-otel runs/dev --file spans.jsonl --content
    """
    from nl2sql.runs.export.otel import export_spans, to_collector, to_file
    from nl2sql.runs.run import Run

    loaded = Run.load(run)
    options = {"content": content, "progress": not quiet}
    if file is not None:
        with to_file(file) as send:
            sent = export_spans(loaded, send, **options)
    elif endpoint:
        sent = export_spans(loaded, to_collector(endpoint), **options)
    else:
        raise UsageError("where to? add --endpoint http://localhost:4318, or --file spans.jsonl")
    print(f"exported {sent} episodes of {run} to {file or endpoint}")
