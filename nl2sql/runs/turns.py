"""The form in which a loop is to ask for its actions: ``--turns auto`` finds it out on the first ten questions.

>>> Share(turns=40, unread=31).broken, str(Share(turns=40, unread=31))
(True, '31 of 40')

Some chat models do not keep to the lines ``Thought:``, ``Action: tool[json]`` and do well with tool calls of their own
form (``react.native_tools``). What tells is the share of turns without an action that can be read
(``flags.format_errors``; an episode that breaks off counts as one more). Where it is half or more, the ten are asked
again with native calls, and the form with the smaller share is taken for the whole run. That begins anew; the response
cache, where it is on, has the trial's calls.

Not covered: whether the form that is read more often also answers better; controllers that ask for no actions.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nl2sql.agents.controllers import LOOPS, PACKAGED, get_controller
from nl2sql.agents.record import Episode
from nl2sql.config import Config
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Model
from nl2sql.runs.job import Job
from nl2sql.runs.plan import Plan

if TYPE_CHECKING:
    from nl2sql.runs.opened import Opened

logger = logging.getLogger(__name__)

TRIED = 10


@dataclass(frozen=True)
class Share:
    """The turns of a few episodes, and those of them in which no action could be read."""

    turns: int = 0
    unread: int = 0

    @property
    def share(self) -> float:
        return self.unread / self.turns if self.turns else 1.0

    @property
    def broken(self) -> bool:
        return self.turns > 0 and 2 * self.unread >= self.turns

    def __add__(self, episode: Episode) -> Share:
        asked = sum(call["kind"] == "act" for call in episode.calls)
        return Share(self.turns + asked, self.unread + episode.flags.get("format_errors", 0))

    def __str__(self) -> str:
        return f"{self.unread} of {self.turns}"


def settled(plan: Plan, config: Config, opened: Opened, model: Model, progress: bool) -> tuple[Config, dict[str, Any]]:
    """``config`` with the form of turns decided where ``plan.turns`` is auto, and what a manifest keeps of the trial.

    Raises UsageError for a controller that is no loop.
    """
    if plan.turns != "auto":
        return config, {}
    own = "controller" in plan.objects or plan.controller not in PACKAGED
    if not own and plan.controller not in LOOPS:
        raise UsageError(f"--turns auto goes with a loop, not with {plan.controller!r}; use --controller react")
    shares = {"text": _tried(plan, _with(config, native=False), opened, model, progress)}
    why = ""
    if shares["text"].broken:
        try:
            _check_native(model, config)
            shares["native"] = _tried(plan, _with(config, native=True), opened, model, progress)
        except ModelError as refused:
            why = str(refused)
    chosen = min(shares, key=lambda form: shares[form].share)  # text where they are equal
    facts: dict[str, Any] = {"chosen": chosen, "episodes": min(TRIED, len(opened.questions))}
    facts |= {form: vars(share) for form, share in shares.items()} | ({"native_refused": why} if why else {})
    said = ", ".join(f"{share} in {form}" for form, share in shares.items())
    logger.warning("turns without a readable action: %s%s; --turns %s is taken", said, why and f" ({why})", chosen)
    return _with(config, native=chosen == "native"), facts


def _with(config: Config, *, native: bool) -> Config:
    return config.model_copy(update={"react": config.react.model_copy(update={"native_tools": native})})


def _check_native(model: Model, config: Config) -> None:
    """Raises ModelError where the model takes no native tool calls beside the grammars of ``config``."""
    if check := getattr(model, "check", None):
        check(grammar=config.constrain not in ("none", "auto"), tools=True)


def _tried(plan: Plan, config: Config, opened: Opened, model: Model, progress: bool) -> Share:
    kept: list[Episode] = []
    job = Job(
        plan=plan,
        controller=get_controller(opened.objects.get("controller") or plan.controller),
        config=config,
        questions=opened.questions[:TRIED],
        benchmark=opened.benchmark,
        model=model,
        tools=opened.tools,
        gates=opened.gates,
        keep=kept.append,
        progress=progress,
    )
    opened.executor.episodes(job)
    share = Share()
    for episode in kept:
        share = share + episode
        if episode.finish == "error":  # broke off: no better than a turn that cannot be read
            share = Share(share.turns + 1, share.unread + 1)
    return share


class Watch:
    """Looks at the first episodes of a run in text, and proposes native calls where the model ignores the form."""

    def __init__(self, config: Config, questions: int) -> None:
        self._left = 0 if config.react.native_tools or questions < TRIED else TRIED
        self._share = Share()

    def see(self, episode: Episode | None) -> None:
        """Count an episode, unless it was stopped; the last of the first ten tells."""
        if self._left and episode is not None:
            self._left -= 1
            self._share = self._share + episode
            if not self._left and self._share.broken:
                logger.warning(
                    "in %s turns of the first episodes no action could be read; a chat model may do better with "
                    "--turns native (--turns auto finds out)",
                    self._share,
                )
