"""The tuning of a GGUF file on a card, on a CPU: packed, trained and exported to its end, with a tiny model."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import tune_gguf
from models.tiny import tiny_gguf, tiny_model, tiny_tokenizer
from training.packing import IGNORED, row

from nl2sql.models import load_model
from nl2sql.models.chat import Chat
from nl2sql.models.local import LocalModel
from nl2sql.models.weight_files import adapter_tensors, merge_adapter

SCHEMA = "Schema:\nsinger(id, name)\n\nQuestion: "
RECIPE = {"rank": 32, "alpha": 32.0, "rate": 0.004, "warmup": 1, "rows": 512, "batch_rows": 1, "seed": 0}


def example(asked: str, answer: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": "SQL."}, {"role": "user", "content": f"{SCHEMA}{asked}"}]
    pieces = [["SELECT", False], [answer, True]]
    about = {"task": "write", "id": asked, "db_id": "d", "closed": True}
    return {**about, "messages": messages, "pieces": pieces}


FORM = {"types": ["Q8_0", "Q8_0"], "architecture": "qwen2"}
GROUPS = [[example("Names?", " name FROM singer;"), example("How many?", " COUNT(*) FROM singer;")]]


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and what ``pack`` makes of it and of two examples."""
    folder = tmp_path_factory.mktemp("card")
    weights = tiny_model("qwen2")
    tiny_gguf(folder / "tiny.gguf", weights)
    lines = [{"part": part, "round": 0, "examples": group} for part in ("train", "held_out") for group in GROUPS]
    (folder / "groups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "card.json").write_text('{"checked": []}', encoding="utf-8")
    options = {"gguf": folder / "tiny.gguf", "data": folder, "out": folder, "rounds": 9, "limit": None}
    tiny_tokenizer().save_pretrained(folder / "tokenizer")
    options |= {"tokenizer": folder / "tokenizer", "held_out": 9, "pack_tokens": 512, "common": 8, "part_megabytes": 1}
    assert tune_gguf.pack(argparse.Namespace(**options)) == 0
    return folder


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_K", "Q6_K", "F32"])
def test_weights_are_read_as_llama_cpp_reads_them(kind: str) -> None:
    of = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[of]
    raw = np.random.default_rng(0).integers(0, 120, (6, 4 * size), dtype=np.uint8)
    expected = gguf.dequantize(raw.view(np.float32) if kind == "F32" else raw, of)
    found = tune_gguf.dequantised(torch.from_numpy(raw.reshape(-1).copy()), kind, (6, 4 * values))
    assert np.array_equal(found.numpy(), expected)


def test_the_loss_of_a_pack_is_that_of_its_examples_one_by_one(card: Path) -> None:
    about = json.loads((card / "model.json").read_text(encoding="utf-8"))
    shape = tune_gguf.Shape(*(about["shape"][name] for name in tune_gguf.SHAPE_FIELDS))
    cpu = torch.device("cpu")
    ours = tune_gguf.model_of(shape, about["vocabulary"], 4, 1.0, cpu, torch.float32)
    tune_gguf.load_weights(ours, about, card, cpu, 0.0)
    (packed,) = tune_gguf.rows_of(np.load(card / "packs.npz"), "train", 512, cpu)
    logits = ours(packed, tune_gguf.attention(cpu)(packed)) @ ours.output.T
    found = torch.nn.functional.cross_entropy(logits, packed.targets, reduction="sum")
    model, tokenizer = tiny_model("qwen2"), tiny_tokenizer()
    chat = Chat(tokenizer, 2)
    kept = torch.tensor(kept_tokens(card, chat, tokenizer))
    total = 0.0
    for each in GROUPS[0]:
        made = row(tune_example(each), chat.prompt_ids, lambda text: tokenizer(text)["input_ids"], 2)
        learned = [at for at, label in enumerate(made.labels) if label != IGNORED]
        shown = model(torch.tensor([made.ids])).logits[0][[at - 1 for at in learned]][:, kept]
        targets = torch.tensor([kept.tolist().index(made.ids[at]) for at in learned])
        total += float(torch.nn.functional.cross_entropy(shown, targets, reduction="sum"))
    assert float(found) == pytest.approx(total, rel=1e-4)


def test_both_engines_take_what_was_learned(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(folder=card, out=card / "tuned.npz", seconds=6, eager=True, **RECIPE)
    options.log_every, options.save_every = 1, 2
    assert tune_gguf.train(options) == 0
    held_out_before = float(re.search(r"held out ([\d.]+)", capsys.readouterr().out)[1])
    exported = argparse.Namespace(
        tuned=card / "tuned.npz", out=card / "adapter", model="tiny", data=card, rank=None, **FORM
    )
    assert tune_gguf.export(exported) == 0
    recipe = json.loads((card / "adapter" / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["log"][-1]["held_out"] < 1.5 < 3 < held_out_before and recipe["data"] == {"checked": []}
    asked = {"messages": GROUPS[0][1]["messages"], "prefill": "SELECT", "max_new_tokens": 40}
    model = load_model(str(card / "tiny.gguf"), batch_size=1, adapter=str(card / "adapter"))
    (answer,) = model.generate(**asked)
    model.close()
    texts = [answer.text]
    for form in ("adapter_model.safetensors", "adapter.gguf"):  # the first is taken where both are there
        weights = tiny_model("qwen2")
        merge_adapter(weights, card / "adapter")
        merged = LocalModel(weights, tiny_tokenizer(), name="tiny", revision="1")
        texts.append(merged.generate(**asked)[0].text)
        merged.close()
        (card / "adapter" / form).rename(card / form)
    stock = LocalModel(tiny_model("qwen2"), tiny_tokenizer(), name="tiny", revision="1")
    assert len({text[:8] for text in texts}) == 1 and stock.generate(**asked)[0].text[:8] != texts[0][:8]
    stock.close()


def test_queries_and_keys_of_a_llama_stand_in_llama_cpp_s_order_and_are_read_back(tmp_path: Path) -> None:
    down, up = np.ones((32, 32)), np.arange(8.0)[:, None] * np.ones((8, 32))
    options = argparse.Namespace(
        out=tmp_path, model="x", architecture="llama", heads=2, kv_heads=1, types=["F16", "F16"]
    )
    tune_gguf.gguf_out({f"blk.0.{kind}": (down, up) for kind in ("attn_q", "attn_k", "attn_v")}, 1.0, options)
    kept = {tensor.name: tensor.data[:, 0].tolist() for tensor in gguf.GGUFReader(tmp_path / "adapter.gguf").tensors}
    assert kept["blk.0.attn_q.weight.lora_b"] == [0, 2, 1, 3, 4, 6, 5, 7]  # the halves of each of two heads in turns
    assert kept["blk.0.attn_k.weight.lora_b"] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert kept["blk.0.attn_v.weight.lora_b"] == [0, 1, 2, 3, 4, 5, 6, 7]
    ups = [tensor for name, tensor in adapter_tensors(tmp_path).items() if ".lora_B." in name]
    assert len(ups) == 3 and all(np.array_equal(tensor.float().numpy(), up) for tensor in ups)


def tune_example(data: dict[str, Any]) -> Any:
    from training.examples import Example

    return Example.from_dict(data)


def kept_tokens(card: Path, chat: Chat, tokenizer: Any) -> list[int]:
    """The tokens that ``pack`` keeps: the first eight, and all that occur."""
    rows = [row(tune_example(e), chat.prompt_ids, lambda t: tokenizer(t)["input_ids"], 2) for e in GROUPS[0]]
    return sorted({*range(8), *(token for each in rows for token in each.ids)})
