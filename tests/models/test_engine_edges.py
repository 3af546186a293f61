"""The engine at its edges: failures midway, memory that does not suffice, models whose probe would not show all."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from models.tiny import SIZE, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig

from nl2sql.errors import ModelError
from nl2sql.models.batching import BatchWorker, Router
from nl2sql.models.local import LocalModel
from nl2sql.models.rows import Row
from nl2sql.models.slots import Segment, SequentialDecoder, Slot, SlotDecoder, make_decoder


def ids(n: int, length: int) -> list[int]:
    return [(7 * i + 13 * n + 3) % 250 + 5 for i in range(length)]


def row(prompt: list[int], new: int = 4, **k: Any) -> Row:
    return Row(prompt=prompt, max_new_tokens=new, stop_ids=frozenset(), **k)


def test_slots_of_a_sequential_model_are_bounded() -> None:
    worker = BatchWorker(SequentialDecoder(tiny_model("mamba")), lambda i: "", batch_size=4, max_cache_bytes=1)
    for n in range(25):
        one = row([n + 5, *ids(n, 20)], 1)
        worker.submit([one])
        assert one.done.wait(10)
    held = len(worker._idle)
    worker.close()
    assert held <= 8, held  # 25: every conversation's own cache is kept for ever


def test_a_sequential_row_is_right_after_a_forward_that_failed_midway() -> None:
    """Transient failure in layer 2 of one of two rows: layer 1 of its own cache already holds the new keys."""

    def texts(fail: bool) -> list[list[int]]:
        model = tiny_model("llama")
        worker = BatchWorker(SequentialDecoder(model), lambda i: "", batch_size=2, max_cache_bytes=10**8)
        calls = [0]

        def hook(_m: Any, _a: Any, _k: Any) -> None:
            calls[0] += 1
            if fail and calls[0] == 8:
                raise RuntimeError("transient")

        model.model.layers[1].register_forward_pre_hook(hook, with_kwargs=True)
        rows = [row(ids(0, 30), 12), row([9, *ids(1, 30)], 12)]
        worker.submit(rows)
        assert all(r.done.wait(10) for r in rows)
        worker.close()
        assert all(r.error is None for r in rows), [r.error for r in rows]
        return [r.ids for r in rows]

    assert texts(True) == texts(False)


def test_a_row_that_never_fits_fails_at_once_and_leaves_the_idle_slots_alone() -> None:
    decoder = make_decoder(tiny_model())
    worker = BatchWorker(decoder, lambda i: "", batch_size=4, max_cache_bytes=4 * 512 * decoder.token_bytes)
    kept = row(ids(0, 100), 2)
    worker.submit([kept])
    assert kept.done.wait(10)
    busy = row([9, *ids(1, 100)], 300)
    busy.draft.propose = lambda limit: []  # type: ignore[method-assign]
    worker.submit([busy])
    time.sleep(0.05)
    doomed = row([8, *ids(2, 3000)], 10)
    worker.submit([doomed])
    early = doomed.done.wait(0.1) and not busy.done.is_set()
    assert busy.done.wait(20) and doomed.done.wait(10)
    again = row([*ids(0, 100), 7], 2)
    worker.submit([again])
    assert again.done.wait(10)
    worker.close()
    assert (bool(early), again.prefilled <= 3) == (True, True), (early, again.prefilled)


class Panic(BaseException):
    """pyo3_runtime.PanicException (tokenizers, llguidance) is a BaseException, not an Exception."""


def test_a_rust_panic_does_not_leave_callers_waiting_for_ever() -> None:
    def decode(found: Any) -> str:
        raise Panic("called Option::unwrap() on a None value")

    threading.excepthook = lambda *_: None
    worker = BatchWorker(make_decoder(tiny_model()), decode, batch_size=2, max_cache_bytes=10**8)
    rows = [row(ids(0, 20), 2), row(ids(1, 20), 30)]
    worker.submit(rows)
    time.sleep(0.5)
    late = row(ids(2, 20), 2)
    try:
        worker.submit([late])
        refused = False
    except ModelError:
        refused = True
    done = [r.done.wait(1) for r in rows]
    threading.excepthook = threading.__excepthook__
    assert all(done) and (refused or late.done.wait(1)), (done, refused)


@pytest.mark.parametrize("what", ["nan", "no reuse"])
def test_doctor_reuse_check_can_fail(what: str) -> None:
    from nl2sql.models.doctor import _reuse

    class Fake:
        def next_logits(self, m: Any, t: str) -> Any:
            return (torch.full((9,), float("nan")), 5) if what == "nan" else (torch.ones(9), 0)

        def prompt_ids(self, m: Any, t: str) -> list[int]:
            return [1] * 10

    found = _reuse(Fake(), [torch.ones(9)] * 3, ([], ["", "a", "b"]), "float16")  # type: ignore[arg-type]
    assert found.status != "ok", found


def test_an_interrupt_while_queueing_abandons_what_was_queued() -> None:
    """Ctrl-C (or a second submit that fails) between the first and the last row: nobody waits, nobody says so."""
    model = LocalModel(tiny_model(), tiny_tokenizer(), name="x", revision="t", batch_size=2)
    seen: list[Row] = []
    honest = model._worker.submit

    def submit(rows: Any) -> None:
        seen.extend(rows)
        honest(rows)
        raise KeyboardInterrupt

    model._worker.submit = submit  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        model.generate([{"role": "user", "content": "a"}], max_new_tokens=700)
    abandoned = [r.abandoned for r in seen]
    model.close()
    assert all(abandoned)


def test_closing_gives_the_memory_back() -> None:
    worker = BatchWorker(make_decoder(tiny_model()), lambda i: "", batch_size=2, max_cache_bytes=10**8)
    one = row(ids(0, 20), 2)
    worker.submit([one])
    assert one.done.wait(10)
    worker.close()
    assert worker.cache_bytes == 0


def test_a_large_row_is_not_overtaken_by_all_that_came_after() -> None:
    decoder = make_decoder(tiny_model())
    decoder.prompt_lookup = False
    worker = BatchWorker(decoder, lambda i: "", batch_size=6, max_cache_bytes=4 * 512 * decoder.token_bytes)
    small = [row([n + 5, *ids(n, 20)], 5 + (7 * n) % 13) for n in range(60)]
    big = row([250, *ids(2, 1700)], 5)
    order: list[int] = []
    finish = worker._finish
    worker._finish = lambda r, error=None: (order.append(-1 if r is big else 0), finish(r, error))[1]  # type: ignore
    worker.submit([*small[:4], big, *small[4:]])
    assert all(r.done.wait(10) for r in [*small, big])
    worker.close()
    assert big.error is None
    assert order.index(-1) < 10, f"big came fifth and finished as number {order.index(-1) + 1} of 61"


def rope_model(kind: str):
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
    if kind == "longrope":
        rope |= {
            "short_factor": [1.0] * 4,
            "long_factor": [4.0, 8.0, 16.0, 32.0],
            "original_max_position_embeddings": 64,
        }
    torch.manual_seed(0)
    size = dict(SIZE, max_position_embeddings=64 if kind == "dynamic" else 1024)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**size, rope_parameters=rope), dtype=torch.float32).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(6.0)
    return model


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_logits_do_not_depend_on_a_longer_batch_mate(kind: str) -> None:
    decoder = make_decoder(rope_model(kind))
    if not isinstance(decoder, SlotDecoder):
        return  # served one at a time: fine
    short, long = ids(0, 40), ids(1, 200)
    alone = decoder.forward([Segment(Slot(), short)])[0]
    beside = decoder.forward([Segment(Slot(), short), Segment(Slot(), long)])[0]
    assert float((alone - beside).abs().max() / alone.abs().max()) < 1e-4


def test_edited_generation_config_or_config_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nl2sql.models.load import Source, _revision

    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "c"))
    m = tmp_path / "m"
    m.mkdir()
    (m / "model.safetensors").write_bytes(b"w")
    (m / "config.json").write_text('{"rope_theta": 1}')
    before = _revision(Source("folder", str(m)), m)
    (m / "config.json").write_text('{"rope_theta": 2}')
    assert _revision(Source("folder", str(m)), m) != before


def test_slots_match_tokens_under_cancels_drafts_failures() -> None:
    """Fuzz: 2 workers, cancels, transient failures, budget pressure, shared prefixes; ids must equal plain greedy."""
    import random

    rnd = random.Random(1)
    for kind in ("llama", "mistral-sliding", "gemma3-mixed"):
        model = tiny_model(kind)
        first = make_decoder(model)
        ds = [first, SlotDecoder(model, first.token_bytes)]
        fails = [0]

        def hook(_m, _a, fails=fails):
            fails[0] += 1
            if fails[0] % 23 == 0 and fails[0] % 46:
                raise RuntimeError("transient")

        ws = [
            BatchWorker(d, lambda i: "", batch_size=5, max_cache_bytes=4 * 512 * first.token_bytes, threads=1)
            for d in ds
        ]
        router = Router(ws)
        handle = model.model.layers[1].register_forward_pre_hook(lambda m, a: hook(m, a))
        base = [ids(n, 60 + 40 * n) for n in range(3)]
        rows = []
        for n in range(40):
            p = [*rnd.choice(base), *ids(n % 5, rnd.randrange(1, 60)) * rnd.randrange(1, 3)]
            ev = threading.Event()
            rows.append((row(p, rnd.randrange(1, 25), cancel=ev), ev))
        for n, (r, ev) in enumerate(rows):
            router.submit([r])
            if n % 7 == 3:
                threading.Timer(rnd.random() * 0.1, ev.set).start()
        assert all(r.done.wait(20) for r, _ in rows)
        handle.remove()
        # second wave: grown conversations over slots left by the first
        more = [row([*r.prompt, *r.ids, 9, 9, 9], 6) for r, _ in rows if r.error is None][:15]
        router.submit(more)
        assert all(r.done.wait(20) and r.error is None for r in more)
        for w in ws:
            for s in w._idle:
                check = Slot()
                if len(s.tokens) < 2:
                    continue
                ds[0].forward([Segment(check, list(s.tokens))])
                for layer, (k, v) in s.layers.items():
                    t = len(s.tokens)
                    torch.testing.assert_close(k[:, :, :t], check.layers[layer][0][:, :, :t], rtol=1e-3, atol=1e-3)
                    torch.testing.assert_close(v[:, :, :t], check.layers[layer][1][:, :, :t], rtol=1e-3, atol=1e-3)
        router.close()
        plain = tiny_model(kind)
        done = [r for r, _ in rows if r.error is None] + more
        print(kind, len(done), "errors", len([1 for r, _ in rows if r.error]))
        for r in done[::4]:
            seq = [*r.prompt, *r.ids]
            with torch.inference_mode():
                lg = plain(torch.tensor([seq]), use_cache=False).logits[0]
            assert lg[len(r.prompt) - 1 : -1].argmax(-1).tolist() == r.ids


def _mk(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.mul_(6.0)
    return model


def _windowed(kind):
    from transformers import Llama4TextConfig, PhimoeConfig, Qwen2MoeConfig

    if kind == "llama4-chunk":
        return Llama4TextConfig(
            **SIZE,
            attention_chunk_size=40,
            num_local_experts=2,
            intermediate_size_mlp=64,
            layer_types=["chunked_attention"] * 2,
            no_rope_layers=[1, 1],
            pad_token_id_=0,
        )
    if kind == "qwen2_moe":
        return Qwen2MoeConfig(
            **SIZE,
            use_sliding_window=True,
            sliding_window=40,
            max_window_layers=0,
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        )
    size = {k: v for k, v in SIZE.items() if k != "head_dim"}
    return PhimoeConfig(**size, sliding_window=40, num_local_experts=2)


@pytest.mark.parametrize("kind", ["llama4-chunk", "qwen2_moe", "phimoe"])
def test_windows_longer_than_the_probe_are_seen(kind):
    seq = ids(0, 120)
    plain = _mk(_windowed(kind))
    with torch.inference_mode():
        want = plain(torch.tensor([seq]), use_cache=False).logits[0, -1]
    decoder = make_decoder(_mk(_windowed(kind)))
    print(kind, type(decoder).__name__, getattr(plain.config, "layer_types", None))
    got = decoder.forward([Segment(Slot(), seq)])[-1]
    assert float((got - want).abs().max() / want.abs().max()) < 1e-3


def test_grammar_and_stop_with_drafts():
    from nl2sql.interfaces import Grammar, Sampling

    def run(prompt_lookup):
        m = LocalModel(tiny_model(), tiny_tokenizer(), name="x", revision="t", batch_size=3)
        for worker in m._worker.workers:
            worker.decoder.prompt_lookup = prompt_lookup
        g = Grammar("lark", 'start: ("ab " | "cd, " | "select x ")~3..9 ";"')
        text = "ab cd, select x ab ab cd, select x " * 3
        out = []
        for kw in (
            {"grammar": g},
            {"grammar": g, "sampling": Sampling(1.0, 0.95), "seed": 3},
            {"stop": ("b c", "t x ab")},
            {"grammar": g, "stop": ("x a", ", cd")},
        ):
            for prefill in ("", text):
                c = m.generate([{"role": "user", "content": text}], prefill=prefill, max_new_tokens=50, **kw)[0]
                out.append((c.text, c.finish_reason, c.usage.completion_tokens, round(c.logprob, 2)))
        m.close()
        return out

    a, b = run(True), run(False)
    assert a == b
    print(a[:4])
