"""How sure may one be of the best candidate? Fits confidence.yaml on a run of candidates, and shows how well it holds.

    nl2sql eval --benchmark FOLDER --split aside --controller best -c candidates.seconds=0 --out runs/aside
    python scripts/fit_confidence.py runs/aside                         # the figures, each database by the others
    python scripts/fit_confidence.py runs/aside --write                 # also the packaged weights of its choice
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fitting import Ranked, as_yaml, auc, cases_of, draw, ece, fit, fitted_by_others, head, thresholds

from nl2sql.agents.candidates.confidence import WEIGHTS_FILE, packaged, signals
from nl2sql.agents.checks.logistic import logistic
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.agents.ranking import log_likelihood
from nl2sql.agents.voting import same_rows
from nl2sql.config import CandidatesConfig
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import Question
from nl2sql.machine import write_whole


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
    asked = cases_of(options.runs, judged)
    if options.choose:
        print(table_markdown(choices(asked)))
        return 0
    read_back = any("question" in entry for one in asked for entry in one.ranking)
    choose = "question" if read_back else "logprob"
    known = packaged()[choose]
    sure = [logistic(one.seen, known) for one in asked] if options.apply else left_out(asked)
    right = np.array([one.right[0] for one in asked], float)
    figures = f"ECE {ece(sure, right):.3f}, AUC {auc(sure, right):.3f}"
    print(f"{len(asked)} questions, {100 * right.mean():.1f}% right; {figures}")
    print(table_markdown(thresholds(sure, right)))
    if options.figure:
        draw(np.array(sure), right, options.figure)
    if options.write:
        made = head("fit_confidence.py", f"{len(asked)} questions", "candidates.md")
        write_whole(WEIGHTS_FILE, made + as_yaml(packaged() | {choose: fitted(asked)}))
    return 0


def judged(one: Ranked) -> list[Asked]:
    results, right = one.executed()
    groups = same_rows(results)
    uncovered = uncovered_share(one.question.text, one.ranking[0]["sql"], one.database.schema())
    seen = signals(one.ranking, groups, one.settings, uncovered=uncovered)
    return [Asked(one.question, one.ranking, right, groups, seen)]


def fitted(asked: Sequence[Asked]) -> dict[str, float]:
    return fit([one.seen for one in asked], [one.right[0] for one in asked], [1.0] * len(asked))


def left_out(asked: Sequence[Asked]) -> list[float]:
    """The confidence of each question by weights that were fitted without its database."""
    weights = fitted_by_others(asked, lambda one: one.question.db_id, fitted)
    return [logistic(one.seen, its) for one, its in zip(asked, weights, strict=True)]


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


if __name__ == "__main__":
    sys.exit(main())
