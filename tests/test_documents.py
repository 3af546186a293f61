"""JSON and YAML of users: whatever is in them, the error is a plain one. Files for users: whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nl2sql.agents.context.knowledge import read_knowledge
from nl2sql.benchmarks import load_benchmark
from nl2sql.benchmarks.verified import read_verified
from nl2sql.config import load_config
from nl2sql.errors import Nl2SqlError
from nl2sql.eval.cases import run_cases
from nl2sql.eval.predictions import read_predictions
from nl2sql.eval.suites import read_index
from nl2sql.machine import from_json, from_yaml, write_whole
from nl2sql.models import load_model
from nl2sql.repair.registry import read_registry
from nl2sql.runs.ablation import read_grid
from nl2sql.runs.folder import iter_jsonl, read_manifest
from nl2sql.runs.run import Run

ROOT = Path(__file__).parents[1]
DIGITS = "9" * 10_000
DEEP = "[" * 100_000
OVER = "1" + "0" * 400  # Python reads it, and no float holds it


@pytest.mark.parametrize("text", [DIGITS, f'{{"a": -{DIGITS}}}', DEEP, DEEP.replace("[", '{"a":'), OVER, "{", b"\xff"])
def test_json_that_cannot_be_read_is_one_line(text: str | bytes) -> None:
    with pytest.raises(ValueError) as error:
        from_json(text)
    assert len(str(error.value)) < 200 and "set_int_max_str_digits" not in str(error.value)


def test_json_reads_as_ever() -> None:
    text = '{"a": [1, -2, 3.5, 1e400, null, true, "\\ud800"], "b": {}}'
    assert from_json(text) == json.loads(text)
    assert from_json('{"a": 1, "a": 2}', pairs=True) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("text", [DIGITS, f"a: {DIGITS}", DEEP, "a: 2020-99-99", "a: [", "- {b: 1, b: 2}"])
def test_yaml_that_cannot_be_read_is_a_yaml_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError) as error:
        from_yaml(text)
    assert "set_int_max_str_digits" not in str(error.value)


def test_yaml_reads_as_ever() -> None:
    text = "a: &x {b: 1, c: [1.5, null, 2020-01-02]}\nd: {<<: *x, b: 2}\ne: *x\n"
    assert from_yaml(text) == yaml.safe_load(text)
    assert from_yaml("") is from_yaml("# nothing") is None


def _manifest(path: Path) -> Any:
    return read_manifest(path.rename(path.with_name("manifest.json")).parent)


def _report(path: Path) -> Any:
    (path.parent / "manifest.json").write_text(json.dumps({"format": 1, "plan": {}, "key": ""}))
    path.rename(path.with_name("report.json"))
    return Run.load(path.parent)


def _lines(path: Path) -> Any:
    path.write_text(path.read_text() + "\n")
    return list(iter_jsonl(path))


def _benchmark(path: Path) -> Any:
    path.rename(path.with_name("questions.json"))
    return load_benchmark(str(path.parent))


def _index(path: Path) -> Any:
    return read_index(path.rename(path.with_name("index.json")).parent)


QUESTIONS = load_benchmark("packaged", split="quick").questions
READERS: dict[str, Callable[[Path], Any]] = {
    "manifest": _manifest,
    "report": _report,
    "lines of a run": _lines,
    "benchmark": _benchmark,
    "index of suites": _index,
    "predictions.json": lambda path: read_predictions(path.rename(path.with_suffix(".json")), QUESTIONS),
    "predictions.jsonl": lambda path: read_predictions(path.rename(path.with_suffix(".jsonl")), QUESTIONS),
    "cases": run_cases,
    "grid": read_grid,
    "config": lambda path: load_config([path]),
    "patterns": read_registry,
    "script.json": lambda path: load_model(f"scripted:{path.rename(path.with_suffix('.json'))}"),
    "verified": read_verified,
    "knowledge": lambda path: read_knowledge(path.rename(path.with_suffix(".yaml"))),
    "script.yaml": lambda path: load_model(f"scripted:{path}"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("value", [DIGITS, DEEP, OVER], ids=["digits", "deep", "over"])
def test_every_reader_of_a_users_file_has_an_error_of_one_line(name: str, value: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "file"
    path.write_text(f'{{"id": {value}, "sql": "SELECT 1"}}\n')
    with pytest.raises(Nl2SqlError) as error:
        READERS[name](path)
    assert "set_int_max_str_digits" not in str(error.value)
    assert len(str(error.value)) < 500 + len(str(folder)) and "\n" not in str(error.value)


def test_an_override_of_ten_thousand_digits_is_an_error_of_its_own() -> None:
    with pytest.raises(Nl2SqlError, match=r"react\.max_steps"):
        load_config((), [f"react.max_steps={DIGITS}"])


# ---------------------------------------------------------------------------------------------------- written whole


def test_a_file_that_could_not_be_written_is_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")

    def parts() -> Any:
        yield "half"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(path, parts())
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "new", parts(), new=True)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("out", "before")]
    with pytest.raises(FileExistsError):
        write_whole(path, "after", new=True)
    link = tmp_path / "link"
    link.symlink_to(path)
    write_whole(link, "after")
    assert link.is_symlink() and path.read_text() == "after"
    write_whole(Path("/dev/null"), "gone")


MAIN = "import sys; from nl2sql.cli import main; sys.argv = ['nl2sql', *sys.argv[1:]]; main()"
FULL = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); {MAIN}"


def nl2sql(*arguments: str, cwd: Path, program: str = MAIN) -> subprocess.CompletedProcess[str]:
    """The command line; with ``FULL`` no file can grow above 4 KB, as on a full disk (Python ignores the signal)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("written")
    (place / "s.yaml").write_text("replies: {'*': ['SELECT 1 AS wrong']}\n")
    options = ["--controller", "single_shot", "--no-control", "-c", "eval.replicas=0", "--limit", "12"]
    done = nl2sql("eval", "--model", "scripted:s.yaml", *options, "--out", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a.html", ["report", "run", "--out", "a.html", "--no-golds"]),
        ("b.jsonl", ["runs", "failures", "run", "--out", "b.jsonl"]),
        ("c.csv", ["runs", "failures", "run", "--out", "c.csv"]),
        ("d.jsonl", ["runs", "export", "run", "--to", "otel", "--out", "d.jsonl"]),
        ("e.eval", ["runs", "export", "run", "--to", "inspect", "--out", "e.eval"]),
    ],
)
def test_a_full_disk_leaves_no_half_of_a_file(name: str, command: list[str], run_folder: Path) -> None:
    if "otel" in command:
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    before = sorted(path.name for path in run_folder.iterdir())
    done = nl2sql(*command, cwd=run_folder, program=FULL)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert name in done.stderr and "cannot be written: File too large" in " ".join(done.stderr.split())
    assert sorted(path.name for path in run_folder.iterdir()) == before
    assert nl2sql(*command, cwd=run_folder).returncode == 0
    assert (run_folder / name).stat().st_size > 4096
