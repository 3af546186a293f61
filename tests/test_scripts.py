"""The batch scripts: ordinary runs, one table, nothing done twice."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from unittest import mock

import programs
import pytest
from bench_eval import _forget_parsed

from nl2sql.runs.run import Run
from nl2sql.sql.features import hardness

CONTROLLERS = ("single_shot", "react", "react_plus")
GRID = """
base: {benchmark: packaged, split: quick, limit: 4, model: "scripted:s.json", config: {eval: {replicas: 0}}}
cells: {short: {react.max_steps: 1}}
"""


@pytest.fixture
def place(tmp_path: Path, shop: Path) -> Path:
    """A script for any question, a grid, and a benchmark that is called spider."""
    replies = {"*": {"*": ["Action: generate_sql[{}]", "SELECT count(*) FROM orders"]}}
    (tmp_path / "s.json").write_text(json.dumps({"on_exhausted": "repeat", "replies": replies}), encoding="utf-8")
    (tmp_path / "grid.yaml").write_text(GRID, encoding="utf-8")
    databases = tmp_path / "benchmarks" / "spider" / "databases"
    databases.mkdir(parents=True)
    shutil.copy(shop, databases / "shop.sqlite")
    golds = ["SELECT count(*) FROM orders", "SELECT name FROM customers"]
    questions = [{"question": sql, "query": sql, "db_id": "shop", "split": "holdout"} for sql in golds]
    (databases.parent / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    return tmp_path


def python(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return aloud(script, *arguments, "--quiet", cwd=cwd)


def aloud(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """For a script without ``--quiet``."""
    with contextlib.chdir(cwd), mock.patch.dict(os.environ, {"NL2SQL_BENCHMARKS": str(cwd / "benchmarks")}):
        return programs.script(script, *arguments)


def test_every_benchmark_is_run_with_every_controller_in_one_table(place: Path) -> None:
    given = ["--model", "scripted:s.json", "--limit", "3", "--replicas", "0", "--constrain", "none", "--out", "out"]
    first = python("run_benchmarks.py", *given, cwd=place)
    assert first.returncode == 0, first.stderr
    table = [line.strip("| ").split(" | ") for line in first.stdout.splitlines() if line.startswith("|")]
    assert table[0][:5] == ["benchmark", "n", "controller", "EX[bag]", "points"]
    cells = [tuple(row[:3]) for row in table[2:]]
    assert cells == [(b, n, c) for b, n in (("packaged", "3"), ("spider", "2")) for c in CONTROLLERS]
    assert Run.load(place / "out" / "spider" / "base").report["controller"] == "single_shot"
    times = {path: path.stat().st_mtime_ns for path in (place / "out").rglob("predictions.jsonl")}
    again = python("run_benchmarks.py", *given, "--json", cwd=place)
    found = json.loads(again.stdout)
    assert set(found["benchmarks"]) == {"packaged", "spider"} and found["failed"] == {}
    assert found["benchmarks"]["spider"]["cells"][1]["test"]["n"] == 2
    assert len(times) == 6 and times == {path: path.stat().st_mtime_ns for path in times}


def test_a_benchmark_that_cannot_be_run_does_not_stop_the_others(place: Path) -> None:
    given = ["--model", "scripted:s.json", "--limit", "2", "--replicas", "0", "--constrain", "none", "--out", "out"]
    done = python("run_benchmarks.py", *given, "--benchmarks", "nowhere,spider", cwd=place)
    assert done.returncode == 1 and done.stderr.startswith("error: nowhere: ") and "| spider | 2 |" in done.stdout


def test_the_grid_is_run_on_packaged_and_on_spider_s_holdout(place: Path) -> None:
    done = python("run_ablations.py", "--grid", "grid.yaml", "--out", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    titles = [line for line in done.stdout.splitlines() if line.startswith("**")]
    assert titles == ["**packaged, quick, 4 questions**", "**spider, holdout, 2 questions**"]
    assert done.stdout.count("| short |") == 2 and done.stdout.count("| cell | EX[bag] |") == 2
    assert python("run_ablations.py", "--grid", "grid.yaml", "--out", "out", cwd=place).stdout == done.stdout
    wrong = python("run_ablations.py", "--grid", "nowhere.yaml", cwd=place)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_a_grid_on_spider_or_on_a_folder_stays_there(place: Path) -> None:
    grid = GRID.replace("benchmark: packaged, split: quick", "benchmark: spider, split: dev")
    (place / "spider.yaml").write_text(grid, encoding="utf-8")
    questions = place / "benchmarks" / "spider" / "questions.json"
    items = json.loads(questions.read_text(encoding="utf-8"))
    questions.write_text(json.dumps([*items, items[0] | {"split": "dev"}]), encoding="utf-8")
    done = python("run_ablations.py", "--grid", "spider.yaml", "--out", "out", cwd=place)
    titles = [line for line in done.stdout.splitlines() if line.startswith("**")]
    assert titles == ["**spider, dev, 1 questions**"], done.stderr
    own = shutil.copytree(questions.parent, place / "own")
    (place / "own.yaml").write_text(GRID.replace("packaged, split: quick", f"{own}, split: dev"), encoding="utf-8")
    before = sorted(own.iterdir())
    done = python("run_ablations.py", "--grid", "own.yaml", "--out", "other", cwd=place)
    assert done.returncode == 0 and (place / "other" / "own" / "short").is_dir(), done.stderr
    assert sorted(own.iterdir()) == before


def test_controllers_of_one_name_are_refused(place: Path) -> None:
    done = python("run_benchmarks.py", "--controllers", "single_shot,one.py:loop,two.py:loop", cwd=place)
    assert done.returncode == 2 and "--controllers: loop is named twice" in done.stderr


def test_a_repeat_of_the_scoring_benchmark_parses_anew() -> None:
    kept, nameless = lru_cache(hardness.__wrapped__), lru_cache(lambda: 1)
    nameless.__module__ = None
    kept("SELECT 1")
    _forget_parsed()
    assert kept.cache_info().currsize == 0


TWICE = "\n".join(f"    value = {n}" for n in range(6))
LOOP = f'''"""The loop.

Two lines.
"""

from house.part import size


def step() -> int:
{TWICE}
    return size
'''
HOUSE = {
    "house/__init__.py": "",
    "house/loop.py": LOOP,
    "house/part.py": f"# a comment\nsize = 1  # no comment of its own\n\n\ndef other() -> None:\n{TWICE}\n",
    "house/alone.py": f"text = '{'x' * 100}'\n",
}


def test_the_figures_of_any_house_are_counted(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    for name, text in HOUSE.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = aloud("house_figures.py", "house", "--step", "loop.py", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {
        "lines": 28,
        "files": 4,
        "door lines": 4,
        "files under 100 lines with one importer": 1,
        "lines of one step of the loop": 16,
        "files of one step of the loop": 1,
        "lines over 100 characters": 1,
        "comments, % of lines": 3.6,
        "lines that stand twice": 12,
        "function lines, median": 7.5,
        "functions of 20 lines and less, %": 100.0,
    }, done.stderr
    wrong = aloud("house_figures.py", "house", "--step", "nowhere.py", cwd=tmp_path)
    assert wrong.returncode == 2 and "nowhere.py: not there" in wrong.stderr
