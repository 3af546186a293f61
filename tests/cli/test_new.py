"""``nl2sql new``: what it writes passes its test as it is, and overwrites nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from nl2sql.cli import app
from nl2sql.cli.new import KINDS


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_tests_that_it_writes_pass(tmp_path: Path) -> None:
    for kind in KINDS:
        done = CliRunner().invoke(app, ["new", kind, f"my_{kind}", "--in", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines()[-1] == f"next: cd {tmp_path} && pytest test_my_{kind}.py"
    tested = run_tests(tmp_path)
    assert tested.returncode == 0 and "7 passed" in tested.stdout, tested.stdout


def test_a_test_that_it_writes_fails_where_the_part_is_broken(tmp_path: Path) -> None:
    broken = {"controller": ("range(2)", "range(1)"), "tool": ("not on hold", "on hold")}
    broken |= {"gate": ("SELECT *", "SELECT ?"), "benchmark": ("FROM orders WHERE", "FROM order WHERE")}
    for kind in KINDS:
        CliRunner().invoke(app, ["new", kind, kind, "--in", str(tmp_path)])
        path = tmp_path / f"{kind}.py"
        path.write_text(path.read_text(encoding="utf-8").replace(*broken[kind]), encoding="utf-8")
    failed = re.findall(r"^FAILED (\w+\.py)", run_tests(tmp_path).stdout, re.MULTILINE)
    assert set(failed) == {f"test_{kind}.py" for kind in KINDS}


def test_nothing_is_overwritten_and_a_name_is_one_of_python(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("mine", encoding="utf-8")
    for name, said in (("mine", "already there"), ("my-loop", "no name of a Python module"), ("class", "no name")):
        done = CliRunner().invoke(app, ["new", "tool", name, "--in", str(tmp_path)])
        assert done.exit_code != 0 and said in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
