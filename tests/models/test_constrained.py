"""Grammars over token ids: what is allowed, where it stops, what a user is told."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from models.tiny import tiny_tokenizer

from nl2sql.errors import ModelError
from nl2sql.interfaces import Grammar
from nl2sql.models.rows import Constrainer, GrammarState

pytest.importorskip("llguidance")

CALL = Grammar("lark", 'start: "Thought: " /[^\\n]{0,40}/ "\\nAction: " ("run_sql" | "finish") "[{}]"')
LIST = Grammar("lark", 'start: " " item (", " item)~0..3 ";"?\nitem: "a" | "bc"')
ONLY_N = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
ARGS = Grammar("json_schema", json.dumps(ONLY_N))
N_VOCAB = 300  # the tiny tokenizer has 259 tokens: as with real models, the logits are wider
STOPS = (0, 2)


@pytest.fixture(scope="module")
def tiny() -> Constrainer:
    return Constrainer(tiny_tokenizer(), N_VOCAB, STOPS)


@pytest.fixture(scope="module")
def real() -> tuple[Any, Constrainer]:
    """The embedded model's tokenizer: byte-level BPE with tokens such as ``[{`` and ``}]``."""
    from transformers import AutoTokenizer

    from nl2sql.models.embedded import pull

    tokenizer = AutoTokenizer.from_pretrained(pull("smollm2-135m"))
    return tokenizer, Constrainer(tokenizer, 49152, (0, 2))


def allowed(state: GrammarState, n_vocab: int = N_VOCAB) -> set[int]:
    logits = torch.zeros(n_vocab)
    state.mask(logits)
    return set(torch.nonzero(logits == 0)[:, 0].tolist())


def walk(state: GrammarState, stops: Iterable[int], seed: int, n_vocab: int, limit: int = 400) -> list[int]:
    """Tokens drawn at random among the allowed ones, until the text ends."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = []
    while not state.stopped and len(ids) < limit:
        logits = torch.randn(n_vocab, generator=generator)
        state.mask(logits)
        token = int(logits.argmax())
        if token in stops:
            break
        state.consume(token)
        ids.append(token)
    return ids


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_logits_the_text_follows_the_grammar(tiny: Constrainer, seed: int) -> None:
    tokenizer = tiny_tokenizer()
    for grammar, pattern in (
        (CALL, r"Thought: [^\n]{0,40}\nAction: (run_sql|finish)\[\{\}\]"),
        (LIST, r" (a|bc)(, (a|bc)){0,3};?"),
        (ARGS, r'\{"n": [12]\}'),
    ):
        text = tokenizer.decode(walk(tiny.start(grammar), STOPS, seed, N_VOCAB))
        assert re.fullmatch(pattern, text), text


def test_a_text_that_can_only_end_is_stopped_and_one_that_may_go_on_is_not(tiny: Constrainer) -> None:
    tokenizer, state = tiny_tokenizer(), tiny.start(LIST)
    for token in tokenizer(" a, bc")["input_ids"]:
        assert not state.accepting or tokenizer.decode([token]) in ",b"
        state.consume(token)
    assert state.accepting and not state.stopped
    assert {tokenizer.decode([i]) for i in allowed(state) - set(STOPS)} == {",", ";"}
    assert allowed(state) >= set(STOPS)
    state.consume(tokenizer(";")["input_ids"][0])
    assert state.stopped and allowed(state) == set(STOPS)
    state.consume(2)  # the end of the turn
    assert state.stopped


def test_padding_and_special_tokens_are_never_text(tiny: Constrainer) -> None:
    state = tiny.start(Grammar("lark", "start: /(.|\\n)+/"))
    assert allowed(state) & {0, 1, 2, *range(259, N_VOCAB)} == set()


def test_what_is_allowed_is_what_the_mask_leaves_and_what_is_forced_is_all_it_leaves(tiny: Constrainer) -> None:
    state, tokenizer = tiny.start(CALL), tiny_tokenizer()
    assert tokenizer.decode(state.forced()) == "Thought: "
    for token in tokenizer("Thought: a\nAction: run_sql[{}]")["input_ids"]:
        left = allowed(state)
        assert {i for i in range(N_VOCAB) if state.allows(i)} == left and token in left
        assert not state.forced() or left == {state.forced()[0]}
        state.consume(token)
    assert state.stopped and state.forced() == [] and {i for i in range(N_VOCAB) if state.allows(i)} == set(STOPS)


def test_a_grammar_is_compiled_once_and_rows_do_not_disturb_each_other(tiny: Constrainer) -> None:
    constrainer = Constrainer(tiny_tokenizer(), N_VOCAB, STOPS)
    with ThreadPoolExecutor(8) as threads:
        started = list(threads.map(constrainer.start, [LIST, CALL] * 8))
    assert constrainer._compiled.cache_info().misses == 2
    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(lambda state: walk(state, STOPS, 3, N_VOCAB), started))
    assert texts[::2] == [texts[0]] * 8 and texts[1::2] == [texts[1]] * 8


def test_the_oldest_grammar_goes_first(tiny: Constrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nl2sql.models.rows.CACHED", 2)
    constrainer = Constrainer(tiny_tokenizer(), N_VOCAB, STOPS)
    for grammar in (CALL, LIST, CALL, ARGS):
        constrainer.start(grammar)
    assert constrainer._compiled.cache_info()[:2] == (1, 3)  # hits, misses
    constrainer.start(LIST)
    assert constrainer._compiled.cache_info().misses == 4


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Grammar("lark", "start: nothing"), 'unknown name: "nothing"'),
        (Grammar("lark", "start: ("), "malformed"),
        (Grammar("json_schema", "{"), "malformed"),
        (Grammar("json_schema", '{"type": "nonsense"}'), "malformed"),
    ],
)
def test_a_malformed_grammar_is_one_line(tiny: Constrainer, grammar: Grammar, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        tiny.start(grammar)
    assert "\n" not in str(caught.value)


def test_a_token_outside_the_grammar_is_an_error(tiny: Constrainer) -> None:
    with pytest.raises(ModelError, match="does not follow the grammar"):
        tiny.start(CALL).consume(100)


def test_without_llguidance_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ModelError, match=r"pip install .*\[grammar\]'"):
        Constrainer(tiny_tokenizer(), N_VOCAB, STOPS).start(CALL)


@pytest.mark.parametrize(("tokenizer", "stops", "said"), [(object(), STOPS, "tokenizer"), (None, (), "end-of-turn")])
def test_what_llguidance_cannot_use_is_said(tokenizer: Any, stops: tuple[int, ...], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        Constrainer(tokenizer or tiny_tokenizer(), N_VOCAB, stops).start(CALL)


@pytest.mark.model
def test_with_a_real_tokenizer_the_usual_tokens_are_allowed(real: tuple[Any, Constrainer]) -> None:
    tokenizer, constrainer = real
    state = constrainer.start(CALL)
    for token in tokenizer("Thought: I know enough.\nAction: run_sql[{}]", add_special_tokens=False)["input_ids"]:
        assert token in allowed(state, 49152)
        state.consume(token)
    assert state.stopped


@pytest.mark.model
@pytest.mark.parametrize("seed", range(5))
def test_with_a_real_tokenizer_random_logits_follow_the_grammar(real: tuple[Any, Constrainer], seed: int) -> None:
    tokenizer, constrainer = real
    text = tokenizer.decode(walk(constrainer.start(CALL), (0, 2), seed, 49152))
    assert re.fullmatch(r"Thought: [^\n]{0,40}\nAction: (run_sql|finish)\[\{\}\]", text), text
