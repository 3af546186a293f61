"""load_model: what a spec names, and what a wrong one says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from models.tiny import CONFIGS, saved_tiny, tiny_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nl2sql.errors import ModelError, UsageError
from nl2sql.models import load_model
from nl2sql.models.doctor import check_model
from nl2sql.models.load import instructions, load_parts, pick_dtype, resolve_spec

BAD = [
    tuple(line.split(" => "))
    for line in Path(__file__).with_name("bad_specs.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    return saved_tiny(path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NL2SQL_THREADS", "1")


@pytest.mark.parametrize(("spec", "says"), BAD)
def test_a_wrong_spec_is_one_line_that_says_what_to_type(spec: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(spec)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_importing_the_models_package_imports_no_model_library() -> None:
    code = (
        "import sys, nl2sql.models, nl2sql.models.embedded, nl2sql.models.scripted, nl2sql.cli.models;"
        "print([m for m in ('torch', 'transformers', 'datasets', 'pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_a_folder_loads_and_answers(folder: Path) -> None:
    model = load_model(str(folder), batch_size=2)
    assert model.generate(CHAT, max_new_tokens=3)[0].usage.completion_tokens == 3
    facts = model.describe()
    assert facts["name"] == "tiny" and facts["revision"].startswith("sha256:") and facts["batch_size"] == 2
    assert (facts["device"], facts["dtype"]) == ("cpu", "float32")
    model.close()


OLD, EMULATED = ["avx2", "fma3"], ["avx2", "avx512_f", "avx512_bw", "avx512_vl", "avx512_dq"]


@pytest.mark.parametrize(
    ("device", "has", "default", "auto", "slow"),
    [
        ("cpu", [], "float32", "float32", True),
        ("cpu", OLD, "float32", "float32", True),
        ("cpu", EMULATED, "float32", "float32", True),  # oneDNN computes bfloat16 there, several times as slow
        ("cpu", [*EMULATED, "avx512_bf16"], "float32", "bfloat16", False),
        ("cpu", [*EMULATED, "amx_bf16"], "float32", "bfloat16", False),
        ("cpu", ["neon", "bf16"], "float32", "bfloat16", False),
        ("cuda", OLD, "bfloat16", "bfloat16", False),
        ("mps", ["neon", "bf16"], "float32", "float32", False),
    ],
)
def test_the_processor_decides_on_the_dtype(device: str, has: list[str], default: str, auto: str, slow: bool) -> None:
    assert pick_dtype(None, device, has) == (default, "")
    assert pick_dtype("auto", device, has) == (auto, "")
    assert pick_dtype("float32", device, has) == ("float32", "")
    dtype, warning = pick_dtype("bfloat16", device, has)
    assert dtype == "bfloat16" and ("float32 is faster" in warning) == slow and "\n" not in warning


def test_the_dtype_in_use_is_recorded(folder: Path) -> None:
    model = load_model(str(folder), device="cpu", dtype="auto")
    assert model.describe()["dtype"] == pick_dtype("auto", "cpu", instructions())[0]
    model.close()


def test_bfloat16_is_recorded(folder: Path) -> None:
    model = load_model(str(folder), device="cpu", dtype="bfloat16")
    assert model.describe()["dtype"] == "bfloat16"
    assert model.generate(CHAT, max_new_tokens=3)[0].usage.completion_tokens == 3
    model.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "tpu"}, "unknown device 'tpu'; choose one of auto, cpu, cuda, mps"),
        ({"device": "mps"}, "device 'mps' is not available"),
        ({"device": "cpu:1"}, "unknown device 'cpu:1'; choose one of auto, cpu, cuda, mps"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
        ({"device": "cuda:99"}, "device 'cuda:99'"),
        ({"dtype": "int3"}, "unknown dtype 'int3'; choose one of auto, float32, bfloat16, float16"),
        ({"batch_size": 0}, "batch size 0 is not positive"),
        ({"engine": "continuous"}, "unknown engine 'continuous'; choose one of auto, llamacpp, slots"),
    ],
)
def test_a_wrong_option_is_refused(folder: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(str(folder), **options)
    assert says in str(caught.value)


def test_a_wrong_thread_count_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_THREADS", "many")
    with pytest.raises(UsageError, match="NL2SQL_THREADS='many'"):
        load_model(str(folder))


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json"):
        load_model(str(tmp_path))


def test_a_folder_with_broken_weights_is_one_line(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load_model(str(broken))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 141000\n"])
def test_weights_that_were_not_copied_whole_are_one_line(content: bytes, folder: Path, tmp_path: Path) -> None:
    part = Path(shutil.copytree(folder, tmp_path / "part"))
    (part / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot be loaded \(SafetensorError"):
        load_model(str(part))


@pytest.mark.parametrize(
    ("renamed", "says"),
    [
        (lambda name: f"_orig_mod.{name}", r"no lm_head.weight and 20 more, but _orig_mod.lm_head.weight"),
        (
            lambda name: name.replace("0.self_attn.q_proj", "0.self_attn.q_proj.base_layer"),
            "q_proj.weight, but .*base_",
        ),
        (lambda name: name if name != "lm_head.weight" else "score.weight", "no lm_head.weight, but score.weight"),
    ],
)
def test_weights_that_are_missing_are_not_made_up(
    renamed: Callable[[str], str], says: str, folder: Path, tmp_path: Path
) -> None:
    wrapped = Path(shutil.copytree(folder, tmp_path / "wrapped"))
    weights = load_file(folder / "model.safetensors")
    save_file({renamed(name): weights[name] for name in weights}, wrapped / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=says):
        load_model(str(wrapped), device="cpu")


def write_gguf(path: Path, *, layers_there: int) -> None:
    """A tiny llama of two layers."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "</s>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    shapes = {"token_embd": (4, 32), "output_norm": (32,), "output": (4, 32)}
    for layer in range(layers_there):
        shapes |= {f"blk.{layer}.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{layer}.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{layer}.ffn_{name}": (64, 32) for name in ("gate", "up")}
        shapes[f"blk.{layer}.ffn_down"] = (32, 64)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.full(shape, 0.1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_part_of_a_gguf_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    whole, part = tmp_path / "whole.gguf", tmp_path / "part-00001-of-00002.gguf"
    write_gguf(whole, layers_there=2)
    write_gguf(part, layers_there=1)
    assert load_parts(resolve_spec(str(whole))).name == "whole.gguf"
    with pytest.raises(ModelError, match=r"no model\.layers\.1.*llama-gguf-split --merge"):
        load_parts(resolve_spec(str(part)))


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("tied", [False, True])
def test_weights_of_every_kind_of_model_are_found_whole(kind: str, tied: bool, tmp_path: Path) -> None:
    config = CONFIGS[kind]()
    config.tie_word_embeddings = tied
    model = AutoModelForCausalLM.from_config(config)
    load_parts(resolve_spec(str(saved_tiny(tmp_path / "whole", model))), device="cpu")


def test_a_model_in_the_working_folder_goes_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert load_parts(resolve_spec(".")).name == "tiny"


def test_the_doctor_says_that_a_model_computes_no_numbers(tmp_path: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight[40] = torch.nan
    found = list(check_model(resolve_spec(str(saved_tiny(tmp_path / "broken", model)))))
    assert found[-1].status == "fail" and "--dtype float32" in found[-1].detail


def test_a_file_that_is_no_gguf_is_one_line(tmp_path: Path) -> None:
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"not a gguf file at all")
    with pytest.raises(ModelError, match=r"fake\.gguf") as caught:
        load_model(str(fake))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache" / "models").glob("gguf-*"))


@pytest.mark.parametrize("engine", ["llamacpp", "slots"])
@pytest.mark.parametrize("size", [0, 4, 8, 20, 24, 31, 60, 200, 900])
def test_a_gguf_that_is_cut_is_one_line(
    engine: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "whole.gguf", layers_there=1)
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:size])
    advice = r"fetch a cut one again$|fetch it again$|expected a \.gguf file of a supported architecture, whole"
    with pytest.raises(ModelError, match=rf"cut\.gguf'? .*(?:{advice})") as caught:
        load_model(str(tmp_path / "cut.gguf"), engine=engine)
    assert "\n" not in str(caught.value)


def test_weights_of_holes_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.gguf").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="of which 0 lie on the disk"):
        load_model(str(tmp_path / "m.gguf"))


def test_weights_larger_than_all_memory_are_refused_before_they_are_read(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(b"" if file.suffix == ".safetensors" else file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 2**40}), encoding="utf-8")
    with pytest.raises(ModelError, match=r"GB in float32, cpu has .*; use --dtype bfloat16, a smaller model, or a ser"):
        load_model(str(tmp_path), device="cpu")


def test_too_little_memory_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr("nl2sql.models.load._load_weights", full)
    with pytest.raises(
        ModelError, match=r"takes more memory than there is \(Unable to allocate 9 GiB\); give a smaller"
    ):
        load_parts(resolve_spec(str(folder)))


def test_a_folder_that_brings_code_of_its_own_runs_none(folder: Path, tmp_path: Path) -> None:
    own = shutil.copytree(folder, tmp_path / "own")
    config = json.loads((own / "config.json").read_text()) | {"model_type": "own", "architectures": ["Own"]}
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Own"}
    (own / "config.json").write_text(json.dumps(config))
    (own / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_parts(resolve_spec(str(own)))
    assert not (tmp_path / "ran").exists()


def test_a_hub_id_without_network_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert resolve_spec("org/name").kind == "hub"
    with pytest.raises(ModelError, match=r"'org/name' could not be loaded .*local folder") as caught:
        load_model("org/name")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "init_lora_weights": "pissa"}', "init_lora_weights='pissa'"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "alora_invocation_tokens": [1]}', "alora_invocation_tokens"),
        ('{"peft_type": "LORA", "lora_alpha": 8}', "r=None"),
        ('{"peft_type": "LORA", "r": 0, "lora_alpha": 8}', "expected numbers"),
        ('{"peft_type": "LOR', "adapter_config.json cannot be read"),
        ("[]", "holds a list"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_one_line(config: str, says: str, folder: Path, tmp_path: Path) -> None:
    """PiSSA and the like change the weights that the adapter is added to: merged into others it computes anything."""
    (tmp_path / "adapter_config.json").write_text(config)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=says):
        load_model(str(folder), adapter=str(tmp_path))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (None, "adapter_model.safetensors cannot be read"),
        ({"q_proj.lora_A": (3, 32), "q_proj.lora_B": (32, 2)}, "q_proj.lora_A.weight fits no layer"),
        ({"q_proj.lora_A": (32,), "q_proj.lora_B": (32, 2)}, "q_proj.lora_A.weight fits no layer"),
        (
            {"q_proj.lora_A": (2, 32), "q_proj.lora_B": (32, 2), "k_proj.lora_B": (16, 2)},
            "holds .*k_proj.lora_B.weight",
        ),
    ],
)
def test_an_adapter_with_damaged_weights_is_one_line(
    shapes: dict[str, tuple[int, ...]] | None, says: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    file, place = tmp_path / "adapter_model.safetensors", "base_model.model.model.layers.0.self_attn"
    save_file({f"{place}.{name}.weight": torch.ones(size) for name, size in (shapes or {}).items()}, file)
    if shapes is None:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match=says):
        load_model(str(folder), adapter=str(tmp_path))
