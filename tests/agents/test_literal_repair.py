"""Comparisons with texts that a column does not hold: what they become, and what stays as it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from nl2sql.agents.candidates import candidates
from nl2sql.agents.checks.literal_repair import repair_literals
from nl2sql.agents.controllers import answer
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel

HOTEL = """
CREATE TABLE room_types (type_code TEXT PRIMARY KEY, label TEXT, floor TEXT);
CREATE TABLE "order" (code TEXT PRIMARY KEY, title TEXT);
CREATE TABLE rooms (room_no INTEGER PRIMARY KEY, type_code TEXT REFERENCES room_types, outlook TEXT, wing TEXT,
  note TEXT, code TEXT REFERENCES "order"(code));
INSERT INTO room_types VALUES ('D', 'Double', 'Attic'), ('S', 'Single', 'Sea');
INSERT INTO "order" VALUES ('x', 'Late');
INSERT INTO rooms VALUES (1, 'D', 'sea', 'East', NULL, 'x'), (2, 'S', 'Garden', 'West', 'loud', 'x'),
  (3, 'S', 'garden ', 'West', 'Twin', 'x'), (4, 'S', 'Twin', 'West', 'loud', 'x');
"""
ROOMS = "SELECT room_no FROM rooms WHERE "
LABELS = "SELECT label FROM room_types WHERE "
TYPED = "type_code IN (SELECT type_code FROM room_types WHERE label = 'Double')"


@pytest.fixture
def hotel(tmp_path: Path) -> SqliteDatabase:
    with sqlite3.connect(tmp_path / "hotel.sqlite") as connection:
        connection.executescript(HOTEL)
    return SqliteDatabase(tmp_path / "hotel.sqlite")


@pytest.mark.parametrize(
    ("written", "repaired"),
    [
        (ROOMS + "outlook = 'Sea'", ROOMS + "outlook = 'sea'"),  # another case
        (ROOMS + "outlook = ' SEA'", ROOMS + "outlook = 'sea'"),
        (ROOMS + "'Sea' = outlook", ROOMS + "outlook = 'sea'"),
        (ROOMS + "outlook IN ('Sea', 'Garden')", ROOMS + "outlook IN ('sea', 'Garden')"),
        (ROOMS + "note = 'null'", ROOMS + "note IS NULL"),
        (ROOMS + "type_code = 'Double'", ROOMS + TYPED),  # the text of what the key refers to
        (ROOMS + "type_code = 'double' AND room_no < 3", f"{ROOMS}{TYPED} AND room_no < 3"),
        ("SELECT r.room_no FROM rooms AS r WHERE r.code = 'Late'",
         "SELECT r.room_no FROM rooms AS r WHERE r.code IN (SELECT code FROM \"order\" WHERE title = 'Late')"),
        (ROOMS + "wing = 'sea'", ROOMS + "outlook = 'sea'"),  # the one other column that holds it
        (LABELS + "type_code = 'Double'", LABELS + "label = 'Double'"),
    ],
)  # fmt: skip
def test_a_text_that_no_cell_holds_becomes_what_the_database_holds(hotel, written, repaired):
    assert repair_literals(written + ";", hotel) == repaired + ";"


@pytest.mark.parametrize(
    "kept",
    [
        ROOMS + "outlook = 'sea'",  # a cell holds it
        ROOMS + "outlook = 'GARDEN'",  # two differ in case and spaces
        ROOMS + "wing = 'twin'",  # two columns hold it
        ROOMS + "wing = 'North'",
        ROOMS + "wing = 'null'",  # there is no empty one
        ROOMS + "NOT outlook = 'Sea'",
        ROOMS + "NOT (outlook IN ('Sea'))",
        ROOMS + "outlook <> 'Sea'",
        ROOMS + "outlook LIKE 'Sea'",
        ROOMS + "room_no = 7",
        ROOMS + "type_code IN ('Double', 'D')",  # what is held and what is not would need two conditions
        "SELECT 1 FROM rooms JOIN room_types USING (type_code) WHERE rooms.type_code = 'Z' OR label = 'Z'",
        "SELECT count( FROM rooms",
    ],
)
def test_what_could_mean_two_things_or_is_right_stays(hotel, kept):
    assert repair_literals(kept, hotel) is None


def test_a_column_name_of_two_tables_is_left_alone(hotel):
    both = "SELECT 1 FROM rooms, \"order\" AS o WHERE rooms.code = 'Late' AND o.code = 'Late'"
    assert repair_literals(both, hotel) is None
    twice = "SELECT 1 FROM rooms AS a, rooms AS b WHERE a.outlook = 'Sea' AND b.outlook = 'Sea'"
    assert repair_literals(twice, hotel) is None


def test_candidates_are_repaired_as_they_are_written_and_it_is_counted(hotel):
    settings = {"n": 1, "constrained": False, "choose": "logprob"}
    config = build_config({"candidates": settings, "repair": {"deterministic": True}})
    model = ScriptedModel([f"{ROOMS}type_code = 'Double'"])
    episode = candidates(Question("which rooms are doubles?"), Resources(model, hotel), config)
    assert episode.sql == f"{ROOMS}{TYPED};" and episode.rows == ((1,),)
    assert episode.flags["deterministic_repairs"] == 1
    assert [r["observation"]["sql"] for r in episode.trace if r.get("action") == "repair_literals"] == [episode.sql]
    off = build_config({"candidates": settings})
    assert candidates(Question("which?"), Resources(ScriptedModel([f"{ROOMS}outlook = 'Sea'"]), hotel), off).rows == ()


def test_the_loop_repairs_a_suspicious_text_without_the_model(hotel):
    config = build_config({"react": {"confident_at": 0.01}, "repair": {"deterministic": True}})
    wanted = ["generate_sql", "validate_sql", "validate_constraints", "run_sql", "repair_sql"]
    steps = [f"Thought: go on\nAction: {name}[{{}}]" for name in ("get_schema", "extract_constraints", *wanted)]
    model = ScriptedModel([*steps[:3], f"{ROOMS}outlook = 'Sea'", *steps[3:], *steps[4:6], "Action: run_sql[{}]"])
    episode = answer("which rooms look at the sea?", hotel, model, config=config, controller="react")
    written = [r["observation"].get("sql") for r in episode.trace if r.get("action") == "repair_sql"]
    assert f"{ROOMS}outlook = 'sea';" in written
