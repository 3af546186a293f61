"""Does a low confidence tell a question that the database cannot answer? Precision and recall of abstaining.

    NL2SQL_BENCHMARKS=... python scripts/abstention.py --out runs/abstention              # all 419 questions
    NL2SQL_BENCHMARKS=... python scripts/abstention.py --out runs/abstention --limit 40   # of each kind; a sample

The benchmark's folder holds ``unanswerable.json`` beside its questions, as defog's does. Both kinds are asked as
``nl2sql ask`` asks: the question alone (no evidence, which would say how to refuse), ``best`` with its budget of
seconds. Eight are asked at a time: each then has its first view only, as one alone has on two slow cores. The runs lie
in ``--out``, and go on where they were interrupted. An answer is held
back where its confidence is below ``min_confidence`` or there is no query at all.

*precision*: of the questions held back, the share that cannot be answered. *recall*: of those that cannot be answered,
the share held back. *answerable held back*: the price. *right answers kept*: of the right answers (EX[bag], over the
questions whose gold can be relied on), the share that is still given. *AUC*: the chance that a question that can be
answered is held for surer than one that cannot.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fitting import THRESHOLDS, auc, ended

from nl2sql.agents.controllers import get_controller, with_preset
from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.config import load_config
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import Question
from nl2sql.models import load_model
from nl2sql.runs.evaluate import evaluate, resume
from nl2sql.runs.plan import read_plan
from nl2sql.runs.run import Run

KINDS = ("answerable", "unanswerable")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="defog_sql_eval", help="a name or folder with unanswerable.json")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the two runs; again: they go on")
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of so many of each kind")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", help="float32 (default on CPU) or bfloat16")
    parser.add_argument("-c", "--set", action="append", default=[], metavar="KEY=VALUE", help="config override")
    options = parser.parse_args()
    try:
        benchmark = of_folder(options.benchmark)
        runs = asked(benchmark, options)
    except Nl2SqlError as error:
        raise ended(error) from None
    print(shown(runs, {question.id for question in benchmark.questions if scorable(question)}))
    return 0


def of_folder(name: str) -> FolderBenchmark:
    benchmark = load_benchmark(name)
    if not isinstance(benchmark, FolderBenchmark):
        raise UsageError(f"benchmark {name!r} has no folder; give one with questions.json and unanswerable.json")
    return benchmark


def unanswerable(benchmark: FolderBenchmark) -> FolderBenchmark:
    """The benchmark with the questions that its databases cannot answer. Raises UsageError where it has none."""
    path = Path(benchmark.source) / "unanswerable.json"
    try:
        items = json.loads(path.read_text(encoding="utf-8"))
        questions = [
            Question(item["question"], item["db_id"], f"unanswerable-{number:03}", gold=(item["query"],))
            for number, item in enumerate(items)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "a list of {question, db_id, query} is expected"
        raise UsageError(f"{path} cannot be read ({type(error).__name__}: {error}); {expected}") from None
    return replace(benchmark, name=f"{benchmark.name}-unanswerable", questions=questions, splits={})


def asked(benchmark: FolderBenchmark, options: argparse.Namespace) -> dict[str, Run]:
    """Kind of question -> its finished run."""
    every = [replace(question, evidence="", meta={}) for question in benchmark.questions]  # also those left out of EX
    kinds = {"answerable": replace(benchmark, questions=every), "unanswerable": unanswerable(benchmark)}
    config = load_config([], ["eval.replicas=0", "candidates.seconds=5", *options.set])
    model = load_model(options.model, dtype=options.dtype, batch_size=8)  # as nl2sql ask
    given = {"config": config, "limit": options.limit, "batch_size": 1, "control": False, "cache": False}
    runs = {}
    for kind in KINDS:
        out = options.out / kind
        if not (out / "manifest.json").exists():
            runs[kind] = evaluate(kinds[kind], model, "best", out=out, **given)
            continue
        plan, kept = read_plan(out)
        if (plan.limit, kept.model_dump()) != (options.limit, with_preset(get_controller("best"), config).model_dump()):
            raise UsageError(f"{out} was begun with another --limit or other settings; name another --out")
        runs[kind] = resume(out, benchmark=kinds[kind], model=model, trust=True)
    return runs


def confidences(run: Run) -> dict[str, float]:
    """Question id -> confidence; -1 where there is no query, which every threshold holds back."""
    sure = {}
    for trace in run.traces(("sql", "flags")):
        sure[trace["id"]] = trace["flags"].get("confidence", 0.0) if trace["sql"] else -1.0
    return sure


def shown(runs: dict[str, Run], scored: set[str]) -> str:
    """One line of counts, and the table by threshold; ``scored``: ids of the questions that EX is told of."""
    sure = {kind: confidences(runs[kind]) for kind in KINDS}
    frame = runs["answerable"].to_dataframe()
    frame = frame[frame["id"].isin(scored)]
    right = np.array([sure["answerable"][id_] for id_ in frame.loc[frame["ex"].astype(bool), "id"]])
    can, cannot = (np.array(list(sure[kind].values())) for kind in KINDS)
    labels = np.array([1.0] * len(can) + [0.0] * len(cannot))
    told = auc([*can, *cannot], labels)
    head = f"{len(can)} answerable ({len(frame)} scored, {len(right)} right), {len(cannot)} not; AUC {told:.3f}"
    return f"{head}\n{table_markdown(table(can, cannot, right))}"


def table(can: Any, cannot: Any, right: Any) -> list[list[str]]:
    """Precision, recall and their price at each threshold; the first row is the header."""
    rows = [["min_confidence", "precision %", "recall %", "answerable held back %", "right answers kept %"]]
    for least in THRESHOLDS:
        rightly, wrongly = (cannot < least).sum(), (can < least).sum()
        precision = f"{100 * rightly / (rightly + wrongly):.1f}" if rightly + wrongly else "-"
        kept = f"{100 * (right >= least).mean():.1f}" if len(right) else "-"
        shares = [f"{100 * rightly / len(cannot):.1f}", f"{100 * wrongly / len(can):.1f}"]
        rows.append([f"{least:g}", precision, *shares, kept])
    return rows


if __name__ == "__main__":
    sys.exit(main())
