"""Attention over packs: the shared tokens once, then each example over the shared ones and its own.

Registered with transformers as ``nl2sql_packed``; a model whose attention is set to it takes the keyword ``pack``. Work
grows with the examples' lengths, not with the square of the pack's. On a GPU many small products are slower than one
large one: there packs lie in one row (``Flattened``), and FlexAttention leaves out the blocks that no token sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from nl2sql.errors import ModelError
from training.packing import Pack

ATTENTION = "nl2sql_packed"


@dataclass(frozen=True)
class Flattened:
    """Packs one behind the other. ids, positions: ``[1, length]``. seen: what each token sees, as blocks."""

    ids: torch.Tensor
    positions: torch.Tensor
    seen: Any


def flattened(packs: Sequence[Pack], device: torch.device, length: int) -> Flattened:
    """``packs`` in one row of ``length`` tokens; a token sees nothing of another pack."""
    from torch.nn.attention.flex_attention import create_block_mask

    ids: list[int] = []
    positions: list[int] = []
    packed: list[int] = []
    part: list[int] = []  # 0: seen by all of the pack; then the number of the example
    for number, pack in enumerate(packs, 1):
        ids += pack.ids
        positions += pack.positions
        packed += [number] * len(pack.ids)
        part += [0] * pack.shared
        for example, (start, end) in enumerate(pack.spans, 1):
            part += [example] * (end - start)
    rest = length - len(ids)
    columns = (ids, positions, packed, part)
    rows = torch.tensor([column + [0] * rest for column in columns], device=device)
    pack_of, part_of = rows[2], rows[3]

    def sees(batch: Any, head: Any, by: Any, of: Any) -> Any:
        own = (part_of[of] == 0) | (part_of[of] == part_of[by])
        return (pack_of[by] == pack_of[of]) & (by >= of) & own

    seen = create_block_mask(sees, None, None, length, length, device=str(device))
    return Flattened(rows[:1], rows[1:2], seen)


@lru_cache(maxsize=2)
def _flex(device: str) -> Any:
    """FlexAttention; compiled where that is what makes it fast, with one length for all rows."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if device == "cpu" else torch.compile(flex_attention, dynamic=False)


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    *,
    scaling: float | None = None,
    pack: Pack | Flattened | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """``[1, tokens, heads, dim]`` from ``[1, heads, tokens, dim]``; keys and values may have fewer heads."""
    if pack is None:
        raise ModelError("this model's attention is set up for training; give forward a pack")
    if isinstance(pack, Flattened):
        key, value = _for_all_heads(query, key, value)
        parts = (each.to(value.dtype).contiguous() for each in (query, key, value))
        return _flex(query.device.type)(*parts, block_mask=pack.seen, scale=scaling).transpose(1, 2), None
    with torch.autocast(query.device.type, enabled=False):  # float32 is twice as fast on CPU, backward included
        found = _attend(query.float(), key.float(), value.float(), pack, scaling)
    return found.to(query.dtype).transpose(1, 2), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pack: Pack, scaling: float | None
) -> torch.Tensor:
    key, value = _for_all_heads(query, key, value)
    sizes = [pack.shared, *(end - start for start, end in pack.spans)]
    queries, keys, values = (part.split(sizes, dim=2) for part in (query, key, value))
    parts = []
    if pack.shared:
        parts.append(scaled_dot_product_attention(queries[0], keys[0], values[0], is_causal=True, scale=scaling))
    for own_queries, own_keys, own_values in zip(queries[1:], keys[1:], values[1:], strict=True):
        seen = torch.cat((keys[0], own_keys), dim=2), torch.cat((values[0], own_values), dim=2)
        mask = _mask(pack.shared, own_queries.shape[2], query.device)
        parts.append(scaled_dot_product_attention(own_queries, seen[0], seen[1], attn_mask=mask, scale=scaling))
    return torch.cat(parts, dim=2)


def _for_all_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values repeated for the queries' heads that share them."""
    groups = query.shape[1] // key.shape[1]
    if groups == 1:
        return key, value
    return key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)


@lru_cache(maxsize=256)  # every layer of a pack asks for the same ones
def _mask(shared: int, length: int, device: torch.device) -> torch.Tensor:
    """[length, shared + length]: everything shared, and the example's own tokens up to each."""
    return torch.ones(length, shared + length, dtype=torch.bool, device=device).tril(shared)


AttentionInterface.register(ATTENTION, packed_attention)
