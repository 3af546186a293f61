"""Packed weights: the same numbers as plain linear layers, and only where they can be packed."""

from __future__ import annotations

import torch

from nl2sql.models.prepacked_weights import PackedLinear, pack


class Net(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(24, 40, dtype=dtype)
        self.inner = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(40, 7, bias=False, dtype=dtype))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(states))


def packed(net: torch.nn.Module, width: int = 24, dtype: torch.dtype = torch.float32) -> int:
    return pack(net, lambda: net(torch.zeros(1, 3, width, dtype=dtype)))


@torch.inference_mode()
def test_the_same_numbers_for_any_number_of_tokens() -> None:
    net = Net()
    inputs = [torch.randn(1, tokens, 24) for tokens in (1, 2, 8, 9, 300)] + [torch.randn(3, 5, 24), torch.randn(4, 24)]
    plain = [net(each) for each in inputs]
    assert packed(net) == 2
    assert isinstance(net.first, PackedLinear)
    for each, expected in zip(inputs, plain, strict=True):
        assert torch.allclose(net(each), expected, atol=1e-5)


@torch.inference_mode()
def test_no_tokens() -> None:
    net = Net()
    packed(net)
    assert net(torch.randn(1, 0, 24)).shape == (1, 0, 7)


@torch.inference_mode()
def test_bfloat16_is_packed_where_the_processor_computes_it() -> None:
    net, states = Net(torch.bfloat16), torch.randn(1, 16, 24, dtype=torch.bfloat16)
    expected = net(states)
    assert packed(net, dtype=torch.bfloat16) == (2 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else 0)
    assert torch.allclose(net(states), expected, atol=0.02)


def test_other_dtypes_and_hooked_layers_stay() -> None:
    assert packed(Net(torch.float16), dtype=torch.float16) == 0
    net = Net()
    net.first.register_forward_hook(lambda *_: None)
    assert packed(net) == 1
    assert type(net.first) is torch.nn.Linear


def test_a_layer_of_a_class_of_its_own_stays() -> None:
    class Own(torch.nn.Linear):
        pass

    assert packed(torch.nn.Sequential(Own(4, 4))) == 0


def test_packed_once() -> None:
    net = Net()
    assert packed(net) == 2
    assert packed(net) == 0


def test_a_model_that_reads_weights_by_itself_stays() -> None:
    class Reads(Net):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return states @ self.first.weight.T

    net = Reads()
    assert packed(net) == 0
    assert type(net.first) is type(net.inner[1]) is torch.nn.Linear
    assert net(torch.zeros(1, 3, 24)).shape == (1, 3, 40)
