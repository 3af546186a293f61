"""What the engine holds: given back when it is done with, and bounded."""

from __future__ import annotations

import gc
import multiprocessing
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from models.tiny import tiny_model, tiny_tokenizer

from nl2sql.errors import UsageError
from nl2sql.interfaces import Sampling
from nl2sql.models import local as engine
from nl2sql.models.doctor import _memory
from nl2sql.models.local import LocalModel, memory_limit
from nl2sql.models.slots import empty_pages

MB = 2**20


def local(**options: Any) -> LocalModel:
    return LocalModel(tiny_model(), tiny_tokenizer(), name="x", revision="t", **options)


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def in_a_process_of_its_own(check: Callable[[], None]) -> None:
    """Memory of a process that nothing else uses: what other tests left behind may be freed at any time."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(check).result()


def slots_of(model: LocalModel) -> int:
    return sum(len(each._slots()) for each in model._worker.workers)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_weights_of_a_closed_model_are_given_back_at_once(threads: int) -> None:
    torch.set_num_threads(threads)
    made = tiny_model()
    model = LocalModel(made, tiny_tokenizer(), name="x", revision="t", batch_size=16)
    assert len(model._worker.workers) == threads
    weights = weakref.ref(made)
    del made
    model.generate(chat("one prompt"), max_new_tokens=2)
    gc.collect()
    gc.disable()  # which passes over old objects for a long time
    try:
        model.close()
        del model
        assert weights() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_slots_of_further_completions_are_given_back_and_the_prompt_stays(batch_size: int) -> None:
    model = local(batch_size=batch_size)
    sampling = Sampling(temperature=1.0, top_p=1.0)
    answers = model.generate(chat("one prompt"), max_new_tokens=8, n=12, sampling=sampling, seed=1)
    assert slots_of(model) <= 2  # a worker may hold the prompt, and there are two
    again = model.generate(chat("one prompt"), max_new_tokens=8, n=12, sampling=sampling, seed=1)
    assert [answer.text for answer in again] == [answer.text for answer in answers]
    assert sum(answer.usage.prefill_tokens for answer in again) == 12  # the last token of each: the rest was held
    model.close()


@pytest.mark.parametrize(("batch_size", "workers"), [(8, 1), (15, 1), (16, 2)])
def test_few_rows_have_one_worker_with_all_threads(
    batch_size: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = local(batch_size=batch_size)
    assert len(model._worker.workers) == workers
    model.close()


def test_a_conversation_of_its_own_keeps_its_slot() -> None:
    model = local(batch_size=1)
    first = model.generate(chat("hello"), max_new_tokens=8)[0]
    longer = model.generate(chat("hello"), prefill=first.text, max_new_tokens=8)[0]
    assert longer.usage.prefill_tokens < first.usage.completion_tokens + 2
    model.close()


def resident_bytes() -> int:
    """Memory of this process that lies in RAM and in no file."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def check_empty_pages() -> None:
    before = resident_bytes()
    like = torch.zeros(1, 4, 1, 64)
    tensors = [empty_pages(like, 16384) for _ in range(16)]  # eight layers, 256 MB
    assert all(tensor.shape == (1, 4, 16384, 64) and not tensor[0, 0, -1].any() for tensor in tensors)
    assert abs(resident_bytes() - before) < 40 * MB
    tensors[0].fill_(1.0)
    tensors[-1].fill_(2.0)
    assert float(tensors[0].max()) == 1.0 and float(tensors[1].max()) == 0.0
    assert 20 * MB < resident_bytes() - before < 80 * MB
    del tensors
    assert resident_bytes() - before < 20 * MB


def test_a_slots_memory_is_the_systems_until_written_and_again_when_it_is_let_go() -> None:
    in_a_process_of_its_own(check_empty_pages)


def test_the_limit_is_a_quarter_of_what_is_free_and_at_most_four_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, limit in ((8 * 10**9, 2 * 10**9), (100 * 10**9, 4 * 10**9), (None, 10**9)):
        monkeypatch.setattr(engine, "free_bytes", lambda free=free: free)
        assert memory_limit() == limit
    monkeypatch.setenv("NL2SQL_MEMORY_GB", "1.5")
    assert memory_limit() == 1_500_000_000
    for wrong in ("four", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("NL2SQL_MEMORY_GB", wrong)
        with pytest.raises(UsageError, match=r"NL2SQL_MEMORY_GB=.* is not a size in GB; example: NL2SQL_MEMORY_GB=4"):
            memory_limit()


def test_doctor_tells_what_is_held_and_the_limit() -> None:
    model = local(batch_size=1, max_cache_bytes=10**9)
    model.generate(chat("hello"), max_new_tokens=4)
    check = _memory(model.cache_bytes, model.cache_limit)
    assert check.status == "ok" and "MB of keys and values, of 1.0 GB allowed" in check.detail
    model.close()
