"""The runs below a folder: what each was, how far it is, and what it came to.

    for entry in entries(Path("runs")):
        print(entry.path, entry.state)

A folder that is no run of this version is listed with the reason. Not covered: runs nested deeper than the cells of an
ablation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from nl2sql.benchmarks.load import OVER
from nl2sql.errors import Nl2SqlError, one_line
from nl2sql.runs.folder import BROKEN, began, count_lines, is_running, parts_of, read_json, read_manifest, written
from nl2sql.safe_files import NotOpened

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
        kept = dict(self._kept)
        found = {place: _again(kept.get(place)) or _read(place, self.folder) for place in _places(self.folder)}
        self._kept = found
        latest = sorted(found.values(), key=lambda read: read[1][0][0], reverse=True)  # of those of one second
        running = [replace(entry, running=_is_running(files)) for files, _, entry in latest]
        return sorted(running, key=lambda entry: entry.began, reverse=True)


def entries(folder: Path) -> list[RunEntry]:
    """The runs in a folder, as ``Listing`` finds them, each read anew."""
    return Listing(folder).entries()


def _shown(benchmark: str) -> str:
    """A benchmark's name; of a path, its last part."""
    path = Path(benchmark.partition(OVER)[0])
    return path.name if path.is_absolute() else benchmark


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


def _again(kept: tuple[Sequence[Path], Stamp, RunEntry] | None) -> tuple[Sequence[Path], Stamp, RunEntry] | None:
    """What was read of a run, where its files are still the same."""
    return kept if kept is not None and kept[1] == _stamp(kept[0]) else None


def _stamp(files: Sequence[Path]) -> Stamp:
    def of(file: Path) -> tuple[int, int, int]:
        try:
            found = file.lstat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

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
        report = _report(folder / "report.json")
        metric = next((name for name in report.get("metrics", {}) if name.startswith("EX")), "")
        entry = RunEntry(
            path=str(folder),
            began=began(folder),
            controller=one_line(plan["controller"].rpartition(":")[2], SHOWN),  # of FILE.py:loop, the loop
            model=one_line(manifest["model"].get("name", plan["model"]), SHOWN),
            benchmark=one_line("/".join(filter(None, (_shown(plan["benchmark"]), plan.get("split")))), SHOWN),
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


def _report(path: Path) -> dict[str, Any]:
    try:
        report = read_json(path)
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}
