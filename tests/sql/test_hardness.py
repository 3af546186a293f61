"""Spider's hardness from the SQL."""

import json
import os
from pathlib import Path

import pytest

from nl2sql.sql.features import hardness

LINES = (Path(__file__).parents[1] / "fixtures" / "hardness.txt").read_text(encoding="utf-8").splitlines()
CASES = [tuple(part.strip() for part in line.split("|", 1)) for line in LINES if line and not line.startswith("#")]


@pytest.mark.parametrize(("level", "sql"), CASES)
def test_the_level_follows_the_counting_rules(level, sql):
    assert (hardness(sql) or "none") == level


def test_agrees_with_the_official_labels():
    root = os.environ.get("NL2SQL_BENCHMARKS")
    file = Path(root or "") / "spider" / "train_spider.json"
    if not root or not file.is_file():
        pytest.skip("NL2SQL_BENCHMARKS is not set")
    labelled = [record for record in json.loads(file.read_text(encoding="utf-8")) if record.get("difficulty")]
    agree = sum(hardness(record["query"]) == record["difficulty"] for record in labelled)
    assert agree / len(labelled) > 0.99
