"""The verifier's weights: fits verifier.yaml on the candidates of a run, and shows how well it tells right from wrong.

    nl2sql eval --benchmark FOLDER --split aside --controller candidates --constrain plain -c schema_text.values=4 \\
        -c candidates.n=24 -c candidates.views=4 -c candidates.choose=question -c candidates.length_penalty=0 \\
        -c candidates.suspicion_weight=0.000001 -c eval.replicas=0 --no-control --out runs/aside
    python scripts/fit_verifier.py runs/aside                  # the figures, each database by the others
    python scripts/fit_verifier.py runs/aside --choose         # EX by the way to choose, and with abstention
    python scripts/fit_verifier.py runs/aside --write          # also the packaged weights
    python scripts/fit_verifier.py runs/other --apply          # the packaged weights as they are

The run must be over databases that the model has not trained on. Every candidate that runs is labelled by execution
beside the gold, EX[bag], and counts as often as it was written. *AUC* is the chance that a right query is held for
likelier right than a wrong one; *first* looks at the first greedy query of each question only.

--choose ranks the candidates of the run anew by each ``candidates.choose``, by the code that ranks them in an
episode; no model is asked. Won and lost are questions against ``question`` (McNemar, exact). The last columns hold
two probabilities of the chosen answer beside its verdict, ECE and AUC: the verifier's, and that of a regression as in
``fit_confidence.py``, fitted anew without its database. A table of abstention follows, by the verifier's. The other
settings of the choice, such as ``candidates.suspicion_weight``, are the run's.
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
from fitting import Array, Ranked, as_yaml, auc, cases_of, draw, ece, fit, fitted_by_others, head, thresholds

from nl2sql.agents.candidates import confidence
from nl2sql.agents.checks.logistic import logistic
from nl2sql.agents.checks.verifier import WEIGHTS_FILE, packaged_weights, probability_right, signals, weights_for
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.agents.ranking import Candidate, rank
from nl2sql.agents.voting import same_rows
from nl2sql.config import CandidatesConfig
from nl2sql.errors import UsageError
from nl2sql.eval.stats import paired_test
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import RunResult
from nl2sql.machine import write_whole

KNOWN = {"all": (), "question": ("likely",), "seen": ("likely", "question", "per_word")}  # weights -> signals left out
CHOICES: dict[str, dict[str, str]] = {  # the name of a row -> how it chooses
    "likeliest": {"choose": "logprob"},
    "question": {"choose": "question"},
    "verify": {"choose": "verify"},
}


@dataclass
class Written:
    """One query that ran. share: of all writings of its question; first: it is the first greedy one."""

    db_id: str
    seen: dict[str, float]
    right: bool
    share: float
    first: bool


@dataclass
class Asked:
    """One question of a run. Of each candidate, in the order of writing: the query where it ran, a result with nothing
    but the number of its rows' group, whether it is right, and the share of the question that nothing stands for."""

    db_id: str
    settings: CandidatesConfig
    candidates: list[Candidate]
    written: list[Written | None]
    groups: list[RunResult]
    right: list[bool]
    uncovered: list[float]


@dataclass
class Chosen:
    """The answer that one way to choose gives to a question. sure: the verifier's probability."""

    db_id: str
    right: bool
    sure: float
    seen: dict[str, float]  # the signals of confidence.yaml


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs", nargs="+", type=Path, help="runs of candidates with candidates.choose=question or verify"
    )
    parser.add_argument("--write", action="store_true", help=f"write {WEIGHTS_FILE.name}, fitted on all queries")
    parser.add_argument("--apply", action="store_true", help="the packaged weights as they are; nothing is fitted")
    parser.add_argument("--choose", action="store_true", help="EX by the way to choose among the candidates")
    parser.add_argument("--figure", type=Path, help="with --choose: draw reliability and abstention into this PNG")
    options = parser.parse_args()
    asked = cases_of(options.runs, judged)
    written = [query for one in asked for query in one.written if query is not None]
    if options.choose:
        verify(asked, apply=options.apply)
        chosen = {name: [choose(one, how) for one in asked] for name, how in CHOICES.items()}
        print(table_markdown(choices(asked, chosen)))
        answers = chosen["verify"]
        sure, right = [one.sure for one in answers], np.array([one.right for one in answers], float)
        print(f"\nverify:\n\n{table_markdown(thresholds(sure, right))}")
        if options.figure:
            draw(np.array(sure), right, options.figure)
        return 0
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


def judged(one: Ranked) -> list[Asked]:
    """The candidates of a question. Raises UsageError for a run that does not say what the verifier looks at."""
    settings, schema = one.settings, one.database.schema()
    if not any("question" in entry for entry in one.ranking):
        raise UsageError("no question was read back; run again with -c candidates.choose=question")
    if settings.length_penalty:
        raise UsageError("the whole query's likelihood is needed; run again with -c candidates.length_penalty=0")
    if not settings.suspicion_weight and settings.choose != "verify":
        raise UsageError("no suspicions were looked for; run again with -c candidates.suspicion_weight=0.000001")
    one = one._replace(ranking=sorted(one.ranking, key=lambda entry: min(entry["steps"])))
    results, right = one.executed()
    groups = [
        RunResult(result.success, rows=((group,),)) for result, group in zip(results, same_rows(results), strict=True)
    ]
    uncovered = [uncovered_share(one.question.text, entry["sql"], schema) for entry in one.ranking]
    copies = sum(len(entry["steps"]) for entry in one.ranking)
    candidates: list[Candidate] = []
    written: list[Written | None] = []
    for at, (entry, result) in enumerate(zip(one.ranking, results, strict=True)):
        candidate = candidate_of(entry)
        candidates.append(candidate)
        if not candidate.sql or not candidate.runs:
            written.append(None)
            continue
        seen = signals(
            one.question.text,
            candidate.sql,
            result,
            likely=candidate.logprob,
            read_back=candidate.question,
            refused=candidate.refusal is not None,
            suspected=bool(candidate.suspected),
            uncovered=uncovered[at],
            values=candidate.parts["values"],
        )
        share = len(candidate.steps) / copies
        written.append(Written(one.question.db_id, seen, right[at], share, 0 in candidate.steps))
    return [Asked(one.question.db_id, settings, candidates, written, groups, right, uncovered)]


def candidate_of(entry: Mapping[str, Any]) -> Candidate:
    """A candidate as the trace records it. The probability must be the whole query's."""
    names = ("sql", "origin", "steps", "refusal", "parts")
    likely = entry["parts"]["probability"]
    return Candidate(
        **{name: entry[name] for name in names},
        raw_sql="",
        key=entry["sql"],
        question=entry.get("question"),
        suspected=tuple(entry.get("suspected", ())),
        logprob=None if likely is None else math.log(max(likely, 1e-300)),
    )


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


# ------------------------------------------------------------------------------------------------------ choosing


def verify(asked: Sequence[Asked], *, apply: bool) -> None:
    """Sets how sure the verifier is of each candidate that ran, by weights that were fitted without its database, or by
    the packaged ones."""
    pairs = [(c, q) for one in asked for c, q in zip(one.candidates, one.written, strict=True) if q is not None]
    if apply:
        weights = [packaged_weights()] * len(pairs)
    else:
        weights = fitted_by_others([query for _, query in pairs], lambda query: query.db_id, all_weights)
    for (candidate, query), its in zip(pairs, weights, strict=True):
        candidate.sure = probability_right(query.seen, its[weights_for(query.seen)])


def choose(one: Asked, how: Mapping[str, str]) -> Chosen:
    """The answer to a question by the settings of ``how``, ranked as an episode ranks it."""
    settings = one.settings.model_copy(update=how)
    ranking = rank(one.candidates, one.groups, settings)
    places = {id(candidate): at for at, candidate in enumerate(one.candidates)}
    order = [places[id(candidate)] for candidate in ranking]
    groups = same_rows([one.groups[at] for at in order])
    recorded = [candidate.to_dict() for candidate in ranking]
    seen = confidence.signals(recorded, groups, settings, uncovered=one.uncovered[order[0]])
    return Chosen(one.db_id, one.right[order[0]], ranking[0].sure or 0.0, seen)


def choices(asked: Sequence[Asked], chosen: Mapping[str, Sequence[Chosen]]) -> list[list[str]]:
    """EX by the way to choose; the first row is the header."""
    greedy = [any(right and 0 in c.steps for c, right in zip(one.candidates, one.right, strict=True)) for one in asked]
    verdicts = {"greedy": greedy} | {name: [one.right for one in answers] for name, answers in chosen.items()}
    rows = [["choice", "EX", "won, lost", "p", "p by database", "verifier ECE, AUC", "regression ECE, AUC"]]
    databases = [one.db_id for one in asked]
    for name, right in verdicts.items():
        held = [held_for(chosen[name], [one.sure for one in chosen[name]])] if name == "verify" else [""]
        held.append(held_for(chosen[name], confident(chosen[name])) if name in chosen else "")
        test = paired_test(
            "question", dict(enumerate(right)), dict(enumerate(verdicts["question"])), databases.__getitem__
        )
        against = [""] * 3
        if name != "question":
            against = [f"{test.wins}, {test.losses}", f"{test.p:.2g}", f"{test.p_databases:.2g}"]
        rows.append([name, f"{100 * np.mean(right):.1f}", *against, *held])
    possible = 100 * np.mean([any(one.right) for one in asked])
    return [*rows, ["one is right", f"{possible:.1f}", *[""] * 5]]


def confident(chosen: Sequence[Chosen]) -> list[float]:
    """The confidence of each answer by a regression that was fitted without its database."""

    def weights(answers: Sequence[Chosen]) -> dict[str, float]:
        return fit([one.seen for one in answers], [one.right for one in answers], [1.0] * len(answers))

    by_others = fitted_by_others(chosen, lambda one: one.db_id, weights)
    return [logistic(one.seen, its) for one, its in zip(chosen, by_others, strict=True)]


def held_for(chosen: Sequence[Chosen], sure: Sequence[float]) -> str:
    right: Array = np.array([one.right for one in chosen], float)
    return f"{ece(sure, right):.3f}, {auc(sure, right):.3f}"


if __name__ == "__main__":
    sys.exit(main())
