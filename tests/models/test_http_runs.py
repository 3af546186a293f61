"""Whole runs against a server: one that goes away, one that answers garbage, and runs whose calls are cached."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from models.standin import Dialect, StandIn, drips, sends, serving

from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.models.http import transport
from nl2sql.runs.evaluate import evaluate, resume, start
from nl2sql.runs.folder import read_jsonl
from nl2sql.runs.plan import RunSpec
from nl2sql.runs.run import Run
from nl2sql.runs.summary import summary_text

NO_TS = build_config(
    {"eval": {"replicas": 0}, "react": {"max_steps": 2, "max_new_tokens": 8}, "single_shot": {"max_new_tokens": 8}}
)
LIMIT = 6


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transport, "FIRST_WAIT_S", 0.01)


def plan(at: StandIn, /, **changes: Any) -> RunSpec:
    base = RunSpec(split="quick", limit=LIMIT, controller="single_shot", model=at.spec, batch_size=2, control=False)
    return replace(base, **changes)


def assert_whole(run: Run) -> None:
    for part in (run.folder, run.folder / "control"):
        if part.exists():
            for name in ("predictions.jsonl", "traces.jsonl"):
                rows = read_jsonl(part / name)
                assert sorted(row["id"] for row in rows) == sorted(run.manifest["questions"])
    assert json.loads((run.folder / "report.json").read_text(encoding="utf-8"))["n"] == LIMIT


def test_a_server_that_goes_away_fails_the_rest_and_keeps_what_was_done(tmp_path: Path) -> None:
    with serving() as server:
        done = threading.Event()

        def gone(said: str) -> Any:
            if sum("SQL" in json.dumps(body) for body in server.requests) > 3 and not done.is_set():
                done.set()
                threading.Thread(target=lambda: (server.shutdown(), server.server_close())).start()
            return (lambda handler: setattr(handler, "close_connection", True)) if done.is_set() else None

        server.when = gone
        run = start(plan(server, server=("retries=2",)), NO_TS, out=tmp_path / "run", progress=False)
    assert_whole(run)
    errors = [row["error"] or "" for row in run.predictions()]
    lost = [error for error in errors if "cannot be reached" in error]
    assert 0 < len(lost) < LIMIT
    assert all(error.startswith(f"model: {server.url}: cannot be reached") and "\n" not in error for error in lost)
    assert run.report["counts"]["errors"]["model"] >= len(lost)


def test_garbage_for_one_question_fails_that_one_only(tmp_path: Path) -> None:
    unlucky = load_benchmark("packaged", split="quick").questions
    with serving(Dialect(window=8192)) as server:
        chosen = plan(server, controller="react", control=True)
        first = start(chosen, NO_TS, out=tmp_path / "first", progress=False)
        victim = first.manifest["questions"][2]
        text = next(q.text for q in unlucky if q.id == victim)
        server.when = lambda said: sends("<html>502</html>") if json.dumps(text)[1:-1] in said else None
        run = start(replace(chosen, cache=False), NO_TS, out=tmp_path / "second", progress=False)
    assert_whole(run)
    failed = {row["id"]: row["error"] for row in run.predictions() if "not JSON" in (row["error"] or "")}
    assert list(failed) == [victim]
    assert failed[victim] == f"model: {server.url}: the answer is not JSON: '<html>502</html>'"
    assert [r["sql"] for r in run.predictions() if r["id"] != victim] != []


def test_ctrl_c_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    with serving() as server:
        server.when = lambda said: drips if "SQL" in said else None
        out = tmp_path / "run"
        command = [sys.executable, "-m", "nl2sql.cli", "eval", "--model", server.spec, "--out", str(out), "-q"]
        process = subprocess.Popen(
            [*command, "--limit", "4", "--controller", "single_shot"], stderr=subprocess.PIPE, text=True, env=os.environ
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any("SQL" in json.dumps(body) for body in server.requests):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    assert time.monotonic() - began < 20


def test_a_repeated_run_takes_its_calls_from_the_cache_and_says_so(tmp_path: Path) -> None:
    with serving(Dialect(window=8192)) as server:
        chosen = plan(server, controller="react", control=True, server=("price_in=1", "price_out=2"))
        first = start(chosen, NO_TS, out=tmp_path / "first", progress=False)
        asked = len(server.requests)
        second = start(chosen, NO_TS, out=tmp_path / "second", progress=False)
        probes = len(server.requests) - asked
        third = start(replace(chosen, cache=False), NO_TS, out=tmp_path / "third", progress=False)
        asked_again = len(server.requests) - asked - 2 * probes
    assert asked_again > 0 and probes < 15
    assert {r["id"]: r["sql"] for r in first.predictions()} == {r["id"]: r["sql"] for r in second.predictions()}
    used = second.report["usage"]
    assert used["cached_calls"] == used["model_calls"] > 0 and used["cost"] == used["prefill_tokens"] == 0
    assert used["prompt_tokens"] == first.report["usage"]["prompt_tokens"]
    assert f"{used['model_calls']} of {used['model_calls']} model calls came from the response cache" in summary_text(
        second.report
    )
    for run in (first, third):
        assert run.report["usage"]["cost"] > 0 and "cost, whole set" in summary_text(run.report)
    assert third.report["usage"]["cached_calls"] == 0 and "response cache" not in summary_text(third.report)
    row = second.predictions()[0]["usage"]
    assert row["cached_calls"] == row["model_calls"] and {"queue_seconds", "compute_seconds", "cost"} <= set(row)


def test_loop_and_control_share_identical_calls(tmp_path: Path) -> None:
    with serving(Dialect(window=8192)) as server:
        chosen = plan(server, controller="single_shot")
        start(chosen, NO_TS, out=tmp_path / "first", progress=False)
        asked = len(server.requests)
        run = start(replace(chosen, controller="react", control=True), NO_TS, out=tmp_path / "second", progress=False)
        assert run.report["control"]["with_guardrails"]["usage"]["cached_calls"] == LIMIT
        assert len(server.requests) > asked


def test_a_run_of_a_server_resumes_with_its_options(tmp_path: Path) -> None:
    with serving() as server:
        chosen = plan(server, server=("price_in=1", "context_window=1999"), cache=False)
        run = start(chosen, NO_TS, out=tmp_path / "run", progress=False)
        lines = (run.folder / "predictions.jsonl").read_bytes().splitlines(keepends=True)
        (run.folder / "predictions.jsonl").write_bytes(b"".join(lines[:2]))
        again = resume(run.folder, progress=False, trust=True)
    assert again.manifest["model"]["context_window"] == 1999
    assert again.report["metrics"] == run.report["metrics"] and len(again.predictions()) == LIMIT


def test_a_model_object_is_cached_only_when_asked(tmp_path: Path) -> None:
    from nl2sql.models import load_model

    with serving() as server:
        model = load_model(server.spec)
        counts = []
        for number, cache in enumerate((None, True, True)):
            before = len(server.requests)
            options: dict[str, Any] = {"limit": 3, "control": False, "config": NO_TS, "cache": cache}
            out = tmp_path / str(number)
            evaluate("packaged", model, "single_shot", split="quick", out=out, progress=False, **options)
            counts.append(len(server.requests) - before)
    assert counts[0] == counts[1] > counts[2] == 0
