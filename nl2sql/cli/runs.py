"""``nl2sql runs list``, ``replay``, ``check`` and ``failures``: commands over run folders. They load no model."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nl2sql.cli.executor import AddressOption, ExecutorOption, open_executor
from nl2sql.cli.options import FormatOption, TrustOption, TypedUrlOption, VerboseOption, trust_of

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of nl2sql eval.")]


def runs_command(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the runs are.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
    format_: FormatOption = None,
) -> None:
    """List the runs in a folder: what each was, how far it is, and its execution accuracy.

    \b
    Examples:
      nl2sql runs list
      nl2sql runs list /data/runs --json
    """
    from nl2sql.errors import UsageError, one_line, typed
    from nl2sql.eval.tables import FORMATS
    from nl2sql.runs.listing import entries

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; start a run with: nl2sql eval --out {typed(folder / 'first')}")
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
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    for entry in listed:
        if entry.problem:
            print(f"note: {entry.problem}")
    if owed := [entry for entry in listed if not entry.running and entry.state not in ("done", "unreadable")]:
        print(f"next: {_going_on(Path(owed[0].path))}")


def _going_on(folder: Path) -> str:
    """The command that goes on with an unfinished run: of a seed, its run's; of a cell, its ablation's."""
    from nl2sql.errors import UsageError, one_line, typed
    from nl2sql.runs.folder import read_json, top_of

    folder = top_of(folder)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, UsageError):  # no ablation, or a torn file
        words = shlex.split(one_line(read_json(folder.parent / "ablation.json")["command"]))
        if words[:2] == ["nl2sql", "ablate"]:  # none where it was started from Python
            return shlex.join(words)
    return f"nl2sql eval --resume {typed(folder)}"


def replay_command(
    run: RunArgument,
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
    trust: TrustOption = False,
    engine_url: TypedUrlOption = "",
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    verbose: VerboseOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
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
    import sys

    from nl2sql.agents.record import json_text
    from nl2sql.errors import printable
    from nl2sql.runs.rescore import replay
    from nl2sql.runs.summary import summary_text

    progress = not quiet and sys.stderr.isatty()
    with open_executor(executor, address) as worker:
        report = replay(
            run,
            overrides=set_ or (),
            replace=replace,
            partial=partial,
            progress=progress,
            executor=worker,
            trust=trust_of(trust, engine_url),
        ).report
    if as_json:
        print(json_text({k: v for k, v in report.items() if k != "items"}, indent=2))
    else:
        print(printable(summary_text(report, verbose=verbose)))
        if name := report.get("file"):
            print(f"\nanother scoring than the run's own: written to {run / name}")


def check_run_command(
    run: RunArgument,
    trust: TrustOption = False,
    engine_url: TypedUrlOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check a run folder: every line readable, every question once and with its trace, nothing changed since.

    Exit code 1 when its numbers cannot be trusted. Writes nothing, so it may look at a run that is going on.
    """
    from dataclasses import asdict

    from nl2sql.errors import one_line
    from nl2sql.runs.listing import check_run

    findings = []
    for finding in check_run(run, trust_of(trust, engine_url)):
        findings.append(finding)
        if not as_json:
            print(one_line(f"{finding.status}") + "  " + one_line(f"{finding.what}: {finding.detail}"), flush=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=2))
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


def export_failures_command(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The file to write: NAME.csv or NAME.jsonl.")],
    metric: Annotated[str | None, typer.Option(help="Wrong under this metric; default EX. E.g. VA.")] = None,
    notes: Annotated[Path | None, typer.Option(help="Notes that a report's page has saved.")] = None,
    trust: TrustOption = False,
    engine_url: TypedUrlOption = "",
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
        rows = failures(loaded, metric=metric, notes=notes, trust=trust_of(trust, engine_url))
        first, n = next(iter(loaded.parts())), loaded.report["n"]
    write_failures(rows, out)
    items = f"items of {first}, the first seed," if first else "items"
    print(f"wrote {len(rows)} of {n} {items} to {out}")
