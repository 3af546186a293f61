"""``nl2sql runs list``: each run with its state, what cannot be read among them, and the command that goes on."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nl2sql
from nl2sql.cli import app
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.export import Contents
from nl2sql.runs.folder import is_running, locked
from nl2sql.runs.listing import Listing, entries


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    settings = build_config({"eval": {"replicas": 0}})
    for name in ("finished", "begun"):
        model = ScriptedModel({"*": ["SELECT 1 AS one"]}, on_exhausted="repeat")
        nl2sql.evaluate(
            model=model, controller="single_shot", split="quick", limit=3, config=settings, out=folder / name,
            progress=False,
        )  # fmt: skip
    lines = (folder / "begun" / "predictions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "begun" / "predictions.jsonl").write_text(lines[0], encoding="utf-8")
    (folder / "begun" / "report.json").unlink()
    (folder / "damaged").mkdir()
    (folder / "damaged" / "manifest.json").write_text("{", encoding="utf-8")
    (folder / "no run").mkdir()
    return folder


def test_each_run_has_its_state(runs: Path) -> None:
    listed = {Path(entry.path).name: entry for entry in entries(runs)}
    assert {name: entry.state for name, entry in listed.items()} == {
        "finished": "done",
        "begun": "1 of 3",
        "damaged": "unreadable",
    }
    assert listed["finished"].ex == 0 and listed["finished"].metric == "EX[bag]"
    assert listed["begun"].benchmark == "packaged/quick" and listed["begun"].controller == "single_shot"


def test_a_controller_and_a_benchmark_of_ones_own_are_listed_by_their_names(shop: Path, tmp_path: Path) -> None:
    toy = tmp_path / "toy"
    (toy / "databases").mkdir(parents=True)
    shutil.copy(shop, toy / "databases" / "shop.sqlite")
    (toy / "questions.json").write_text(
        '[{"question": "Who?", "query": "SELECT name FROM customers", "db_id": "shop"}]'
    )
    loop = tmp_path / "my.py"
    loop.write_text(
        "import nl2sql\n\n\ndef mine(question, resources, config):\n"
        "    return nl2sql.Episode(question, 'mine', sql='SELECT 1')\n"
    )
    settings = build_config({"eval": {"replicas": 0}})
    nl2sql.evaluate(
        str(toy), ScriptedModel([]), f"{loop}:mine", config=settings, out=tmp_path / "runs" / "a", progress=False
    )
    (entry,) = entries(tmp_path / "runs")
    assert (entry.controller, entry.benchmark) == ("mine", "toy")


def test_the_command_lists_them_and_names_the_next_one(runs: Path) -> None:
    shown = CliRunner().invoke(app, ["runs", "list", str(runs)])
    assert shown.exit_code == 0 and shown.stdout.splitlines()[-1] == f"next: nl2sql eval --resume {runs / 'begun'}"
    assert "note: " in shown.stdout and len(shown.stdout.splitlines()) == 6
    fields = json.loads(CliRunner().invoke(app, ["runs", "list", str(runs), "--json"]).stdout)
    assert [entry["state"] for entry in fields if entry["path"].endswith("begun")] == ["1 of 3"]


def test_a_run_that_another_process_is_at_is_running_and_is_not_the_next(runs: Path) -> None:
    with locked(runs / "begun"):
        shown = CliRunner().invoke(app, ["runs", "list", str(runs)]).stdout
        with pytest.raises(UsageError, match="another process is running"), locked(runs / "begun"):
            pass
    assert "running, 1 of 3" in shown and "next:" not in shown
    assert not is_running(runs / "begun")


def test_a_run_starts_while_a_list_is_being_made(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (runs / "begun" / ".lock").open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        monkeypatch.setattr("nl2sql.runs.folder.time.sleep", lambda _: fcntl.flock(looked_at, fcntl.LOCK_UN))
        with locked(runs / "begun"):
            assert is_running(runs / "begun")


def test_a_run_began_when_its_manifest_says(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "begun", tmp_path / "copy")
    os.utime(tmp_path / "copy" / "manifest.json", (0, 0))
    [entry] = entries(tmp_path)
    assert abs((datetime.now(UTC) - entry.began).total_seconds()) < 3600
    assert Contents.of(tmp_path / "copy", content=False).began == entry.began
    later = tmp_path / "later"
    shutil.copytree(runs / "begun", later)
    manifest = json.loads((later / "manifest.json").read_text(encoding="utf-8"))
    manifest["environment"]["began"] = "2099-01-01T00:00:00+00:00"
    (later / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    os.utime(tmp_path / "later" / "manifest.json", (-1, -1))
    assert [Path(entry.path).name for entry in entries(tmp_path)] == ["later", "copy"]


def test_a_cell_goes_on_with_its_ablation(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    (runs / "begun").rename(tmp_path / "grid" / "begun")
    (tmp_path / "grid" / "ablation.json").write_text('{"command": "nl2sql ablate g.yaml --out grid"}')
    shown = CliRunner().invoke(app, ["runs", "list", str(tmp_path)])
    (tmp_path / "grid" / "begun").rename(runs / "begun")
    assert shown.stdout.splitlines()[-1] == "next: nl2sql ablate g.yaml --out grid"


@pytest.mark.parametrize("kept", ['{"command": ""}', '{"comm', "[]"])
def test_a_cell_whose_ablation_names_no_command_goes_on_by_itself(runs: Path, tmp_path: Path, kept: str) -> None:
    (tmp_path / "g r").mkdir()
    shutil.copytree(runs / "begun", tmp_path / "g r" / "begun")
    (tmp_path / "g r" / "ablation.json").write_text(kept)
    shown = CliRunner().invoke(app, ["runs", "list", str(tmp_path)])
    assert shown.stdout.splitlines()[-1] == f"next: nl2sql eval --resume '{tmp_path}/g r/begun'", shown.exception


def test_a_run_is_read_again_when_its_files_have_changed(runs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs / "finished", tmp_path / "run"))
    report, listing = folder / "report.json", Listing(tmp_path)
    [first] = listing.entries()
    written = report.stat()
    text = report.read_text(encoding="utf-8")
    report.write_text("x" * len(text.encode()), encoding="utf-8")
    os.utime(report, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert listing.entries() == [first] and first.state == "done"
    report.touch()
    assert listing.entries()[0].state == "3 of 3"
    shutil.rmtree(folder)
    assert listing.entries() == []


@pytest.mark.parametrize("command", ["rm -rf /", "nl2sql ablate g.yaml; rm -rf /", "nl2sql\x1b[2Jablate g"])
def test_the_next_command_is_one_of_ours(runs: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "grid").mkdir()
    shutil.copytree(runs / "begun", tmp_path / "grid" / "begun")
    (tmp_path / "grid" / "ablation.json").write_text(json.dumps({"command": command}))
    shown = CliRunner().invoke(app, ["runs", "list", str(tmp_path)]).stdout.splitlines()[-1]
    assert shown.startswith("next: nl2sql") and ("'" in shown or "--resume" in shown), shown


def test_no_folder_and_no_run_are_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        error = CliRunner().invoke(app, ["runs", "list", str(folder)]).exception
        assert isinstance(error, UsageError) and "nl2sql eval --out" in str(error)
