"""One completion in the making: its prompt and limits, its tokens so far, and when it is done.

>>> cut_at_stop("SELECT 1; SELECT 2", [";"])
'SELECT 1'
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from nl2sql.errors import ModelError, one_line
from nl2sql.interfaces import Sampling
from nl2sql.models.constrained import GrammarState
from nl2sql.models.drafts import Draft
from nl2sql.models.slots import Slot


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
                text = cut_at_stop(decode(self.ids), self.stop)
                if text is not None:
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


def cut_at_stop(text: str, stop: Sequence[str]) -> str | None:
    """``text`` up to the first of the stop strings; None where it holds none."""
    cut = min((at for at in map(text.find, stop) if at >= 0), default=-1)
    return text[:cut] if cut >= 0 else None


def model_failed(error: BaseException) -> ModelError:
    """The error that a caller is told of an exception while computing."""
    return ModelError(f"the model failed: {type(error).__name__}: {one_line(error, 300)}")
