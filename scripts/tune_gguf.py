"""Tune a Qwen2 model in a GGUF file on a graphics card that is at hand for a few minutes.

    python scripts/tune_gguf.py pack --gguf M.gguf --data training/spider --out card       # here: packs and parts
    python scripts/tune_gguf.py train --folder card --seconds 300 --out card/tuned.npz     # on the card: torch, numpy
    python scripts/tune_gguf.py export --gguf M.gguf --tuned card/tuned.npz --out adapter  # here: PEFT and GGUF

``pack`` writes the training data as token rows (``packs.npz``) and the weights, still quantised, in parts of at most
``--part-megabytes`` that can be carried one by one; of the embeddings only the rows of tokens that occur. ``train``
needs nothing but torch and numpy: it compiles on random weights at once, waits for the parts, computes with exactly
the weights that llama.cpp computes with, and lets the learning rate fall with the clock, so that it ends on time; the
adapter is written every ``--save-every`` seconds. ``export`` writes the adapter for transformers and for llama.cpp.

The same three commands run on a CPU (``--rows 512 --limit 4``), a thousand times slower. Not covered: other
architectures, resuming (a run is short), several cards.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SCRIPTS = Path(__file__).resolve().parent
TOP = ("token_embd.weight", "output.weight")  # one row a token


# --- pack: here ------------------------------------------------------------------------------------------------------


def pack(options: argparse.Namespace) -> int:
    """Write ``packs.npz``, ``model.json`` and the parts of the weights."""
    sys.path.insert(0, str(SCRIPTS))
    from gguf import GGUFReader

    options.out.mkdir(parents=True, exist_ok=True)
    rounds, held_out = read_rows(options)
    kept = np.unique(np.concatenate([np.arange(options.common), *(ids for ids, *_ in (*rounds, *held_out))]))
    if len(kept) > 65535:
        sys.exit(f"error: {len(kept)} different tokens; give a lower --common")
    np.savez_compressed(options.out / "packs.npz", **columns(rounds, kept, "train"), **columns(held_out, kept, "held"))
    reader = GGUFReader(options.gguf)
    fields = {name: reader.fields[f"qwen2.{name}"].contents() for name in SHAPE_FIELDS}
    weights_out(reader, kept, options, fields)
    print(json.dumps({"packs": len(rounds), "held_out": len(held_out), "tokens_kept": len(kept)}))
    print(
        json.dumps({"tokens": sum(len(ids) for ids, *_ in rounds), "learned": sum(int(m.sum()) for _, m, *_ in rounds)})
    )
    return 0


SHAPE_FIELDS = (
    *("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv"),
    *("rope.freq_base", "attention.layer_norm_rms_epsilon"),
)


def read_rows(options: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """The packs of ``--rounds`` rounds, each round shuffled, and the held-out ones: (ids, learned, part, positions).

    part: 0 where a token is seen by the whole pack, else the number of its example.
    """
    import random

    from training.packing import IGNORED, Row, packs, read_groups
    from transformers import AutoTokenizer

    from nl2sql.models.chat import Chat

    form = {} if options.tokenizer else {"gguf_file": options.gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(str(options.tokenizer or options.gguf.parent), **form)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = Chat(tokenizer, end)
    frames: dict[tuple[str, ...], str] = {}

    def prompt(messages: Sequence[dict[str, str]], opening: str) -> str:
        """``chat.prompt_text``, rendered once for all users' turns."""
        key = tuple(message["content"] for message in messages[:-1])
        if key not in frames:
            frames[key] = chat.prompt_text([*messages[:-1], {**messages[-1], "content": "\0"}])
            made = frames[key].replace("\0", messages[-1]["content"])
            assert made == chat.prompt_text(messages), "this chat template changes what a user says"
        return frames[key].replace("\0", messages[-1]["content"]) + opening

    def packed(groups: Any) -> list[Any]:
        examples = [example for group in groups for example in group]
        texts: list[str] = []
        for example in examples:
            first = next(i for i, (_, learned) in enumerate(example.pieces) if learned)
            texts.append(prompt(example.messages, "".join(text for text, _ in example.pieces[:first])))
            texts += [text for text, _ in example.pieces[first:]]
        found = iter(tokenizer(texts, add_special_tokens=False)["input_ids"])
        made = []
        for group in groups:
            rows = []
            for example in group:
                first = next(i for i, (_, learned) in enumerate(example.pieces) if learned)
                ids = list(next(found))
                labels = [IGNORED] * len(ids)
                for _, learned in example.pieces[first:]:
                    new = next(found)
                    ids += new
                    labels += new if learned else [IGNORED] * len(new)
                if example.closed:
                    ids, labels = [*ids, end], [*labels, end]
                rows.append(Row(tuple(ids), tuple(labels)))
            made += map(arrays, packs([rows], options.pack_tokens))
        return made

    rounds, held_out = read_groups(options.data)
    found = []
    for number, groups in enumerate(rounds[: options.rounds]):
        made = packed(groups[: options.limit])
        random.Random(number).shuffle(made)
        found += made
        print(f"round {number + 1} of {min(len(rounds), options.rounds)}: {len(made)} packs", file=sys.stderr)
    return found, packed(held_out[: options.limit])[: options.held_out]


def arrays(pack: Any) -> tuple[np.ndarray, ...]:
    """A ``training.packing.Pack`` as ids, learned, part and positions."""
    part = np.zeros(len(pack.ids), np.int16)
    for number, (start, end) in enumerate(pack.spans, 1):
        part[start:end] = number
    return np.array(pack.ids), np.array(pack.labels) >= 0, part, np.array(pack.positions)


def columns(packs: Sequence[Any], kept: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """The packs one behind the other, tokens by their place in ``kept``."""
    ids, learned, part, positions = (np.concatenate([each[i] for each in packs]) for i in range(4))
    return {
        f"{name}_ids": np.searchsorted(kept, ids).astype(np.uint16),
        f"{name}_learned": np.packbits(learned),
        f"{name}_part": part,
        f"{name}_positions": positions.astype(np.int16),
        f"{name}_sizes": np.array([len(each[0]) for each in packs], np.int32),
    }


def weights_out(reader: Any, kept: np.ndarray, options: argparse.Namespace, fields: dict[str, Any]) -> None:
    """Every tensor as its quantised bytes, in parts; ``model.json`` says what lies where."""
    names, blob, places = [], bytearray(), []
    for tensor in reader.tensors:
        data = np.asarray(tensor.data)
        shape = [int(n) for n in reversed(tensor.shape)]
        if tensor.name in TOP:
            data, shape[0] = data[kept], len(kept)
        raw = data.tobytes()
        places.append([tensor.name, tensor.tensor_type.name, shape, len(blob), len(raw)])
        blob += raw
    size = options.part_megabytes * 1_000_000
    for number, start in enumerate(range(0, len(blob), size)):
        name = f"part{number:02d}"
        (options.out / name).write_bytes(blob[start : start + size])
        names.append([name, len(blob[start : start + size])])
    model = {"shape": fields, "tensors": places, "parts": names, "vocabulary": len(kept)}
    (options.out / "model.json").write_text(json.dumps(model), encoding="utf-8")
    print(f"{len(names)} parts, {len(blob) / 1e6:.0f} MB")


# --- train: on the card, with torch and numpy alone ------------------------------------------------------------------


def dequantised(raw: Any, kind: str, shape: Sequence[int]) -> Any:
    """The tensor of ``raw`` bytes (uint8) of a GGUF type, float32, as llama.cpp reads it."""
    import torch

    def half(b: Any) -> Any:
        return b.contiguous().view(torch.float16).float()

    if kind == "F32":
        return raw.view(torch.float32).reshape(*shape)
    if kind == "Q8_0":
        b = raw.reshape(-1, 34)
        return (half(b[:, :2]) * b[:, 2:].contiguous().view(torch.int8).float()).reshape(*shape)
    if kind == "Q5_0":
        b = raw.reshape(-1, 22)
        high = (b[:, 2:6, None].int() >> torch.arange(8, device=raw.device)) & 1
        low = torch.cat((b[:, 6:] & 15, b[:, 6:] >> 4), 1).int()
        return (half(b[:, :2]) * ((low | (high.reshape(-1, 32) << 4)) - 16).float()).reshape(*shape)
    if kind == "Q4_K":
        b = raw.reshape(-1, 144)
        scale, least, packed = half(b[:, :2]), half(b[:, 2:4]), b[:, 4:16].int()
        low, mid, top = packed[:, :4], packed[:, 4:8], packed[:, 8:]
        scales = torch.cat((low & 63, (top & 15) | ((low >> 6) << 4)), 1).float()
        leasts = torch.cat((mid & 63, (top >> 4) | ((mid >> 6) << 4)), 1).float()
        q = b[:, 16:].reshape(-1, 4, 1, 32)
        q = torch.cat((q & 15, q >> 4), 2).reshape(-1, 8, 32).float()
        return ((scale * scales)[:, :, None] * q - (least * leasts)[:, :, None]).reshape(*shape)
    if kind == "Q6_K":
        b = raw.reshape(-1, 210)
        low, high = b[:, :128].reshape(-1, 2, 1, 64), b[:, 128:192].reshape(-1, 2, 1, 32)
        low = torch.cat((low & 15, low >> 4), 2).reshape(-1, 8, 32).int()
        high = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], 2).reshape(-1, 8, 32).int()
        q = ((low | (high << 4)) - 32).reshape(-1, 16, 16).float()
        scales = b[:, 192:208].contiguous().view(torch.int8).float()
        return ((half(b[:, 208:]) * scales)[:, :, None] * q).reshape(*shape)
    raise ValueError(f"a tensor of type {kind}")


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    base: float
    epsilon: float


def model_of(shape: Shape, vocabulary: int, rank: int, scale: float, device: Any, dtype: Any) -> Any:
    """A Qwen2 model with random frozen weights and a fresh adapter in float32.

    ``model.parts`` are the two halves of a layer around its attention: pure functions, so that they compile once.
    """
    import torch
    from torch import nn
    from torch.nn.functional import linear, rms_norm, silu

    head = shape.width // shape.heads

    class Adapted(nn.Module):
        """A frozen linear layer, and the low-rank change beside it."""

        def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
            super().__init__()
            self.weight = nn.Buffer(torch.randn(outputs, inputs, device=device, dtype=dtype) / math.sqrt(inputs))
            self.bias = nn.Buffer(torch.zeros(outputs, device=device, dtype=dtype)) if bias else None
            self.down = nn.Parameter(torch.empty(rank, inputs, device=device).uniform_(-1, 1) / math.sqrt(inputs))
            self.up = nn.Parameter(torch.zeros(outputs, rank, device=device))

        def tensors(self) -> Any:
            return self.weight, self.bias, self.down, self.up

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn_norm = nn.Buffer(torch.ones(shape.width, device=device, dtype=dtype))
            self.ffn_norm = nn.Buffer(torch.ones(shape.width, device=device, dtype=dtype))
            self.attn_q = Adapted(shape.width, shape.width, True)
            self.attn_k = Adapted(shape.width, shape.kv_heads * head, True)
            self.attn_v = Adapted(shape.width, shape.kv_heads * head, True)
            self.attn_output = Adapted(shape.width, shape.width, False)
            self.ffn_gate = Adapted(shape.width, shape.inner, False)
            self.ffn_up = Adapted(shape.width, shape.inner, False)
            self.ffn_down = Adapted(shape.inner, shape.width, False)

    def adapted(x: Any, tensors: Any) -> Any:
        weight, bias, down, up = tensors
        return linear(x, weight, bias) + linear(linear(x, down.to(x.dtype)), up.to(x.dtype)) * scale

    def before(x: Any, cos: Any, sin: Any, norm: Any, q: Any, k: Any, v: Any) -> Any:
        """Queries, keys and values for attention: ``[1, heads, tokens, head]``."""

        def turned(y: Any) -> Any:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat((-second, first), -1) * sin

        def of_heads(tensors: Any) -> Any:
            return adapted(y, tensors).view(1, y.shape[1], -1, head).transpose(1, 2)

        y = rms_norm(x, (shape.width,), norm, shape.epsilon)
        groups = shape.heads // shape.kv_heads
        keys, values = (each.repeat_interleave(groups, 1) for each in (turned(of_heads(k)), of_heads(v)))
        return turned(of_heads(q)).contiguous(), keys.contiguous(), values.contiguous()

    def after(x: Any, seen: Any, norm: Any, output: Any, gate: Any, up: Any, down: Any) -> Any:
        x = x + adapted(seen.transpose(1, 2).reshape(1, x.shape[1], shape.width), output)
        y = rms_norm(x, (shape.width,), norm, shape.epsilon)
        return x + adapted(silu(adapted(y, gate)) * adapted(y, up), down)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token_embd = nn.Buffer(torch.randn(vocabulary, shape.width, device=device, dtype=dtype) * 0.02)
            self.output = nn.Buffer(torch.randn(vocabulary, shape.width, device=device, dtype=dtype) * 0.02)
            self.output_norm = nn.Buffer(torch.ones(shape.width, device=device, dtype=dtype))
            self.blk = nn.ModuleList(Layer() for _ in range(shape.layers))
            steps = torch.arange(0, head, 2, device=device).float() / head
            self.turns = nn.Buffer(shape.base**-steps)
            self.parts = (before, after)

        def forward(self, row: Row, attend: Any) -> Any:
            """Hidden states before learned tokens, normed: ``[learned, width]``."""
            angles = row.positions[:, None].float() * self.turns
            angles = torch.cat((angles, angles), -1)
            cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
            before, after = self.parts
            x = self.token_embd[row.ids][None]
            for layer in self.blk:
                inputs = [each.tensors() for each in (layer.attn_q, layer.attn_k, layer.attn_v)]
                seen = attend(*before(x, cos, sin, layer.attn_norm, *inputs))
                outputs = (layer.attn_output, layer.ffn_gate, layer.ffn_up, layer.ffn_down)
                x = after(x, seen, layer.ffn_norm, *(each.tensors() for each in outputs))
            return rms_norm(x[0][row.before], (shape.width,), self.output_norm, shape.epsilon)

    return Model()


@dataclass(frozen=True)
class Row:
    """Packs in one row: ids, positions, pack and part (``read_rows``) of every token; what is learned behind what."""

    ids: Any
    positions: Any
    pack: Any
    part: Any
    before: Any
    targets: Any
    tokens: int


def rows_of(data: Any, name: str, length: int, device: Any) -> Iterator[Row]:
    """The packs of ``packs.npz`` in rows of ``length`` tokens, in their order."""
    import torch

    ids, part, positions = (data[f"{name}_{column}"] for column in ("ids", "part", "positions"))
    learned = np.unpackbits(data[f"{name}_learned"])[: len(ids)].astype(bool)
    sizes = data[f"{name}_sizes"]
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        last = first + 1
        while last < len(sizes) and ends[last] - (ends[first] - sizes[first]) <= length:
            last += 1
        start, stop = ends[first] - sizes[first], ends[last - 1]
        if stop - start > length:
            first = last
            continue
        row_ids = np.zeros(length, np.int64)
        row_part, row_pack, row_positions = (np.zeros(length, np.int32) for _ in range(3))
        size = stop - start
        row_ids[:size], row_part[:size], row_positions[:size] = ids[start:stop], part[start:stop], positions[start:stop]
        row_pack[:size] = np.repeat(np.arange(1, last - first + 1), sizes[first:last])
        here = np.flatnonzero(learned[start:stop])
        opening = row_part[here] != row_part[here - 1]  # an example's first own token: behind the shared ones
        before = here - 1
        for at in np.flatnonzero(opening):
            same = (row_pack == row_pack[here[at]]) & (row_part == 0)
            before[at] = np.flatnonzero(same)[-1]
        made = [torch.from_numpy(a).to(device) for a in (row_ids, row_positions, row_pack, row_part, before)]
        yield Row(*made, torch.from_numpy(row_ids[here]).to(device), int(size))
        first = last


def attention(device: Any) -> Any:
    """A function that gives, for a row, attention in which a token sees its pack's shared ones and its example's."""
    from functools import partial

    import torch
    from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    on_card = device.type == "cuda"
    flex = torch.compile(flex_attention, dynamic=False) if on_card else None  # no gradients on a CPU

    def attending(row: Row) -> Any:
        pack, part, length = row.pack, row.part, len(row.ids)

        def sees(batch: Any, heads: Any, by: Any, of: Any) -> Any:
            return (pack[by] == pack[of]) & (by >= of) & ((part[of] == 0) | (part[of] == part[by]))

        where = (sees, None, None, length, length, str(device))
        if flex is None:
            return partial(scaled_dot_product_attention, attn_mask=create_mask(*where))
        return partial(flex, block_mask=create_block_mask(*where))

    return attending


def train(options: argparse.Namespace) -> int:
    import torch
    from torch.nn.functional import cross_entropy, linear

    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(options.seed)
    about = json.loads((options.folder / "model.json").read_text(encoding="utf-8"))
    shape = Shape(*(about["shape"][name] for name in SHAPE_FIELDS))
    model = model_of(shape, about["vocabulary"], options.rank, options.alpha / options.rank, device, dtype)
    attending = attention(device)
    data = np.load(options.folder / "packs.npz")
    say(began, f"{device} {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M learned")

    def loss_of(row: Row) -> Any:
        hidden = model(row, attending(row))
        return cross_entropy(linear(hidden, model.output).float(), row.targets, reduction="sum")

    if device.type == "cuda":
        warm_up(model, loss_of, data, options, device, began)
    load_weights(model, about, options.folder, device, began)
    held_out = list(rows_of(data, "held", options.rows, device))
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        weights, lr=options.rate, weight_decay=0.0, betas=(0.9, 0.99), fused=device.type == "cuda"
    )
    log: list[dict[str, float]] = []

    @torch.no_grad()
    def held_out_loss() -> float:
        return sum(float(loss_of(row)) for row in held_out) / max(1, sum(len(row.targets) for row in held_out))

    say(began, f"held out {held_out_loss():.4f}")
    start = saved = told = time.monotonic()
    step, tokens, total, learned = 0, 0, 0.0, 0
    queue: Iterator[Row] = iter(())
    rounds = 0
    while (share := (time.monotonic() - start) / seconds_of(options)) < 1:
        rate = options.rate * min(1.0, (step + 1) / options.warmup) * (0.5 + 0.5 * math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = []
        while len(batch) < options.batch_rows:
            row = next(queue, None)
            if row is None:
                queue, rounds = rows_of(data, "train", options.rows, device), rounds + 1
                continue
            batch.append(row)
        many = sum(len(row.targets) for row in batch)
        for row in batch:
            loss = loss_of(row)
            (loss / many).backward()
            total += float(loss.detach())
            tokens += row.tokens
        learned += many
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        now = time.monotonic()
        if now - told > options.log_every:
            line = {"step": step, "passes": rounds, "tokens": tokens, "loss": total / learned, "rate": rate}
            log.append({**line, "tokens_s": tokens / (now - start)})
            say(began, json.dumps(log[-1]))
            told, total, learned = now, 0.0, 0
        if now - saved > options.save_every:
            save(model, options, log)
            saved = now
    log.append({"step": step, "tokens": tokens, "held_out": held_out_loss()})
    save(model, options, log)
    say(began, f"done {json.dumps(log[-1])}")
    return 0


def seconds_of(options: argparse.Namespace) -> float:
    """How long to train: the file ``seconds`` beside the data overrules ``--seconds``, also while it runs."""
    try:
        return float((options.folder / "seconds").read_text())
    except (OSError, ValueError):
        return float(options.seconds)


def say(began: float, text: str) -> None:
    print(f"{time.monotonic() - began:.0f} s: {text}", flush=True)


def warm_up(model: Any, loss_of: Any, data: Any, options: argparse.Namespace, device: Any, began: float) -> None:
    """Compile what can be compiled while the weights are on their way; what fails to compile runs as it is."""
    import torch

    row = next(rows_of(data, "train", options.rows, device))
    if not options.eager:
        plain = model.parts
        try:
            model.parts = tuple(torch.compile(part, dynamic=False) for part in plain)
            loss_of(row).backward()
        except Exception as error:  # noqa: BLE001
            say(began, f"not compiled: {str(error)[:2000]}")
            model.parts = plain
    for _ in range(2):
        loss_of(row).backward()
    torch.cuda.synchronize()
    start = time.monotonic()
    for _ in range(3):
        loss_of(row).backward()
    torch.cuda.synchronize()
    speed = 3 * options.rows / (time.monotonic() - start)
    model.zero_grad(set_to_none=True)
    peak = torch.cuda.max_memory_allocated() / 2**30
    say(began, f"compiled; {speed:.0f} tokens/s, {peak:.0f} GiB")


def load_weights(model: Any, about: dict[str, Any], folder: Path, device: Any, began: float) -> None:
    """Wait for the parts, then put every tensor in its place."""
    import torch

    while missing := [
        n for n, size in about["parts"] if not (folder / n).is_file() or (folder / n).stat().st_size < size
    ]:
        say(began, f"waiting for {len(missing)} parts")
        time.sleep(3)
    blob = torch.from_numpy(np.concatenate([np.fromfile(folder / n, np.uint8) for n, _ in about["parts"]]))
    places = dict(model.named_buffers())
    for name, kind, shape, start, size in about["tensors"]:
        target = places[name.removesuffix(".weight") if name.endswith("norm.weight") or name in TOP else name]
        target.copy_(dequantised(blob[start : start + size].clone().to(device), kind, shape))
    say(began, "weights loaded")


def save(model: Any, options: argparse.Namespace, log: Sequence[dict[str, float]]) -> None:
    """The adapter in float16, and what the training said."""
    found = {name: p.detach().half().cpu().numpy() for name, p in model.named_parameters()}
    recipe = {
        name: getattr(options, name) for name in ("rank", "alpha", "rate", "warmup", "rows", "batch_rows", "seed")
    }
    about = json.dumps({"recipe": recipe, "log": list(log)})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    partial = options.out.with_name(f"{options.out.name}.part.npz")
    np.savez(partial, about=np.array(about), **found)
    partial.replace(options.out)


# --- export: here ----------------------------------------------------------------------------------------------------


def export(options: argparse.Namespace) -> int:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json`` (PEFT), and ``adapter.gguf`` (llama.cpp)."""
    pairs, about, scale = (peft_in if options.tuned.is_dir() else tuned_in)(options.tuned)
    full = next(iter(pairs.values()))[0].shape[0]
    rank = min(options.rank or full, full)
    pairs = {layer: reduced(down, up, rank) for layer, (down, up) in pairs.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    peft_out(pairs, rank, scale * rank, options)
    gguf_out(pairs, scale * rank, options)
    about |= {"model": about.get("model", {}) | {"name": options.model}, "kept": {"rank": rank, "types": options.types}}
    if options.data:
        about["data"] = json.loads((options.data / "card.json").read_text(encoding="utf-8"))
    (options.out / "recipe.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    for file in sorted(options.out.iterdir()):
        print(f"{file.stat().st_size:>12,} {file}")
    return 0


Pairs = dict[str, tuple[np.ndarray, np.ndarray]]


def tuned_in(file: Path) -> tuple[Pairs, dict[str, Any], float]:
    """What ``train`` wrote: the matrices by layer, their recipe, and the factor on their product."""
    tuned = np.load(file)
    about = json.loads(str(tuned["about"]))
    layers = [name.removesuffix(".down") for name in tuned.files if name.endswith(".down")]
    pairs = {layer: (tuned[f"{layer}.down"], tuned[f"{layer}.up"]) for layer in layers}
    return pairs, about, about["recipe"]["alpha"] / about["recipe"]["rank"]


def peft_in(folder: Path) -> tuple[Pairs, dict[str, Any], float]:
    """The same of a folder that peft wrote."""
    from nl2sql.models.weight_files import GGUF_LAYERS, adapter_scale, adapter_tensors

    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    kinds = {place: kind for kind, place in GGUF_LAYERS.items()}
    pairs = {}
    found = {name: tensor.numpy() for name, tensor in adapter_tensors(folder).items()}
    for name, down in found.items():
        if name.endswith(".lora_A.weight"):
            number, _, place = name.split(".layers.")[1].removesuffix(".lora_A.weight").partition(".")
            pairs[f"blk.{number}.{kinds[place]}"] = (down, found[name.replace(".lora_A.", ".lora_B.")])
    return pairs, json.loads((folder / "recipe.json").read_text(encoding="utf-8")), adapter_scale(config, folder)


def reduced(down: np.ndarray, up: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The closest pair of ``rank``; as it is where the rank is its own."""
    down, up = down.astype(np.float32), up.astype(np.float32)
    if rank >= down.shape[0]:
        return down, up
    left, upper = np.linalg.qr(up)
    right, lower = np.linalg.qr(down.T)
    u, sizes, v = np.linalg.svd(upper @ lower.T)
    roots = np.sqrt(sizes[:rank])
    return roots[:, None] * (right @ v[:rank].T).T, (left @ u[:, :rank]) * roots


def peft_out(pairs: Pairs, rank: int, alpha: float, options: argparse.Namespace) -> None:
    from safetensors.numpy import save_file

    from nl2sql.models.weight_files import GGUF_LAYERS

    tensors = {}
    for layer, (down, up) in pairs.items():
        _, number, kind = layer.split(".")
        place = f"base_model.model.model.layers.{number}.{GGUF_LAYERS[kind]}"
        tensors[f"{place}.lora_A.weight"] = np.ascontiguousarray(down.astype(np.float16))
        tensors[f"{place}.lora_B.weight"] = np.ascontiguousarray(up.astype(np.float16))
    save_file(tensors, options.out / "adapter_model.safetensors")
    config = {
        "base_model_name_or_path": options.model,
        "lora_alpha": alpha,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in GGUF_LAYERS.values()}),
        "task_type": "CAUSAL_LM",
    }
    (options.out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def gguf_out(pairs: Pairs, alpha: float, options: argparse.Namespace) -> None:
    import gguf

    writer = gguf.GGUFWriter(options.out / "adapter.gguf", options.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    writer.add_string("general.name", options.model)
    heads = {}
    if options.architecture == "llama":  # whose queries and keys llama.cpp keeps in another order
        heads = {"attn_q": options.heads, "attn_k": options.kv_heads}
        writer.add_head_count(options.heads)
        writer.add_head_count_kv(options.kv_heads)
    for layer, (down, up) in pairs.items():
        if count := heads.get(layer.rpartition(".")[2]):
            up = up.reshape(count, 2, -1, up.shape[1]).swapaxes(1, 2).reshape(up.shape)
        for suffix, matrix, type_ in zip(("lora_a", "lora_b"), (down, up), options.types, strict=True):
            kind = gguf.GGMLQuantizationType[type_]
            matrix = np.ascontiguousarray(matrix.astype(np.float32))
            if matrix.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
                writer.add_tensor(f"{layer}.weight.{suffix}", gguf.quants.quantize(matrix, kind), raw_dtype=kind)
            else:
                writer.add_tensor(f"{layer}.weight.{suffix}", matrix.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="training data and weights, ready to be carried to a card")
    packing.add_argument("--gguf", required=True, type=Path)
    packing.add_argument("--tokenizer", type=Path, help="a folder with it; default: the tokenizer in the GGUF file")
    packing.add_argument("--data", required=True, type=Path, help="what build_training_data.py wrote")
    packing.add_argument("--out", required=True, type=Path)
    packing.add_argument("--rounds", type=int, default=1000, help="of the data at most")
    packing.add_argument("--limit", type=int, help="groups of each round at most, to try things out")
    packing.add_argument("--held-out", type=int, default=60, help="packs that are only measured")
    packing.add_argument("--pack-tokens", type=int, default=2048)
    packing.add_argument("--common", type=int, default=24000, help="tokens kept whether or not they occur")
    packing.add_argument("--part-megabytes", type=int, default=48)
    training = commands.add_parser("train", help="on the card")
    training.add_argument("--folder", required=True, type=Path, help="what pack wrote; parts may still be missing")
    training.add_argument("--out", required=True, type=Path)
    training.add_argument("--seconds", type=float, default=300, help="of training, behind compiling and loading")
    training.add_argument("--rank", type=int, default=32)
    training.add_argument("--alpha", type=float, default=32)
    training.add_argument("--rate", type=float, default=6e-4)
    training.add_argument("--warmup", type=int, default=40, help="updates")
    training.add_argument("--rows", type=int, default=16384, help="tokens computed at once")
    training.add_argument("--batch-rows", type=int, default=1, help="rows of an update")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--eager", action="store_true", help="do not compile the layers")
    training.add_argument("--log-every", type=float, default=10)
    training.add_argument("--save-every", type=float, default=60)
    exporting = commands.add_parser("export", help="the adapter for transformers and llama.cpp")
    exporting.add_argument("--tuned", required=True, type=Path, help="what train wrote, or an adapter of peft's")
    exporting.add_argument("--out", required=True, type=Path)
    exporting.add_argument("--model", default="qwen2.5-coder-0.5b")
    exporting.add_argument("--data", type=Path, help="what build_training_data.py wrote, for recipe.json")
    exporting.add_argument("--rank", type=int, help="the closest adapter of a lower rank")
    exporting.add_argument("--types", nargs=2, default=["Q8_0", "Q8_0"], help="of the matrices in adapter.gguf")
    exporting.add_argument("--architecture", default="qwen2", help="as llama.cpp calls it")
    exporting.add_argument("--heads", type=int, help="of attention, where the architecture is llama")
    exporting.add_argument("--kv-heads", type=int)
    options = parser.parse_args()
    return {"pack": pack, "train": train, "export": export}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
