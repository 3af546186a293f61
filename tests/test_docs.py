"""The documentation is held to the code."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TRANSCRIPTS = {path.stem for path in (ROOT / "tests" / "fixtures" / "react").glob("*.yaml")}


def test_conformance_table_names_every_transcript_and_only_tests_that_exist() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    named = re.findall(r"`([^`]+)`", text)
    assert set(named) >= TRANSCRIPTS, TRANSCRIPTS - set(named)
    others = yaml.safe_load((ROOT / "tests" / "conformance.yaml").read_text(encoding="utf-8"))
    held = [entry["tests"] for entries in others.values() for entry in entries]
    assert len(others) == 4 and all(held)
    named += [test for tests in held for test in tests]
    for name in named:
        if name.startswith("tests/"):
            file, _, test = name.partition("::")
            assert (ROOT / file).exists(), name
            assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_what_stands_for_a_name_of_the_specification_is_there() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(nl2sql(?:\.\w+)+)`", text.partition("## Other names")[2].partition("\n## ")[0]))
    assert len(named) > 20 and [name for name in sorted(named) if pkgutil.resolve_name(name) is None] == []


def test_command_line_reference_is_current() -> None:
    script = ROOT / "scripts" / "generate_cli_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "references").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_reference_number_used_in_the_code_is_listed() -> None:
    listed = set(re.findall(r"^\| \[(\d+)\]", (ROOT / "REFERENCES.md").read_text(encoding="utf-8"), re.MULTILINE))
    for file in (ROOT / "nl2sql").rglob("*.py"):
        for docstring in re.findall(r'"""(.*?)"""', file.read_text(encoding="utf-8"), re.DOTALL):
            for number in re.findall(r"(?<![\w\])])\[(\d+)\](?![\w\[(])", docstring):
                assert number in listed or int(number) < 2, f"{file.name} cites [{number}]"
