"""The verifier's weights: fits verifier.yaml on the candidates of a run, and shows how well it tells right from wrong.

    nl2sql eval --benchmark FOLDER --split aside --controller candidates --constrain plain -c schema_text.values=4 \\
        -c candidates.n=24 -c candidates.views=4 -c candidates.choose=question -c candidates.length_penalty=0 \\
        -c candidates.suspicion_weight=0.000001 -c eval.replicas=0 --no-control --out runs/aside
    python scripts/fit_verifier.py runs/aside                  # the figures, each database by the others
    python scripts/fit_verifier.py runs/aside --write          # also the packaged weights
    python scripts/fit_verifier.py runs/other --apply          # the packaged weights as they are

The run must be over databases that the model has not trained on. Every candidate that runs is labelled by execution
beside the gold, EX[bag], and counts as often as it was written. *AUC* is the chance that a right query is held for
likelier right than a wrong one; *first* looks at the first greedy query of each question only.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fit_confidence import auc, ece, regression

from nl2sql.agents.checks.verifier import WEIGHTS_FILE, probability_right, signals
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.rules import gold_order, results_match
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import Benchmark, Question
from nl2sql.machine import write_whole
from nl2sql.runs.folder import RunFolder, read_manifest
from nl2sql.runs.plan import open_benchmark, read_plan
from nl2sql.runs.rescore import questions_of

KNOWN = {"all": (), "question": ("likely",), "seen": ("likely", "question", "per_word")}  # weights -> signals left out


@dataclass
class Written:
    """One query that ran. share: of all writings of its question; first: it is the first greedy one."""

    db_id: str
    seen: dict[str, float]
    right: bool
    share: float
    first: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="runs of candidates with candidates.choose=question")
    parser.add_argument("--write", action="store_true", help=f"write {WEIGHTS_FILE.name}, fitted on all queries")
    parser.add_argument("--apply", action="store_true", help="the packaged weights as they are; nothing is fitted")
    options = parser.parse_args()
    try:
        written = [query for folder in options.runs for query in queries_of(folder)]
        if not written:
            raise UsageError("no run has a ranking; see the command in --help")
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    rows = [["signals", "queries", "right %", "AUC", "AUC first", "ECE"]]
    for name, left_out in KNOWN.items():
        known = [without(query, left_out) for query in written]
        sure = [probability_right(query.seen) for query in known] if options.apply else by_the_others(known)
        rows.append([name, str(len(known)), *figures(known, sure)])
    print(table_markdown(rows))
    if options.write:
        weights = {name: rounded(fit([without(q, left_out) for q in written])) for name, left_out in KNOWN.items()}
        shown = " ".join(Path(a).name if "/" in a else a for a in sys.argv[1:])
        head = f"# Made by scripts/fit_verifier.py {shown}: {len(written)} queries. See docs/verifier.md.\n"
        write_whole(WEIGHTS_FILE, head + yaml.safe_dump(weights, sort_keys=False))
    return 0


def queries_of(folder: Path) -> list[Written]:
    """The candidates of a run that ran, each beside the gold of its question."""
    plan, _ = read_plan(folder)
    run = RunFolder(folder, read_manifest(folder)["key"], folder)  # an unfinished one will do
    benchmark = open_benchmark(plan, {})
    golds = {question.id: question for question in questions_of(folder, benchmark)}
    written = []
    for trace in run.traces(("trace",)):
        rankings = [r["observation"]["ranking"] for r in trace["trace"] if r.get("action") == "rank_candidates"]
        question = golds.get(trace["id"])
        if question is not None and question.gold and rankings:
            written += judged(question, rankings[-1], benchmark)
    return written


def judged(question: Question, ranking: Sequence[Mapping[str, Any]], benchmark: Benchmark) -> list[Written]:
    database = benchmark.database(question.db_id)
    gold = database.run(question.gold[0])
    how, schema = gold_order(question.gold[0], gold), database.schema()
    copies = sum(len(entry["steps"]) for entry in ranking)
    written = []
    for entry in ranking:
        parts = entry["parts"]
        if not entry["sql"] or not parts["executes"]:
            continue
        result = database.run(entry["sql"])
        seen = signals(
            question.text,
            entry["sql"],
            result,
            likely=math.log(max(parts["probability"], 1e-300)) if parts["probability"] is not None else None,
            read_back=entry.get("question"),
            refused=entry["refusal"] is not None,
            suspected=bool(entry.get("suspected")),
            uncovered=uncovered_share(question.text, entry["sql"], schema),
            values=parts["values"],
        )
        right = results_match(gold, result, **how)
        written.append(Written(question.db_id, seen, right, len(entry["steps"]) / copies, 0 in entry["steps"]))
    return written


def without(query: Written, names: Sequence[str]) -> Written:
    seen = {name: value for name, value in query.seen.items() if name not in names}
    return Written(query.db_id, seen, query.right, query.share, query.first)


def fit(written: Sequence[Written]) -> dict[str, float]:
    """Weights of a logistic regression with a small ridge; every query counts by its share of the writings."""
    names = list(written[0].seen)
    x = np.array([[query.seen.get(name, 0.0) for name in names] for query in written])
    weights = regression(x, np.array([q.right for q in written], float), np.array([q.share for q in written]))
    return dict(zip(["constant", *names], weights.tolist(), strict=True))


def by_the_others(written: Sequence[Written]) -> list[float]:
    """The probability of each query by weights that were fitted without its database."""
    fitted = {db: fit([q for q in written if q.db_id != db]) for db in {q.db_id for q in written}}
    return [probability_right(query.seen, fitted[query.db_id]) for query in written]


def figures(written: Sequence[Written], sure: Sequence[float]) -> list[str]:
    right = np.array([query.right for query in written], float)
    first = [at for at, query in enumerate(written) if query.first]
    firsts = auc([sure[at] for at in first], right[first])
    values = [f"{100 * right.mean():.1f}", f"{auc(sure, right):.3f}", f"{firsts:.3f}"]
    return [*values, f"{ece([sure[at] for at in first], right[first]):.3f}"]


def rounded(weights: Mapping[str, float]) -> dict[str, float]:
    return {name: round(weight, 3) for name, weight in weights.items()}


if __name__ == "__main__":
    sys.exit(main())
