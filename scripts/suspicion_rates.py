"""How often each suspicion is a false alarm, and how often it catches a wrong answer.

    python scripts/suspicion_rates.py --benchmark spider --split train --limit 2000 [--run RUN ...] [--json]

On golds every suspicion is a false alarm: the share of golds with it. With ``--run`` (finished run folders) the same
shares over the run's answers that executed, right and wrong ones apart. ``--examples N`` prints N of each kind.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nl2sql.agents.checks.suspicions import CHECKS, suspicions
from nl2sql.benchmarks import draw_sample, load_benchmark, scorable
from nl2sql.config import SuspicionsConfig
from nl2sql.errors import Nl2SqlError
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import Benchmark, Question
from nl2sql.runs.plan import open_benchmark, read_plan
from nl2sql.runs.rescore import questions_of
from nl2sql.runs.run import Run

ALL = SuspicionsConfig()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="packaged")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--limit", type=int, default=2000, help="golds")
    parser.add_argument("--run", type=Path, action="append", default=[], help="a finished run; may be repeated")
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        groups = {f"golds of {options.benchmark}:{options.split}": of_golds(options)}
        for folder in options.run:
            groups |= of_run(folder)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    rates = {name: rates_of(answers) for name, answers in groups.items()}
    if options.json:
        print(json.dumps(rates, indent=1))
    else:
        print(table_markdown(rows_of(rates)))
    for name, answers in groups.items():
        for line in examples(answers, options.examples):
            print(f"{name}: {line}")
    return 0


Answer = tuple[Question, str, list[Any]]  # question, query, suspicions


def of_golds(options: argparse.Namespace) -> list[Answer]:
    """The golds of a sample that run, with what is suspicious about them."""
    benchmark = load_benchmark(options.benchmark, split=options.split)
    asked = draw_sample([q for q in benchmark.questions if scorable(q)], options.limit, 0)
    return list(checked(benchmark, ((question, question.gold[0]) for question in asked), len(asked)))


def of_run(folder: Path) -> dict[str, list[Answer]]:
    """The right and the wrong answers of a run that executed."""
    run, (plan, _) = Run.load(folder), read_plan(folder)
    benchmark = open_benchmark(plan, {})
    questions = {question.id: question for question in questions_of(folder, benchmark)}
    groups: dict[str, list[Answer]] = {}
    for name, ex in (("right", True), ("wrong", False)):
        items = [item for item in run.report["items"] if item["ex"] is ex and item["va"]]
        pairs = [(questions[item["id"]], item["sql"]) for item in items]
        groups[f"{folder.name}, {name}"] = list(checked(benchmark, pairs, len(pairs)))
    return groups


def checked(benchmark: Benchmark, pairs: Iterable[tuple[Question, str]], count: int) -> Iterator[Answer]:
    for question, sql in tqdm(pairs, total=count, unit="query"):
        database = benchmark.database(question.db_id)
        result = database.run(sql, timeout_s=10.0, max_rows=10_000)
        if result.success:
            yield question, sql, suspicions(question.text, sql, database, result, ALL)


def rates_of(answers: list[Answer]) -> dict[str, Any]:
    """Check -> the share of the answers with it; ``any``: with at least one."""
    seen = Counter(name for *_, seen_of in answers for name in {item.check for item in seen_of})
    shares = {name: seen[name] / max(1, len(answers)) for name in CHECKS}
    return {"n": len(answers), **shares, "any": sum(bool(found) for *_, found in answers) / max(1, len(answers))}


def rows_of(rates: dict[str, dict[str, Any]]) -> list[list[str]]:
    head = ["check", *(f"{name} ({data['n']})" for name, data in rates.items())]
    return [head, *([check, *(f"{100 * data[check]:.1f}" for data in rates.values())] for check in [*CHECKS, "any"])]


def examples(answers: list[Answer], count: int) -> Iterator[str]:
    by_check: dict[str, list[str]] = defaultdict(list)
    for question, sql, found in answers:
        for item in found:
            by_check[item.check].append(f"{item.check}: {item.text}\n    {question.text}\n    {sql}")
    for lines in by_check.values():
        yield from lines[:count]


if __name__ == "__main__":
    sys.exit(main())
