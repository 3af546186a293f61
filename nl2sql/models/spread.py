"""Weights that one device does not hold: over all GPUs, this machine's memory and its disk.

accelerate places them. A model that fits on one device is loaded there as ever. Of any other, each
layer computes on the GPU that holds it; what lies in memory or on disk is copied in for its forward,
to a GPU or, without one, to the CPU.
Not here: tensor parallelism.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nl2sql.errors import ModelError, UsageError
from nl2sql.machine import all_bytes, cache_dir, free_bytes
from nl2sql.models.hashes import weights_files

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
