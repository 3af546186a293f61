"""Memory beside the weights: how much an engine may hold.

On a CPU all counts that the process has taken since the model was loaded: keys and values, forwards,
the question model's passes, grammars, and what the C library keeps of all that was freed. What is not
keys and values is measured, not added up, and takes its part of the limit.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nl2sql.errors import UsageError
from nl2sql.machine import free_bytes

if TYPE_CHECKING:
    import torch

MOST_BYTES = 4 * 10**9  # by default
VARIABLE = "NL2SQL_MEMORY_GB"
_TRIM_S = 5.0  # between two times that free memory is given back to the system
_KEPT = 2  # keys and values may always take the limit divided by this


class EngineMemory:
    """The limit that the workers of one model share. limit: bytes. measured: whether this process's memory counts."""

    def __init__(self, limit: int, *, measured: bool) -> None:
        self.limit = limit
        self._before = resident_bytes() if measured else None
        self._written: Callable[[], int] = lambda: 0
        self._trimmed = 0.0
        self._lock = threading.Lock()

    def count(self, written: Callable[[], int]) -> None:
        """``written`` gives the bytes of keys and values that were written to."""
        self._written = written

    @property
    def held(self) -> int | None:
        """Bytes that the process has taken since the model was loaded; None where nobody says, or it is a GPU's."""
        now = None if self._before is None else resident_bytes()
        return None if now is None or self._before is None else max(0, now - self._before)

    def for_cache(self) -> int:
        """Bytes that keys and values may take now: the limit without what else is held, and never under half of it."""
        held = self.held
        if held is None:
            return self.limit
        if held > self.limit // 2 and self._may_trim():
            give_back_free_memory()
            held = self.held or 0
        beside = max(0, held - self._written())
        return max(self.limit - beside, self.limit // _KEPT)

    def _may_trim(self) -> bool:
        with self._lock:
            now = time.monotonic()
            due = now - self._trimmed > _TRIM_S
            self._trimmed = now if due else self._trimmed
            return due


def empty_pages(like: torch.Tensor, capacity: int) -> torch.Tensor:
    """Zeros ``[1, heads, capacity, dim]``, of the kind of ``like``; on a CPU in a mapping of their own.

    The system hands its pages out when they are first written, and has them back with the tensor. What malloc gave
    would stay in the arena of the thread that asked, between slots of other lengths.
    """
    import torch

    shape = (1, like.shape[1], capacity, like.shape[3])
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    pages = mmap.mmap(-1, math.prod(shape) * like.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


def memory_limit(device: str = "cpu") -> int:
    """Bytes beside the weights, by default: on a CPU a quarter of what is free now and at most ``MOST_BYTES``.

    On a GPU half of what is free there. Raises UsageError where ``VARIABLE`` in the environment is no size.
    """
    if text := os.environ.get(VARIABLE, ""):
        return _variable(text)
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0]) // 2
    return min((free_bytes() or MOST_BYTES) // 4, MOST_BYTES)


def _variable(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e6:
        raise UsageError(f"{VARIABLE}={text!r} is not a size in GB; example: {VARIABLE}=4")
    return int(size * 1e9)


def resident_bytes() -> int | None:
    """Memory of this process that lies in RAM and in no file; None where the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


@cache
def _trim() -> Callable[[int], int] | None:
    """``malloc_trim`` of the C library; other libraries than glibc have none."""
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None


def give_back_free_memory() -> None:
    """Give the system back what was freed: threads' arenas keep it, and no other thread can use it."""
    trim = _trim()
    if trim is not None:
        trim(0)
