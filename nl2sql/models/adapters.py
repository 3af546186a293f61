"""LoRA adapters [36] in PEFT's format, merged into a model's weights when it is loaded.

The package carries adapters of its own (``packaged_adapters``), and an embedded model may name one as its default. A
merged model computes what the adapted one would, at the cost of the plain one. Covered: LoRA on linear layers, those of
GPT-2 (``Conv1D``, stored transposed) among them, also rank-stabilised; not DoRA, biases, ranks of their own per layer,
layers saved whole, or beginnings such as PiSSA's that change the model's own weights (refused by name).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.errors import ModelError, UsageError
from nl2sql.machine import from_json
from nl2sql.models.weight_files import weights_revision

if TYPE_CHECKING:
    import torch

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
