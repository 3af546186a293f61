"""Keys and values of a causal LM in preallocated slots, one conversation each, and ragged forwards over them.

One forward takes any mix of rows: a few hundred prompt tokens of one conversation, one token each of thirty others.
The tokens lie end to end (no padding), every row attends to its own slot alone, and a slot keeps what it holds when
its row is done, so a conversation that comes back grown pays for its new tokens only. This is done through
transformers' attention interface; models that do not use it (recurrent layers, own caches, soft-capped or
sink attention) are found by ``make_decoder`` and served by ``SequentialDecoder``.
Not thread-safe: one worker thread owns a decoder.
"""

from __future__ import annotations

import inspect
import logging
import math
import mmap
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import DynamicCache

logger = logging.getLogger(__name__)

ATTENTION = "nl2sql_slots"
_ROUND = 512  # capacities are multiples of this many tokens
_FOLD = 32  # up to so many queries of a row are attended to with their heads folded
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")  # what changes attention scores beyond scaling


class Slot:
    """One conversation: the tokens whose keys and values are held, and per layer ``[1, heads, capacity, dim]``."""

    def __init__(self) -> None:
        self.tokens = array("q")
        self.capacity = 0
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.used = 0  # when it was last in use, in the owner's ticks
        self.own_cache: Any = None  # SequentialDecoder's

    def shared(self, wanted: np.ndarray) -> int:
        """The number of tokens of ``wanted`` (int64) that this slot holds from the start."""
        # Copied: a view that outlives this call (in a debugger, a profiler) would forbid the slot to grow.
        held = self.tokens[: len(wanted)].tobytes()
        return common_prefix(wanted, np.frombuffer(held, dtype=np.int64))


class Segment(NamedTuple):
    """Tokens to append to a slot, and after how many of the last of them logits are wanted."""

    slot: Slot
    tokens: Sequence[int]
    logits: int = 1


class _Span(NamedTuple):
    slot: Slot
    start: int  # in the slot
    end: int
    first: int  # in the batch
    last: int


@dataclass
class _Batch:
    spans: list[_Span]
    decoder: SlotDecoder
    masks: dict[int | None, list[torch.Tensor | None]] = field(default_factory=dict)  # of the spans, by window

    def mask(self, at: int, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        """The mask of a span: the same in every layer of a window."""
        if window not in self.masks:
            self.masks[window] = [
                _mask(span.start, span.end, _low(span.start, window), window, like) for span in self.spans
            ]
        return self.masks[window][at]


class SlotDecoder:
    """Ragged prefill and decoding over slots. model: a transformers causal LM in eval mode; decoders may share it.

    ``token_bytes``: memory of one token's keys and values (0: unknown). ``prompt_lookup``: whether several tokens
    of a row can be tried at once and taken back by ``crop`` at no cost.
    """

    prompt_lookup = True

    def __init__(self, model: Any, token_bytes: int = 0) -> None:
        self.model = model
        self.token_bytes = token_bytes
        self.windows: set[int | None] = set()  # that attention has been asked for
        model.set_attn_implementation(ATTENTION)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Append each segment's tokens to its slot; float32 logits ``[sum of segment.logits, vocab]``, on CPU.

        A slot occurs once. Slots too short for what comes are made longer.
        """
        spans: list[_Span] = []
        wanted: list[int] = []
        for slot, new, logits in segments:
            held, first = len(slot.tokens), spans[-1].last if spans else 0
            if held + len(new) > slot.capacity:
                self.reserve(slot, held + len(new))
            spans.append(_Span(slot, held, held + len(new), first, first + len(new)))
            wanted += range(first + len(new) - logits, first + len(new))
        device = self.model.device
        out = self.model(
            input_ids=torch.tensor([[token for segment in segments for token in segment.tokens]], device=device),
            position_ids=torch.tensor([[n for s in spans for n in range(s.start, s.end)]], device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(wanted, dtype=torch.long, device=device),
            slot_batch=_Batch(spans, self),
        )
        for slot, new, _ in segments:
            slot.tokens.extend(new)
        wanted_logits: torch.Tensor = out.logits[0].float().cpu()
        return wanted_logits

    @torch.inference_mode()
    def copy_prefix(self, source: Slot, target: Slot, length: int) -> None:
        """Make ``target`` hold the first ``length`` tokens of ``source``."""
        self.crop(target, 0)
        self.reserve(target, length)
        for index, (keys, values) in source.layers.items():
            own = target.layers.get(index) or self.allocate(target, index, keys, values)
            own[0][:, :, :length] = keys[:, :, :length]
            own[1][:, :, :length] = values[:, :, :length]
        target.tokens = source.tokens[:length]

    def crop(self, slot: Slot, length: int) -> None:
        """Forget what ``slot`` holds past ``length`` tokens."""
        del slot.tokens[length:]

    @torch.inference_mode()
    def reserve(self, slot: Slot, tokens: int) -> None:
        """Make room for ``tokens`` tokens in all, keeping what is there."""
        if tokens <= slot.capacity:
            return
        slot.capacity = rounded(tokens)
        held = len(slot.tokens)
        for index, (keys, values) in slot.layers.items():
            grown = self.allocate(slot, index, keys, values)
            grown[0][:, :, :held] = keys[:, :, :held]
            grown[1][:, :, :held] = values[:, :, :held]

    def allocate(
        self, slot: Slot, index: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Empty keys and values of one layer, of the slot's capacity, shaped like those given."""
        made = empty_pages(keys, slot.capacity), empty_pages(values, slot.capacity)
        slot.layers[index] = made
        return made


def empty_pages(like: torch.Tensor, capacity: int) -> torch.Tensor:
    """Zeros ``[1, heads, capacity, dim]``, of the kind of ``like``; on a CPU in a mapping of their own.

    The system hands its pages out when they are first written, and has them back with the tensor. What malloc gave
    would stay in the arena of the thread that asked, between slots of other lengths.
    """
    shape = (1, like.shape[1], capacity, like.shape[3])
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    pages = mmap.mmap(-1, math.prod(shape) * like.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


def rounded(tokens: int) -> int:
    """The capacity that a slot of ``tokens`` tokens gets."""
    return -(-tokens // _ROUND) * _ROUND


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix of two int64 vectors."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length


# --------------------------------------------------------------------------------------------------------- attention


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    slot_batch: _Batch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write this layer's new keys and values into the slots and attend, row by row.

    query ``[1, heads, tokens, dim]``, key and value ``[1, kv_heads, tokens, dim]``, all of this forward's tokens;
    returns ``[1, tokens, heads, dim]``.
    """
    if slot_batch is None:
        raise ValueError("this model was loaded for nl2sql's slots; call it through nl2sql")
    if any(kwargs.get(name) is not None for name in _UNSUPPORTED):
        raise NotImplementedError("attention with soft caps or sinks")
    layer, window = module.layer_idx, sliding_window
    slot_batch.decoder.windows.add(window)
    out: list[torch.Tensor] = []
    for at, (slot, start, end, first, last) in enumerate(slot_batch.spans):
        keys, values = slot.layers.get(layer) or slot_batch.decoder.allocate(slot, layer, key, value)
        keys[:, :, start:end] = key[:, :, first:last]
        values[:, :, start:end] = value[:, :, first:last]
        low = _low(start, window)
        keys, values = keys[:, :, low:end], values[:, :, low:end]
        mask = slot_batch.mask(at, window, query)
        out.append(_attend_one(query[:, :, first:last], keys, values, mask, scaling))
    return torch.cat(out)[None], None


def _attend_one(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """One row: query ``[1, heads, queries, dim]`` over its slot; ``[queries, heads, dim]``. No mask: plain causal."""
    heads, queries = query.shape[1:3]
    groups, sharing = keys.shape[1], heads // keys.shape[1]
    if queries > _FOLD:
        causal = mask is None
        seen = scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=sharing > 1
        )
        return seen[0].transpose(0, 1)
    # Few queries: the heads that share keys go in as so many queries of one head, and the keys are read once.
    folded = query.reshape(1, groups, sharing * queries, -1)
    if queries == 1:
        mask = None
    elif mask is None:
        mask = torch.ones(queries, queries, dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        mask = mask.repeat(sharing, 1)
    seen = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    return seen.reshape(heads, queries, -1).transpose(0, 1)


def _low(start: int, window: int | None) -> int:
    """The first column that a query at ``start`` sees."""
    return 0 if window is None else max(0, start + 1 - window)


def _mask(start: int, end: int, low: int, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
    """The columns low..end that each query start..end sees: bool ``[queries, columns]``; None: plain causal."""
    if start == low == 0 and (window is None or window >= end):
        return None
    at = torch.arange(start, end, device=like.device)[:, None]
    columns = torch.arange(low, end, device=like.device)[None]
    return columns <= at if window is None else (columns <= at) & (columns > at - window)


AttentionInterface.register(ATTENTION, _attend)


# ------------------------------------------------------------------------------------------- models without slots


class SequentialDecoder:
    """The same interface over the model's own cache, one row at a time: for models that do not fit slots.

    Slower: the cache is used for the next token alone, and a prompt is read whole, also of a conversation that goes on
    (the own caches of recurrent models do not take several tokens at once).
    """

    token_bytes = 0
    prompt_lookup = False

    def __init__(self, model: Any) -> None:
        self.model = model
        # Recurrent models call their state cache_params.
        known = inspect.signature(model.forward).parameters
        self._cache_name = "cache_params" if "cache_params" in known else "past_key_values"

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        """As ``SlotDecoder.forward``, one segment after the other."""
        computed = [self._extend(slot, new) for slot, new, wanted in segments if self._wants(slot, new, wanted)]
        return torch.stack(computed) if computed else torch.empty(0)

    def _wants(self, slot: Slot, new: Sequence[int], wanted: int) -> bool:
        """Whether logits are wanted now; tokens without any are computed with what follows them."""
        slot.own_cache = slot.own_cache if wanted and len(new) == 1 else None
        slot.tokens.extend(new)
        return wanted > 0

    def _extend(self, slot: Slot, new: Sequence[int]) -> torch.Tensor:
        read = list(new)
        if slot.own_cache is None:
            read = list(slot.tokens)
            slot.own_cache = DynamicCache(config=self.model.config.get_text_config())
        out = self.model(
            input_ids=torch.tensor([read], device=self.model.device),
            use_cache=True,
            **{self._cache_name: slot.own_cache},
        )
        slot.own_cache = getattr(out, self._cache_name)
        logits: torch.Tensor = out.logits[0, -1].float().cpu()
        return logits

    def copy_prefix(self, source: Slot, target: Slot, length: int) -> None:
        """Own caches are not shared: the target starts empty."""
        self.crop(target, 0)

    def crop(self, slot: Slot, length: int) -> None:
        """Forget everything when anything must be forgotten: own caches may not be croppable."""
        if length < len(slot.tokens):
            del slot.tokens[:]
            slot.own_cache = None

    def reserve(self, slot: Slot, tokens: int) -> None:
        """Nothing to reserve: every cache grows by itself."""


Decoder: TypeAlias = SlotDecoder | SequentialDecoder


def make_decoder(model: Any) -> Decoder:
    """Slots when they compute what the model itself computes (checked here on a few tokens), else one at a time."""
    if model.config._attn_implementation == ATTENTION:  # served before: plain forwards need the model's own again
        model.set_attn_implementation("sdpa")
    own = model.config._attn_implementation
    if _depends_on_length(model.config.get_text_config()):
        logger.warning("this model's positions depend on a text's length; rows run one at a time (slower)")
        return SequentialDecoder(model)
    rows = _probe_rows(model)
    plain = [_plain_logits(model, ids) for ids in rows]
    try:
        decoder = SlotDecoder(model)
        if _agrees(decoder, rows, plain):
            return decoder
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        logger.debug("KV slots do not serve this model: %s", error)
    model.set_attn_implementation(own)
    logger.warning("this model's attention does not fit batched slots; rows run one at a time (slower)")
    return SequentialDecoder(model)


def _depends_on_length(config: Any) -> bool:
    """Rotary embeddings that change past some length, and chunked attention: a short probe would not show it."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))] if isinstance(rope, dict) else []
    dynamic = any(kind.get("rope_type", kind.get("type")) in ("dynamic", "longrope") for kind in kinds)
    return dynamic or getattr(config, "attention_chunk_size", None) is not None


def _window_is_asked_for(decoder: SlotDecoder) -> bool:
    """Whether a window that the config names reaches our attention (some models hide it in their masks)."""
    config = decoder.model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return True
    if window >= getattr(config, "max_position_embeddings", window):
        return True
    kinds = getattr(config, "layer_types", None)
    return (kinds is not None and "sliding_attention" not in kinds) or any(w is not None for w in decoder.windows)


def _probe_rows(model: Any) -> list[list[int]]:
    vocabulary = min(model.config.get_text_config().vocab_size, 1000)
    return [[(7 * i + 13 * row + 3) % vocabulary for i in range(9 + 21 * row)] for row in range(2)]


@torch.inference_mode()
def _plain_logits(model: Any, ids: list[int]) -> torch.Tensor:
    out = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    logits: torch.Tensor = out.logits[0, -1].float().cpu()
    return logits


def _agrees(decoder: SlotDecoder, rows: list[list[int]], plain: list[torch.Tensor]) -> bool:
    """Whether mixed prefill and decoding and a reused prefix give the logits of one plain forward."""
    a, b, c = Slot(), Slot(), Slot()
    decoder.forward([Segment(a, rows[0][:4])])
    decoder.forward([Segment(b, rows[1][:5]), Segment(a, rows[0][4:5])])
    decoder.forward([Segment(a, rows[0][5:-1]), Segment(b, rows[1][5:-1])])
    decoder.copy_prefix(b, c, 5)
    got = decoder.forward([Segment(a, rows[0][-1:]), Segment(c, rows[1][5:]), Segment(b, rows[1][-1:])])
    decoder.token_bytes = sum(k.nbytes + v.nbytes for k, v in a.layers.values()) // a.capacity
    if not _window_is_asked_for(decoder):
        return False
    pairs = zip(got, [plain[0], plain[1], plain[1]], strict=True)
    return all(_close(decoder.model, logits, expected) for logits, expected in pairs)


def _close(model: Any, logits: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether logits are those of a plain forward, within rounding; not a number is not."""
    relative = 1e-3 if model.dtype == torch.float32 else 0.08
    return float((expected - logits).abs().max()) <= relative * float(expected.abs().max())
