"""transformers' own continuous batching behind the engine's interface: an alternative to slots.

It pages the cache, shares whole pages of common prefixes and, where flash attention is installed, is what the library
is tuned for. Not here: grammars, seeds (sampled rows share one generator), log-probabilities, prefilled tokens (the
library does not tell how many it computed: the whole prompt is counted).
On a CPU it is the slower of the two, on CUDA neither is measured; scripts/bench_engine.py measures both.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from nl2sql.errors import Cancelled, ModelError, one_line
from nl2sql.models.rows import Row, cut_at_stop, model_failed

PAGE = 32  # tokens; only whole pages are shared
_MAX_BATCH_TOKENS = 512  # of all rows together in one forward
_WAIT_S = 0.05  # how often an idle worker looks whether it was closed


class ContinuousWorker:
    """``BatchWorker``'s interface over a ``ContinuousBatchingManager``. token_bytes: of one token's keys and values."""

    def __init__(
        self,
        model: Any,
        decode: Callable[[Sequence[int]], str],
        *,
        batch_size: int,
        max_cache_bytes: int,
        token_bytes: int,
    ) -> None:
        settings = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=max(2, max_cache_bytes // (PAGE * token_bytes)),
            max_batch_tokens=_MAX_BATCH_TOKENS,
            max_requests_per_batch=batch_size,
            per_request_processors=True,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        self._manager = model.init_continuous_batching(greedy, settings)
        self._manager.start()
        self._decode = decode
        self._rows: dict[str, Row] = {}
        self._names = itertools.count()
        self._lock = threading.Lock()
        self._closed = False
        self.forward_seconds = self.busy_seconds = 0.0  # not told by the library, which
        self.cache_bytes = settings.num_blocks * PAGE * token_bytes  # takes its whole cache at once
        self._thread = threading.Thread(target=self._run, name="nl2sql-model", daemon=True)
        self._thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue rows. Raises ModelError for what this engine cannot do."""
        if any(row.grammar is not None or row.sampling is not None for row in rows):
            raise ModelError("this engine decodes greedily and without grammars; use --engine slots")
        with self._lock:
            if self._closed:
                raise ModelError("the model was closed; load it again")
            for row in rows:
                row.submitted, row.logprob = time.perf_counter(), None
                name = f"row-{next(self._names)}"
                self._rows[name] = row  # before its first answer can come
                taken = self._manager.add_request(
                    row.prompt,
                    request_id=name,
                    max_new_tokens=row.max_new_tokens,
                    streaming=True,
                    eos_token_id=sorted(row.stop_ids),
                )
                if taken is None:
                    self._rows.pop(name)
                    raise ModelError("transformers' continuous batching has stopped; load the model again")

    def close(self) -> None:
        """Stop; rows in flight get Cancelled."""
        with self._lock:
            self._closed = True
        self._manager.stop(block=True, timeout=30)
        self._thread.join(timeout=30)

    def _run(self) -> None:
        error: Exception = Cancelled("the model was closed while it was answering")
        try:
            self._serve()
            if (failure := self._manager.background_thread_status.fatal_error) is not None:
                error = model_failed(failure)
        except Exception as failure:  # noqa: BLE001 - told to every caller: nobody may wait for ever
            error = model_failed(failure)
        with self._lock:
            self._closed = True
        for name, row in list(self._rows.items()):
            self._finish(name, row, error)

    def _serve(self) -> None:
        while not self._closed:
            try:
                result = self._manager.output_router.output_queue.get(timeout=_WAIT_S)
            except queue.Empty:
                if not self._manager.is_running():
                    break
                result = None
            if result is not None and (row := self._rows.get(result.request_id)) is not None:
                self._take(result.request_id, row, result)
            for name, row in [(n, r) for n, r in list(self._rows.items()) if r.unwanted]:
                self._manager.cancel_request(name)
                self._finish(name, row, Cancelled("cancelled while the model was answering"))

    def _take(self, name: str, row: Row, result: Any) -> None:
        if result.error is not None:
            self._finish(name, row, ModelError(f"the model failed: {one_line(result.error, 300)}"))
            return
        row.began = row.began or time.perf_counter()
        row.ids = list(result.generated_tokens)
        ended = bool(row.ids) and row.ids[-1] in row.stop_ids
        text = self._decode(row.ids[:-1] if ended else row.ids)
        before_stop = cut_at_stop(text, row.stop)
        if before_stop is None and not result.is_finished():
            return
        row.text, row.finish = (
            (before_stop if before_stop is not None else text),
            "stop" if ended or before_stop is not None else "length",
        )
        row.prefilled = len(row.prompt)
        if not result.is_finished():
            self._manager.cancel_request(name)
        self._finish(name, row)

    def _finish(self, name: str, row: Row, error: Exception | None = None) -> None:
        with self._lock:
            self._rows.pop(name, None)
        row.error = error
        row.done.set()
