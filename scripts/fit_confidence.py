"""How sure may one be of the best candidate? Fits confidence.yaml on a run of candidates, and shows how well it holds.

    nl2sql eval --benchmark FOLDER --split aside --controller best -c candidates.seconds=0 --out runs/aside
    python scripts/fit_confidence.py runs/aside                         # the figures, each database by the others
    python scripts/fit_confidence.py runs/aside --write                 # also the packaged weights
    python scripts/fit_confidence.py --apply runs/other                 # the packaged weights as they are

The run must be over databases that the model has not trained on. Every candidate of every ranking
is executed beside the gold, EX[bag]. *ECE* is the mean gap between confidence and share of right
answers over ten bins of equal size; *AUC* the chance that a right answer is held for surer than a
wrong one. The table of thresholds says how many questions are then answered and how many of these
are right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from nl2sql.agents.context.linking import uncovered_share
from nl2sql.agents.ranking import WEIGHTS_FILE, logistic, packaged, same_rows, signals
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.rules import gold_order, results_match
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import Database, Question, RunResult
from nl2sql.machine import write_whole
from nl2sql.runs.folder import RunFolder, read_manifest
from nl2sql.runs.plan import open_benchmark, read_plan
from nl2sql.runs.rescore import questions_of

Array = Any  # numpy's
BINS, RIDGE = 10, 1.0
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Asked(NamedTuple):
    """One question of a run: whether its first candidate is right, and what is seen of it."""

    db_id: str
    right: bool
    seen: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="finished runs of candidates or best")
    parser.add_argument("--write", action="store_true", help=f"write {WEIGHTS_FILE.name}, fitted on all questions")
    parser.add_argument("--apply", action="store_true", help="the packaged weights as they are; nothing is fitted")
    options = parser.parse_args()
    try:
        asked = [one for folder in options.runs for one in asked_in(folder)]
        if not asked:
            raise UsageError("no run has a ranking; see the command in --help")
        p_correct = [logistic(one.seen, packaged()) for one in asked] if options.apply else held_out(asked)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    right = np.array([one.right for one in asked], float)
    figures = f"ECE {ece(p_correct, right):.3f}, AUC {auc(p_correct, right):.3f}"
    print(f"{len(asked)} questions, {100 * right.mean():.1f}% right; {figures}")
    print(table_markdown(thresholds(p_correct, right)))
    if options.write:
        shown = " ".join(Path(word).name if "/" in word else word for word in sys.argv[1:])
        made = f"# Made by scripts/fit_confidence.py {shown}: {len(asked)} questions. See docs/candidates.md.\n"
        short = {name: round(weight, 3) for name, weight in fit(asked).items()}
        write_whole(WEIGHTS_FILE, made + yaml.safe_dump(short, sort_keys=False))
    return 0


def asked_in(folder: Path) -> Iterator[Asked]:
    """The questions of a run that have a gold and a ranking."""
    plan = read_plan(folder)[0]
    run = RunFolder(folder, read_manifest(folder)["key"], folder)  # an unfinished one will do
    benchmark = open_benchmark(plan, {})
    golds = {question.id: question for question in questions_of(folder, benchmark)}
    for trace in run.traces(("trace",)):
        rankings = [r["observation"]["ranking"] for r in trace["trace"] if r.get("action") == "rank_candidates"]
        question = golds.get(trace["id"])
        if question is not None and question.gold and rankings:
            yield judged(question, rankings[-1], benchmark.database(question.db_id))


def judged(question: Question, ranking: Sequence[dict[str, Any]], database: Database) -> Asked:
    results = [database.run(entry["sql"]) if entry["sql"] else RunResult(False) for entry in ranking]
    gold = database.run(question.gold[0])
    right = results_match(gold, results[0], **gold_order(question.gold[0], gold))
    uncovered = uncovered_share(question.text, ranking[0]["sql"], database.schema())
    return Asked(question.db_id, right, signals(ranking, same_rows(results), uncovered=uncovered))


def fit(asked: Sequence[Asked]) -> dict[str, float]:
    """Weights of a logistic regression with a small ridge, by Newton's method."""
    names = list(dict.fromkeys(name for one in asked for name in one.seen))
    x = np.array([[1.0, *(one.seen.get(name, 0.0) for name in names)] for one in asked])
    y = np.array([one.right for one in asked], float)
    ridge = RIDGE * np.eye(x.shape[1])
    ridge[0, 0] = 1e-6  # where all cases are right the constant would have no end
    weights = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -50, 50)))
        weights += np.linalg.solve((x.T * (p * (1 - p))) @ x + ridge, x.T @ (y - p) - ridge @ weights)
    return dict(zip(["constant", *names], weights.tolist(), strict=True))


def held_out(asked: Sequence[Asked]) -> list[float]:
    """The confidence of each question by weights that were fitted without its database."""
    databases = {one.db_id for one in asked}
    if len(databases) < 2:
        raise UsageError(f"all questions are over {', '.join(databases)}; --apply takes the packaged weights")
    weights = {name: fit([one for one in asked if one.db_id != name]) for name in databases}
    return [logistic(one.seen, weights[one.db_id]) for one in asked]


# ------------------------------------------------------------------------------------------------------- figures


def ece(p_correct: Sequence[float], right: Array) -> float:
    """The mean gap between probability and share of right cases, over bins of equal size."""
    bins = np.array_split(np.argsort(p_correct), BINS)
    values = np.array(p_correct)
    return float(sum(abs(values[b].mean() - right[b].mean()) * len(b) for b in bins if len(b)) / len(values))


def auc(p_correct: Sequence[float], right: Array) -> float:
    """The chance that a right case is held for likelier right than a wrong one; ties count half."""
    good, bad = np.array(p_correct)[right == 1], np.sort(np.array(p_correct)[right == 0])
    if not len(good) or not len(bad):
        return float("nan")
    below, upto = (np.searchsorted(bad, good, side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(bad))


def thresholds(p_correct: Sequence[float], right: Array) -> list[list[str]]:
    """The table of abstention: how many questions are answered at each threshold, and how many of these are right."""
    rows = [["min_confidence", "answered %", "right of these %", "right answers kept %"]]
    values = np.array(p_correct)
    for least in THRESHOLDS:
        kept = values >= least
        share = f"{100 * right[kept].mean():.1f}" if kept.any() else "-"
        among = 100 * right[kept].sum() / max(right.sum(), 1)
        rows.append([f"{least:g}", f"{100 * kept.mean():.1f}", share, f"{among:.1f}"])
    return rows


if __name__ == "__main__":
    sys.exit(main())
