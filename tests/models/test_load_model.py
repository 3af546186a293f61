"""load_model: what a spec names, and what a wrong one says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from models.tiny import saved_tiny

from nl2sql.errors import ModelError, UsageError
from nl2sql.models import load_model
from nl2sql.models.spec import resolve_spec

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
        ({"dtype": "int3"}, "unknown dtype 'int3'; choose one of float32, bfloat16, float16"),
        ({"batch_size": 0}, "batch size 0 is not positive"),
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


def test_a_file_that_is_no_gguf_is_one_line(tmp_path: Path) -> None:
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"not a gguf file at all")
    with pytest.raises(ModelError, match=r"fake\.gguf") as caught:
        load_model(str(fake))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache" / "models").glob("gguf-*"))


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
