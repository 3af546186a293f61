"""Shared fixtures, and the rule that no test may skip unseen.

With ``NL2SQL_STRICT_SKIPS=1`` (as in CI) a skipped test whose id no line of ``allowed_skips.txt`` is a prefix of
fails the session.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engine_shops import engine  # noqa: F401 - a fixture
from hypothesis import settings
from people import SHOP, make_database
from session_stores import redis_address, session_store  # noqa: F401 - fixtures

from nl2sql.machine import cache_dir

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import QueryPool, SqliteDatabase
    from nl2sql.models.rows import Constrainer

# Before any test module imports torch: see nl2sql.models.load.sleep_at_barriers.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))  # the package ``training``, which only scripts use

settings.register_profile("suite", max_examples=50)
settings.load_profile("suite")

_ALLOWED = Path(__file__).with_name("allowed_skips.txt")
_skipped: list[str] = []


SLOW = (  # files that take longest: begun first, so that no worker is left alone with one in the end
    "tests/notebooks",
    "tests/runs/test_distributed.py",
    "tests/cli/test_shown_questions.py",
    "tests/runs/test_trl.py",
    "tests/training",
    "tests/agents/reflection",
    "tests/test_plant_faults.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(SLOW))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped.append(report.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if not os.environ.get("NL2SQL_STRICT_SKIPS"):
        return
    lines = _ALLOWED.read_text(encoding="utf-8").splitlines()
    allowed = [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]
    surprising = [node for node in _skipped if not any(node.startswith(prefix) for prefix in allowed)]
    if surprising and session.exitstatus == 0:
        print("\nskipped without a line in tests/allowed_skips.txt:", *surprising, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def no_server_is_known() -> None:
    """Servers of other tests may have had the same address."""
    for kept in cache_dir("servers").iterdir():
        kept.unlink(missing_ok=True)  # the folder stays: other processes are making files in it


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A small SQLite file: three customers, four orders of which three are shipped."""
    return make_database(tmp_path / "shop.sqlite", SHOP)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of ``people.py``; not to be changed."""
    return make_database(tmp_path_factory.mktemp("people") / "people.sqlite")


@pytest.fixture(scope="module")
def constrainer() -> Constrainer:
    """Grammars over the tokenizer of the tiny models."""
    from models.tiny import tiny_tokenizer

    from nl2sql.models.rows import Constrainer

    return Constrainer(tiny_tokenizer(), 259, (0, 2))


@pytest.fixture(scope="module")
def pool() -> Iterator[QueryPool]:
    from nl2sql.databases.sqlite.database import QueryPool

    with QueryPool(workers=2) as pool:
        yield pool


def pytest_configure() -> None:
    """A job started in the background ignores Ctrl-C, and so would every command that a test interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def sales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteDatabase]:
    """The database of ``sessions/sales.py``."""
    from sessions.sales import SALES

    from nl2sql.databases.sqlite.database import SqliteDatabase

    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    with SqliteDatabase(make_database(tmp_path / "sales.sqlite", SALES)) as database:
        yield database
