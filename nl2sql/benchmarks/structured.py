"""The benchmark ``vizql``: packaged questions for which there is a structured query with the rows of the SQL gold.

The queries stand in ``data/vizql.json``, translated from the SQL golds and proven; the questions stay in
``data/questions.json``. ``gold`` is the packaged question's, so that its scores mean the same; the structured query, or
the draft of a request with options, is ``meta["vizql"]``. Its data source is ``vizql.infer.infer`` of the database.

>>> question = load_vizql().questions[0]
>>> question.gold[0]
"SELECT COUNT(*) FROM students WHERE status = 'on leave'"
>>> question.meta["vizql"]["fields"]
[{'fieldCaption': 'Student ID', 'function': 'COUNT'}]

Not covered: accepted golds other than the first, for which no structured query is made.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.benchmarks.packaged import load_packaged
from nl2sql.databases.packaged import data_root
from nl2sql.errors import BenchmarkError

VIZQL = "vizql"


def load_vizql() -> FolderBenchmark:
    """The packaged questions that have a structured query, in file order, with the splits of the packaged ones.

    Raises BenchmarkError when the data folder is missing or malformed.
    """
    packaged = load_packaged()
    path = data_root() / "vizql.json"
    try:
        items: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        queries = {item["id"]: item["query"] for item in items}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"structured queries {path} cannot be read: {type(error).__name__}: {error}") from None
    questions = tuple(
        replace(question, meta={**question.meta, "vizql": queries[question.id]})
        for question in packaged.questions
        if question.id in queries
    )
    splits = {name: [i for i in ids if i in queries] for name, ids in packaged.splits.items()}
    return FolderBenchmark(VIZQL, questions, splits, packaged.files, source=str(path.parent))
