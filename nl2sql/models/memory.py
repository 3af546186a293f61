"""Weights and caches in memory: spread where one device does not hold them, and how much an engine may hold.

On a CPU all counts that the process has taken since the model was loaded: keys and values, forwards,
the question model's passes, grammars, and what the C library keeps of all that was freed. What is not
keys and values is measured, not added up, and takes its part of the limit.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.errors import ModelError, UsageError
from nl2sql.machine import all_bytes, cache_dir, free_bytes
from nl2sql.models.hashes import weights_files

if TYPE_CHECKING:
    import torch


# --------------------------------------------------------------------- weights over several devices
# accelerate places them. A model that fits on one device is loaded there as ever. Of any other,
# each layer computes on the GPU that holds it; what lies in memory or on disk is copied in for its
# forward, to a GPU or, without one, to the CPU. Not here: tensor parallelism.

MAP = "map"
_WEIGHTS_SHARE = 0.8  # of a device's free memory; the rest is for keys, values and the forward
_STORED = ("cpu", "disk")  # places that accelerate copies weights from
_FLOATS = ("F64", "F32", "F16", "BF16")  # what loading turns into the dtype asked for


def spread_options(spec: str, folder: tempfile.TemporaryDirectory[str]) -> dict[str, Any]:
    """The options of ``from_pretrained`` for ``--device map[:SIZE]``.

    folder: for weights that it writes anew. Raises UsageError for a SIZE that is none.
    """
    from accelerate.utils import get_max_memory

    room = {place: int(size * _WEIGHTS_SHARE) for place, size in get_max_memory().items()}
    if free := free_bytes():  # accelerate does not see the limit of a control group
        room["cpu"] = int(free * _WEIGHTS_SHARE)
    size = spec.removeprefix(MAP).removeprefix(":")
    if size:
        room["cpu"] = _bytes(size)
    return {"device_map": "auto", "max_memory": room, "offload_folder": folder.name}


def offload_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder in the cache that goes when the process ends or nobody holds it any more."""
    return tempfile.TemporaryDirectory(dir=cache_dir("offload"), ignore_cleanup_errors=True)


def _bytes(size: str) -> int:
    from accelerate.utils.modeling import convert_file_size_to_int

    try:
        return int(convert_file_size_to_int(size))
    except ValueError:
        raise UsageError(f"--device map:{size}: {size!r} is no size; example: --device map:24GB") from None


def places(model: Any) -> dict[str, int]:
    """Bytes of a spread model's weights by place, e.g. ``cuda:0``, ``disk``; empty for any other."""
    sizes: dict[str, int] = {}
    lies = _map(model)
    for name, weight in model.named_parameters() if lies else ():
        while name and name not in lies:  # the map names modules, each with all that is in it
            name = name.rpartition(".")[0]
        place = _name(lies[name])
        sizes[place] = sizes.get(place, 0) + int(weight.nbytes)
    return sizes


def computing_devices(model: Any) -> list[str]:
    """The devices that compute, by name: a spread model's GPUs (the CPU without any)."""
    if not _map(model):
        return [str(model.device)]
    return sorted({_name(place) for place in _map(model).values()} - set(_STORED)) or ["cpu"]


def input_device(model: Any) -> str:
    """The device on which a forward takes its tokens; accelerate moves a spread model's on to the first layer."""
    return "cpu" if model.device.type == "meta" else str(model.device)


def _map(model: Any) -> Mapping[str, Any]:
    """Module -> place, of a spread model; accelerate leaves a map on a model of one device, too."""
    lies = getattr(model, "hf_device_map", None) or {}
    return lies if len(set(lies.values())) > 1 or "disk" in lies.values() else {}


def _name(place: Any) -> str:
    return f"cuda:{place}" if isinstance(place, int) else str(place)


def check_room(folder: Path, name: str, dtype: str, device: str) -> None:
    """Raises ModelError where the weights in ``folder`` exceed all memory of ``device``."""
    import torch

    has = all_bytes()
    if device.startswith("cuda"):
        has = int(torch.cuda.get_device_properties(torch.device(device)).total_memory)
    itemsize = getattr(torch, dtype).itemsize
    needed = sum(_loaded_bytes(file, itemsize) for file in _files_read(folder))
    if has is not None and needed > has:
        smaller = " or --dtype bfloat16" if dtype == "float32" else ""
        raise ModelError(
            f"model {name!r} takes {needed / 1e9:.1f} GB in {dtype}, {device} has "
            f"{has / 1e9:.1f} GB; use --device {MAP}{smaller}"
        )


def _files_read(folder: Path) -> list[Path]:
    """The weights that transformers loads of a folder; others (``consolidated.safetensors``) repeat them."""
    if (whole := folder / "model.safetensors").is_file():
        return [whole]
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return [folder / name for name in sorted(set(index["weight_map"].values()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return weights_files(folder)


def _loaded_bytes(file: Path, itemsize: int) -> int:
    """Bytes of a safetensors file's tensors once loaded, by its header; 0 where it has none."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(min(length, 100_000_000)))
        header.pop("__metadata__", None)
        return sum(_tensor_bytes(tensor, itemsize) for tensor in header.values())
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError, IndexError):
        return 0  # loading says what is wrong with it


def _tensor_bytes(tensor: Mapping[str, Any], itemsize: int) -> int:
    if tensor["dtype"] not in _FLOATS:
        first, last = tensor["data_offsets"]
        return int(last) - int(first)
    count = 1
    for size in tensor["shape"]:
        count *= int(size)
    return count * itemsize


# ------------------------------------------------------------------------ memory beside the weights

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


class Slab:
    """Where the keys and values of one slot lie: on a CPU a mapping of its own.

    The system hands its pages out when they are first written, and has them back with the last tensor. What malloc
    gave would stay in the arena of the thread that asked, between slots of other lengths.
    """

    def __init__(self, token_bytes: int, capacity: int) -> None:
        self.capacity = capacity
        size, private = token_bytes * capacity, getattr(mmap, "MAP_PRIVATE", 0)
        self._memory = mmap.mmap(-1, size, private | mmap.MAP_ANONYMOUS) if size and private else None
        self._size, self._at = size, 0

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        """``[1, heads, capacity, dim]``, of the kind of ``like``."""
        import numpy as np
        import torch

        shape = (1, like.shape[1], self.capacity, like.shape[3])
        if like.device.type != "cpu":
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        count = int(np.prod(shape)) * like.itemsize
        if self._memory is not None and self._at + count <= self._size:
            raw = np.frombuffer(self._memory, dtype=np.uint8, count=count, offset=self._at)
            self._at += count
        else:
            raw = np.zeros(count, dtype=np.uint8)
        return torch.from_numpy(raw).view(like.dtype).view(shape)


def memory_limit(model: Any = None) -> int:
    """Bytes beside the weights, by default: on a CPU a quarter of what is free now and at most ``MOST_BYTES``.

    On GPUs half of what is free there; of several devices the fullest counts: which layers lie on it is not looked
    at. Raises UsageError where ``VARIABLE`` in the environment is no size.
    """
    if text := os.environ.get(VARIABLE, ""):
        return _variable(text)
    return min(map(_share_of, ["cpu"] if model is None else computing_devices(model)))


def _variable(text: str) -> int:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e6:
        raise UsageError(f"{VARIABLE}={text!r} is not a size in GB; example: {VARIABLE}=4")
    return int(size * 1e9)


def _share_of(device: str) -> int:
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0]) // 2
    return min((free_bytes() or MOST_BYTES) // 4, MOST_BYTES)


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
