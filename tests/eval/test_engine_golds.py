"""VA and EX on other engines than SQLite: real DuckDB always, servers where they are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import programs
import pytest
import servers
import typer
from click.testing import Result
from engine_shops import make_duckdb
from typer.testing import CliRunner

from nl2sql.benchmarks import load_benchmark
from nl2sql.cli.score import compare_command
from nl2sql.config import build_config
from nl2sql.databases.schema import Schema
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.eval import score, score_many
from nl2sql.interfaces import Database, Question, RunResult
from nl2sql.runs.distributed import cut
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.report import write_report
from nl2sql.runs.rescore import replay

NO_TS = build_config({"eval": {"replicas": 0}})
NAMES = "SELECT name FROM customers"
LATER = "SELECT c.joined + 1 FROM customers c"  # what DuckDB takes, and SQLite takes for a sum of numbers
PREDICTIONS = {
    "right": "SELECT c.name FROM customers c",
    "wrong": "SELECT count(*) + 1 FROM orders",
    "order": "SELECT total FROM orders ORDER BY total DESC",
    "broken": "SELECT nothing FROM orders",
    "sqlite": NAMES,
}
QUESTIONS = [
    Question("?", "shop", "right", gold=(NAMES,)),
    Question("?", "shop", "wrong", gold=("SELECT count(*) FROM orders",)),
    Question("?", "shop", "order", gold=("SELECT total FROM orders ORDER BY total",)),
    Question("?", "shop", "broken", gold=("SELECT total FROM orders",)),
    Question("?", "shop", "sqlite", gold=("SELECT julianday(joined) FROM customers",)),
]


@dataclass
class Shops:
    """Questions over one database that is open already; it is all that scoring is given."""

    shop: Database
    questions: Sequence[Question]
    name: str = "shops"
    splits: dict[str, Sequence[str]] = field(default_factory=dict)

    def database(self, db_id: str) -> Database:
        return self.shop


@pytest.mark.parametrize("rule", ["bag", "bird-set"])
@pytest.mark.parametrize("dialect", ["duckdb", "clickhouse", "postgres", "mysql"])
def test_statements_are_judged_on_the_engine_itself(engine: Callable[[str], Database], dialect: str, rule: str) -> None:
    shops = Shops(engine(dialect), QUESTIONS)
    scores = score(shops, QUESTIONS, PREDICTIONS, replicas=0, rule=rule)
    verdicts = {item.id: (item.va, item.ex, item.error_kind) for item in scores.items}
    assert verdicts == {
        "right": (True, True, None),
        "wrong": (True, False, None),
        "order": (True, rule == "bird-set", None),  # BIRD's rule looks at no order
        "broken": (False, False, "unknown_column"),
        "sqlite": (True, False, None),
    }
    (broken,) = [item for item in scores.items if item.gold_error]
    assert broken.id == "sqlite" and "julianday" in str(broken.gold_error)
    assert list(scores.metrics()) == ["VA", "EM", f"EX[{rule}]"]
    # the gold and the prediction of five questions, of which one text comes twice; and whether an order has ties
    assert scores.executed == 9 + (rule == "bag")


def test_bounds_hold_there_too(engine: Callable[[str], Database]) -> None:
    questions = [Question("?", "shop", "many", gold=(NAMES,))]
    many = {"many": "SELECT range AS n FROM range(100000)"}
    (item,) = score(Shops(engine("duckdb"), questions), questions, many, replicas=0, max_rows=100).items
    assert (item.va, item.error_kind) == (False, "too_many_rows")


def test_replicas_are_of_sqlite_files(engine: Callable[[str], Database]) -> None:
    with pytest.raises(UsageError, match=r"TS needs SQLite files, and shop is a duckdb database; .* --replicas 0"):
        score(Shops(engine("duckdb"), QUESTIONS), QUESTIONS, PREDICTIONS, replicas=1)


def test_a_database_of_any_class_with_a_sqlite_file_has_replicas(shop: Path) -> None:
    from nl2sql.databases.sqlite.database import SqliteDatabase

    class Mine:
        """A user's own class: only ``dialect`` and ``path`` say what it is."""

        dialect, path = "sqlite", shop

        def __getattr__(self, name: str) -> Any:
            return getattr(SqliteDatabase(shop), name)

    questions = [Question("?", "shop", "1", gold=("SELECT city FROM customers",))]
    mine: Any = Mine()
    scores = score(Shops(mine, questions), questions, {"1": questions[0].gold[0]}, replicas=1)
    assert scores.metrics()["TS[bag,perturb,N=1]"].value == 1.0


def test_an_engine_that_nobody_knows_needs_its_class_and_nothing_else() -> None:
    class Answers:
        """The Protocol's members over a table of answers; its dialect is none of ours."""

        dialect, name, fingerprint = "presto", "answers", "0"
        known: ClassVar = {"q1": ((1,), (2,)), "q2": ((2,), (1,))}

        def schema(self) -> Schema:
            return Schema((), self.dialect)

        def sample(self, table: str, n: int = 3) -> list[dict[str, Any]]:
            return []

        def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult:
            return RunResult(True)

        def run(self, sql: str, *, timeout_s: float = 30.0, max_rows: int = 10_000) -> RunResult:
            if sql == "gone":
                raise DatabaseError("the server is gone")
            rows = self.known.get(sql)
            return RunResult(True, ("n",), rows) if rows else RunResult(False, error="what?", error_kind="syntax")

        def close(self) -> None:
            """Nothing is open."""

    questions = [Question("?", "answers", str(number), gold=("q1",)) for number in range(3)]
    shops = Shops(Answers(), questions)
    items = score(shops, questions, {"0": "q2", "1": "q3", "2": "gone"}, replicas=0).items
    assert [(item.va, item.ex, item.error) for item in items] == [
        (True, True, None),
        (False, False, "what?"),
        (False, False, "the server is gone"),
    ]


# -------------------------------------------------------------------------------------------- by name and by URL


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A benchmark folder without SQLite files; the URL of its database in DuckDB."""
    monkeypatch.setenv("NL2SQL_BENCHMARKS", str(tmp_path))
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "toy"
    folder.mkdir()
    days = {"query": "SELECT date(joined, '+1 day') FROM customers", "query_duckdb": "SELECT joined + 1 FROM customers"}
    questions = [
        {"question": "Who?", "query": NAMES, "db_id": "shop", "id": "who"},
        {"question": "Tomorrow?", "db_id": "shop", "id": "date", **days},
    ]
    (folder / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    make_duckdb(tmp_path)
    return f"duckdb:{tmp_path}/{{db_id}}.duckdb"


def nl2sql(*arguments: str) -> subprocess.CompletedProcess[str]:
    return programs.command(*arguments, cwd=Path.cwd())


def compare(*arguments: object) -> Result:
    app = typer.Typer()
    app.command("compare")(compare_command)
    return CliRunner().invoke(app, [*map(str, arguments), "--trust"])


def write_script(path: Path) -> str:
    texts = {"Who?": NAMES, "Tomorrow?": LATER}
    path.write_text(json.dumps({"replies": {q: {"single_shot": [sql]} for q, sql in texts.items()}}), encoding="utf-8")
    return f"scripted:{path}"


def test_a_run_on_another_engine_is_scored_replayed_and_reported_there(toy: str, tmp_path: Path) -> None:
    out, model = tmp_path / "out", write_script(tmp_path / "s.json")
    chosen = ["--controller", "single_shot", "--model", model, "--quiet", "--out", str(out), "--json"]
    made = nl2sql("eval", "--benchmark", "toy", "--engine-url", toy, *chosen)
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout)
    assert (report["benchmark"], report["n"]) == ("toy-duckdb", 2)
    assert {name: metric["value"] for name, metric in report["metrics"].items()} == {"VA": 1, "EM": 1, "EX[bag]": 1}
    assert (
        replay(out, overrides=["eval.rule=spider"], progress=False, trust=True).report["metrics"]["EX[spider]"]["value"]
        == 1.0
    )
    assert write_report([out], tmp_path / "r.html").exists()
    resumed = nl2sql("eval", "--resume", str(out), "--engine-url", toy, "--trust", "--quiet")
    assert resumed.returncode == 0 and nl2sql("runs", "check", str(out), "--trust").returncode == 0


def test_score_takes_the_golds_of_the_dialect(toy: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    rows = [{"id": "who", "sql": NAMES}, {"id": "date", "sql": LATER}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    done = nl2sql("score", "-b", "toy", "--engine-url", toy, "-p", str(file), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["EX[bag]"]["value"] == 1.0
    wrong = nl2sql("score", "-b", "toy", "--engine-url", toy, "-p", str(file), "--replicas", "2")
    assert wrong.returncode == 2 and "TS needs SQLite files, and shop is a duckdb database" in wrong.stderr


def test_runs_are_compared_on_the_engine_that_they_asked(toy: str, tmp_path: Path) -> None:
    model = write_script(tmp_path / "s.json")
    a, b, plain = (tmp_path / name for name in ("a", "b", "plain"))
    evaluate("toy", model, "single_shot", engine_url=toy, config=NO_TS, out=a, progress=False)
    shutil.copytree(a, b)
    compared = compare(a, b, "--json")
    assert compared.exit_code == 0, compared.exception
    told = json.loads(compared.stdout)
    assert (told["benchmark"], told["metrics"]["EX[bag]"]["a"], told["metrics"]["VA"]["b"]) == ("toy-duckdb", 1, 1)
    assert "TS needs SQLite files" in str(compare(a, b, "--replicas", 2).exception)
    assert json.loads(compare(a, b, "-b", "toy", "--json").stdout)["benchmark"] == "toy-duckdb"
    shutil.copytree(b, plain)
    manifest = json.loads((plain / "manifest.json").read_text())
    manifest["plan"]["engine_url"] = ""
    (plain / "manifest.json").write_text(json.dumps(manifest))
    assert f"asked different engines (SQLite and duckdb:{tmp_path}" in str(compare(a, plain).exception)


def test_ts_is_refused_before_a_folder_is_made(toy: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TS needs SQLite files"):
        evaluate("toy", write_script(tmp_path / "s.json"), engine_url=toy, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("benchmark", "url", "message"),
    [
        ("toy", "mysql://me:secret@127.0.0.1/{db_id}", r"holds a password, .* write \$NAME in its place"),
        ("toy", "mysql://me:se/cret@127.0.0.1/{db_id}", r"the engine cannot be read; .* %2F"),
        ("packaged", "duckdb:one.duckdb", r"names one database, and packaged asks \d+: write \{db_id\}"),
    ],
)
def test_urls_that_cannot_be_meant_are_refused(toy: str, benchmark: str, url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        load_benchmark(benchmark, engine_url=url)
    assert "secret" not in str(refused.value)


def test_a_worker_opens_the_engine_by_its_url(toy: str, engine: Callable[[str], Database]) -> None:
    benchmark = load_benchmark("toy", engine_url=toy)
    (shard,) = cut(benchmark, benchmark.questions)
    assert (shard.file, shard.url) == (None, toy)
    assert shard.open().database("shop").run(NAMES).success
    with pytest.raises(UsageError, match="workers open databases by name; give the benchmark's name with engine_url="):
        cut(Shops(engine("duckdb"), QUESTIONS), QUESTIONS)


# ------------------------------------------------------------------------------------------------- classicmodels

FOLDER = Path(os.environ.get("NL2SQL_BENCHMARKS", "nowhere")) / "classicmodels"
COPY = """
import sqlite3, sys, duckdb
lite, duck = sqlite3.connect(sys.argv[1]), duckdb.connect(sys.argv[2])
kinds = {"INTEGER": "BIGINT", "REAL": "DOUBLE"}
for (table,) in lite.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
    columns = lite.execute(f'PRAGMA table_info("{table}")').fetchall()
    fields = ", ".join(f'"{column[1]}" {kinds.get(column[2].upper(), "VARCHAR")}' for column in columns)
    duck.execute(f'CREATE TABLE "{table}" ({fields})')
    rows = lite.execute(f'SELECT * FROM "{table}"').fetchall()
    duck.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})', rows)
duck.close()
"""


@pytest.mark.skipif(not FOLDER.is_dir(), reason="set NL2SQL_BENCHMARKS to a folder with classicmodels")
def test_classicmodels_on_mariadb_and_duckdb(tmp_path: Path) -> None:
    lite, copy = FOLDER / "databases/classicmodels/classicmodels.sqlite", tmp_path / "classicmodels.duckdb"
    subprocess.run([sys.executable, "-c", COPY, str(lite), str(copy)], check=True)
    on_duckdb = load_benchmark("classicmodels", engine_url=f"duckdb:{copy}")
    asked = [question for question in on_duckdb.questions if question.meta["gold_rows"]]
    golds = {question.id: question.gold[0] for question in asked}
    scores = score(on_duckdb, asked, golds, replicas=0)
    broken = sum(bool(item.gold_error) for item in scores.items)  # golds in SQLite's dialect: counted, and said
    assert sum(item.ex for item in scores.items) == len(asked) - broken > 100
    with servers.mysql("", dump=FOLDER / "mysqlsampledatabase.sql") as url:
        if url is None:
            pytest.skip("no MariaDB server: apt-get install mariadb-server")
        on_mariadb = load_benchmark("classicmodels", engine_url=url)
        there = [question for question in on_mariadb.questions if question.meta["gold_rows"]]
        written = {question.id: str(question.meta["query_mysql"]) for question in there}
        both = score_many(on_mariadb, there, {"mysql": written, "sqlite": golds}, replicas=0)
        on_mariadb.database("classicmodels").close()
    assert both["mysql"].metrics()["EX[bag]"].value == both["mysql"].metrics()["VA"].value == 1.0
    assert 0.5 < both["sqlite"].metrics()["EX[bag]"].value < 1.0  # SQLite's own functions do not run there
