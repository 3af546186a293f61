"""Makes the tests folder importable (``models.tiny``) whatever the import mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Tiny models are slower on two threads, and much slower beside other work."""
    import torch

    torch.set_num_threads(1)
