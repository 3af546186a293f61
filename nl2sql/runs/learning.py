"""What is learned from a finished run: the repairs that its traces hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nl2sql.agents.repairing import repairs_of_trace
from nl2sql.databases.engines import dialect_of
from nl2sql.errors import UsageError
from nl2sql.repair.corpus import LEARNING_SPLITS, learn, source_of
from nl2sql.runs.run import Run

if TYPE_CHECKING:
    from nl2sql.repair.corpus import Corpus


def import_run(corpus: Corpus, folder: Path, *, any_split: bool = False) -> tuple[int, int]:
    """The repairs of a run folder's traces, stored: (how many there are, how many were new).

    Raises UsageError for a folder that is no run, and for a run over another than a training or development split:
    test questions must not enter a corpus that is used on them (``any_split`` for one that never will be).
    """
    run = Run.load(folder)
    plan = run.manifest.get("plan", {})
    split = str(plan.get("split") or run.manifest.get("split") or "")
    if split not in LEARNING_SPLITS and not any_split:
        raise UsageError(
            f"{folder} was run on split {split or 'all'!r}; only {', '.join(sorted(LEARNING_SPLITS))} may enter a "
            "corpus (--any-split for a corpus that is never used on these questions)"
        )
    dialect = dialect_of(str(plan.get("engine_url") or ""))
    repaired = stored = 0
    for trace in run.traces():
        repairs = repairs_of_trace(trace["trace"], trace["question"])
        repaired += len(repairs)
        stored += learn(corpus, repairs, dialect=dialect, source=source_of(trace["db_id"], trace["id"]))
    return repaired, stored
