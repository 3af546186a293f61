"""What the package itself brings, kept as JSON in ``data/``, over the packaged databases.

``packaged`` are questions. ``packaged-dialogues`` are the turns of dialogues. ``vizql`` are those of the questions for
which there is a structured query with the rows of the SQL gold: ``meta["vizql"]`` is that query, or the draft of a
request with options, translated from the gold and proven; its data source is ``vizql.infer.infer`` of the database.

>>> question = load_vizql().questions[0]
>>> question.gold[0]
"SELECT COUNT(*) FROM students WHERE status = 'on leave'"
>>> question.meta["vizql"]["fields"]
[{'fieldCaption': 'Student ID', 'function': 'COUNT'}]

Each loader raises BenchmarkError when the data folder is missing or malformed. Not covered: structured queries for
accepted golds other than the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from nl2sql.benchmarks.core import FolderBenchmark, with_gold_histories
from nl2sql.databases.packaged import data_root, database_ids, database_path
from nl2sql.errors import BenchmarkError
from nl2sql.interfaces import Question
from nl2sql.sql.features import hardness

PACKAGED_DIALOGUES = "packaged-dialogues"
VIZQL = "vizql"


def load_packaged() -> FolderBenchmark:
    """All packaged questions, in file order, over databases that are built when they are not in the cache yet."""
    return _load("packaged", "questions.json", "packaged questions", lambda items: map(_question, items))


def load_packaged_dialogues() -> FolderBenchmark:
    """The turns of all packaged dialogues, in file order; its splits are ``dev``, ``test``, ``extra`` and ``fresh``."""

    def turns(dialogues: Any) -> list[Question]:
        return with_gold_histories([_turn(told, number) for told in dialogues for number in range(len(told["turns"]))])

    return _load(PACKAGED_DIALOGUES, "dialogues.json", "packaged dialogues", turns)


def load_vizql() -> FolderBenchmark:
    """The packaged questions that have a structured query, in file order, with the splits of the packaged ones."""

    def structured(items: Any) -> Iterable[Question]:
        queries = {item["id"]: item["query"] for item in items}
        kept = (question for question in load_packaged().questions if question.id in queries)
        return (replace(question, meta={**question.meta, "vizql": queries[question.id]}) for question in kept)

    return _load(VIZQL, "vizql.json", "structured queries", structured)


def _load(name: str, file: str, what: str, made: Callable[[Any], Iterable[Question]]) -> FolderBenchmark:
    """made: the questions of what the file holds."""
    path = data_root() / file
    try:
        questions = tuple(made(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"{what} {path} cannot be read: {type(error).__name__}: {error}") from None
    splits: dict[str, list[str]] = {}
    for question in questions:
        splits.setdefault(question.split, []).append(question.id)
    files = {db_id: database_path(db_id) for db_id in database_ids()}
    return FolderBenchmark(name, questions, splits, files, source=str(path.parent))


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


def _turn(dialogue: Mapping[str, Any], number: int) -> Question:
    turn = dialogue["turns"][number]
    place = {"interaction_id": dialogue["id"], "turn": number + 1}
    return Question(
        text=turn["question"],
        db_id=dialogue["db_id"],
        id=f"{dialogue['id']}.{number + 1}",
        gold=tuple(turn["gold"]),
        difficulty=hardness(turn["gold"][0]),
        split=dialogue["split"],
        meta={**place, "kind": turn["kind"], "standalone": turn["standalone"]},
    )
