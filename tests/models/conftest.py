"""Makes the tests folder importable (``models.tiny``) and keeps torch small."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: see nl2sql.models.local.sleep_at_barriers
sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Tiny models are slower on two threads, and with two a model has two workers; loading one sets the number."""
    import torch

    torch.set_num_threads(1)
