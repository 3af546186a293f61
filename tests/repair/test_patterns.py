"""The error patterns: every entry fires on the real engine, and its advice works there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from nl2sql.agents.checks.constraints import extract_constraints, validate_constraints
from nl2sql.databases.engines import open_database
from nl2sql.databases.schema import Schema
from nl2sql.databases.validation import validate_sql
from nl2sql.errors import UsageError
from nl2sql.interfaces import Database
from nl2sql.repair.analyzer import explain_analyze
from nl2sql.repair.registry import ErrorPattern, categories, dialects, in_versions, packaged, read_registry


def entries(dialect: str) -> list[ErrorPattern]:
    return list(packaged(dialect).patterns)


AT_LEAST = {"sqlite": 25, "clickhouse": 25}  # 15 for each other dialect
PROVOKED = [
    pytest.param(dialect, pattern, id=f"{dialect}-{pattern.id}")
    for dialect in dialects()
    for pattern in packaged(dialect).patterns
    if dialect != "loop"
]


@pytest.mark.parametrize(("dialect", "pattern"), PROVOKED)
def test_a_pattern_fires_on_the_engine_and_its_advice_runs(
    dialect: str, pattern: ErrorPattern, engine: Callable[[str], Database]
) -> None:
    """Its statement fails with its error where it fires, and with another or none where it does not; advice runs."""
    database, registry = engine(dialect), packaged(dialect)
    version = getattr(database, "version", sqlite3.sqlite_version)
    worked = database.run(pattern.works, timeout_s=10.0)
    assert worked.success, worked.error
    failed = database.run(pattern.provoke, timeout_s=1.0)
    error = failed.error or ""
    if not in_versions(pattern.versions, version):
        assert pattern.captured(pattern.example, pattern.provoke) is not None
        elsewhere = registry.find(error, pattern.provoke, version)
        assert failed.success or elsewhere is None or elsewhere[0].id != pattern.id
        return
    assert not failed.success
    found = registry.find(error, pattern.provoke, version)
    assert found is not None and found[0].id == pattern.id, f"{error!r} is taken for {found and found[0].id}"
    guidance = registry.match(error, pattern.provoke, database.schema(), version)
    assert guidance is not None
    for text in (guidance.violated_constraint, guidance.alternative_approach):
        assert text and not set("{}") & set(text) and "[[" not in text


@pytest.mark.parametrize("dialect", dialects())
def test_each_dialect_has_its_patterns_and_each_example_is_matched_by_its_own(dialect: str) -> None:
    registry = packaged(dialect)
    assert registry.dialect == dialect and registry.tested
    assert len(registry.patterns) >= AT_LEAST.get(dialect, 15)
    for pattern in registry.patterns:
        here = in_versions(pattern.versions, registry.tested[0])
        found = registry.find(pattern.example, pattern.provoke, registry.tested[0] if here else "")
        assert found is not None and found[0].id == pattern.id, (pattern.id, found and found[0].id)
    assert {pattern.category for pattern in registry.patterns} <= set(categories())


def refusal(sql: str, question: str, schema: Schema, database: Database) -> str:
    """The reason of the first of the loop's validators that refuses ``sql``; "" where all pass."""
    checked = validate_sql(sql, schema, database)
    if not checked["valid"]:
        return str(checked["reason"])
    shaped = validate_constraints(sql, extract_constraints(question), schema)
    return "" if shaped["valid"] else str(shaped["reason"])


@pytest.mark.parametrize("pattern", packaged("loop").patterns, ids=lambda pattern: pattern.id)
def test_a_reason_of_the_loop_is_explained_and_its_advice_passes(
    pattern: ErrorPattern, engine: Callable[[str], Database]
) -> None:
    database = engine("sqlite")
    assert refusal(pattern.works, pattern.question, database.schema(), database) == ""
    reason = refusal(pattern.provoke, pattern.question, database.schema(), database)
    for error in (reason, f"intent_mismatch:{reason}") if pattern.question else (reason,):
        found = packaged("loop").find(error, pattern.provoke)
        assert found is not None and found[0].id == pattern.id, error
        assert packaged("sqlite").find(error, pattern.provoke) is None, "an engine's pattern takes it first"


GUIDANCE = [
    # dialect, error, failed statement, what the guidance has to say
    ("sqlite", "no such column: c.nam", "SELECT c.nam FROM customers c", "Did you mean customers.name?"),
    ("sqlite", "no such column: c.total", "SELECT c.total FROM customers AS c", "Did you mean orders.total?"),
    (
        "sqlite",
        "no such column: customername",
        "SELECT customername FROM orders",
        "Did you mean customers.name, orders.customer_id",
    ),
    ("sqlite", "no such table: customer", "SELECT name FROM customer", "Did you mean customers?"),
    (
        "sqlite",
        "ambiguous column name: customer_id",
        "SELECT customer_id FROM customers c JOIN orders o ON c.customer_id = o.customer_id",
        "For example c.customer_id or o.customer_id.",
    ),
    (
        "sqlite",
        "cannot join using column status - column not present in both tables",
        "SELECT 1 FROM customers JOIN orders USING (status)",
        "orders.customer_id = customers.customer_id",
    ),
    ("sqlite", "no such column: customers.city", "SELECT customers.city FROM customers c", "Write c in place of"),
    (
        "sqlite",
        "no such column: amuont",
        "WITH sums AS (SELECT city, COUNT(*) AS amount FROM customers GROUP BY city) SELECT amuont FROM sums",
        "Did you mean sums.amount?",
    ),
    (
        "sqlite",
        "no such column: s.revenu",
        "SELECT s.revenu FROM (SELECT SUM(total) AS revenue FROM orders) AS s",
        "Did you mean s.revenue?",
    ),
    (
        "sqlite",
        "no such table: sum_by_city",
        "WITH sums_by_city AS (SELECT city FROM customers) SELECT city FROM sum_by_city",
        "Did you mean sums_by_city?",
    ),
    (
        "sqlite",
        'near "FROM": syntax error',
        "SELECT UPPER(TRIM(name) FROM customers",
        "2 are opened and 1 closed: close one more.",
    ),
    ("sqlite", 'near ")": syntax error', "SELECT name) FROM customers", "0 are opened and 1 closed: take one away."),
]


@pytest.mark.parametrize(("dialect", "error", "sql", "wanted"), GUIDANCE)
def test_guidance_names_what_the_schema_has(
    dialect: str, error: str, sql: str, wanted: str, engine: Callable[[str], Database]
) -> None:
    guidance = packaged(dialect).match(error, sql, engine(dialect).schema())
    assert guidance is not None
    assert wanted in f"{guidance.violated_constraint} {guidance.alternative_approach}"


SUGGESTED = [  # (failed statement on scale_models, in its guidance, not in it)
    ("SELECT COUNT(*) FROM orders", 'Did you mean "order", order_lines?', "closest is order."),
    ("SELECT order_id FROM customers", '"order".order_id', " order.order_id"),
    ("SELECT nam FROM customers", "the closest is customers.contact_name.", "closest is employees"),
    ('SELECT DATEDIFF(month, placed_on, due_on) FROM "order"', "julianday(later)", "no column month"),
    ('SELECT DATE_ADD(month, 1, placed_on) FROM "order"', "date(d, '+1 month')", "closest"),
    ("SELECT TIMESTAMPDIFF(YEAR, created_on, '2024-01-01') FROM customers", "julianday(later)", "no column YEAR"),
    ("SELECT DATE_TRUNC(created_on, MONTH) FROM customers", "start of month", "no column MONTH"),
    ("SELECT month FROM customers", "There is no column month", "julianday"),
    ("SELECT POSITION(LOWER('A') IN contact_name) FROM customers", "INSTR(text, part)", "no table"),
    ("SELECT town FROM customers WHERE town IN contact_name", "There is no table", "INSTR"),
    ("SELECT product_name FROM products", "no column product_name", "contact_name"),
    ("SELECT total FROM payments", "no column total", "products.title"),
]


JOINED = [  # (failed statement on chess_league, the advice about its join)
    ("SELECT x FROM games JOIN players ON games.white_player_id = players.player_id", None),
    ("SELECT x FROM games JOIN players ON games.id = players.id", "white_player_id = players.player_id or games.black"),
    ("SELECT x FROM clubs JOIN players ON clubs.id = players.id", "Join players and clubs ON players.club_id = clubs"),
]


@pytest.mark.parametrize(("sql", "wanted"), JOINED)
def test_a_join_is_advised_where_it_uses_no_key_of_the_two_tables(sql: str, wanted: str | None) -> None:
    with closing(open_database("packaged:chess_league")) as database:
        found = explain_analyze(sql, database).repair_guidance
    assert found is not None and found.alternative_approach is not None
    assert (wanted or "Columns") in found.alternative_approach
    assert wanted or "Join" not in found.alternative_approach


@pytest.mark.parametrize(("sql", "wanted", "unwanted"), SUGGESTED)
def test_suggested_names_can_be_written_as_they_stand_and_are_of_tables_in_reach(
    sql: str, wanted: str, unwanted: str
) -> None:
    with closing(open_database("packaged:scale_models")) as database:
        found = explain_analyze(sql, database).repair_guidance
    assert found is not None
    said = f"{found.violated_constraint} {found.alternative_approach}"
    assert wanted in said and unwanted not in said


def test_without_a_schema_nothing_is_suggested() -> None:
    guidance = packaged("sqlite").match("no such column: c.nam", "SELECT c.nam FROM customers c")
    assert guidance is not None and "Did you mean" not in (guidance.alternative_approach or "")
    assert packaged("sqlite").match("no such table: x", "", Schema(())) is not None


def test_an_entry_outside_the_engine_version_is_skipped() -> None:
    error = "RIGHT and FULL OUTER JOINs are not currently supported"
    registry = packaged("sqlite")
    assert registry.match(error, "", None, "3.38.5") is not None
    assert registry.match(error, "", None, "3.40.1") is None
    assert in_versions(">=24.3,<25.8", "25.7.1") and not in_versions(">=24.3,<25.8", "25.8")


SPECIFICATION = {
    r"LAG.*does not exist": "unsupported_function",
    r"Identifier.*cannot be resolved.*subquery": "scope_error",
    r"FULL OUTER JOIN": "unsupported_join",
    r"window function.*GROUP BY": "window_function_misuse",
}


def test_the_specifications_patterns_are_there_word_for_word() -> None:
    ours = {entry.pattern: entry.category for entry in entries("clickhouse") if entry.source == "specification"}
    assert ours == SPECIFICATION
    lag = packaged("clickhouse").match("Code: 63. LAG function does not exist", "", None, "24.3.1")
    assert lag is not None and lag.alternative_approach is not None
    assert lag.violated_constraint == "Do not use LAG() or LEAD() functions. ClickHouse does not support them."
    assert "groupArray" in lag.alternative_approach
    assert packaged("clickhouse").find("Code: 63. LAG function does not exist", "", "26.9") is None


BAD_FILES = [
    ("dialect: x\n", "needs the keys"),
    ("dialect: x\npatterns: [{id: a, pattern: '('}]\n", "entry a, "),
    ("a: [", "cannot be read"),
]
ENTRY = (
    "{{id: a, pattern: '{pattern}', constraint: c, alternative: '{text}', category: {category}, example: e, "
    "provoke: p, works: w}}"
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *BAD_FILES,
        (ENTRY.format(pattern="x", text="t", category="nonsense"), "unknown category; known: unknown_column"),
        (ENTRY.format(pattern="x", text="{column}", category="unknown"), "nothing fills {column}"),
        (ENTRY.format(pattern="x(", text="t", category="unknown"), "not a regular expression"),
    ],
)
def test_a_broken_pattern_file_is_reported_with_its_entry(text: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text if "dialect" in text or text == "a: [" else f"dialect: x\npatterns: [{text}]\n")
    with pytest.raises(UsageError) as raised:
        read_registry(file)
    assert wanted in str(raised.value) and str(file) in str(raised.value)


def test_the_page_counts_the_patterns() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "repair.md").read_text(encoding="utf-8")
    for dialect in dialects():
        assert f"\n| {dialect} | {len(packaged(dialect).patterns)} |" in page, dialect
