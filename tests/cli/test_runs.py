"""The commands over run folders, from a grid to a report, as a user types them."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import programs
import pytest

GRID = """
base: {model: "scripted:script.json", limit: 3, config: {eval: {replicas: 0}}}
cells: {short: {react.max_steps: 1}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    script = {"on_exhausted": "repeat", "replies": {"*": ["Action: generate_sql[{}]", "SELECT 1 AS one"]}}
    (folder / "script.json").write_text(json.dumps(script), encoding="utf-8")
    (folder / "grid.yaml").write_text(GRID, encoding="utf-8")
    return folder


def test_from_a_grid_to_a_report(place: Path) -> None:
    listed = programs.command("ablate", "grid.yaml", "--dry-run", cwd=place)
    assert listed.stdout.splitlines()[-1] == "2 cells in runs/grid" and not (place / "runs").exists()
    first = programs.command("ablate", "grid.yaml", "--quiet", cwd=place)
    assert first.returncode == 0, first.stderr
    assert "short" in first.stdout and "nl2sql report runs/grid --out ablation.html" in first.stdout
    again = programs.command("ablate", "grid.yaml", "--json", cwd=place)
    assert [cell["name"] for cell in json.loads(again.stdout)["cells"]] == ["base", "short"]
    assert "question" not in again.stderr  # nothing was left to do: no bar
    report = programs.command("report", "runs/grid", "--out", "r.html", cwd=place)
    assert report.returncode == 0 and "wrote r.html" in report.stdout
    checked = programs.command("runs", "check", "runs/grid/short", "--json", cwd=place)
    assert checked.returncode == 0 and {finding["status"] for finding in json.loads(checked.stdout)} == {"ok"}
    replayed = programs.command("runs", "replay", "runs/grid/short", "--json", cwd=place)
    assert json.loads(replayed.stdout)["n"] == 3
    exported = programs.command("runs", "failures", "runs/grid/short", "--out", "f.csv", cwd=place)
    assert exported.stdout == "wrote 3 of 3 items to f.csv\n"
    with (place / "f.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 3


def test_a_spoiled_run_fails_its_check(place: Path) -> None:
    run = ["eval", "--model", "scripted:script.json", "--limit", "2", "--replicas", "0", "--out", "spoiled", "-q"]
    assert programs.command(*run, cwd=place).returncode == 0
    path = place / "spoiled" / "predictions.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"sql": "', '"sql": "x'), encoding="utf-8")
    done = programs.command("runs", "check", "spoiled", cwd=place)
    assert done.returncode == 1 and "fail  run: 2 whose SQL differs from its trace's" in done.stdout


def test_an_interrupted_grid_names_the_command_that_continues_it(place: Path) -> None:
    slow = {"replies": {"*": [{"text": "x", "delay_s": 30}] * 9}}
    (place / "slow.json").write_text(json.dumps(slow), encoding="utf-8")
    (place / "slow.yaml").write_text(GRID.replace("script.json", "slow.json"), encoding="utf-8")
    command = [sys.executable, "-m", "nl2sql.cli", "ablate", "slow.yaml", "--out", "out", "-q"]
    process = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (place / "out" / "base" / "manifest.json").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted in cell base" in err and "nl2sql ablate slow.yaml --out out" in err and "Traceback" not in err
