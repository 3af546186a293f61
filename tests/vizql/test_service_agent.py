"""The controller over a VizQL Data Service: its errors reach the refiner, or stop the episode; and the commands."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import programs
import pytest
from test_compile import SOURCE, TABLES
from vds_server import LUID, TOKEN, VdsServer, serving

from nl2sql.agents.controllers import answer
from nl2sql.agents.record import Episode
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.models.scripted import ScriptedModel
from nl2sql.vizql.service import open_service_database
from nl2sql.vizql.source import DataSource

RELATED = {"logicalTableRelationships": SOURCE.model_dump()["logicalTableRelationships"]}
SERVED = DataSource.model_validate(SOURCE.model_dump(exclude_unset=True, exclude={"parameters"}) | RELATED)
BY_CITY = {"fields": [{"fieldCaption": "City"}, {"fieldCaption": "Amount", "function": "SUM"}]}
CITIES = {"fields": [{"fieldCaption": "City"}]}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VdsServer]:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(TABLES)
    monkeypatch.setenv("NL2SQL_VDS_TOKEN", TOKEN)
    monkeypatch.setattr("nl2sql.vizql.service.pauses", lambda: (0.01,))
    with SqliteDatabase(path) as database, serving(SERVED, database) as started:
        yield started


def asked(server: VdsServer, *replies: dict[str, Any], **options: Any) -> Episode:
    database = open_service_database(f"vds:{server.url}#{LUID}")
    config = build_config({"few_shot": {"k": 0}, **options})
    try:
        model = ScriptedModel([json.dumps(reply) for reply in replies])
        return answer("Total amount by city?", database, model, "vizql", config)
    finally:
        database.close()


def test_the_rows_of_the_service_are_the_answer(server: VdsServer) -> None:
    episode = asked(server, BY_CITY)
    assert episode.error is None and episode.columns == ("City", "SUM(Amount)") and len(episode.rows) > 1
    assert json.loads(episode.sql) == {"query": BY_CITY}
    assert server.bodies[-1]["query"] == BY_CITY


def test_400803_is_mended_by_the_refiner(server: VdsServer) -> None:
    episode = _with_error(server, "400803", "Unknown field in this version", CITIES, BY_CITY)
    assert episode.error is None and episode.flags["vizql"]["stages"] == ["execution", "answered"]
    assert "Unknown field in this version" in episode.calls[1]["messages"][-1]["content"]
    assert server.bodies[-1]["query"] == BY_CITY and len(episode.rows) > 1


@pytest.mark.parametrize("code", ["429000", "401001", "403157"])
def test_another_query_does_not_help(code: str, server: VdsServer) -> None:
    episode = _with_error(server, code, "as planned", CITIES, BY_CITY)
    assert len(episode.calls) == 1 and episode.error is not None and code in episode.error and episode.rows == ()


def _with_error(server: VdsServer, code: str, message: str, *replies: dict[str, Any]) -> Episode:
    """The episode in which the first query gets this error; the descriptions before it do not."""
    database = open_service_database(f"vds:{server.url}#{LUID}")
    try:
        assert database.source.fields  # described once, before the error is planned
        server.next_error(code, message)
        model = ScriptedModel([json.dumps(reply) for reply in replies])
        return answer("Total by city?", database, model, "vizql", build_config({"few_shot": {"k": 0}}))
    finally:
        database.close()


def test_sql_is_refused_with_the_controller_that_works(server: VdsServer) -> None:
    database = open_service_database(f"vds:{server.url}#{LUID}")
    try:
        told = database.run("SELECT 1")
        with pytest.raises(UsageError, match="--controller vizql"):
            answer("How many?", database, ScriptedModel(["SELECT 1"]), "single_shot")
    finally:
        database.close()
    assert told.error is not None and "--controller vizql" in told.error


def nl2sql(server: VdsServer, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    with mock.patch.dict(os.environ, {"NL2SQL_VDS_TOKEN": TOKEN}):
        return programs.command(*arguments, cwd=Path.cwd(), stdin=typed)


def test_a_query_is_run_by_the_command(server: VdsServer) -> None:
    where = ("--db", f"vds:{server.url}#{LUID}")
    shown = nl2sql(server, "data", "vizql", "run", "-", *where, "--json", typed=json.dumps(BY_CITY))
    told = json.loads(shown.stdout)  # nothing else is on standard output
    assert shown.returncode == 0 and told["columns"] == ["City", "SUM(Amount)"] and len(told["rows"]) > 1
    wrong = nl2sql(server, "data", "vizql", "run", "-", *where, typed='{"fields": [{"fieldCaption": "Ctiy"}]}')
    assert wrong.returncode == 1 and "Did you mean: City" in wrong.stdout


def test_a_question_is_asked_by_the_command(server: VdsServer, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": {"*": [json.dumps(BY_CITY)]}}))
    where = ("--db", f"vds:{server.url}#{LUID}", "--model", f"scripted:{script}", "-c", "few_shot.k=0")
    shown = nl2sql(server, "ask", "Total amount by city?", *where, "--controller", "vizql", "--json")
    assert shown.returncode == 0 and json.loads(shown.stdout)["columns"] == ["City", "SUM(Amount)"]
    plain = nl2sql(server, "ask", "Total amount by city?", *where, "--controller", "vizql")
    assert plain.stdout.startswith(f"-- query, version 1: {json.dumps(BY_CITY)}")


@pytest.mark.parametrize("spec", ["vds:https://server", "vds:#luid", "vds:ftp://server#luid"])
def test_a_wrong_name_of_a_data_source_is_one_line(spec: str, server: VdsServer) -> None:
    shown = nl2sql(server, "ask", "How many?", "--db", spec, "--controller", "vizql")
    assert shown.returncode == 2 and shown.stderr.count("\n") == 1 and "Traceback" not in shown.stderr
