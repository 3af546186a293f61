"""Made-up questions: what they ask is what their query answers, and no evaluation set asks it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from training.examples import answer, asked
from training.leaks import asked_keys
from training.mixture import Shares, mixture
from training.swaps import drawn_value, plural, swapped

from nl2sql.benchmarks import load_benchmark
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.interfaces import Question

SHOW = """
CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, net_worth REAL, age INTEGER, home_city TEXT);
INSERT INTO singer VALUES (1, 'Ada', 3.5, 30, 'Paris'), (2, 'Bo', 2.5, 40, 'Rome'), (3, 'Cy', 1.5, 50, 'Oslo');
CREATE TABLE song (song_id INTEGER PRIMARY KEY, title TEXT, singer_id INTEGER REFERENCES singer, sales REAL);
INSERT INTO song VALUES (1, 'Sea', 1, 10.0), (2, 'Sky', 1, 20.0), (3, 'Sun', 2, 30.0);
CREATE TABLE album (album_id INTEGER PRIMARY KEY, title TEXT, song_id INTEGER REFERENCES song, label TEXT);
INSERT INTO album VALUES (1, 'Low', 1, 'Blue'), (2, 'High', 2, 'Red');
"""


@pytest.fixture
def database(tmp_path):
    from people import make_database

    with SqliteDatabase(make_database(tmp_path / "show.sqlite", SHOW)) as database:
        yield database


@pytest.mark.parametrize(
    ("text", "gold", "told", "query"),
    [
        ("What are the ages of singers?", "SELECT age FROM singer", "net worths", "SELECT net_worth FROM singer"),
        ("Each name of a singer?", "SELECT T1.name FROM singer AS T1", "home city", "T1.home_city"),
        ("Who lives in Paris?", "SELECT name FROM singer WHERE home_city = 'Paris'", "Rome|Oslo", "= 'Rome'|= 'Oslo'"),
        ("Who is older than 30?", "SELECT name FROM singer WHERE age > 30", "than 40", "age > 40"),
    ],
)
def test_a_question_is_asked_about_another_column_or_value(database, text, gold, told, query):
    asked = Question(text, "show", "q", gold=(gold,))
    drawn = [swapped(asked, database.schema(), database, random.Random(seed)) for seed in range(30)]
    made = [each for each in drawn if each is not None]
    assert made and all(each.id == "q" for each in made)
    for each in made:
        assert any(word in each.text for word in told.split("|")), each.text
        assert any(part in each.gold[0] for part in query.split("|")), each.gold


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("Who is there?", "SELECT name FROM singer"),  # says no column
        ("Which singer id?", "SELECT singer_id FROM singer"),  # keys stay
        ("Which name has the home city Paris?", "SELECT age FROM singer WHERE home_city = 'Lima'"),  # not its value
        ("What are the ages?", "SELECT age FROM ("),
        # one word, two columns
        ("Each title of songs, and of albums?", "SELECT song.title, album.title FROM song JOIN album USING (song_id)"),
    ],
)
def test_what_cannot_be_swapped_is_left_alone(database, text, gold):
    asked = Question(text, "show", "q", gold=(gold,))
    assert all(swapped(asked, database.schema(), database, random.Random(seed)) is None for seed in range(10))


def test_values_are_those_that_a_sentence_can_hold(tmp_path):
    from people import make_database

    rows = (
        f"CREATE TABLE t (a); INSERT INTO t VALUES (NULL), (''), ('{'x' * 50}'), (1.2345678901), ('two\nlines'), ('ok')"
    )
    with SqliteDatabase(make_database(tmp_path / "t.sqlite", rows)) as database:
        (table,) = database.schema().tables
        assert drawn_value(table, table.columns[0], database, random.Random(0)) == "ok"


def test_plurals():
    names = {"home_city": "home cities", "name": "names", "box": "boxes", "wheels": "wheels", "birthDay": "birth days"}
    assert {name: plural(name) for name in names} == names


def test_no_swapped_question_is_one_of_an_evaluation_set():
    benchmark = load_benchmark("packaged", split="dev")
    name = benchmark.questions[0].db_id
    database = benchmark.database(name)
    questions = [question for question in benchmark.questions if question.db_id == name][:3]

    def answers(swap: float, forbidden: frozenset[tuple[str, str]] = frozenset()) -> set[Any]:
        shares = Shares(rounds=1, repair=0, act=0, held_out=0, values=0, paraphrase=0, swap=swap)
        return {
            e.pieces for group in mixture(benchmark, questions, shares, forbidden=forbidden) for e in group.examples
        }

    drawn = [swapped(q, database.schema(), database, random.Random(seed)) for q in questions for seed in range(40)]
    held = frozenset(key for made in drawn if made is not None for key in asked_keys(made))
    assert answers(1.0) - answers(0.0), "some are swapped"
    assert not answers(1.0, held) - answers(0.0)


def test_a_model_s_failure_is_not_repaired_towards_another_question():
    benchmark = load_benchmark("packaged", split="dev")
    failures = {question.id: "SELECT x FROM nowhere" for question in benchmark.questions}
    shares = Shares(rounds=1, repair=0, act=0, held_out=0, values=0, swap=1.0)
    groups = list(mixture(benchmark, benchmark.questions, shares, failures=failures))
    examples = [example for group in groups for example in group.examples]
    written = {e.id: e.pieces for e in examples if e.task == "write"}
    repaired = {e.id: e.pieces for e in examples if e.task == "repair"}
    golds = {question.id: question for question in benchmark.questions}
    assert repaired and len(repaired) < len(written)
    for id_, pieces in repaired.items():
        item = asked(golds[id_], benchmark.database(golds[id_].db_id))
        assert item is not None and answer(item.sql) == pieces == written[id_]


@pytest.mark.parametrize(("given", "said"), [({"swap": 5}, "swap 5: .* 0 to 1"), ({"repair": -1}, "0 or more")])
def test_a_share_that_cannot_be_is_refused(given, said):
    with pytest.raises(UsageError, match=said):
        Shares(**given)
