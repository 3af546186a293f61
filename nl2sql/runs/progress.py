"""How far many episodes are, counted in model calls, and what a run will cost before it is run.

>>> work = Work(total=40, prior=11)
>>> work.called("q1", calls=4, tokens=200, now=10.0)
>>> work.line(now=10.0)
'0/40 questions, 4 of about 440 calls, 20 tokens/s'
>>> work.finished("q1")
>>> work.line(now=10.0)
'1/40 questions, 4 of about 342 calls, 20 tokens/s, 14 min left'

Finished questions are no measure: all that run at once end late, and the quick ones end first. So each question that is
under way, or waits, is taken to cost what the finished ones cost on average (at first: what its controller may ask for
at most), and one that has asked for more already a quarter more than it has. Speed is that of the last minute; the time
left is said once a question is done, for the first calls are slow: each computes a prompt from its beginning. Not
counted: scoring, which has a bar of its own; EX so far, which would execute golds while the model computes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.opening import link, open_task
from nl2sql.agents.task import SQL_STOPS
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Completion, Message, Model, Resources, without_adapter
from nl2sql.runs.plan import Plan, control_stores, open_model, pick

RECENT_S = 60.0  # of which speed is taken
DRAWN_EVERY_S = 0.1
MORE = 4  # a question that has outlasted the others is taken to ask for calls / MORE more
PRIOR_EPISODES = 2  # that the guess made before anything is done counts for


def most_calls(controller: str, config: Config) -> int:
    """The model calls that a question may take, as its controller is set: the guess before one is done."""
    react = config.react
    asked = {"single_shot": config.single_shot.samples, "reflect": config.reflect.max_iterations}
    asked |= dict.fromkeys(("candidates", "best"), config.candidates.n)
    asked["vizql"] = 1 + (config.vizql.draft == "sql") + config.vizql.refinements
    return asked.get(controller, react.max_steps + 3)  # SQL, one repair, and the fallback or a second repair


class Work:
    """Model calls done and expected, of ``total`` questions. Thread-safe.

    prior: calls of a question, as guessed before one is done. Times are seconds since any moment.
    """

    def __init__(self, total: int, prior: int) -> None:
        self.total, self._prior = total, prior
        self._running: Counter[str] = Counter()  # question -> its calls so far
        self._done = self._done_calls = 0
        self._calls: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])  # when, calls and tokens since the start
        self._tokens = 0
        self._lock = threading.Lock()

    def called(self, question: str, *, calls: int, tokens: int, now: float) -> None:
        """Count what a question had computed."""
        with self._lock:
            self._running[question] += calls
            self._tokens += tokens
            self._calls.append((now, self._made(), self._tokens))
            while len(self._calls) > 2 and self._calls[1][0] < now - RECENT_S:
                self._calls.popleft()

    def finished(self, question: str) -> None:
        """A question is done."""
        with self._lock:
            self._done += 1
            self._done_calls += self._running.pop(question, 0)

    def calls(self) -> tuple[int, int]:
        """Model calls made, and expected in all."""
        with self._lock:
            return self._made(), self._expected()

    def line(self, now: float) -> str:
        """The state in words."""
        with self._lock:
            made, expected = self._made(), self._expected()
            parts = [f"{self._done}/{self.total} questions", f"{made} of about {expected} calls"]
            since, calls, tokens = self._calls[0]
            seconds = now - since
            if made > calls and seconds > 0:
                parts.append(f"{(self._tokens - tokens) / seconds:.0f} tokens/s")
            if self._done and made > calls and seconds > 0:
                parts.append(time_left((expected - made) * seconds / (made - calls)))
            return ", ".join(parts)

    def _made(self) -> int:
        return self._done_calls + sum(self._running.values())

    def _expected(self) -> int:
        each = (self._done_calls + PRIOR_EPISODES * self._prior) / (self._done + PRIOR_EPISODES)
        waiting = self.total - self._done - len(self._running)
        under_way = sum(max(each, calls + max(1, calls // MORE)) for calls in self._running.values())
        return round(self._done_calls + under_way + waiting * each)


def time_left(seconds: float) -> str:
    """``90 s left``, ``18 min left``, ``2.5 h left``."""
    if seconds < 100:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 6000 else f"{seconds / 3600:.1f} h left"


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


class Bar:
    """The bar of one controller over its questions; as a block it ends with what was done."""

    def __init__(self, name: str, work: Work, *, shown: bool) -> None:
        from tqdm.auto import tqdm

        self._name, self._work = name, work
        self._began, self._lock = time.perf_counter(), threading.Lock()
        self._next = self._began
        look = "{percentage:3.0f}%|{bar:20}| {desc}"
        self._bar = tqdm(total=work.calls()[1], desc=name, unit="call", bar_format=look, disable=not shown)

    def watched(self, model: Model, question: str) -> Any:
        """``model`` as one question asks it."""

        def tell(completions: Sequence[Completion]) -> None:
            usage = [completion.usage for completion in completions]
            calls, tokens = sum(u.model_calls for u in usage), sum(u.completion_tokens for u in usage)
            self._work.called(question, calls=calls, tokens=tokens, now=time.perf_counter() - self._began)
            self._show()

        return WatchedModel(model, tell)

    def finished(self, question: str) -> None:
        """A question is done."""
        self._work.finished(question)
        self._show()

    def _show(self) -> None:
        with self._lock:
            made, self._bar.total = self._work.calls()
            line = self._work.line(time.perf_counter() - self._began)
            self._bar.set_description_str(f"{self._name}: {line}", refresh=False)
            self._bar.n = made
            if time.perf_counter() >= self._next:
                self._draw()

    def _draw(self) -> None:
        """Where nobody reads the bar any more (``2>&1 | head``), the work goes on without it."""
        self._next = time.perf_counter() + DRAWN_EVERY_S
        try:
            with self._bar.get_lock():  # a refresh that takes it itself would keep it when it fails
                self._bar.refresh(nolock=True)
        except (OSError, ValueError):
            self._bar.disable = True

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()
        with suppress(OSError, ValueError):
            self._bar.close()


# ------------------------------------------------------------------------ ``nl2sql eval --dry-run``

PROBED_QUESTIONS = 10
PROBE_TOKENS = 16
OBSERVATION_TOKENS = 60
SQL_CALLS = 3  # generate, one repair, and the fallback or a second repair


def estimate(plan: Plan, config: Config) -> dict[str, Any]:
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
