"""Hostile statements on every engine: lines of fixtures/repair/hostile.DIALECT.tsv, dry-run and executed."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nl2sql.interfaces import Database
from nl2sql.repair.analyzer import explain_analyze

FIXTURES = Path(__file__).parent.parent / "fixtures" / "repair"
DIALECTS = ("sqlite", "clickhouse", "duckdb", "postgres", "mysql")
SECRET = "SECRET-7f3a"
TIMEOUT_S, SLACK_S = 0.5, 6.0  # a busy test machine may take seconds to end and start a process


def lines(dialect: str) -> list[tuple[str, str]]:
    text = (FIXTURES / f"hostile.{dialect}.tsv").read_text(encoding="utf-8")
    found = [line.partition("\t") for line in text.splitlines() if line and not line.startswith("# may")]
    return [(verdict, sql) for verdict, _, sql in found]


@dataclass
class Trap:
    """A readable secret, a place to write to, and a port that counts who knocks."""

    folder: Path
    port: int
    knocks: list[object] = field(default_factory=list)

    def filled(self, sql: str) -> str:
        found = sql.replace("⟨SECRET⟩", str(self.folder / "secret.txt")).replace("⟨OUT⟩", str(self.folder / "out"))
        return found.replace("⟨PORT⟩", str(self.port))


@pytest.fixture(scope="module")
def trap() -> Iterator[Trap]:
    folder = Path(tempfile.mkdtemp(prefix="nl2sql-trap-"))
    folder.chmod(0o777)  # whoever the server runs as could read and write here
    (folder / "secret.txt").write_text(f"{SECRET}\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        trap = Trap(folder, listener.getsockname()[1])

        def answer() -> None:
            while True:
                try:
                    connection, address = listener.accept()
                except OSError:
                    return
                trap.knocks.append(address)
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        yield trap
        listener.shutdown(socket.SHUT_RDWR)
    shutil.rmtree(folder)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hostile_statements_read_write_and_reach_nothing(
    dialect: str, trap: Trap, engine: Callable[[str], Database]
) -> None:
    """Each is dry-run and executed; an error where its line says so; in time; and nothing is there or gone after."""
    database = engine(dialect)
    before, files = database.fingerprint, sorted(trap.folder.iterdir())
    for verdict, text in lines(dialect):
        sql = trap.filled(text)
        checked = explain_analyze(sql, database, timeout_s=TIMEOUT_S)
        started = time.monotonic()
        found = database.run(sql, timeout_s=TIMEOUT_S, max_rows=1000)
        assert time.monotonic() - started < TIMEOUT_S + SLACK_S, sql
        assert not (found.success and verdict == "no"), (sql, found.rows[:3])
        assert checked.valid or checked.error, sql
        assert SECRET not in f"{found.rows}{found.error}{checked}", sql
        assert sorted(trap.folder.iterdir()) == files and not trap.knocks, sql
    assert database.fingerprint == before
    assert database.run("SELECT COUNT(*) FROM orders").rows == ((3,),)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_there_are_at_least_thirty_for_each_engine(dialect: str) -> None:
    assert len({sql for _, sql in lines(dialect)}) >= 30
    assert {verdict for verdict, _ in lines(dialect)} <= {"no", "ok"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_answer_has_the_specifications_shape(dialect: str, engine: Callable[[str], Database]) -> None:
    database = engine(dialect)
    valid = explain_analyze("SELECT name FROM customers", database).model_dump()
    assert valid["valid"] is True and valid["explain"]["plan"] and valid["error"] is valid["repair_guidance"] is None
    wrong = explain_analyze("SELECT nam FROM customers", database).model_dump()
    assert wrong["valid"] is False and wrong["explain"] is None and "nam" in wrong["error"]
    guidance = wrong["repair_guidance"]
    assert list(guidance) == ["violated_constraint", "alternative_approach", "category", "similar_fixes"]
    assert guidance["category"] == "unknown_column" and "customers.name" in guidance["alternative_approach"]
