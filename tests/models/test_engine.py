"""The batching engine's promises: logits, drafts, shared prefixes, memory."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from models.tiny import CONFIGS, SIZE, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, Gemma2Config

from nl2sql.errors import ModelError
from nl2sql.interfaces import Grammar, Sampling
from nl2sql.models.batching import BatchWorker, Router
from nl2sql.models.local import LocalModel
from nl2sql.models.rows import LONGEST, Draft, Row
from nl2sql.models.slots import Segment, SequentialDecoder, Slot, SlotDecoder, make_decoder

SLOT_KINDS = [kind for kind in CONFIGS if kind != "mamba"]


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def rows_of(*lengths: int) -> list[list[int]]:
    return [[(7 * i + 13 * n + 3) % 250 + 5 for i in range(length)] for n, length in enumerate(lengths)]


@pytest.mark.parametrize("kind", SLOT_KINDS)
def test_logits_over_a_reused_cache_equal_those_of_a_fresh_forward(kind: str) -> None:
    rows = rows_of(90, 40, 7)
    plain = tiny_model(kind)
    with torch.inference_mode():
        expected = [plain(torch.tensor([row]), use_cache=False).logits[0] for row in rows]
    decoder = make_decoder(tiny_model(kind))
    assert isinstance(decoder, SlotDecoder)
    slots = [Slot() for _ in rows]
    decoder.forward([Segment(slot, row[:3]) for slot, row in zip(slots, rows, strict=True)])
    got = decoder.forward(
        [Segment(slots[0], rows[0][3:60], 2), Segment(slots[1], rows[1][3:4]), Segment(slots[2], rows[2][3:], 4)]
    )
    wanted = torch.cat([expected[0][58:60], expected[1][3:4], expected[2][3:]])
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    decoder.crop(slots[0], 30)  # taken back, another continuation, then the same again
    decoder.forward([Segment(slots[0], [5] * 40)])
    decoder.crop(slots[0], 30)
    other = Slot()
    decoder.copy_prefix(slots[0], other, 25)
    got = decoder.forward([Segment(slots[0], rows[0][30:]), Segment(other, rows[0][25:])])
    torch.testing.assert_close(got, expected[0][-1].expand(2, -1), rtol=1e-4, atol=1e-4)


def test_a_model_taken_over_by_the_engine_says_so_when_called_directly() -> None:
    model = tiny_model()
    make_decoder(model)
    with pytest.raises(ValueError, match="call it through nl2sql"):
        model(torch.tensor([[1, 2, 3]]))


def test_a_model_that_was_served_before_can_be_served_again() -> None:
    model = tiny_model()
    first, second = make_decoder(model), make_decoder(model)
    assert isinstance(first, SlotDecoder) and isinstance(second, SlotDecoder)
    assert first.token_bytes == second.token_bytes > 0
    row = rows_of(20)[0]
    torch.testing.assert_close(first.forward([Segment(Slot(), row)]), second.forward([Segment(Slot(), row)]))


@torch.inference_mode()
def test_a_model_that_does_not_fit_slots_keeps_the_attention_it_came_with() -> None:
    softcapped = Gemma2Config(**SIZE)
    model = AutoModelForCausalLM.from_config(softcapped, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor(rows_of(20))
    expected = model(ids).logits
    for _ in range(2):
        assert isinstance(make_decoder(model), SequentialDecoder)
        assert model.config._attn_implementation == "eager"
        torch.testing.assert_close(model(ids).logits, expected)


def test_drafts_change_no_text_and_save_forwards() -> None:
    counts, texts = [], []
    for prompt_lookup in (True, False):
        decoder = make_decoder(tiny_model())
        decoder.prompt_lookup = prompt_lookup
        forwards = []
        honest = decoder.forward
        decoder.forward = lambda segments, honest=honest, seen=forwards: seen.append(len(segments)) or honest(segments)  # type: ignore[method-assign]
        worker = BatchWorker(decoder, lambda ids: str(list(ids)), batch_size=4, max_cache_bytes=10**8)
        rows = [Row(prompt=ids * 3, max_new_tokens=60, stop_ids=frozenset([2])) for ids in rows_of(20, 21, 22)]
        sampled = [Row(prompt=rows_of(30)[0], max_new_tokens=40, stop_ids=frozenset(), sampling=Sampling(0.7), seed=5)]
        worker.submit([*rows, *sampled])
        for row in [*rows, *sampled]:
            assert row.done.wait(30) and row.error is None
        worker.close()
        counts.append(len(forwards))
        texts.append([(row.text, row.finish, len(row.ids)) for row in [*rows, *sampled]])
    assert texts[0] == texts[1]
    assert counts[0] < counts[1]


def sampler(top_p: float, temperature: float = 1.0) -> Row:
    return Row(prompt=[1], max_new_tokens=1, stop_ids=frozenset(), sampling=Sampling(temperature, top_p), seed=3)


@pytest.mark.parametrize(("top_p", "kept"), [(1.0, 5), (0.95, 4), (0.75, 2), (0.49, 1)])
def test_tokens_are_drawn_as_often_as_their_probability_says(top_p: float, kept: int) -> None:
    probabilities = torch.tensor([0.15, 0.5, 0.0, 0.05, 0.3, 1e-7])  # the last one is far below the others
    row, times = sampler(top_p, temperature=0.5), 4000
    drawn = torch.bincount(torch.tensor([row.sample(probabilities.log() / 2) for _ in range(times)]), minlength=6)
    inside = torch.zeros(6)
    inside[probabilities.argsort(descending=True)[:kept]] = 1
    expected = probabilities * inside / (probabilities * inside).sum()
    assert not drawn[expected == 0].any()
    deviations = (drawn - times * expected).abs() / (times * expected * (1 - expected) + 1).sqrt()
    assert float(deviations.max()) < 4


def test_a_rounding_changes_hardly_a_draw() -> None:
    noise = torch.Generator().manual_seed(1)
    logits = torch.randn(20_000, generator=noise)
    rounded = logits + 4e-6 * torch.randn(20_000, generator=noise)  # tokens that nearly tie change places
    one, other = sampler(0.95), sampler(0.95)
    assert sum(one.sample(logits) != other.sample(rounded) for _ in range(500)) <= 2


def test_logits_that_are_no_numbers_are_no_sample() -> None:
    with pytest.raises(ModelError, match="not numbers"):
        sampler(0.9).sample(torch.full((6,), torch.nan))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("options", [{}, {"sampling": Sampling(0.8)}, {"grammar": Grammar("lark", 'start: "ab"')}])
def test_logits_that_are_no_numbers_are_no_answer(value: float, options: dict[str, Any]) -> None:
    broken = tiny_model()
    with torch.no_grad():
        broken.lm_head.weight[40] = value
    model = LocalModel(broken, tiny_tokenizer(), name="x", revision="t")
    with pytest.raises(ModelError, match=r"logits are not numbers .*--dtype float32"):
        model.generate(chat("hello"), max_new_tokens=4, **options)
    model.close()


def test_a_slot_grows_while_a_profiler_holds_what_was_compared() -> None:
    slot, held = Slot(), []
    slot.tokens.extend([1, 2, 3])
    sys.setprofile(lambda frame, event, arg: held.append(frame))
    try:
        assert slot.shared(np.array([1, 2, 4])) == 2
    finally:
        sys.setprofile(None)
    slot.tokens.extend([4] * 100)
    assert held


def test_a_draft_is_what_followed_the_last_tokens_before() -> None:
    draft = Draft([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert draft.propose(8) == []
    draft.extend([2, 3])
    assert draft.propose(3) == [4, 5, 6]
    draft.extend([7])  # 2 3 was followed by 4 first, by 7 last
    draft.extend([2, 3])
    assert draft.propose(1) == [7]
    for _ in range(50):
        draft.learn(4, 0)
    assert len(draft.propose(8)) == 1
    for _ in range(50):
        draft.learn(4, 4)
    assert len(draft.propose(LONGEST + 5)) <= LONGEST + 1


def test_memory_stays_within_the_budget_and_what_is_forgotten_is_computed_again() -> None:
    budget = 4 * 512 * 256  # four slots of 512 tokens, 256 bytes each
    model = LocalModel(tiny_model(), tiny_tokenizer(), name="x", revision="t", batch_size=3, max_cache_bytes=budget)
    (worker,) = model._worker.workers
    first = [model.generate(chat(f"{n} question"), max_new_tokens=5)[0].text for n in range(9)]
    assert 0 < worker.cache_bytes <= budget
    with ThreadPoolExecutor(9) as threads:
        again = list(threads.map(lambda n: model.generate(chat(f"{n} question"), max_new_tokens=5)[0].text, range(9)))
    assert again == first and worker.cache_bytes <= budget
    model.close()


def test_a_row_that_no_budget_holds_fails_alone() -> None:
    budget = 200_000  # one slot of 512 tokens, none of 1,024
    model = LocalModel(tiny_model(), tiny_tokenizer(), name="x", revision="t", batch_size=4, max_cache_bytes=budget)
    with ThreadPoolExecutor(6) as threads:
        small = [threads.submit(model.generate, chat(f"{n}"), max_new_tokens=30) for n in range(5)]
        large = threads.submit(model.generate, chat("x" * 980), max_new_tokens=20)
        assert all(call.result(30)[0].usage.completion_tokens for call in small)
        with pytest.raises(ModelError, match="GB of cache"):
            large.result(30)
    model.close()


def test_usage_tells_queue_from_compute() -> None:
    model = LocalModel(tiny_model(), tiny_tokenizer(), name="x", revision="t", batch_size=1)
    with ThreadPoolExecutor(4) as threads:
        usages = [
            call.result(30)[0].usage
            for call in [threads.submit(model.generate, chat(f"{n}"), max_new_tokens=40) for n in range(4)]
        ]
    assert all(0 < usage.compute_seconds <= usage.seconds for usage in usages)
    assert max(usage.queue_seconds for usage in usages) > min(usage.queue_seconds for usage in usages) >= 0
    busy, forward = model.worker_seconds()
    assert sum(usage.compute_seconds for usage in usages) == pytest.approx(forward, rel=0.01) and forward <= busy
    model.close()


def test_the_same_prompt_n_times_is_read_once() -> None:
    seen: list[Any] = []
    decoder = make_decoder(tiny_model())
    worker = BatchWorker(decoder, lambda ids: "", batch_size=8, max_cache_bytes=10**8)
    prompt = rows_of(200)[0]
    rows = [Row(prompt=prompt, max_new_tokens=2, stop_ids=frozenset(), cancel=threading.Event()) for _ in range(6)]
    worker.submit(rows)
    for row in rows:
        assert row.done.wait(30)
        seen.append(row.prefilled)
    worker.close()
    assert sorted(seen) == [1, 1, 1, 1, 1, 200]


def test_several_workers_share_the_work_and_a_conversation_stays_with_its_worker() -> None:
    model = tiny_model()
    first = make_decoder(model)
    decoders = [first, SlotDecoder(model, first.token_bytes)]
    workers = [
        BatchWorker(d, lambda ids: str(list(ids)), batch_size=4, max_cache_bytes=10**8, threads=1) for d in decoders
    ]
    router = Router(workers)
    prompts = rows_of(*range(150, 158))
    rows = [Row(prompt=prompt, max_new_tokens=12, stop_ids=frozenset()) for prompt in prompts]
    router.submit(rows)
    assert all(row.done.wait(30) for row in rows)
    assert all(worker.forward_seconds > 0 for worker in workers)
    again = [Row(prompt=[*row.prompt, *row.ids, 7, 8], max_new_tokens=3, stop_ids=frozenset()) for row in rows]
    router.submit(again)
    assert all(row.done.wait(30) for row in again)
    assert [row.prefilled for row in again] == [3] * len(again)  # the last new token, and the two added
    alone = make_decoder(tiny_model())
    for row in rows:
        slot = Slot()
        logits = alone.forward([Segment(slot, row.prompt)])
        for token in row.ids:
            assert int(logits[-1].argmax()) == token
            logits = alone.forward([Segment(slot, [token])])
    router.close()
    with pytest.raises(ModelError, match="closed"):
        router.submit(rows[:1])


@pytest.mark.parametrize("kind", CONFIGS)
def test_one_row_at_a_time_a_conversation_may_be_read_in_pieces(kind: str) -> None:
    model, row = tiny_model(kind), rows_of(30)[0]
    decoder, whole, pieces = SequentialDecoder(model), Slot(), Slot()
    expected = decoder.forward([Segment(whole, row)])
    for piece in (row[:11], row[11:20], row[20:21]):
        decoder.forward([Segment(pieces, piece)])
    torch.testing.assert_close(decoder.forward([Segment(pieces, row[21:])]), expected, rtol=1e-4, atol=1e-4)
    assert list(pieces.tokens) == list(row)
