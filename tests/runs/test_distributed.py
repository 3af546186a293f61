"""Work on a real Ray cluster of two nodes: what comes out is what comes out here, also when a node is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import programs
import pytest

from nl2sql.agents.controllers import get_controller
from nl2sql.benchmarks import load_benchmark
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.config import build_config
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval import score_many
from nl2sql.interfaces import Question
from nl2sql.models.scripted import ScriptedModel
from nl2sql.repair.corpus import Corpus
from nl2sql.runs import distributed
from nl2sql.runs.ablation import ablate, expand
from nl2sql.runs.distributed import Assignment, Ray, cut, fingerprints_of, run_shard
from nl2sql.runs.evaluate import evaluate, start
from nl2sql.runs.folder import read_jsonl
from nl2sql.runs.job import Job
from nl2sql.runs.plan import RunSpec, open_model
from nl2sql.runs.run import Run

INSTALL = "pip install 'nl2sql-harness[ray]'"
TIMINGS = {"began", "seconds", "queue_seconds", "compute_seconds", "run"}
GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
STORE = 80 * 2**20
NO_TS = {"eval": {"replicas": 0}}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A head and ways to add nodes of one CPU each; small, without dashboard and without a token in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")
        pytest.importorskip("ray", reason=INSTALL)
        from ray.cluster_utils import Cluster as Nodes

        size = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        nodes = Nodes(initialize_head=True, head_node_args=size)
        yield nodes
        nodes.shutdown()


@pytest.fixture(scope="module")
def ray(nodes: Any) -> Iterator[Ray]:
    """Both nodes, each with a worker that has done something."""

    def node_of_this_worker() -> str:
        import ray

        time.sleep(0.5)
        return str(ray.get_runtime_context().get_node_id())

    nodes.add_node(num_cpus=1, object_store_memory=STORE)
    with Ray(nodes.address) as ray:
        seen: set[str] = set()
        while len(seen) < 2:
            seen |= {node for _, node in ray.map(node_of_this_worker, [()] * 2)}
        yield ray


def script_of(path: Path, delay_s: float = 0.0) -> str:
    """Every second question right at once, every fourth after a repair, the others wrong."""
    replies: dict[str, Any] = {}
    for number, question in enumerate(load_benchmark("packaged", split="dev").questions):
        gold, wrong = question.gold[0], "SELECT 1 AS one FROM nowhere"
        begin = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]"]
        acts = [[gold, *GATES], [wrong, GATES[0], "done", gold, *GATES], [gold, *GATES], [wrong]][number % 4]
        slow = [{"text": text, "delay_s": delay_s} for text in [*begin, *acts, *["no"] * 20]]
        replies[question.text] = {"react": slow, "single_shot": [gold if number % 3 else ""]}
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    return f"scripted:{path}"


def timeless(value: Any) -> Any:
    """Plain data without what a clock or a folder decides."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMINGS}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def lines_of(folder: Path, name: str) -> list[str]:
    """The lines of a run and its control in the order of their ids, byte for byte but for timings."""
    rows = [*read_jsonl(folder / name), *read_jsonl(folder / "control" / name)]
    for row in rows:
        for call in row.get("calls", ()):
            del call["started"]
    return sorted(json.dumps(timeless(row)) for row in rows)


def same_runs(here: Path, there: Path) -> None:
    for name in ("predictions.jsonl", "traces.jsonl"):
        assert lines_of(here, name) == lines_of(there, name)
    reports = [json.loads((folder / "report.json").read_text()) for folder in (here, there)]
    assert timeless(reports[0]) == timeless(reports[1])


# ------------------------------------------------------------------------------------------------ without Ray


def test_every_question_is_in_one_shard_of_its_database() -> None:
    benchmark = load_benchmark("packaged", split="dev")
    shards = cut(benchmark, benchmark.questions, size=7)
    assert sorted(q.id for shard in shards for q in shard.questions) == sorted(q.id for q in benchmark.questions)
    for shard in shards:
        (db_id,) = {question.db_id for question in shard.questions}
        assert 0 < len(shard.questions) <= 7 and shard.file == Path(benchmark.database(db_id).path)  # type: ignore[attr-defined]
        assert shard.open().database(db_id).fingerprint == benchmark.database(db_id).fingerprint


def test_a_worker_whose_file_is_another_says_which(shop: Path, tmp_path: Path) -> None:
    benchmark = FolderBenchmark("toy", [Question("?", "shop", "1"), Question("?", "lost", "2")], {}, {"shop": shop})
    known, lost = cut(benchmark, benchmark.questions)
    assert lost.file is None and lost.open().files == {}  # no file here either: the item says so, as it does locally
    shop.write_bytes(shop.read_bytes() + b"\0" * 4096)
    with pytest.raises(UsageError, match=rf"has no such {shop}; databases have to lie in a folder"):
        known.open()


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install .*\[ray\]' \(or --executor local\)"), Ray():
        raise AssertionError("a cluster was opened")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at --address 127.0.0.1:1 .*start one with: ray start --head"),
        ("somewhere", "expected HOST:PORT"),
        ("ray://127.0.0.1:10001", "expected HOST:PORT"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
    ],
)
def test_an_address_without_a_cluster_is_refused_in_one_line(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as found, Ray(address):
        raise AssertionError("a cluster was opened")
    assert "\n" not in str(found.value)


def write_corpus(path: Path, fixed: str) -> dict[str, Any]:
    """The settings under which the one fix of a new corpus is shown."""
    path.unlink(missing_ok=True)
    Corpus(path, create=True).store_fix("no such column: nam", "SELECT nam FROM t", fixed, "misspelled")
    return {"repair": {"guidance": "patterns+corpus", "corpus": str(path)}}


def write_pool(path: Path, sql: str) -> dict[str, Any]:
    path.write_text(json.dumps({"question": "?", "sql": sql, "db_id": "shop"}) + "\n", encoding="utf-8")
    return {"few_shot": {"k": 1, "pool": str(path)}}


def write_script(path: Path, text: str) -> dict[str, Any]:
    path.write_text(json.dumps({"replies": {"*": [text]}}), encoding="utf-8")
    return {}


@pytest.mark.parametrize(
    ("write", "name", "what"),
    [
        (write_corpus, "fixes.db", "corpus {file}"),
        (write_pool, "pool.jsonl", "few-shot pool {file}"),
        (write_script, "script.json", "model scripted:{file}"),
    ],
)
def test_a_worker_refuses_other_content_at_the_same_path(
    write: Callable[[Path, str], dict[str, Any]], name: str, what: str, shop: Path, tmp_path: Path
) -> None:
    file = tmp_path / name
    script = file if write is write_script else tmp_path / "s.json"
    write_script(tmp_path / "s.json", "SELECT 1")
    config = build_config(write(file, "SELECT name FROM t"))
    question = Question("?", "shop", "1")
    (shard,) = cut(FolderBenchmark("toy", [question], {}, {"shop": shop}), [question])
    plan, named = RunSpec(model=f"scripted:{script}", cache=False), get_controller("single_shot")
    fingerprints = fingerprints_of(Job(plan, named, config, shard.questions, shard.open(), open_model(plan), {}, {}))
    order = Assignment(plan, "single_shot", config, fingerprints, {}, {})
    assert [episode.question.id for episode in run_shard(order, shard)] == ["1"]
    write(file, "SELECT names FROM t")
    distributed._KEPT.clear()  # as in another process
    with pytest.raises(UsageError, match=rf"the worker on .* has another {what.format(file=file)} than this process"):
        run_shard(order, shard)


# --------------------------------------------------------------------------------------------------- with Ray


def test_cells_of_an_ablation_come_out_as_they_do_here(ray: Ray, tmp_path: Path) -> None:
    base = {"model": script_of(tmp_path / "s.json"), "split": "dev", "limit": 12, "config": {"eval": {"replicas": 1}}}
    cells = expand({"base": base, "cells": {"no-repair": {"react.repair": False}}})
    here = ablate(cells, tmp_path / "here", progress=False)
    there = ablate(cells, tmp_path / "there", progress=False, executor=ray)
    assert there.tests() == here.tests() and there.tests()["no-repair"].losses > 0
    for cell in cells:
        same_runs(tmp_path / "here" / cell.name, tmp_path / "there" / cell.name)


def test_scores_of_several_files_are_those_of_one_machine(ray: Ray) -> None:
    benchmark = load_benchmark("packaged", split="dev")
    golds = {question.id: question.gold[0] for question in benchmark.questions}
    broken = {id_: sql if number % 2 else "SELECT nothing" for number, (id_, sql) in enumerate(golds.items())}
    files = {"golds": golds, "broken": broken | {"unknown": "SELECT 1"}}
    here = score_many(benchmark, benchmark.questions, files, replicas=1)
    there = score_many(benchmark, benchmark.questions, files, replicas=1, executor=ray)
    for name in files:
        assert timeless(there[name].to_dict()) == timeless(here[name].to_dict())
    assert there["golds"].metrics()["EX[bag]"].value == 1.0 > there["broken"].metrics()["EX[bag]"].value


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (UsageError("say it in one line"), UsageError, "^say it in one line$"),
        (ValueError("two\nlines"), Nl2SqlError, r"^a Ray worker failed: ValueError\(.*\)$"),
    ],
)
def test_an_error_on_a_worker_is_the_users_to_read(
    ray: Ray, raised: Exception, error: type[Exception], message: str
) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(error, match=message):
        list(ray.map(fail, [()]))


def test_what_workers_cannot_do_is_refused_before_a_folder_is_made(ray: Ray, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="workers open models by name"):
        evaluate(model=ScriptedModel(["x"]), limit=2, out=tmp_path / "run", executor=ray, progress=False)
    learning = build_config({"repair": {"learn": True, "corpus": "c.db"}})
    with pytest.raises(UsageError, match="--executor local"):
        start(RunSpec(model=script_of(tmp_path / "s.json"), limit=2), learning, out=tmp_path / "run", executor=ray)
    assert not (tmp_path / "run").exists()


def test_a_node_that_is_killed_in_mid_run_changes_nothing(nodes: Any, ray: Ray, tmp_path: Path) -> None:
    plan = RunSpec(model=script_of(tmp_path / "s.json", delay_s=0.1), split="dev", limit=16)
    start(plan, build_config(NO_TS), out=tmp_path / "here", progress=False)
    (second,) = nodes.worker_nodes
    at_work_when_killed: list[bool] = []

    def kill_when_it_works() -> None:
        raylet = second.all_processes["raylet"][0].process.pid
        deadline = time.monotonic() + 60
        while not at_work(raylet) and time.monotonic() < deadline:
            time.sleep(0.02)
        at_work_when_killed.append(at_work(raylet))
        nodes.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill_when_it_works)
    killer.start()
    start(plan, build_config(NO_TS), out=tmp_path / "there", progress=False, executor=ray)
    killer.join()
    assert at_work_when_killed == [True]
    same_runs(tmp_path / "here", tmp_path / "there")


def at_work(raylet: int) -> bool:
    """Whether one of a node's workers is in a task: Ray gives the process the task's name."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == raylet and b"ray::_in_worker" in (folder / "cmdline").read_bytes():
                return True
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue
    return False


def test_work_that_outlives_the_connection_ends_without_a_word(nodes: Any, ray: Ray) -> None:
    program = """
import sys, time
from nl2sql.runs.distributed import Ray
cluster = Ray(sys.argv[1])
work = cluster.map(time.sleep, [(0,), (60,)])
next(work)
cluster.close()
del work
"""
    done = subprocess.run([sys.executable, "-c", program, nodes.address], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_an_interrupted_run_is_continued_without_the_cluster(nodes: Any, ray: Ray, tmp_path: Path) -> None:
    out, command = tmp_path / "out", [sys.executable, "-m", "nl2sql.cli", "eval", "--quiet"]
    plan = ["--split", "dev", "--limit", "16", "--replicas", "0", "--model", script_of(tmp_path / "s.json", 0.1)]
    there = [*plan, "--out", str(out), "--executor", "ray", "--address", nodes.address]
    process = subprocess.Popen([*command, *there], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any(file.stat().st_size for file in out.glob("predictions.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)  # the file is opened before the first question is done
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    kept = len(read_jsonl(out / "predictions.jsonl"))
    assert process.returncode == 130 and 0 < kept < 16 and "Traceback" not in err
    assert f"error: interrupted; {kept} questions are kept in {out}; continue with: nl2sql eval --resume {out}" in err
    assert programs.command("eval", "--quiet", "--resume", out, "--trust", cwd=tmp_path).returncode == 0
    rows = read_jsonl(out / "predictions.jsonl")
    assert len(rows) == len({row["id"] for row in rows}) == 16 == Run.load(out).report["n"]


def test_the_command_line_starts_a_cluster_of_its_own(nodes: Any, tmp_path: Path) -> None:
    file = tmp_path / "golds.jsonl"
    golds = [{"id": q.id, "sql": q.gold[0]} for q in load_benchmark("packaged", split="quick").questions]
    file.write_text("\n".join(map(json.dumps, golds)) + "\n", encoding="utf-8")
    words = ["score", "--split", "quick", "-p", str(file), "--replicas", "0", "--json"]
    program = [sys.executable, "-m", "nl2sql.cli", *words, "--executor", "ray"]
    there = subprocess.run(program, capture_output=True, text=True, check=False)
    here = programs.command(*words, cwd=tmp_path)
    assert there.returncode == 0, there.stderr
    assert timeless(json.loads(there.stdout)) == timeless(json.loads(here.stdout))
    refused = programs.command(*words, "--address", "auto", cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (2, "error: --address auto goes with --executor ray\n")
