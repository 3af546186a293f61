"""Runs in the forms of other tools, read back by the tools themselves; what is exported of texts, golds and keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import programs
import pytest
from typer.testing import CliRunner

from nl2sql.benchmarks import load_benchmark
from nl2sql.cli import app
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.runs.evaluate import resume, start
from nl2sql.runs.export import Contents
from nl2sql.runs.listing import entries
from nl2sql.runs.plan import RunSpec, read_plan
from nl2sql.runs.rescore import replay

SECRET = "sk-a-key-that-stands-in-a-reply"
BEGIN = ["Action: link_schema[{}]", "Action: generate_sql[{}]"]  # the first is overridden
GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve questions with a control: a third right, a third wrong, of a third the model is gone."""
    place = tmp_path_factory.mktemp("export")
    replies: dict[str, Any] = {}
    for number, question in enumerate(load_benchmark("packaged", split="quick").questions):
        said: Any = [question.gold[0], f"SELECT '{SECRET}' AS wrong", {"error": "gone"}][number % 3]
        replies[question.text] = {"single_shot": [said], "react": [*BEGIN, said, *GATES, *GATES]}
    (place / "s.json").write_text(json.dumps({"replies": replies}), encoding="utf-8")
    plan = RunSpec(split="quick", limit=12, model=f"scripted:{place / 's.json'}")
    start(plan, build_config({"react": {"max_steps": 7}, "eval": {"replicas": 0}}), out=place / "run", progress=False)
    return place / "run"


@pytest.fixture(scope="module")
def unfinished(folder: Path) -> Path:
    """The same run as if it had been killed after seven of its twelve questions."""
    place = folder.with_name("unfinished")
    shutil.copytree(folder, place)
    (place / "report.json").unlink()
    for name in ("predictions.jsonl", "traces.jsonl"):
        lines = (place / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (place / name).write_text("".join(lines[:7]), encoding="utf-8")
    return place


def exported(run: Path, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return programs.command("runs", "export", run, *arguments, cwd=cwd or Path.cwd())


def export(run: Path, *arguments: object, **variables: str) -> str:
    with mock.patch.dict(os.environ, variables):
        done = exported(run, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reads(program: str, *arguments: object) -> Any:
    """What a program in another process prints as JSON."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------------------------------ what is exported


def test_every_episode_is_a_row_the_failed_ones_too(folder: Path) -> None:
    contents = Contents.of(folder, content=True)
    rows = [episode.row() for episode in contents.episodes()]
    assert len({row["id"] for row in rows}) == len(rows) == 12
    failed = [row for row in rows if row["finish"] == "error"]
    assert 0 < len(failed) < 12 and all("gone" in row["error"] for row in failed)
    assert 0 < sum(row["ex"] for row in rows) == round(12 * contents.numbers()["EX[bag]"], 6)
    assert all(row["gold"] and row["question"] for row in rows)
    assert {"single_shot/EX[bag]", "EX[bag]/low", "paired/EX[bag]/p", "prompt_tokens"} <= set(contents.numbers())
    assert contents.state == "done" and contents.facts()["config.react.max_steps"] == 7


def test_a_run_with_seeds_is_listed_and_its_seeds_are_epochs(folder: Path, tmp_path: Path) -> None:
    plan, config = read_plan(folder)
    start(replace(plan, seeds=(1, 2), limit=3), config, out=tmp_path / "run", progress=False)
    (entry,) = [entry for entry in entries(tmp_path) if entry.path == str(tmp_path / "run")]
    assert (entry.state, entry.questions, entry.model) == ("done", 6, plan.model)
    rows = [(episode.epoch, episode.seed) for episode in Contents.of(tmp_path / "run", content=True).episodes()]
    assert rows == [(1, 1)] * 3 + [(2, 2)] * 3
    assert export(tmp_path / "run", "--to", "inspect", "--out", tmp_path / "log.eval")
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    assert resume(tmp_path / "run", progress=False, trust=True).report["n"] == 3
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before


def test_seeds_in_progress_are_scored_as_far_as_they_are_and_the_rest_is_owed(folder: Path, tmp_path: Path) -> None:
    """Seed 1 is done, seed 2 begun, seed 3 not."""
    plan, config = read_plan(folder)
    run = tmp_path / "run"
    start(replace(plan, seeds=(1, 2, 3), limit=3, control=False), config, out=run, progress=False)
    shutil.rmtree(run / "seed-3")
    for path in (run / "report.json", run / "seed-2" / "report.json"):
        path.unlink()
    for name in ("predictions.jsonl", "traces.jsonl"):
        (run / "seed-2" / name).write_text("", encoding="utf-8")
    assert replay(run, partial=True, progress=False).report["seeds"].keys() == {"1"}
    contents = Contents.of(run, content=True)
    assert contents.pending == {"seed-2 run": 3, "seed-3 run": 3}
    assert [(episode.epoch, episode.seed) for episode in contents.episodes()] == [(1, 1)] * 3
    assert export(run, "--to", "inspect", "--out", tmp_path / "log.eval")
    with pytest.raises(UsageError, match=rf"seed-2 owes 3 of 3 .* nl2sql eval --resume {run},"):
        replay(run, progress=False)
    listed = CliRunner().invoke(app, ["runs", "list", str(tmp_path)])
    assert listed.stdout.endswith(f"next: nl2sql eval --resume {run}\n")
    for name in ("predictions.jsonl", "traces.jsonl"):
        (run / "seed-1" / name).write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="run holds no finished question yet"):
        replay(run, partial=True, progress=False)


def test_texts_and_golds_leave_only_when_they_may(folder: Path) -> None:
    bare = json.dumps([episode.row() for episode in Contents.of(folder, content=False).episodes()])
    assert "SELECT" not in bare
    no_golds = [episode.row() for episode in Contents.of(folder, content=True, golds=False).episodes()]
    assert all(row["gold"] is None and row["question"] for row in no_golds)


def test_a_question_that_was_asked_twice_is_exported_once(folder: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice"
    shutil.copytree(folder, twice)
    lines = (twice / "traces.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    older = json.loads(lines[0]) | {"finish": "older"}
    (twice / "traces.jsonl").write_text("".join([json.dumps(older) + "\n", *lines]), encoding="utf-8")
    rows = [episode.row() for episode in Contents.of(twice, content=False).episodes()]
    assert len(rows) == 12 and "older" not in {row["finish"] for row in rows}


def test_an_unfinished_run_says_so_wherever_it_goes(unfinished: Path, tmp_path: Path) -> None:
    said = export(unfinished, "--to", "inspect", "--out", tmp_path / "a.eval")
    assert "exported 7 episodes" in said and "unfinished: 5 of 12 questions owed (run)" in said
    with zipfile.ZipFile(tmp_path / "a.eval") as archive:
        header = json.loads(archive.read("header.json"))
    assert header["status"] == "started" and header["results"]["total_samples"] == 12
    export(unfinished, "--to", "lm-eval", "--out", tmp_path / "lm")
    [results] = (tmp_path / "lm").rglob("results_*.json")
    written = json.loads(results.read_text(encoding="utf-8"))
    assert written["nl2sql"]["state"].startswith("unfinished")
    assert written["n-samples"]["nl2sql_packaged_quick"] == {"original": 12, "effective": 7}
    assert not (unfinished / "report.json").exists()


def test_keys_of_servers_are_masked(folder: Path, tmp_path: Path) -> None:
    said = {"NL2SQL_API_KEY": SECRET}
    export(folder, "--to", "inspect", "--out", tmp_path / "a.eval", **said)
    with zipfile.ZipFile(tmp_path / "a.eval") as archive:
        texts = [archive.read(name).decode() for name in archive.namelist()]
    export(folder, "--to", "lm-eval", "--out", tmp_path / "lm", **said)
    texts += [path.read_text(encoding="utf-8") for path in (tmp_path / "lm").rglob("*_*.json*") if path.is_file()]
    assert not any(SECRET in text for text in texts) and any("SELECT '***' AS wrong" in text for text in texts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "inspect"], "add --out dev.eval"),
        (["--to", "inspect", "--out", "dev.json"], "ends in .eval"),
        (["--to", "wandb", "--endpoint", "http://localhost"], "writes a file and sends nothing"),
        (["--to", "mlflow", "--out", "a.db", "--endpoint", "http://localhost"], "leave out one of them"),
        (["--to", "otel"], "or --endpoint http://localhost:4318"),
        (["--to", "otel", "--endpoint", "localhost:4318"], "expected a collector's address"),
        (["--to", "lm-eval", "--out", "nowhere/at/all"], "does not exist"),
    ],
)
def test_a_wrong_export_is_one_line(folder: Path, arguments: list[str], said: str, tmp_path: Path) -> None:
    done = exported(folder, *arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    for arguments in (["--to", "inspect", "--out", tmp_path / "a.eval"], ["--to", "lm-eval", "--out", tmp_path / "lm"]):
        export(folder, *arguments)
        again = exported(folder, *arguments)
        assert again.returncode == 2 and "name another" in again.stderr


@pytest.mark.parametrize(("form", "module"), [("mlflow", "mlflow"), ("wandb", "wandb")])
def test_a_missing_package_is_one_line(
    folder: Path, form: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    done = exported(folder, "--to", form, "--out", tmp_path / "x")
    assert done.returncode == 2 and f"[{form}]'" in done.stderr and "pip install" in done.stderr


# ---------------------------------------------------------------------------------------- read back by the tools


INSPECT = """
import json, sys
from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries
path = sys.argv[1]
log, head = read_eval_log(path), read_eval_log(path, header_only=True)
sample = read_eval_log_sample(path, log.samples[0].id, 1)
print(json.dumps({
    "status": log.status, "task": head.eval.task, "solver": head.eval.solver,
    "listed": len(list_eval_logs(sys.argv[2])),
    "accuracy": {s.name: s.metrics["accuracy"].value for s in log.results.scores},
    "ex": {s.id: s.scores["EX[bag]"].value for s in log.samples}, "errors": {s.id: bool(s.error) for s in log.samples},
    "roles": [m.role for m in sample.messages], "targets": [len(s.target) for s in log.samples],
    "summaries": len(read_eval_log_sample_summaries(path)), "tokens": list(sample.model_usage.values())[0].input_tokens,
}))
"""


def test_inspect_opens_the_log(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="pip install inspect-ai")
    export(folder, "--to", "inspect", "--out", tmp_path / "dev.eval")
    read = reads(INSPECT, tmp_path / "dev.eval", tmp_path)
    assert (read["status"], read["task"], read["solver"]) == ("success", "nl2sql/packaged", "react")
    assert read["listed"] == 1 and read["summaries"] == 12 and read["tokens"] > 0
    rows = {episode.item["id"]: episode.row() for episode in Contents.of(folder, content=True).episodes()}
    assert read["ex"] == {id_: "C" if row["ex"] else "I" for id_, row in rows.items()}
    assert read["errors"] == {id_: row["finish"] == "error" for id_, row in rows.items()}
    assert {True, False} == set(read["errors"].values())
    numbers = Contents.of(folder, content=False).numbers()
    assert read["accuracy"]["EX[bag]"] == numbers["EX[bag]"]
    assert read["accuracy"]["single_shot: EX[bag]"] == numbers["single_shot/EX[bag]"]
    assert read["roles"][:2] == ["system", "user"] and {"assistant", "tool"} <= set(read["roles"])
    assert all(read["targets"])


LM_EVAL = """
import json, sys
from pathlib import Path
from lm_eval.utils import get_results_filenames, get_sample_results_filenames, make_table
files = [str(path) for path in Path(sys.argv[1]).rglob("*.json*") if path.is_file()]
[results], [samples] = get_results_filenames(files), get_sample_results_filenames(files)
table = make_table(json.loads(Path(results).read_text()))
print(json.dumps({"table": table, "samples": [json.loads(line) for line in Path(samples).read_text().splitlines()]}))
"""


def test_lm_eval_shows_the_results(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="pip install lm-eval")
    export(folder, "--to", "lm-eval", "--out", tmp_path)
    read = reads(LM_EVAL, tmp_path)
    rows = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in read["table"].splitlines()}
    share = Contents.of(folder, content=False).numbers()["EX[bag]"]
    error = (share * (1 - share) / 11) ** 0.5
    shown = {(row[0], row[4], row[6], row[8]) for row in rows}
    assert ("", "EX[bag]", f"{share:.4f}", f"{error:.4f}") in shown  # a task's name stands in its first row
    assert any(row[0] == "nl2sql_packaged_quick" for row in rows)
    assert any(row[0] == "nl2sql_packaged_quick_single_shot" for row in rows)
    assert len(read["samples"]) == 12 and sum(s["EX[bag]"] for s in read["samples"]) == pytest.approx(12 * share)
    assert all(sample["target"] == sample["doc"]["gold"] for sample in read["samples"])


def test_mlflow_holds_the_run_once(folder: Path, unfinished: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="pip install 'nl2sql-harness[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="pip install 'nl2sql-harness[mlflow]'")
    from mlflow import MlflowClient

    store = tmp_path / "mlflow.db"
    export(folder, "--to", "mlflow", "--out", store)
    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    experiment = client.get_experiment_by_name("nl2sql")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    share = Contents.of(folder, content=False).numbers()["EX[bag]"]
    assert run.data.metrics["EX.bag"] == pytest.approx(share) and "single_shot/EX.bag" in run.data.metrics
    assert run.data.params["controller"] == "react" and run.info.status == "FINISHED"
    kept = Path(client.download_artifacts(run.info.run_id, "episodes.jsonl", str(tmp_path)))
    assert len(kept.read_text(encoding="utf-8").splitlines()) == 12
    again = exported(folder, "--to", "mlflow", "--out", store)
    assert again.returncode == 2 and "holds this run already" in again.stderr
    export(unfinished, "--to", "mlflow", "--out", store)
    states = {run.info.status: run.data.tags["nl2sql.state"] for run in client.search_runs([experiment.experiment_id])}
    assert states["FINISHED"] == "done" and states["RUNNING"].startswith("unfinished")


WANDB = """
import json, struct, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2

def records(data, block=32768):  # LevelDB's log format behind seven bytes
    at, parts = 7, []
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # the whole, or its last part
            yield b"".join(parts)
            parts = []

summary, config = {}, {}
for data in records(Path(sys.argv[1]).read_bytes()):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    if record.WhichOneof("record_type") == "summary":
        summary.update({item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.summary.update})
    if record.WhichOneof("record_type") == "run":
        config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
        run_id, tags = record.run.run_id, list(record.run.tags)
print(json.dumps({"summary": summary, "config": config, "id": run_id, "tags": tags}))
"""


def test_wandb_writes_an_offline_run_that_sync_reads(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install 'nl2sql-harness[wandb]'")
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:1", "WANDB_API_KEY": "k" * 40, "WANDB_MODE": "online"}
    said = export(folder, "--to", "wandb", "--out", tmp_path / "runs", **nowhere)
    assert "wandb sync would send it" in said
    [file] = (tmp_path / "runs").rglob("*.wandb")
    read = reads(WANDB, file)
    share = Contents.of(folder, content=False).numbers()["EX[bag]"]
    assert read["summary"]["EX[bag]"] == pytest.approx(share) and read["config"]["controller"] == "react"
    assert read["id"] == Contents.of(folder, content=True).identity and read["tags"] == ["done"]
    [table] = (tmp_path / "runs").rglob("*.table.json")
    assert len(json.loads(table.read_text(encoding="utf-8"))["data"]) == 12
    assert not any("k" * 40 in path.read_text("utf-8", "ignore") for path in tmp_path.rglob("*") if path.is_file())
