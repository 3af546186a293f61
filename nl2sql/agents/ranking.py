"""The candidates of a question: how they compare, which is the best, and how sure it is.

>>> oslo, bergen = (RunResult(True, rows=((city,),)) for city in ("Oslo", "Bergen"))
>>> agreement([oslo, bergen, oslo])
[2, 1, 2]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.config import CandidatesConfig
from nl2sql.interfaces import Completion, RunResult
from nl2sql.machine import from_yaml

if TYPE_CHECKING:
    from nl2sql.agents.task import Task

PARTS = ("executes", "rows", "vote", "probability")
WEIGHTS_FILE = Path(__file__).with_name("confidence.yaml")
LEAST = 1e-4  # no confidence is lower, and none higher than one minus this
_LEAST = 1e-300  # a probability whose logarithm can be taken, for those that are not known


@dataclass
class Candidate:
    """One distinct query of an episode, or (``sql`` empty) all that the guardrails refused.

    raw_sql: the text behind it, its prefill included. steps: where it was written, as far as it is a candidate.
    result: of its execution, once it was executed. parts: each from 0 to 1, None where it is not known; ``vote`` is set
    by ``rank``. refusal: why it failed, or the first gate's reason against one that runs. warnings: the checks that
    find it suspicious, None where nobody looked; suspected: the same, where they count in the choice. logprob: of the
    likeliest writing, where it is known.
    """

    sql: str
    raw_sql: str = ""
    origin: str = ""  # of its first writing: greedy, sampled, constrained, repaired
    key: str = ""
    steps: list[int] = field(default_factory=list)
    refusal: str | None = None
    result: RunResult | None = None
    warnings: tuple[str, ...] | None = None
    parts: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    score: float = 0.0
    suspected: tuple[str, ...] = ()
    logprob: float | None = None
    repaired: bool = False  # a repair of it was tried

    @property
    def runs(self) -> bool:
        return self.parts["executes"] == 1.0

    def to_dict(self) -> dict[str, Any]:
        parts = {name: value if value is None else float(f"{value:.4g}") for name, value in self.parts.items()}
        about = {"sql": self.sql, "origin": self.origin, "steps": self.steps, "refusal": self.refusal}
        suspected = {"suspected": list(self.suspected)} if self.suspected else {}
        return {**about, "score": round(self.score, 4), **suspected, "parts": parts}


def suspected_by(task: Task, sql: str) -> tuple[str, ...]:
    """The names of the checks that find a query that ran suspicious."""
    from nl2sql.agents.checks.suspicions import suspicions

    candidate = task.candidate(sql)
    if candidate.warnings is None:
        result, database = task.result_of(sql), task.resources.database
        warnings = suspicions(task.question.text, sql, database, result, task.config.suspicions)
        candidate.warnings = tuple(dict.fromkeys(item.check for item in warnings))
    return candidate.warnings


# ------------------------------------------------------------------------------- results beside one another


def agreement(results: Sequence[RunResult], weights: Sequence[int] | None = None) -> list[int]:
    """For each result how many results have the same rows, as a multiset, itself among them; 0 for a failed one.

    weights: how often each counts (default: once).
    """
    groups = same_rows(results)
    votes: Counter[int] = Counter()
    for group, count in zip(groups, weights or [1] * len(results), strict=True):
        votes[group] += count
    return [votes[group] if result.success else 0 for group, result in zip(groups, results, strict=True)]


def same_rows(results: Sequence[RunResult]) -> list[int]:
    """A number for each result, equal for those with the same rows; the failed ones share one."""
    numbers: dict[object, int] = {}
    kinds = [frozenset(Counter(map(repr, result.rows)).items()) if result.success else None for result in results]
    return [numbers.setdefault(kind, len(numbers)) for kind in kinds]


def as_samples(queries: Sequence[str], results: Sequence[RunResult]) -> list[dict[str, object]]:
    """What was written, as an episode keeps it: each query, and a number that those with the same rows share."""
    beside = zip(queries, same_rows(results), results, strict=True)
    return [{"sql": sql, "rows": group if result.success else None} for sql, group, result in beside]


def tells(result: RunResult) -> bool:
    """Whether a result says anything: it has a row with a value that is not NULL."""
    return any(value is not None for row in result.rows for value in row)


# ------------------------------------------------------------------------------------------------ the order


def rank(entries: Sequence[Candidate], results: Sequence[RunResult], settings: CandidatesConfig) -> list[Candidate]:
    """``entries`` (in the order of writing, each with its result), best first by ``settings.choose``.

    Sets each one's ``vote`` (the share of all writings whose queries give its rows) and ``score``.
    """
    copies = [len(candidate.steps) for candidate in entries]
    for candidate, count in zip(entries, agreement(results, copies), strict=True):
        candidate.parts["vote"] = count / sum(copies)
        candidate.score = _score(candidate, settings)

    def place(candidate: Candidate) -> tuple[float, ...]:  # what gives nothing comes last [42]
        telling = settings.choose != "logprob" or bool(candidate.parts["rows"])
        return (not candidate.sql, not candidate.runs, not telling, -candidate.score)

    return sorted(entries, key=place)


def _score(candidate: Candidate, settings: CandidatesConfig) -> float:
    """What decides between candidates that run; the highest is the best."""
    if settings.choose == "first_executable":
        return 0.0
    vote = candidate.parts["vote"] or 0.0
    if settings.choose == "vote":
        return vote
    score = log_likelihood(candidate.parts) + settings.vote_weight * math.log(max(vote, _LEAST))
    return score - settings.suspicion_weight * bool(candidate.suspected)


def log_likelihood(parts: Mapping[str, float | None]) -> float:
    """The logarithm of a candidate's ``probability``; that of a tiny one where it is not known."""
    return math.log(max(parts["probability"] or 0.0, _LEAST))


def probability(completion: Completion, length_penalty: float) -> float | None:
    """exp(log-probability / tokens ** length_penalty), from 0 to 1; None where the back end does not know it.

    length_penalty: 1 for the geometric mean of the tokens' probabilities, 0 for the probability of the whole text.
    """
    if completion.logprob is None:
        return None
    return math.exp(min(0.0, completion.logprob / max(1, completion.usage.completion_tokens) ** length_penalty))


# ------------------------------------------------------------------------------------------- the confidence
# A logistic regression over signals of the ranking. ``scripts/fit_confidence.py`` fits the weights on the
# candidates of qwen2.5-coder-1.5b and -0.5b for questions over databases that they have not trained on,
# and draws how well the probabilities hold. With another model only the order of answers says something.


def signals(ranking: Sequence[Mapping[str, Any]], groups: Sequence[int], *, uncovered: float) -> dict[str, float]:
    """What a ranking says about its first entry.

    ranking: candidates as the trace records them, best first. groups: a number per candidate, the same for those with
    the same rows. uncovered: see ``linking.uncovered_share``.
    """
    best = ranking[0]
    logprobs = [log_likelihood(entry["parts"]) for entry in ranking]
    alive = [bool(entry["parts"]["executes"]) for entry in ranking]
    highest = max((value for value, runs in zip(logprobs, alive, strict=True) if runs), default=0.0)
    beside = zip(logprobs, alive, strict=True)
    weight = [math.exp(max(value - highest, -700.0)) if runs else 0.0 for value, runs in beside]
    same = sum(value for value, group in zip(weight, groups, strict=True) if group == groups[0])
    return {
        "agreed": best["parts"]["vote"] or 0.0,
        "mass": same / (sum(weight) or 1.0),
        "logprob": max(logprobs[0], -60.0),
        "probability": best["parts"]["probability"] or 0.0,
        "runs": float(best["parts"]["executes"] or 0.0),
        "rows": float(best["parts"]["rows"] or 0.0),
        "suspected": float(bool(best.get("suspected"))),
        "refused": float(best.get("refusal") is not None),
        "uncovered": uncovered,
    }


def logistic(seen: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The probability, from 0 to 1; ``weights`` has a ``constant``, and a signal without a weight counts nothing.

    >>> logistic({"rows": 1.0, "unweighted": 5.0}, {"constant": -1.0, "rows": 1.0})
    0.5
    """
    at = weights["constant"] + sum(weights.get(name, 0.0) * value for name, value in seen.items())
    return min(max(1 / (1 + math.exp(-max(min(at, 50.0), -50.0))), LEAST), 1 - LEAST)


def confidence(ranking: Sequence[Mapping[str, Any]], results: Sequence[RunResult], *, uncovered: float) -> float:
    """How likely the first of a ranking is right; arguments as for ``signals``, the results in the same order."""
    return round(logistic(signals(ranking, same_rows(results), uncovered=uncovered), packaged()), 3)


@cache
def packaged() -> dict[str, float]:
    """The packaged weight of each signal, with the constant."""
    weights: dict[str, float] = from_yaml(WEIGHTS_FILE.read_text(encoding="utf-8"))
    return weights
