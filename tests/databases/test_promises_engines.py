"""The statement gate of the other engines, and DuckDB's own settings, each looked at alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nl2sql.databases.engines.adapters import Refused, one_query
from nl2sql.databases.engines.database import EngineDatabase
from nl2sql.interfaces import Database

ENGINES = ("duckdb", "postgres", "mysql", "clickhouse")


@pytest.mark.parametrize("dialect", ENGINES)
@pytest.mark.parametrize(
    "head", ["INSERT INTO t VALUES (1)", "SET x = 1", "COPY t TO 'f'", "CALL p()", "delete from t"]
)
def test_only_what_begins_as_a_query_reaches_an_engine(dialect: str, head: str) -> None:
    for sql in (head, f"-- so\n{head}", f"/* so */ ({head}"):
        with pytest.raises(Refused, match="is not a SELECT") as refused:
            one_query(sql, dialect)
        assert refused.value.kind == "denied"


@pytest.mark.parametrize("dialect", ENGINES)
def test_a_query_passes_without_its_last_semicolons(dialect: str) -> None:
    for sql in ("SELECT 1", "WITH a AS (SELECT 1) SELECT * FROM a", "-- so\nSELECT 1", "/* so */ (SELECT 1)"):
        assert one_query(f"{sql} ; ;\n", dialect) == sql


@pytest.mark.parametrize("sql", ["", " \n", "-- only this", "/* only this */"])
def test_a_blank_text_is_no_statement(sql: str) -> None:
    with pytest.raises(Refused) as refused:
        one_query(sql, "postgres")
    assert refused.value.kind == "empty"


def test_an_executable_comment_is_not_skipped_as_a_comment() -> None:
    for dialect in ("mysql", "clickhouse"):
        with pytest.raises(Refused, match="is not a SELECT"):
            one_query("/*!50000 DELETE FROM t */ SELECT 1", dialect)


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT 1; SELECT 2", "multi_statement"),
        ("SELECT 1; DROP TABLE t;", "multi_statement"),
        ("SELECT 1 INTO OUTFILE 'f'", "denied"),
        ("SELECT 1 into\noutfile 'f'", "denied"),
    ],
)
def test_clickhouse_is_sent_one_statement_that_writes_no_file(sql: str, kind: str) -> None:
    with pytest.raises(Refused) as refused:
        one_query(sql, "clickhouse")
    assert refused.value.kind == kind
    assert one_query("SELECT 'INTO OUTFILE; x';", "clickhouse") == "SELECT 'INTO OUTFILE; x'"


def test_duckdb_takes_one_select(engine: Callable[[str], Database]) -> None:
    database = engine("duckdb")
    several = database.run("SELECT 1; SELECT 2")
    assert (several.error_kind, several.error) == ("multi_statement", "send one SELECT statement")
    table = database.schema().tables[0].name
    for sql, name in ((f"DELETE FROM {table}", "DELETE"), ("SET threads = 2", "SET"), (f"DROP TABLE {table}", "DROP")):
        refused = database.run(sql)
        assert refused.error_kind == "denied" and f"{name} is not a SELECT" in (refused.error or "")


def test_duckdb_s_own_settings_hold_without_landlock(engine: Callable[[str], Database]) -> None:
    settings = ("enable_external_access", "lock_configuration", "access_mode")
    asked = ", ".join(f"current_setting('{name}')::VARCHAR" for name in settings)
    result = engine("duckdb").run(f"SELECT {asked}")
    assert result.rows == (("false", "true", "read_only"),)


def test_an_endless_statement_of_duckdb_is_ended_at_its_deadline(engine: Callable[[str], Database]) -> None:
    database = engine("duckdb")
    endless = (
        "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c WHERE a.range + b.range > c.range"
    )
    stopped = database.run(endless, timeout_s=0.3)
    assert (stopped.error_kind, stopped.error) == ("timeout", "no result within 0.3 s")
    assert database.run("SELECT 1").rows == ((1,),)


def test_the_process_of_an_engine_is_told_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    duckdb.connect(str(tmp_path / "x.duckdb")).close()
    monkeypatch.setenv("MY_API_KEY", "secret-of-mine")
    database = EngineDatabase("duckdb", str(tmp_path / "x.duckdb"))
    try:
        assert database._worker is not None
        environment = Path(f"/proc/{database._worker.process.pid}/environ").read_bytes()
    finally:
        database.close()
    assert b"secret-of-mine" not in environment and b"PATH=" in environment
