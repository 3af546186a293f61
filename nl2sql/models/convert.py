"""GGUF to safetensors, once: dequantised to float32 with tokenizer and chat template beside it.

float32 keeps the dequantised values exactly; loading the result takes a second where GGUF takes fifteen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


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
