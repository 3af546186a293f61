"""What is in a run folder, and whether it belongs together: ``nl2sql runs check``. Reads only; needs no model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nl2sql.errors import Nl2SqlError, UsageError, typed
from nl2sql.runs.folder import RunFolder, as_a_run_leaves, iter_jsonl, line_files, parts_of, read_json, read_manifest
from nl2sql.runs.named import Trust, benchmark_of
from nl2sql.runs.plan import fingerprints, read_plan
from nl2sql.runs.rescore import changed_since, owed_of, questions_of, stores_of
from nl2sql.safe_files import open_regular

Status = Literal["ok", "warn", "fail"]
LISTED = 3  # ids named in a finding


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``fail``: numbers cannot be trusted; ``warn``: something to know or to finish."""

    what: str
    status: Status
    detail: str


def check_run(folder: str | Path, trust: Trust | bool = False) -> Iterator[Finding]:
    """Look through a run folder (each seed of it), yielding findings as they are made. trust: see ``runs.named``.

    Raises UsageError where there is no run, or one of another version. Databases are read for their fingerprints;
    nothing is executed and nothing is written.
    """
    path = Path(folder)
    plan, _ = read_plan(path)
    for name, part in parts_of(path, plan.seeds).items():
        prefix = f"{name}: " if name else ""
        if name and not (part / "manifest.json").exists():
            yield Finding(f"{prefix}run", "warn", f"not started; nl2sql eval --resume {typed(path)}")
            continue
        with as_a_run_leaves(part):
            for finding in _check(part, path, trust):
                yield Finding(prefix + finding.what, finding.status, finding.detail)


def _check(folder: Path, top: Path, trust: Trust | bool) -> Iterator[Finding]:
    manifest = read_manifest(folder)
    wrote = manifest.get("environment", {})
    model, controller = manifest["model"].get("name"), manifest["controller"]["name"]
    by = f"nl2sql {wrote.get('nl2sql')} ({wrote.get('commit') or 'no commit'})"
    yield Finding("manifest", "ok", f"{controller} on {manifest['plan']['benchmark']}, model {model}, by {by}")
    readable = True
    for file in line_files(folder):
        if finding := _lines(file, file.relative_to(folder)):
            readable &= finding.status != "fail"
            yield finding
    if not readable:
        return
    main, controls = stores_of(folder)
    for name, store in {"run": main, **controls}.items():
        yield from _episodes(name, store, set(manifest["questions"]))
    owed = owed_of(folder)
    listed = ", ".join(f"{count} ({name})" for name, count in owed.items())
    done = f"all {len(manifest['questions'])} questions done"
    yield Finding("owed", "warn" if owed else "ok", f"{listed}; nl2sql eval --resume {typed(top)}" if owed else done)
    yield _report(folder, main, top)
    yield _benchmark(folder, trust)


def _lines(file: Path, name: Path) -> Finding | None:
    try:
        for _ in iter_jsonl(file):
            pass
    except Nl2SqlError as error:
        return Finding(str(name), "fail", str(error))
    with open_regular(file) as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - 1))
        torn = opened.read(1) not in (b"", b"\n")
    detail = "its last line is torn (a killed process, a full disk); a resume cuts it and does the question again"
    return Finding(str(name), "warn", detail) if torn else None


def _episodes(name: str, store: RunFolder, wanted: set[str]) -> Iterator[Finding]:
    """Each question once, each prediction with the trace that it came from, none of anything else."""
    counts: Counter[str] = Counter()
    others = 0
    sql: dict[str, Any] = {}
    for row in iter_jsonl(store.folder / "predictions.jsonl"):
        if row.get("key") == store.key:
            counts[row["id"]] += 1
            sql[row["id"]] = row.get("sql")
        else:
            others += 1
    traced = {row["id"]: row["sql"] for row in store.traces(("sql",))}
    problems: dict[str, tuple[Status, list[str]]] = {
        "predicted twice (the last counts)": ("warn", [id_ for id_, count in counts.items() if count > 1]),
        "not among the run's questions": ("fail", [id_ for id_ in counts if id_ not in wanted]),
        "without a trace": ("warn", [id_ for id_ in counts if id_ not in traced]),
        "whose SQL differs from its trace's": ("fail", [i for i in sql if i in traced and sql[i] != traced[i]]),
    }
    for what, (status, ids) in problems.items():
        if ids:
            yield Finding(name, status, f"{len(ids)} {what}: {', '.join(ids[:LISTED])}")
    if others:
        yield Finding(name, "warn", f"{others} lines of another key (other code, config or model) do not count")
    if not others and not any(ids for _, ids in problems.values()):
        yield Finding(name, "ok", f"{len(counts)} predictions, each with its trace")


def _report(folder: Path, main: RunFolder, top: Path) -> Finding:
    """``report.json`` scores the predictions that are there."""
    path = folder / "report.json"
    if not path.exists():
        return Finding("report", "warn", f"none yet; nl2sql eval --resume {typed(top)}")
    try:
        items = {item["id"]: item["sql"] for item in read_json(path)["items"]}
    except (OSError, ValueError, KeyError, TypeError):
        return Finding("report", "fail", f"not a report; write it anew with: nl2sql runs replay {typed(folder)}")
    predictions = main.predictions()
    if gone := items.keys() - {row["id"] for row in predictions}:
        again = f"answer them again: nl2sql eval --resume {typed(top)}"
        return Finding("report", "fail", f"{len(gone)} of the predictions that it scored are gone; {again}")
    stale = [row["id"] for row in predictions if items.get(row["id"]) != row["sql"]]
    again = f"nl2sql runs replay {typed(folder)}"
    detail = f"{len(stale)} predictions are not those it scored ({', '.join(stale[:LISTED])}); {again}"
    return Finding("report", "fail" if stale else "ok", detail if stale else f"scores {len(items)} predictions")


def _benchmark(folder: Path, trust: Trust | bool) -> Finding:
    """Questions and databases are what they were."""
    plan, _ = read_plan(folder)
    if "benchmark" in plan.objects:
        return Finding("benchmark", "warn", f"{plan.benchmark} was given as an object; not looked at")
    try:
        benchmark = benchmark_of(folder, trust)
        questions = questions_of(folder, benchmark)
        changed = changed_since(folder, fingerprints(benchmark, questions))
    except UsageError as error:
        return Finding("benchmark", "warn", f"not looked at: {error}")
    except Nl2SqlError as error:
        return Finding("benchmark", "fail", str(error))
    detail = f"changed since the run was made: {', '.join(changed)}; its numbers are of the former state"
    return Finding("benchmark", "fail" if changed else "ok", detail if changed else "questions and databases as before")
