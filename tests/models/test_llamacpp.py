"""The engine llamacpp: a real llama.cpp in its child process, with a tiny model that the torch engine runs as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TOOL_TEMPLATE, tiny_gguf, tiny_model, tiny_tokenizer

from nl2sql.errors import Cancelled, ModelError, UsageError
from nl2sql.interfaces import Grammar, Model, Sampling
from nl2sql.models import load_model
from nl2sql.models.embedded import embedded_model
from nl2sql.models.llamacpp import LlamaCppModel
from nl2sql.models.load import Source, resolve_spec, runs_on_llamacpp
from nl2sql.models.local import LocalModel
from nl2sql.models.weight_files import read_header

ASKED = [{"role": "system", "content": "You write SQL."}, {"role": "user", "content": "How many rows?"}]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "zq", "parameters": {"type": "object"}}}]
LONG = "table_a(id, name, city), table_b(id, total, price), " * 4  # more tokens than are worth sharing


@pytest.fixture(scope="module")
def weights() -> Any:
    made = tiny_model("qwen2")
    with torch.no_grad():
        made.lm_head.weight.mul_(8.0)  # sure of its tokens, so that roundings change no sample
    return made


@pytest.fixture(scope="module")
def gguf(weights: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weights, TOOL_TEMPLATE)


@pytest.fixture(scope="module")
def model(gguf: Path) -> Iterator[Any]:
    made = load_model(str(gguf), batch_size=4)
    yield made
    made.close()


@pytest.fixture(scope="module")
def torch_model(weights: Any) -> Iterator[LocalModel]:
    made = LocalModel(weights, tiny_tokenizer(TOOL_TEMPLATE), name="tiny", revision="1")
    yield made
    made.close()


def ask(model: Model, text: str = "", **options: Any) -> Any:
    messages = [*ASKED[:1], {"role": "user", "content": text}] if text else ASKED
    return model.generate(messages, **{"max_new_tokens": 12, **options})


def test_it_computes_what_the_torch_engine_computes(model: Any, torch_model: LocalModel) -> None:
    assert isinstance(model, LlamaCppModel) and isinstance(model, Model)
    letters = Grammar("lark", "start: /[A-Za-z]{20}/")  # no token is half a character
    for options in ({}, {"prefill": "SELECT "}, {"tools": TOOLS}, {"grammar": letters}, {"stop": ["8"]}):
        (ours,), (theirs,) = ask(torch_model, **options), ask(model, **options)
        assert (theirs.text, theirs.finish_reason) == (ours.text, ours.finish_reason), options
        assert theirs.usage.prompt_tokens == ours.usage.prompt_tokens
        if "grammar" in options:
            assert theirs.logprob == pytest.approx(ours.logprob, abs=0.5), options
            assert theirs.usage.completion_tokens == ours.usage.completion_tokens
    assert model.count_tokens(ASKED, "S", TOOLS) == torch_model.count_tokens(ASKED, "S", TOOLS)


def test_samples_have_seeds_of_their_own_and_come_again(model: Any) -> None:
    options = {"sampling": Sampling(1.0, 0.95), "n": 3, "seed": 7}
    first, again = ask(model, **options), ask(model, **options)
    assert [c.text for c in first] == [c.text for c in again] and len({c.text for c in first}) > 1
    assert ask(model, **{**options, "n": 1})[0].text == first[0].text
    with pytest.raises(UsageError, match="expected both above 0"):
        ask(model, sampling=Sampling(0.0, 0.9))


@pytest.mark.parametrize(
    ("kind", "text", "written"),
    [
        ("lark", 'start: "Action: " ("run_sql" | "finish") "[{}]"', ("Action: run_sql[{}]", "Action: finish[{}]")),
        ("json_schema", '{"enum": ["yes"]}', ('"yes"',)),
    ],
)
def test_grammars_hold(model: Any, kind: Any, text: str, written: tuple[str, ...]) -> None:
    assert ask(model, grammar=Grammar(kind, text), max_new_tokens=40)[0].text.strip() in written


def test_a_malformed_grammar_is_one_line(model: Any) -> None:
    with pytest.raises(ModelError, match="malformed lark grammar"):
        ask(model, grammar=Grammar("lark", "start: nothing"))


def test_rows_that_share_a_beginning_read_it_once(model: Any) -> None:
    with ThreadPoolExecutor(6) as threads:
        rows = list(threads.map(lambda n: ask(model, f"{LONG} question {n}")[0].usage, range(6)))
    whole = rows[0].prompt_tokens
    assert whole > 200 and sum(row.prefill_tokens for row in rows) < whole + 6 * 64
    samples = ask(model, LONG + "another", sampling=Sampling(1.0), n=4, seed=1)
    assert sum(c.usage.prefill_tokens for c in samples) < whole


def test_a_conversation_goes_on_where_it_stood(model: Any) -> None:
    first = ask(model, LONG + "go on", max_new_tokens=8)[0]
    more = ask(model, LONG + "go on", prefill=first.text, max_new_tokens=8)[0]
    assert more.usage.prefill_tokens < 32  # not all 260; half characters do not come back as the same tokens


def test_a_death_costs_the_calls_in_flight_and_no_more(model: Any) -> None:
    before, _ = ask(model)[0].text, ask(model, "a story", max_new_tokens=1)
    os.kill(model._child._processes[0].pid, signal.SIGSTOP)  # so that calls are in flight
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(ask, model, "a story", max_new_tokens=500) for _ in range(2)]
        while not any(slot.row for slot in model._slots._slots):
            time.sleep(0.01)
        os.kill(model._child._processes[0].pid, signal.SIGABRT)
        os.kill(model._child._processes[0].pid, signal.SIGCONT)
        for call in calls:
            with pytest.raises(ModelError, match=r"llama.cpp ended \(signal 6\).*starts it anew"):
                call.result()
    assert ask(model)[0].text == before


def test_a_call_can_be_cancelled(model: Any) -> None:
    cancel = threading.Event()
    os.kill(model._child._processes[0].pid, signal.SIGSTOP)
    threading.Timer(0.2, cancel.set).start()
    try:
        with pytest.raises(Cancelled):
            ask(model, cancel=cancel)
    finally:
        os.kill(model._child._processes[0].pid, signal.SIGCONT)
    assert ask(model)[0].text


def test_the_child_dies_with_its_parent(gguf: Path) -> None:
    code = (
        "import os; from pathlib import Path; from nl2sql.models.llamacpp import LlamaCppModel\n"
        f"m = LlamaCppModel(Path({str(gguf)!r}), name='m')\n"
        "print(m._child._processes[0].pid, m._child.folder, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    child, folder = Path("/proc", done.stdout.split()[0]), Path(done.stdout.split()[1])
    for _ in range(100):
        if not child.exists() and not folder.exists():
            return
        time.sleep(0.1)
    pytest.fail("it lives on, or left its folder")


def test_a_prompt_that_does_not_fit_and_a_closed_model(gguf: Path) -> None:
    made = load_model(str(gguf), batch_size=1, engine="llamacpp")
    with pytest.raises(ModelError, match="exceeds the context window of 1024 tokens"):
        ask(made, LONG * 10)
    made.close()
    with pytest.raises(ModelError, match="closed"):
        ask(made)


def test_too_little_memory_is_said(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_MEMORY_GB", "0.00001")
    with pytest.raises(ModelError, match="set NL2SQL_MEMORY_GB higher"):
        load_model(str(gguf))


def test_files_that_are_no_model_are_one_line(tmp_path: Path, gguf: Path) -> None:
    fake, cut = tmp_path / "fake.gguf", tmp_path / "cut.gguf"
    fake.write_bytes(b"not a gguf file at all")
    cut.write_bytes(gguf.read_bytes()[:-20_000])
    for file, says in ((fake, "does not begin as a GGUF file"), (cut, "llama.cpp cannot load")):
        with pytest.raises(ModelError, match=says) as caught:
            load_model(str(file))
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match=r"ends too early|cannot be read as GGUF"):
        cut.write_bytes(gguf.read_bytes()[:300])
        read_header(cut)


def test_what_runs_on_llamacpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nl2sql.models.load.multiplies_bfloat16", lambda: False)
    small, qwen = resolve_spec("smollm2-135m"), resolve_spec("qwen2.5-coder-0.5b")
    assert runs_on_llamacpp(qwen, "auto") and not runs_on_llamacpp(small, "auto")
    assert runs_on_llamacpp(small, "llamacpp") and not runs_on_llamacpp(qwen, "slots")
    assert not runs_on_llamacpp(qwen, "auto", "auto", "float32") and runs_on_llamacpp(Source("gguf", "x.gguf"), "auto")
    assert runs_on_llamacpp(qwen, "auto", "auto", "auto") and runs_on_llamacpp(qwen, "llamacpp", "cpu", "auto")
    monkeypatch.setattr("nl2sql.models.load.multiplies_bfloat16", lambda: True)
    assert not runs_on_llamacpp(qwen, "auto", "auto", "auto") and runs_on_llamacpp(qwen, "auto")
    assert embedded_model("smollm2-135m", "llamacpp").folder.name == "smollm2-135m-llamacpp"
    with pytest.raises(UsageError, match=r"--engine llamacpp runs embedded models and .gguf files"):
        runs_on_llamacpp(Source("folder", "/x"), "llamacpp")


@pytest.mark.model
def test_the_real_one_counts() -> None:
    if not embedded_model("qwen2.5-coder-0.5b").cached:
        pytest.skip("qwen2.5-coder-0.5b is not in the cache")
    model = load_model("qwen2.5-coder-0.5b", batch_size=1)
    question = [{"role": "user", "content": "One SQLite query, nothing else: how many rows has the table singer?"}]
    text = model.generate(question, prefill="```sql\n", stop=["```"], max_new_tokens=24)[0].text
    model.close()
    assert "count(*) from singer" in text.lower()


def test_the_adapter_can_count_less_in_the_same_process(model: Any) -> None:
    assert model.adapter_at(0.3) is model, "it has none"
    adapted = load_model("smollm2-135m", engine="llamacpp", batch_size=1)
    stock = load_model("smollm2-135m", engine="llamacpp", adapter="none", batch_size=1)
    plain = adapted.adapter_at(0)
    try:
        assert {plain.name, plain.revision}.isdisjoint({adapted.name, adapted.revision})
        first = ask(adapted, LONG)[0]
        ask(plain, LONG[::-1])  # the one slot is without the adapter now, and what LONG came to with it lies saved
        alone, whole, again, other = (ask(each, LONG)[0] for each in (plain, adapted.adapter_at(1), adapted, stock))
        for same in (whole, again):  # what another scale read is not reused
            assert (same.text, same.logprob) == (first.text, pytest.approx(first.logprob, abs=1e-3))
        assert (alone.text, alone.logprob) == (other.text, pytest.approx(other.logprob, abs=0.5))
        assert alone.text != first.text
    finally:
        adapted.close()
        stock.close()
