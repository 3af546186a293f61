"""A follow-up about another table leaves the rows that are shown or counted as they are: no join repeats them."""

from __future__ import annotations

import pytest
from people import make_database

from nl2sql.databases.schema import Column, ForeignKey, Schema, Table
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Turn
from nl2sql.sessions.edits import edited
from nl2sql.sessions.statement import read_statement

CLUBS = """
CREATE TABLE clubs (club_id INTEGER PRIMARY KEY, name TEXT, town TEXT);
CREATE TABLE coaches (coach_id INTEGER PRIMARY KEY, club_id INTEGER REFERENCES clubs, role TEXT);
CREATE TABLE players (player_id INTEGER PRIMARY KEY, club_id INTEGER REFERENCES clubs, role TEXT, joined_on TEXT);
CREATE TABLE goals (goal_id INTEGER PRIMARY KEY, player_id INTEGER REFERENCES players, part TEXT);
INSERT INTO clubs VALUES (1, 'Owls', 'Bern'), (2, 'Rooks', 'Oslo'), (3, 'Hawks', 'Oslo');
INSERT INTO players VALUES (1, 1, 'keeper', '2022-03-01'), (2, 1, 'keeper', '2021-03-01'),
    (3, 1, 'striker', '2023-03-01'), (4, 2, 'striker', '2022-05-01'), (5, NULL, 'keeper', '2022-06-01'),
    (6, 2, 'striker', '2020-05-01');
INSERT INTO coaches VALUES (1, 1, 'head'), (2, 2, 'head');
INSERT INTO goals VALUES (1, 3, 'opening'), (2, 3, 'opening'), (3, 4, 'closing');
"""
COUNT = "SELECT COUNT(*) FROM clubs"
NAMES = "SELECT name FROM clubs"
FIRST_TWO = "SELECT club_id FROM players ORDER BY joined_on LIMIT 2"


@pytest.fixture
def clubs(tmp_path):
    with SqliteDatabase(make_database(tmp_path / "clubs.sqlite", CLUBS)) as database:
        yield database


@pytest.mark.parametrize(
    ("before", "questions", "rows"),
    [
        (COUNT, ["What about those with a keeper?"], [(1,)]),
        (NAMES, ["Only those with a keeper"], [("Owls",)]),
        (NAMES, ["Only those without a keeper"], [("Hawks",), ("Rooks",)]),
        (COUNT, ["What about those with an opening goal?"], [(1,)]),
        ("SELECT COUNT(*) FROM players", ["What about those in Bern?"], [(3,)]),
        ("SELECT town, COUNT(*) FROM clubs GROUP BY town", ["only those with a keeper"], [("Bern", 1)]),
        # what is asked of one player holds of one player
        (NAMES, ["Only those with a keeper who joined in 2023"], []),
        (NAMES, ["Only those with a keeper who joined in 2022"], [("Owls",)]),
        (NAMES, ["Only those with a striker", "Only those that joined in 2022"], [("Rooks",)]),
        # another value takes the place of the first, and keeps what it excludes
        (COUNT, ["What about those with a keeper?", "And those with a striker?"], [(2,)]),
        (NAMES, ["Only those without a keeper", "What about a striker?"], [("Hawks",)]),
        (NAMES, ["Only those without a keeper", "Only those with a keeper"], [("Owls",)]),
        (NAMES, ["Only those with a keeper", "Only those without a keeper"], [("Hawks",), ("Rooks",)]),
        (COUNT, ["What about those with a keeper?", "And in any role?"], [(2,)]),
        (NAMES, ["Only those without a keeper", "Only those with a player that joined in 2022"], [("Rooks",)]),
        (NAMES, ["Only those with a player that joined in 2022", "What about 2023?"], [("Owls",)]),
        # a column of the other table is that of the rows that were asked about
        (NAMES, ["Only those with a keeper", "also show the role"], [("Owls", "keeper"), ("Owls", "keeper")]),
        (
            NAMES,
            ["Only those without a keeper", "also show joined on"],
            [("Rooks", "2020-05-01"), ("Rooks", "2022-05-01")],
        ),
        # the other table's rows are counted where the words name them
        (COUNT, ["How many players are keepers?"], [(2,)]),
        (NAMES, ["How many players are not keepers?"], [(3,)]),
        (COUNT, ["And keeper players?"], [(2,)]),
        (COUNT, ["How many of their players are keepers?"], [(2,)]),
        (NAMES, ["Only those with a keeper", "How many players does each one have?"], [("Owls", 3)]),
        # a SELECT of some rows, or of a figure, stays as it is
        (f"{NAMES} WHERE club_id IN ({FIRST_TWO})", ["Only those with a striker"], [("Owls",), ("Rooks",)]),
        (f"{NAMES} WHERE club_id IN (SELECT MAX(club_id) FROM players)", ["Only those with a keeper"], []),
    ],
)
def test_rows_are_not_repeated_by_those_of_another_table(before, questions, rows, clubs):
    sql = before
    for question in questions:
        [(sql, _)] = edited(question, Turn("", sql=sql), clubs)
    assert sorted(clubs.run(sql).rows) == rows, sql


def test_tables_linked_by_several_columns_are_not_edited(tmp_path):
    script = """CREATE TABLE stops (line INTEGER, number INTEGER, town TEXT, PRIMARY KEY (line, number));
        CREATE TABLE delays (line INTEGER, number INTEGER, cause TEXT, FOREIGN KEY (line, number) REFERENCES stops);
        INSERT INTO stops VALUES (1, 1, 'Bern'); INSERT INTO delays VALUES (1, 1, 'snow'), (1, 1, 'snow')"""
    with SqliteDatabase(make_database(tmp_path / "stops.sqlite", script)) as stops:
        assert edited("What about those with snow?", Turn("", sql="SELECT COUNT(*) FROM stops"), stops) == []


@pytest.mark.parametrize(
    ("main", "other", "many"),
    [
        ("orders", "customers", False),
        ("customers", "orders", True),
        ("orders", "parts", True),
        ("parts", "orders", False),
        ("customers", "cards", False),
        ("cards", "customers", False),
    ],
)
def test_a_join_repeats_rows_unless_it_is_by_the_whole_key(main, other, many):
    owner = ForeignKey(("customer",), "customers", ("id",))
    schema = Schema(
        (
            Table("customers", (Column("id", primary_key=True),)),
            Table("orders", (Column("number", primary_key=True), Column("customer")), (owner,)),
            Table(
                "parts",
                (Column("number", primary_key=True), Column("place", primary_key=True)),
                (ForeignKey(("number",), "orders", ("number",)),),
            ),
            Table("cards", (Column("customer", primary_key=True),), (owner,)),
        )
    )
    statement = read_statement(f"SELECT COUNT(*) FROM {main}", schema)
    assert statement is not None
    assert (statement.step_to_many(other) is not None) == many
