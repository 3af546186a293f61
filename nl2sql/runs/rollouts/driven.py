"""Which questions may be learned from, the reward, and an episode that somebody else drives.

A driven episode stands still wherever it asks its model.

The loop is blocking Python that calls ``Model.generate``, deep within its tools. So it runs unchanged in a thread of
its own, over a model whose ``generate`` waits: there is no second loop. The thread ends with the episode, when the
episode is closed or forgotten, and when no answer comes in ``wait_s`` seconds. It holds no reference to the
``DrivenEpisode``.

Not covered: a thread cannot be killed. A user's tool that never returns keeps its thread; the driver is told after
``wait_s`` seconds and goes on without it. What the database executes has limits of its own.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

from nl2sql.agents.controllers import NamedController, run_episode
from nl2sql.agents.record import Episode
from nl2sql.benchmarks import exclusion_reason
from nl2sql.config import Config
from nl2sql.databases.schema import quote_text
from nl2sql.errors import Cancelled, ModelError, Nl2SqlError, UsageError
from nl2sql.eval.scores import ItemScore
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import (
    Benchmark,
    Completion,
    Database,
    Message,
    Question,
    Resources,
    Row,
    RunResult,
    ToolDefinition,
    Usage,
)
from nl2sql.models.chat import Chat, Request, cut_at
from nl2sql.models.http.server import CountedPrompts
from nl2sql.repair.corpus import LEARNING_SPLITS

# -------------------------------------------------------------- which questions may be learned from

PREFERRED = ("train", "training", "train_spider", "train_others", "dev", "development")
WRITTEN = 100  # rows; a query with more of them written into it is none that a policy finds


def admissible_split(name: str, splits: Mapping[str, Sequence[str]], asked: str | None) -> str:
    """The split that an environment takes: the one asked for by name, else one that is for learning.

    Raises UsageError where there is none, for one that the benchmark has not, and for ``all`` where that may hold
    questions that are for testing.

    >>> admissible_split("spider", {"train": ["1"], "holdout": ["2"]}, None)
    'train'
    """
    if not splits and asked != "all":
        raise UsageError(f"benchmark {name!r} has no splits: split='all' takes every question")
    others = [split for split in splits if split not in LEARNING_SPLITS]
    if asked == "all" and "all" not in splits and others:
        raise UsageError(f"split 'all' of {name} holds {', '.join(others)}; name one split: {', '.join(splits)}")
    if asked is not None and asked != "all" and asked not in splits:
        raise UsageError(f"benchmark {name!r} has no split {asked!r}; it has: {', '.join(splits)}")
    if asked is not None:
        return asked
    for split in PREFERRED:
        if split in splits:
            return split
    raise UsageError(
        f"benchmark {name} has no split for training; it has: {', '.join(splits)}. A split that is for "
        f"testing must be asked for by name: split={next(iter(splits))!r}"
    )


def admitted(
    benchmark: Benchmark, questions: Iterable[Question], config: Config
) -> tuple[dict[str, Question], dict[str, int]]:
    """(question id -> question, reason -> number of questions left out).

    A gold must earn EX, and TS where replicas are asked for. A gold without rows, or with nothing but NULL, is left out
    as well: any query that finds nothing would be right. So is one whose rows, written down, earn TS (``constant``).
    """
    reasons: Counter[str] = Counter()
    candidates: list[Question] = []
    constants: dict[str, list[str]] = {}  # question id -> the rows of each gold, as a query that reads no table
    for question in questions:
        found = _results(benchmark, question)
        if isinstance(found, str):
            reasons[found] += 1
            continue
        candidates.append(question)
        short = [result.rows for result in found if config.eval.replicas and len(result.rows) <= WRITTEN]
        constants[question.id] = list(map(rows_as_sql, short))
    files = {"gold": {question.id: question.gold[0] for question in candidates}}
    for id_, statements in constants.items():
        for number, sql in enumerate(statements):
            files.setdefault(f"constant {number}", {})[id_] = sql
    items = judge(benchmark, candidates, files, Settings(config.eval, causes=False)).items if candidates else {}
    kept: dict[str, Question] = {}
    for question in candidates:
        judged = items[question.id]
        item = judged[question.gold[0]]
        if not item.ex:
            reasons["gold_error"] += 1
        elif item.ts is not None and not (item.ts and item.ts_replicas):
            reasons["gold_fails_ts"] += 1
        elif any(judged[sql].ts for sql in constants[question.id]):
            reasons["constant"] += 1
        else:
            kept[question.id] = question
    return kept, dict(sorted(reasons.items()))


def rows_as_sql(rows: Iterable[Row]) -> str:
    """A query that gives these rows and reads no table.

    >>> rows_as_sql([(2328, "O'Hara"), (None, 0.5)])
    "SELECT * FROM (VALUES (2328, 'O''Hara'), (NULL, 0.5))"
    """
    written = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    return f"SELECT * FROM (VALUES {written})"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return quote_text(value)
    return repr(value).replace("inf", "9e999")


def _results(benchmark: Benchmark, question: Question) -> str | list[RunResult]:
    """The results of a question's golds, or why nothing can be learned from it."""
    if reason := exclusion_reason(question):
        return reason
    if not question.gold:
        return "no_gold"
    try:
        database = benchmark.database(question.db_id)
    except Nl2SqlError:
        return "db_missing"
    results = [database.run(gold) for gold in question.gold]
    for result in results:
        if not result.success:
            return "gold_error"
        if not any(value is not None for row in result.rows for value in row):
            return "gold_rows=0" if not result.rows else "gold_null"
    return results


# ----------------------------------------------------------------- the reward: EX, TS, format, cost
# A query that is right on the database and wrong on a perturbed copy of it (``ex`` 1, ``ts`` 0) was
# right by luck, or has the answer written into it: ``SELECT 14`` for a count. Most of the weight is
# on TS for that reason. An episode without a query that runs earns 0, whatever its other parts
# would be.

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
    asked = {outcome.question_id: questions[outcome.question_id] for outcome in ran}
    files = {str(n): {outcome.question_id: outcome.sql} for n, outcome in enumerate(ran)}
    settings = Settings(config.eval, causes=False)
    items = judge(benchmark, list(asked.values()), files, settings).items if ran else {}
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
    ts = None if item.ts is None else float(item.ts and bool(item.ts_replicas))
    cost = 0.0 - round(min(sum(shares) / 2, readable), 4)  # an answer that runs earns 0 at least
    reward = Reward(outcome, float(item.ex), ts, readable, cost)
    weighted = (getattr(bounds, name) * (value or 0.0) for name, value in reward.parts().items())
    return replace(reward, total=round(sum(weighted), 6))


# -------------------------------------------------------------------------------------- the episode

CLOSING_S = 1.0  # that ``close`` waits for the thread, which may be in the middle of a query


@dataclass
class _Line:
    """What the loop's thread and the driver share."""

    wait_s: float
    asked: SimpleQueue[Request | Episode] = field(default_factory=SimpleQueue)
    given: SimpleQueue[Sequence[Completion] | Exception] = field(default_factory=SimpleQueue)
    closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        self.closed.set()
        self.given.put(Cancelled("the episode was abandoned"))


class _Waiting:
    """The ``Model`` of a driven episode."""

    name = "driven"

    def __init__(self, line: _Line, context_window: int, count: Callable[..., int]) -> None:
        self._line, self.context_window, self._count = line, context_window, count
        self._one = threading.Lock()  # a controller that asks from several threads is answered in turn

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        with self._one:
            if self._line.closed.is_set():
                raise Cancelled("the episode was abandoned")
            self._line.asked.put(Request(list(messages), **options))
            try:
                given = self._line.given.get(timeout=self._line.wait_s)
            except Empty:
                self._line.closed.set()
                raise ModelError(f"no completion came in {self._line.wait_s:g} s (reward.wait_s)") from None
        if isinstance(given, Exception):
            raise given
        return list(given)

    def count_tokens(self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()) -> int:
        return self._count(messages, prefill, tools)

    def describe(self) -> dict[str, Any]:
        return {"backend": "driven", "name": self.name, "revision": "whoever answers"}

    def close(self) -> None:
        """Nothing to release."""


class DrivenEpisode:
    """One episode of ``controller``; ``request`` is what it asks now, ``result`` the Episode once it has ended.

        with DrivenEpisode(question, database, controller, config) as episode:
            while episode.request:
                episode.answer(write(episode.request.messages, episode.request.prefill))
        print(episode.result.sql, episode.result.error)

    wait_s: seconds after which an episode ends where no answer, or no next request, comes. chat: a tokenizer for
    counting prompts exactly; without one they are estimated, by their bytes. Whatever goes wrong in the loop is
    recorded in ``result.error``. Not thread-safe: one driver at a time.
    """

    def __init__(
        self,
        question: Question,
        database: Database,
        controller: NamedController,
        config: Config,
        *,
        wait_s: float = 600.0,
        context_window: int = 32_768,
        chat: Chat | None = None,
    ) -> None:
        self._question, self._controller = question, controller.name
        self.request: Request | None = None
        self.result: Episode | None = None
        self._line = _Line(wait_s)
        self._count = (lambda *prompt: len(chat.prompt_ids(*prompt))) if chat else CountedPrompts().bound
        resources = Resources(_Waiting(self._line, context_window, self._count), database, cancel=self._line.closed)
        self._abandon = weakref.finalize(self, self._line.close)
        arguments = (self._line, controller, question, resources, config)
        self._thread = threading.Thread(target=_run, args=arguments, name=f"episode-{question.id}", daemon=True)
        self._thread.start()
        self._listen()

    def answer(self, *completions: str | Completion) -> Request | None:
        """Hand in the completions that ``request`` asks for, ``request.n`` of them; returns the next request, or None.

        A text is cut where a stop string begins, and its words count as its tokens; a Completion is taken as it is.
        Raises UsageError for another number of completions, and where nothing is asked any more.
        """
        request = self._open_request()
        if len(completions) != request.n:
            raise UsageError(f"{len(completions)} completions were given where {request.n} are asked for")
        self._line.given.put([self._completion(request, given) for given in completions])
        return self._listen()

    def fail(self, reason: str) -> Request | None:
        """Tell the loop that its model failed: the episode ends, with the error ``model: <reason>``."""
        self._open_request()
        self._line.given.put(ModelError(reason))
        return self._listen()

    def close(self) -> None:
        """Abandon the episode, if it has not ended. Its thread ends at once, or with the query that it executes."""
        self._abandon()
        if self.result is None:
            self._thread.join(CLOSING_S)
            self.result = self._broken("model: the episode was abandoned")
        self.request = None

    @property
    def running(self) -> bool:
        """Whether the loop's thread is alive."""
        return self._thread.is_alive()

    def __enter__(self) -> DrivenEpisode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_request(self) -> Request:
        if self.request is None:
            raise UsageError("the episode has ended; its result holds what came of it")
        return self.request

    def _completion(self, request: Request, given: str | Completion) -> Completion:
        if isinstance(given, Completion):
            return given
        text, _ = cut_at(given, request.stop)
        prompt = self._count(request.messages, request.prefill, request.tools)
        return Completion(text, "stop", Usage(prompt, prompt, len(text.split()), 1))

    def _listen(self) -> Request | None:
        try:
            said = self._line.asked.get(timeout=self._line.wait_s + CLOSING_S)
        except Empty:
            self._line.close()
            said = self._broken(f"controller: no step came to an end in {self._line.wait_s:g} s (reward.wait_s)")
        if isinstance(said, Episode):
            self.request, self.result = None, said
            self._abandon.detach()
        else:
            self.request = said
        return self.request

    def _broken(self, error: str) -> Episode:
        return Episode(self._question, self._controller, error=error, finish="error")


def _run(line: _Line, controller: NamedController, question: Question, resources: Resources, config: Config) -> None:
    try:
        episode = run_episode(controller, question, lambda: resources, config)
    except BaseException as error:  # noqa: BLE001 - the driver must hear of it, whatever it is
        episode = Episode(question, controller.name, error=f"controller: {type(error).__name__}: {error}")
        episode.finish = "error"
    line.asked.put(episode)
