"""A run killed with SIGKILL at random moments and resumed each time, beside one that nobody disturbed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.benchmarks.core import draw_dialogues, draw_sample
from nl2sql.benchmarks.packaged import PACKAGED_DIALOGUES
from nl2sql.interfaces import Question
from nl2sql.runs.folder import read_jsonl

GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
DIALOGUES = ["--dialogues", "--history", "own", "-c", "session.resolve=concat"]  # which asks no model
TIMINGS = {"seconds", "queue_seconds", "compute_seconds", "run", "began", "command"}


def asked_questions(limit: int, dialogues: bool) -> list[Question]:
    """What the run asks: ``limit`` questions of ``packaged``, or all turns of ``limit`` packaged dialogues."""
    name, draw = (PACKAGED_DIALOGUES, draw_dialogues) if dialogues else ("packaged", draw_sample)
    return draw([q for q in load_benchmark(name, split="dev").questions if scorable(q)], limit, 0)


def eval_options(limit: int, dialogues: bool) -> list[str]:
    """The options of ``nl2sql eval`` that ask these questions."""
    return ["--limit", str(limit), *(DIALOGUES if dialogues else [])]


def write_script(path: Path, questions: Sequence[Question], delay_s: float) -> None:
    """Replies that are right for every second question; each takes ``delay_s``."""
    replies = {}
    for number, question in enumerate(questions):
        sql = question.gold[0] if number % 2 else "SELECT x FROM nowhere"
        acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", sql, *GATES, *["no"] * 20]
        slow = [{"text": text, "delay_s": delay_s} for text in acts]
        replies[question.text] = {"react": slow, "single_shot": [{"text": "SELECT 1 AS one", "delay_s": delay_s}]}
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")


def eval_command(script: Path, out: Path, asked: Sequence[str]) -> list[str]:
    fresh = ["--split", "dev", *asked, "--model", f"scripted:{script}", "--out", str(out)]
    options = fresh if not (out / "manifest.json").exists() else ["--resume", str(out), "--trust"]
    quick = [] if "--resume" in options else ["--batch-size", "4", "--replicas", "1"]
    return [sys.executable, "-m", "nl2sql.cli", "eval", *options, *quick, "--quiet"]


def disturbed_run(script: Path, out: Path, asked: Sequence[str], kills: int, rng: random.Random) -> None:
    """Start or resume the run and kill it, ``kills`` times: at any moment, or right after a question was finished.

    A start that came to its end before it was hit does not count; then scoring is what the next ones interrupt.
    """
    number = 0
    while number < kills:
        process = subprocess.Popen(
            eval_command(script, out, asked), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if number % 4 == 0 or (out / "report.json").exists():
            time.sleep(rng.uniform(0, 1.5))
        else:
            _wait_for_growth(out, process)
            time.sleep(rng.choice((0.0, 0.0, rng.uniform(0, 0.1))))
        process.kill()
        _, err = process.communicate()
        if process.returncode == 0:
            continue
        if process.returncode != -signal.SIGKILL:
            raise AssertionError(f"start {number + 1} failed with exit code {process.returncode}: {err.strip()}")
        number += 1
    finish(script, out, asked)


def _wait_for_growth(out: Path, process: subprocess.Popen[str]) -> None:
    sizes = _sizes(out)
    deadline = time.monotonic() + 60
    while process.poll() is None and _sizes(out) == sizes and time.monotonic() < deadline:
        time.sleep(0.001)


def finish(script: Path, out: Path, asked: Sequence[str]) -> None:
    """Run or resume undisturbed."""
    done = subprocess.run(eval_command(script, out, asked), capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"the run in {out} failed: {done.stderr.strip()}")


def _sizes(out: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(out.rglob("traces.jsonl"))]


def differences(disturbed: Path, whole: Path, questions: int) -> list[str]:
    """What is wrong with the disturbed run: items lost or doubled, anything but timings that differs."""
    found = []
    for folder in ("", "control"):
        for name in ("predictions.jsonl", "traces.jsonl"):
            ids = [row["id"] for row in read_jsonl(disturbed / folder / name)]
            if len(ids) != questions or len(set(ids)) != questions:
                found.append(f"{folder}/{name}: {len(ids)} lines, {len(set(ids))} questions of {questions}")
    mine, theirs = (json.loads((folder / "report.json").read_text(encoding="utf-8")) for folder in (disturbed, whole))
    for key in {**mine, **theirs}:
        texts = [json.dumps(_untimed(report.get(key))) for report in (mine, theirs)]
        if key not in TIMINGS and texts[0] != texts[1]:
            found.append(f"report: {key} differs")
    understood = [_sessions(folder) for folder in (disturbed, whole)]
    found += [f"{id_}: another history" for id_, told in understood[1].items() if understood[0].get(id_) != told]
    return found


def _sessions(folder: Path) -> dict[str, Any]:
    """Question id -> what a turn of a dialogue was understood as, from the history that it had."""
    rows = [row for part in ("", "control") for row in read_jsonl(folder / part / "traces.jsonl")]
    told = ((row["id"], row["controller"], row["flags"].get("session"), row["sql"]) for row in rows)
    return {f"{id_} ({controller})": (session, sql) for id_, controller, session, sql in told}


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(item) for key, item in value.items() if key not in TIMINGS}
    return [_untimed(item) for item in value] if isinstance(value, list) else value
