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
from collections.abc import Callable
from pathlib import Path

import pytest

from nl2sql.machine import PARTS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MISSING = (*PARTS, "scipy", "sqlglotc", "llguidance", "mcp", "openpyxl")
MAIN = f"""
import contextlib, io, json, sys, traceback
sys.modules.update(dict.fromkeys({MISSING!r}))
from nl2sql.cli import main
told = dict()
for words in json.loads(sys.argv[1]):
    code, sys.argv = 0, ["nl2sql", *words]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
    told[" ".join(words)] = code, said.getvalue()
json.dump(told, open("told.json", "w"))
"""
MADE = "eval --split quick --limit 6 --model scripted:s.yaml --controller single_shot --quiet --out run"
ENOUGH = [
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
]
SCORED = "score --benchmark packaged --split quick --predictions run/predictions.jsonl"
BEST = "ask Customers? --db packaged:scale_models --model scripted:s.yaml"
LACKING = [
    ("ask Customers? --db packaged:scale_models --model smollm2-135m", "local", 1),
    ("eval --limit 1 --model smollm2-135m", "local", 1),
    ("eval --benchmark hf:some/thing --limit 1 --model scripted:s.yaml", "data", 2),
]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """What a command prints where no optional package can be imported: all of them in one process."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "people.csv").write_text("name,age\nAda,36\n")
    (folder / "s.yaml").write_text(json.dumps({"replies": {"*": ["SELECT COUNT(*) FROM customers"] * 60}}))
    commands = [line.split() for line in (MADE, *ENOUGH, SCORED, BEST, *(line for line, _, _ in LACKING))]
    program = [sys.executable, "-c", MAIN, json.dumps(commands)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "told.json").read_text())

    def printed(command: str, code: int = 0) -> str:
        ended, said = told[command]
        assert ended == code and "Traceback" not in said, said
        return str(said)

    printed(MADE)
    return printed


@pytest.mark.parametrize("command", ENOUGH)
def test_the_required_packages_are_enough(command: str, bare: Callable[..., str]) -> None:
    bare(command)


def test_predictions_are_scored(bare: Callable[..., str]) -> None:
    assert "EX[bag]" in bare(SCORED)


@pytest.mark.parametrize(("command", "extra", "code"), LACKING)
def test_what_is_missing_is_one_line_with_the_command(
    command: str, extra: str, code: int, bare: Callable[..., str]
) -> None:
    [error] = [line for line in bare(command, code).splitlines() if line.startswith("error: ")]
    assert re.search(rf"is not installed: pip install .*\[{extra}\]'", error), error


def test_best_needs_no_second_model(bare: Callable[..., str]) -> None:
    said = bare(BEST)
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
