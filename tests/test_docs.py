"""The documentation is held to the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRANSCRIPTS = {path.stem for path in (ROOT / "tests" / "fixtures" / "react").glob("*.yaml")}


def test_conformance_table_names_every_transcript_and_only_tests_that_exist() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    named = re.findall(r"`([^`]+)`", text)
    assert set(named) >= TRANSCRIPTS, TRANSCRIPTS - set(named)
    for name in named:
        if name.startswith("tests/"):
            file, _, test = name.partition("::")
            assert (ROOT / file).exists(), name
            assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_command_line_reference_is_current() -> None:
    script = ROOT / "scripts" / "generate_cli_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_commands_of_the_how_to_pages_exist_with_their_options() -> None:
    import typer

    from nl2sql.cli import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for page in ("README.md", "docs/runs.md", "docs/report.md", "docs/sessions.md"):
        for line in re.findall(r"^nl2sql (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE):
            name, *words = line.split("#")[0].split()
            known = {
                option for parameter in commands[name].params for option in parameter.opts + parameter.secondary_opts
            }
            subcommands = getattr(commands[name], "commands", {})
            unknown = {word for word in words if re.match(r"--?[a-z]", word)} - known
            assert subcommands or not unknown, f"{page}: nl2sql {line}: {unknown}"


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


def test_the_notebook_lines_of_the_runs_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nl2sql
    from nl2sql.config import build_config

    monkeypatch.chdir(tmp_path)
    settings = build_config({"eval": {"replicas": 0}})
    Path("script.json").write_text('{"on_exhausted": "repeat", "replies": {"*": ["SELECT 1 AS one"]}}')
    for name in ("dev", "other"):
        out = f"runs/{name}"
        nl2sql.evaluate(model="scripted:script.json", split="quick", limit=2, config=settings, out=out, progress=False)
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], found := {})
    assert len(found["frame"]) == 2 and {"ex", "ex_single_shot"} <= set(found["frame"].columns)


def test_the_loop_of_the_how_to_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "your-own-loop.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    (tmp_path / "my_loop.py").write_text(code[1], encoding="utf-8")
    (tmp_path / "script.json").write_text('{"on_exhausted": "repeat", "replies": {"*": [" COUNT(*) FROM nowhere"]}}')
    arguments = ["--controller", "my_loop.py:my_loop", "--model", "scripted:script.json", "--limit", "2", "-q"]
    command = [sys.executable, "-m", "nl2sql.cli", "eval", *arguments, "--json", "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"answered": 2' in done.stdout
