"""scripts/sweep_mutants.py: the parts that need no mutation library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import sweep_mutants

SCRIPT = Path(sweep_mutants.__file__)


def test_a_change_is_shown_line_by_line() -> None:
    assert sweep_mutants.changed("a\nif b == 1:\nc\n", "a\nif b != 1:\nc\n") == "    - if b == 1:\n    + if b != 1:"


def test_failures_are_told_by_function() -> None:
    reach = sweep_mutants.Reach(coverage=None)
    for name, failed in (("tests/a.py::test_b[1-x]", False), ("tests/a.py::test_b[2]", True)):
        reach.pytest_runtest_logreport(SimpleNamespace(nodeid=name, failed=failed))
    assert reach.failed == {"tests/a.py::test_b"}


def test_a_test_is_as_broad_as_the_lines_that_it_reaches() -> None:
    assert sweep_mutants.breadth({"a.py": {"1": ["x", "y"], "2": ["x"]}, "b.py": {"7": ["x"]}}) == {"x": 3, "y": 1}


def test_a_mutant_meets_the_tests_of_its_line_or_else_of_its_file_and_folder() -> None:
    lines = {"r/a.py": {"1": ["", "x", "y"], "2": ["x"]}, "r/b.py": {"7": ["y", "z"]}, "q/c.py": {"1": ["w"]}}
    reach = {"lines": lines, "breadth": sweep_mutants.breadth(lines)}
    for file, line, tests in (
        ("r/a.py", 1, ["x", "y"]), ("r/a.py", 9, ["x", "y", "z"]), ("r/b.py", 9, ["z", "y", "x"]),
        ("r/new.py", 1, ["x", "y", "z"]), ("s/d.py", 1, []),
    ):  # fmt: skip
        assert sweep_mutants.tests_for(sweep_mutants.Mutant(file, "", 0, line), reach) == tests


def test_equivalent_mutants_are_known_by_their_lines(tmp_path: Path) -> None:
    listed = tmp_path / "listed.txt"
    listed.write_text("% file ||| line ||| changed line ||| why\na.py ||| if x | y: ||| if x + y: ||| no sum is 0\n")
    change = sweep_mutants.changed("a\n    if x | y:\n", "a\n    if x + y:\n")
    assert sweep_mutants.equivalents(listed) == {("a.py", change): "no sum is 0"}


def test_every_listed_mutant_is_of_a_line_that_is_there() -> None:
    for (file, change), why in sweep_mutants.equivalents().items():
        old = change.splitlines()[0].removeprefix("    - ")
        lines = (sweep_mutants.ROOT / file).read_text(encoding="utf-8").splitlines()
        assert old in map(str.strip, lines) and why, (file, old)


def test_wrong_arguments_are_one_line() -> None:
    for arguments, expected in (
        (["nl2sql/nowhere", "tests/agents"], "there is no folder nl2sql/nowhere"),
        (["nl2sql/agents", "tests/agents", "--sample", "0"], "give numbers of at least 1"),
    ):
        done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and expected in done.stderr and "Traceback" not in done.stderr
