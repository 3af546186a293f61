"""How sure may one be of the best candidate? Fits confidence.yaml on a run of candidates, and shows how well it holds.

    nl2sql eval --benchmark FOLDER --split aside --controller best -c candidates.seconds=0 --out runs/aside
    python scripts/fit_confidence.py runs/aside                         # the figures, each database by the others
    python scripts/fit_confidence.py runs/aside --write                 # also the packaged weights
    python scripts/fit_confidence.py runs/aside --choose                # which weights choose best among candidates
    python scripts/fit_confidence.py --apply runs/other --figure docs/confidence.png

The run must be over databases that the model has not trained on. Every candidate of every ranking
is executed beside the gold, EX[bag]. *ECE* is the mean gap between confidence and share of right
answers over ten bins of equal size; *AUC* the chance that a right answer is held for surer than a
wrong one. The table of thresholds says how many questions are then answered and how many of these
are right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from nl2sql.agents.candidates.confidence import WEIGHTS_FILE, confidence, signals
from nl2sql.agents.candidates.ranking import log_likelihood
from nl2sql.agents.candidates.voting import same_rows
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.config import CandidatesConfig
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.rules import gold_order, results_match
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import Benchmark, Question, RunResult
from nl2sql.machine import write_whole
from nl2sql.runs.folder import RunFolder, read_manifest
from nl2sql.runs.plan import open_benchmark, read_plan
from nl2sql.runs.rescore import questions_of

Array = Any  # numpy's
BINS, RIDGE = 10, 1.0
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass
class Asked:
    """One question of a run: its ranking, which entries are right, and the signals of the first."""

    question: Question
    ranking: list[dict[str, Any]]
    right: list[bool]
    groups: list[int]
    seen: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="finished runs of candidates or best")
    parser.add_argument("--write", action="store_true", help=f"write {WEIGHTS_FILE.name}, fitted on all questions")
    parser.add_argument("--apply", action="store_true", help="the packaged weights as they are; nothing is fitted")
    parser.add_argument("--choose", action="store_true", help="EX by vote_weight and suspicion_weight")
    parser.add_argument("--figure", type=Path, help="draw reliability and abstention into this PNG")
    options = parser.parse_args()
    try:
        asked = [one for folder in options.runs for one in questions_asked(folder)]
        if not asked:
            raise UsageError("no run has a ranking; run nl2sql eval --controller best first")
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.choose:
        print(table_markdown(choices(asked)))
        return 0
    sure = [confidence(one.seen) for one in asked] if options.apply else left_out(asked)
    right = np.array([one.right[0] for one in asked], float)
    figures = f"ECE {ece(sure, right):.3f}, AUC {auc(sure, right):.3f}"
    print(f"{len(asked)} questions, {100 * right.mean():.1f}% right; {figures}")
    print(table_markdown(thresholds(sure, right)))
    if options.figure:
        draw(np.array(sure), right, options.figure)
    if options.write:
        write_whole(WEIGHTS_FILE, as_yaml(fit(asked), len(asked), sys.argv[1:]))
    return 0


# ------------------------------------------------------------------------------------------------------- reading


def questions_asked(folder: Path) -> Iterator[Asked]:
    """The questions of a run that have a gold and a ranking, every candidate executed."""
    plan, config = read_plan(folder)
    run = RunFolder(folder, read_manifest(folder)["key"], folder)  # an unfinished one will do
    settings, benchmark = config.candidates, open_benchmark(plan, {})
    golds = {question.id: question for question in questions_of(folder, benchmark)}
    for trace in run.traces(("trace",)):
        rankings = [r["observation"]["ranking"] for r in trace["trace"] if r.get("action") == "rank_candidates"]
        question = golds.get(trace["id"])
        if question is not None and question.gold and rankings:
            yield judged(question, rankings[-1], benchmark, settings)


def judged(
    question: Question, ranking: list[dict[str, Any]], benchmark: Benchmark, settings: CandidatesConfig
) -> Asked:
    database = benchmark.database(question.db_id)
    gold = database.run(question.gold[0])
    results = [database.run(entry["sql"]) if entry["sql"] else RunResult(False) for entry in ranking]
    how = gold_order(question.gold[0], gold)
    right = [results_match(gold, result, **how) for result in results]
    groups = same_rows(results)
    uncovered = uncovered_share(question.text, ranking[0]["sql"], database.schema())
    seen = signals(ranking, groups, settings, uncovered=uncovered)
    return Asked(question, ranking, right, groups, seen)


# ------------------------------------------------------------------------------------------------------- fitting


def fit(asked: Sequence[Asked]) -> dict[str, float]:
    """Weights of a logistic regression with a small ridge."""
    names = list(asked[0].seen)
    x = np.array([[one.seen[name] for name in names] for one in asked])
    weights = regression(x, np.array([one.right[0] for one in asked], float), np.ones(len(asked)))
    return dict(zip(["constant", *names], weights.tolist(), strict=True))


def regression(x: Array, y: Array, counts: Array) -> Array:
    """The constant and the weight of each column of ``x``, by Newton's method; ``counts`` weighs the rows."""
    x = np.column_stack([np.ones(len(x)), x])
    ridge = RIDGE * np.eye(x.shape[1])
    ridge[0, 0] = 0.0
    weights = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -50, 50)))
        slope = x.T @ (counts * (y - p)) - ridge @ weights
        weights += np.linalg.solve((x.T * (counts * p * (1 - p))) @ x + ridge, slope)
    return weights


def left_out(asked: Sequence[Asked]) -> list[float]:
    """The confidence of each question by weights that were fitted without its database."""
    databases = {one.question.db_id for one in asked}
    fitted = {db_id: fit([one for one in asked if one.question.db_id != db_id]) for db_id in databases}
    return [confidence(one.seen, fitted[one.question.db_id]) for one in asked]


def choices(asked: Sequence[Asked]) -> list[list[str]]:
    """EX of the first candidate under other weights of agreement and suspicion."""
    grid = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    rows = [["vote_weight / suspicion_weight", *(f"{s:g}" for s in grid)]]
    for vote in grid:
        cells = [f"{100 * np.mean([one.right[best_of(one, vote, s)] for one in asked]):.1f}" for s in grid]
        rows.append([f"{vote:g}", *cells])
    possible = 100 * np.mean([any(one.right) for one in asked])
    return [*rows, [f"one is right: {possible:.1f}", *[""] * len(grid)]]


def best_of(one: Asked, vote: float, suspicion: float) -> int:
    settings = CandidatesConfig(choose="question")

    def place(at: int) -> tuple[float, ...]:
        entry = one.ranking[at]
        parts = entry["parts"]
        likely = log_likelihood(parts, entry.get("question"), settings)
        likely += vote * np.log(max(parts["vote"], 1e-9)) - suspicion * bool(entry.get("suspected"))
        return (bool(entry["sql"]), parts["executes"], parts["rows"], likely)

    return max(range(len(one.ranking)), key=place)


def as_yaml(weights: Mapping[str, float], count: int, arguments: Sequence[str]) -> str:
    shown = [Path(a).name if "/" in a else a for a in arguments]
    head = f"# Made by scripts/fit_confidence.py {' '.join(shown)}: {count} questions. See docs/candidates.md.\n"
    return head + yaml.safe_dump({"weights": {name: round(w, 3) for name, w in weights.items()}}, sort_keys=False)


# ------------------------------------------------------------------------------------------------------- figures


def ece(sure: Sequence[float], right: Array) -> float:
    """The mean gap between confidence and share of right answers, over bins of equal size."""
    bins = np.array_split(np.argsort(sure), BINS)
    values = np.array(sure)
    return float(sum(abs(values[b].mean() - right[b].mean()) * len(b) for b in bins if len(b)) / len(values))


def auc(sure: Sequence[float], right: Array) -> float:
    """The chance that a right answer is held for surer than a wrong one."""
    good, bad = np.array(sure)[right == 1], np.array(sure)[right == 0]
    if not len(good) or not len(bad):
        return float("nan")
    return float(np.mean([(g > bad).mean() + 0.5 * (g == bad).mean() for g in good]))


def thresholds(sure: Sequence[float], right: Array) -> list[list[str]]:
    rows = [["min_confidence", "answered %", "right of these %", "right answers kept %"]]
    values = np.array(sure)
    for least in THRESHOLDS:
        kept = values >= least
        share = f"{100 * right[kept].mean():.1f}" if kept.any() else "-"
        rows.append([f"{least:g}", f"{100 * kept.mean():.1f}", share, f"{100 * right[kept].sum() / right.sum():.1f}"])
    return rows


def draw(sure: Array, right: Array, file: Path) -> None:
    """Reliability (left) and the share of right answers among those kept (right)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, other) = plt.subplots(1, 2, figsize=(9, 4))
    bins = [b for b in np.array_split(np.argsort(sure), BINS) if len(b)]
    left.plot([0, 1], [0, 1], color="0.7")
    left.plot([sure[b].mean() for b in bins], [right[b].mean() for b in bins], "o-")
    left.set(xlabel="confidence", ylabel="share right", xlim=(0, 1), ylim=(0, 1), title="reliability")
    order = np.argsort(-sure)
    kept = np.arange(1, len(order) + 1) / len(order)
    other.plot(kept, np.cumsum(right[order]) / np.arange(1, len(order) + 1))
    other.set(xlabel="share answered, surest first", ylabel="share right", ylim=(0, 1), title="abstention")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
