"""Values that a question names are found in the database, and only those."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
import yaml

from nl2sql.agents.context.grounding import ground, values_line, with_values
from nl2sql.agents.single_shot import single_shot
from nl2sql.config import Config, SchemaConfig
from nl2sql.databases.engines import open_database
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import DatabaseError
from nl2sql.interfaces import Question, Resources, RunResult
from nl2sql.machine import cache_dir
from nl2sql.models.scripted import ScriptedModel

CASES = yaml.safe_load((Path(__file__).parents[1] / "fixtures" / "grounding.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def harbour(tmp_path, monkeypatch):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "harbour.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript("""
            CREATE TABLE ship (id INTEGER PRIMARY KEY, name TEXT, flag TEXT, class TEXT, tons REAL, note TEXT);
            CREATE TABLE port (id INTEGER PRIMARY KEY, name TEXT, city TEXT, country TEXT, plan BLOB);
            INSERT INTO ship VALUES (1, 'O''Hara', 'Norway', 'Tanker', 1e5, NULL), (2, 'Ship', 'Malta', 'Ocean Liner',
                7, ''), (3, 'Two', 'Norway', 'Tanker', 9, 'x'), (4, 'II', 'Malta', 'Ocean Liner', 3, 'a'),
                (5, 'Sam', 'Malta', 'Tug', 1, 'a');
            INSERT INTO port VALUES (1, 'York', 'York Bay', 'GB', x'00'), (2, 'Pier 9', 'New York', 'US', NULL);
        """)
    with SqliteDatabase(path) as database:
        yield database


@pytest.mark.parametrize(("question", "line"), CASES)
def test_a_question_gets_the_values_that_it_names(harbour, question, line):
    assert values_line(ground(question, harbour)) == line


def test_changed_content_has_an_index_of_its_own(harbour):
    assert not ground("ships from Oslo", harbour)
    with sqlite3.connect(harbour.path) as connection:
        connection.execute("UPDATE port SET city = 'Oslo' WHERE id = 1")
    with SqliteDatabase(harbour.path) as changed:
        assert [m.value for m in ground("ships from Oslo", changed)] == ["Oslo"]


def test_an_index_without_what_could_not_be_read_is_not_kept(harbour, monkeypatch):
    read = SqliteDatabase.run
    for kind, kept in (("timeout", False), ("denied", True)):  # what is denied today is denied tomorrow

        def failing(self, sql, kind=kind, **bounds):
            return RunResult(False, error="no", error_kind=kind) if '"port"' in sql else read(self, sql, **bounds)

        with monkeypatch.context() as patched:
            patched.setattr(SqliteDatabase, "run", failing)
            assert [m.value for m in ground("Malta or New York", harbour)] == ["Malta"]
        with SqliteDatabase(harbour.path) as later:
            assert len(ground("Malta or New York", later)) == (1 if kept else 2)
        for file in cache_dir("values").iterdir():
            assert file.suffix == ".sqlite"
            file.unlink()


def test_k_limits_the_values_and_the_best_come_first(harbour):
    found = ground("Norway, Malta, the Ocean Liner, New York", harbour, k=2)
    assert [m.value for m in found] == ["Ocean Liner", "New York"]


@pytest.mark.parametrize(
    ("question", "first"),
    [("How long is the track in Utah?", "track.state"), ("Which region is Utah in?", "region.state")],
)
def test_of_many_columns_with_a_value_those_come_first_that_the_question_is_about(
    tmp_path, monkeypatch, question, first
):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    names = ("border", "camp", "depot", "region", "track")
    with sqlite3.connect(tmp_path / "many.sqlite") as connection:
        for name in names:
            connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, state TEXT, size REAL)")
            connection.execute(f"INSERT INTO {name} VALUES (1, 'Utah', 7)")
    with SqliteDatabase(tmp_path / "many.sqlite") as database:
        found = [f"{match.table}.{match.column}" for match in ground(question, database)]
    assert found[0] == first and len(found) == 3


def test_prompts_show_values_only_where_asked_for(harbour):
    question = Question("Name the ports in New York.", id="q", db_id="harbour", gold=("SELECT 1",))
    shown = []
    for values in (0, 4):
        resources = Resources(ScriptedModel(["SELECT name FROM port;"] * 2), harbour)
        episode = single_shot(question, resources, Config(schema_text=SchemaConfig(values=values)))
        shown.append(episode.messages[-1]["content"])
    without, with_them = shown
    assert "Values:" not in without
    assert with_them == without.replace("New York.\n", "New York.\nValues: port.city = 'New York'\n")


def test_values_are_found_on_another_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    with duckdb.connect(str(tmp_path / "harbour.duckdb")) as connection:
        connection.execute("CREATE TABLE port (id INTEGER, city VARCHAR, berths INTEGER)")
        connection.execute("INSERT INTO port VALUES (1, 'New York', 40), (2, 'Oslo', 7)")
    with closing(open_database(f"duckdb:{tmp_path / 'harbour.duckdb'}")) as database:
        nlq, (match,) = with_values("How many berths has New York?", database, 4)
    assert nlq.endswith("Values: port.city = 'New York'") and match.column == "city"


def test_a_damaged_index_is_built_anew(harbour):
    found = ground("Which ships sail under the flag of Norway?", harbour)
    file = cache_dir("values") / f"{harbour.fingerprint}.sqlite"
    file.write_text("rubbish " * 200)
    assert ground("Which ships sail under the flag of Norway?", harbour) == found != []
    assert file.read_bytes().startswith(b"SQLite format 3")


def test_an_index_that_cannot_be_written_names_the_way_on(harbour):
    (cache_dir("values") / f"{harbour.fingerprint}.sqlite").mkdir()
    with pytest.raises(DatabaseError, match=r"set NL2SQL_CACHE to another folder, or schema_text.values=0"):
        ground("Which ships sail under the flag of Norway?", harbour)
