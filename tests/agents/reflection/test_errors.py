"""Which errors are worth another attempt: real messages of five engines, each with its class."""

from __future__ import annotations

from pathlib import Path

import pytest
from people import make_database

from nl2sql.agents.reflection.judge import classify
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.repair.registry import categories, dialects, packaged

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LINES = (FIXTURES / "reflection" / "errors.tsv").read_text(encoding="utf-8").splitlines()
MESSAGES = [tuple(line.split("\t")) for line in LINES if line and not line.startswith("#")]
KEYWORDS = (
    *("syntax error", "parse error", "invalid sql"),
    *("unknown column", "unknown table", "no such table", "no such column"),
)


@pytest.mark.parametrize(("dialect", "severity", "kind", "message"), MESSAGES)
def test_a_message_of_an_engine_has_its_class(dialect: str, severity: str, kind: str, message: str) -> None:
    assert classify(message, dialect, kind=kind).severity == severity
    if severity == "fatal":  # the kind must not be what makes the difference
        assert classify(message, dialect).severity == "fatal"


def test_every_engine_has_messages_of_every_class() -> None:
    engines = set(dialects()) - {"loop"}
    assert {(line[0], line[1]) for line in MESSAGES} >= {
        (engine, severity) for engine in engines for severity in ("critical", "non_critical", "fatal")
    }


def test_every_category_of_the_pattern_registry_has_a_class() -> None:
    for dialect in dialects():
        for pattern in packaged(dialect).patterns:
            rule = classify(pattern.example, dialect, sql=pattern.provoke).rule
            assert rule != "unknown", f"{dialect} {pattern.id}, {pattern.category} of {', '.join(categories())}"


def test_the_statements_behind_sqlites_messages_get_their_class_on_the_engine(tmp_path: Path) -> None:
    schema = (FIXTURES / "repair" / "schema.sqlite.sql").read_text(encoding="utf-8")
    with SqliteDatabase(make_database(tmp_path / "shop.sqlite", schema)) as database:
        for pattern in packaged("sqlite").patterns:
            failed = database.run(pattern.provoke, timeout_s=1.0)
            found = classify(failed.error or "", kind=failed.error_kind, sql=pattern.provoke)
            runtime = pattern.category in ("value_error", "resource_limit")
            assert failed.success or found.severity == ("non_critical" if runtime else "critical"), pattern.id


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_the_specifications_keywords_are_critical_on_any_engine(keyword: str) -> None:
    assert classify(f"FAILED: {keyword.upper()} at 'x'", "oracle").severity == "critical"


def test_a_name_that_reads_like_another_message_decides_nothing() -> None:
    for name in ("database disk image is malformed", "server closed the connection", "(2006) gone"):
        assert classify(f"no such column: {name}", kind="unknown_column").severity == "critical"
        assert classify(f"no such table: {name}").severity == "critical"
    assert classify("something else went wrong").severity == "non_critical"
