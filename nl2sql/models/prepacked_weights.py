"""Weights of linear layers in the blocked layout of oneDNN, for float32 and bfloat16 on a CPU.

A forward over a few tokens reads every weight once. Plain ``torch.nn.Linear`` copies each weight into such a layout at
every forward over more than one token, which costs as much again; here it is done once, at load.
Not here: other dtypes, and bfloat16 where oneDNN does not compute it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from nl2sql.errors import one_line

logger = logging.getLogger(__name__)

_ROWS = 8  # tokens of a forward that the layout is made for; more and fewer are computed as well


class PackedLinear(torch.nn.Module):
    """``torch.nn.Linear`` for inference, with the weight packed by ``pack``; until then the layer as it is."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.plain = [linear]  # in a list: no module of this one
        self.packed = torch.empty(0)

    def pack(self) -> None:
        """Pack the weight, and let the plain layer go."""
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.plain[0].weight.detach(), _ROWS)
        self.plain.clear()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        out: torch.Tensor
        if self.plain:
            out = self.plain[0](states)
        elif not states.numel():
            out = states.new_empty(*states.shape[:-1], self.out_features)
        else:
            out = torch.ops.mkldnn._linear_pointwise(states, self.packed, self.bias, "none", [], "")
        return out


def pack(model: Any, forward: Callable[[], Any] | None = None) -> int:
    """Replace the linear layers of a model by packed ones; how many were.

    forward: computes a few tokens; by default by the model. None is packed where a layer is on another device, of
    another dtype, or of a class of its own, where the model reads weights by itself (Mamba), or where torch cannot.
    """
    found = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if type(layer) is torch.nn.Linear
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype in (torch.float32, torch.bfloat16)
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
    ]
    one_each = {layer.weight.dtype: layer for *_, layer in found}
    if not found or not all(map(_works, one_each.values())):
        return 0
    layers = [PackedLinear(layer) for *_, layer in found]
    for (parent, name, _), layer in zip(found, layers, strict=True):
        setattr(parent, name, layer)
    if not _computes(forward or partial(model, input_ids=torch.tensor([[0, 1, 2]]), use_cache=False)):
        for parent, name, plain in found:
            setattr(parent, name, plain)
        return 0
    del found
    for layer in layers:
        layer.pack()
    return len(layers)


@torch.inference_mode()
def _works(layer: torch.nn.Linear) -> bool:
    """Whether this torch can pack, and computes the same."""
    states = torch.linspace(-1, 1, 3 * layer.in_features, dtype=layer.weight.dtype).reshape(1, 3, -1)
    packed, near = PackedLinear(layer), 1e-3 if layer.weight.dtype == torch.float32 else 0.02
    try:
        if layer.weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        packed.pack()
        return torch.allclose(packed(states), layer(states), rtol=near, atol=near)
    except (AttributeError, RuntimeError) as error:  # built without oneDNN, or of another version
        logger.info("weights are not packed: %s", one_line(error, 200))
        return False


@torch.inference_mode()
def _computes(forward: Callable[[], Any]) -> bool:
    try:
        forward()
    except Exception as error:  # noqa: BLE001  whatever a model's own code does without a weight
        logger.info("weights are not packed: %s", one_line(error, 200))
        return False
    return True
