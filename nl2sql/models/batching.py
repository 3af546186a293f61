"""One worker thread that serves many callers: rows join and leave the running batch at token steps.

A row's text depends on its own prompt, limits and seed, not on its batch mates (up to floating-point rounding:
see docs/models.md). An exception while computing is attributed to the rows it concerned; the worker goes on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch

from nl2sql.errors import Cancelled, ModelError, Nl2SqlError
from nl2sql.interfaces import Sampling
from nl2sql.models.slots import PREFILL_CHUNK

logger = logging.getLogger(__name__)

_MIN_SHARED = 16  # a shorter common prefix is not worth copying
_SAME_SHARE = 0.7  # a slot that agrees this far is the same conversation; one that agrees less is copied from
_COMPACT_BELOW = 0.75  # active share of the computed rows under which active slots are moved together


class Decoder(Protocol):
    """What the worker needs of a KV cache; see nl2sql.models.slots."""

    slots: int
    tokens: list[list[int]]

    def extend(self, slot: int, new: Sequence[int]) -> torch.Tensor: ...
    def step(self, next_tokens: dict[int, int]) -> torch.Tensor: ...
    def copy_prefix(self, source: int, target: int, length: int) -> None: ...
    def swap(self, a: int, b: int) -> None: ...
    def crop(self, slot: int, length: int) -> None: ...
    def reserve(self, columns: int) -> None: ...


@dataclass(eq=False)
class Row:
    """One completion in the making. The caller waits for ``done`` and then reads ``text`` or ``error``."""

    prompt: list[int]
    max_new_tokens: int
    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    sampling: Sampling | None
    seed: int
    cancel: threading.Event | None
    text: str = ""
    finish: Literal["stop", "length"] = "stop"
    logprob: float = 0.0
    prefilled: int = 0  # prompt tokens really computed
    ids: list[int] = field(default_factory=list)
    error: Exception | None = None
    abandoned: bool = False  # the caller no longer waits
    done: threading.Event = field(default_factory=threading.Event)
    generator: torch.Generator | None = None

    @property
    def unwanted(self) -> bool:
        return self.abandoned or (self.cancel is not None and self.cancel.is_set())


class Worker:
    """Runs rows in batches of at most ``decoder.slots`` on its own daemon thread.

    decode: token ids to text.
    """

    def __init__(self, decoder: Decoder, decode: Callable[[Sequence[int]], str], *, name: str = "nl2sql-model") -> None:
        self._decoder = decoder
        self._decode = decode
        self._waiting: deque[Row] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._active: dict[int, Row] = {}  # slot -> row
        self._used = [0] * decoder.slots  # when each slot was last in use, in ticks
        self._tick = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue rows; each one's ``done`` is set when it has its text or its error."""
        with self._changed:
            if self._closed:
                raise ModelError("the model was closed; load it again")
            self._waiting.extend(rows)
            self._changed.notify()

    def close(self) -> None:
        """Stop; rows still in flight get Cancelled. Waits for the token step in progress."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._active or self._closed):
                    self._changed.wait()
                if self._closed:
                    break
            self._drop_unwanted()
            self._admit()
            self._advance()
        closed = Cancelled("the model was closed while it was answering")
        for row in [*self._active.values(), *self._waiting]:
            self._finish(row, error=closed)
        self._active.clear()
        self._waiting.clear()

    # ------------------------------------------------------------------------------------- joining and leaving

    def _drop_unwanted(self) -> None:
        for slot in [slot for slot, row in self._active.items() if row.unwanted]:
            self._retire(slot, error=Cancelled("cancelled while the model was answering"))
        with self._changed:
            unwanted = [row for row in self._waiting if row.unwanted]
            for row in unwanted:
                self._waiting.remove(row)
        for row in unwanted:
            self._finish(row, error=Cancelled("cancelled while waiting for the model"))

    def _admit(self) -> None:
        while len(self._active) < self._decoder.slots:
            with self._changed:
                if not self._waiting:
                    return
                row = self._waiting.popleft()
            slot = self._take_slot(row.prompt)
            self._active[slot] = row
            try:
                logits = self._prefill(slot, row)
            except Exception as error:  # noqa: BLE001  attributed to this row; the others go on
                self._decoder.crop(slot, 0)
                self._retire(slot, error=error)
                continue
            self._accept([slot], logits[None])

    def _take_slot(self, prompt: list[int]) -> int:
        """A free slot that holds the longest possible head of ``prompt``, cropped to that head."""
        wanted = np.asarray(prompt[:-1])  # the last token is computed anew: its logits are needed
        shared = [_common_prefix(wanted, held) for held in self._decoder.tokens]
        free = [slot for slot in range(self._decoder.slots) if slot not in self._active]
        best = max(range(self._decoder.slots), key=lambda slot: (shared[slot], slot in free))
        if best in free and shared[best] >= _SAME_SHARE * len(self._decoder.tokens[best]) > 0:
            self._decoder.crop(best, shared[best])  # the same conversation, grown
            return best
        target = min(free, key=lambda slot: (len(self._decoder.tokens[slot]) > 0, self._used[slot]))
        self._decoder.crop(target, shared[target])
        if target != best and shared[best] >= max(_MIN_SHARED, shared[target] + 1):
            self._decoder.copy_prefix(best, target, shared[best])
        return target

    def _prefill(self, slot: int, row: Row) -> torch.Tensor:
        held = len(self._decoder.tokens[slot])
        self._decoder.reserve(len(row.prompt) + row.max_new_tokens + 1)
        for start in range(held, len(row.prompt), PREFILL_CHUNK):
            if row.unwanted:
                raise Cancelled("cancelled while the model read the prompt")
            chunk = row.prompt[start : start + PREFILL_CHUNK]
            logits = self._decoder.extend(slot, chunk)
            row.prefilled += len(chunk)
        return logits

    def _retire(self, slot: int, error: Exception | None = None) -> None:
        row = self._active.pop(slot)
        self._tick += 1
        self._used[slot] = self._tick
        self._finish(row, error)

    def _finish(self, row: Row, error: Exception | None = None) -> None:
        if error is not None and not isinstance(error, Nl2SqlError):
            logger.error("the model failed", exc_info=error)
            first = " ".join(str(error).split())[:300]
            error = ModelError(f"the model failed: {type(error).__name__}: {first}")
        row.error = error
        row.done.set()

    # ---------------------------------------------------------------------------------------------- token steps

    def _advance(self) -> None:
        if not self._active:
            return
        try:
            self._compact()
            slots = list(self._active)
            logits = self._decoder.step({slot: self._active[slot].ids[-1] for slot in slots})
        except Exception as error:  # noqa: BLE001  attributed to every row of this step
            for slot in list(self._active):
                self._decoder.crop(slot, 0)
                self._retire(slot, error=error)
            return
        self._accept(slots, logits)

    def _compact(self) -> None:
        """Move active slots to the front when many idle ones would be computed along."""
        if len(self._active) >= _COMPACT_BELOW * (max(self._active) + 1):
            return
        for hole in range(len(self._active)):
            if hole not in self._active:
                last = max(self._active)
                self._decoder.swap(last, hole)
                self._active[hole] = self._active.pop(last)
                self._used[hole], self._used[last] = self._used[last], self._used[hole]

    def _accept(self, slots: list[int], logits: torch.Tensor) -> None:
        """Choose each row's next token from ``logits`` ``[rows, vocab]``; retire rows that are done."""
        greedy = logits.argmax(dim=-1).tolist()
        log_total = logits.logsumexp(dim=-1)
        for index, slot in enumerate(slots):
            row = self._active[slot]
            try:
                token = greedy[index] if row.sampling is None else _sample(logits[index], row)
                row.ids.append(token)
                row.logprob += float(logits[index, token] - log_total[index])
                finished = self._is_finished(row, token)
            except Exception as error:  # noqa: BLE001  attributed to this row; the others go on
                self._retire(slot, error=error)
                continue
            if finished:
                self._retire(slot)

    def _is_finished(self, row: Row, token: int) -> bool:
        if token in row.stop_ids:
            row.text, row.finish = self._decode(row.ids[:-1]), "stop"
            return True
        if row.stop:
            # Every token is at least a byte, so a stop string that ends here lies within this many tokens.
            tail = self._decode(row.ids[-(max(len(s.encode()) for s in row.stop) + 8) :])
            if any(s in tail for s in row.stop):
                text = self._decode(row.ids)
                cut = min((at for at in map(text.find, row.stop) if at >= 0), default=-1)
                if cut >= 0:
                    row.text, row.finish = text[:cut], "stop"
                    return True
        if len(row.ids) >= row.max_new_tokens:
            row.text, row.finish = self._decode(row.ids), "length"
            return True
        return False


def _common_prefix(wanted: np.ndarray, held: Sequence[int]) -> int:
    length = min(len(wanted), len(held))
    differs = np.nonzero(wanted[:length] != np.asarray(held[:length]))[0]
    return int(differs[0]) if len(differs) else length


def _sample(logits: torch.Tensor, row: Row) -> int:
    """One token by temperature and nucleus sampling, from the row's own generator."""
    assert row.sampling is not None
    if row.generator is None:
        row.generator = torch.Generator().manual_seed(row.seed)
    probabilities, order = torch.sort((logits / row.sampling.temperature).softmax(dim=-1), descending=True, stable=True)
    outside = probabilities.cumsum(dim=-1) - probabilities >= row.sampling.top_p
    probabilities[outside] = 0.0
    return int(order[torch.multinomial(probabilities, 1, generator=row.generator)])
