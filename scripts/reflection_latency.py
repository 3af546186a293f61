"""Time of a reflection without a model: python scripts/reflection_latency.py

Failing and sound queries over the packaged databases, each judged as the controller does it: error class, advice from
the patterns and the schema, quality score. The target of the specification is 200 ms.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from nl2sql.agents.opening import open_task
from nl2sql.agents.reflection import nodes
from nl2sql.agents.reflection.state import initial_state, workspace
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel

TARGET_MS = 200
SPOILED = {"sound": ("", ""), "unknown table": (" FROM ", " FROM no_such_"), "syntax": ("SELECT", "SELCT")}


def measure(question: Question, benchmark: Any, spoil: tuple[str, str], shots: ScriptedModel) -> float:
    """Seconds of the reflect node for the question's gold, spoiled and executed."""
    task = open_task(question, Resources(shots, benchmark.database(question.db_id)), Config())
    sql = question.gold[0].replace(*spoil) if spoil[0] else question.gold[0]
    state = initial_state(task.nlq, 3)
    state["sql_query"], state["iteration"] = sql, 1
    work = workspace(state, task)
    state["execution_result"] = nodes.execute_sql(state, work)["execution_result"]
    state["validation_result"] = nodes.validate_results(state, work)["validation_result"]
    began = time.perf_counter()
    nodes.reflect(state, work)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=40, help="questions of the packaged quick split")
    limit = parser.parse_args().limit
    benchmark, shots = load_benchmark("packaged", split="quick"), ScriptedModel([])
    questions = [question for question in benchmark.questions if question.gold][:limit]
    print("| query | first, ms | median, ms | slowest, ms | target, ms |\n|---|---|---|---|---|")
    for name, spoil in SPOILED.items():
        times = [1000 * measure(question, benchmark, spoil, shots) for question in questions]
        print(f"| {name} | {times[0]:.1f} | {statistics.median(times):.1f} | {max(times[1:]):.1f} | {TARGET_MS} |")


if __name__ == "__main__":
    main()
