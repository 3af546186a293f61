"""``nl2sql data vizql`` as a user types it: infer, validate, compile, run; a mistake is one line and an exit code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import programs
import pytest

BY_STATUS = {"fields": [{"fieldCaption": "Status"}, {"fieldCaption": "Order ID", "function": "COUNT"}]}


def vizql(*arguments: str, stdin: Any = None) -> subprocess.CompletedProcess[str]:
    typed = stdin if isinstance(stdin, str) else json.dumps(stdin)
    return programs.command("data", "vizql", *arguments, cwd=Path.cwd(), stdin=typed)


@pytest.fixture
def source(shop: Path, tmp_path: Path) -> str:
    path = tmp_path / "shop.yaml"
    assert vizql("infer", "--db", str(shop), "--out", str(path)).returncode == 0
    return str(path)


def test_from_a_database_to_rows(shop: Path, source: str) -> None:
    compiled = vizql("compile", "-", "--source", source, stdin=BY_STATUS)
    assert compiled.returncode == 0 and compiled.stdout.startswith("SELECT ")
    told = json.loads(vizql("run", "-", "--db", str(shop), "--json", stdin=BY_STATUS).stdout)
    assert told["is_valid"] and told["columns"] == ["Status", "COUNT(Order ID)"]
    assert told["sql"] == compiled.stdout.strip() and sum(row[1] for row in told["rows"]) == 4
    shown = vizql("run", "-", "--db", str(shop), "--source", source, "--max-rows", "1", stdin=BY_STATUS)
    assert shown.returncode == 0 and "-- cut at 1 rows" in shown.stdout


def test_a_file_with_corrections_is_not_overwritten(shop: Path, source: str) -> None:
    Path(source).write_text("corrected")
    refused = vizql("infer", "--db", str(shop), "--out", source)
    assert refused.returncode == 2 and "add --force" in refused.stderr and Path(source).read_text() == "corrected"
    assert vizql("infer", "--db", str(shop), "--out", source, "--force").returncode == 0


def test_another_dialect(source: str) -> None:
    assert vizql("compile", "-", "--source", source, "--dialect", "duckdb", stdin=BY_STATUS).returncode == 0
    other = vizql("compile", "-", "--source", source, "--dialect", "oracle", stdin=BY_STATUS)
    assert other.returncode == 1 and "oracle" in other.stdout and "sqlite" in other.stdout


@pytest.mark.parametrize("command", ["validate", "compile", "run"])
def test_a_query_that_is_not_valid(command: str, shop: Path, source: str) -> None:
    where = ["--db", str(shop)] if command == "run" else ["--source", source]
    wrong = vizql(command, "-", *where, stdin={"fields": [{"fieldCaption": "Statsu"}]})
    assert wrong.returncode == 1 and "Did you mean: Status?" in wrong.stdout and "Traceback" not in wrong.stderr


def test_what_is_valid_and_not_executable_is_said_by_name(shop: Path) -> None:
    fixed = {"fields": [{"fieldCaption": "Share", "calculation": "{FIXED [Status]: COUNT([Order ID])}"}]}
    shown = vizql("run", "-", "--db", str(shop), stdin=fixed)
    assert shown.returncode == 1 and "not executable" in shown.stderr and "LOD" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "typed", "said"),
    [
        (["run", "nowhere.json", "--db", "packaged:scale_models"], "", "cannot read the query"),
        (["run", "-", "--db", "packaged:scale_models"], "{", "is not JSON"),
        (["compile", "-", "--source", "nowhere.yaml"], "{}", "cannot read the data source"),
        (["run", "-", "--db", "packaged:nothing"], "{}", "nothing"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], typed: str, said: str) -> None:
    shown = vizql(*arguments, stdin=typed)
    assert shown.returncode in (1, 2) and said in shown.stderr and shown.stderr.count("\n") == 1
