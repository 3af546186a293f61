"""Adapters merged into a model's weights: what comes of it is what peft computes; other kinds are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models.tiny import tiny_model

from nl2sql.errors import ModelError, UsageError
from nl2sql.models import load_model
from nl2sql.models.embedded import embedded_models
from nl2sql.models.weight_files import CONFIG, find_adapter, merge_adapter, packaged_adapters

peft = pytest.importorskip("peft", reason="pip install 'nl2sql-harness[dev]'")
LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def saved(folder: Path, kind: str = "llama", layers: tuple[str, ...] = LLAMA, **more: Any) -> Path:
    """A random adapter of a tiny model, as peft writes it."""
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(layers), init_lora_weights=False, **more)
    peft.get_peft_model(tiny_model(kind), config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "layers", "more"),
    [
        ("llama", LLAMA, {}),
        ("gpt2", ("attn.c_proj",), {"fan_in_fan_out": True}),  # square: no shape shows which way round its weights are
        ("gpt2", ("attn.c_attn",), {"fan_in_fan_out": True}),
    ],
)
def test_a_merged_adapter_computes_what_the_adapted_model_does(
    tmp_path: Path, kind: str, layers: tuple[str, ...], more: dict[str, Any]
) -> None:
    saved(tmp_path, kind, layers, **more)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    merged = tiny_model(kind)
    assert merge_adapter(merged, tmp_path).startswith("sha256:")
    with torch.no_grad():
        expected = peft.PeftModel.from_pretrained(tiny_model(kind), tmp_path)(input_ids=ids).logits
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-3)
        assert not torch.allclose(tiny_model(kind)(input_ids=ids).logits, expected, atol=1e-1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "only LORA"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
    ],
)
def test_other_kinds_of_adapter_are_refused_by_name(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=said):
        merge_adapter(tiny_model(), tmp_path)


def test_an_adapter_of_another_model_or_no_adapter_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    with pytest.raises(ModelError, match="another model"):
        merge_adapter(tiny_model("gpt2"), tmp_path / "a")
    assert find_adapter("none") is None
    for spec, said in ((tmp_path / "missing", "does not exist"), (tmp_path, "no adapter_config.json")):
        with pytest.raises(UsageError, match=said):
            find_adapter(str(spec))
    with pytest.raises(UsageError, match="local model"):
        load_model("http://localhost:1/v1#m", adapter=str(tmp_path / "a"))


def test_auto_is_the_models_own_adapter_and_packaged_ones_go_by_name() -> None:
    assert find_adapter("auto") is None
    for name, folder in packaged_adapters().items():
        assert find_adapter(name) == find_adapter("auto", default=name) == folder
        assert '"checked": [' in (folder / "recipe.json").read_text()  # against what was it checked?
    files = [file for folder in packaged_adapters().values() for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 60_000_000
    for model in embedded_models().values():
        assert model.adapter in ("none", *packaged_adapters())
