"""A run with seeds is read as a whole: its answers, its traces, what it teaches and what it cost."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from synthetic_run import write_run
from typer.testing import CliRunner

from nl2sql.cli import app
from nl2sql.errors import UsageError
from nl2sql.eval.predictions import read_predictions
from nl2sql.runs.export import Contents
from nl2sql.runs.export.forms import write_inspect_log
from nl2sql.runs.run import Run


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    """A finished run with the seeds 1 and 2, of three questions each."""
    folder = tmp_path / "run"
    for seed in (1, 2):
        write_run(folder / f"seed-{seed}", 3, seed=seed)
    manifest = json.loads((folder / "seed-1" / "manifest.json").read_text(encoding="utf-8"))
    manifest["key"], manifest["plan"]["seeds"] = "", [1, 2]
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    shutil.copy(folder / "seed-1" / "report.json", folder / "report.json")
    return folder


def test_the_answers_and_traces_of_all_seeds_are_read(seeds: Path) -> None:
    run = Run.load(seeds)
    parts = [Run.load(seeds / name) for name in ("seed-1", "seed-2")]
    assert run.predictions() == [row for part in parts for row in part.predictions()] != []
    assert run.traces(("flags",)) == [row for part in parts for row in part.traces(("flags",))] != []


def test_predictions_are_those_of_one_seed(seeds: Path) -> None:
    with pytest.raises(UsageError, match=r"is a run with seeds; name the folder of one, e\.g\. \S*/seed-1$"):
        read_predictions(seeds, [])
    assert len(read_predictions(seeds / "seed-2", [])[0]) == 3


def test_the_export_of_failures_says_which_seed_it_is_of(seeds: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["runs", "failures", str(seeds), "--out", str(tmp_path / "f.csv"), "--metric", "EX"])
    assert "of 3 items of seed-1, the first seed, to" in done.stdout, done.exception


def test_the_log_of_seeds_has_the_tokens_of_all(seeds: Path, tmp_path: Path) -> None:
    contents = Contents.of(seeds, content=False)
    write_inspect_log(contents, tmp_path / "run.eval")
    with zipfile.ZipFile(tmp_path / "run.eval") as log:
        header = json.loads(log.read("header.json"))
    (usage,) = header["stats"]["model_usage"].values()
    wanted = sum(part.report["usage"]["prompt_tokens"] for part in contents.parts.values())
    assert usage["input_tokens"] == wanted > contents.run.report["usage"]["prompt_tokens"]
