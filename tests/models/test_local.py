"""LocalModel: what a caller sees, on tiny random models; the real weights in test_embedded_model.py."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from models.tiny import CONFIGS, tiny_model, tiny_tokenizer

from nl2sql.errors import Cancelled, ModelError, UsageError
from nl2sql.interfaces import Completion, Grammar, Model, Sampling
from nl2sql.models.local import LocalModel
from nl2sql.models.response_cache import CachedModel
from nl2sql.models.scripted import ScriptedModel

PROMPTS = [f"{'list the orders of ' * (i % 5)}customer {i}" for i in range(16)]


def local(kind: str = "llama", batch_size: int = 16, **kwargs: Any) -> LocalModel:
    return LocalModel(tiny_model(kind), tiny_tokenizer(), name=kind, revision="test", batch_size=batch_size, **kwargs)


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "You write SQL."}, {"role": "user", "content": text}]


def ask_all(model: LocalModel, prompts: list[str], **kwargs: Any) -> list[Completion]:
    with ThreadPoolExecutor(len(prompts)) as threads:
        return list(threads.map(lambda p: model.generate(chat(p), **kwargs)[0], prompts))


@pytest.fixture(scope="module")
def model() -> Any:
    made = local()
    yield made
    made.close()


def test_it_is_a_model(model: LocalModel) -> None:
    assert isinstance(model, Model)


@pytest.mark.parametrize("kind", CONFIGS)
def test_greedy_text_is_that_of_transformers_generate_at_any_batch_size(kind: str) -> None:
    reference, tokenizer = tiny_model(kind), tiny_tokenizer()
    expected = []
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template(chat(prompt), tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        out = reference.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=[0, 1, 2], pad_token_id=0)
        expected.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    for batch_size in (1, 5, 16):
        model = local(kind, batch_size)
        assert [c.text for c in ask_all(model, PROMPTS, max_new_tokens=24)] == expected
        model.close()


def test_models_that_do_not_fit_slots_are_run_one_row_at_a_time() -> None:
    decoders = {}
    for kind in ("llama", "gemma3-mixed", "mamba"):
        model = local(kind)
        decoders[kind] = model.describe()["engine"]
        model.close()
    assert decoders == {"llama": "slots", "gemma3-mixed": "slots", "mamba": "sequential"}


def test_a_stop_string_ends_the_text_and_is_not_part_of_it(model: LocalModel) -> None:
    free = model.generate(chat("hello"), max_new_tokens=40)[0]
    assert len(free.text) > 12
    stop = free.text[6:9]
    stopped = model.generate(chat("hello"), max_new_tokens=40, stop=["never there", stop])[0]
    assert stopped.text == free.text[: free.text.index(stop)]
    assert stopped.finish_reason == "stop"
    assert stopped.usage.completion_tokens < free.usage.completion_tokens


def test_the_limit_ends_the_text_with_reason_length(model: LocalModel) -> None:
    done = model.generate(chat("hello"), max_new_tokens=3)[0]
    assert (done.finish_reason, done.usage.completion_tokens) == ("length", 3)


def test_end_of_turn_tokens_end_the_text() -> None:
    hf = tiny_model()
    with torch.no_grad():
        hf.lm_head.weight[2] = 100 * hf.lm_head.weight[2].abs()  # <|im_end|> wins or loses every step by far
        hf.lm_head.weight[1] = -hf.lm_head.weight[2]
    model = LocalModel(hf, tiny_tokenizer(), name="eos", revision="test")
    done = model.generate(chat("hello"), max_new_tokens=40)[0]
    assert (done.text, done.finish_reason, done.usage.completion_tokens) == ("", "stop", 1)
    model.close()


def test_a_sampled_row_depends_on_seed_and_index_not_on_batch_mates(model: LocalModel) -> None:
    sampling = Sampling(1.0, 0.95)
    four = model.generate(chat("hello"), max_new_tokens=20, sampling=sampling, n=4, seed=7)
    assert len({c.text for c in four}) == 4
    assert [c.text for c in model.generate(chat("hello"), max_new_tokens=20, sampling=sampling, n=2, seed=7)] == [
        c.text for c in four[:2]
    ]
    crowd = ask_all(model, ["hello", *PROMPTS], max_new_tokens=20, sampling=sampling, seed=7)
    assert crowd[0].text == four[0].text
    other = model.generate(chat("hello"), max_new_tokens=20, sampling=sampling, seed=8)[0]
    assert other.text != four[0].text


def test_top_p_near_zero_is_greedy(model: LocalModel) -> None:
    greedy = model.generate(chat("hello"), max_new_tokens=20)[0]
    assert model.generate(chat("hello"), max_new_tokens=20, sampling=Sampling(1.0, 1e-9))[0].text == greedy.text


def test_prefill_continues_the_open_turn(model: LocalModel) -> None:
    whole = model.generate(chat("hello"), max_new_tokens=12)[0]
    assert whole.text[:5].isascii()
    rest = model.generate(chat("hello"), prefill=whole.text[:3], max_new_tokens=9)[0]
    assert rest.text == whole.text[3:]


def test_a_grown_conversation_computes_only_what_is_new() -> None:
    model = local(batch_size=2)
    first = model.generate(chat("count the orders"), max_new_tokens=8)[0]
    assert first.usage.prefill_tokens == first.usage.prompt_tokens == model.count_tokens(chat("count the orders"))
    grown = model.generate(chat("count the orders"), prefill="Thought: x\nObservation: y", max_new_tokens=8)[0]
    assert grown.usage.prompt_tokens == first.usage.prompt_tokens + len("Thought: x\nObservation: y")
    assert grown.usage.prefill_tokens <= len("Thought: x\nObservation: y") + 1
    fresh = local(batch_size=1)
    expected = fresh.generate(chat("count the orders"), prefill="Thought: x\nObservation: y", max_new_tokens=8)[0]
    assert grown.text == expected.text
    model.close()
    fresh.close()


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_a_prompt_longer_than_a_chunk_is_read_in_pieces(kind: str) -> None:
    model = local(kind)
    done = model.generate(chat("x" * 700), max_new_tokens=5)[0]
    assert done.usage.prefill_tokens == done.usage.prompt_tokens > 700
    assert model.generate(chat("x" * 700), max_new_tokens=5)[0].text == done.text
    model.close()


def test_rows_that_begin_alike_compute_the_common_part_once() -> None:
    model = local(batch_size=8)
    done = ask_all(model, ["a long common beginning, " * 8 + str(n) for n in range(8)], max_new_tokens=3)
    common = len("a long common beginning, " * 8)
    assert sum(c.usage.prefill_tokens for c in done) < common + 8 * (done[0].usage.prompt_tokens - common + 2)
    model.close()


def test_usage_counts_each_completion_once(model: LocalModel) -> None:
    done = model.generate(chat("hello"), max_new_tokens=5, n=3, sampling=Sampling(), seed=1)
    assert [c.usage.model_calls for c in done] == [1, 1, 1]
    assert all(c.usage.prompt_tokens == model.count_tokens(chat("hello")) for c in done)
    assert sum(c.usage.prefill_tokens for c in done) <= done[0].usage.prompt_tokens + 2  # one prompt, computed once
    assert all(c.logprob is not None and c.logprob < 0 for c in done)


def test_logprob_is_the_sum_over_the_tokens(model: LocalModel) -> None:
    hf, tokenizer = tiny_model(), tiny_tokenizer()
    done = model.generate(chat("hello"), max_new_tokens=4)[0]
    text = tokenizer.apply_chat_template(chat("hello"), tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    total = 0.0
    for _ in range(4):
        logprobs = hf(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        ids.append(int(logprobs.argmax()))
        total += float(logprobs.max().detach())
    assert done.logprob == pytest.approx(total, abs=1e-3)


def test_a_prompt_that_does_not_fit_is_refused_with_numbers(model: LocalModel) -> None:
    with pytest.raises(ModelError, match=r"prompt of 20\d\d tokens \+ max_new_tokens 8 .* 1024"):
        model.generate(chat("x" * 2000), max_new_tokens=8)


def test_a_grammar_holds_what_is_written(model: LocalModel) -> None:
    done = model.generate(chat("x"), max_new_tokens=30, grammar=Grammar("lark", 'start: ("ab" | "cd")~3'), n=1)[0]
    assert len(done.text) == 6 and set(done.text) <= set("abcd") and done.finish_reason == "stop"


@pytest.mark.parametrize(
    ("grammar", "stop", "text"),
    [
        (Grammar("lark", 'start: "ab;"'), ";", "ab"),
        (Grammar("lark", 'start: "ab;"'), "nowhere", "ab;"),
        (Grammar("json_schema", '{"enum": [{"a": "x"}]}'), "}", '{"a": "x"'),
    ],
)
def test_a_stop_string_that_ends_a_grammar_is_no_part_of_the_text(
    grammar: Grammar, stop: str, text: str, model: LocalModel
) -> None:
    done = model.generate(chat("x"), max_new_tokens=20, grammar=grammar, stop=[stop])[0]
    assert (done.text, done.finish_reason) == (text, "stop")


def test_a_malformed_grammar_is_refused(model: LocalModel) -> None:
    with pytest.raises(ModelError, match="grammar is malformed"):
        model.generate(chat("x"), max_new_tokens=8, grammar=Grammar("lark", "start: ("))


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(-1.0), Sampling(1.0, 0.0), Sampling(1.0, 1.5)])
def test_sampling_that_is_none_is_refused(model: LocalModel, sampling: Sampling) -> None:
    with pytest.raises(UsageError, match="sampling=None decodes greedily"):
        model.generate(chat("x"), max_new_tokens=2, sampling=sampling)


def test_one_text_is_no_list_of_stop_strings(model: LocalModel, tmp_path: Path) -> None:
    """Each of its letters would end the answer."""
    models: list[Model] = [model, CachedModel(model, tmp_path / "answers.sqlite"), ScriptedModel(["SELECT 1; --"])]
    for each in models:
        with pytest.raises(UsageError, match="expected a list of them"):
            each.generate(chat("x"), max_new_tokens=9, stop="Observation:")


def test_zero_completions_are_refused(model: LocalModel) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        model.generate(chat("x"), max_new_tokens=8, n=0)


def test_cancel_ends_one_call_and_leaves_the_others() -> None:
    model = local(batch_size=4)
    cancel = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        doomed = threads.submit(model.generate, chat("a"), max_new_tokens=800, cancel=cancel, stop=["\0never"])
        other = threads.submit(model.generate, chat("b"), max_new_tokens=60)
        time.sleep(0.05)
        cancel.set()
        with pytest.raises(Cancelled):
            doomed.result(timeout=10)
        assert other.result(timeout=10)[0].text == model.generate(chat("b"), max_new_tokens=60)[0].text
    model.close()


def test_close_cancels_what_is_in_flight_and_refuses_more() -> None:
    hf = tiny_model()
    model = LocalModel(hf, tiny_tokenizer(), name="x", revision="test", batch_size=1)
    slow = threading.Event()
    hf.register_forward_pre_hook(lambda *_: (slow.set(), time.sleep(0.01))[1])
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(model.generate, chat(p), max_new_tokens=900) for p in "ab"]
        slow.wait(5)
        model.close()
        for call in calls:
            with pytest.raises((Cancelled, ModelError), match="closed"):
                call.result(timeout=10)
    with pytest.raises(ModelError, match="closed"):
        model.generate(chat("c"), max_new_tokens=1)


def test_a_request_that_raises_does_not_take_the_others_down() -> None:
    hf = tiny_model()
    model = LocalModel(hf, tiny_tokenizer(), name="x", revision="test", batch_size=4)
    expected = {p: model.generate(chat(p), max_new_tokens=40)[0].text for p in PROMPTS[:6]}
    poison = tiny_tokenizer()("\x01", add_special_tokens=False)["input_ids"][0]

    def refuse(_module: Any, args: Any, kwargs: Any) -> None:
        if (kwargs["input_ids"] == poison).any():
            raise RuntimeError("out of memory, say")

    hf.register_forward_pre_hook(refuse, with_kwargs=True)
    with ThreadPoolExecutor(8) as threads:
        good = {p: threads.submit(model.generate, chat(p), max_new_tokens=40) for p in expected}
        bad = threads.submit(model.generate, chat("poison \x01"), max_new_tokens=40)
        with pytest.raises(ModelError, match="RuntimeError: out of memory, say"):
            bad.result(timeout=30)
        assert {p: call.result(timeout=30)[0].text for p, call in good.items()} == expected
    model.close()


def test_a_failing_step_is_attributed_and_the_worker_survives() -> None:
    hf = tiny_model()
    model = LocalModel(hf, tiny_tokenizer(), name="x", revision="test", batch_size=4)
    expected = model.generate(chat("b"), max_new_tokens=10)[0].text
    failures = [RuntimeError("a step failed")]

    def fail_once(_module: Any, _args: Any, kwargs: Any) -> None:
        if kwargs["input_ids"].shape[1] == 1 and failures:
            raise failures.pop()

    hf.register_forward_pre_hook(fail_once, with_kwargs=True)
    with pytest.raises(ModelError, match="a step failed"):
        model.generate(chat("a"), max_new_tokens=10)
    assert model.generate(chat("b"), max_new_tokens=10)[0].text == expected
    model.close()


def test_a_cache_that_would_not_fit_in_memory_is_an_error_with_numbers() -> None:
    model = local(batch_size=4, max_cache_bytes=200_000)
    assert model.generate(chat("small"), max_new_tokens=4)[0].text
    with pytest.raises(ModelError, match=r"GB of cache, more than the 0.00 GB allowed"):
        model.generate(chat("x" * 700), max_new_tokens=4)
    assert model.generate(chat("small"), max_new_tokens=4)[0].text
    model.close()


def test_a_model_without_chat_template_gets_the_plain_prompt() -> None:
    from nl2sql.models.chat import plain_prompt

    assert plain_prompt(chat("Q")) == "You write SQL.\n\nUser: Q\n\nAssistant:\n"
    model = LocalModel(tiny_model(), tiny_tokenizer(None), name="base", revision="test")
    assert model.count_tokens(chat("Q"), "SELECT") == len(plain_prompt(chat("Q")) + "SELECT")
    model.close()


def test_a_template_without_system_role_gets_the_system_text_in_the_first_user_turn() -> None:
    from nl2sql.models.chat import Chat

    picky = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer = tiny_tokenizer(picky + "<{{ m['content'] }}>{% endfor %}")
    asked = Chat(tokenizer, None)
    assert asked.decode(asked.prompt_ids(chat("Q"), "S")) == "<You write SQL.\n\nQ>S"


def test_a_template_that_passes_over_a_system_text_gets_it_in_the_first_user_turn() -> None:
    from nl2sql.models.chat import Chat

    only_users = "{% for m in messages %}{% if m['role'] == 'user' %}<{{ m['content'] }}>{% endif %}{% endfor %}"
    asked = Chat(tiny_tokenizer(only_users), None)
    assert asked.prompt_text(chat("Q"), "S") == "<You write SQL.\n\nQ>S"


def test_counting_tokens_is_safe_from_many_threads(model: LocalModel) -> None:
    with ThreadPoolExecutor(8) as threads:
        counts = list(threads.map(lambda i: model.count_tokens(chat("x" * (i % 7))), range(400)))
    assert counts[:7] == [counts[0] + i for i in range(7)]


def test_describe_names_what_a_manifest_needs(model: LocalModel) -> None:
    facts = model.describe()
    assert facts["name"] == "llama" and facts["device"] == "cpu" and facts["dtype"] == "float32"
    assert {"revision", "batch_size", "torch", "transformers", "threads"} <= facts.keys()
