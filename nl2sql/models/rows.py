"""One completion in the making: its grammar at the token level, its drafts, its prompt, limits and tokens.

>>> Draft([5, 6, 7, 8, 5, 6]).propose(limit=2)
[7, 8]
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from nl2sql.errors import ModelError, one_line
from nl2sql.interfaces import Grammar, Sampling
from nl2sql.machine import install_command
from nl2sql.models.chat import cut_at
from nl2sql.models.slots import Slot

if TYPE_CHECKING:
    from llguidance import LLMatcher


# ---------------------------------------------------------------------- grammars at the token level
# A ``Constrainer`` belongs to a tokenizer, a ``GrammarState`` to one row of a batch. A grammar
# describes the newly generated text from its first character; the end-of-turn tokens are allowed
# exactly where that text may end. llguidance is an optional dependency (extra ``grammar``),
# imported on first use. What the grammars say is written in ``nl2sql.agents.grammars.select``. Not
# covered: Python ("slow") tokenizers.

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
        self._compiled = lru_cache(CACHED)(self._compile)
        self._lock = threading.Lock()

    def start(self, grammar: Grammar) -> GrammarState:
        """The state of a new row under ``grammar``, compiled on first use.

        Raises ModelError for a malformed grammar, a tokenizer that llguidance cannot read, or without llguidance.
        """
        with self._lock:
            return GrammarState(self._compiled(grammar).deep_copy(), self._n_vocab, self._stop_ids)

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


# ------------------------------------------------------------------------------------------- drafts
# What a loop writes repeats itself: names from the schema, the query again, the last thought again.
# The last two or three tokens are looked up in the row's own tokens, and what followed them there
# is proposed. The engine computes a proposal in one forward and keeps the part that the model would
# have chosen anyway, so the text does not change.

LONGEST = 8  # tokens proposed at most
_SMOOTH = 0.8  # weight of the past in the running share of accepted tokens
_GRAMS = (3, 2)  # looked up in this order


class Draft:
    """The lookup table of one row, and how many tokens it is worth proposing. prompt: the row's tokens so far."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._after: dict[tuple[int, ...], int] = {}  # the last tokens -> where what follows them begins, at its latest
        self._indexed = 0
        self._accepted_share = 0.5
        self._index()

    def extend(self, new: Sequence[int]) -> None:
        """Tell it what was chosen."""
        self._index()  # of what lies before: a key at the very end has nothing behind it yet
        self._tokens.extend(new)

    def propose(self, limit: int) -> list[int]:
        """At most ``limit`` tokens that may follow; none where the last tokens never occurred before."""
        limit = min(limit, round(LONGEST * self._accepted_share) + 1)
        if limit <= 0:
            return []
        for size in _GRAMS:
            at = self._after.get(tuple(self._tokens[-size:]))
            if at is not None:
                return self._tokens[at : at + limit]
        return []

    def learn(self, proposed: int, accepted: int) -> None:
        """Tell it how many of the proposed tokens were right."""
        if proposed:
            self._accepted_share = _SMOOTH * self._accepted_share + (1 - _SMOOTH) * accepted / proposed

    def _index(self) -> None:
        tokens = self._tokens
        for end in range(max(self._indexed, 2), len(tokens)):
            for size in _GRAMS:
                if end >= size:
                    self._after[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)


# ------------------------------------------------------------------------------------------ the row


@dataclass(eq=False)
class Row:
    """One completion in the making. The caller waits for ``done`` and then reads ``text`` or ``error``."""

    prompt: list[int]
    max_new_tokens: int
    stop_ids: frozenset[int]
    stop: tuple[str, ...] = ()
    sampling: Sampling | None = None
    seed: int = 0
    cancel: threading.Event | None = None
    grammar: GrammarState | None = None
    alone: bool = True  # else one of several completions of a prompt: no conversation goes on behind it
    text: str = ""
    finish: Literal["stop", "length"] = "stop"
    logprob: float = 0.0
    keep_logits: bool = False
    logits: torch.Tensor | None = None  # the last chosen token's, float32 [vocab], if they are to be kept
    prefilled: int = 0  # prompt tokens really computed
    ids: list[int] = field(default_factory=list)
    error: Exception | None = None
    abandoned: bool = False  # the caller no longer waits
    done: threading.Event = field(default_factory=threading.Event)
    submitted: float = 0.0  # when, by time.perf_counter
    began: float = 0.0  # when its first forward began
    compute_seconds: float = 0.0  # its share of the forwards it took part in, by tokens
    generator: torch.Generator | None = None
    array: np.ndarray = field(init=False)  # of the prompt, int64
    draft: Draft = field(init=False)
    proposed: list[int] = field(default_factory=list)  # the draft that is being computed
    slot: Slot | None = None
    leader: Row | None = None  # computes a prefix that this row waits for ...
    shared: int = 0  # ... of this many tokens

    def __post_init__(self) -> None:
        self.array = np.asarray(self.prompt, dtype=np.int64)
        self.draft = Draft(self.prompt)

    def propose(self, limit: int) -> list[int]:
        """A draft of at most ``limit`` tokens: what the grammar demands, else what followed the last tokens before."""
        limit = min(limit, self.max_new_tokens - len(self.ids) - 1)
        forced = self.grammar.forced() if self.grammar is not None else []
        return forced[:limit] if forced and limit > 0 else self.draft.propose(limit)

    def sample(self, logits: torch.Tensor) -> int:
        """One token by temperature and nucleus sampling, from the row's own generator."""
        assert self.sampling is not None
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(self.seed)
        probabilities, tokens = nucleus((logits / self.sampling.temperature).softmax(-1).numpy(), self.sampling.top_p)
        up_to = probabilities.cumsum(dtype=np.float64)
        drawn = float(torch.rand(1, dtype=torch.float64, generator=self.generator)) * up_to[-1]
        return int(tokens[min(np.searchsorted(up_to, drawn, side="right"), len(tokens) - 1)])

    def finished_by(self, token: int, decode: Callable[[Sequence[int]], str]) -> bool:
        """Whether ``token``, the last one, ends the row; then sets ``text`` and ``finish``."""
        if token in self.stop_ids:
            self.text, self.finish = decode(self.ids[:-1]), "stop"
            return True
        if self.grammar is not None:
            self.grammar.consume(token)
        if self.stop:
            # Every token is at least a byte, so a stop string that ends here lies within this many tokens.
            tail = decode(self.ids[-(max(len(s.encode()) for s in self.stop) + 8) :])
            if any(s in tail for s in self.stop):
                text, cut = cut_at(decode(self.ids), self.stop)
                if cut:
                    self.text, self.finish = text, "stop"
                    return True
        if self.grammar is not None and self.grammar.stopped:  # behind the stops: a grammar may end with one
            self.text, self.finish = decode(self.ids), "stop"
            return True
        if len(self.ids) >= self.max_new_tokens:
            self.text, self.finish = decode(self.ids), "length"
            return True
        return False

    @property
    def unwanted(self) -> bool:
        return self.abandoned or (self.cancel is not None and self.cancel.is_set())

    @property
    def queue_seconds(self) -> float:
        return self.began - self.submitted if self.began else 0.0


def likeliest(logits: torch.Tensor) -> int:
    """The token with the largest of ``logits`` ``[vocab]``, on CPU; of equal ones the first."""
    return int(logits.numpy().argmax())  # twenty times as fast as torch's


def nucleus(probabilities: np.ndarray, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens that reach ``top_p`` together: their probabilities, and the tokens themselves, rising.

    By token and not by rank, so that a rounding which lets two tokens change places changes no draw.
    Raises ModelError where the probabilities are not numbers.

    >>> nucleus(np.array([0.1, 0.6, 0.0, 0.3]), 0.7)[1].tolist()
    [1, 3]
    """
    for floor in (1e-4, 1e-6, 0.0):  # sorting a whole vocabulary takes as long as a small model's forward
        tokens = np.flatnonzero(probabilities > floor)
        kept = probabilities[tokens]
        if kept.sum() >= top_p:
            break
    if not len(tokens):
        raise ModelError("the model's probabilities are not numbers (NaN); try --dtype float32")
    order = np.argsort(-kept, kind="stable")
    inside = int(np.searchsorted(kept[order].cumsum(dtype=np.float64), top_p)) + 1
    chosen = np.sort(order[:inside])
    return kept[chosen], tokens[chosen]
