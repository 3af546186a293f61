"""Several workers over one model on a CPU, and the choice among them for a row.

Two workers of one thread each compute more on two cores than one worker of two: nothing waits at the barriers inside
every small operation (measured: docs/engine.md). Each has slots and a batch of its own; the weights are shared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from nl2sql.models.batching import BatchWorker
from nl2sql.models.rows import Row
from nl2sql.models.slots import common_prefix

_REMEMBERED = 128  # prompts per worker: conversations that may come back
_ROW_TOKENS = 100  # waiting beside one more row costs about as much as reading so many tokens
_PLACE_TOKENS = 1000  # and waiting for one to end, as so many


class Router:
    """``BatchWorker``'s interface over several. A row goes where reading its prompt and waiting its turn cost least."""

    def __init__(self, workers: Sequence[BatchWorker]) -> None:
        self.workers = list(workers)
        self._lock = threading.Lock()
        self._seen: list[OrderedDict[bytes, np.ndarray]] = [OrderedDict() for _ in workers]
        self._rows: list[list[Row]] = [[] for _ in workers]

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue rows. Raises ModelError after ``close``."""
        with self._lock:
            for row in rows:
                at = self._choose(row)
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
        seen = self._seen[best]
        key = row.array.tobytes()
        seen[key] = row.array
        seen.move_to_end(key)
        while len(seen) > _REMEMBERED:
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

    @property
    def written_bytes(self) -> int:
        return sum(worker.written_bytes for worker in self.workers)
