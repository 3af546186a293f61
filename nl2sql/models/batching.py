"""The engine: worker threads that serve many callers; rows join and leave the batch between two steps.

Every step is one forward over the last token (and a draft of the next ones) of each row that is decoding and up to
PREFILL_CHUNK prompt tokens of rows that have just joined. A row takes over the slot of the conversation it continues,
or copies the longest prefix that any slot holds; where another row is about to compute a longer one, it waits for
that. Slots that no row uses are forgotten in the order of their last use when memory runs out.
A row's text depends on its own prompt, limits and seed, not on its batch mates (up to floating-point rounding:
see docs/models.md). An exception while computing is attributed to the rows it concerned; the worker goes on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

from nl2sql.errors import Cancelled, ModelError, Nl2SqlError, one_line
from nl2sql.models.rows import Row, likeliest
from nl2sql.models.slots import Decoder, Segment, Slot, common_prefix, rounded

# --------------------------------------------------------------------------------------- one worker

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 512  # prompt tokens in one step: bounds activation memory and the time until a cancel is seen
_DRAFT_TOKENS = 128  # proposed in one step by all rows: past that, computing them costs more than they save
_MIN_SHARED = 16  # a shorter common prefix is not worth copying or waiting for
_SAME_SHARE = 0.7  # a slot that agrees this far is the same conversation; one that agrees less is copied from


class BatchWorker:
    """Runs rows in batches of at most ``batch_size`` on its own daemon thread.

    decode: token ids to text. max_cache_bytes: of keys and values, at most. threads: torch's, for this worker's
    operations; None leaves them as they are.
    """

    def __init__(
        self,
        decoder: Decoder,
        decode: Callable[[Sequence[int]], str],
        *,
        batch_size: int,
        max_cache_bytes: int,
        threads: int | None = None,
    ) -> None:
        self.decoder, self._decode, self.batch_size = decoder, decode, batch_size
        self._max_cache_bytes, self._threads = max_cache_bytes, threads
        self._waiting: deque[Row] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._active: list[Row] = []  # in order of arrival
        self._idle: list[Slot] = []
        self._tick = 0
        self.forward_seconds = 0.0  # in the model, and ...
        self.busy_seconds = 0.0  # ... while there was any row, the model included
        self._thread = threading.Thread(target=self._run, name="nl2sql-model", daemon=True)
        self._thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue rows; each one's ``done`` is set when it has its text or its error."""
        now = time.perf_counter()
        with self._changed:
            if self._closed:
                raise ModelError("the model was closed; load it again")
            for row in rows:
                row.submitted = now
            self._waiting.extend(rows)
            self._changed.notify()

    def close(self) -> None:
        """Stop; rows still in flight get Cancelled. Waits for the token step in progress."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=30)

    @property
    def cache_bytes(self) -> int:
        """Memory that all slots take now."""
        return sum(slot.capacity for slot in self._slots()) * self.decoder.token_bytes

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # OpenMP's setting belongs to the thread that sets it
        end: Exception = Cancelled("the model was closed while it was answering")
        try:
            while self._wait_for_work():
                began = time.perf_counter()
                self._drop_unwanted()
                self._admit()
                self._step()
                self.busy_seconds += time.perf_counter() - began
        except BaseException as error:  # a panic inside a library: nobody may wait for ever
            end = ModelError(f"the engine stopped: {type(error).__name__}: {one_line(error, 300)}")
            raise
        finally:
            with self._changed:
                self._closed = True
                left = [*self._active, *self._waiting]
                self._active, self._waiting, self._idle = [], deque(), []
            for row in left:
                self._finish(row, error=end)

    def _wait_for_work(self) -> bool:
        """False when the worker is to stop."""
        with self._changed:
            while not (self._waiting or self._active or self._closed):
                self._changed.wait()
            return not self._closed

    # ------------------------------------------------------------------------------------- joining and leaving

    def _drop_unwanted(self) -> None:
        for row in [row for row in self._active if row.unwanted]:
            self._retire(row, error=Cancelled("cancelled while the model was answering"))
        with self._changed:
            unwanted = [row for row in self._waiting if row.unwanted]
            self._waiting = deque(row for row in self._waiting if row not in unwanted)
        for row in unwanted:
            self._finish(row, error=Cancelled("cancelled while waiting for the model"))

    def _admit(self) -> None:
        while len(self._active) < self.batch_size:
            with self._changed:
                if not self._waiting:
                    return
                row = self._waiting.popleft()
            prompt = row.array[:-1]
            held = max((slot.shared(prompt) for slot in self._slots()), default=0)
            for other in self._active:
                if other.slot is None or len(other.slot.tokens) < len(other.prompt):
                    shared = common_prefix(prompt, other.array)
                    if shared >= max(held, row.shared) + _MIN_SHARED:
                        row.leader, row.shared = other, shared
            self._active.append(row)

    def _ready(self, row: Row) -> bool:
        """Whether ``row`` may be computed now: it has a slot, or gets one."""
        if row.slot is not None:
            return True
        if row.leader is not None:
            ahead = row.leader.slot.tokens if row.leader.slot is not None else ()
            if row.leader in self._active and len(ahead) < row.shared:
                return False
            row.leader = None
        row.slot = self._take_slot(row)
        return row.slot is not None

    def _slots(self) -> list[Slot]:
        return [*self._idle, *(slot for slot in [row.slot for row in list(self._active)] if slot is not None)]

    def _take_slot(self, row: Row) -> Slot | None:
        """A slot that holds the longest possible head of the prompt and has room for the rest.

        None when there is no memory for it before other rows are done. Raises ModelError when there never will be.
        """
        wanted = row.array[:-1]  # the last token is computed anew: its logits are needed
        needed = len(row.prompt) + row.max_new_tokens
        size = rounded(needed) * self.decoder.token_bytes
        if size > self._max_cache_bytes:
            raise ModelError(
                f"a conversation of {needed} tokens needs {size / 1e9:.2f} GB of cache, more than the "
                f"{self._max_cache_bytes / 1e9:.2f} GB allowed; use a shorter prompt, a smaller max_new_tokens, "
                "or free some memory"
            )
        best = max(self._slots(), key=lambda slot: slot.shared(wanted), default=None)
        shared = best.shared(wanted) if best is not None else 0
        same = best in self._idle and shared >= _SAME_SHARE * len(best.tokens) > 0  # the same conversation, grown
        if not self._make_room(size, best if same else None, keep=best):
            return None
        if best is None or not same:
            slot = Slot()
            if best is not None and shared >= _MIN_SHARED:
                self.decoder.copy_prefix(best, slot, shared)
        else:
            slot = best
            self._idle.remove(slot)
            self.decoder.crop(slot, shared)
        self.decoder.reserve(slot, needed)
        return slot

    def _make_room(self, size: int, grown: Slot | None, keep: Slot | None) -> bool:
        """Forget idle slots, the longest unused first, until ``size`` bytes more (or ``grown``, that long) fit in.

        ``keep`` goes last. Nothing is forgotten where that would not be enough.
        """
        per_token = self.decoder.token_bytes
        free = self._max_cache_bytes - self.cache_bytes + (grown.capacity * per_token if grown is not None else 0)
        spare = sorted((idle for idle in self._idle if idle is not grown), key=lambda idle: (idle is keep, idle.used))
        if free + sum(idle.capacity for idle in spare) * per_token < size:
            return False
        while free < size:
            free += spare[0].capacity * per_token
            self._idle.remove(spare.pop(0))
        return True

    def _retire(self, row: Row, error: Exception | None = None) -> None:
        self._active.remove(row)
        if row.slot is not None:
            self._tick += 1
            row.slot.used = self._tick
            known = error is None or isinstance(error, Cancelled)
            if known and (row.alone or not self._held_elsewhere(row)):
                self._idle.append(row.slot)  # after a failure nobody knows what it holds
                if not self.decoder.token_bytes and len(self._idle) > self.batch_size:  # of unknown size: by number
                    self._idle.remove(min(self._idle, key=lambda idle: idle.used))
            row.slot = None
        self._finish(row, error)

    def _held_elsewhere(self, row: Row) -> bool:
        """Whether another slot has all of a row's prompt that a new row can use."""
        prompt = row.array[:-1]
        return any(slot is not row.slot and slot.shared(prompt) == len(prompt) for slot in self._slots())

    def _finish(self, row: Row, error: Exception | None = None) -> None:
        if error is not None and not isinstance(error, Nl2SqlError):
            logger.error("the model failed", exc_info=error)
            error = ModelError(f"the model failed: {type(error).__name__}: {one_line(error, 300)}")
        row.error = error
        row.done.set()

    # ---------------------------------------------------------------------------------------------- token steps

    def _step(self) -> None:
        rows, segments = self._gather()
        if not rows:
            return
        before = [len(segment.slot.tokens) for segment in segments]
        try:
            self._forward(rows, segments)
        except Exception as error:  # noqa: BLE001  attributed to the rows at fault; the others go on
            self._isolate(rows, segments, before, error)

    def _forward(self, rows: list[Row], segments: list[Segment]) -> None:
        began = time.perf_counter()
        logits = self.decoder.forward(segments)
        seconds = time.perf_counter() - began
        self.forward_seconds += seconds
        total = sum(len(segment.tokens) for segment in segments)
        for row, segment in zip(rows, segments, strict=True):
            row.began = row.began or began
            row.compute_seconds += seconds * len(segment.tokens) / total
            row.prefilled += 0 if row.ids else len(segment.tokens)
        self._accept(rows, segments, logits)

    def _isolate(self, rows: list[Row], segments: list[Segment], before: list[int], error: Exception) -> None:
        """A forward failed: run its rows one by one, so that only those at fault end with their error."""
        for row, (slot, new, wanted), held in zip(rows, segments, before, strict=True):
            try:
                if len(rows) == 1:
                    raise error
                self.decoder.crop(slot, held)
                tokens = [*row.prompt, *row.ids, *row.proposed][len(slot.tokens) : held + len(new)]
                self._forward([row], [Segment(slot, tokens, wanted)])
            except Exception as own:  # noqa: BLE001  attributed to this row
                self._retire(row, error=own)

    def _gather(self) -> tuple[list[Row], list[Segment]]:
        """The rows of the next forward and what each adds to its slot."""
        rows: list[Row] = []
        segments: list[Segment] = []
        budget, full = PREFILL_CHUNK, False
        most = max(1, _DRAFT_TOKENS // max(1, len(self._active)))
        for row in list(self._active):
            if row.slot is not None and row.ids:
                if self.decoder.prompt_lookup:
                    row.proposed = row.propose(most)
                rows.append(row)
                segments.append(Segment(row.slot, [row.ids[-1], *row.proposed], 1 + len(row.proposed)))
                continue
            if budget <= 0 or (full and row.slot is None):
                continue
            try:
                if not self._ready(row):
                    full = full or row.leader is None  # no memory: later rows must not overtake this one
                    continue
            except Exception as error:  # noqa: BLE001  attributed to this row; the others go on
                self._retire(row, error=error)
                continue
            assert row.slot is not None
            held = len(row.slot.tokens)
            chunk = row.prompt[held : held + budget]
            budget -= len(chunk)
            rows.append(row)
            segments.append(Segment(row.slot, chunk, int(held + len(chunk) == len(row.prompt))))
        return rows, segments

    @torch.inference_mode()
    def _accept(self, rows: list[Row], segments: list[Segment], logits: torch.Tensor) -> None:
        """Choose the next tokens of the rows whose logits are there; retire rows that are done."""
        first = 0
        for row, segment in zip(rows, segments, strict=True):
            if not segment.logits:
                continue
            last = first + segment.logits
            try:
                finished = self._choose(row, logits[first:last])
            except Exception as error:  # noqa: BLE001  attributed to this row; the others go on
                self._retire(row, error=error)
            else:
                if finished:
                    self._retire(row)
            first = last

    def _choose(self, row: Row, logits: torch.Tensor) -> bool:
        """The tokens after the last one: chosen one by one for as long as the draft is what would have been chosen.

        logits ``[1 + len(row.proposed), vocab]``. True when the row is done.
        """
        assert row.slot is not None
        before, finished = len(row.ids), False
        for n, at in enumerate(logits):
            if row.keep_logits:
                row.logits = at
            total = at.logsumexp(dim=-1)  # before any mask
            if not math.isfinite(total) and not row.keep_logits:
                raise ModelError("the model's logits are not numbers (NaN, or infinite); try --dtype float32")
            greedy = row.sampling is None
            if row.grammar is not None and not (greedy and row.grammar.allows(likeliest(at))):
                row.grammar.mask(at)
            token = likeliest(at) if greedy else row.sample(at)
            row.ids.append(token)
            row.logprob += float(at[token] - total)
            finished = row.finished_by(token, self._decode)
            if finished or row.proposed[n : n + 1] != [token]:
                break
        chosen = row.ids[before:]
        row.draft.learn(len(row.proposed), len(chosen) - 1)
        row.draft.extend(chosen)
        row.proposed = []
        self.decoder.crop(row.slot, len(row.prompt) + len(row.ids) - 1)  # the last token's keys are not computed yet
        return finished


# ------------------------------------------------------------------------- several workers on a CPU
# Two workers of one thread each compute more on two cores than one worker of two: nothing waits at
# the barriers inside every small operation (measured: docs/engine.md). Each has slots and a batch
# of its own; the weights are shared.

_REMEMBERED = 128  # prompts per worker: conversations that may come back
_ROW_TOKENS = 100  # waiting beside one more row costs about as much as reading so many tokens
_PLACE_TOKENS = 1000  # and waiting for one to end, as so many


class Router:
    """``BatchWorker``'s interface over one or several.

    A row goes where reading its prompt and waiting its turn cost least.
    """

    def __init__(self, workers: Sequence[BatchWorker]) -> None:
        self.workers = list(workers)
        self._lock = threading.Lock()
        self._seen: list[OrderedDict[bytes, np.ndarray]] = [OrderedDict() for _ in workers]
        self._rows: list[list[Row]] = [[] for _ in workers]

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue rows. Raises ModelError after ``close``."""
        with self._lock:
            for row in rows:
                at = self._choose(row) if len(self.workers) > 1 else 0
                self.workers[at].submit([row])

    def _choose(self, row: Row) -> int:
        costs = []
        for at, seen in enumerate(self._seen):
            self._rows[at] = [other for other in self._rows[at] if not other.done.is_set()]
            shared = max((common_prefix(row.array, prompt) for prompt in seen.values()), default=0)
            rows = len(self._rows[at])
            over = max(0, rows + 1 - self.workers[at].batch_size)  # it would wait for a place
            costs.append(len(row.prompt) - shared + _ROW_TOKENS * rows + _PLACE_TOKENS * over)
        best = costs.index(min(costs))
        self._rows[best].append(row)
        seen, key = self._seen[best], row.array.tobytes()
        seen[key] = row.array
        seen.move_to_end(key)
        if len(seen) > _REMEMBERED:
            seen.popitem(last=False)
        return best

    def close(self) -> None:
        """Close all."""
        for worker in self.workers:
            worker.close()

    @property
    def busy_seconds(self) -> float:
        return sum(worker.busy_seconds for worker in self.workers)

    @property
    def forward_seconds(self) -> float:
        return sum(worker.forward_seconds for worker in self.workers)

    @property
    def cache_bytes(self) -> int:
        return sum(worker.cache_bytes for worker in self.workers)
