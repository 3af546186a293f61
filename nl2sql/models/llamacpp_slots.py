"""The slots of a llama.cpp server: which holds which tokens, so that a beginning which rows share is read once.

llama.cpp reuses what a slot holds for the next row of that slot only. A long prompt is therefore read by a request of
its own and saved, which takes milliseconds; any slot restores it, and a row whose beginning another one is reading
waits for that. Rows are let in as long as the tokens of all fit into the cells for keys and values. Thread-safe.
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nl2sql.errors import Cancelled, ModelError
from nl2sql.models.http.wire import Counts, read_counts

WORTH = 16  # tokens; fewer are read again rather than restored, saved or waited for
SAVED_BYTES = 512 * 2**20  # of prompts on disk; the least recently used go
NO_ADAPTER = {"lora": [{"id": 0, "scale": 0.0}]}
OTHER_WEIGHTS = b"\xff\xff\xff\xff"  # before the tokens that were read with them: no token has this number
_POLL_S = 0.1  # how often a waiting row looks at its cancel event


@dataclass
class _Slot:
    number: int
    held: bytes = b""  # the tokens that it certainly has, 4 bytes each
    reading: bytes = b""  # the prompt that its row reads now, and saves
    row: int = 0  # cells that its row may take; 0: idle
    used: int = 0  # by which row, counted

    @property
    def cells(self) -> int:
        return self.row or len(self.held) // 4


class Slots:
    """``count`` slots over ``cells`` cells; saved prompts lie in ``folder``.

    ask: sends ``(path, body, cancel)`` to the server; parsed JSON comes back. starts: how often the server was started;
    what it held is gone when that has changed.
    """

    def __init__(
        self, count: int, cells: int, folder: Path, ask: Callable[..., Any], starts: Callable[[], int]
    ) -> None:
        self._cells, self._folder, self._ask, self._starts = cells, folder, ask, starts
        self._slots = [_Slot(number) for number in range(count)]
        self._saved: OrderedDict[bytes, tuple[Path, int]] = OrderedDict()  # tokens -> file and its bytes
        self._changed = threading.Condition()
        self._rows, self._start = 0, starts()

    @contextlib.contextmanager
    def row(
        self,
        ids: Sequence[int],
        room: int,
        cancel: threading.Event | None,
        weights: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[tuple[int, Counts]]:
        """The number of a slot for a row of ``ids`` and ``room`` tokens more, and what was read into it already.

        weights: fields of a request that say with which weights it is read (``NO_ADAPTER``, or the server's own); what
        others have read is never reused. Raises ModelError and Cancelled.
        """
        tokens = (OTHER_WEIGHTS if weights else b"") + array("I", ids).tobytes()
        slot, source, crowded = self._take(tokens, len(ids) + room, cancel)
        try:
            for other in crowded:
                self._ask(f"slots/{other.number}?action=erase", {}, cancel)
            if source:
                with contextlib.suppress(ModelError):  # it is read, then
                    self._ask(f"slots/{slot.number}?action=restore", {"filename": source.name}, cancel)
            yield slot.number, self._read(slot, ids, cancel, weights) if slot.reading else Counts()
            slot.held = tokens
        except BaseException:
            slot.held = b""  # whatever it holds
            raise
        finally:
            with self._changed:
                slot.row, slot.reading = 0, b""
                self._changed.notify_all()

    def _take(
        self, tokens: bytes, cells: int, cancel: threading.Event | None
    ) -> tuple[_Slot, Path | None, list[_Slot]]:
        """A slot for a row, the file that it is to restore, and the slots that must be emptied for it."""
        with self._changed:
            while not (slot := self._idle(tokens, cells)):
                self._changed.wait(_POLL_S)
                if cancel is not None and cancel.is_set():
                    raise Cancelled("cancelled while waiting for the model")
            self._rows += 1
            source, best = self._best(tokens, slot)
            if source:
                self._saved.move_to_end(source)
            if len(tokens) // 4 - best > WORTH:
                slot.reading = tokens[:-4]  # llama.cpp computes the last token of a row in any case
            slot.row, slot.used = cells, self._rows
            crowded = []
            for other in sorted(self._slots, key=lambda s: s.used):
                if not other.row and other.held and sum(s.cells for s in self._slots) > self._cells:
                    other.held = b""
                    crowded.append(other)
            return slot, self._saved[source][0] if source else None, crowded

    def _idle(self, tokens: bytes, cells: int) -> _Slot | None:
        """An idle slot, unless the row does not fit now, or another one reads what it begins with."""
        if self._start != self._starts():
            self._start = self._starts()
            for slot in self._slots:
                slot.held = b""
        idle = [slot for slot in self._slots if not slot.row]
        taken = sum(slot.row for slot in self._slots)
        if not idle or (taken and taken + cells > self._cells):
            return None
        # Where the conversation goes on; else what was used longest ago, so that those of others can go on.
        grown = [slot for slot in idle if slot.held and tokens.startswith(slot.held)]
        slot = max(grown, key=lambda s: len(s.held)) if grown else min(idle, key=lambda s: (bool(s.held), s.used))
        readers = [common(tokens, other.reading) for other in self._slots if other.reading]
        return None if max(readers, default=0) > self._best(tokens, slot)[1] + WORTH else slot

    def _best(self, tokens: bytes, slot: _Slot) -> tuple[bytes, int]:
        """The saved prompt that spares the slot most reading (empty: none), and how many tokens it has then."""
        own = common(tokens, slot.held)
        best = max(self._saved, key=lambda saved: common(tokens, saved), default=b"")
        there = common(tokens, best)
        return (best, there) if there > own + WORTH else (b"", own)

    def _read(
        self, slot: _Slot, ids: Sequence[int], cancel: threading.Event | None, weights: Mapping[str, Any]
    ) -> Counts:
        """Read a prompt into the slot and save it for others."""
        body = {"prompt": list(ids[:-1]), "max_tokens": 0, "temperature": 0, "id_slot": slot.number, **weights}
        counts = read_counts(self._ask("v1/completions", body, cancel))
        file = self._folder / f"{slot.used}.prompt"
        with contextlib.suppress(ModelError):  # a full disk: others read it themselves
            size = self._ask(f"slots/{slot.number}?action=save", {"filename": file.name}, cancel).get("n_written")
            with self._changed:
                self._saved[slot.reading] = file, int(size or 0)
                while sum(size for _, size in self._saved.values()) > SAVED_BYTES:
                    old, _ = self._saved.pop(next(iter(self._saved)))
                    old.unlink(missing_ok=True)
        with self._changed:
            slot.reading = b""
            self._changed.notify_all()
        return counts


def common(a: bytes, b: bytes) -> int:
    """The tokens, of 4 bytes each, that both begin with.

    >>> common(b"aaaabbbb", b"aaaabbbc")
    1
    """
    low, high = 0, min(len(a), len(b)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[4 * low : 4 * middle] == b[4 * low : 4 * middle] else (low, middle - 1)
    return low
