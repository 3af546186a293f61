"""``nl2sql new examples`` on a real wheel's layout and on the checkout."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nl2sql.cli import app, new

ROOT = Path(__file__).resolve().parents[2]
RUNNER = CliRunner()


def test_the_notebooks_and_grids_are_copied_and_the_next_command_is_named(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["new", "examples", str(tmp_path / "new" / "place")])
    assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "new" / "place").iterdir()}
    assert {"01_quickstart.ipynb", "letter.yaml", "vizql.yaml"} <= names
    assert done.stdout.splitlines()[-1].startswith("next: jupyter lab ") and "01_quickstart.ipynb" in done.stdout


def test_nothing_is_overwritten_unless_told_to(tmp_path: Path) -> None:
    (tmp_path / "letter.yaml").write_text("mine", encoding="utf-8")
    refused = RUNNER.invoke(app, ["new", "examples", str(tmp_path)])
    assert refused.exit_code != 0 and (tmp_path / "letter.yaml").read_text(encoding="utf-8") == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["letter.yaml"]
    assert RUNNER.invoke(app, ["new", "examples", str(tmp_path), "--force"]).exit_code == 0
    assert (tmp_path / "letter.yaml").read_bytes() == (ROOT / "scripts" / "letter.yaml").read_bytes()


def test_a_file_in_the_folders_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = RUNNER.invoke(app, ["new", "examples", str(tmp_path / "file" / "below")])
    assert done.exit_code != 0 and "cannot be written" in str(done.exception)


def test_a_wheel_holds_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    expected = {path.name for path in new.example_files()}
    for source, target in included.items():
        for file in [ROOT / source] if (ROOT / source).is_file() else (ROOT / source).rglob("*"):
            if file.is_file() and "_examples" in target:
                place = tmp_path / target / (file.relative_to(ROOT / source) if (ROOT / source).is_dir() else "")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.read_bytes())
    monkeypatch.setattr(new, "__file__", str(tmp_path / "nl2sql" / "cli" / "new.py"))
    assert {path.name for path in new.example_files()} == expected
