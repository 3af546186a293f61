"""A causal LM's KV cache as preallocated slots, one conversation per slot, each with its own length.

Nothing is padded: a prompt is prefilled alone into its slot (only what the slot does not already hold), and one
decode step runs every active slot at its own position. Slots keep their tokens after use, so a conversation that
comes back grown pays for its new tokens only. Models whose attention does not fit slots (recurrent layers, own
cache classes) are found by ``make_decoder`` and served by ``SequentialDecoder``.
Not thread-safe: one worker thread owns it.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from nl2sql.errors import ModelError

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 512  # tokens per prefill forward: bounds activation memory and the time until a cancel is seen
_GROW = 256  # slots grow in steps of this many tokens


class _Where:
    """Where the forward in progress writes its keys and values; shared by all layers."""

    slots = 0
    capacity = 0
    row: int | None = None  # prefill of one slot ...
    start = 0
    rows: torch.Tensor  # ... or one token for each of the first len(rows) slots
    columns: torch.Tensor
    view = 0  # columns that attention reads


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, ``[slots, heads, capacity, head_dim]``."""

    is_sliding = False

    def __init__(self, where: _Where) -> None:
        super().__init__()
        self.where = where

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def _allocate(self, like: torch.Tensor) -> torch.Tensor:
        shape = (self.where.slots, like.shape[1], self.where.capacity, like.shape[3])
        return _lazy_zeros(shape, like.dtype, like.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        at = self.where
        if at.row is not None:
            self.keys[at.row, :, at.start : at.view] = key_states[0]
            self.values[at.row, :, at.start : at.view] = value_states[0]
            rows = slice(at.row, at.row + 1)
        else:
            self.keys[at.rows, :, at.columns] = key_states[:, :, 0]
            self.values[at.rows, :, at.columns] = value_states[:, :, 0]
            rows = slice(0, len(at.rows))
        return self.keys[rows, :, : at.view], self.values[rows, :, : at.view]

    def grow(self) -> None:
        """Reallocate for ``where.capacity`` columns, keeping what is there."""
        if not self.is_initialized:
            return
        assert self.keys is not None and self.values is not None
        for name in ("keys", "values"):
            old: torch.Tensor = getattr(self, name)
            new = self._allocate(old)
            new[:, :, : old.shape[2]] = old
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.where.view, 0

    def get_seq_length(self) -> int:
        return self.where.start

    def get_max_length(self) -> int:
        return -1


class SlotDecoder:
    """Prefill and batched decode steps over KV slots.

    model: a transformers causal LM in eval mode. slots: rows decoded at once. masks: ``"one"`` (one attention mask
    for all layers) or ``"by_type"`` (one per entry of the config's ``layer_types``).
    """

    def __init__(self, model: Any, slots: int, *, masks: str, max_cache_bytes: int) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.slots = slots
        self.device = model.device
        self.max_cache_bytes = max_cache_bytes
        self._window: int | None = getattr(config, "sliding_window", None)
        self._by_type = masks == "by_type"
        if self._by_type:
            kinds = set(getattr(config, "layer_types", None) or ())
            if not kinds or not kinds <= {"full_attention", "sliding_attention"}:
                raise ValueError(f"layer types {sorted(kinds)} do not fit KV slots")
        elif not getattr(config, "use_sliding_window", True):
            self._window = None
        self._where = _Where()
        self._where.slots = slots
        self._layers = [_SlotLayer(self._where) for _ in range(config.num_hidden_layers)]
        self._cache = Cache(layers=list(self._layers))
        self.tokens: list[list[int]] = [[] for _ in range(slots)]  # what each slot's cache holds

    @torch.inference_mode()
    def extend(self, slot: int, new: Sequence[int]) -> torch.Tensor:
        """Append at most PREFILL_CHUNK tokens to ``slot``; float32 logits ``[vocab]`` of the next token, on CPU."""
        start = len(self.tokens[slot])
        end = start + len(new)
        self.reserve(end + 1)
        at = self._where
        at.row, at.start, at.view = slot, start, end
        logits = self._forward([list(new)], torch.arange(start, end, device=self.device)[None])
        self.tokens[slot].extend(new)
        return logits[0]

    @torch.inference_mode()
    def step(self, next_tokens: Mapping[int, int]) -> torch.Tensor:
        """One token for every slot in ``next_tokens``; float32 logits ``[len(next_tokens), vocab]`` in its order.

        Idle slots below the highest active one ride along: they write past their own end and are ignored.
        """
        rows = max(next_tokens) + 1
        lengths = [len(self.tokens[slot]) for slot in range(rows)]
        self.reserve(max(lengths) + 1)
        at = self._where
        at.row, at.start = None, 0
        at.view = max(lengths[slot] for slot in next_tokens) + 1
        at.rows = torch.arange(rows, device=self.device)
        at.columns = torch.tensor(lengths, device=self.device)
        ids = [[next_tokens.get(slot, 0)] for slot in range(rows)]
        logits = self._forward(ids, at.columns[:, None])
        for slot, token in next_tokens.items():
            self.tokens[slot].append(token)
        return logits[list(next_tokens)]

    @torch.inference_mode()
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make ``target`` hold the first ``length`` tokens of ``source``."""
        for layer in self._layers:
            if layer.is_initialized:
                assert layer.keys is not None and layer.values is not None
                layer.keys[target, :, :length] = layer.keys[source, :, :length]
                layer.values[target, :, :length] = layer.values[source, :, :length]
        self.tokens[target] = self.tokens[source][:length]

    @torch.inference_mode()
    def swap(self, a: int, b: int) -> None:
        """Exchange two slots."""
        length = max(len(self.tokens[a]), len(self.tokens[b]))
        pair, swapped = torch.tensor([a, b], device=self.device), torch.tensor([b, a], device=self.device)
        for layer in self._layers:
            if layer.is_initialized:
                assert layer.keys is not None and layer.values is not None
                layer.keys[pair, :, :length] = layer.keys[swapped, :, :length]
                layer.values[pair, :, :length] = layer.values[swapped, :, :length]
        self.tokens[a], self.tokens[b] = self.tokens[b], self.tokens[a]

    def crop(self, slot: int, length: int) -> None:
        """Forget what ``slot`` holds past ``length`` tokens."""
        del self.tokens[slot][length:]

    def reserve(self, columns: int) -> None:
        """Make every slot at least ``columns`` tokens long. Raises ModelError when that exceeds the memory allowed."""
        if columns <= self._where.capacity:
            return
        capacity = -(-columns // _GROW) * _GROW
        keys = self._layers[0].keys
        if keys is not None:
            needed = 2 * len(self._layers) * self.slots * keys.shape[1] * capacity * keys.shape[3] * keys.itemsize
            if needed > self.max_cache_bytes:
                raise ModelError(
                    f"{self.slots} conversations of {capacity} tokens need {needed / 1e9:.1f} GB of cache, more than "
                    f"the {self.max_cache_bytes / 1e9:.1f} GB allowed; use a smaller --batch-size or a shorter prompt"
                )
        self._where.capacity = capacity
        for layer in self._layers:
            layer.grow()

    def _forward(self, ids: list[list[int]], positions: torch.Tensor) -> torch.Tensor:
        out = self.model(
            input_ids=torch.tensor(ids, device=self.device),
            position_ids=positions,
            attention_mask=self._masks(positions),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = out.logits[:, -1].float().cpu()
        return logits

    def _masks(self, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Boolean masks ``[rows, 1, queries, columns]`` for queries at ``positions`` ``[rows, queries]``."""
        columns = torch.arange(self._where.view, device=self.device)
        at = positions[:, None, :, None]
        full = columns <= at
        near = full if self._window is None else full & (columns > at - self._window)
        return {"full_attention": full, "sliding_attention": near} if self._by_type else near


class SequentialDecoder:
    """The same interface over the model's own cache, one row at a time: for models that do not fit slots.

    Slower, and a conversation is reused only when it continues exactly; never wrong.
    """

    def __init__(self, model: Any, slots: int) -> None:
        self.model = model
        self.slots = slots
        self.tokens: list[list[int]] = [[] for _ in range(slots)]
        self._caches: list[Any] = [None] * slots
        # Recurrent models call their state cache_params.
        known = inspect.signature(model.forward).parameters
        self._cache_name = "cache_params" if "cache_params" in known else "past_key_values"

    @torch.inference_mode()
    def extend(self, slot: int, new: Sequence[int]) -> torch.Tensor:
        if not self.tokens[slot]:
            self._caches[slot] = DynamicCache(config=self.model.config.get_text_config())
        out = self.model(
            input_ids=torch.tensor([list(new)], device=self.model.device),
            use_cache=True,
            **{self._cache_name: self._caches[slot]},
        )
        self._caches[slot] = getattr(out, self._cache_name)
        self.tokens[slot].extend(new)
        logits: torch.Tensor = out.logits[0, -1].float().cpu()
        return logits

    def step(self, next_tokens: Mapping[int, int]) -> torch.Tensor:
        return torch.stack([self.extend(slot, [token]) for slot, token in next_tokens.items()])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.crop(target, 0)

    def swap(self, a: int, b: int) -> None:
        for values in (self.tokens, self._caches):
            values[a], values[b] = values[b], values[a]

    def crop(self, slot: int, length: int) -> None:
        if length < len(self.tokens[slot]):  # own caches may not be croppable: start again
            self.tokens[slot], self._caches[slot] = [], None

    def reserve(self, columns: int) -> None:
        """Nothing to reserve: every cache grows by itself."""


def make_decoder(model: Any, slots: int, max_cache_bytes: int) -> SlotDecoder | SequentialDecoder:
    """Slots when they compute what the model itself computes (checked here on a few tokens), else one at a time."""
    by_type = bool(getattr(model.config.get_text_config(), "layer_types", None))
    for masks in ("by_type", "one") if by_type else ("one", "by_type"):
        try:
            if _agrees(model, SlotDecoder(model, 3, masks=masks, max_cache_bytes=max_cache_bytes)):
                return SlotDecoder(model, slots, masks=masks, max_cache_bytes=max_cache_bytes)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            logger.debug("KV slots with masks=%s do not serve this model: %s", masks, error)
    logger.warning("this model's attention does not fit batched slots; rows run one at a time (slower)")
    return SequentialDecoder(model, slots)


@torch.inference_mode()
def _agrees(model: Any, decoder: SlotDecoder) -> bool:
    """Whether prefill, a batched step and a reused prefix give the logits of one plain forward."""
    vocabulary = model.config.get_text_config().vocab_size
    rows = [[(7 * i + 13 * row + 3) % min(vocabulary, 1000) for i in range(9 + 5 * row)] for row in range(2)]
    for row, ids in enumerate(rows):
        decoder.extend(row, ids[:4])
        decoder.extend(row, ids[4:-1])
    decoder.copy_prefix(1, 2, 5)
    got = [*decoder.step({row: ids[-1] for row, ids in enumerate(rows)}), decoder.extend(2, rows[1][5:])]
    for ids, logits in zip([*rows, rows[1]], got, strict=True):
        plain = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1].float().cpu()
        tolerance = (1e-3 if model.dtype == torch.float32 else 0.08) * float(plain.abs().max())
        if not float((plain - logits).abs().max()) <= tolerance:
            return False
    return True


def default_cache_bytes(device: str) -> int:
    """Half of the memory that is free now: bytes for keys and values."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info()[0] * 0.5)
    return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 0.5)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose memory the system hands out when it is first written (torch.zeros would touch all of it)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = int(np.prod(shape)) * torch.empty((), dtype=dtype).itemsize
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(shape)
