"""Ways to compute a recording: one by one, in static batches, by the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from engine_bench.transcripts import Call, Episode
from nl2sql.models.batching import BatchWorker, Router
from nl2sql.models.local import open_engine
from nl2sql.models.rows import Row
from nl2sql.models.slots import Segment, Slot, SlotDecoder, make_decoder


@dataclass
class Result:
    """seconds: wall. prefilled: prompt tokens computed. forward_s, busy_s: inside the model, inside the worker."""

    seconds: float
    prefilled: int
    forward_s: float = 0.0
    busy_s: float = 0.0
    cache_bytes: int = 0


def load(folder: str, dtype: str) -> Any:
    """The plain transformers model."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return model.eval()


@torch.inference_mode()
def naive(model: Any, episodes: Sequence[Episode]) -> Result:
    """(a) One episode at a time, every prompt read whole, ``model.generate``."""
    started = time.perf_counter()
    for episode in episodes:
        for call in episode:
            _generate(model, [call.prompt], len(call.answer))
    return Result(time.perf_counter() - started, sum(len(call.prompt) for episode in episodes for call in episode))


@torch.inference_mode()
def static(model: Any, episodes: Sequence[Episode], batch_size: int) -> Result:
    """(b) The k-th calls of ``batch_size`` episodes together, left-padded, ``model.generate``; nothing is reused.

    Calls of like length go together; a batch ends when its longest answer does.
    """
    started, prefilled = time.perf_counter(), 0
    for first in range(0, len(episodes), batch_size):
        wave = episodes[first : first + batch_size]
        for step in range(max(map(len, wave))):
            calls = [episode[step] for episode in wave if step < len(episode)]
            _generate(model, [call.prompt for call in calls], max(len(call.answer) for call in calls))
            prefilled += sum(len(call.prompt) for call in calls)
    return Result(time.perf_counter() - started, prefilled)


def _generate(model: Any, prompts: list[list[int]], new: int) -> None:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    settings = GenerationConfig(max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None)
    model.generate(ids, attention_mask=mask, generation_config=settings)


def engine(
    model: Any,
    episodes: Sequence[Episode],
    batch_size: int,
    cache_bytes: int,
    *,
    prompt_lookup: bool = True,
    one: bool = False,
) -> Result:
    """(c) Our engine, as ``LocalModel`` opens it; without drafts; with one worker that has all threads."""
    if one:
        decoder = make_decoder(model)
        alone = BatchWorker(decoder, lambda ids: "", batch_size=batch_size, max_cache_bytes=cache_bytes)
        worker = Router([alone])
    else:
        _, worker = open_engine(model, lambda ids: "", batch_size, cache_bytes)
    for each in worker.workers:
        each.decoder.prompt_lookup = prompt_lookup
    try:
        found = _replay(worker, episodes)
        found.cache_bytes = worker.cache_bytes
        return found
    finally:
        worker.close()


def _replay(worker: Any, episodes: Sequence[Episode]) -> Result:
    prefilled = [0] * len(episodes)

    def play(n: int) -> None:
        for call in episodes[n]:
            row = _row(call)
            worker.submit([row])
            row.done.wait()
            if row.error is not None:
                raise row.error
            prefilled[n] += row.prefilled

    started = time.perf_counter()
    with ThreadPoolExecutor(len(episodes)) as threads:
        for done in [threads.submit(play, n) for n in range(len(episodes))]:
            done.result()
    return Result(time.perf_counter() - started, sum(prefilled), worker.forward_seconds, worker.busy_seconds)


def _row(call: Call) -> Row:
    return Row(prompt=call.prompt, max_new_tokens=len(call.answer), stop_ids=frozenset())


@torch.inference_mode()
def floor(model: Any, context: int, batches: Sequence[int]) -> dict[str, float]:
    """Seconds per token of the bare forward: prompts in chunks of 512, and single tokens at the best batch size.

    context: the mean length at which tokens are computed. One token a row and a step: no drafts.
    """
    decoder = SlotDecoder(model)
    ids = [(7 * n) % 1000 + 5 for n in range(max(context, 512))]
    head = Slot()
    decoder.forward([Segment(head, ids[: max(1, context - 512)])])
    prefill = _best(lambda: _fresh_chunk(decoder, head, ids[:512]), 3) / 512
    cost: dict[int, float] = {}
    for batch in batches:
        slots = [Slot() for _ in range(batch)]
        for slot in slots:
            decoder.copy_prefix(head, slot, len(head.tokens))
        step = _best(lambda slots=slots: decoder.forward([Segment(slot, [5]) for slot in slots]), 5)
        cost[batch] = step / batch
    best = min(cost, key=lambda batch: cost[batch])
    return {"prefill_s": prefill, "decode_s": cost[best], "batch": best}


def _fresh_chunk(decoder: SlotDecoder, head: Slot, chunk: list[int]) -> None:
    slot = Slot()
    decoder.copy_prefix(head, slot, len(head.tokens))
    decoder.forward([Segment(slot, chunk)])


def _best(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):  # the first one warms up
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])
