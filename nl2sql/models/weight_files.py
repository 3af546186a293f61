"""Files of weights: their hashes, what a GGUF file says of itself, its weights as safetensors, and LoRA adapters.

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
from typing import TYPE_CHECKING, Any

from nl2sql.databases.sqlite.disk import stored_bytes
from nl2sql.errors import ModelError, UsageError
from nl2sql.machine import cache_dir, from_json
from nl2sql.safe_files import MEGABYTE, open_regular

if TYPE_CHECKING:
    import torch

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


# ----------------------------------------------------------------------------------------- adapters
# LoRA adapters [36] in PEFT's format, merged into a model's weights when it is loaded: it then
# computes what the adapted one would, at the cost of the plain one. Covered: LoRA on linear layers,
# those of GPT-2 (``Conv1D``, stored transposed) among them, also rank-stabilised; not DoRA, biases,
# ranks of their own per layer, layers saved whole, or beginnings such as PiSSA's that change the
# model's own weights (refused by name).

CONFIG, WEIGHTS, GGUF = "adapter_config.json", "adapter_model.safetensors", "adapter.gguf"
PREFIX = "base_model.model."
GGUF_LAYERS = {  # a layer's name in a GGUF file -> in a transformers model
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_UNSUPPORTED = (
    *("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication", "lora_bias"),
    *("alora_invocation_tokens", "use_qalora", "use_bdlora"),
)
_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")  # others change the weights below the adapter


def packaged_adapters() -> dict[str, Path]:
    """The adapters that the package carries, by name."""
    home = Path(__file__).parent / "packaged_adapters"
    return {file.parent.name: file.parent for file in sorted(home.glob(f"*/{CONFIG}"))}


def find_adapter(spec: str, default: str = "none") -> Path | None:
    """The folder of the adapter ``spec``: auto (``default``), none, a packaged name, or a folder. None for none.

    Raises UsageError for anything else.
    """
    spec = default if spec == "auto" else spec
    if spec == "none":
        return None
    packaged = packaged_adapters()
    folder = packaged.get(spec) or Path(spec).expanduser()
    missing = [name for name in (CONFIG, _weights(folder).name) if not (folder / name).is_file()]
    if missing:
        what = f"has no {' and no '.join(missing)}" if folder.is_dir() else "does not exist"
        raise UsageError(
            f"adapter folder {spec!r} {what}; give {', '.join(['`auto`', '`none`', *packaged])}, or a folder that peft "
            "or scripts/tune_gguf.py wrote"
        )
    return folder


def find_gguf_adapter(spec: str, default: str = "none") -> Path | None:
    """The same for llama.cpp, which takes an adapter as one .gguf file: a path, or ``adapter.gguf`` in the folder.

    A default adapter that has no such form is none. Raises UsageError for one that was asked for.
    """
    if spec.endswith(".gguf"):
        if not Path(spec).expanduser().is_file():
            raise UsageError(f"adapter file {spec!r} does not exist; give a LoRA adapter as a .gguf file, or `none`")
        return Path(spec).expanduser()
    folder = find_adapter(spec, default)
    if folder is None or (folder / GGUF).is_file():
        return folder and folder / GGUF
    if spec == "auto":
        return None
    raise UsageError(f"adapter {spec!r} has no {GGUF}, the form that llama.cpp takes; add --engine slots, or `none`")


def merge_adapter(model: Any, folder: Path) -> str:
    """Add the adapter in ``folder`` to the weights of ``model``, in place; returns its revision.

    Sums are taken in float32 and rounded once. Raises ModelError for an adapter of another kind or another model.
    """
    import torch

    scale = adapter_scale(_read_config(folder), folder)
    tensors = adapter_tensors(folder)
    weights, layers = dict(model.named_parameters()), dict(model.named_modules())
    changes = []
    for name in sorted(tensors):
        if not name.endswith(".lora_A.weight"):
            if name.replace(".lora_B.", ".lora_A.") not in tensors or not name.endswith(".lora_B.weight"):
                raise ModelError(f"adapter {folder} holds {name}; only LoRA on linear layers is merged, in pairs")
            continue
        place = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        target, transposed = weights.get(f"{place}.weight"), type(layers.get(place)).__name__ == "Conv1D"
        down, up = tensors[name], tensors.get(name.replace(".lora_A.", ".lora_B."))
        if transposed and up is not None:  # the layer itself tells: peft's fan_in_fan_out is one for all layers
            down, up = up.T, down.T
        if target is None or up is None or not _fits(target, up, down):
            raise ModelError(f"adapter {folder} was made for another model: {name} fits no layer of this one")
        changes.append((target, up, down))
    if not changes:
        raise ModelError(f"adapter {folder} changes nothing: {_weights(folder).name} holds no LoRA layers")
    with torch.no_grad():
        for target, up, down in changes:
            change = scale * (up.float() @ down.float())
            target.copy_((target.float() + change.to(target.device)).to(target.dtype))
    return adapter_revision(folder)


def _weights(folder: Path) -> Path:
    """An adapter's matrices: peft's file, or, where that is missing, the one that llama.cpp takes."""
    return folder / (GGUF if (folder / GGUF).is_file() and not (folder / WEIGHTS).is_file() else WEIGHTS)


def adapter_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """An adapter's matrices by peft's names. Raises ModelError for a file that cannot be read."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = _weights(folder)
    try:
        if file.name != GGUF:
            return load_file(file)
        from gguf import GGUFReader, dequantize

        found, reader = {}, GGUFReader(file)
        heads = {
            f"{layer}.lora_b": int(reader.fields[f"llama.attention.{key}"].contents())
            for layer, key in (("attn_q", "head_count"), ("attn_k", "head_count_kv"))
            if f"llama.attention.{key}" in reader.fields
        }
        for tensor in reader.tensors:  # blk.0.attn_q.weight.lora_a
            _, number, layer, _, side = tensor.name.split(".")
            name = f"{PREFIX}model.layers.{number}.{GGUF_LAYERS[layer]}.lora_{side[-1].upper()}.weight"
            matrix = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
            if count := heads.get(f"{layer}.{side}"):  # llama.cpp keeps the rows of a head in pairs
                matrix = matrix.view(count, -1, 2, matrix.shape[1]).transpose(1, 2).reshape(matrix.shape)
            found[name] = matrix
        return found
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read ({error}); copy or train it again") from None


def _fits(target: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> bool:
    """Whether the product of an adapter's matrices can be taken, and added to a layer's weight."""
    if not target.dim() == up.dim() == down.dim() == 2:
        return False
    return target.shape == (up.shape[0], down.shape[1]) and up.shape[1] == down.shape[0]


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = from_json((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG} cannot be read ({error}); copy or train it again") from None
    if not isinstance(config, dict):
        raise ModelError(f"{folder / CONFIG} holds a {type(config).__name__}; expected a mapping, as peft writes it")
    return config


def adapter_revision(folder: Path) -> str:
    """The hash of an adapter's configuration and weights."""
    return weights_revision([folder / CONFIG, _weights(folder)])


def adapter_scale(config: dict[str, Any], folder: Path) -> float:
    """The factor on the product of an adapter's matrices. Raises ModelError for another kind than LoRA."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"adapter {folder} is a {kind!r}; only LORA is merged")
    odd = [key for key in _UNSUPPORTED if config.get(key)]
    if config.get("bias", "none") != "none":
        odd.append("bias")
    beginning = config.get("init_lora_weights", True)
    if beginning not in _BEGINNINGS:
        odd.append(f"init_lora_weights={beginning!r}")
    if odd:
        raise ModelError(f"adapter {folder} uses {', '.join(odd)}, which is not covered; merge it with peft first")
    try:
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        return alpha / rank**0.5 if config.get("use_rslora") else alpha / rank
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        found = f"r={config.get('r')!r} and lora_alpha={config.get('lora_alpha')!r}"
        raise ModelError(f"adapter {folder} has {found}; expected numbers, as peft writes them") from None
