"""The environment in TRL's form: reward functions for ``GRPOTrainer`` and others, and rollouts of the loop.

    functions = reward_functions(environment)               # named ex, ts, format, cost
    GRPOConfig(reward_weights=reward_weights(environment), ...)
    GRPOTrainer(model, reward_funcs=functions, train_dataset=environment.dataset(tokenizer), ...)   # one turn
    GRPOTrainer(..., rollout_func=rollout_function(environment, "react_plus"))                      # the loop

Written against TRL 1.16 (``RewardFunc``, and the experimental ``rollout_func``); TRL itself is not imported before a
rollout asks for it.

An episode of the loop has several calls of the model, each with a prompt of its own (``generate_sql`` is one within a
turn), while TRL learns from one prompt and one completion for each rollout. So one call of each episode is drawn, and
earns the reward of the whole episode: every call is learned from equally often.

Not covered: vLLM (``use_vllm``), DeepSpeed and FSDP in rollouts of the loop, and TRL's ``environment_factory``, whose
loop is TRL's own: our gates and overrides would not be in it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nl2sql.errors import UsageError
from nl2sql.interfaces import Completion, Usage
from nl2sql.models.chat import Chat
from nl2sql.runs.rollouts.driven import PARTS, DrivenEpisode, Request, Reward, cut_at

if TYPE_CHECKING:
    from nl2sql.runs.rollouts import Environment

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
    cut = cut_at(text, request.stop)
    if cut != text:
        low, high = 1, len(written)  # the fewest tokens that hold the stop string
        while low < high:
            middle = (low + high) // 2
            held = chat.decode(written[:middle])
            low, high = (low, middle) if cut_at(held, request.stop) != held else (middle + 1, high)
        written = written[:low]
    finish = "stop" if ended or cut != text else "length"
    usage = Usage(len(prompt), len(prompt), len(written), 1)
    return (prompt, written), Completion(cut, finish, usage)  # type: ignore[arg-type]
