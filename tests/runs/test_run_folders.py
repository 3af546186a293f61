"""Run folders: killed and resumed, scored again, checked, exported."""

from __future__ import annotations

import csv
import json
import random
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import killed_runs
import pytest

from nl2sql.agents.record import Episode
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.scores import item_field
from nl2sql.interfaces import Question
from nl2sql.runs.evaluate import resume, start
from nl2sql.runs.export import FIELDS, failures, write_failures
from nl2sql.runs.folder import RunFolder, cut_torn_ends, locked, read_jsonl
from nl2sql.runs.listing import check_run, entries
from nl2sql.runs.plan import RunSpec
from nl2sql.runs.report import write_report
from nl2sql.runs.rescore import replay
from nl2sql.runs.run import Run
from nl2sql.runs.summary import summary_text

ROOT = Path(__file__).resolve().parents[2]
NO_TS = build_config({"eval": {"replicas": 0}})
GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]


def write_script(path: Path) -> Path:
    """Right for every second of the quick questions; the others name a table that does not exist."""
    replies: dict[str, Any] = {}
    for number, question in enumerate(load_benchmark("packaged", split="quick").questions):
        sql = question.gold[0] if number % 2 else "SELECT x FROM nowhere"
        acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", sql, *GATES, *["no"] * 20]
        replies[question.text] = {"react": acts, "single_shot": ["SELECT 1 AS one"]}
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    plan = RunSpec(split="quick", limit=12, model=f"scripted:{write_script(folder / 'script.json')}")
    start(plan, NO_TS, out=folder / "run", progress=False)
    return folder / "run"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be spoiled."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def failed(folder: Path) -> list[str]:
    return [f"{finding.what}: {finding.detail}" for finding in check_run(folder) if finding.status == "fail"]


# ------------------------------------------------------------------------------------------------ interrupted


@pytest.mark.parametrize(("limit", "dialogues", "kills"), [(12, False, 5), (2, True, 2)])
def test_a_run_killed_again_and_again_loses_and_doubles_nothing(
    tmp_path: Path, limit: int, dialogues: bool, kills: int
) -> None:
    script, disturbed, whole = (tmp_path / name for name in ("script.json", "disturbed", "whole"))
    questions, asked = killed_runs.asked_questions(limit, dialogues), killed_runs.eval_options(limit, dialogues)
    killed_runs.write_script(script, questions, 0.02)
    killed_runs.finish(script, whole, asked)
    killed_runs.disturbed_run(script, disturbed, asked, kills, random.Random(1))
    assert killed_runs.differences(disturbed, whole, len(questions)) == []


def test_a_folder_killed_before_its_manifest_can_be_started_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / ".manifest.json.77.tmp").write_text('{"form', encoding="utf-8")
    plan = RunSpec(split="quick", limit=2, control=False, model=f"scripted:{write_script(tmp_path / 's.json')}")
    assert start(plan, NO_TS, out=out, progress=False).report["n"] == 2


@pytest.mark.parametrize("cut", [1, 40, 4000])
def test_what_a_kill_left_half_done_is_cut_and_done_again(folder: Path, cut: int) -> None:
    before = json.loads((folder / "report.json").read_text(encoding="utf-8"))["items"]
    (folder / "report.json").unlink()
    lines = (folder / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "predictions.jsonl").write_bytes(b"".join(lines[:-1]))  # its trace was written, the prediction not
    traces = (folder / "traces.jsonl").read_bytes()
    (folder / "traces.jsonl").write_bytes(traces + traces[:cut])
    after = resume(folder, progress=False, trust=True).report["items"]
    assert [{**item, "seconds": 0} for item in after] == [{**item, "seconds": 0} for item in before]
    ids = [row["id"] for row in read_jsonl(folder / "traces.jsonl")]
    assert len(ids) == len(set(ids)) == 12


def test_mending_a_whole_folder_changes_no_byte(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.jsonl")}
    cut_torn_ends(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*.jsonl")} == before


def test_a_line_is_written_whole_or_not_at_all_on_a_full_disk(tmp_path: Path) -> None:
    store = RunFolder(tmp_path, "k", tmp_path)
    store.add(Episode(Question("first", id="1"), "c"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before["traces.jsonl"]) + 100, hard))  # a file may not grow further
    try:
        with pytest.raises(Nl2SqlError, match="make room, then: nl2sql eval --resume"):
            store.add(Episode(Question("x" * 5000, id="2"), "c"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    store.add(Episode(Question("second", id="2"), "c"))
    assert store.done() == {"1", "2"}


def test_wall_clock_is_kept_over_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nl2sql.runs.folder.TICK_S", 0.0)
    for number in range(2):
        store = RunFolder(tmp_path, "k", tmp_path)  # never closed: each is killed after one question
        store.start_clock()
        store._ticked -= 7.0
        store.add(Episode(Question("q", id=str(number)), "c"))
    assert 14.0 <= RunFolder(tmp_path, "k", tmp_path).seconds() < 15.0


def test_two_processes_do_not_run_in_one_folder(folder: Path) -> None:
    before = (folder / "predictions.jsonl").read_bytes()
    with locked(folder, cut=True), pytest.raises(UsageError, match="another process is running in"):
        resume(folder, progress=False, trust=True)
    assert (folder / "predictions.jsonl").read_bytes() == before


@pytest.mark.parametrize("tail", [b"\x00" * 300, b"\x00" * 300 + b"\n", b"[1, 2]\n"])
def test_what_a_power_cut_leaves_at_the_end_of_the_traces_is_cut(folder: Path, tail: bytes) -> None:
    path = folder / "traces.jsonl"
    before = path.read_bytes()
    path.write_bytes(before + tail)
    cut_torn_ends(folder)
    assert path.read_bytes() == before


def test_a_broken_line_is_named(folder: Path) -> None:
    path = folder / "predictions.jsonl"
    path.write_bytes(b"{no json}\n" + path.read_bytes())
    with pytest.raises(
        Nl2SqlError, match=r"predictions\.jsonl line 1 is not a JSON object; remove that line and resume"
    ):
        resume(folder, progress=False, trust=True)
    assert failed(folder)[0].startswith("predictions.jsonl: ")


def test_a_file_is_read_up_to_the_most_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nl2sql.runs.folder.MOST_LINES", 3)
    path = tmp_path / "predictions.jsonl"
    path.write_text("{}\n" * 3)
    assert read_jsonl(path) == [{}] * 3
    path.write_text("{}\n" * 4)
    with pytest.raises(Nl2SqlError, match="has more than 3 lines"):
        read_jsonl(path)


def test_a_folder_of_another_version_is_refused_by_name(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest |= {"format": 99, "environment": {"nl2sql": "9.9.9"}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for use in (lambda: resume(folder), lambda: replay(folder), lambda: Run.load(folder), lambda: failed(folder)):
        with pytest.raises(UsageError, match=r"run format 99 of nl2sql 9\.9\.9"):
            use()


# --------------------------------------------------------------------------------------------------- replayed


def test_replay_gives_the_same_report_without_a_model(folder: Path) -> None:
    before = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    (folder.parent / "script.json").unlink(missing_ok=True)
    (folder / "report.json").unlink()
    after = replay(folder, progress=False).report
    assert {k: after[k] for k in before if k not in ("seconds", "items", "run")} == {
        k: before[k] for k in before if k not in ("seconds", "items", "run")
    }
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["metrics"] == before["metrics"]


def test_replay_scores_with_other_settings_of_the_scoring_only(folder: Path) -> None:
    again = replay(folder, overrides=["eval.replicas=1"], progress=False).report
    assert "TS[bag,perturb,N=1]" in again["metrics"] and again["eval"]["replicas"] == 1
    with pytest.raises(UsageError, match=r"it takes eval\.rule, eval\.method, eval\.replicas"):
        replay(folder, overrides=["react.max_steps=3"])


def test_another_scoring_goes_beside_the_runs_own(folder: Path) -> None:
    own = (folder / "report.json").read_bytes()
    report = replay(folder, overrides=["eval.replicas=1"], progress=False).report
    beside = folder / report["file"]
    assert re.fullmatch(r"report\.bag-[0-9a-f]{8}\.json", beside.name)
    assert json.loads(beside.read_text(encoding="utf-8"))["eval"]["replicas"] == 1
    other = replay(folder, overrides=["eval.rule=spider", "eval.replicas=1"], progress=False).report["file"]
    assert other.startswith("report.spider-")
    assert replay(folder, overrides=["eval.replicas=1"], progress=False).report["file"] == beside.name
    assert (folder / "report.json").read_bytes() == own
    assert Run.load(folder).report["eval"] == json.loads(own)["eval"]
    settings = json.loads(own)["eval"]
    same = replay(folder, overrides=[f"eval.replicas={settings['replicas']}"], progress=False).report
    assert "file" not in same
    replaced = replay(folder, overrides=["eval.replicas=1"], replace=True, progress=False).report
    assert "file" not in replaced and Run.load(folder).report["eval"]["replicas"] == 1


@pytest.mark.parametrize(
    ("field", "metrics"),
    [
        ("va", ["VA"]),
        ("em", ["EM"]),
        ("ex", ["EX[bag]", "EX[spider]", "EX[bag~1e-3]"]),
        ("ts", ["TS[bag,perturb,N=5]", "TS[bird-set,suite,N=10]", "TS[bag,my-folder]"]),
    ],
)
def test_a_metric_is_read_from_its_own_verdict_whatever_its_rule(field: str, metrics: list[str]) -> None:
    assert [item_field(metric) for metric in metrics] == [field] * len(metrics)


def test_replay_by_another_rule_names_it_everywhere(folder: Path) -> None:
    """The answers hold every row of the gold's twice, which only BIRD's rule takes for the same."""
    golds = {q.id: q.gold[0].rstrip("; ") for q in load_benchmark("packaged", split="quick").questions}

    def doubled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        texts = [f"SELECT * FROM ({golds[row['id']]})" for row in rows]
        return [{**row, "sql": f"{text} UNION ALL {text}"} for row, text in zip(rows, texts, strict=True)]

    edit(folder / "predictions.jsonl", doubled)
    assert replay(folder, progress=False).report["metrics"]["EX[bag]"]["value"] == 0.0
    chosen = ["eval.rule=bird-set", "eval.method=suite", "eval.replicas=2"]
    report = replay(folder, overrides=chosen, replace=True, progress=False).report
    assert list(report["metrics"]) == ["VA", "EM", "EX[bird-set]", "TS[bird-set,suite,N=2]"]
    assert report["eval"] == {
        "timeout_s": 30.0,
        "max_rows": 100_000,
        "rule": "bird-set",
        "method": "suite",
        "replicas": 2,
    }
    assert report["metrics"]["EX[bird-set]"]["value"] == 1.0
    assert "EX[bird-set] against single_shot: 12 won, 0 lost" in summary_text(report, verbose=True)
    run = Run.load(folder)
    assert failures(run) == [] and len(failures(run, metric="TS[bird-set,suite,N=2]")) == sum(
        not item["ts"] for item in report["items"]
    )
    none_robust = Run(folder, run.manifest, {**report, "items": [item | {"ts": False} for item in report["items"]]})
    assert (
        run.paired(none_robust)["EX[bird-set]"]["wins"] == 0 < run.paired(none_robust)["TS[bird-set,suite,N=2]"]["wins"]
    )
    frame = run.to_dataframe()
    assert frame["ex"].all() and list(frame["ts"]) == [item["ts"] for item in report["items"]]


def test_an_unknown_rule_is_refused_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    report = (folder / "report.json").read_bytes()
    with pytest.raises(UsageError, match="no rule is called 'spidre'; choose bag, spider"):
        replay(folder, overrides=["eval.rule=spidre"])
    assert (folder / "report.json").read_bytes() == report
    plan = RunSpec(split="quick", limit=2, model=f"scripted:{write_script(tmp_path / 's.json')}")
    for wrong in ({"rule": "spidre"}, {"replicas": "nowhere"}):
        with pytest.raises(UsageError, match=r"spidre|/nowhere is neither a number nor a folder"):
            start(plan, build_config({"eval": wrong}), out=tmp_path / "new", progress=False)
    assert not (tmp_path / "new").exists()


def test_a_report_over_two_rules_says_what_to_type(folder: Path, finished: Path, tmp_path: Path) -> None:
    replay(folder, overrides=["eval.rule=spider"], replace=True, progress=False)
    with pytest.raises(UsageError, match=r"different rules \(EX\[bag\], EX\[spider\]\)") as refused:
        write_report([finished, folder], tmp_path / "both.html")
    command = str(refused.value).rpartition("nl2sql runs replay ")[2].split()
    assert command == [str(folder), "-c", "eval.rule=bag", "--replace"]
    replay(command[0], overrides=[command[2]], replace=True, progress=False)
    assert write_report([finished, folder], tmp_path / "both.html").exists()


def test_replay_of_an_unfinished_run_scores_what_is_there_only_when_asked_to(folder: Path) -> None:
    lines = (folder / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "predictions.jsonl").write_bytes(b"".join(lines[:5]))
    report = (folder / "report.json").read_bytes()
    with pytest.raises(UsageError, match=r"owes 7 of 12 questions \(run\); finish it with: nl2sql eval --resume"):
        replay(folder)
    assert replay(folder, partial=True, progress=False).report["n"] == 5
    assert (folder / "report.json").read_bytes() == report


def test_replay_does_not_score_a_control_that_is_not_finished(folder: Path) -> None:
    (folder / "control" / "predictions.jsonl").unlink()
    with pytest.raises(UsageError, match=r"owes 12 of 12 questions \(single_shot\)"):
        replay(folder)
    assert replay(folder, partial=True, progress=False).report["control"] == {}


def test_a_run_with_seeds_is_replayed_checked_and_read_as_a_whole(tmp_path: Path) -> None:
    plan = RunSpec(split="quick", limit=4, seeds=(1, 2), model=f"scripted:{write_script(tmp_path / 's.json')}")
    before = start(plan, NO_TS, out=tmp_path / "run", progress=False).report
    after = replay(tmp_path / "run", progress=False).report
    assert after["metrics"] == before["metrics"] and after["warnings"] == before["warnings"]
    assert failed(tmp_path / "run") == []
    frame = Run.load(tmp_path / "run").to_dataframe()
    assert sorted(frame["seed"]) == [1] * 4 + [2] * 4
    again = replay(tmp_path / "run", overrides=["eval.rule=spider"], progress=False).report
    assert 0 < again["metrics"]["EX[spider]"]["value"] == before["metrics"]["EX[bag]"]["value"]


# ---------------------------------------------------------------------------------------------------- checked


def test_a_finished_run_passes_the_check_without_a_warning(folder: Path) -> None:
    assert {finding.status for finding in check_run(folder)} == {"ok"}


def edit(path: Path, change: Any) -> None:
    rows = change(read_jsonl(path))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


SPOILED = {
    "another SQL": (lambda rows: [{**rows[0], "sql": "SELECT 2"}, *rows[1:]], "fail", "differs from its trace"),
    "a stranger": (lambda rows: [*rows, {**rows[0], "id": "stranger"}], "fail", "not among the run's questions"),
    "a repeat": (lambda rows: [*rows, rows[0]], "warn", "predicted twice"),
    "another key": (lambda rows: [*rows, {**rows[0], "key": "old"}], "warn", "lines of another key"),
    "a gap": (lambda rows: rows[1:], "warn", "1 (run); nl2sql eval --resume"),
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_the_check_names_what_is_wrong(folder: Path, spoil: str) -> None:
    change, status, text = SPOILED[spoil]
    edit(folder / "predictions.jsonl", change)
    assert [finding for finding in check_run(folder) if finding.status == status and text in finding.detail]


def test_the_check_sees_torn_lines_and_stale_reports(folder: Path) -> None:
    with (folder / "traces.jsonl").open("ab") as file:
        file.write(b'{"id": "q')
    assert any("torn" in finding.detail for finding in check_run(folder) if finding.status == "warn")
    for name in ("predictions.jsonl", "traces.jsonl"):
        edit(folder / name, lambda rows: [{**row, "sql": "SELECT 3"} for row in rows])
    assert any("12 predictions are not those it scored" in finding for finding in failed(folder))


def test_the_check_sees_predictions_that_are_gone(folder: Path) -> None:
    edit(folder / "predictions.jsonl", lambda rows: rows[:9])
    assert any("3 of the predictions that it scored are gone" in finding for finding in failed(folder))
    (entry,) = [entry for entry in entries(folder.parent) if entry.path == str(folder)]
    assert entry.state == "9 of 12"


def test_the_check_sees_that_the_questions_changed(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["fingerprints"]["questions"] = "0" * 24
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert any("changed since the run was made: questions" in finding for finding in failed(folder))


# --------------------------------------------------------------------------------------------------- exported


def test_failures_are_the_wrong_items_with_their_golds(finished: Path) -> None:
    run = Run.load(finished)
    rows = failures(run)
    wrong = [item["id"] for item in run.report["items"] if not item["ex"]]
    assert [row["id"] for row in rows] == wrong and wrong
    golds = {question.id: question.gold[0] for question in load_benchmark("packaged").questions}
    assert all(row["gold"] == golds[row["id"]] and row["cause"] and row["label"] == "" for row in rows)


def test_wrong_items_without_their_predictions_are_not_exported(folder: Path) -> None:
    (folder / "predictions.jsonl").unlink()
    with pytest.raises(UsageError, match=r"holds no prediction of 12 of the 12 .* again: nl2sql eval --resume"):
        failures(Run.load(folder))


def test_a_spreadsheet_takes_no_cell_for_a_formula(tmp_path: Path) -> None:
    hostile = ["=HYPERLINK(1)", "+1", "-1", "@x", "\tx", 'say "=1"', "a\nb", "\x00", "\ud800"]
    rows = [dict.fromkeys(FIELDS) | {"id": str(n), "question": text} for n, text in enumerate(hostile)]
    write_failures(rows, tmp_path / "f.csv")
    with (tmp_path / "f.csv").open(encoding="utf-8", newline="") as file:
        read = [row["question"] for row in csv.DictReader(file)]
    assert read[:5] == ["'" + text for text in hostile[:5]] and read[5:7] == hostile[5:7]
    write_failures(rows, tmp_path / "f.jsonl")
    assert [row["question"] for row in read_jsonl(tmp_path / "f.jsonl")][:8] == hostile[:8]


def test_annotations_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="exists"):
        write_failures([], tmp_path / "f.csv")
    assert (tmp_path / "f.csv").read_text(encoding="utf-8") == "mine"
    with pytest.raises(UsageError, match=r"\.csv or \.jsonl"):
        write_failures([], tmp_path / "f.xls")


def test_reading_a_run_loads_no_model_library() -> None:
    rooms = ", ".join(f"nl2sql.runs.{name}" for name in ("rescore", "listing", "export", "report", "ablation"))
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_plan_is_imported_without_heavy_libraries() -> None:
    heavy = ("pydantic", "yaml", "numpy", "scipy", "pandas", "datasets", "matplotlib", "torch", "tqdm")
    code = f"import sys, nl2sql.runs.plan; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
