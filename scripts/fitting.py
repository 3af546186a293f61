"""What fit_confidence.py and fit_verifier.py share: rankings of runs, a logistic regression, and how well it holds.

*ECE* is the mean gap between probability and share of right cases over ten bins of equal size; *AUC* the chance that a
right case is held for likelier right than a wrong one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import yaml

from nl2sql.config import CandidatesConfig
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.rules import gold_order, results_match
from nl2sql.interfaces import Database, Question, RunResult
from nl2sql.runs.folder import RunFolder, read_manifest
from nl2sql.runs.plan import open_benchmark, read_plan
from nl2sql.runs.rescore import questions_of

Array = Any  # numpy's
Case = TypeVar("Case")
Weights = TypeVar("Weights")  # of one regression, or of several by name
BINS, RIDGE = 10, 1.0
THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


# ------------------------------------------------------------------------------------------------------- reading


class Ranked(NamedTuple):
    """A question of a run, its candidates as the trace records them, best first, and what was asked for."""

    question: Question
    ranking: list[dict[str, Any]]
    database: Database
    settings: CandidatesConfig

    def executed(self) -> tuple[list[RunResult], list[bool]]:
        """The result of each candidate, and whether it is right: EX[bag] beside the gold."""
        gold_sql = self.question.gold[0]
        gold = self.database.run(gold_sql)
        results = [self.database.run(entry["sql"]) if entry["sql"] else RunResult(False) for entry in self.ranking]
        how = gold_order(gold_sql, gold)
        return results, [results_match(gold, result, **how) for result in results]


def ranked(folder: Path) -> Iterator[Ranked]:
    """The questions of a run that have a gold and a ranking."""
    plan, config = read_plan(folder)
    run = RunFolder(folder, read_manifest(folder)["key"], folder)  # an unfinished one will do
    benchmark = open_benchmark(plan, {})
    golds = {question.id: question for question in questions_of(folder, benchmark)}
    for trace in run.traces(("trace",)):
        rankings = [r["observation"]["ranking"] for r in trace["trace"] if r.get("action") == "rank_candidates"]
        question = golds.get(trace["id"])
        if question is not None and question.gold and rankings:
            yield Ranked(question, rankings[-1], benchmark.database(question.db_id), config.candidates)


def cases_of(folders: Iterable[Path], read: Callable[[Ranked], list[Case]]) -> list[Case]:
    """What ``read`` makes of every ranking; ends the program with one line where there is none."""
    try:
        cases = [case for folder in folders for one in ranked(folder) for case in read(one)]
        if not cases:
            raise UsageError("no run has a ranking; see the command in --help")
    except Nl2SqlError as error:
        raise ended(error) from None
    return cases


def ended(error: Nl2SqlError) -> SystemExit:
    """The program's end with one line."""
    print(f"error: {error}", file=sys.stderr)
    return SystemExit(error.exit_code)


# ------------------------------------------------------------------------------------------------------- fitting


def fit(seen: Sequence[Mapping[str, float]], right: Sequence[bool], shares: Sequence[float]) -> dict[str, float]:
    """Weights of a logistic regression with a small ridge, by Newton's method; ``shares`` weighs the cases."""
    names = list(dict.fromkeys(name for one in seen for name in one))
    x = np.array([[1.0, *(one.get(name, 0.0) for name in names)] for one in seen])
    y, counts = np.array(right, float), np.array(shares)
    ridge = RIDGE * np.eye(x.shape[1])
    ridge[0, 0] = 1e-6  # where all cases are right the constant would have no end
    weights = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -50, 50)))
        slope = x.T @ (counts * (y - p)) - ridge @ weights
        weights += np.linalg.solve((x.T * (counts * p * (1 - p))) @ x + ridge, slope)
    return dict(zip(["constant", *names], weights.tolist(), strict=True))


def fitted_by_others(
    cases: Sequence[Case], database: Callable[[Case], str], fitted: Callable[[list[Case]], Weights]
) -> list[Weights]:
    """For each case the weights that were fitted without its database; ends the program where there is only one."""
    databases = {database(case) for case in cases}
    if len(databases) < 2:
        raise ended(UsageError(f"all questions are over {', '.join(databases)}; --apply takes the packaged weights"))
    weights = {name: fitted([case for case in cases if database(case) != name]) for name in databases}
    return [weights[database(case)] for case in cases]


def head(script: str, count: str, page: str) -> str:
    """The first line of a file of weights: how it was made."""
    shown = " ".join(Path(word).name if "/" in word else word for word in sys.argv[1:])
    return f"# Made by scripts/{script} {shown}: {count}. See docs/{page}.\n"


def as_yaml(weights: Mapping[str, Mapping[str, float]]) -> str:
    short = {name: {signal: round(weight, 3) for signal, weight in each.items()} for name, each in weights.items()}
    return yaml.safe_dump(short, sort_keys=False)


# ------------------------------------------------------------------------------------------------------- figures


def ece(sure: Sequence[float], right: Array) -> float:
    """The mean gap between probability and share of right cases, over bins of equal size."""
    bins = np.array_split(np.argsort(sure), BINS)
    values = np.array(sure)
    return float(sum(abs(values[b].mean() - right[b].mean()) * len(b) for b in bins if len(b)) / len(values))


def auc(sure: Sequence[float], right: Array) -> float:
    """The chance that a right case is held for likelier right than a wrong one; ties count half."""
    good, bad = np.array(sure)[right == 1], np.sort(np.array(sure)[right == 0])
    if not len(good) or not len(bad):
        return float("nan")
    below, upto = (np.searchsorted(bad, good, side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(bad))


def thresholds(sure: Sequence[float], right: Array) -> list[list[str]]:
    """The table of abstention: how many questions are answered at each threshold, and how many of these are right."""
    rows = [["min_confidence", "answered %", "right of these %", "right answers kept %"]]
    values = np.array(sure)
    for least in THRESHOLDS:
        kept = values >= least
        share = f"{100 * right[kept].mean():.1f}" if kept.any() else "-"
        among = 100 * right[kept].sum() / max(right.sum(), 1)
        rows.append([f"{least:g}", f"{100 * kept.mean():.1f}", share, f"{among:.1f}"])
    return rows
