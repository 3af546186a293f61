"""The bar of a run's questions, and what a run will cost before it is run (``nl2sql eval --dry-run``).

Behind the bar stand the model calls and tokens so far: all questions that run at once end late, and until then the bar
would not move. Not counted: scoring, which has a bar of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tqdm.auto import tqdm

from nl2sql.agents import prompts
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.opening import link, open_task
from nl2sql.agents.task import SQL_STOPS
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Completion, Message, Model, Resources, without_adapter
from nl2sql.runs.plan import RunSpec, control_stores, open_model, pick


class WatchedModel:
    """A model whose calls are counted; all else of it is the model's own."""

    def __init__(self, model: Model, tell: Callable[[Sequence[Completion]], None]) -> None:
        self._model, self._tell = model, tell

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        """As the model itself."""
        completions = self._model.generate(messages, **options)
        self._tell(completions)
        return completions

    def without_adapter(self) -> WatchedModel:
        """The same without the model's LoRA adapter; itself, where it cannot be left out."""
        plain = without_adapter(self._model)
        return self if plain is self._model else WatchedModel(plain, self._tell)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Bar(tqdm):
    """A bar that many threads move. Where nobody reads it any more (``2>&1 | head``), the work goes on without it."""

    def __init__(self, name: str, questions: int, *, shown: bool) -> None:
        super().__init__(total=questions, desc=name, unit="question", miniters=0, disable=not shown)
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


# ------------------------------------------------------------------------ ``nl2sql eval --dry-run``

PROBED_QUESTIONS = 10
PROBE_TOKENS = 16
OBSERVATION_TOKENS = 60
SQL_CALLS = 3  # generate, one repair, and the fallback or a second repair


def most_calls(controller: str, config: Config) -> int:
    """The model calls that a question may take, as its controller is set: the guess before one is done."""
    react = config.react
    asked = {"single_shot": config.single_shot.samples, "reflect": config.reflect.max_iterations}
    asked |= dict.fromkeys(("candidates", "best"), config.candidates.n)
    asked["vizql"] = 1 + (config.vizql.draft == "sql") + config.vizql.refinements
    return asked.get(controller, react.max_steps + 3)  # SQL, one repair, and the fallback or a second repair


def estimate(plan: RunSpec, config: Config) -> dict[str, Any]:
    """Episodes, tokens, and an estimated time on this machine, from a probe of a few seconds.

    Tokens assume that every step is used, every reply has full length, an observation ``OBSERVATION_TOKENS``, and
    nothing is reused between steps; the time takes half the reply length. Scoring time is not included.
    """
    benchmark = load_benchmark(plan.benchmark, split=plan.split)
    questions = pick(benchmark, plan)
    model = open_model(replace(plan, cache=False))  # a cached answer would time nothing
    opening = generate = 0
    probe: list[dict[str, str]] | None = None
    sample = questions[:: max(1, len(questions) // PROBED_QUESTIONS)][:PROBED_QUESTIONS]
    counted = 0
    for question in sample:
        try:
            task = open_task(question, Resources(model, benchmark.database(question.db_id)), config)
        except Nl2SqlError:
            continue  # the run itself records it as a failed episode
        link(task)
        probe = prompts.generate_messages(task.nlq, task.schema_text_focus, None, config.prompts, task.examples)
        generate += model.count_tokens(probe)
        opening += model.count_tokens(prompts.react_messages(task.schema_text_full + task.schema_text_focus))
        counted += 1
    n, counted = len(questions), max(1, counted)
    calls = most_calls(plan.controller, config)
    written = calls if plan.controller in ("single_shot", "candidates", "best") else None
    stores = control_stores(plan, get_controller(plan.controller))
    loop, control = int(written is None), int(bool(stores))
    steps, reply, sql_calls = config.react.max_steps, config.react.max_new_tokens, SQL_CALLS
    if plan.controller in ("reflect", "vizql"):  # no turns of a loop: generations only
        steps, sql_calls = 0, calls
    grown = steps * opening / counted + (reply + OBSERVATION_TOKENS) * steps * (steps - 1) / 2
    seeds, equal = max(1, len(plan.seeds)), max(1, len(stores))
    loops = n * loop * seeds * equal  # the control at equal tokens costs what the loop costs
    shots = n * (control + (written or 0) * seeds * equal)
    prompt = loops * (grown + sql_calls * generate / counted) + shots * generate / counted
    completion = reply * (loops * (steps + sql_calls) + shots)
    expected: dict[str, Any] = {
        "questions": n,
        "episodes": n * (seeds + control * equal),
        "prompt_tokens": round(prompt),
        "completion_tokens": round(completion),
    }
    if probe is None or hasattr(model, "for_episode"):
        return expected
    started = time.perf_counter()
    rows = min(n, plan.batch_size)
    done = model.generate(probe, stop=SQL_STOPS, max_new_tokens=1, n=rows)
    prefill = time.perf_counter() - started
    started = time.perf_counter()
    done = model.generate(probe, max_new_tokens=PROBE_TOKENS, n=rows)
    decode = max(1e-3, time.perf_counter() - started - prefill)
    tokens = sum(completion.usage.completion_tokens for completion in done)
    per_prompt = prefill / max(1, sum(completion.usage.prompt_tokens for completion in done))
    seconds = prompt * per_prompt + completion / 2 * decode / max(1, tokens)
    return expected | {"seconds_estimated": round(seconds)}
