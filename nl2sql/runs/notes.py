"""Notes and tags on the answers of a run: ``notes.jsonl`` in its folder, or a file that the report has saved.

    {"run": "5f0c...", "db_id": "shop", "id": "shop-003", "tags": ["wrong column"], "note": "asks for the title"}

A line is one note; the last of a question counts, and an empty one takes it back. ``run`` is the key of the manifest:
one file may hold the notes on several runs. Written by ``nl2sql runs view`` and by the report's page, read by both
and by ``nl2sql runs failures``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nl2sql.agents.record import json_text
from nl2sql.errors import UsageError
from nl2sql.runs.folder import iter_jsonl
from nl2sql.runs.run import Run
from nl2sql.safe_files import open_regular

FILE = "notes.jsonl"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 60, 10_000  # of one note; the latter two in characters

Note = dict[str, Any]


def notes_of(run: Run, file: Path | None = None) -> dict[tuple[str, str], Note]:
    """(database, question id) -> ``{"tags": [...], "note": "..."}``, of the run's folder and then of ``file``.

    Raises UsageError for a file that is not there, or has other lines than notes.
    """
    if file is not None and not file.is_file():
        raise UsageError(f"--notes {file} does not exist; save one with the button Save notes of the run's report")
    found: dict[tuple[str, str], Note] = {}
    for path in (run.folder / FILE, *([file] if file else [])):
        for number, line in enumerate(iter_jsonl(path), 1):
            try:
                where, note = (str(line["db_id"]), str(line["id"])), _note(line["tags"], line["note"])
                of = line["run"]
            except (KeyError, TypeError):
                raise UsageError(f"{path} line {number} is no note; expected run, db_id, id, tags and note") from None
            if of == run.manifest["key"]:
                found[where] = note
    return {where: note for where, note in found.items() if note["tags"] or note["note"]}


def add_note(run: Run, db_id: str, id_: str, tags: Iterable[str], note: str) -> None:
    """Write one note into the run's folder. Raises UsageError for a question that the run has not."""
    if not any(item["id"] == id_ and item["db_id"] == db_id for item in run.report["items"]):
        raise UsageError(f"the run has no question {id_!r} of {db_id!r}")
    line: Mapping[str, Any] = {"run": run.manifest["key"], "db_id": db_id, "id": id_, **_note(list(tags), note)}
    with open_regular(run.folder / FILE, "ab") as out:
        out.write((json_text(line) + "\n").encode())


def _note(tags: list[Any], note: str) -> Note:
    words = dict.fromkeys(" ".join(str(tag).split())[:LONGEST_TAG] for tag in tags)
    return {"tags": [word for word in words if word][:MOST_TAGS], "note": str(note).strip()[:LONGEST_NOTE]}
