"""Files of weights: their hashes, what a GGUF file says of itself, and its weights as safetensors.

>>> _Reader(bytes(8) + struct.pack("<QQQ3sIB", 0, 1, 3, b"key", 0, 7)).pairs()
{'key': 7}

A header is read without any library; its lists (the tokenizer's) are passed over, only their lengths are given.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.disk import stored_bytes
from nl2sql.errors import ModelError
from nl2sql.machine import cache_dir
from nl2sql.safe_files import MEGABYTE, open_regular

HOLES = 64 * 2**20  # bytes that a weights file may have beyond twice those that lie on the disk


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_hash(file: Path) -> str:
    """SHA-256 of a weights file, remembered in the cache by path, size and time of change.

    Raises ModelError for a file of holes, which would be read for hours."""
    stat = file.stat()
    if stat.st_size > HOLES + 2 * (stored := stored_bytes(file)):
        raise ModelError(f"{file} has {stat.st_size:,} bytes, of which {stored:,} lie on the disk; fetch it again")
    key = hashlib.sha256(f"{file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:32]
    memo = cache_dir("models", "hashes") / f"{key}.json"
    try:
        sha256: str = json.loads(memo.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        sha256 = file_sha256(file)
        memo.write_text(json.dumps({"file": str(file), "sha256": sha256}), encoding="utf-8")
    return sha256


def weights_files(folder: Path) -> list[Path]:
    """The weights of a transformers folder: its safetensors, else its .bin files."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))


def folder_files(folder: Path) -> list[Path]:
    """The files that decide a folder's answers: its weights, and the JSON and template files beside them."""
    return [*weights_files(folder), *sorted([*folder.glob("*.json"), *folder.glob("*.jinja")])]


def weights_revision(files: Sequence[Path]) -> str:
    """``sha256:...`` of one file, or of the list of names and hashes of several."""
    if len(files) == 1:
        return f"sha256:{weights_hash(files[0])}"
    joined = "\n".join(f"{file.name} {weights_hash(file)}" for file in files)
    return f"sha256:{hashlib.sha256(joined.encode()).hexdigest()}"


# ------------------------------------------------------------------------------ GGUF, what it says of itself

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_MOST = 32 * MEGABYTE  # of a header; one with 150,000 tokens has 6
_MOST_PAIRS = 1000


def read_header(path: Path) -> dict[str, Any]:
    """The key-value pairs of a GGUF file. Raises ModelError for a file that is none, or ends too early."""
    try:
        with (
            open_regular(path.resolve()) as file,
            mmap.mmap(file.fileno(), min(_MOST, path.stat().st_size), access=mmap.ACCESS_READ) as data,
        ):
            if data[:4] != b"GGUF":
                raise ModelError(f"{path} does not begin as a GGUF file does; expected one, as llama.cpp reads it")
            return _Reader(data).pairs()
    except (OSError, ValueError, struct.error, KeyError, RecursionError) as error:
        why = "it ends too early" if isinstance(error, struct.error) else error
        raise ModelError(f"{path} cannot be read as GGUF ({why}); fetch it again") from None


class _Reader:
    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data, self._at = data, 8

    def pairs(self) -> dict[str, Any]:
        _, count = self._number("Q"), self._number("Q")
        if count > _MOST_PAIRS:
            raise ValueError(f"{count:,} settings; expected at most {_MOST_PAIRS:,}")
        return {self._text(): self._value(self._number("I")) for _ in range(count)}

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        size = self._number("Q")
        self._at += size
        if self._at > len(self._data):
            raise ValueError("it ends too early")
        return self._data[self._at - size : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            return self._number(_NUMBERS[kind])
        inner, count = self._number("I"), self._number("Q")
        if inner in _NUMBERS:
            self._at += count * struct.calcsize(_NUMBERS[inner])
            return count
        for _ in range(count):
            self._value(inner)
        return count


# ----------------------------------------------------------------------------------- as safetensors
# float32 keeps the dequantised values exactly; loading the result takes a second where GGUF takes
# fifteen.


def convert_gguf(gguf: Path, target: Path) -> None:
    """Write ``gguf`` as a transformers folder ``target`` (created; must not exist).

    Raises what transformers raises: OSError for a full disk, ValueError for an unsupported architecture; and ValueError
    where weights are missing, as in the first file of a model that was split into several.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        loaded, found = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, output_loading_info=True
        )
        refuse_missing(loaded, found)
        # A model loaded from GGUF refuses save_pretrained; the same weights under a plain config do not.
        settings = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
        config = loaded.config.__class__.from_dict(settings)
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        plain.load_state_dict(loaded.state_dict(), assign=True)
        plain.tie_weights()
        plain.generation_config = loaded.generation_config
        target.mkdir(parents=True)
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)


def refuse_missing(model: Any, found: Mapping[str, Any]) -> None:
    """Raises ValueError where the files of a model lack a parameter, which would be random.

    found: what transformers told of the loading.
    """
    missing = sorted(set(found["missing_keys"]) & {name for name, _ in model.named_parameters()})
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        held = f", but {min(found['unexpected_keys'])}" if found["unexpected_keys"] else ""
        raise ValueError(f"its files hold no {missing[0]}{more}{held}")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice from transformers inside the block; its settings come back after."""
    from transformers.utils import logging as hf

    level, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    try:
        yield
    finally:
        hf.set_verbosity(level)
        if bars:
            hf.enable_progress_bar()
