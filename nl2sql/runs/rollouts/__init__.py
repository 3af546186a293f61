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
it; TRL's form and the module ``nl2sql_verifiers`` stand on these functions. Nothing here trains.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from nl2sql.agents.controllers import NamedController, get_controller, with_preset
from nl2sql.agents.record import Episode
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.interfaces import Benchmark, Completion, Question, Usage
from nl2sql.models.chat import Chat, Request, cut_at
from nl2sql.runs.rollouts.driven import (
    PARTS,
    DrivenEpisode,
    Outcome,
    Reward,
    admissible_split,
    admitted,
    outcome_of,
    rewards_of,
)

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
    they are written down as constants, is left out and counted in ``excluded``. Raises UsageError for an unknown split,
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
    questions, excluded = admitted(loaded, asked, settings)
    if not questions:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in excluded.items()) or "it holds none"
        raise UsageError(f"no question of {loaded.name}, split {chosen!r}, can be learned from ({reasons})")
    return Environment(loaded, questions, settings, chosen, excluded)


@dataclass
class Environment:
    """Questions (by id, with their golds), and how they are asked and rewarded. Use ``load_environment``.

    Every method may be called from several threads at once. Neither prompts nor episodes hold a gold.
    """

    benchmark: Benchmark
    questions: dict[str, Question]
    config: Config
    split: str
    excluded: dict[str, int] = field(default_factory=dict)
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
                    given = Completion(cut_at(text, episode.request.stop)[0], "stop", Usage(0, 0, count, 1))
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
        left = f", {sum(self.excluded.values())} left out" if self.excluded else ""
        return f"<environment {self.benchmark.name}, {self.split}: {len(self.questions)} questions{left}>"


def _side_by_side(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rollout") as crew:
        return list(crew.map(work, items))


# ------------------------------------------------------------------------------------- TRL's form
#     functions = reward_functions(environment)               # named ex, ts, format, cost
#     GRPOConfig(reward_weights=reward_weights(environment), ...)
#     GRPOTrainer(model, reward_funcs=functions, train_dataset=environment.dataset(tokenizer), ...)  # one turn
#     GRPOTrainer(..., rollout_func=rollout_function(environment, "react_plus"))                     # the loop
#
# Written against TRL 1.16 (``RewardFunc``, and the experimental ``rollout_func``); TRL itself is not
# imported before a rollout asks for it. An episode of the loop has several calls of the model, each
# with a prompt of its own (``generate_sql`` is one within a turn), while TRL learns from one prompt
# and one completion for each rollout. So one call of each episode is drawn, and earns the reward of
# the whole episode: every call is learned from equally often.
#
# Not covered: vLLM (``use_vllm``), DeepSpeed and FSDP in rollouts of the loop, and TRL's
# ``environment_factory``, whose loop is TRL's own: our gates and overrides would not be in it.

RewardFunction = Callable[..., "list[float | None]"]


def reward_weights(environment: Environment) -> list[float]:
    """The weights of ``reward_functions``, in their order: ``GRPOConfig(reward_weights=...)``."""
    return [getattr(environment.config.reward, name) for name in PARTS]


def reward_functions(environment: Environment) -> list[RewardFunction]:
    """One plain function per part of the reward, by its name; a batch is scored once for all of them.

    A function takes ``completions`` (texts, or lists of messages), the column ``question_id`` of the dataset and, where
    there are, ``completion_ids``; it gives one number per completion. After a rollout of the loop, the part that the
    rollout has found is given.
    """
    lock = threading.Lock()
    last: dict[Any, list[Reward]] = {}  # the rewards of the last batch, which each of the functions asks for

    def rewards_of(ids: Sequence[str], texts: Sequence[str], tokens: Sequence[int] | None) -> list[Reward]:
        key = (tuple(ids), tuple(texts), tuple(tokens or ()))
        with lock:
            if key not in last:
                last.clear()
                last[key] = environment.rewards(ids, texts, tokens)
            return last[key]

    def function_of(part: str) -> RewardFunction:
        def function(completions: Sequence[Any], question_id: Sequence[str], **columns: Any) -> list[float | None]:
            if (found := columns.get(f"loop_{part}")) is not None:
                return list(found)
            texts = [text if isinstance(text, str) else str(text[-1]["content"]) for text in completions]
            ids = columns.get("completion_ids")
            rewards = rewards_of(question_id, texts, [len(tokens) for tokens in ids] if ids else None)
            return [reward.parts()[part] for reward in rewards]

        function.__name__ = function.__qualname__ = part
        return function

    return [function_of(part) for part in PARTS]


def rollout_function(
    environment: Environment, controller: str = "react", *, seed: int = 0, context_window: int | None = None
) -> Callable[[Sequence[Any], Any], dict[str, Any]]:
    """A ``rollout_func`` that runs an episode of ``controller`` for each prompt, all of a batch side by side.

    The dataset must be ``environment.dataset(...)`` of the same environment: its prompts tell which question is asked.
    context_window: tokens; default: what the model's config says. The trainer's temperature, ``top_p`` and
    ``max_completion_length`` bound each call. Besides TRL's columns it gives ``loop_ex`` and so on, which
    ``reward_functions`` hand on, and ``loop_total``, ``loop_sql``, ``loop_error``.
    """
    drawing = random.Random(seed)
    known: dict[str, str] = {}

    def key_of(prompt: Any) -> str:
        return prompt if isinstance(prompt, str) else "\0".join(f"{turn['role']}\1{turn['content']}" for turn in prompt)

    def rollout(prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        if not known:
            for given in (tokenizer, None):
                known.update((key_of(row["prompt"]), row["question_id"]) for row in environment.rows(given))
        keys = [key_of(prompt) for prompt in prompts]
        if not known.keys() >= set(keys):
            raise UsageError("a prompt is none of this environment; train on environment.dataset(...)")
        window = context_window or trainer.model.config.max_position_embeddings
        options = {"tokenizer": tokenizer, "context_window": window}
        episodes = [environment.episode(known[key], controller, **options) for key in keys]
        try:
            calls = _play(episodes, trainer, Chat(tokenizer, None), window)
        finally:
            for episode in episodes:
                episode.close()
        finished = [episode.result for episode in episodes if episode.result is not None]
        rewards = environment.rewards_of(finished)
        end = [tokenizer.eos_token_id]  # of an episode that failed before its first call
        drawn = [drawing.choice(own) if own else (end, end) for own in calls]
        return {
            "prompt_ids": [prompt for prompt, _ in drawn],
            "completion_ids": [written for _, written in drawn],
            "logprobs": None,
            **{f"loop_{part}": [reward.parts()[part] for reward in rewards] for part in PARTS},
            "loop_total": [reward.total for reward in rewards],
            "loop_sql": [reward.outcome.sql for reward in rewards],
            "loop_error": [reward.error for reward in rewards],
        }

    return rollout


Call = tuple[list[int], list[int]]  # tokens of a prompt, and those written after it


def _play(episodes: Sequence[DrivenEpisode], trainer: Any, chat: Chat, window: int) -> list[list[Call]]:
    """Answer what all episodes ask, in batches, until each has ended; the calls of each."""
    calls: list[list[Call]] = [[] for _ in episodes]
    while waiting := [(n, episode.request) for n, episode in enumerate(episodes) if episode.request]:
        asked = [request for _, request in waiting for _ in range(request.n)]
        prompts = [chat.prompt_ids(r.messages, r.prefill, r.tools) for r in asked]
        limits = [min(r.max_new_tokens, trainer.max_completion_length) for r in asked]
        rooms = [max(1, min(most, window - len(p))) for most, p in zip(limits, prompts, strict=True)]
        written = _generate(trainer, prompts, rooms)
        texts = ((prompt, *text) for prompt, text in zip(prompts, written, strict=True))
        for n, request in waiting:
            own = [_completed(chat, request, *next(texts)) for _ in range(request.n)]
            calls[n] += [call for call, _ in own]
            episodes[n].answer(*[completion for _, completion in own])
    return calls


def _generate(trainer: Any, prompts: Sequence[list[int]], rooms: Sequence[int]) -> list[tuple[list[int], bool]]:
    """Sampled continuations of tokenized prompts, each up to its end-of-turn token, and whether it has one."""
    import torch
    from trl.models import unwrap_model_for_generation

    pad, widest = trainer.processing_class.pad_token_id, max(map(len, prompts))
    device = trainer.accelerator.device
    ids = torch.tensor([[pad] * (widest - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (widest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model, torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(rooms),
            do_sample=True,
            temperature=trainer.temperature,
            top_p=trainer.args.top_p,
            pad_token_id=pad,
            eos_token_id=trainer.eos_token_ids,
        )
    ends = set(trainer.eos_token_ids)
    written = []
    for row, room in zip(out[:, widest:].tolist(), rooms, strict=True):
        end = next((at + 1 for at, token in enumerate(row[:room]) if token in ends), None)
        written.append((row[: end or room], end is not None))
    return written


def _completed(
    chat: Chat, request: Request, prompt: list[int], written: list[int], ended: bool
) -> tuple[Call, Completion]:
    """The tokens up to the first stop string, and the completion that the loop is given."""
    text = chat.decode(written)
    short, cut = cut_at(text, request.stop)
    if cut:
        low, high = 1, len(written)  # the fewest tokens that hold the stop string
        while low < high:
            middle = (low + high) // 2
            held = chat.decode(written[:middle])
            low, high = (low, middle) if cut_at(held, request.stop)[1] else (middle + 1, high)
        written = written[:low]
    finish = "stop" if ended or cut else "length"
    usage = Usage(len(prompt), len(prompt), len(written), 1)
    return (prompt, written), Completion(short, finish, usage)  # type: ignore[arg-type]
