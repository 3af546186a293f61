"""Throughput on Ray against the same work in this process: python scripts/bench_ray.py --json

Episodes: a scripted model over the packaged benchmark: the work of tools, sandbox and bookkeeping is left. Scoring:
golds as predictions, with replicas. Each is done here, and on clusters of one and of two workers, once to warm up (the
worker processes, replicas) and then ``--repeat`` times; medians are printed. Starting a cluster is timed
by itself. Verdicts have to agree, or the script fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.config import build_config
from nl2sql.eval import score_many
from nl2sql.interfaces import Benchmark, Question
from nl2sql.runs.distributed import Ray
from nl2sql.runs.evaluate import start
from nl2sql.runs.job import Executor
from nl2sql.runs.local import LOCAL
from nl2sql.runs.plan import Plan

GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]


def write_script(path: Path, questions: list[Question]) -> str:
    """Replies that are right, every second time after a repair."""
    begin = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]"]
    replies = {}
    for number, question in enumerate(questions):
        gold = question.gold[0]
        acts = ["SELECT x FROM nowhere", GATES[0], "done", gold, *GATES] if number % 2 else [gold, *GATES]
        replies[question.text] = {"react": [*begin, *acts, *["no"] * 20]}
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    return f"scripted:{path}"


def timed(work: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """(median seconds, what came out); the first time is not counted."""
    seconds = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:]), found


def measure(
    executor: Executor, plan: Plan, benchmark: Benchmark, questions: list[Question], given: argparse.Namespace
) -> dict[str, Any]:
    """Seconds of episodes and of scoring, and the verdicts they came to."""
    config = build_config({"eval": {"replicas": 0}})
    golds = {question.id: question.gold[0] for question in questions}

    def episodes() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            found = start(plan, config, out=Path(folder) / "run", progress=False, executor=executor)
            return found.report["metrics"]

    def scoring() -> Any:
        found = score_many(benchmark, questions, {"golds": golds}, replicas=given.replicas, executor=executor)
        return found["golds"].to_dict(items=False)["metrics"]

    (eval_s, metrics), (score_s, scores) = (timed(work, given.repeat) for work in (episodes, scoring))
    return {"eval_s": eval_s, "score_s": score_s, "verdicts": [metrics, scores]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", default="test", help="of the packaged benchmark")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--replicas", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    benchmark = load_benchmark("packaged", split=given.split)
    questions = [question for question in benchmark.questions if scorable(question)][: given.limit]
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        script = write_script(Path(folder) / "script.json", questions)
        plan = Plan(split=given.split, limit=len(questions), model=script, control=False)
        for workers in (0, *map(int, given.workers.split(","))):
            began = time.perf_counter()
            with Ray(workers=workers) if workers else nullcontext(LOCAL) as executor:
                ready = time.perf_counter() - began
                name = f"ray, {workers} worker{'s' * (workers > 1)}" if workers else "local"
                rows[name] = {"start_s": ready, **measure(executor, plan, benchmark, questions, given)}
    verdicts = [row.pop("verdicts") for row in rows.values()]
    if any(found != verdicts[0] for found in verdicts):
        raise SystemExit("the verdicts differ between executors")
    for row in rows.values():
        row["episodes_per_s"] = len(questions) / row["eval_s"]
        row["scored_per_s"] = len(questions) / row["score_s"]
    if given.json:
        print(json.dumps({"questions": len(questions), "rows": rows}, indent=2))
        return
    print(f"{len(questions)} questions of packaged, {given.split}; scoring with {given.replicas} replicas")
    print(f"{'':16} {'start s':>8} {'episodes/s':>11} {'scored/s':>9}")
    for name, row in rows.items():
        print(f"{name:16} {row['start_s']:>8.1f} {row['episodes_per_s']:>11.1f} {row['scored_per_s']:>9.1f}")


if __name__ == "__main__":
    main()
