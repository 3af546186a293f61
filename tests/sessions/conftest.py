"""What the tests of conversations share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from people import make_database
from sessions.sales import SALES

from nl2sql.databases.sqlite.database import SqliteDatabase


@pytest.fixture
def sales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteDatabase]:
    """The database of ``sales.py``."""
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    with SqliteDatabase(make_database(tmp_path / "sales.sqlite", SALES)) as database:
        yield database
