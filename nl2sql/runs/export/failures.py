"""The wrong items of a run as a table for annotation: ``nl2sql runs failures``. Needs no model."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nl2sql.agents.record import json_text
from nl2sql.errors import UsageError, typed
from nl2sql.eval.scores import item_field, one_metric
from nl2sql.interfaces import Benchmark
from nl2sql.machine import write_whole
from nl2sql.runs.folder import top_of
from nl2sql.runs.named import Trust, benchmark_of
from nl2sql.runs.notes import notes_of
from nl2sql.runs.plan import read_plan
from nl2sql.runs.rescore import questions_of
from nl2sql.runs.run import Run

ANNOTATION = ("label", "comment")  # the tags and the note on an answer; empty without, for the annotator
FIELDS = (
    *("id", "db_id", "question", "evidence", "hardness", "cause", "gold", "sql", "raw_sql", "error"),
    *("va", "em", "ex", "ts", "finish", "steps", *ANNOTATION),
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would execute a cell that begins so


def failures(
    run: Run,
    *,
    metric: str | None = None,
    benchmark: Benchmark | None = None,
    notes: Path | None = None,
    trust: Trust | bool = False,
) -> list[dict[str, Any]]:
    """One dict of ``FIELDS`` per item that is wrong under ``metric`` (default: EX), in the run's order.

    benchmark: for a run that was given one as an object. notes: a file that the report's page has saved, beside the
    run's own notes. trust: see ``runs.named``.

    ``gold`` is the first accepted gold, ``evidence`` and ``gold`` are None where the benchmark is not
    given. Raises UsageError for a metric that the run has not, a benchmark that no longer has the run's questions, or
    a file without notes. A run with seeds gives the items of its first seed.
    """
    part = next(iter(run.parts().values()))
    chosen = one_metric(metric or "EX", list(part.report["metrics"]))
    plan, _ = read_plan(part.folder)
    if benchmark is None and "benchmark" not in plan.objects:
        benchmark = benchmark_of(part.folder, trust)
    asked = {question.id: question for question in questions_of(part.folder, benchmark)} if benchmark else {}
    predictions = {row["id"]: row for row in part.predictions()}
    noted = notes_of(part, notes)
    if gone := [item["id"] for item in part.report["items"] if item["id"] not in predictions]:
        raise UsageError(
            f"{part.folder} holds no prediction of {len(gone)} of the {len(part.report['items'])} questions that its "
            f"report scored (first: {gone[0]}); answer them again: nl2sql eval --resume {typed(top_of(part.folder))}"
        )
    table = []
    for item in part.report["items"]:
        if item[item_field(chosen)]:
            continue
        question = asked.get(item["id"])
        row = {**predictions[item["id"]], **{name: value for name, value in item.items() if name != "error"}}
        row["error"] = item["error"] or predictions[item["id"]]["error"]
        row["evidence"] = question.evidence if question else None
        row["gold"] = question.gold[0] if question and question.gold else None
        note = noted.get((item["db_id"], item["id"]), {"tags": [], "note": ""})
        annotation = dict(zip(ANNOTATION, (", ".join(note["tags"]), note["note"]), strict=True))
        table.append({name: row.get(name) for name in FIELDS} | annotation)
    return table


def write_failures(rows: list[dict[str, Any]], path: Path) -> None:
    """Write ``.csv`` or ``.jsonl``, told by the name. Raises UsageError for another name or a file that is there.

    CSV cells that a spreadsheet would take for a formula begin with an apostrophe; JSON lines are verbatim.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise UsageError(f"--out {path}: expected a name that ends in .csv or .jsonl")
    text = _csv(rows) if path.suffix == ".csv" else "".join(json_text(row) + "\n" for row in rows)
    try:
        write_whole(path, text, new=True)
    except FileExistsError:
        raise UsageError(f"--out {path} exists; name another file, annotations are not overwritten") from None
    except OSError as error:
        raise UsageError(f"--out {path} cannot be written: {error.strerror}") from None


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping | list):
        return json_text(value)
    if isinstance(value, str):
        text = value.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
        return "'" + text if text.startswith(FORMULA) else text
    return value
