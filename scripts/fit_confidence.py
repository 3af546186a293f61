"""How sure may one be of the best candidate? Fits confidence.yaml on a run of candidates, and shows how well it holds.

    nl2sql eval --benchmark FOLDER --split aside --controller best -c candidates.seconds=0 --out runs/aside
    python scripts/fit_confidence.py runs/aside                         # the figures, each database by the others
    python scripts/fit_confidence.py runs/aside --write                 # also the packaged weights of its choice
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fitting import Ranked, as_yaml, auc, cases_of, ece, fit, fitted_by_others, head, thresholds

from nl2sql.agents.candidates.confidence import WEIGHTS_FILE, packaged, signals
from nl2sql.agents.checks.logistic import logistic
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.agents.voting import same_rows
from nl2sql.eval.tables import table_markdown
from nl2sql.machine import write_whole


@dataclass
class Asked:
    """One question of a run: whether its first candidate is right, what is seen of it, and whether it was read back."""

    db_id: str
    right: bool
    seen: dict[str, float]
    read_back: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="finished runs of candidates or best")
    parser.add_argument("--write", action="store_true", help=f"write {WEIGHTS_FILE.name}, fitted on all questions")
    parser.add_argument("--apply", action="store_true", help="the packaged weights as they are; nothing is fitted")
    options = parser.parse_args()
    asked = cases_of(options.runs, judged)
    read_back = any(one.read_back for one in asked)
    choose = "question" if read_back else "logprob"
    known = packaged()[choose]
    sure = [logistic(one.seen, known) for one in asked] if options.apply else left_out(asked)
    right = np.array([one.right for one in asked], float)
    figures = f"ECE {ece(sure, right):.3f}, AUC {auc(sure, right):.3f}"
    print(f"{len(asked)} questions, {100 * right.mean():.1f}% right; {figures}")
    print(table_markdown(thresholds(sure, right)))
    if options.write:
        made = head("fit_confidence.py", f"{len(asked)} questions", "candidates.md")
        write_whole(WEIGHTS_FILE, made + as_yaml(packaged() | {choose: fitted(asked)}))
    return 0


def judged(one: Ranked) -> list[Asked]:
    results, right = one.executed()
    groups = same_rows(results)
    uncovered = uncovered_share(one.question.text, one.ranking[0]["sql"], one.database.schema())
    seen = signals(one.ranking, groups, one.settings, uncovered=uncovered)
    return [Asked(one.question.db_id, right[0], seen, any("question" in entry for entry in one.ranking))]


def fitted(asked: Sequence[Asked]) -> dict[str, float]:
    return fit([one.seen for one in asked], [one.right for one in asked], [1.0] * len(asked))


def left_out(asked: Sequence[Asked]) -> list[float]:
    """The confidence of each question by weights that were fitted without its database."""
    weights = fitted_by_others(asked, lambda one: one.db_id, fitted)
    return [logistic(one.seen, its) for one, its in zip(asked, weights, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
