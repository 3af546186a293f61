"""Grammars at the token level: compile (cached), mask the logits, follow the chosen tokens. llguidance does the work.

A ``Constrainer`` belongs to a tokenizer, a ``GrammarState`` to one row of a batch. A grammar describes the newly
generated text from its first character; the end-of-turn tokens are allowed exactly where that text may end.
llguidance is an optional dependency (extra ``grammar``), imported on first use. What the grammars say is written in
``nl2sql.agents.grammars.select``. Not covered: Python ("slow") tokenizers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nl2sql.errors import ModelError, one_line
from nl2sql.interfaces import Grammar
from nl2sql.machine import install_command

if TYPE_CHECKING:
    from llguidance import LLMatcher

logger = logging.getLogger(__name__)

INSTALL = f"constrained decoding needs llguidance: {install_command('grammar')} (or --constrain none)"
CACHED = 32  # compiled grammars kept per tokenizer; one of a schema of ten tables takes some 13 MB and half a second
# For each byte of a bit mask, what its eight tokens' logits get: 0 where the bit is set, -inf where it is not.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_LIMITS = np.where(_BITS, np.float32(0), np.float32(-np.inf))


class Constrainer:
    """Compiles grammars for one tokenizer and keeps them, the least recently used going first. Thread-safe.

    tokenizer: a fast transformers tokenizer. n_vocab: the width of the model's logits. stop_ids: the tokens that end
    a turn. Cheap to make: llguidance's view of the tokenizer (about a second) is built with the first grammar.
    """

    def __init__(self, tokenizer: Any, n_vocab: int, stop_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._stop_ids = sorted({i for i in stop_ids if 0 <= i < n_vocab})
        self._vocabulary: Any = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, grammar: Grammar) -> GrammarState:
        """The state of a new row under ``grammar``, compiled on first use.

        Raises ModelError for a malformed grammar, a tokenizer that llguidance cannot read, or without llguidance.
        """
        with self._lock:
            compiled = self._compiled.pop(grammar, None)
            if compiled is None:
                compiled = self._compile(grammar)
            self._compiled[grammar] = compiled
            while len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
            return GrammarState(compiled.deep_copy(), self._n_vocab, self._stop_ids)

    def check(self) -> None:
        """Raises ModelError with the line to type when llguidance is missing."""
        try:
            import llguidance  # noqa: F401
        except ImportError:
            raise ModelError(INSTALL) from None

    def _compile(self, grammar: Grammar) -> LLMatcher:
        self.check()
        from llguidance import LLMatcher

        started = time.perf_counter()
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer, self._n_vocab, self._stop_ids)
        try:
            text = _translate(grammar)
        except ValueError as error:
            raise ModelError(f"the {grammar.kind} grammar is malformed: {one_line(error, 300)}") from None
        compiled = LLMatcher(self._vocabulary, text, log_level=0)
        if compiled.is_error():
            raise ModelError(f"the {grammar.kind} grammar is malformed: {one_line(compiled.get_error(), 300)}")
        logger.info(
            "compiled a grammar of %d characters in %.0f ms", len(grammar.text), 1000 * (time.perf_counter() - started)
        )
        return compiled


class GrammarState:
    """The place of one row in its grammar. Not thread-safe."""

    def __init__(self, matcher: LLMatcher, n_vocab: int, stop_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._stop_ids = list(stop_ids)

    def mask(self, logits: torch.Tensor) -> None:
        """Set the logits ``[vocab]`` (on CPU, in place) of every token that must not come next to -inf.

        Raises ModelError when llguidance gives up (a grammar too ambiguous for its limits).
        """
        np.add(logits.numpy(), self._limits(), out=logits.numpy())

    def allows(self, token: int) -> bool:
        """May ``token`` come next? Much cheaper than a mask, and all that a row needs whose best token may."""
        if token in self._stop_ids:
            return self.accepting
        return not self.stopped and self._matcher.validate_tokens([token]) == 1

    def forced(self) -> list[int]:
        """The tokens that must come next, where the grammar leaves no choice."""
        return [] if self.stopped else list(self._matcher.compute_ff_tokens())

    def consume(self, token: int) -> None:
        """Follow the chosen token; one that ends the turn changes nothing.

        Raises ModelError for a token that the grammar does not allow here.
        """
        if token in self._stop_ids:
            return
        if not self._matcher.consume_token(token):
            raise ModelError(f"token {token} does not follow the grammar: {one_line(self._matcher.get_error(), 300)}")

    @property
    def stopped(self) -> bool:
        """Nothing but the end of the turn may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def accepting(self) -> bool:
        """The text so far is complete (more may be allowed)."""
        return bool(self._matcher.is_accepting())

    def _limits(self) -> np.ndarray:
        """float32 ``[vocab]``: 0 for the tokens that may come next, -inf for the others."""
        if self._matcher.is_stopped() and not self._matcher.is_error():
            only_stops = np.full(self._n_vocab, -np.inf, dtype=np.float32)
            only_stops[self._stop_ids] = 0
            return only_stops
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise ModelError(f"the grammar cannot be followed further: {one_line(self._matcher.get_error(), 300)}")
        limits: np.ndarray = _LIMITS[packed].reshape(-1)[: self._n_vocab]
        return limits


def _vocabulary(tokenizer: Any, n_vocab: int, stop_ids: Sequence[int]) -> Any:
    """llguidance's view of a tokenizer; its width is the model's, or the tokenizer's where that has more tokens."""
    from llguidance.hf import from_tokenizer

    if not stop_ids:
        raise ModelError("the model has no end-of-turn token; constrained decoding needs one (--constrain none)")
    reason: Exception | None = None
    for _ in range(5):
        try:
            return from_tokenizer(tokenizer, n_vocab=max(n_vocab, len(tokenizer)), eos_token=list(stop_ids))
        except RuntimeError as error:  # "Already borrowed": another thread is tokenising this very moment
            reason = error
            time.sleep(0.02)
        except (ValueError, TypeError, AttributeError) as error:
            reason = error
            break
    kind = type(tokenizer).__name__
    raise ModelError(f"llguidance cannot read this model's tokenizer ({kind}: {one_line(reason, 300)})")


def _translate(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    # One way to write the blanks: free whitespace lets a small model write blanks until its tokens run out.
    spaced: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return LLMatcher.grammar_from_json_schema(grammar.text, defaults=spaced)
