"""What decides a run is kept so that it means the same from any folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from synthetic_run import write_run
from typer.testing import CliRunner

from nl2sql.cli import app
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.folder import new_folder
from nl2sql.runs.listing import check_run
from nl2sql.runs.plan import RunSpec, absolute
from nl2sql.runs.rescore import replay
from nl2sql.runs.run import Run
from nl2sql.runs.viewer import Pages

NO_TS = build_config({"eval": {"replicas": 0}})


@pytest.fixture
def toy(tmp_path: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A benchmark of one question in the working folder, which no path of ``NL2SQL_BENCHMARKS`` holds."""
    folder = tmp_path / "here" / "toy"
    folder.mkdir(parents=True)
    shop.rename(folder / "shop.sqlite")
    record = {"question": "?", "query": "SELECT name FROM customers", "db_id": "shop"}
    (folder / "questions.json").write_text(json.dumps([record]), encoding="utf-8")
    monkeypatch.setenv("NL2SQL_BENCHMARKS", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(folder.parent)
    return folder


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("toy", "HERE/toy"),
        ("./toy", "HERE/toy"),
        ("~/toy", "HERE/toy"),
        ("hf:./toy:dev", "hf:HERE/toy:dev"),
        ("hf:~/toy", "hf:HERE/toy"),
        ("hf:org/name", "hf:org/name"),
        ("packaged", "packaged"),
        ("absent", "absent"),
        ("listed", "listed"),
    ],
)
def test_a_benchmark_of_the_working_folder_is_kept_with_its_whole_path(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, kept: str
) -> None:
    (tmp_path / "elsewhere" / "listed").mkdir(parents=True)
    (toy.parent / "listed").mkdir()
    monkeypatch.setenv("HOME", str(toy.parent))
    assert absolute(RunSpec(benchmark=written)).benchmark == kept.replace("HERE", str(toy.parent))


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("", ""),
        ("duckdb:d/{db_id}.duckdb", "duckdb:HERE/d/{db_id}.duckdb"),
        ("clickhouse:./{db_id}", "clickhouse:HERE/{db_id}"),
        ("d/{db_id}.sqlite", "HERE/d/{db_id}.sqlite"),
        ("duckdb:/data/{db_id}.duckdb", "duckdb:/data/{db_id}.duckdb"),
        ("duckdb:$SHOPS/{db_id}.duckdb", "duckdb:HERE/$SHOPS/{db_id}.duckdb"),
        ("mysql://reader@host/{db_id}", "mysql://reader@host/{db_id}"),
    ],
)
def test_an_engines_files_are_kept_with_their_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, kept: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute(RunSpec(engine_url=written)).engine_url == kept.replace("HERE", str(tmp_path))


def test_what_was_given_as_an_object_has_no_path(toy: Path) -> None:
    plan = RunSpec(benchmark="toy", model="toy", objects=("benchmark", "model"))
    assert absolute(plan) == plan


def test_a_replay_without_any_database_writes_nothing(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel({"*": ["SELECT name FROM customers"]})
    run = evaluate("toy", model, "single_shot", config=NO_TS, out=tmp_path / "run", progress=False)
    before = (run.folder / "report.json").read_bytes()
    assert run.report["metrics"]["EX[bag]"]["value"] == 1
    monkeypatch.chdir(tmp_path)
    assert replay(run.folder, progress=False, trust=True).report["metrics"]["EX[bag]"]["value"] == 1, (
        "from another folder"
    )
    (toy / "shop.sqlite").rename(toy / "shop.gone")
    with pytest.raises(UsageError, match=r"is not scored: none of its 1 databases can be read .* no file for database"):
        replay(run.folder, progress=False, trust=True)
    assert json.loads((run.folder / "report.json").read_bytes())["metrics"] == json.loads(before)["metrics"]


def test_a_suggested_command_can_be_typed_where_a_folder_has_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "my runs"
    write_run(folder / "a", 2)
    quoted = f"'{folder}/a'"
    with pytest.raises(UsageError, match=re.escape(f"nl2sql eval --resume {quoted}, or")):
        new_folder(folder / "a", "a")
    for command, said in (("replay", f"'{folder}/none'"), ("list", f"'{folder}/none/first'")):
        error = CliRunner().invoke(app, ["runs", command, str(folder / "none")]).exception
        assert f"nl2sql eval --out {said}" in str(error)
    for spoil, said in (("{", f"nl2sql runs replay {quoted}"), (None, f"nl2sql eval --resume {quoted}")):
        (folder / "a" / "report.json").write_text(spoil) if spoil else (folder / "a" / "report.json").unlink()
        with pytest.raises(UsageError, match=re.escape(said)):
            Run.load(folder / "a")
        assert any(said in finding.detail for finding in check_run(folder / "a"))


def test_a_run_over_an_object_says_that_its_databases_cannot_be_asked(tmp_path: Path) -> None:
    write_run(tmp_path / "object", 2)
    pages = Pages(tmp_path)
    assert "sql?run=" not in pages.answer("rows", {}, {}).text
    asked = pages.answer("sql", {"run": ["object"]}, {})
    assert asked.status == 400 and "the benchmark synthetic as an object" in asked.text
    compared = CliRunner().invoke(app, ["runs", "compare", *[str(tmp_path / "object")] * 2])
    assert "name one: --benchmark FOLDER" in str(compared.exception)
