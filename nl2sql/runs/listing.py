"""The runs below a folder: what each was, how far it is, and what it came to.

    for entry in entries(Path("runs")):
        print(entry.path, entry.state)

A folder that is no run of this version is listed with the reason. Not covered: runs nested deeper than the cells of an
ablation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nl2sql.errors import Nl2SqlError
from nl2sql.machine import from_json
from nl2sql.runs.folder import began, is_running, iter_jsonl, parts_of, read_manifest


@dataclass(frozen=True)
class RunEntry:
    """One run. ``ex``: execution accuracy between 0 and 1, ``metric`` its name with its rule; None where nothing was
    scored. ``began``: as its manifest says, else when that was written. ``running``: a process is at it. ``problem``:
    why it cannot be read."""

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
    problem: str = ""

    @property
    def state(self) -> str:
        """``done``, ``12 of 40``, ``running, 12 of 40`` or ``unreadable``."""
        if self.problem:
            return "unreadable"
        done = self.ex is not None and self.answered >= self.questions
        running = "running, " if self.running else ""
        return "done" if done else f"{running}{self.answered} of {self.questions}"


def entries(folder: Path) -> Iterator[RunEntry]:
    """The runs in a folder and in its folders, and the cells of ablations, the latest first."""
    found = [path for depth in ("", "*/", "*/*/") for path in folder.glob(f"{depth}manifest.json")]
    latest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)  # of those of one second
    yield from sorted((_entry(path.parent) for path in latest), key=lambda entry: entry.began, reverse=True)


def _entry(folder: Path) -> RunEntry:
    try:
        manifest = read_manifest(folder)
        plan, report = manifest["plan"], _report(folder / "report.json")
        parts = parts_of(folder, plan.get("seeds") or ()).values()
        metric = next((name for name in report.get("metrics", {}) if name.startswith("EX")), "")
        return RunEntry(
            path=str(folder),
            began=began(folder),
            controller=str(plan["controller"]),
            model=str(manifest["model"].get("name", plan["model"])),
            benchmark="/".join(str(plan[key]) for key in ("benchmark", "split") if plan.get(key)),
            questions=len(manifest["questions"]) * len(parts),
            answered=sum(1 for part in parts for _ in iter_jsonl(part / "predictions.jsonl")),
            metric=metric,
            ex=report["metrics"][metric]["value"] if metric else None,
            running=any(map(is_running, {folder, *parts})),
        )
    except (Nl2SqlError, KeyError, TypeError, ValueError, AttributeError) as error:
        written = datetime.fromtimestamp((folder / "manifest.json").stat().st_mtime, UTC)
        return RunEntry(str(folder), written, problem=" ".join(str(error).split()))


def _report(path: Path) -> dict[str, Any]:
    try:
        report = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}
