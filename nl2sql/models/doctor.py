"""Checks of a local model on this machine: does the engine compute what the model itself computes?

The checks use the model's own prompts of the packaged loop's shape: a system text, a schema, an open assistant turn
that grows. Not covered: HTTP servers, the quality of answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nl2sql.errors import ModelError, one_line
from nl2sql.interfaces import Grammar, Model
from nl2sql.models.llamacpp import LlamaCppModel
from nl2sql.models.load import Source, load_parts, runs_on_llamacpp
from nl2sql.models.local import VARIABLE, LocalModel, memory_limit

TOLERANCE = {"float32": 1e-4, "bfloat16": 0.08, "float16": 0.02}  # of the largest logit
ROWS = 16  # side by side: enough that a row mixed up with another one shows
NEW_TOKENS = 24  # about one query
_COLUMNS = ("id", "name", "city", "status", "total", "date", "price", "phone", "country", "state", "code", "amount")


Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One finding. status: ``ok``, ``warn`` (works, with a drawback) or ``fail``."""

    name: str
    status: Status
    detail: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def check_model(source: Source, *, device: str = "auto", dtype: str | None = None) -> Iterator[Check]:
    """Load the model and check it; yields each finding as it is made. Raises what loading raises."""
    started = time.perf_counter()
    if runs_on_llamacpp(source, "auto", device, dtype):
        yield from _check_llamacpp(source)
        return
    loaded = load_parts(source, device=device, dtype=dtype)
    model, tokenizer = loaded.parts
    kind = str(model.dtype).removeprefix("torch.")
    yield Check("loading", "ok", f"{loaded.name} in {kind} on {model.device} in {time.perf_counter() - started:.1f} s")
    yield _template(tokenizer)
    conversations = [_conversation(n) for n in range(ROWS)]
    fresh = _fresh_logits(model, tokenizer, conversations[0])  # before the engine takes the model over
    mine = LocalModel(model, tokenizer, name=loaded.name, revision=loaded.revision, batch_size=ROWS)
    try:
        if mine.describe()["engine"] == "slots":
            yield Check("engine", "ok", "rows are batched over slots of their own")
        else:
            yield Check("engine", "warn", "this model's attention does not fit batched slots: one row at a time")
        yield _reuse(mine, fresh, conversations[0], kind)
        try:
            yield _batches(mine, conversations, kind)
        except ModelError as error:  # no text can be written at all
            yield Check("same text in any batch", "fail", str(error))
            return
        yield _grammar(mine)
        yield _speed(mine, conversations)
        yield _memory(mine.cache_bytes, mine.cache_limit)
    finally:
        mine.close()


def _check_llamacpp(source: Source) -> Iterator[Check]:
    started = time.perf_counter()
    with closing(LlamaCppModel.load(source, batch_size=ROWS)) as model:
        told = f"{model.name} on llama.cpp, {model.threads} threads, in {time.perf_counter() - started:.1f} s"
        yield Check("loading", "ok", told)
        yield _template(model.tokenizer)
        conversations = [_conversation(n) for n in range(ROWS)]
        messages, turns = conversations[0]
        usages = [model.generate(messages, prefill=turn, max_new_tokens=1)[0].usage for turn in turns]
        reused = f"{sum(u.reused_tokens for u in usages)} of {sum(u.prompt_tokens for u in usages)} tokens reused"
        yield Check("reused cache", "ok" if usages[-1].reused_tokens else "warn", reused)
        yield _batches(model, conversations, "quantised")
        yield _grammar(model)
        yield _speed(model, conversations)
        yield _memory(model.cache_bytes, memory_limit(), f" for {model.cells:,} tokens")


Conversation = tuple[list[dict[str, str]], list[str]]  # messages, and the open assistant turn as it grows


def _conversation(n: int) -> Conversation:
    columns = ", ".join(_COLUMNS[(n + i) % len(_COLUMNS)] for i in range(6 + n % 5))
    messages = [
        {"role": "system", "content": "You answer questions about a SQLite database, step by step."},
        {"role": "user", "content": f"Schema:\ntable_{n}({columns})\n\nQuestion: which rows have the highest value?"},
    ]
    turns = ["", "Thought: look at the schema.\n", "Thought: look at the schema.\nObservation: 3 rows\nThought:"]
    return messages, turns


def _fresh_logits(model: Any, tokenizer: Any, conversation: Conversation) -> list[Any]:
    """Float32 logits after each state of the conversation, by one plain forward each."""
    import torch

    from nl2sql.models.chat import Chat

    chat = Chat(tokenizer, model.generation_config.eos_token_id)
    messages, turns = conversation
    logits = []
    with torch.inference_mode():
        for turn in turns:
            ids = torch.tensor([chat.prompt_ids(messages, turn)], device=model.device)
            logits.append(model(input_ids=ids, use_cache=False).logits[0, -1].float().cpu())
    return logits


def _reuse(model: LocalModel, fresh: Sequence[Any], conversation: Conversation, dtype: str) -> Check:
    messages, turns = conversation
    differences: list[float] = []
    reused = whole = 0
    for turn, expected in zip(turns, fresh, strict=True):
        logits, held = model.next_logits(messages, turn)
        differences.append(float((logits - expected).abs().max() / expected.abs().max()))
        reused, whole = reused + held, whole + len(model.prompt_ids(messages, turn))
    limit = TOLERANCE.get(dtype, 0.08)
    worst = max(differences, key=lambda difference: (math.isnan(difference), difference))
    detail = f"largest difference {worst:.1e} of the largest logit (limit {limit:.0e})"
    good = all(difference <= limit for difference in differences)  # NaN compares as False
    status: Status = "fail" if not good else "ok" if reused else "warn"
    return Check("reused cache = fresh", status, f"{detail}, {reused} of {whole} tokens reused")


def _batches(model: Model, conversations: Sequence[Conversation], dtype: str) -> Check:
    def text(conversation: Conversation) -> str:
        return model.generate(conversation[0], prefill=conversation[1][-1], max_new_tokens=NEW_TOKENS)[0].text

    alone = [text(conversation) for conversation in conversations]
    with ThreadPoolExecutor(len(conversations)) as threads:
        together = list(threads.map(text, conversations))
    same = sum(a == b for a, b in zip(alone, together, strict=True))
    detail = f"{same} of {len(alone)} greedy texts are the same alone and in a batch of {len(alone)}"
    status: Status = "ok" if same == len(alone) else "fail" if dtype == "float32" else "warn"
    more = "; --dtype float32 is the lane where all are" if status == "warn" else ""
    return Check("same text in any batch", status, f"{detail}{more}")


def _template(tokenizer: Any) -> Check:
    """Is a rendered conversation the beginning of its own continuation?"""
    if not getattr(tokenizer, "chat_template", None):
        return Check("chat template", "warn", "none: a plain User/Assistant prompt is used (a base model?)")
    ask = [{"role": "user", "content": "Q1"}]
    more = [*ask, {"role": "assistant", "content": "<think>\nT\n</think>\nA1"}, {"role": "user", "content": "Q2"}]
    try:
        before = tokenizer.apply_chat_template(more[:2], tokenize=False)
        after = tokenizer.apply_chat_template(more, tokenize=False)
    except Exception as error:  # noqa: BLE001  a template is a program: say what it said
        return Check("chat template", "warn", f"refuses a two-turn conversation: {one_line(error, 120)}")
    if after.startswith(before.rstrip()):
        return Check("chat template", "ok", "keeps earlier turns as they are")
    return Check("chat template", "warn", "rewrites earlier turns: their cache is reused up to the first change only")


def _grammar(model: Model) -> Check:
    grammar = Grammar("lark", 'start: "Action: " ("run_sql" | "finish") "[{}]"')
    try:
        text = model.generate(_conversation(0)[0], max_new_tokens=32, grammar=grammar)[0].text
    except ModelError as error:
        return Check("grammars", "warn", str(error))
    held = text in ("Action: run_sql[{}]", "Action: finish[{}]")
    return Check("grammars", "ok" if held else "fail", f"constrained text: {text!r}")


def _memory(held: int, limit: int, more: str = "") -> Check:
    told = f"{held / 1e6:.0f} MB of keys and values{more}, of {limit / 1e9:.1f} GB allowed ({VARIABLE} sets it)"
    return Check("memory", "ok", told)


def _speed(model: Model, conversations: Sequence[Conversation]) -> Check:
    def rate(work: Callable[[], int]) -> float:
        started = time.perf_counter()
        return work() / (time.perf_counter() - started)

    def generate(n: int) -> int:
        messages = conversations[n % ROWS][0]
        # No line of this prompt was written before, and nothing in it can be drafted from.
        completions = model.generate(messages, prefill=f"{n} ", max_new_tokens=NEW_TOKENS)
        return completions[0].usage.completion_tokens

    def crowd() -> int:
        with ThreadPoolExecutor(ROWS) as threads:
            return sum(threads.map(generate, range(100, 100 + ROWS)))

    alone, together = rate(lambda: generate(99)), rate(crowd)
    return Check("speed", "ok", f"{alone:.0f} new tokens/s alone, {together:.0f} with {ROWS} at once")
