"""The list of planted faults is sound, and the program that plants them tells what is noticed from what is not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import plant_faults
import pytest
from planting.bed import Bed, baseline, plant_all
from planting.entries import BadList, Fault, chosen, planted, read_faults

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
ROOT = SCRIPTS.parent
CODE = "def half(number: int) -> float:\n    return number / 2\n"
TESTS = """
from shop.sums import half

def test_half_of_four(): assert half(4) == 2

def test_half_is_a_number(): assert isinstance(half(4), (int, float))
"""


def fault(old: str, new: str, test: str = "") -> Fault:
    tests = (f"tests/test_sums.py{test}",)
    return Fault("sums", f"{old} to {new}", "here", "shop/sums.py", old, new, tests)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    (tmp_path / "source/shop").mkdir(parents=True)
    (tmp_path / "source/tests").mkdir()
    (tmp_path / "source/shop/sums.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "source/tests/test_sums.py").write_text(TESTS, encoding="utf-8")
    names = ["shop/sums.py", "tests/test_sums.py"]
    plant_faults.copy_checkout(tmp_path / "source", names, tmp_path / "0" / "checkout")
    return Bed(tmp_path / "0" / "checkout")


@pytest.mark.parametrize(
    ("entry", "verdict"),
    [
        (fault("/ 2", "/ 3"), "noticed"),
        (fault("/ 2", "/ 3", "::test_half_is_a_number"), "SURVIVED"),
        (fault("/ 5", "/ 3"), "old text not found"),
        (fault("number", "it"), "old text not found"),
        (fault("def half", "def quarter"), "broke the import"),
        (fault("    return", "  nothing = (\n    return"), "broke the import"),
        (fault("return number", "return nothing"), "broke the code"),
        (fault("/ 2", "/ 3", "::test_nothing"), "no test ran"),
    ],
)
def test_a_planted_fault_is_noticed_or_it_is_said_why_not(bed: Bed, entry: Fault, verdict: str) -> None:
    (tried,) = plant_all([entry], [bed])
    assert tried[1].verdict == verdict, tried
    assert (bed.folder / "shop/sums.py").read_text(encoding="utf-8") == CODE


def test_a_fault_does_not_outlive_its_tests(bed: Bed) -> None:
    assert baseline(bed.folder, [fault("/ 2", "/ 3")]) == {"tests/test_sums.py": ""}
    entries = [fault("/ 2", "/ 3"), fault("/ 2", "/ 3", "::test_half_is_a_number"), fault("/ 2", "/ 4")]
    assert [outcome.verdict for _, outcome in plant_all(entries, [bed])] == ["noticed", "SURVIVED", "noticed"]


def test_tests_that_fail_or_skip_without_a_fault_are_told_apart(bed: Bed) -> None:
    path = bed.folder / "tests/test_sums.py"
    path.write_text(TESTS + "\ndef test_wrong(): assert half(4) == 3\n", encoding="utf-8")
    tests = ("::test_half_of_four", "::test_wrong")
    told = baseline(bed.folder, [fault("/ 2", "/ 3", test) for test in tests])
    assert told["tests/test_sums.py::test_half_of_four"] == ""
    assert "assert 2.0 == 3" in told["tests/test_sums.py::test_wrong"]


def test_every_entry_of_the_list_can_be_planted() -> None:
    faults = read_faults()
    assert len(faults) >= 150 and len({entry.rule for entry in faults}) > 0.9 * len(faults)
    for entry in faults:
        text = planted((ROOT / entry.file).read_text(encoding="utf-8"), entry)
        assert text is not None, f"{entry.rule}: the old text does not occur exactly once in {entry.file}"
        if entry.file.endswith(".py"):
            ast.parse(text)
        for test in entry.tests:
            file, _, name = test.partition("::")
            source = (ROOT / file).read_text(encoding="utf-8")
            assert not name or f"def {name.partition('[')[0]}(" in source, f"{entry.rule}: there is no {test}"
        page = entry.stated.split(",")[0]
        assert not page.endswith((".md", ".py")) or (ROOT / page).exists(), f"{entry.rule}: there is no {page}"


def test_a_sample_is_drawn_by_its_seed() -> None:
    faults = read_faults()
    first, again, other = (chosen(faults, None, 20, seed) for seed in (1, 1, 2))
    assert first == again != other and len(first) == 20
    with pytest.raises(BadList, match="names none of the faults"):
        chosen(faults, "no such rule", None, 0)


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    start, end = plant_faults.MARKS
    page.write_text(f"before\n{start}\nold\n{end}\nafter\n", encoding="utf-8")
    results = [(fault("a", "b"), plant_faults.Outcome("noticed")), (fault("a", "c"), plant_faults.Outcome("SURVIVED"))]
    plant_faults.write_page(results, page)
    table = "| area | planted | noticed |\n|---|---|---|\n| sums | 2 | 1 |\n| all | 2 | 1 |"
    assert page.read_text(encoding="utf-8") == f"before\n{start}\n{table}\n{end}\nafter\n"


def test_the_command_plants_one_fault_and_keeps_its_result(tmp_path: Path) -> None:
    rule = "the blocked run names the validation that is missing"
    command = [sys.executable, str(SCRIPTS / "plant_faults.py"), "--only", rule, "--results", "faults.jsonl", "--json"]
    first = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    (result,) = json.loads(first.stdout)
    assert first.returncode == 0 and result["verdict"] == "noticed", result
    again = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(again.stdout) == [result] and again.stderr == ""
    wrong = subprocess.run([*command[:2], "--sample", "0"], capture_output=True, text=True, cwd=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: --jobs 1, --sample 0")
