"""Hidden states of a causal LM at chosen characters of a text: what a small head is fitted on (``context.relevance``).

The text is read as it is, without a chat template, in one forward of its own beside the engine's: it takes no slot, and
nothing of it is kept. On a model that the engine serves by slots the same attention computes it. Thread-safe.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nl2sql.models.slots import ATTENTION, SlotDecoder
from nl2sql.models.spread import input_device


class HiddenStates:
    """model: a transformers causal LM in eval mode, as the engine has prepared it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._decoder = SlotDecoder(model) if model.config._attn_implementation == ATTENTION else None

    @torch.inference_mode()
    def read(self, tokens: Sequence[int], at: Sequence[int], layers: Sequence[int]) -> np.ndarray:
        """Float32 ``[layers, at, width]`` of the text ``tokens``, at the tokens ``at``.

        layers: 0 is the embedding, n what the n-th layer gives, the last one behind the final norm.
        """
        options = self._decoder.alone(len(tokens)) if self._decoder is not None else {}
        ids = torch.tensor([list(tokens)], device=input_device(self._model))
        out = self._model.base_model(input_ids=ids, use_cache=False, output_hidden_states=True, **options)
        kept = [out.hidden_states[layer][0, list(at)].float().cpu() for layer in layers]
        return np.asarray(torch.stack(kept).numpy())


def tokens_at(offsets: Sequence[tuple[int, int]], characters: Sequence[int]) -> list[int]:
    """For each character the token that ends with it, or holds it.

    >>> tokens_at([(0, 2), (2, 5), (5, 6)], [1, 3, 5])
    [0, 1, 2]
    """
    starts = [start for start, _ in offsets]
    return [bisect_right(starts, character) - 1 for character in characters]
