"""Kill a run with SIGKILL at random moments, resume it each time, and compare it with one that nobody disturbed.

    python scripts/kill_runs.py --kills 50 --questions 60

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
from pathlib import Path
from typing import Any

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.benchmarks.sampling import draw_sample
from nl2sql.runs.folder import read_jsonl

GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
TIMINGS = {"seconds", "queue_seconds", "compute_seconds", "run"}


def write_script(path: Path, questions: int, delay_s: float) -> None:
    """Replies that are right for every second question of ``packaged``, dev; each takes ``delay_s``."""
    asked = [q for q in load_benchmark("packaged", split="dev").questions if scorable(q)]
    replies = {}
    for number, question in enumerate(draw_sample(asked, questions, 0)):
        sql = question.gold[0] if number % 2 else "SELECT x FROM nowhere"
        acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", sql, *GATES, *["no"] * 20]
        slow = [{"text": text, "delay_s": delay_s} for text in acts]
        replies[question.text] = {"react": slow, "single_shot": [{"text": "SELECT 1 AS one", "delay_s": delay_s}]}
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")


def eval_command(script: Path, out: Path, questions: int) -> list[str]:
    fresh = ["--split", "dev", "--limit", str(questions), "--model", f"scripted:{script}", "--out", str(out)]
    options = fresh if not (out / "manifest.json").exists() else ["--resume", str(out)]
    quick = [] if "--resume" in options else ["--batch-size", "4", "--replicas", "1"]
    return [sys.executable, "-m", "nl2sql.cli", "eval", *options, *quick, "--quiet"]


def disturbed_run(script: Path, out: Path, questions: int, kills: int, rng: random.Random) -> None:
    """Start or resume the run and kill it, ``kills`` times: at any moment, or right after a question was finished.

    A start that came to its end before it was hit does not count; then scoring is what the next ones interrupt.
    """
    number = 0
    while number < kills:
        process = subprocess.Popen(
            eval_command(script, out, questions), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
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
    finish(script, out, questions)


def _wait_for_growth(out: Path, process: subprocess.Popen[str]) -> None:
    sizes = _sizes(out)
    deadline = time.monotonic() + 60
    while process.poll() is None and _sizes(out) == sizes and time.monotonic() < deadline:
        time.sleep(0.001)


def finish(script: Path, out: Path, questions: int) -> None:
    """Run or resume undisturbed."""
    done = subprocess.run(eval_command(script, out, questions), capture_output=True, text=True)
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
    return found


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(item) for key, item in value.items() if key not in TIMINGS}
    return [_untimed(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds that a reply of the model takes")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script, disturbed, whole = (Path(folder) / name for name in ("script.json", "disturbed", "whole"))
        write_script(script, chosen.questions, chosen.delay)
        finish(script, whole, chosen.questions)
        disturbed_run(script, disturbed, chosen.questions, chosen.kills, random.Random(chosen.seed))
        found = differences(disturbed, whole, chosen.questions)
        ex = json.loads((disturbed / "report.json").read_text(encoding="utf-8"))["metrics"]["EX[bag]"]["value"]
    print("\n".join(found) or f"{chosen.kills} kills, {chosen.questions} questions: none lost, none doubled")
    print(f"EX[bag] {ex}; all metrics " + ("the same bytes as undisturbed" if not found else "NOT as undisturbed"))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
