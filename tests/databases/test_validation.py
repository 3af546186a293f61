"""validate_sql, held by tests/fixtures/validate_sql.txt over the boat club of validate_sql.schema.sql."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.databases.validation import validate_sql
from nl2sql.interfaces import RunResult

FIXTURES = Path(__file__).parents[1] / "fixtures"


class BoatClub:
    """As much of a Database as validate_sql asks for."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.executescript((FIXTURES / "validate_sql.schema.sql").read_text(encoding="utf-8"))
        self.explained: list[str] = []

    def schema(self) -> Schema:
        names = self.connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        columns = {
            name: self.connection.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
            for (name,) in names
        }
        return Schema(tuple(Table(name, tuple(Column(c) for (c,) in found)) for name, found in columns.items()))

    def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult:
        self.explained.append(sql)
        try:
            self.connection.execute("EXPLAIN " + sql).close()
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            return RunResult(False, error=str(error), error_kind="other")
        return RunResult(True)


@pytest.fixture(scope="module")
def club() -> Iterator[BoatClub]:
    database = BoatClub()
    yield database
    database.connection.close()


def cases() -> list[tuple[str, str, str, str]]:
    lines = (FIXTURES / "validate_sql.txt").read_text(encoding="utf-8").splitlines()
    found = []
    for line in lines:
        if line.strip() and not line.startswith("%"):
            sql, reason, alone, *suggestion = (part.strip() for part in line.split("|||"))
            found.append((sql, reason, reason if alone == "=" else alone, suggestion[0] if suggestion else ""))
    return found


@pytest.mark.parametrize(("sql", "reason", "alone", "suggestion"), cases())
def test_names_and_grammar_are_judged_with_and_without_the_database(
    sql: str, reason: str, alone: str, suggestion: str, club: BoatClub
) -> None:
    schema = club.schema()
    with_database = validate_sql(sql, schema, club)  # type: ignore[arg-type]
    without = validate_sql(sql, schema)
    assert (with_database["reason"], without["reason"]) == (reason, alone)
    assert with_database["valid"] == (reason == "ok")
    assert without["valid"] == (alone == "ok")
    if suggestion == "-":
        assert with_database["suggestions"] == []
    elif suggestion:
        assert with_database["suggestions"][0] == suggestion


def test_only_one_select_ever_reaches_explain(club: BoatClub) -> None:
    club.explained.clear()
    for sql in (
        "DROP TABLE Boats",
        "SELECT 1; DROP TABLE Boats",
        "",
        "PRAGMA x",
        "WITH x AS (SELECT 1) DELETE FROM Boats",
    ):
        assert not validate_sql(sql, club.schema(), club)["valid"]  # type: ignore[arg-type]
    assert club.explained == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("not authorized", "denied"),
        ("not allowed: FUNCTION load_extension; only SELECT may run", "denied:FUNCTION load_extension"),
        ("timeout", "other:timeout"),
        ("a GROUP BY clause is required before HAVING", "having_without_group_by"),
        ("no such column: b.foo", "unknown_column:b.foo"),
        ('near "x": syntax error', 'syntax:near "x"'),
    ],
)
def test_what_explain_says_becomes_a_machine_readable_reason(message: str, reason: str, club: BoatClub) -> None:
    class Refusing(BoatClub):
        def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult:
            return RunResult(False, error=message)

    assert validate_sql("SELECT name FROM Boats", club.schema(), Refusing())["reason"] == reason  # type: ignore[arg-type]


def test_a_database_that_cannot_answer_leaves_the_verdict_to_the_walk(club: BoatClub) -> None:
    class Tired(BoatClub):
        def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult:
            return RunResult(False, error="killed", error_kind="timeout")

    assert validate_sql("SELECT name FROM Boats", club.schema(), Tired())["valid"]  # type: ignore[arg-type]
    verdict = validate_sql("SELECT nme FROM Boats", club.schema(), Tired())  # type: ignore[arg-type]
    assert verdict["reason"] == "unknown_column:nme"


def test_deeply_nested_and_endless_statements_get_an_answer(club: BoatClub) -> None:
    schema = club.schema()
    for sql in (
        "SELECT name FROM Boats" + " UNION SELECT name FROM Boats" * 3000,
        "SELECT " + "(" * 5000 + "1" + ")" * 5000 + " FROM Boats",
        "SELECT " + "1+" * 5000 + "1 FROM Boats",
        "SELECT name FROM Boats WHERE boat_id IN (" + ", ".join(map(str, range(5000))) + ")",
    ):
        assert isinstance(validate_sql(sql, schema, club)["reason"], str)  # type: ignore[arg-type]
        assert isinstance(validate_sql(sql, schema)["reason"], str)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.tuples(st.sampled_from(cases()), st.integers(0, 90)).map(lambda c: c[0][0][: c[1]]))
def test_any_text_gets_a_verdict(sql: str) -> None:
    club = BoatClub()
    verdict = validate_sql(sql, club.schema(), club)  # type: ignore[arg-type]
    assert set(verdict) == {"valid", "reason", "suggestions"}
    assert verdict["valid"] == (verdict["reason"] == "ok")
    assert validate_sql(sql, club.schema())["reason"]
    club.connection.close()
