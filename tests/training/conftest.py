"""Makes ``models.tiny`` importable; one torch thread, as for the other model tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)
