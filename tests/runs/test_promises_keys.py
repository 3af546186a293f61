"""What a run's key rests on, what counts as done, and what the control is given."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from people import make_database

from nl2sql.agents import prompts
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.record import Episode
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Question
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import evaluate, resume
from nl2sql.runs.folder import FOLDERS, RunFolder, cut_torn_ends, read_jsonl, write_json
from nl2sql.runs.plan import fingerprints, run_key

MODEL = {"name": "m", "revision": "r1", "dtype": "float32", "device": "cpu"}


def key(**changed: Any) -> str:
    parts: dict[str, Any] = {
        "named": get_controller("react"),
        "config": build_config({}),
        "model": MODEL,
        "fingerprints": {"questions": "q", "shop": "d"},
        "parts": {"tool:count": "t"},
    }
    return run_key(**(parts | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"named": get_controller("single_shot")},
        {"named": replace(get_controller("react"), identity="edited")},
        {"config": build_config({"react": {"max_steps": 9}})},
        {"config": build_config({"seed": 3})},
        {"config": build_config({"prompts": {"generate_user": "{question}"}})},
        {"model": MODEL | {"revision": "r2"}},
        {"model": MODEL | {"dtype": "bfloat16"}},
        {"fingerprints": {"questions": "other", "shop": "d"}},
        {"fingerprints": {"questions": "q", "shop": "other"}},
        {"parts": {"tool:count": "edited"}},
        {"parts": {}},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_whatever_decides_answers_makes_another_run(changed: dict[str, Any]) -> None:
    assert key(**changed) != key()


def test_scoring_and_the_device_make_no_other_run() -> None:
    assert key(config=build_config({"eval": {"replicas": 3, "rule": "spider"}})) == key()
    assert key(model=MODEL | {"device": "cuda"}) == key()


def test_a_packaged_prompt_that_is_edited_makes_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setitem(prompts.PROMPTS, "generate_user", "{schema}\n{question}\nSQL:")
    assert key() != before


def test_fingerprints_are_of_what_a_database_holds_not_of_its_name(tmp_path: Path) -> None:
    hashes = []
    for folder in ("one", "other"):
        file = make_database(
            tmp_path / folder / "shop.sqlite", f"CREATE TABLE t (x); INSERT INTO t VALUES ('{folder}')"
        )
        with SqliteDatabase(file) as database:
            benchmark: Any = SimpleNamespace(database=lambda db_id, opened=database: opened)
            hashes.append(fingerprints(benchmark, [Question("How many?", db_id="shop", id="1")]))
    assert hashes[0]["questions"] == hashes[1]["questions"] and hashes[0]["shop"] != hashes[1]["shop"]


def episode(sql: str = "SELECT 1", id: str = "1") -> Episode:
    return Episode(Question("How many?", id=id), "react", sql=sql, finish="finish")


def test_a_question_is_done_under_its_own_key_and_with_its_trace_only(tmp_path: Path) -> None:
    store = RunFolder(tmp_path, "mine", tmp_path)
    store.add(episode())
    store.add(episode(id="2"))
    store.close()
    assert store.done() == {"1", "2"} and RunFolder(tmp_path, "other", tmp_path).done() == set()
    traces = (tmp_path / "traces.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "traces.jsonl").write_text(traces[1], encoding="utf-8")
    assert store.done() == {"2"}


def test_what_stops_between_two_lines_leaves_a_trace_without_a_prediction(tmp_path: Path) -> None:
    (tmp_path / "predictions.jsonl").mkdir()  # cannot be appended to
    store = RunFolder(tmp_path, "mine", tmp_path)
    with pytest.raises(Nl2SqlError, match=r"predictions\.jsonl is a folder"):
        store.add(episode())
    store.close()
    assert [row["id"] for row in read_jsonl(tmp_path / "traces.jsonl")] == ["1"]


def test_a_torn_last_line_is_cut_so_that_the_next_one_stands_alone(tmp_path: Path) -> None:
    store = RunFolder(tmp_path, "mine", tmp_path)
    store.add(episode())
    store.close()
    with (tmp_path / "predictions.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "2", "sql": "SEL')
    assert [row["id"] for row in read_jsonl(tmp_path / "predictions.jsonl")] == ["1"]
    cut_torn_ends(tmp_path)
    store.add(episode(id="3"))
    store.close()
    assert [row["id"] for row in read_jsonl(tmp_path / "predictions.jsonl")] == ["1", "3"]


def test_a_trace_whose_prediction_was_not_written_is_cut(tmp_path: Path) -> None:
    store = RunFolder(tmp_path, "mine", tmp_path)
    for id in ("1", "2"):
        store.add(episode(id=id))
    store.close()
    first = (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[0]
    (tmp_path / "predictions.jsonl").write_text(first, encoding="utf-8")
    cut_torn_ends(tmp_path)
    assert [row["id"] for row in read_jsonl(tmp_path / "traces.jsonl")] == ["1"]


def test_the_last_line_of_a_question_counts(tmp_path: Path) -> None:
    store = RunFolder(tmp_path, "mine", tmp_path)
    for sql in ("SELECT 1", "SELECT 2"):
        store.add(episode(sql))
    store.close()
    assert [row["sql"] for row in store.predictions()] == ["SELECT 2"] == [row["sql"] for row in store.traces()]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from nl2sql.errors import Nl2SqlError
from nl2sql.runs.folder import write_json
path = Path(sys.argv[1])
write_json(path, {"whole": True})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    write_json(path, {"long": "x" * 100_000})
except Nl2SqlError as error:
    print(error)
"""


def test_a_report_that_does_not_fit_on_the_disk_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True)
    assert done.stdout.startswith(f"cannot write {path}: "), done.stderr
    assert json.loads(path.read_text(encoding="utf-8")) == {"whole": True}
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_whoever_is_reading_a_report_goes_on_reading_the_old_one(tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", {"old": "x" * 100_000})
    with (tmp_path / "report.json").open(encoding="utf-8") as opened:
        write_json(tmp_path / "report.json", {"new": True})
        assert set(json.load(opened)) == {"old"}


def test_the_control_is_one_greedy_call_within_the_loop_s_own_limit(tmp_path: Path) -> None:
    long = " ".join(f"word{n}" for n in range(40))
    replies = {"*": {"react": ["no"] * 9, "single_shot": [long]}}
    settings = {"react": {"max_new_tokens": 7, "max_steps": 2, "vanilla": False}, "eval": {"replicas": 0}}
    settings["single_shot"] = {"samples": 3, "max_new_tokens": 20, "guardrails": False}
    evaluate(
        model=ScriptedModel(replies),
        split="quick",
        limit=1,
        config=build_config(settings),
        out=tmp_path / "run",
        progress=False,
    )
    (row,) = read_jsonl(tmp_path / "run" / FOLDERS["single_shot"] / "traces.jsonl")
    (call,) = row["calls"]
    assert (len(call["text"].split()), call["finish_reason"]) == (7, "length")
    assert row["sql"] == "" and row["flags"]["rejected"][0]["by"] == "guardrails"


def test_what_is_finished_is_not_asked_again(tmp_path: Path) -> None:
    settings = build_config({"react": {"max_steps": 1, "vanilla": False}, "eval": {"replicas": 0}})
    model = ScriptedModel({"*": {"*": ["no"]}})
    run = evaluate(model=model, split="quick", limit=3, config=settings, out=tmp_path / "run", progress=False)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.jsonl") if path.name != "phases.jsonl"}
    again = resume(tmp_path / "run", model=model, progress=False)
    assert {path: path.read_bytes() for path in before} == before and len(before) == 4
    assert again.report["n"] == run.report["n"] == 3
