"""``--verified`` and ``--knowledge`` on the command line and over MCP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from typer.testing import CliRunner, Result

from nl2sql.cli import app
from nl2sql.cli.mcp_server import DatabaseTools, SharedModel, build_server
from nl2sql.config import Config, KnowledgeConfig
from nl2sql.databases.engines import open_database
from nl2sql.models.scripted import ScriptedModel

HOW_MANY, BERN, SHIPPED = "How many customers are there?", "Who lives in Bern?", "How many orders were shipped?"
STALE = f"stale, {{}}: '{BERN}': unknown_column:town"
QUERIES = f"""\
verified_queries:
  - {{question: '{BERN}', sql: "SELECT name FROM customers WHERE town = 'Bern'"}}
  - {{question: '{SHIPPED}', sql: "SELECT COUNT(*) FROM orders WHERE status = 'shipped'"}}
  - {{question: '{HOW_MANY}', sql: SELECT COUNT(*) FROM customers, verified_by: Ana, use_as_onboarding_question: true}}
"""


@pytest.fixture
def place(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "q.yaml").write_text(QUERIES, encoding="utf-8")
    (tmp_path / "shop.md").write_text("All totals are in francs.\n", encoding="utf-8")
    script = {"on_exhausted": "repeat", "replies": {"*": [" COUNT(*) FROM customers"]}}
    (tmp_path / "script.json").write_text(json.dumps(script), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nl2sql(*words: str, typed: str = "") -> Result:
    command, *more = words
    options = ["--db", "shop.sqlite"] + (["--model", "scripted:script.json"] if command != "mcp" else [])
    return CliRunner().invoke(app, [command, *options, *more], input=typed)


def test_ask_says_whose_query_it_is_what_is_stale_and_what_is_near(place: Path) -> None:
    one = ["ask", "--controller", "single_shot", "--no-cache"]
    reused = nl2sql(*one, "how many customers are there", "--verified", "q.yaml").stdout
    assert reused.startswith(f"-- verified by Ana: the query of '{HOW_MANY}'; no model was asked\nSELECT COUNT(*)")
    unloaded = nl2sql(*one, HOW_MANY, "--verified", "q.yaml", "--model", "scripted:no-such-file.json")
    assert unloaded.exit_code == 0 and "no model was asked" in unloaded.stdout
    asked = nl2sql(*one, "How many customers are not there?", "--verified", "q.yaml", "--knowledge", "shop.md").stdout
    assert "no model was asked" not in asked and f"-- {STALE.format('not used')}\n" in asked
    assert f"-- verified questions like it: {HOW_MANY}\n" in asked
    told = json.loads(nl2sql(*one, "Who?", "--knowledge", "shop.md", "--json").stdout)
    assert told["flags"]["knowledge"] == {"facts": 1, "of": 1}


def test_chat_suggests_verified_questions_onboarding_ones_first(place: Path) -> None:
    done = nl2sql("chat", "--verified", "q.yaml", "--controller", "single_shot", typed=f"{SHIPPED}\n")
    assert done.stderr.splitlines() == [
        "-- verified questions:",
        f"--   {HOW_MANY}",
        f"--   {SHIPPED}",
        f"-- {STALE.format('not used')}",
    ]
    assert f"the query of '{SHIPPED}'" in done.stdout


def test_eval_runs_them_as_a_benchmark_and_says_what_is_stale(place: Path) -> None:
    options = ["--controller", "single_shot", "--no-cache", "-q", "--replicas", "0", "--json", "--out", "run"]
    done = nl2sql("eval", "--verified", "q.yaml", *options)
    report = json.loads(done.stdout)
    assert f"-- {STALE.format('left out')}\n" in done.stderr
    assert (report["n"], report["left_out"], report["benchmark"]) == (2, {"stale": 1}, "q")
    manifest = json.loads((place / "run" / "manifest.json").read_text())
    assert manifest["plan"]["benchmark"] == f"{place / 'q.yaml'}::{place / 'shop.sqlite'}"
    assert manifest["config"]["knowledge"]["verified"] == ""  # nobody is shown the golds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval"], "--db goes with --verified"),
        (["eval", "--verified", "no.yaml"], "expected a YAML file"),
        (["eval", "--verified", "q.yaml", "--db", "duckdb:shop.duckdb"], "as --engine-url instead"),
        (["ask", "Who?", "--verified", "no.yaml"], "no such file"),
        (["ask", "Who?", "--knowledge", "no.md"], "no such file"),
        (["mcp", "--db", "two=shop.sqlite", "--verified", "q.yaml"], "about one database"),
        (["mcp", "--knowledge", "no.md"], "no such file"),
    ],
)
def test_what_is_typed_wrongly_is_one_line(place: Path, words: list[str], said: str) -> None:
    done = nl2sql(*words)
    assert done.exit_code != 0 and said in str(done.exception)


def test_mcp_lists_them_and_ask_reuses_one(shop: Path, place: Path) -> None:
    def talk(config: Config, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
        async def session() -> list[Any]:
            tools = DatabaseTools(open_database(shop), SharedModel(lambda: ScriptedModel([])), config)
            async with Client(build_server({"shop": tools})) as client:
                names = [tool.name for tool in (await client.list_tools()).tools]
                return [names, *[(await client.call_tool(*call)).structured_content for call in calls]]

        return anyio.run(session)

    config = Config(knowledge=KnowledgeConfig(verified=str(place / "q.yaml")))
    names, listed, asked = talk(config, ("verified_queries", {}), ("ask", {"question": HOW_MANY}))
    assert "verified_queries" in names and "verified_queries" not in talk(Config())[0]
    assert [query["question"] for query in listed["verified_queries"]] == [HOW_MANY, SHIPPED]
    assert listed["stale"] == {BERN: "unknown_column:town"}
    assert asked["rows"] == [[3]] and asked["verified"]["reused"]["verified_by"] == "Ana"
