"""The required packages are enough for scoring, runs, reports and served models; the rest says how it is installed.

``scripts/check_wheel.py`` installs the wheel and tries the same in an empty environment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nl2sql.machine import PARTS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MISSING = (*PARTS, "scipy", "sqlglotc", "llguidance", "mcp", "openpyxl")
MAIN = f"import sys; sys.modules.update(dict.fromkeys({MISSING!r})); from nl2sql.cli import main; main()"


def bare(*arguments: str, cwd: Path, code: int = 0) -> str:
    """The command line where no optional package can be imported; what it prints."""
    command = [sys.executable, "-c", MAIN, *arguments]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    (folder / "people.csv").write_text("name,age\nAda,36\n")
    (folder / "s.yaml").write_text(json.dumps({"replies": {"*": ["SELECT COUNT(*) FROM customers"] * 60}}))
    options = ["--split", "quick", "--limit", "6", "--model", "scripted:s.yaml", "--controller", "single_shot"]
    bare("eval", *options, "--quiet", "--out", "run", cwd=folder)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "runs replay run",
        "runs list .",
        "runs check run",
        "runs compare run run",
        "report run --out run.html",
        "runs export run --to inspect --out run.eval",
        "data check --benchmark packaged --split quick",
        "ask Customers? --db packaged:scale_models --controller candidates -c candidates.n=2 --model scripted:s.yaml",
        "data explain VALUES(1) --db packaged:scale_models",
        "data explain VALUES(1) --db people.csv",
        "new plugins",
    ],
)
def test_the_required_packages_are_enough(command: str, place: Path) -> None:
    bare(*command.split(), cwd=place)


def test_predictions_are_scored(place: Path) -> None:
    options = ["--benchmark", "packaged", "--split", "quick", "--predictions", "run/predictions.jsonl"]
    assert "EX[bag]" in bare("score", *options, cwd=place)


@pytest.mark.parametrize(
    ("command", "extra", "code"),
    [
        ("ask Customers? --db packaged:scale_models --model smollm2-135m", "local", 1),
        ("eval --limit 1 --model smollm2-135m", "local", 1),
        ("eval --benchmark hf:some/thing --limit 1 --model scripted:s.yaml", "data", 2),
    ],
)
def test_what_is_missing_is_one_line_with_the_command(command: str, extra: str, code: int, place: Path) -> None:
    said = bare(*command.split(), cwd=place, code=code)
    [error] = [line for line in said.splitlines() if line.startswith("error: ")]
    assert re.search(rf"is not installed: pip install .*\[{extra}\]'", error), error


def test_best_needs_no_second_model(place: Path) -> None:
    said = bare("ask", "Customers?", "--db", "packaged:scale_models", "--model", "scripted:s.yaml", cwd=place)
    assert "[local]'" not in said and "COUNT(*)" in said


def test_each_part_stands_in_its_extra_or_comes_with_it() -> None:
    extras = {
        name: {re.split(r"[\[<>=]", requirement)[0] for requirement in wanted}
        for name, wanted in PROJECT["optional-dependencies"].items()
    }
    required = {re.split(r"[\[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert required & set(PARTS) == {"xllamacpp"}  # where there is a wheel of it; else an extra of its own
    comes_along = {
        "safetensors",
        "tokenizers",
        "huggingface_hub",
        "pyarrow",
        "xllamacpp",
    }  # of transformers, of datasets
    assert {package for package in PARTS if package not in comes_along} <= extras["local"] | extras["data"]
    assert "nl2sql-harness" in extras["local"]  # [data]: whoever installs local has everything
