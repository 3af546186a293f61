"""Kill a run with SIGKILL at random moments, resume it each time, and compare it with one that nobody disturbed.

    python scripts/kill_runs.py --kills 50 --questions 60
    python scripts/kill_runs.py --dialogues --kills 20      in the middle of dialogues, whose turns rest on each other

The model is scripted, so both runs have to come to the same predictions; every question has to be in every file
exactly once, and all metrics have to be the same bytes. Exit code 1 where they are not.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.benchmarks.dialogues import PACKAGED_DIALOGUES, draw_dialogues
from nl2sql.benchmarks.sampling import draw_sample
from nl2sql.interfaces import Question
from nl2sql.runs.folder import read_jsonl

GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
DIALOGUES = ["--dialogues", "--history", "own", "-c", "session.resolve=concat"]  # which asks no model
TIMINGS = {"seconds", "queue_seconds", "compute_seconds", "run"}


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


def disturbed_run(
    script: Path, out: Path, asked: Sequence[str], questions: int, kills: int, rng: random.Random
) -> None:
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
            raise SystemExit(f"start {number + 1} failed with exit code {process.returncode}: {err.strip()}")
        number += 1
        done = [len(read_jsonl(out / part / "predictions.jsonl")) for part in ("", "control")]
        print(f"kill {number}: {done[0]} of {questions} done, control {done[1]}, {_torn(out)}", flush=True)
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
        raise SystemExit(f"the run in {out} failed: {done.stderr.strip()}")


def _sizes(out: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(out.rglob("traces.jsonl"))]


def _torn(out: Path) -> str:
    files = [path for path in out.rglob("*.jsonl") if path.read_bytes()[-1:] not in (b"", b"\n")]
    return f"torn: {', '.join(file.name for file in files)}" if files else "no torn line"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--questions", type=int, help="how many are asked, or dialogues; default: 60, or 6")
    parser.add_argument("--dialogues", action="store_true", help="turns that rest on the run's own answers before")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds that a reply of the model takes")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script, disturbed, whole = (Path(folder) / name for name in ("script.json", "disturbed", "whole"))
        limit = chosen.questions or (6 if chosen.dialogues else 60)
        questions = asked_questions(limit, chosen.dialogues)
        asked = eval_options(limit, chosen.dialogues)
        write_script(script, questions, chosen.delay)
        finish(script, whole, asked)
        disturbed_run(script, disturbed, asked, len(questions), chosen.kills, random.Random(chosen.seed))
        found = differences(disturbed, whole, len(questions))
        ex = json.loads((disturbed / "report.json").read_text(encoding="utf-8"))["metrics"]["EX[bag]"]["value"]
    print("\n".join(found) or f"{chosen.kills} kills, {len(questions)} questions: none lost, none doubled")
    print(f"EX[bag] {ex}; all metrics " + ("the same bytes as undisturbed" if not found else "NOT as undisturbed"))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
