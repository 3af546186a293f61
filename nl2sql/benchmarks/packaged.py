"""The packaged benchmark: our own questions, kept as JSON in ``data/``, over the packaged databases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.databases.packaged import data_root, database_ids, database_path
from nl2sql.errors import BenchmarkError
from nl2sql.interfaces import Question


def load_packaged() -> FolderBenchmark:
    """All packaged questions, in file order, over databases that are built when they are not in the cache yet.

    Raises BenchmarkError when the data folder is missing or malformed.
    """
    path = data_root() / "questions.json"
    try:
        items: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        questions = tuple(_question(item) for item in items)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"packaged questions {path} cannot be read: {type(error).__name__}: {error}") from None
    splits: dict[str, list[str]] = {}
    for question in questions:
        splits.setdefault(question.split, []).append(question.id)
    files = {db_id: database_path(db_id) for db_id in database_ids()}
    return FolderBenchmark("packaged", questions, splits, files, source=str(path.parent))


def _question(item: Mapping[str, Any]) -> Question:
    return Question(
        text=item["question"],
        db_id=item["db_id"],
        id=item["id"],
        evidence=item.get("evidence", ""),
        gold=(item["query"], *item.get("alt_queries", ())),
        difficulty=item["difficulty"],
        split=item["split"],
    )
