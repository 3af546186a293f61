"""Corrections laid over a benchmark: its files stay as published, and scores can be given both ways.

A YAML or JSON file, by question id:

    dev-17: {gold: "SELECT name FROM t ORDER BY size DESC NULLS LAST LIMIT 1"}    # or a list of accepted ones
    dev-18: {question: "How many orders were shipped in 2024?", evidence: "shipped means status = 'S'"}
    dev-19: {unfit: "no column holds the answer"}                                 # left out of scores
    dev-20: {found: "returns no rows", gold: "SELECT ..."}                        # found: why, for the reader
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.benchmarks.core import scorable
from nl2sql.errors import UsageError
from nl2sql.eval import Scores, score_many
from nl2sql.eval.predictions import with_gold
from nl2sql.interfaces import Benchmark, Question
from nl2sql.machine import from_json, from_yaml

if TYPE_CHECKING:
    from nl2sql.benchmarks.check import Fault

FIELDS = ("gold", "question", "evidence", "unfit", "found")


@dataclass(frozen=True)
class Correction:
    """What replaces a question's own; None: nothing does. ``unfit``: why the question is not scored at all."""

    gold: tuple[str, ...] | None = None
    question: str | None = None
    evidence: str | None = None
    unfit: str = ""


def read_corrections(path: str | Path) -> dict[str, Correction]:
    """Question id -> its correction. Raises UsageError for a file that is missing, broken, or says something else."""
    import yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        told = from_json(text) if path.suffix.lower() == ".json" else from_yaml(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"corrections {path} cannot be read: {error}") from None
    if not isinstance(told, dict):
        raise UsageError(f"corrections {path}: expected ID: {{{', '.join(FIELDS)}}}, found {str(told)[:60]!r}")
    return {str(id_): _correction(f"corrections {path}, {id_}", entry) for id_, entry in told.items()}


def _correction(where: str, entry: Any) -> Correction:
    if not isinstance(entry, dict) or (strange := [key for key in entry if key not in FIELDS]):
        found = strange[0] if isinstance(entry, dict) else entry
        raise UsageError(f"{where}: expected some of {', '.join(FIELDS)}, found {str(found)[:60]!r}")
    gold = entry.get("gold")
    golds = [gold] if isinstance(gold, str) else gold
    texts = [entry.get(field) for field in ("question", "evidence", "unfit", "found")]
    if not all(text is None or isinstance(text, str) for text in texts) or not (
        golds is None or (isinstance(golds, list) and golds and all(isinstance(sql, str) for sql in golds))
    ):
        raise UsageError(f"{where}: question, evidence and unfit are texts, gold is a text or a list of texts")
    return Correction(tuple(golds) if golds else None, texts[0], texts[1], texts[2] or "")


def corrected(questions: Iterable[Question], corrections: Mapping[str, Correction]) -> list[Question]:
    """The questions as corrected; one that is unfit is flagged so (``left_out_reason``)."""
    return [_corrected(question, corrections.get(question.id, Correction())) for question in questions]


def with_corrections(benchmark: Benchmark, path: str | Path) -> Benchmark:
    """The same benchmark with its questions as the file corrects them. Raises UsageError."""
    laid_over = copy.copy(benchmark)
    laid_over.questions = corrected(benchmark.questions, read_corrections(path))
    return laid_over


def _corrected(question: Question, told: Correction) -> Question:
    if told.gold is not None and told.gold != question.gold:
        question = with_gold(question, *told.gold)
    if told.unfit:
        question = replace(question, meta={**question.meta, "unfit": told.unfit})
    text = question.text if told.question is None else told.question
    return replace(question, text=text, evidence=question.evidence if told.evidence is None else told.evidence)


def score_corrected(
    benchmark: Benchmark,
    questions: Sequence[Question],
    corrections: Mapping[str, Correction],
    predictions: Mapping[str, Mapping[str, str]],
    published: Mapping[str, Scores],
    **options: Any,
) -> dict[str, Scores]:
    """The scores under the corrected questions, without TS. What they do not touch keeps its verdict of ``published``.

    ``options``: as for ``score_many``. Raises UsageError where no correction is for one of the ``questions``.
    """
    if not any(question.id in corrections for question in questions):
        ids = ", ".join(list(corrections)[:3])
        raise UsageError(f"no correction is for one of the {len(questions)} questions; their ids: {ids}, ...")
    kept = [question for question in corrected(questions, corrections) if scorable(question)]
    if not kept:
        raise UsageError("the corrections leave no question to score")
    touched = {question.id: question for question in kept if question.id in corrections}
    answers = {name: {i: sql for i, sql in given.items() if i in touched} for name, given in predictions.items()}
    again = score_many(benchmark, list(touched.values()), answers, replicas=0, **options)
    both = {name: {item.id: item for item in (*scores.items, *again[name].items)} for name, scores in published.items()}
    return {
        name: replace(scores, items=[both[name][question.id] for question in kept], replicas=0, ts_name=None)
        for name, scores in published.items()
    }


def draft(faults: Sequence[Fault], questions: Sequence[Question]) -> str:
    """The first draft of such a file: what a check found, each with the gold as published. It changes nothing yet."""
    golds = {question.id: list(question.gold) for question in questions}
    entries: dict[str, dict[str, Any]] = {}
    for fault in faults:
        published = golds[fault.id][0] if len(golds[fault.id]) == 1 else golds[fault.id]
        entry = entries.setdefault(fault.id, {"found": fault.reason, **({"gold": published} if published else {})})
        entry["found"] = "; ".join(dict.fromkeys((entry["found"], fault.reason)))
    lines = [
        "# A draft of corrections. Correct each gold (a text, or a list of accepted ones), question or evidence; write",
        "# `unfit: why` where none is right; delete what is right as it stands. Then: nl2sql score --corrections FILE",
    ]
    for id_, entry in entries.items():
        lines += [f"{json.dumps(id_, ensure_ascii=False)}:"]
        lines += [f"  {field}: {json.dumps(value, ensure_ascii=False)}" for field, value in entry.items()]
    return "\n".join(lines) + "\n"
