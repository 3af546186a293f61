"""Attention over packs: the shared tokens once, then each example over the shared ones and its own.

Registered with transformers as ``nl2sql_packed``; a model whose attention is set to it takes the keyword ``pack``. Work
grows with the examples' lengths, not with the square of the pack's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from nl2sql.errors import ModelError
from training.packing import Pack

ATTENTION = "nl2sql_packed"


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    *,
    scaling: float | None = None,
    pack: Pack | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """``[1, tokens, heads, dim]`` from ``[1, heads, tokens, dim]``; keys and values may have fewer heads."""
    if pack is None:
        raise ModelError("this model's attention is set up for training; give forward a pack")
    with torch.autocast(query.device.type, enabled=False):  # float32 is twice as fast on CPU, backward included
        found = _attend(query.float(), key.float(), value.float(), pack, scaling)
    return found.to(query.dtype).transpose(1, 2), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pack: Pack, scaling: float | None
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
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


@lru_cache(maxsize=256)  # every layer of a pack asks for the same ones
def _mask(shared: int, length: int, device: torch.device) -> torch.Tensor:
    """[length, shared + length]: everything shared, and the example's own tokens up to each."""
    return torch.ones(length, shared + length, dtype=torch.bool, device=device).tril(shared)


AttentionInterface.register(ATTENTION, packed_attention)
