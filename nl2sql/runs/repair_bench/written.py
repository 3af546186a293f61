"""The cases of ``bank.yaml``: mistakes on ClickHouse written by hand, over a small database of their own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.errors import BenchmarkError
from nl2sql.interfaces import Question
from nl2sql.runs.repair_bench.cases import MAX_ROWS, TIMEOUT_S, Asked, CaseSource, RepairCase, case_of, refusal_of

FILE = Path(__file__).with_name("bank.yaml")
DATABASE = "bank"


def bank(folder: Path) -> FolderBenchmark:
    """The questions over a SQLite file in ``folder``, which is made where it is not there. Golds are ClickHouse's."""
    data = _read()
    path = folder / f"{DATABASE}.sqlite"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(data["schema"])
    questions = tuple(
        Question(entry["question"], DATABASE, f"{DATABASE}-{number}", gold=(entry["gold"].strip(),))
        for number, entry in enumerate(data["questions"])
    )
    return FolderBenchmark(DATABASE, questions, {}, {DATABASE: path}, source=str(FILE))


def written_cases(questions: FolderBenchmark, source: CaseSource) -> list[RepairCase]:
    """Those of the mistakes that fail on this version of the engine. Raises BenchmarkError for a gold that does."""
    wrong = {f"{DATABASE}-{number}": entry["wrong"] for number, entry in enumerate(_read()["questions"])}
    cases = []
    for question in questions.questions:
        opened = source.database(question.db_id)
        result = opened.run(question.gold[0], timeout_s=TIMEOUT_S, max_rows=MAX_ROWS)
        if not result.success:
            raise BenchmarkError(f"{FILE.name}, {question.id}: its gold fails: {result.error}")
        item = Asked(question, opened, question.gold, lambda sql: sql)
        for number, sql in enumerate(wrong[question.id]):
            if error := refusal_of(sql, opened):
                cases.append(case_of(DATABASE, "written", "written", f"written-{number}", sql, error, item))
    return cases


def _read() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded
