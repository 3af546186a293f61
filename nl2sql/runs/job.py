"""What is to be carried out (a trial, a job), what the trials of a command share, and this process as executor.

A ``Trial`` is one run as it was asked for: ``nl2sql eval`` has one, a run with seeds one per seed, an ablation one per
line of its table. A ``Job`` is the part of a trial that an executor is handed: one controller, and its questions.

>>> Share(turns=40, unread=31).broken, str(Share(turns=40, unread=31))
(True, '31 of 40')
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from tqdm.auto import tqdm

from nl2sql.agents.controllers import LOOPS, PACKAGED, NamedController, episode_model, get_controller, run_episode
from nl2sql.agents.record import Episode
from nl2sql.benchmarks.core import interactions
from nl2sql.config import Config
from nl2sql.config.plugins import named_functions
from nl2sql.errors import ModelError, UsageError
from nl2sql.eval.scores import Judged
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Judge, Settings, check_ts
from nl2sql.interfaces import Benchmark, Completion, Gate, Message, Model, Question, Resources, Tool, adapter_at
from nl2sql.runs.dialogues import OwnHistories, history_of, in_dialogue
from nl2sql.runs.plan import MODEL_OPTIONS, RunSpec, check_config, open_benchmark, open_model, pick

# ----------------------------------------------------------------------------------- trials and jobs


class Executor(Judge, Protocol):
    """Whoever does the work of a run, its verdicts too: ``runs.local.Local``, ``runs.distributed.Ray``."""

    def check(self, plan: RunSpec, config: Config) -> None:
        """Raises UsageError for a plan that cannot be carried out there; nothing has been opened yet."""
        ...

    def episodes(self, job: Job) -> None:
        """Run every question of ``job``; ``job.keep`` takes each episode, ``job.advance`` counts it.

        Raises KeyboardInterrupt after the running episodes were cancelled.
        """
        ...


@dataclass(frozen=True)
class Trial:
    """One run: a plan under a config. ``name`` is its folder's, inside that of the other trials; "" for a run alone.

    changed: in which keys it differs from the base of its grid, as it was written.
    """

    name: str
    changed: Mapping[str, Any]
    plan: RunSpec
    config: Config


def nobody(told: object) -> None:
    """Is told of episodes that are not kept, and of questions that no bar counts."""


@dataclass(frozen=True)
class Job:
    """One controller under its config, with everything opened, over the questions that are owed."""

    plan: RunSpec
    controller: NamedController
    config: Config
    questions: Sequence[Question]
    benchmark: Benchmark
    model: Model
    tools: Mapping[str, Tool]
    gates: Mapping[str, Gate]
    keep: Callable[[Episode], object] = nobody
    progress: bool = False
    advance: Callable[[int], object] = nobody  # told how many more questions are done, for a bar over several trials
    own: OwnHistories | None = None  # where turns get the history of what was answered before; None: they have theirs


# --------------------------------------------------------------------------------- ``--turns auto``
# Some chat models do not keep to the lines ``Thought:``, ``Action: tool[json]`` and do well with
# tool calls of their own form (``react.native_tools``). What tells is the share of turns without an
# action that can be read (``flags.format_errors``; an episode that breaks off counts as one more).
# Where it is half or more, the ten are asked again with native calls, and the form with the smaller
# share is taken for the whole run. That begins anew; the response cache, where it is on, has the
# calls of the ten.
#
# Not covered: whether the form that is read more often also answers better; controllers that ask
# for no actions.

logger = logging.getLogger(__name__)

TRIED = 10


class Share(NamedTuple):
    """The turns of a few episodes, and those of them in which no action could be read."""

    turns: int = 0
    unread: int = 0

    @property
    def share(self) -> float:
        return self.unread / self.turns if self.turns else 1.0

    @property
    def broken(self) -> bool:
        return self.turns > 0 and self.share >= 0.5

    def __str__(self) -> str:
        return f"{self.unread} of {self.turns}"


def settled(trial: Trial, context: RunContext, progress: bool) -> tuple[Config, dict[str, Any]]:
    """The config with the form of turns decided where the plan's ``turns`` is auto, and what a manifest keeps of
    that. Raises UsageError for a controller that is no loop."""
    plan, config, model = trial.plan, trial.config, context.fit(trial)
    if plan.turns != "auto":
        return config, {}
    own = "controller" in plan.objects or plan.controller not in PACKAGED
    if not own and plan.controller not in LOOPS:
        raise UsageError(f"--turns auto goes with a loop, not with {plan.controller!r}; use --controller react")
    shares = {"text": _tried(trial, context, progress, native=False)}
    why = ""
    if shares["text"].broken:
        try:
            if check := getattr(model, "check", None):
                check(grammar=config.constrain not in ("none", "auto"), tools=True)
            shares["native"] = _tried(trial, context, progress, native=True)
        except ModelError as refused:
            why = str(refused)
    chosen = min(shares, key=lambda form: shares[form].share)  # text where they are equal
    facts: dict[str, Any] = {"chosen": chosen, "episodes": min(TRIED, len(context.questions))}
    facts |= {form: share._asdict() for form, share in shares.items()} | ({"native_refused": why} if why else {})
    said = ", ".join(f"{share} in {form}" for form, share in shares.items())
    logger.warning("turns without a readable action: %s%s; --turns %s is taken", said, why and f" ({why})", chosen)
    return _with(config, native=chosen == "native"), facts


def _with(config: Config, *, native: bool) -> Config:
    return config.model_copy(update={"react": config.react.model_copy(update={"native_tools": native})})


def _tried(trial: Trial, context: RunContext, progress: bool, *, native: bool) -> Share:
    kept: list[Episode] = []
    trial = replace(trial, config=_with(trial.config, native=native))
    job = context.job(trial, questions=context.questions[:TRIED], keep=kept.append, progress=progress)
    context.executor.episodes(job)
    turns, unread = _share(kept)
    broke_off = sum(episode.finish == "error" for episode in kept)  # no better than a turn that cannot be read
    return Share(turns + broke_off, unread + broke_off)


def _share(episodes: Sequence[Episode]) -> Share:
    turns = sum(call["kind"] == "act" for episode in episodes for call in episode.calls)
    return Share(turns, sum(episode.flags.get("format_errors", 0) for episode in episodes))


def propose_native(first: Sequence[Episode]) -> None:
    """A hint, where a model that was asked in text ignored the form in its first episodes."""
    if (share := _share(first)).broken:
        better = "a chat model may do better with --turns native (--turns auto finds out)"
        logger.warning("in %s turns of the first episodes no action could be read; %s", share, better)


# -------------------------------------------------------------------------------- the bar of a run
# Behind it stand the model calls and tokens so far: all questions that run at once end late, and
# until then the bar would not move.


class WatchedModel:
    """A model whose calls are counted; all else of it is the model's own."""

    def __init__(self, model: Model, tell: Callable[[Sequence[Completion]], None]) -> None:
        self._model, self._tell = model, tell

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        """As the model itself."""
        completions = self._model.generate(messages, **options)
        self._tell(completions)
        return completions

    def adapter_at(self, scale: float) -> WatchedModel:
        """The same with the model's LoRA adapter at ``scale``; itself, where it cannot change."""
        scaled = adapter_at(self._model, scale)
        return self if scaled is self._model else WatchedModel(scaled, self._tell)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Bar(tqdm):
    """A bar that many threads move. Where nobody reads it any more (``2>&1 | head``), the work goes on without it.

    Of the questions that are asked at once (``together``) half counts as done in the time that is left.
    """

    def __init__(self, name: str, questions: int, *, shown: bool, together: int = 1) -> None:
        self._together = together
        super().__init__(total=questions, desc=name, unit="question", miniters=0, smoothing=0, disable=not shown)
        self._calls = self._tokens = 0
        self._counting = threading.Lock()

    def watched(self, model: Model) -> Any:
        """``model``, whose calls are shown."""
        return WatchedModel(model, self._called)

    def _called(self, completions: Sequence[Completion]) -> None:
        with self._counting:
            self._calls += sum(completion.usage.model_calls for completion in completions)
            self._tokens += sum(completion.usage.completion_tokens for completion in completions)
            self.set_postfix_str(f"{self._calls:,} calls, {self._tokens:,} tokens", refresh=False)
            self.update(0)

    def finished(self) -> None:
        """A question is done."""
        with self._counting:
            self.update()

    @property
    def format_dict(self) -> dict[str, Any]:
        """What is drawn, with the rate at which what is left would take as long as it will."""
        drawn: dict[str, Any] = dict(super().format_dict)
        left = drawn["total"] - self.n
        begun = min(self._together, left) / 2
        if self.n and left and drawn["elapsed"]:
            drawn["rate"] = (self.n + begun) / drawn["elapsed"] * left / (left - begun)
        return drawn

    def display(self, *args: Any, **options: Any) -> Any:
        """Draw; tqdm calls this under its lock, which an error would keep."""
        try:
            return super().display(*args, **options)
        except (OSError, ValueError):
            self.disable = True

    def close(self) -> None:
        """End the bar with what was done."""
        with suppress(OSError, ValueError):
            super().close()


# ---------------------------------------------------------------- the executor that is this process
# A dialogue whose turns rest on each other's answers is one thread's work, turn by turn.


class Local:
    """Carries out everything here; it has no state."""

    def check(self, plan: RunSpec, config: Config) -> None:
        """Everything that can be planned can be done here."""

    def episodes(self, job: Job) -> None:
        """Run episodes in as many threads as the model batches; each is kept as it ends."""
        units = interactions(job.questions) if job.own else [[question] for question in job.questions]
        cancel = threading.Event()
        workers = min(len(units), max(1, int(getattr(job.model, "batch_size", 8))))
        first: list[Episode] = []
        bar = Bar(job.controller.name, len(job.questions), shown=job.progress, together=workers)
        with bar, ThreadPoolExecutor(workers, thread_name_prefix="episode") as pool:
            try:
                futures = [pool.submit(_episodes, job, unit, cancel, bar) for unit in units]
                for future in as_completed(futures):
                    for episode in filter(None, future.result()):
                        first.append(episode)
                        if len(first) == TRIED and not job.config.react.native_tools:
                            propose_native(first)
                        del first[TRIED:]
                    job.advance(len(future.result()))
            except BaseException:
                cancel.set()  # what runs ends at its next model call
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def verdicts(
        self,
        benchmark: Benchmark,
        questions: Sequence[Question],
        predictions: Mapping[str, Mapping[str, str]],
        settings: Settings,
    ) -> Judged:
        """The verdicts, found in ``settings.pool``."""
        return judge(benchmark, questions, predictions, settings)


LOCAL = Local()


def _episodes(job: Job, questions: Sequence[Question], cancel: threading.Event, bar: Bar) -> list[Episode | None]:
    done = []
    for question in questions:
        done.append(_episode(job, job.own.asked(question) if job.own else question, cancel, bar))
        if not cancel.is_set():
            bar.finished()
    return done


def _episode(job: Job, question: Question, cancel: threading.Event, bar: Bar) -> Episode | None:
    """Run and keep one episode; one that the user stopped is owed, not kept."""
    if cancel.is_set():
        return None

    def resources() -> Resources:
        mine = bar.watched(episode_model(job.model, question, job.controller.name))
        database = job.benchmark.database(question.db_id)
        return Resources(mine, database, job.tools, job.gates, cancel=cancel)

    episode = run_episode(in_dialogue(job.controller, question), question, resources, job.config)
    if not cancel.is_set():
        job.keep(episode)
        if job.own:
            job.own.add(episode)
    return episode


# ------------------------------------------------------ benchmark, model and databases, opened once


class RunContext:
    """A benchmark with the questions of a plan, and the model of the trial at hand; closed as a block.

    objects: Python objects in place of names, as ``RunSpec.objects`` names them. A model that is opened here is closed
    when a trial wants another one, and at the end. ``history`` is that of turns of dialogues, "" for other questions.
    Raises UsageError, BenchmarkError.
    """

    def __init__(self, plan: RunSpec, objects: Mapping[str, Any] | None = None, executor: Executor = LOCAL) -> None:
        self.objects, self.executor = objects or {}, executor
        self.tools: Mapping[str, Tool] = named_functions("tools", plan.tools) | dict(self.objects.get("tools") or {})
        self.gates: Mapping[str, Gate] = named_functions("gates", plan.gates) | dict(self.objects.get("gates") or {})
        self.benchmark = open_benchmark(plan, self.objects)
        self.questions = pick(self.benchmark, plan)
        self.history = history_of(plan.history, self.benchmark.name, self.questions)
        self.turns: Mapping[str, Any] = {}  # what asking for the form of turns came to, for manifests
        self._model: Model | None = None
        self._options: tuple[str, ...] = ()

    def fit(self, trial: Trial) -> Model:
        """The model of a trial, after a check that its config can be carried out. Raises ModelError, UsageError."""
        if "model" in trial.plan.objects:
            from nl2sql.models.response_cache import cached

            model = cached(self.objects["model"]) if trial.plan.cache else self.objects["model"]
        else:
            options = model_options(trial.plan)
            if self._model is None or self._options != options:
                self.close()
                self._model, self._options = open_model(trial.plan), options
            model = self._model
        check_config(model, trial.config)
        check_ts(self.benchmark, self.questions, trial.config.eval)
        return model

    def job(self, trial: Trial, **options: Any) -> Job:
        """The job of a trial's own controller. options: of ``Job``; ``questions`` in place of all of the plan's."""
        named = get_controller(self.objects.get("controller") or trial.plan.controller)
        questions = options.pop("questions", self.questions)
        found = (self.benchmark, self.fit(trial), self.tools, self.gates)
        return Job(trial.plan, named, trial.config, questions, *found, **options)

    def close(self) -> None:
        """Close the model that was opened here. Idempotent."""
        if self._model is not None:
            self._model.close()
        self._model = None

    def __enter__(self) -> RunContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def model_options(plan: RunSpec) -> tuple[str, ...]:
    """What decides which model a plan opens, and how; trials that agree in it share one."""
    return tuple(str(getattr(plan, name)) for name in MODEL_OPTIONS)
