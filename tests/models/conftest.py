"""Makes the tests folder importable (``models.tiny``) and keeps torch small."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from models.standin import StandIn

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Tiny models are slower on two threads, and with two a model has two workers; loading one sets the number."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed request is tried again at once; no key is set."""
    monkeypatch.setattr("nl2sql.models.http.transport.FIRST_WAIT_S", 0.01)
    monkeypatch.delenv("NL2SQL_API_KEY", raising=False)


@pytest.fixture
def server() -> Iterator[StandIn]:
    from models.standin import serving

    with serving() as made:
        yield made
