"""The benchmark of repairs: its cases really fail, what is measured is what happened, and nothing is done twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nl2sql.benchmarks import load_benchmark
from nl2sql.benchmarks.packaged import database_path
from nl2sql.cli import app
from nl2sql.config import Config, build_config
from nl2sql.databases.schema import quote_name
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import Database
from nl2sql.models.scripted import ScriptedModel
from nl2sql.repair.corpus import Corpus
from nl2sql.runs.evaluate import start
from nl2sql.runs.plan import RunSpec
from nl2sql.runs.repair_bench import Bench, arm, repaired, repairs_text, run_arms, summarise_repairs
from nl2sql.runs.repair_bench.cases import (
    CasePlan,
    RepairCase,
    corrupted_cases,
    failed_in_runs,
    learn_from,
    open_cases,
    refusal_of,
)
from nl2sql.runs.repair_bench.sources import Source

QUICK = load_benchmark("packaged", split="quick")
SOURCE = Source("packaged", QUICK.database, QUICK.database)


@pytest.fixture(scope="module")
def cases() -> list[RepairCase]:
    return corrupted_cases(QUICK.questions, SOURCE, 40, 0, progress=False)


def database(case: RepairCase) -> Database:
    return QUICK.database(case.db_id)


def test_a_seed_gives_the_same_cases_and_every_one_fails(cases: list[RepairCase]) -> None:
    assert cases == corrupted_cases(QUICK.questions, SOURCE, 40, 0, progress=False)
    assert cases != corrupted_cases(QUICK.questions, SOURCE, 40, 1, progress=False)
    assert len({case.id for case in cases}) == len(cases) == 40
    for case in cases:
        assert refusal_of(case.sql, database(case)) == case.error != ""
        assert database(case).run(case.gold[0]).rows
    assert len(Counter(case.kind for case in cases)) >= 10 and len({case.db_id for case in cases}) == 6


def a_case(cases: list[RepairCase], kind: str = "mistyped_column") -> RepairCase:
    return next(case for case in cases if case.kind == kind)


def one(case: RepairCase, name: str, replies: list[str], corpus: Corpus | None = None) -> dict[str, object]:
    bench = Bench([case], database, Config(), corpus=corpus)
    return repaired(bench, case, arm(name), ScriptedModel(replies, context_window=100_000))


OUTCOMES = [
    (["{gold}"], {"success": True, "executes": True, "attempts": 1, "ended": "executes"}),
    (["SELECT * FROM {table}"], {"success": False, "executes": True, "attempts": 1}),
    (["SELECT nowhere FROM nothing", "{gold}"], {"success": True, "attempts": 2}),
    (["{sql}"], {"success": False, "executes": False, "attempts": 1, "ended": "repeats itself"}),
    (["I cannot do that"], {"success": False, "attempts": 0, "ended": "what came is no query"}),
    (["SELECT a FROM b", "SELECT c FROM d", "SELECT e FROM f"], {"attempts": 3, "ended": "no attempt is left"}),
    ([], {"success": False, "attempts": 0}),
]


@pytest.mark.parametrize(("replies", "wanted"), OUTCOMES)
def test_an_outcome_is_what_happened(replies: list[str], wanted: dict[str, object], cases: list[RepairCase]) -> None:
    case = a_case(cases)
    known = {"gold": case.gold[0], "sql": case.sql, "table": quote_name(database(case).schema().tables[0].name)}
    found = one(case, "error", [reply.format(**known) for reply in replies])
    assert {name: found[name] for name in wanted} == wanted
    if not replies:
        assert str(found["ended"]).startswith("model: ")


def test_each_arm_shows_the_model_what_it_promises(
    cases: list[RepairCase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = a_case(cases)
    asked: list[str] = []
    plain = ScriptedModel.generate

    def listening(self: ScriptedModel, messages: Any, **options: Any) -> Any:
        asked.append(messages[-1]["content"])
        return plain(self, messages, **options)

    monkeypatch.setattr(ScriptedModel, "generate", listening)
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        corpus.store_fix(case.error, case.sql, case.gold[0], "A twin", source="another/1")
        bench = Bench([case], database, Config(), corpus=corpus)
        for name in ("error", "patterns", "patterns+corpus"):
            repaired(bench, case, arm(name), ScriptedModel([case.gold[0]], context_window=100_000))
    error, patterns, fixes = asked
    assert f"Error: {case.error}" in error and "VIOLATED" not in error
    assert "VIOLATED CONSTRAINT:\nThere is no column" in patterns and "SIMILAR" not in patterns
    assert "SIMILAR SUCCESSFUL QUERIES:\n\nA twin" in fixes


def test_the_stage_without_a_model_asks_none(cases: list[RepairCase]) -> None:
    for case in cases[:10]:
        found = one(case, "deterministic", [])
        assert found["prompt_tokens"] == 0 and found["ended"] in ("executes", "no repair was found")


def test_what_is_finished_is_not_done_again(cases: list[RepairCase], tmp_path: Path) -> None:
    one_database = [case for case in cases if case.db_id == cases[0].db_id][:6]
    bench, few = Bench(one_database, database, Config()), [arm("deterministic")]
    first = run_arms(bench, few, None, tmp_path, progress=False)
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    (tmp_path / "results.jsonl").write_text("\n".join(lines[:2]) + "\n")
    again = run_arms(bench, few, None, tmp_path, progress=False)
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == len(lines) == len(one_database) > 3
    assert {(row["case"], row["success"]) for row in again} == {(row["case"], row["success"]) for row in first}
    everything = f"SELECT * FROM {quote_name(database(one_database[0]).schema().tables[0].name)}"
    model = ScriptedModel([everything], on_exhausted="repeat", context_window=100_000)
    both = run_arms(bench, [*few, arm("error")], model, tmp_path, progress=False)
    summary = summarise_repairs(bench.cases, both)
    (group,) = summary["groups"]
    named = {entry["arm"]: entry for entry in group["arms"]}
    assert named["error"]["repaired"]["value"] == 1 and named["error"]["right"]["value"] == 0
    right = sum(row["success"] for row in first)
    assert named["deterministic"]["test"]["wins"] == right and named["deterministic"]["test"]["losses"] == 0
    text = repairs_text(summary)
    assert "deterministic" in text and "scripted" in text and "right by category" in text


def test_other_attempts_give_other_results_in_the_same_folder(cases: list[RepairCase], tmp_path: Path) -> None:
    case = a_case(cases)
    everything = f"SELECT * FROM {quote_name(database(case).schema().tables[0].name)}"
    model = ScriptedModel(["SELECT a FROM b", everything] * 9, on_exhausted="repeat", context_window=100_000)

    def attempts(count: int, *names: str) -> list[tuple[str, int]]:
        bench = Bench([case], database, Config(), attempts=count)
        rows = run_arms(bench, [arm(name) for name in names], model, tmp_path, progress=False)
        return [(row["arm"], row["attempts"]) for row in rows]

    assert attempts(3, "error") == [("error", 2)]
    assert attempts(1, "error") == [("error", 1)]
    assert attempts(3, "error") == [("error", 2)]
    assert attempts(1, "patterns") == [("error", 1), ("patterns", 1)]  # of an arm that was not asked for: the latest


def test_a_changed_pattern_makes_other_results(cases: list[RepairCase], monkeypatch: pytest.MonkeyPatch) -> None:
    case, chosen = a_case(cases), arm("patterns")
    bench = Bench([case], database, Config())
    before = bench.key(case, chosen, {})
    monkeypatch.setattr("nl2sql.runs.repair_bench.catalogue_print", lambda: "another")
    assert bench.key(case, chosen, {}) != before


def test_a_question_is_not_taught_what_it_is_tested_on(cases: list[RepairCase], tmp_path: Path) -> None:
    others = corrupted_cases(load_benchmark("packaged", split="dev").questions, SOURCE, 10, 0, progress=False)
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        assert learn_from(cases, corpus, others) == corpus.stats()["fixes"] > 0
        with pytest.raises(UsageError, match="both learned from and measured"):
            learn_from(cases, corpus, cases)


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[RepairCase], Bench]]:
    # one database, for each is copied and has a process
    folder, one = tmp_path_factory.mktemp("one"), QUICK.questions[0].db_id
    asked = [question for question in QUICK.questions if question.db_id == one]
    entries = [{"question": q.text, "query": q.gold[0], "db_id": one, "id": q.id, "split": "quick"} for q in asked]
    (folder / "questions.json").write_text(json.dumps(entries))
    (folder / "databases" / one).mkdir(parents=True)
    shutil.copy(database_path(one), folder / "databases" / one / f"{one}.sqlite")
    plan = CasePlan(benchmark=str(folder), split="quick", dialect="clickhouse", count=12)
    with open_cases(tmp_path_factory.mktemp("bench"), plan, progress=False) as (cases, sources):
        yield cases, Bench(cases, sources.database, Config())


def test_clickhouse_refuses_its_cases_in_its_own_words(clickhouse: tuple[list[RepairCase], Bench]) -> None:
    cases, bench = clickhouse
    origins = Counter(case.origin for case in cases)
    assert origins["corruption"] == 12 and origins["written"] >= 15
    balance = [case for case in cases if "previous day's balance" in case.question]
    assert len(balance) >= 4
    for case in cases:
        assert "Code: " in case.error or "SELECT" in case.error
        result = bench.database(case).run(case.gold[0])
        assert result.success and bench.right(case, case.gold[0], result)


def test_a_repair_on_clickhouse_is_judged_by_its_rows(clickhouse: tuple[list[RepairCase], Bench]) -> None:
    cases, bench = clickhouse
    case = next(case for case in cases if case.origin == "written")
    model = ScriptedModel([f"```sql\n{case.gold[0]};\n```"], context_window=100_000)
    assert repaired(bench, case, arm("patterns"), model)["success"]


COMMAND = ["corpus", "bench", "--arms", "deterministic", "--split", "quick", "--cases", "12", "-q", "--out"]


def test_the_command_goes_on_and_refuses_other_cases(tmp_path: Path) -> None:
    folder = str(tmp_path / "bench")
    printed = CliRunner().invoke(app, [*COMMAND, folder], catch_exceptions=False).output
    assert "12 failing statements" in printed and "deterministic" in printed
    before = (tmp_path / "bench" / "results.jsonl").read_bytes()
    again = CliRunner().invoke(app, [*COMMAND, folder, "--json"], catch_exceptions=False)
    summary = json.loads(again.stdout)
    assert summary["groups"][0]["n"] == 12 and (tmp_path / "bench" / "results.jsonl").read_bytes() == before
    refused = CliRunner().invoke(app, [*COMMAND, folder, "--seed", "1"])
    assert isinstance(refused.exception, UsageError) and "seed 0; name another --out" in str(refused.exception)


def test_what_a_model_wrote_in_a_run_becomes_cases(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": {"*": ["SELECT x FROM nowhere"]}}))
    plan = RunSpec(split="quick", limit=3, controller="single_shot", model=f"scripted:{script}", control=False)
    start(plan, build_config({"eval": {"replicas": 0}}), out=tmp_path / "run", progress=False)
    command = [*COMMAND, str(tmp_path / "bench"), "--cases", "0", "--run", str(tmp_path / "run"), "--json"]
    (group,) = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)["groups"]
    assert (group["origin"], group["n"]) == ("model", 3)
    assert [entry["category"] for entry in group["by_category"]] == ["unknown_table"]
    shutil.copytree(tmp_path / "run", tmp_path / "again" / "run")
    both = [case.id for case in failed_in_runs([tmp_path / "run", tmp_path / "again" / "run", tmp_path / "run"])]
    assert len(both) == len(set(both)) == 6


REFUSED = [
    (["--arms", "magic"], "no arm 'magic'; known: error, patterns"),
    (["--arms", ","], "names none"),
    (["--arms", "patterns+corpus", "--model", "scripted:FILE"], "needs fixes; give --corpus"),
    (["--arms", "patterns+corpus", "--model", "scripted:FILE", "--corpus", "none.db"], "none.db"),
    (["--learn-from", "packaged"], "expected BENCHMARK:SPLIT"),
    (["--learn-from", "packaged:test"], "is not one to learn from"),
    (["--learn-from", "packaged:dev", "--corpus", "x.db"], "leave one out"),
    (["--cases", "0"], "nothing to repair"),
    (["--benchmark", "nowhere"], "nowhere"),
]


@pytest.mark.parametrize(("arguments", "wanted"), REFUSED, ids=lambda value: " ".join(value) if value else "")
def test_a_mistake_is_one_line(arguments: list[str], wanted: str, tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('{"replies": {"*": ["SELECT 1"]}}')
    given = [argument.replace("FILE", str(tmp_path / "script.json")) for argument in arguments]
    result = CliRunner().invoke(app, [*COMMAND, str(tmp_path / "out"), *given])
    assert isinstance(result.exception, Nl2SqlError) and wanted in str(result.exception)
    assert not (tmp_path / "out").exists()
