"""scripts/abstention.py: the questions that cannot be answered, and the table by threshold."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from abstention import asked, of_folder, table, unanswerable
from people import SHOP, make_database

from nl2sql.errors import UsageError

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "abstention.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "databases" / "shop").mkdir(parents=True)
    make_database(tmp_path / "databases" / "shop" / "shop.sqlite", SHOP)
    question = {"question": "How many orders are there?", "db_id": "shop", "query": "SELECT count(*) FROM orders"}
    (tmp_path / "questions.json").write_text(json.dumps([question]))
    return tmp_path


def test_the_questions_without_an_answer_are_read_beside_the_others(folder: Path) -> None:
    refused = [{"question": "Who is happy?", "db_id": "shop", "query": "SELECT 'no'"}]
    (folder / "unanswerable.json").write_text(json.dumps(refused))
    (question,) = unanswerable(of_folder(str(folder))).questions
    assert (question.text, question.db_id, question.gold) == ("Who is happy?", "shop", ("SELECT 'no'",))


@pytest.mark.parametrize("text", [None, "[", '[{"question": "Who?"}]', "[3]"])
def test_a_folder_without_them_is_refused(folder: Path, text: str | None) -> None:
    if text is not None:
        (folder / "unanswerable.json").write_text(text)
    with pytest.raises(UsageError, match=r"unanswerable.json cannot be read .*question, db_id, query"):
        unanswerable(of_folder(str(folder)))


def test_the_script_ends_with_one_line(folder: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--benchmark", str(folder), "--out", str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_the_same_command_goes_on_and_another_is_refused(folder: Path) -> None:
    (folder / "script.json").write_text(json.dumps({"replies": {"*": ["SELECT 1"]}, "on_exhausted": "repeat"}))
    (folder / "unanswerable.json").write_text(json.dumps([{"question": "Who?", "db_id": "shop", "query": "SELECT 1"}]))
    given = {"out": folder / "out", "model": f"scripted:{folder / 'script.json'}", "dtype": None, "limit": 1, "set": []}
    benchmark = of_folder(str(folder))
    first = asked(benchmark, Namespace(**given))
    lines = {kind: (run.folder / "predictions.jsonl").read_bytes() for kind, run in first.items()}
    again = asked(benchmark, Namespace(**given))
    assert {kind: (run.folder / "predictions.jsonl").read_bytes() for kind, run in again.items()} == lines
    with pytest.raises(UsageError, match="another --limit or other settings"):
        asked(benchmark, Namespace(**given | {"limit": None}))


def test_what_is_held_back_at_each_threshold() -> None:
    can, cannot, right = np.array([0.95, 0.65, 0.25, -1.0]), np.array([0.05, 0.45]), np.array([0.95, 0.25])
    rows = {row[0]: row[1:] for row in table(can, cannot, right)[1:]}
    assert rows["0"] == ["0.0", "0.0", "25.0", "100.0"]  # no query at all: held back everywhere
    assert rows["0.1"] == ["50.0", "50.0", "25.0", "100.0"]
    assert rows["0.5"] == ["50.0", "100.0", "50.0", "50.0"]
    assert table(np.array([0.9]), cannot, np.array([]))[1] == ["0", "-", "0.0", "0.0", "-"]
