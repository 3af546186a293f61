"""Reading prediction files: our ``predictions.jsonl`` (an object with ``id`` and ``sql`` per line), or Spider's text
(one SQL statement per line, in the order of the benchmark's questions; anything after a tab is ignored)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl2sql.errors import UsageError
from nl2sql.interfaces import Question


def read_predictions(path: str | Path, questions: Sequence[Question]) -> tuple[dict[str, str], list[str]]:
    """(question id -> SQL, remarks). Where an id comes twice the later line counts and a remark says so.

    ``questions`` are all questions of the benchmark (and split), also those that scores leave out: text files go by
    position. Raises UsageError for a file that is missing or is neither format.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"predictions file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"predictions file {path} cannot be read: {error}") from None
    if path.suffix == ".jsonl" or text.lstrip().startswith("{"):
        return _jsonl(path, text)
    return _text(path, text, questions)


def _jsonl(path: Path, text: str) -> tuple[dict[str, str], list[str]]:
    predictions: dict[str, str] = {}
    remarks: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):  # a run that was killed while it wrote: no newline after the torn line
                remarks.append(f"{path}: the last line is torn and was ignored")
                continue
            raise UsageError(f"{path} line {number} is not JSON ({error.msg}); expected an object per line") from None
        if not isinstance(record, dict) or "id" not in record or "sql" not in record:
            raise UsageError(f'{path} line {number}: expected an object with "id" and "sql", found {line[:80]}')
        id_, sql = str(record["id"]), record["sql"]
        if id_ in predictions:
            remarks.append(f"{path} line {number}: {id_!r} again; the later line counts")
        predictions[id_] = sql if isinstance(sql, str) else ""
    return predictions, remarks


def _text(path: Path, text: str, questions: Sequence[Question]) -> tuple[dict[str, str], list[str]]:
    lines = text.removesuffix("\n").split("\n") if text else []
    predictions = {q.id: line.split("\t")[0].strip() for q, line in zip(questions, lines, strict=False)}
    if len(lines) == len(questions):
        return predictions, []
    for extra in range(len(questions), len(lines)):
        predictions[f"line {extra + 1}"] = lines[extra]
    return predictions, [f"{path} has {len(lines)} lines for {len(questions)} questions, matched from the first on"]
