"""The reward of an episode, with its parts beside it: EX, TS, format, cost.

>>> from nl2sql.config import RewardConfig
>>> weighed({"ex": 1.0, "ts": 0.0, "format": 1.0, "cost": -0.5}, RewardConfig())  # right by luck
0.275

A query that is right on the database and wrong on a perturbed copy of it (``ex`` 1, ``ts`` 0) was right by luck, or has
the answer written into it: ``SELECT 14`` for a count. Most of the weight is on TS for that reason. An episode without a
query that runs earns 0, whatever its other parts would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nl2sql.agents.record import Episode
from nl2sql.config import Config, RewardConfig
from nl2sql.errors import UsageError
from nl2sql.eval.scores import ItemScore
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Benchmark, Question

PARTS = ("ex", "ts", "format", "cost")


@dataclass(frozen=True)
class Outcome:
    """What a reward needs of an episode, as plain data. ``readable``: the share of the model's turns that were."""

    question_id: str
    sql: str = ""
    error: str | None = None
    finish: str = ""
    steps: int = 0
    tokens: int = 0  # that the model wrote
    readable: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Reward:
    """An outcome with its parts, each between 0 and 1 (``cost``: -1 and 0), and their weighted sum ``total``.

    ``ts`` is None where no replicas are asked for. ``error``: why the query earned nothing, of the episode or of the
    database.
    """

    outcome: Outcome
    ex: float = 0.0
    ts: float | None = 0.0
    format: float = 0.0
    cost: float = 0.0
    total: float = 0.0
    error: str | None = None

    @property
    def lucky(self) -> bool:
        """Right on the database, and not on its copies."""
        return self.ex > 0 and self.ts == 0

    def parts(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in PARTS}

    def to_dict(self) -> dict[str, Any]:
        return {**self.outcome.to_dict(), **self.parts(), "total": self.total, "error": self.error}


def outcome_of(episode: Episode) -> Outcome:
    """The outcome of a finished episode, of any controller."""
    turns = sum(call["kind"] == "act" for call in episode.calls)
    unread = min(turns, episode.flags.get("format_errors", 0))
    return Outcome(
        question_id=episode.question.id,
        sql=episode.sql,
        error=episode.error,
        finish=episode.finish,
        steps=episode.steps,
        tokens=episode.usage.completion_tokens,
        readable=1 - unread / turns if turns else 1.0,
    )


def rewards_of(
    benchmark: Benchmark, questions: Mapping[str, Question], outcomes: Sequence[Outcome], config: Config
) -> list[Reward]:
    """The rewards of outcomes, in their order; each query of a question is executed once, in the sandbox.

    ``questions``: id -> question with its golds. Never raises for what a query does: one that is refused, fails, or
    takes too long earns 0 and says why. Thread-safe. Raises UsageError for an unknown question id.
    """
    for outcome in outcomes:
        if outcome.question_id not in questions:
            raise UsageError(f"question {outcome.question_id!r} is not in this environment")
    ran = [outcome for outcome in outcomes if outcome.error is None and outcome.sql.strip()]
    items: Mapping[str, Mapping[str | None, ItemScore]] = {}
    if ran:
        asked = {outcome.question_id: questions[outcome.question_id] for outcome in ran}
        files = {str(n): {outcome.question_id: outcome.sql} for n, outcome in enumerate(ran)}
        items = judge(benchmark, list(asked.values()), files, Settings(config.eval, causes=False)).items
    return [
        _reward(outcome, items[outcome.question_id][outcome.sql], config)
        if outcome.error is None and outcome.sql.strip()
        else _nothing(outcome, outcome.error or "no SQL", config)
        for outcome in outcomes
    ]


def _nothing(outcome: Outcome, error: str, config: Config) -> Reward:
    return Reward(outcome, ts=0.0 if config.eval.replicas else None, error=error)


def _reward(outcome: Outcome, item: ItemScore, config: Config) -> Reward:
    if not item.va:
        return _nothing(outcome, f"database: {item.error}", config)
    bounds = config.reward
    shares = (min(1.0, outcome.steps / bounds.steps), min(1.0, outcome.tokens / bounds.tokens))
    readable = round(outcome.readable, 4)
    parts: dict[str, float | None] = {
        "ex": float(item.ex),
        "ts": None if item.ts is None else float(item.ts and bool(item.ts_replicas)),
        "format": readable,
        "cost": 0.0 - round(min(sum(shares) / 2, readable), 4),  # an answer that runs earns 0 at least
    }
    return Reward(outcome, total=weighed(parts, bounds), **parts)  # type: ignore[arg-type]


def weighed(parts: Mapping[str, float | None], weights: RewardConfig) -> float:
    """The sum of the parts, each times its weight; a part that is None counts nothing."""
    return round(sum(getattr(weights, name) * (parts[name] or 0.0) for name in PARTS), 6)
