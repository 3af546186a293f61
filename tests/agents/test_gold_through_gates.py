"""scripts/gold_through_gates.py: both sides are measured, and its bounds hold on the packaged benchmark."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gold_through_gates", ROOT / "scripts" / "gold_through_gates.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gold_through_gates"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A benchmark folder over the bakery schema with rows, one good gold, one sloppy and one broken."""
    database = tmp_path / "databases" / "bakeries" / "bakeries.sqlite"
    database.parent.mkdir(parents=True)
    with sqlite3.connect(database) as connection:
        connection.executescript((FIXTURES / "gates_schema.sql").read_text(encoding="utf-8"))
        connection.executemany(
            "INSERT INTO baker (full_name, age, wage, country) VALUES (?, ?, ?, ?)",
            [("Ann", 30, 12.5, "Norway"), ("Bo", 41, 15.0, "Norway"), ("Cy", 25, 11.0, "Italy")],
        )
    connection.close()
    golds = [
        ("How many bakers come from each country?", "SELECT country, COUNT(*) FROM baker GROUP BY country"),
        ("Who is the oldest baker?", "SELECT full_name FROM baker ORDER BY age DESC LIMIT 1"),
        ("Which different countries are there?", "SELECT DISTINCT country FROM baker"),
        ("How many bakers are there?", "SELECT full_name FROM baker"),
        ("How many ovens are there?", "SELECT COUNT(*) FROM oven"),
    ]
    items = [{"question": q, "query": s, "db_id": "bakeries"} for q, s in golds]
    (tmp_path / "questions.json").write_text(json.dumps(items), encoding="utf-8")
    return tmp_path


def report_of(script: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = script.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_both_sides_are_counted(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = report_of(script, capsys, "--benchmark", str(folder))
    found = report[str(folder)]
    assert found["n"] == 4 and found["left_out"] == {"gold does not run: unknown_table": 1}
    assert found["ex_unchanged"] == {"value": 1.0, "n": 4}
    assert found["gates"]["rejected"] == 1 and found["causes"] == {"validate_constraints:missing_agg:COUNT": 1}
    for structure, asked in (("aggregate", 1), ("group_by", 1), ("order_limit", 1), ("distinct", 1)):
        assert found["bite"][structure]["asked"]["n"] == asked
        assert found["bite"][structure]["asked"]["value"] == 1.0
    assert code == 1 and any("gates" in miss for miss in found["misses"])


def test_bounds_of_the_issue_hold_on_the_packaged_benchmark(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = report_of(script, capsys, "--benchmark", "packaged")
    assert (code, report["packaged"]["misses"]) == (0, [])


def test_an_unknown_benchmark_is_one_clear_line(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--benchmark", "no_such_benchmark"]) == 2
    assert "no_such_benchmark" in capsys.readouterr().err


def test_a_limit_below_one_is_a_usage_error(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--limit", "-3"]) == 2
    assert "--limit -3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("structure", "sql", "left"),
    [
        ("aggregate", "SELECT COUNT(*) FROM a", "SELECT * FROM a"),
        ("aggregate", "SELECT b, COUNT(*) AS n FROM a GROUP BY b", "SELECT b, * FROM a GROUP BY b"),
        ("aggregate", "SELECT SUM(x) / COUNT(DISTINCT y) FROM a", "SELECT x / y FROM a"),
        ("aggregate", "SELECT b FROM a WHERE x = (SELECT MAX(x) FROM a)", None),
        ("aggregate", "SELECT SUM(x) OVER (PARTITION BY y) FROM a", None),
        ("group_by", "SELECT b FROM a GROUP BY b HAVING COUNT(*) > 1", "SELECT b FROM a"),
        ("group_by", "SELECT b FROM (SELECT b FROM a GROUP BY b)", None),
        ("order_limit", "SELECT b FROM a ORDER BY b LIMIT 3 OFFSET 1", "SELECT b FROM a"),
        ("order_limit", "SELECT b FROM a UNION SELECT c FROM d ORDER BY 1", "SELECT b FROM a UNION SELECT c FROM d"),
        ("distinct", "SELECT DISTINCT b FROM a", "SELECT b FROM a"),
        ("distinct", "SELECT COUNT(DISTINCT b) FROM a", "SELECT COUNT(b) FROM a"),
        ("distinct", "SELECT b FROM a WHERE b IN (SELECT DISTINCT c FROM d)", None),
        ("distinct", "not sql (", None),
    ],
)
def test_one_structure_is_removed_from_the_outermost_query(
    script: ModuleType, structure: str, sql: str, left: str | None
) -> None:
    assert script.remove_structure(sql, structure) == left


def test_the_asked_for_rule_is_generous(script: ModuleType) -> None:
    for structure, nlq in (
        ("aggregate", "How many are there?"),
        ("group_by", "bakers per city"),
        ("order_limit", "the oldest baker"),
        ("distinct", "various flours"),
    ):
        assert script.asked_for(structure, nlq)
    assert set(script.ASKED_FOR) == set(script.STRUCTURES)
    assert not script.asked_for("order_limit", "List breads that cost at most 3 euros and interest a guest.")
