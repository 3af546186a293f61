"""The benchmark ``vizql``: every structured query is valid and has the rows of its SQL gold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nl2sql.benchmarks import load_benchmark
from nl2sql.benchmarks.packaged import load_packaged, load_vizql
from nl2sql.cli import app
from nl2sql.databases.packaged import database_ids
from nl2sql.errors import BenchmarkError
from nl2sql.eval.rules import gold_order, results_match
from nl2sql.interfaces import RunResult
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.infer import infer
from nl2sql.vizql.query_errors import read_request
from nl2sql.vizql.validator import validate

FILE = Path(__file__).resolve().parents[2] / "data" / "vizql.json"
RECORDS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------------------------------- the file


def test_the_file_holds_ids_splits_and_queries_and_no_texts_of_questions() -> None:
    packaged = {question.id: question.split for question in load_packaged().questions}
    assert len(RECORDS) >= 120 and len({record["id"] for record in RECORDS}) == len(RECORDS)
    for record in RECORDS:
        assert set(record) == {"id", "split", "query"}
        assert packaged[record["id"]] == record["split"]


@pytest.mark.parametrize("db_id", database_ids())
def test_every_query_is_valid_and_has_the_rows_and_columns_of_its_gold(db_id: str) -> None:
    benchmark = load_vizql()
    database = benchmark.database(db_id)
    source = infer(database)
    for question in (question for question in benchmark.questions if question.db_id == db_id):
        document = question.meta["vizql"]
        validation = validate(document, source, database=database)
        assert validation.is_valid, (question.id, validation.validation_errors)
        made = compiled(read_request(document), source, "sqlite")
        wanted, rows = database.run(question.gold[0]), database.run(made.sql)
        assert results_match(wanted, rows, **gold_order(question.gold[0], wanted)), question.id
        assert _rounded(wanted) == _rounded(rows), question.id


def _rounded(result: RunResult) -> list[str]:
    return sorted(
        str([round(value, 6) if isinstance(value, float) else value for value in row]) for row in _plain(result)
    )


def _plain(result: RunResult) -> Iterator[list[Any]]:
    for row in result.rows:
        yield [int(value) if isinstance(value, float) and value.is_integer() else value for value in row]


# ----------------------------------------------------------------------------------------------- the benchmark


def test_its_questions_are_the_packaged_ones_with_a_structured_query() -> None:
    packaged = load_packaged()
    benchmark = load_benchmark("vizql")
    assert [question.id for question in benchmark.questions] == [record["id"] for record in RECORDS]
    known = {question.id: question for question in packaged.questions}
    for question, record in zip(benchmark.questions, RECORDS, strict=True):
        source = known[question.id]
        assert (question.text, question.gold, question.split) == (source.text, source.gold, source.split)
        assert question.meta["vizql"] == record["query"]
    for name, ids in benchmark.splits.items():
        assert ids and set(ids) <= set(packaged.splits[name])
    assert set(benchmark.splits) == set(packaged.splits)
    assert "vizql" not in packaged.questions[0].meta


def test_it_can_be_checked_and_give_examples() -> None:
    from nl2sql.agents.context.few_shot import pool_of
    from nl2sql.config import FewShotConfig

    done = CliRunner().invoke(app, ["data", "check", "-b", "vizql", "--split", "quick"])
    sound = sum(record["split"] == "quick" for record in RECORDS)
    assert (done.exit_code, done.output) == (0, f"{sound} of {sound} items are sound\n")
    pool = pool_of(FewShotConfig(k=1, pool="vizql:dev"))
    assert {item.id for item in pool.items} <= {record["id"] for record in RECORDS if record["split"] == "dev"}
    assert all("vizql" in item.meta for item in pool.items)


def test_a_run_takes_its_dev_half_unless_another_is_named() -> None:
    from nl2sql.runs.plan import default_split

    assert (default_split("vizql", None), default_split("vizql", "test")) == ("dev", "test")


def test_a_broken_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vizql.json").write_text('[{"id": "a"}]', encoding="utf-8")
    monkeypatch.setattr("nl2sql.benchmarks.packaged.data_root", lambda: tmp_path)
    with pytest.raises(BenchmarkError, match=r"structured queries .*vizql.json cannot be read: KeyError"):
        load_vizql()
