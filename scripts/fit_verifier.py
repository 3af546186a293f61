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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fitting import Ranked, as_yaml, auc, cases_of, ece, fit, fitted_by_others, head

from nl2sql.agents.checks.verifier import WEIGHTS_FILE, probability_right, signals
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.errors import UsageError
from nl2sql.eval.tables import table_markdown
from nl2sql.machine import write_whole

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
    parser.add_argument(
        "runs", nargs="+", type=Path, help="runs of candidates with candidates.choose=question or verify"
    )
    parser.add_argument("--write", action="store_true", help=f"write {WEIGHTS_FILE.name}, fitted on all queries")
    parser.add_argument("--apply", action="store_true", help="the packaged weights as they are; nothing is fitted")
    options = parser.parse_args()
    written = cases_of(options.runs, judged)
    rows = [["signals", "queries", "right %", "AUC", "AUC first", "ECE"]]
    for name, left_out in KNOWN.items():
        known = [without(query, left_out) for query in written]
        sure = [probability_right(query.seen) for query in known] if options.apply else by_the_others(known)
        rows.append([name, str(len(known)), *figures(known, sure)])
    print(table_markdown(rows))
    if options.write:
        made = head("fit_verifier.py", f"{len(written)} queries", "verifier.md")
        write_whole(WEIGHTS_FILE, made + as_yaml(all_weights(written)))
    return 0


def judged(one: Ranked) -> list[Written]:
    """The queries of a question that ran. Raises UsageError for a run that does not say what the verifier looks at."""
    settings = one.settings
    if not any("question" in entry for entry in one.ranking):
        raise UsageError("no question was read back; run again with -c candidates.choose=question")
    if settings.length_penalty:
        raise UsageError("the whole query's likelihood is needed; run again with -c candidates.length_penalty=0")
    if not settings.suspicion_weight and settings.choose != "verify":
        raise UsageError("no suspicions were looked for; run again with -c candidates.suspicion_weight=0.000001")
    copies = sum(len(entry["steps"]) for entry in one.ranking)
    written = []
    for entry, result, right in zip(one.ranking, *one.executed(), strict=True):
        parts, steps = entry["parts"], entry["steps"]
        if not entry["sql"] or not parts["executes"]:
            continue
        seen = signals(
            one.question.text,
            entry["sql"],
            result,
            likely=None if parts["probability"] is None else math.log(max(parts["probability"], 1e-300)),
            read_back=entry.get("question"),
            refused=entry["refusal"] is not None,
            suspected=bool(entry.get("suspected")),
            uncovered=uncovered_share(one.question.text, entry["sql"], one.database.schema()),
            values=parts["values"],
        )
        written.append(Written(one.question.db_id, seen, right, len(steps) / copies, 0 in steps))
    return written


def without(query: Written, names: Sequence[str]) -> Written:
    seen = {name: value for name, value in query.seen.items() if name not in names}
    return Written(query.db_id, seen, query.right, query.share, query.first)


# ------------------------------------------------------------------------------------------------------- fitting


def fitted(written: Sequence[Written]) -> dict[str, float]:
    """Weights; every query counts by its share of the writings."""
    return fit([q.seen for q in written], [q.right for q in written], [q.share for q in written])


def all_weights(written: Sequence[Written]) -> dict[str, dict[str, float]]:
    """The weights for all signals, and for those that are known where likelihoods are not."""
    return {name: fitted([without(query, left_out) for query in written]) for name, left_out in KNOWN.items()}


def by_the_others(written: Sequence[Written]) -> list[float]:
    """The probability of each query by weights that were fitted without its database."""
    weights = fitted_by_others(written, lambda query: query.db_id, fitted)
    return [probability_right(query.seen, its) for query, its in zip(written, weights, strict=True)]


def figures(written: Sequence[Written], sure: Sequence[float]) -> list[str]:
    right = np.array([query.right for query in written], float)
    first = [at for at, query in enumerate(written) if query.first]
    firsts = auc([sure[at] for at in first], right[first])
    values = [f"{100 * right.mean():.1f}", f"{auc(sure, right):.3f}", f"{firsts:.3f}"]
    return [*values, f"{ece([sure[at] for at in first], right[first]):.3f}"]


if __name__ == "__main__":
    sys.exit(main())
