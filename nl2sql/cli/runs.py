"""``nl2sql runs`` and ``nl2sql report``: commands over run folders. They load no model."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nl2sql.cli import options as opt
from nl2sql.errors import UsageError, one_line, printable, typed

if TYPE_CHECKING:
    from nl2sql.runs.export import Contents

FORMS = {  # of --to: what --out names, as an example
    "inspect": "dev.eval",
    "lm-eval": "lm-eval-results",
    "mlflow": "mlflow.db",
    "wandb": "wandb-runs",
    "otel": "spans.jsonl",
}
ADDRESSES = {  # forms that can be sent, with the variable that names their server and an example
    "mlflow": ("MLFLOW_TRACKING_URI", "http://localhost:5000"),
    "otel": ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"),
}


def runs_command(
    folder: opt.Runs = Path("runs"),
    as_json: opt.Json = False,
    format_: opt.Format = None,
) -> None:
    """List the runs in a folder: what each was, how far it is, and its execution accuracy.

    \b
    Examples:
      nl2sql runs list
      nl2sql runs list /data/runs --json
    """
    from nl2sql.eval.tables import FORMATS, records_text
    from nl2sql.runs.listing import entries

    _check_folder(folder)
    listed = list(entries(folder))
    if as_json:
        fields = [{**asdict(entry), "began": entry.began.isoformat(), "state": entry.state} for entry in listed]
        print(json.dumps(fields, indent=2, ensure_ascii=False))
        return
    if not listed:
        raise UsageError(f"{folder} holds no run; start one with: nl2sql eval --out {typed(folder / 'first')}")
    rows = [("run", "began (UTC)", "controller", "model", "benchmark", "n", "EX", "state")]
    for entry in listed:
        score = "" if entry.ex is None else f"{100 * entry.ex:.1f}"
        what = (entry.controller, entry.model, entry.benchmark, str(entry.questions), score, entry.state)
        rows.append((one_line(entry.path), f"{entry.began:%Y-%m-%d %H:%M}", *what))
    if format_:
        print(FORMATS[format_](rows))
        return
    print("\n".join(records_text(rows, sys.maxsize)))
    for entry in listed:
        if entry.problem:
            print(f"note: {entry.problem}")
    if pending := [entry for entry in listed if not entry.running and entry.state not in ("done", "unreadable")]:
        print(f"next: {_going_on(Path(pending[0].path))}")


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; start a run with: nl2sql eval --out {typed(folder / 'first')}")


def _going_on(folder: Path) -> str:
    """The command that goes on with an unfinished run: of a seed, its run's; of a cell, its ablation's."""
    from nl2sql.runs.folder import read_json, top_of

    folder = top_of(folder)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, UsageError):  # no ablation, or a torn file
        words = shlex.split(one_line(read_json(folder.parent / "ablation.json")["command"]))
        if words[:2] == ["nl2sql", "ablate"]:  # none where it was started from Python
            return shlex.join(words)
    return f"nl2sql eval --resume {typed(folder)}"


def replay_command(
    run: opt.Run,
    set_: Annotated[
        list[str] | None,
        typer.Option("-c", "--set", help="Scoring setting, e.g. -c eval.replicas=10; may be repeated."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Make it the run's report.json, whatever its settings.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Score what is finished of a run that is not; writes nothing.")
    ] = False,
    trust: opt.Trust = False,
    engine_url: opt.TypedUrl = "",
    executor: opt.Executor = "local",
    address: opt.Address = None,
    verbose: opt.Verbose = False,
    as_json: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Score a run folder again without a model, and write its report.json anew.

    With -c the scoring is another than the run's own: it goes to a file beside report.json, which is named at the end.
    nl2sql report reads report.json; --replace writes that.

    \b
    Examples:
      nl2sql runs replay runs/dev
      nl2sql runs replay runs/dev -c eval.replicas=20
      nl2sql runs replay runs/dev -c eval.rule=bird-set --replace
      nl2sql runs replay runs/tonight --partial
    """
    from nl2sql.agents.record import json_text
    from nl2sql.runs.rescore import replay
    from nl2sql.runs.summary import summary_text

    said, progress = opt.trust_of(trust, engine_url), not quiet and sys.stderr.isatty()
    with opt.open_executor(executor, address) as worker:
        how: dict[str, Any] = {"progress": progress, "executor": worker, "trust": said}
        report = replay(run, overrides=set_ or (), replace=replace, partial=partial, **how).report
    if as_json:
        print(json_text({k: v for k, v in report.items() if k != "items"}, indent=2))
    else:
        print(printable(summary_text(report, verbose=verbose)))
        if name := report.get("file"):
            print(f"\nanother scoring than the run's own: written to {run / name}")


def check_run_command(
    run: opt.Run,
    trust: opt.Trust = False,
    engine_url: opt.TypedUrl = "",
    as_json: opt.Json = False,
) -> None:
    """Check a run folder: every line readable, every question once and with its trace, nothing changed since.

    Exit code 1 when its numbers cannot be trusted. Writes nothing, so it may look at a run that is going on.
    """
    from nl2sql.runs.listing import check_run

    findings = []
    for finding in check_run(run, opt.trust_of(trust, engine_url)):
        findings.append(finding)
        if not as_json:
            print(one_line(f"{finding.status}") + "  " + one_line(f"{finding.what}: {finding.detail}"), flush=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=2))
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def export_failures_command(
    run: opt.Run,
    out: Annotated[Path, typer.Option(help="The file to write: NAME.csv or NAME.jsonl.")],
    metric: Annotated[str | None, typer.Option(help="Wrong under this metric; default EX. E.g. VA.")] = None,
    notes: Annotated[Path | None, typer.Option(help="Notes that a report's page has saved.")] = None,
    trust: opt.Trust = False,
    engine_url: opt.TypedUrl = "",
) -> None:
    """Write the wrong items of a run for annotation: question, gold, SQL, error, cause, label and comment.

    Label and comment are the tags and the note that somebody has put on the answer in nl2sql runs view or in the
    report, else empty.

    In CSV, a cell that a spreadsheet would take for a formula begins with an apostrophe; JSON lines are verbatim.
    """
    from nl2sql.runs.export import failures, write_failures
    from nl2sql.runs.folder import as_a_run_leaves
    from nl2sql.runs.run import Run

    loaded = Run.load(run)
    with as_a_run_leaves(run):
        rows = failures(loaded, metric=metric, notes=notes, trust=opt.trust_of(trust, engine_url))
        first, n = next(iter(loaded.parts())), loaded.report["n"]
    write_failures(rows, out)
    items = f"items of {first}, the first seed," if first else "items"
    print(f"wrote {len(rows)} of {n} {items} to {out}")


def view_command(
    folder: opt.Runs = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 for a free one.")] = 0,
    trust: opt.Trust = False,
    engine_url: opt.TypedUrl = "",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Show the runs of a folder in the browser: a list, reports, comparisons, runs in progress, SQL.

    The pages are served on this machine only, under an address with a random token, until Ctrl-C. "run SQL" executes
    what you type on the databases of a run, read-only, in the sandbox. Notes on answers are written into the run's
    folder. What a run names beside packaged parts is opened with --trust alone.

    \b
    Examples:
      nl2sql runs view
      nl2sql runs view /data/runs --port 8000 --no-open
    """
    import webbrowser

    from nl2sql.runs.viewer import Pages, ViewServer

    _check_folder(folder)
    with ViewServer(Pages(folder, opt.trust_of(trust, engine_url)), port) as server:
        print(f"{folder} is shown at {server.url}", flush=True)
        print("Ctrl-C ends it", file=sys.stderr)
        if open_ and sys.stdout.isatty():
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended", file=sys.stderr)


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, or one of nl2sql ablate; the first is the baseline."),
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    format_: opt.Format = None,
    verbose: opt.Verbose = False,
    golds: Annotated[
        bool, typer.Option("--golds/--no-golds", help="Run the golds, to show their rows beside the predicted.")
    ] = True,
    trust: opt.Trust = False,
    engine_url: opt.TypedUrl = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Write the report of one or several runs: one HTML file that needs no network.

    The table with controls, differences and tests; figures; why answers are wrong; a list of questions to filter;
    and of each episode the SQL, the rows and the whole trace. Further runs are compared with the first.

    With --format no file is written, but one table for a paper is printed: a row for each run and each control, of
    several models and benchmarks; of runs that differ in their seeds alone also mean and standard deviation.

    \b
    Examples:
      nl2sql report runs/dev --out dev.html
      nl2sql report runs/react runs/react_plus --out both.html
      nl2sql report runs/ablation --out ablation.html
      nl2sql report runs/* --format latex > table.tex
    """
    if format_:
        from nl2sql.eval.tables import FORMATS
        from nl2sql.runs.run import Run, paper_rows, spread_rows

        loaded = [Run.load(folder) for folder in runs]
        rows = paper_rows([run.report for run in loaded], verbose=verbose)
        spread = [[*row, *[""] * (len(rows[0]) - len(row))] for row in spread_rows(loaded)]
        print(FORMATS[format_]([*rows, *spread]))
        return
    from nl2sql.runs.report import write_report

    said, progress = opt.trust_of(trust, engine_url), not quiet and sys.stderr.isatty()
    path = write_report(runs, out, golds=golds, progress=progress, force=force, trust=said)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")


def export_command(
    run: opt.Run,
    to: Annotated[
        Literal["inspect", "lm-eval", "mlflow", "wandb", "otel"],
        typer.Option("--to", help="The form: inspect, lm-eval, mlflow, wandb or otel."),
    ],
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
    trust: opt.Trust = False,
    engine_url: opt.TypedUrl = "",
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
    from nl2sql.runs.export import Contents
    from nl2sql.runs.folder import as_a_run_leaves

    address = _address(to, out, endpoint)
    texts = content if content is not None else address is None
    progress = not quiet and sys.stderr.isatty()
    with as_a_run_leaves(run):
        contents = Contents.of(
            run, content=texts, golds=golds, progress=progress, trust=opt.trust_of(trust, engine_url)
        )
        count, place = _export(to, contents, out, address, progress)
    said = "with" if texts else "without"
    print(f"exported {count} episodes of {run} to {place}, {said} their texts")
    if contents.note:
        print(f"note: {one_line(contents.note)}")
    if contents.pending:
        print(f"note: {contents.state}; what was exported says so")


def _address(to: str, out: Path | None, endpoint: str | None) -> str | None:
    """The server that is asked for, None for a file. Raises UsageError where neither or both are."""
    variable, example = ADDRESSES.get(to, ("", ""))
    if endpoint is not None and not variable:
        raise UsageError(f"--to {to} writes a file and sends nothing; say where with --out {FORMS[to]}")
    if endpoint is not None and out is not None:
        raise UsageError("--out writes a file, --endpoint sends to a server; leave out one of them")
    address = None if out is not None else endpoint or os.environ.get(variable) if variable else None
    if address is None and out is None:
        server = f", or --endpoint {example}" if variable else ""
        raise UsageError(f"where to? add --out {FORMS[to]}{server}")
    if address is not None and not address.startswith(("http://", "https://")) and to == "otel":
        raise UsageError(f"--endpoint {address!r}; expected a collector's address, e.g. {example}")
    return address


def _export(to: str, contents: Contents, out: Path | None, address: str | None, progress: bool) -> tuple[int, str]:
    """The number of episodes, and where they are now."""
    path = Path() if out is None else out.expanduser()
    if out is not None and not path.resolve().parent.is_dir():
        raise UsageError(f"--out {out}: the folder {path.parent} does not exist")
    if to == "inspect":
        from nl2sql.runs.export.forms import write_inspect_log

        return write_inspect_log(contents, path), str(out)
    if to == "lm-eval":
        from nl2sql.runs.export.forms import write_lm_eval_results

        return write_lm_eval_results(contents, path), str(out)
    if to == "otel":
        from nl2sql.runs.export.otel import export_spans, to_collector, to_file

        if address is not None:
            return export_spans(contents, to_collector(address), progress=progress), address
        with to_file(path) as send:
            return export_spans(contents, send, progress=progress), str(out)
    from nl2sql.runs.export.forms import to_mlflow, to_wandb

    if to == "mlflow":
        place = address or str(out)
        return to_mlflow(contents, address or f"sqlite:///{path.resolve()}"), place
    count, folder = to_wandb(contents, path)
    return count, f"{folder} (wandb sync would send it)"
