"""The runs below a folder, how far each is and what it came to, and whether a run folder belongs together.

    for entry in entries(Path("runs")):
        print(entry.path, entry.state)

A folder that is no run of this version is listed with the reason. Not covered: runs nested deeper than the cells of an
ablation.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from nl2sql.benchmarks.load import OVER
from nl2sql.errors import Nl2SqlError, UsageError, one_line, typed
from nl2sql.runs.folder import (
    BROKEN,
    RunFolder,
    as_a_run_leaves,
    began,
    count_lines,
    is_running,
    iter_jsonl,
    line_files,
    parts_of,
    read_json,
    read_manifest,
    written,
)
from nl2sql.runs.plan import Trust, benchmark_of, fingerprints, read_plan
from nl2sql.runs.rescore import changed_since, pending_of, questions_of, stores_of
from nl2sql.safe_files import NotOpened, open_regular

SHOWN, LONGEST_PROBLEM = 200, 500  # characters of a name, of a reason
Stamp: TypeAlias = tuple[tuple[int, int, int], ...]  # of files: when each was changed, its size and its number


@dataclass(frozen=True)
class RunEntry:
    """One run. ``ex``: execution accuracy between 0 and 1, ``metric`` its name with its rule; None where nothing was
    scored. ``began``: as its manifest says, else when that was written. ``running``: a process is at it. ``asks``: its
    benchmark was given by name. ``problem``: why it cannot be read."""

    path: str
    began: datetime
    controller: str = ""
    model: str = ""
    benchmark: str = ""
    questions: int = 0
    answered: int = 0
    metric: str = ""
    ex: float | None = None
    running: bool = False
    asks: bool = False
    problem: str = ""

    @property
    def state(self) -> str:
        """``done``, ``12 of 40``, ``running, 12 of 40`` or ``unreadable``."""
        if self.problem:
            return "unreadable"
        done = self.ex is not None and self.answered >= self.questions
        running = "running, " if self.running else ""
        return "done" if done else f"{running}{self.answered} of {self.questions}"


class Listing:
    """The runs in a folder, of which only those whose files have changed are read again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[Path, tuple[Sequence[Path], Stamp, RunEntry]] = {}

    def entries(self) -> list[RunEntry]:
        """The runs in the folder and in its folders, and the cells of ablations, the latest first."""
        kept, found = dict(self._kept), {}
        for place in _places(self.folder):
            before = kept.get(place)
            same = before is not None and before[1] == _stamp(before[0])
            found[place] = before if before and same else _read(place, self.folder)
        self._kept = found
        latest = sorted(found.values(), key=lambda read: read[1][0][0], reverse=True)  # of those of one second
        running = [replace(entry, running=_is_running(files)) for files, _, entry in latest]
        return sorted(running, key=lambda entry: entry.began, reverse=True)


def entries(folder: Path) -> list[RunEntry]:
    """The runs in a folder, as ``Listing`` finds them, each read anew."""
    return Listing(folder).entries()


def _places(folder: Path, below: int = 2) -> Iterator[Path]:
    """The folders with a manifest, of whatever kind; a link to one is a place, and nothing below it is."""
    if os.path.lexists(folder / "manifest.json"):
        yield folder
    if not below:
        return
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                yield from _places(Path(entry.path), 0 if entry.is_symlink() else below - 1)


def _stamp(files: Sequence[Path]) -> Stamp:
    def of(file: Path) -> tuple[int, int, int]:
        with suppress(OSError):
            found = file.lstat()
            return found.st_mtime_ns, found.st_size, found.st_ino
        return 0, 0, 0

    return tuple(map(of, files))


def _is_running(files: Sequence[Path]) -> bool:
    with suppress(NotOpened, OSError):
        return any(map(is_running, {file.parent for file in files}))
    return False


def _read(folder: Path, top: Path) -> tuple[Sequence[Path], Stamp, RunEntry]:
    """The files that decide an entry, their state, and the entry."""
    files = [folder / "manifest.json", folder / "report.json"]
    try:
        if folder.is_symlink() and folder != top:
            raise NotOpened(f"{folder} is a link; name the folder that it leads to")
        manifest = read_manifest(folder)
        plan = manifest["plan"]
        parts = parts_of(folder, plan.get("seeds") or ()).values()
        files += [part / "predictions.jsonl" for part in parts]
        stamp = _stamp(files)  # before they are read
        report: Any = {}
        with suppress(OSError, ValueError):
            report = read_json(folder / "report.json")
        report = report if isinstance(report, dict) else {}
        metric = next((name for name in report.get("metrics", {}) if name.startswith("EX")), "")
        at = Path(plan["benchmark"].partition(OVER)[0])
        benchmark = at.name if at.is_absolute() else plan["benchmark"]
        entry = RunEntry(
            path=str(folder),
            began=began(folder),
            controller=one_line(plan["controller"].rpartition(":")[2], SHOWN),  # of FILE.py:loop, the loop
            model=one_line(manifest["model"].get("name", plan["model"]), SHOWN),
            benchmark=one_line("/".join(filter(None, (benchmark, plan.get("split")))), SHOWN),
            questions=len(manifest["questions"]) * len(parts),
            answered=sum(count_lines(part / "predictions.jsonl") for part in parts),
            metric=one_line(metric, SHOWN),
            ex=float(report["metrics"][metric]["value"]) if metric else None,
            asks="benchmark" not in plan.get("objects", ()),
        )
    except (Nl2SqlError, OSError, *BROKEN) as error:
        stamp = _stamp(files)
        entry = RunEntry(str(folder), written(folder), problem=one_line(error, LONGEST_PROBLEM))
    return files, stamp, entry


# ----------------------------------------------------------------------------- ``nl2sql runs check``

Status = Literal["ok", "warn", "fail"]
LISTED = 3  # ids named in a finding


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``fail``: numbers cannot be trusted; ``warn``: something to know or to finish."""

    what: str
    status: Status
    detail: str


def check_run(folder: str | Path, trust: Trust | bool = False) -> Iterator[Finding]:
    """Look through a run folder (each seed of it), yielding findings as they are made. trust: see ``runs.plan``.

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
        for finding in _lines(file, str(file.relative_to(folder))):
            readable &= finding.status != "fail"
            yield finding
    if not readable:
        return
    main, controls = stores_of(folder)
    for name, store in {"run": main, **controls}.items():
        yield from _episodes(name, store, set(manifest["questions"]))
    pending = pending_of(folder)
    listed = ", ".join(f"{count} ({name})" for name, count in pending.items())
    done = f"all {len(manifest['questions'])} questions done"
    yield Finding(
        "owed", "warn" if pending else "ok", f"{listed}; nl2sql eval --resume {typed(top)}" if pending else done
    )
    yield _report(folder, main, top)
    yield _benchmark(folder, trust)


def _lines(file: Path, name: str) -> Iterator[Finding]:
    try:
        for _ in iter_jsonl(file):
            pass
    except Nl2SqlError as error:
        yield Finding(name, "fail", str(error))
        return
    with open_regular(file) as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - 1))
        if opened.read(1) not in (b"", b"\n"):
            why = "its last line is torn (a killed process, a full disk); a resume cuts it and does the question again"
            yield Finding(name, "warn", why)


def _episodes(name: str, store: RunFolder, wanted: set[str]) -> Iterator[Finding]:
    """Each question once, each prediction with the trace that it came from, none of anything else."""
    counts: Counter[str] = Counter()
    sql: dict[str, Any] = {}
    others = 0
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
