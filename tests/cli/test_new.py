"""``nl2sql new``: what it writes passes its test as it is, and overwrites nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nl2sql.cli import app
from nl2sql.cli.new import KINDS


def test_the_tests_that_it_writes_pass(tmp_path: Path) -> None:
    for kind in KINDS:
        done = CliRunner().invoke(app, ["new", kind, f"my_{kind}", "--in", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines()[-1] == f"next: cd {tmp_path} && pytest test_my_{kind}.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert tested.returncode == 0 and "7 passed" in tested.stdout, tested.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_test_that_it_writes_fails_where_the_part_is_broken(kind: str, tmp_path: Path) -> None:
    CliRunner().invoke(app, ["new", kind, "mine", "--in", str(tmp_path)])
    text = (tmp_path / "mine.py").read_text(encoding="utf-8")
    broken = {"controller": ("range(2)", "range(1)"), "tool": ("not on hold", "on hold")}
    broken |= {"gate": ("SELECT *", "SELECT ?"), "benchmark": ("FROM orders WHERE", "FROM order WHERE")}
    (tmp_path / "mine.py").write_text(text.replace(*broken[kind]), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 1


def test_nothing_is_overwritten_and_a_name_is_one_of_python(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("mine", encoding="utf-8")
    for name, said in (("mine", "already there"), ("my-loop", "no name of a Python module"), ("class", "no name")):
        done = CliRunner().invoke(app, ["new", "tool", name, "--in", str(tmp_path)])
        assert done.exit_code != 0 and said in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
