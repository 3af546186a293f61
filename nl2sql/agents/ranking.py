"""The candidates of a question, and which of them is the best.

>>> weighted_score({"vote": 0.5, "constraints": None}, ScoreWeights())
0.5
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nl2sql.agents.voting import agreement
from nl2sql.config import CandidatesConfig, ScoreWeights
from nl2sql.interfaces import Completion, RunResult

if TYPE_CHECKING:
    from nl2sql.agents.checks.suspicions import Suspicion

PARTS = tuple(ScoreWeights.model_fields)
_LEAST = 1e-300  # a probability whose logarithm can be taken, for those that are not known


@dataclass
class Candidate:
    """One distinct query of an episode, or (``sql`` empty) all that the guardrails refused.

    raw_sql: the text behind it, its prefill included. steps: where it was written, as far as it is a candidate.
    result: of its execution, once it was executed. parts: each from 0 to 1, None where it is not known; ``vote`` is set
    by ``rank``. refusal: why it failed, or the first gate's reason against one that runs. warnings: what is suspicious
    about it, None where nobody looked; suspected: the checks that say so, where they count in the choice. logprob: of
    the likeliest writing, where it is known.
    """

    sql: str
    raw_sql: str = ""
    origin: str = ""  # of its first writing: greedy, sampled, constrained, repaired
    key: str = ""
    steps: list[int] = field(default_factory=list)
    refusal: str | None = None
    result: RunResult | None = None
    warnings: list[Suspicion] | None = None
    parts: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    score: float = 0.0
    suspected: tuple[str, ...] = ()
    logprob: float | None = None
    repaired: bool = False  # a repair of it was tried

    @property
    def runs(self) -> bool:
        return self.parts["executes"] == 1.0

    def to_dict(self) -> dict[str, Any]:
        parts = {name: value if value is None else _short(value) for name, value in self.parts.items()}
        about = {"sql": self.sql, "origin": self.origin, "steps": self.steps, "refusal": self.refusal}
        suspected = {"suspected": list(self.suspected)} if self.suspected else {}
        return {**about, "score": round(self.score, 4), **suspected, "parts": parts}


def rank(entries: Sequence[Candidate], results: Sequence[RunResult], settings: CandidatesConfig) -> list[Candidate]:
    """``entries`` (in the order of writing, each with its result), best first by ``settings.choose``.

    Sets each one's ``vote`` (the share of all writings whose queries give its rows) and ``score``.
    """
    copies = [len(candidate.steps) for candidate in entries]
    votes = agreement(results, copies)
    for candidate, count in zip(entries, votes, strict=True):
        candidate.parts["vote"] = count / sum(copies)
        candidate.score = weighted_score(candidate.parts, settings.weights)
    return sorted(entries, key=lambda candidate: (not candidate.sql, *_place(candidate, settings)))


def _place(candidate: Candidate, settings: CandidatesConfig) -> tuple[float, ...]:
    """The sort key that decides between candidates; the smallest is the best."""
    parts = {name: value or 0.0 for name, value in candidate.parts.items()}
    if settings.choose == "score":
        return (-candidate.score,)
    if settings.choose == "vote":
        return (not candidate.runs, -parts["vote"])
    if settings.choose == "first_executable":
        return (not candidate.runs,)
    likely = log_likelihood(parts) + settings.vote_weight * math.log(max(parts["vote"], _LEAST))
    likely -= settings.suspicion_weight * bool(candidate.suspected)
    return (not candidate.runs, -parts["rows"], -likely)  # what fails and what gives nothing comes last [42]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def log_likelihood(parts: Mapping[str, float | None]) -> float:
    """The logarithm of a candidate's ``probability``; that of a tiny one where it is not known."""
    return math.log(max(parts["probability"] or 0.0, _LEAST))


def weighted_score(parts: Mapping[str, float | None], weights: ScoreWeights) -> float:
    """The weighted mean of the parts that are known, from 0 to 1."""
    known = {name: value for name, value in parts.items() if value is not None}
    total = sum(getattr(weights, name) for name in known)
    return sum(getattr(weights, name) * value for name, value in known.items()) / total if total else 0.0


def probability(completion: Completion, length_penalty: float) -> float | None:
    """exp(log-probability / tokens ** length_penalty), from 0 to 1; None where the back end does not know it.

    length_penalty: 1 for the geometric mean of the tokens' probabilities, 0 for the probability of the whole text.
    """
    if completion.logprob is None:
        return None
    return math.exp(min(0.0, completion.logprob / max(1, completion.usage.completion_tokens) ** length_penalty))
