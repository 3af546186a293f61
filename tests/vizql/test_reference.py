"""Compiled queries have the rows of a second evaluation that shares no code (scripts/vizql_reference.py)."""

from __future__ import annotations

import ast
import datetime
import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest
import vizql_naive
from vizql_naive.agreement import constructs, difference
from vizql_naive.drawn import AMOUNTS, OF_DATES, drawn
from vizql_naive.evaluation import Answer
from vizql_naive.tables import generated, superstore
from vizql_reference import ENGINES, Report, Tally, compare, shown

MODULES = sorted(Path(vizql_naive.__file__ or "").parent.glob("*.py"))


def test_compiled_queries_have_the_rows_of_an_independent_evaluation(tmp_path: Path) -> None:
    report = Report({engine: Tally() for engine in ENGINES})
    compare(150, 0, ENGINES, report, tmp_path)
    assert report.not_valid == []
    for tally in report.engines.values():
        assert tally.differences == []
        assert (tally.cases, tally.equal) == (150, 150) and tally.no_rows <= 40
    assert report.good


def test_all_constructs_are_drawn() -> None:
    source, rows = superstore(), generated(0)
    names = set().union(*(constructs(drawn(source, rows, f"0/{i}"), frozenset({"Sales"})) for i in range(700)))
    quantities = {f"filter {kind} {end}" for kind in ("QUANTITATIVE_NUMERICAL", "QUANTITATIVE_DATE") for end in ENDS}
    dates = {f"filter DATE {kind}" for kind in ("CURRENT", "LAST", "LASTN", "NEXT", "NEXTN", "TODATE")}
    others = {"filter SET", "filter MATCH", "filter TOP TOP", "filter TOP BOTTOM", "filter CONDITION", "measure alone"}
    others |= {"field with binSize", "field with calculation", "filter context", "filter exclude", "parameters"}
    others |= {"option disaggregate", "option rowLimit", "sortPriority", "maxDecimalPlaces", "filter includeNulls"}
    wanted = quantities | dates | others | {f"function {name}" for name in (*AMOUNTS, *OF_DATES)}
    assert wanted - names == set()


ENDS = ("RANGE", "MIN", "MAX", "ONLY_NULL", "ONLY_NON_NULL")
DAY = datetime.date(2024, 3, 1)
COMPARED: list[tuple[list[int], int | None, list[tuple[Any, ...]], list[tuple[Any, ...]], str]] = [
    ([], None, [(1, "a"), (2, None)], [(2, None), (1, "a")], ""),
    ([], None, [(1, "a"), (1, "a")], [(1, "a"), (1, "b")], "rows 1 to 2"),
    ([], None, [(1, "a")], [(1, "a"), (1, "a")], "2 rows, expected 1"),
    ([], None, [(None, "a")], [(0, "a")], "row 1"),
    ([0], None, [(1, "a"), (2, "b")], [(2, "b"), (1, "a")], "row 1"),
    ([0], None, [(1, "a"), (1, "b")], [(1, "b"), (1, "a")], ""),
    ([], None, [(1.0, "a")], [(1.0 + 1e-10, "a")], ""),
    ([], None, [(1.0, "a")], [(1.0 + 1e-8, "a")], "row 1"),
    ([], 1, [(0.25, "a")], [(0.3, "a")], ""),
    ([], 1, [(0.25, "a")], [(0.2, "a")], "row 1"),
    ([], 1, [(-0.25, "a")], [(-0.3, "a")], ""),
    ([], 2, [(2.675, "a")], [(2.67, "a")], ""),
    ([], 2, [(2.675, "a")], [(2.68, "a")], ""),
    ([], 2, [(2.675, "a")], [(2.66, "a")], "row 1"),
    ([], None, [(DAY, "a")], [("2024-03-01", "a")], ""),
    ([], None, [(DAY, "a")], [("2024-03-01 00:00:01", "a")], "row 1"),
]


@pytest.mark.parametrize(("by", "decimals", "expected", "rows", "said"), COMPARED)
def test_rows_are_compared(by: list[int], decimals: int | None, expected: Any, rows: Any, said: str) -> None:
    answer = Answer(["A", "B"], [decimals, None], by, expected)
    assert difference(answer, rows).startswith(said) and bool(difference(answer, rows)) == bool(said)


def test_a_report_with_a_difference_is_not_good_and_shows_it() -> None:
    one = {"said": "row 1", "request": {}, "sql": "SELECT 1", "engine_rows": [[1]], "expected_rows": [[2]]}
    report = Report({"sqlite": Tally(cases=2, equal=1, differences=[one])})
    assert not report.good
    assert {"  different: row 1", "  sqlite: [[1]]", "  expected: [[2]]"} <= set(shown(report))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_nothing_of_the_compiler_is_in_the_other_evaluation(path: Path) -> None:
    imported = {
        name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert {name for name in imported if name.startswith("nl2sql.vizql")} <= {"nl2sql.vizql.source"}
    assert not any(name.startswith(("nl2sql.sql", "sqlglot")) for name in imported)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_worked_examples_of_the_other_evaluation(path: Path) -> None:
    name = "vizql_naive" if path.stem == "__init__" else f"vizql_naive.{path.stem}"
    assert doctest.testmod(importlib.import_module(name)).failed == 0
