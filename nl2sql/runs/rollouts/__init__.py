"""A benchmark as a training environment: questions that may be learned from, episodes to drive, rewards.

Imported as ``nl2sql.environment``.

    from nl2sql.environment import load_environment

    environment = load_environment("packaged")                    # the split for training or development
    dataset = environment.dataset(tokenizer)                      # prompts of single_shot; no gold is in them
    environment.reward(dataset[0]["question_id"], " COUNT(*) FROM students")
    with environment.episode(dataset[0]["question_id"], "react_plus") as episode:  # the loop, driven by you
        while episode.request:
            episode.answer(write(episode.request))
    environment.rewards_of([episode.result])

One turn (``reward``) is the controller ``single_shot`` driven for its one answer, so prompts, guardrails and limits are
those of an evaluation. ``driven`` hands control of a loop to whoever writes the completions, and judges what came of
it; ``trl_form`` and the module ``nl2sql_verifiers`` stand on these functions. Nothing here trains.

>>> admissible_split("spider", {"train": ["1"], "holdout": ["2"]}, None)
'train'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from nl2sql.agents.controllers import NamedController, get_controller, with_preset
from nl2sql.agents.record import Episode
from nl2sql.benchmarks import left_out_reason, load_benchmark
from nl2sql.config import Config
from nl2sql.databases.schema import quote_text
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.scoring import judge
from nl2sql.eval.settings import Settings
from nl2sql.interfaces import Benchmark, Completion, Question, Row, RunResult, Usage
from nl2sql.models.chat import Chat
from nl2sql.repair.corpus import LEARNING_SPLITS
from nl2sql.runs.rollouts.driven import DrivenEpisode, Outcome, Request, Reward, cut_at, outcome_of, rewards_of
from nl2sql.runs.rollouts.trl_form import reward_functions, reward_weights, rollout_function

__all__ = [
    "DrivenEpisode",
    "Environment",
    "Outcome",
    "Request",
    "Reward",
    "load_environment",
    "outcome_of",
    "reward_functions",
    "reward_weights",
    "rollout_function",
]


# -------------------------------------------------------------- which questions may be learned from

PREFERRED = ("train", "training", "train_spider", "train_others", "dev", "development")
WRITTEN = 100  # rows; a query with more of them written into it is none that a policy finds


def admissible_split(name: str, splits: Mapping[str, Sequence[str]], asked: str | None) -> str:
    """The split that an environment takes: the one asked for by name, else one that is for learning.

    Raises UsageError where there is none, for one that the benchmark has not, and for ``all`` where that may hold
    questions that are for testing.
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
    if reason := left_out_reason(question):
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


# ---------------------------------------------------------------------------------- the environment

AT_ONCE = 8  # episodes of one batch that are worked on side by side; their SQL waits for the pool of workers


def load_environment(
    benchmark: str | Benchmark = "packaged",
    *,
    split: str | None = None,
    config: Config | None = None,
    limit: int | None = None,
) -> Environment:
    """The questions of one split that may be learned from.

    benchmark: a name, or what ``load_benchmark`` gave. split: None takes the training split, else the development
    split; a split that is for testing is taken only when it is named here. config: what is set in it goes before each
    controller's preset; ``config.reward`` holds the weights, ``config.eval`` rule and replicas of EX and TS. limit: the
    first so many questions.

    Each gold is scored first: one that fails, gives no rows or nothing but NULL, fails TS, or whose rows earn TS when
    they are written down as constants, is left out and counted in ``left_out``. Raises UsageError for an unknown split,
    where no split is for training, where nothing is left, and for a wrong limit or config.
    """
    if config is not None and not isinstance(config, Config):
        raise UsageError(f"config is a {type(config).__name__}; pass nl2sql.Config(reward=...)")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise UsageError(f"limit is {limit!r}; give a number of questions, 1 or more")
    settings = config or Config()
    loaded = load_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    chosen = admissible_split(loaded.name, loaded.splits, split)
    ids = set(loaded.splits.get(chosen, [question.id for question in loaded.questions]))
    asked = [question for question in loaded.questions if question.id in ids][:limit]
    questions, left_out = admitted(loaded, asked, settings)
    if not questions:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in left_out.items()) or "it holds none"
        raise UsageError(f"no question of {loaded.name}, split {chosen!r}, can be learned from ({reasons})")
    return Environment(loaded, questions, settings, chosen, left_out)


@dataclass
class Environment:
    """Questions (by id, with their golds), and how they are asked and rewarded. Use ``load_environment``.

    Every method may be called from several threads at once. Neither prompts nor episodes hold a gold.
    """

    benchmark: Benchmark
    questions: dict[str, Question]
    config: Config
    split: str
    left_out: dict[str, int] = field(default_factory=dict)
    _named: dict[str, NamedController] = field(default_factory=dict, init=False, repr=False)

    def rows(self, tokenizer: Any = None) -> list[dict[str, Any]]:
        """One row per question: ``prompt``, ``question_id``, ``db_id``.

        The prompt is that of ``single_shot``. With a tokenizer it is one text: the chat template, and the assistant's
        turn opened with ``SELECT``. Without one it is a list of messages, and the turn is not opened.
        """
        chat = Chat(tokenizer, None) if tokenizer is not None else None

        def row(question: Question) -> dict[str, Any]:
            with self.episode(question.id, "single_shot") as episode:
                asked, ended = episode.request, episode.result
            if asked is None:
                raise UsageError(f"question {question.id!r} cannot be asked: {ended.error if ended else ''}")
            messages = [dict(message) for message in asked.messages]
            prompt = messages if chat is None else chat.prompt_text(messages, asked.prefill)
            return {"prompt": prompt, "question_id": question.id, "db_id": question.db_id}

        return _side_by_side(row, list(self.questions.values()))

    def dataset(self, tokenizer: Any = None) -> Any:
        """``rows`` as a ``datasets.Dataset``."""
        from datasets import Dataset

        return Dataset.from_list(self.rows(tokenizer))

    def episode(
        self,
        question_id: str,
        controller: str | Callable[..., Episode] = "react",
        *,
        tokenizer: Any = None,
        context_window: int = 32_768,
    ) -> DrivenEpisode:
        """An episode of the loop (or of any controller) whose model is whoever calls ``answer``; close it in the end.

        tokenizer: counts prompts against ``context_window`` exactly. Raises UsageError for an unknown id or controller.
        """
        if question_id not in self.questions:
            where = f"{self.benchmark.name}, {self.split}"
            raise UsageError(f"question {question_id!r} is not in this environment ({where})")
        question = self.questions[question_id]
        named = get_controller(controller) if callable(controller) else self._named.get(controller)
        if named is None:  # kept: its identity, the hash of all code, takes longer than the opening of an episode
            named = self._named[str(controller)] = get_controller(controller)
        config = with_preset(named, self.config)
        if not (config.few_shot.k or config.knowledge.verified):  # they leave out what would give the gold away
            question = replace(question, gold=())
        return DrivenEpisode(
            question,
            self.benchmark.database(question.db_id),
            named,
            config,
            wait_s=self.config.reward.wait_s,
            context_window=context_window,
            chat=Chat(tokenizer, None) if tokenizer is not None else None,
        )

    def answers(
        self, question_ids: Sequence[str], completions: Sequence[str], tokens: Sequence[int] | None = None
    ) -> list[Episode]:
        """The episodes of one turn: what guardrails and database make of each completion of a prompt of ``rows``.

        tokens: how many each completion has; words are counted without it.
        """
        counts = tokens if tokens is not None else [len(text.split()) for text in completions]
        for given, what in ((question_ids, "question ids"), (counts, "counts of tokens")):
            if len(given) != len(completions):
                raise UsageError(f"{len(given)} {what} for {len(completions)} completions; expected as many")

        def answered(entry: tuple[str, str, int]) -> Episode:
            question_id, text, count = entry
            with self.episode(question_id, "single_shot") as episode:
                while episode.request:
                    given = Completion(cut_at(text, episode.request.stop), "stop", Usage(0, 0, count, 1))
                    episode.answer(*[given] * episode.request.n)
            assert episode.result is not None, "it has ended"
            return episode.result

        return _side_by_side(answered, list(zip(question_ids, completions, counts, strict=True)))

    def rewards(
        self, question_ids: Sequence[str], completions: Sequence[str], tokens: Sequence[int] | None = None
    ) -> list[Reward]:
        """The rewards of completions of single turns, in their order. See ``answers``."""
        return self.rewards_of(self.answers(question_ids, completions, tokens))

    def reward(self, question_id: str, completion: str) -> Reward:
        """The reward of one completion of a single turn."""
        return self.rewards([question_id], [completion])[0]

    def rewards_of(self, episodes: Sequence[Episode | Outcome]) -> list[Reward]:
        """The rewards of finished episodes, or of their outcomes, in their order; equal queries are executed once."""
        outcomes = [outcome_of(item) if isinstance(item, Episode) else item for item in episodes]
        return rewards_of(self.benchmark, self.questions, outcomes, self.config)

    def __repr__(self) -> str:
        left = f", {sum(self.left_out.values())} left out" if self.left_out else ""
        return f"<environment {self.benchmark.name}, {self.split}: {len(self.questions)} questions{left}>"


def _side_by_side(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rollout") as crew:
        return list(crew.map(work, items))
