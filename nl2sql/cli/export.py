"""``nl2sql runs export``: a run in the forms of other tools. Loads no model."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nl2sql.cli.options import TrustOption, TypedUrlOption, trust_of
from nl2sql.cli.runs import RunArgument
from nl2sql.errors import UsageError, one_line

if TYPE_CHECKING:
    from nl2sql.runs.export import Contents


class Form(StrEnum):
    """The forms of ``--to``."""

    INSPECT = "inspect"
    LM_EVAL = "lm-eval"
    MLFLOW = "mlflow"
    WANDB = "wandb"
    OTEL = "otel"


PLACES = {  # what --out names, as an example
    Form.INSPECT: "dev.eval",
    Form.LM_EVAL: "lm-eval-results",
    Form.MLFLOW: "mlflow.db",
    Form.WANDB: "wandb-runs",
    Form.OTEL: "spans.jsonl",
}
ADDRESSES = {  # forms that can be sent, with the variable that names their server and an example
    Form.MLFLOW: ("MLFLOW_TRACKING_URI", "http://localhost:5000"),
    Form.OTEL: ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"),
}


def export_command(
    run: RunArgument,
    to: Annotated[Form, typer.Option("--to", help="The form: inspect, lm-eval, mlflow, wandb or otel.")],
    out: Annotated[Path | None, typer.Option(help="The file or folder to write.")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="A server instead (mlflow, otel); default MLFLOW_TRACKING_URI, OTEL_EXPORTER_OTLP_ENDPOINT."),
    ] = None,
    content: Annotated[
        bool | None,
        typer.Option("--content/--no-content", help="With questions, SQL, prompts and rows. Default: in files only."),
    ] = None,
    golds: Annotated[
        bool, typer.Option("--golds/--no-golds", help="With the benchmark's golds, beside those texts.")
    ] = True,
    trust: TrustOption = False,
    engine_url: TypedUrlOption = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Export a run for another tool: Inspect AI, lm-evaluation-harness, MLflow, Weights & Biases, OpenTelemetry.

    An unfinished run is exported as far as it is, and says so. Failed episodes are exported like others.

    \b
    Examples:
      nl2sql runs export runs/dev --to inspect --out logs/dev.eval    # then: inspect view --log-dir logs
      nl2sql runs export runs/dev --to lm-eval --out lm-eval-results
      nl2sql runs export runs/dev --to mlflow --out mlflow.db         # then: mlflow ui --backend-store-uri sqlite:///mlflow.db
      nl2sql runs export runs/dev --to wandb --out wandb-runs         # offline; only wandb sync sends it
      nl2sql runs export runs/dev --to otel --endpoint http://localhost:4318
    """
    import sys

    from nl2sql.runs.export import Contents
    from nl2sql.runs.folder import as_a_run_leaves

    address = _address(to, out, endpoint)
    texts = content if content is not None else address is None
    progress = not quiet and sys.stderr.isatty()
    with as_a_run_leaves(run):
        contents = Contents.of(run, content=texts, golds=golds, progress=progress, trust=trust_of(trust, engine_url))
        count, place = _export(to, contents, out, address, progress)
    said = "with" if texts else "without"
    print(f"exported {count} episodes of {run} to {place}, {said} their texts")
    if contents.note:
        print(f"note: {one_line(contents.note)}")
    if contents.owed:
        print(f"note: {contents.state}; what was exported says so")


def _address(to: Form, out: Path | None, endpoint: str | None) -> str | None:
    """The server that is asked for, None for a file. Raises UsageError where neither or both are."""
    variable, example = ADDRESSES.get(to, ("", ""))
    if endpoint is not None and not variable:
        raise UsageError(f"--to {to} writes a file and sends nothing; say where with --out {PLACES[to]}")
    if endpoint is not None and out is not None:
        raise UsageError("--out writes a file, --endpoint sends to a server; leave out one of them")
    address = None if out is not None else endpoint or os.environ.get(variable) if variable else None
    if address is None and out is None:
        server = f", or --endpoint {example}" if variable else ""
        raise UsageError(f"where to? add --out {PLACES[to]}{server}")
    if address is not None and not address.startswith(("http://", "https://")) and to is Form.OTEL:
        raise UsageError(f"--endpoint {address!r}; expected a collector's address, e.g. {example}")
    return address


def _export(to: Form, contents: Contents, out: Path | None, address: str | None, progress: bool) -> tuple[int, str]:
    """The number of episodes, and where they are now."""
    path = Path() if out is None else out.expanduser()
    if out is not None and not path.resolve().parent.is_dir():
        raise UsageError(f"--out {out}: the folder {path.parent} does not exist")
    if to is Form.INSPECT:
        from nl2sql.runs.export.forms import write_inspect_log

        return write_inspect_log(contents, path), str(out)
    if to is Form.LM_EVAL:
        from nl2sql.runs.export.forms import write_lm_eval_results

        return write_lm_eval_results(contents, path), str(out)
    if to is Form.OTEL:
        from nl2sql.runs.export.otel import export_spans, to_collector, to_file

        if address is not None:
            return export_spans(contents, to_collector(address), progress=progress), address
        with to_file(path) as send:
            return export_spans(contents, send, progress=progress), str(out)
    from nl2sql.runs.export.forms import to_mlflow, to_wandb

    if to is Form.MLFLOW:
        place = address or str(out)
        return to_mlflow(contents, address or f"sqlite:///{path.resolve()}"), place
    count, folder = to_wandb(contents, path)
    return count, f"{folder} (wandb sync would send it)"
