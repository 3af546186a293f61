"""Models larger than one device: weights in memory and on disk, without any GPU."""

from __future__ import annotations

import gc
import json
import logging
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from models.tiny import CONFIGS, SIZE, saved_tiny, tiny_model
from transformers import AutoModelForCausalLM, LlamaConfig

from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Grammar, Sampling
from nl2sql.models import load_model
from nl2sql.models.doctor import check_model
from nl2sql.models.load import load_parts
from nl2sql.models.local import LocalModel
from nl2sql.models.memory import computing_devices, places
from nl2sql.models.spec import resolve_spec

PROMPTS = [f"{'list the orders of ' * (i % 4)}customer {i}" for i in range(8)]
KINDS = [*(kind for kind in CONFIGS if kind != "mamba"), "dynamic"]  # dynamic: one row at a time
SPREAD = "map:115KB"  # of 141 KB


def made(kind: str) -> Any:
    if kind in CONFIGS:
        return tiny_model(kind)
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 10_000.0}
    return AutoModelForCausalLM.from_config(LlamaConfig(**SIZE, rope_parameters=rope))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NL2SQL_THREADS", "2")  # a plain model has two workers then
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {kind: tmp_path_factory.mktemp("models") / kind for kind in KINDS}
    for kind, path in found.items():
        saved_tiny(path, made(kind))
    return found


def opened(folder: Path, device: str, **options: Any) -> LocalModel:
    model = load_model(str(folder), device=device, **options)
    assert isinstance(model, LocalModel)
    return model


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "You write SQL."}, {"role": "user", "content": text}]


def answers(model: LocalModel) -> list[tuple[str, str, float | None]]:
    """Greedy, sampled and constrained completions, asked for at once, and a conversation that comes back grown."""
    asked: list[dict[str, Any]] = [{"messages": chat(p), "max_new_tokens": 24} for p in PROMPTS]
    asked.append({"messages": chat("x"), "max_new_tokens": 12, "sampling": Sampling(1.0, 0.9), "seed": 3, "n": 2})
    asked.append({"messages": chat("y"), "max_new_tokens": 9, "grammar": Grammar("lark", 'start: ("ab" | "cd")~3')})
    with ThreadPoolExecutor(len(asked)) as threads:
        done = [each for found in threads.map(lambda options: model.generate(**options), asked) for each in found]
    done += model.generate(chat(PROMPTS[3]), prefill="Thought: x", max_new_tokens=9)
    return [(each.text, each.finish_reason, each.logprob) for each in done]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_in_memory_and_on_disk_says_what_the_plain_one_says(
    kind: str, folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    plain = opened(folders[kind], "cpu", batch_size=4)
    expected, engine = answers(plain), plain.describe()["engine"]
    plain.close()
    with caplog.at_level(logging.WARNING):
        whole = sum(weight.nbytes for weight in made(kind).parameters())
        spread = opened(folders[kind], f"map:{0.82 * whole / 1000:.1f}KB", batch_size=4)
    facts = spread.describe()
    assert facts["places"]["disk"] > 0 and facts["places"]["cpu"] > 0, facts["places"]
    assert sum(facts["places"].values()) == whole
    assert "the weights are spread: 0.00 GB on cpu, 0.00 GB on disk" in caplog.text
    assert (facts["engine"], facts["device"]) == (engine, "cpu")
    found = answers(spread)
    spread.close()
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert [each[2] for each in found] == pytest.approx([each[2] for each in expected], abs=1e-5)


def test_a_model_wholly_on_disk_says_the_same(folders: dict[str, Path]) -> None:
    plain, stored = opened(folders["llama"], "cpu"), opened(folders["llama"], "map:1KB")
    assert stored.describe()["places"].keys() == {"disk"}
    said = [model.generate(chat("hello"), max_new_tokens=20)[0] for model in (plain, stored)]
    plain.close()
    stored.close()
    assert said[0].text == said[1].text and said[0].logprob == pytest.approx(said[1].logprob, abs=1e-5)


def test_a_model_that_fits_on_one_device_is_loaded_there(folders: dict[str, Path]) -> None:
    model = opened(folders["llama"], "map")
    facts = model.describe()
    model.close()
    assert facts["device"] == "cpu" and "places" not in facts


def test_a_map_of_one_device_is_no_spread_model() -> None:
    from accelerate import dispatch_model

    model = dispatch_model(tiny_model(), {"": "cpu"}, force_hooks=False)
    assert model.hf_device_map == {"": "cpu"}
    assert (places(model), computing_devices(model)) == ({}, ["cpu"])


def test_the_doctor_finds_nothing_wrong_with_a_spread_model(folders: dict[str, Path]) -> None:
    found = list(check_model(resolve_spec(str(folders["llama"])), device=SPREAD))
    assert {check.status for check in found} == {"ok"} and "on cpu, disk in" in found[0].detail


def test_weights_written_anew_for_the_disk_are_deleted_with_the_model(
    folders: dict[str, Path], tmp_path: Path, cache: Path
) -> None:
    import torch

    torch.save(tiny_model().state_dict(), tmp_path / "pytorch_model.bin")  # no safetensors to read from again
    for file in folders["llama"].iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    model = opened(tmp_path, SPREAD)
    assert [*cache.glob("offload/*/*.safetensors")]
    assert model.generate(chat("x"), max_new_tokens=4)[0].text
    model.close()
    del model
    gc.collect()
    assert [*cache.glob("offload/*")] == []


def test_an_adapter_is_not_merged_into_weights_on_disk(folders: dict[str, Path], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    layer = "base_model.model.model.layers.1.mlp.down_proj.lora_"
    weights = {f"{layer}A.weight": torch.ones(2, 64), f"{layer}B.weight": torch.ones(32, 2)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    load_parts(resolve_spec(str(folders["llama"])), device="map", adapter=str(tmp_path))
    with pytest.raises(ModelError, match=r"cannot be merged into weights .* --adapter none"):
        load_parts(resolve_spec(str(folders["llama"])), device=SPREAD, adapter=str(tmp_path))


def test_weights_larger_than_all_memory_are_refused_before_they_are_read(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    for file in folders["llama"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    vast = {"lm_head.weight": {"dtype": "BF16", "shape": [2**22, 2**23], "data_offsets": [0, 2**46]}}
    header = json.dumps(vast).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ModelError) as caught:
        opened(tmp_path, "cpu")
    assert "takes 140737.5 GB in float32, cpu has" in str(caught.value)
    assert str(caught.value).endswith("use --device map or --dtype bfloat16")


def test_weights_that_lie_there_a_second_time_are_not_counted(folders: dict[str, Path], tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folders["llama"]).save_pretrained(tmp_path, max_shard_size="60KB")
    for file in folders["llama"].glob("tokenizer*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    vast = {"lm_head.weight": {"dtype": "BF16", "shape": [2**22, 2**23], "data_offsets": [0, 2**46]}}
    header = json.dumps(vast).encode()
    (tmp_path / "consolidated.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    opened(tmp_path, "cpu").close()


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("map:much", "--device map:much: 'much' is no size; example: --device map:24GB"),
        ("cpu:1", "unknown device 'cpu:1'; choose one of auto, cpu, cuda, mps, map"),
        ("cuda:x", "unknown device 'cuda:x'"),
        ("cuda:99", "device 'cuda:99'"),
    ],
)
def test_a_wrong_device_is_refused(folders: dict[str, Path], device: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        opened(folders["llama"], device)
    assert says in str(caught.value)
