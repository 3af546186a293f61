"""What the checks read off words and numbers: tables of texts and what they mean."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nl2sql.agents.checks.constraints import intent_constraints
from nl2sql.agents.checks.constraints.shape import name_words
from nl2sql.agents.checks.guardrails import enumerated_fields
from nl2sql.agents.context.linking import link_schema
from nl2sql.agents.ranking import LEAST, logistic
from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.sql.text import SCALES, WORDS, as_digits, is_plural, singular

DIGITS = {
    "the top twenty-five of 1,000": "the top 25 of 1000",
    "Ninety nine or THIRTY": "99 or 30",
    "twenty, nineteen, one": "twenty, nineteen, one",  # up to twenty they are left to the cues
    "thirty-one forty-two fifty-nine": "31 42 59",
    "sixty days, seventy-three, eighty": "60 days, 73, 80",
    "1,234,567 and 12,345": "1234567 and 12345",
    "1,00 and 1234,567 and 1,2345 and 0.1,234": "1,00 and 1234,567 and 1,2345 and 0.1,234",
    "ninetyfold": "ninetyfold",
}
SINGULAR = {  # what one and many share; it need not be a word
    "cities": "city",
    "movies": "movy",
    "movie": "movy",
    "ties": "tie",
    "boxes": "box",
    "classes": "class",
    "addresses": "address",
    "matches": "match",
    "dishes": "dish",
    "quizzes": "quizze",
    "axes": "axe",
    "names": "name",
    "ids": "id",
    "class": "class",
    "status": "status",
    "is": "is",
    "gas": "ga",
    "bases": "base",
}
FIELDS = [  # question -> fields in their order, and whether that is all that it asks for
    ("Show the name, age and city of the members.", [{"name"}, {"age"}, {"city"}], True),
    ("List the first and last names of all members", [{"first"}, {"last", "name"}], True),
    ("What are the titles & prices, plus shelf marks, of books?", [{"title"}, {"price"}, {"shelf", "mark"}], True),
    ("Show the name and age of members. Also their dogs.", [{"name"}, {"age"}], False),
    ("Show the name and age of members; count them", [{"name"}, {"age"}], False),
    ("Show the name and age of members together with dogs", [{"name"}, {"age"}], False),
    ("For every club, show the name and age.", [{"name"}, {"age"}], False),
    ("Show the one two three four and age of members", [{"one", "two", "three", "four"}, {"age"}], True),
    ("Show the one two three four five and age of members", None, None),
    ("Show the name and the names of members", None, None),
    ("Show the name of members", None, None),
    ("Show the and age of members", None, None),
    ("Members, names and ages", None, None),
]


@pytest.mark.parametrize(("text", "digits"), DIGITS.items())
def test_numbers_become_digits(text: str, digits: str) -> None:
    assert as_digits(text) == digits


def test_words_are_the_numbers_that_they_name() -> None:
    named = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    assert [WORDS[word] for word in named.split()] == list(range(17))
    tens = "twenty thirty forty fifty sixty seventy eighty ninety"
    assert [WORDS[word] for word in tens.split()] == list(range(20, 100, 10)) and WORDS["nineteen"] == 19
    assert SCALES == {"hundred": 100, "thousand": 1000}


@pytest.mark.parametrize(("word", "alone"), SINGULAR.items())
def test_the_singular_of_a_word(word: str, alone: str) -> None:
    assert singular(word) == alone and is_plural(word) == (word != alone and word != "movie")


@pytest.mark.parametrize(("many", "one"), [("movies", "movie"), ("cities", "city"), ("addresses", "address")])
def test_a_table_is_found_by_the_word_for_many_of_its_rows(many: str, one: str) -> None:
    schema = Schema((Table("person", (Column("name"),)), Table(one, (Column("year"),))))
    for name, word in ((one, many), (many, one)):
        named = replace(schema, tables=(schema.tables[0], Table(name, (Column("year"),))))
        assert [table.name for table in link_schema(f"Which {word} are old?", named, 1).tables] == [name]
    matched, why = intent_constraints(f"How many different {many} are there?", f"SELECT count(*) FROM {one}")
    assert matched, why


def test_the_words_of_an_identifier_come_with_their_singulars() -> None:
    assert name_words("numFloors_total2") == {"num", "floors", "floor", "total"}


@pytest.mark.parametrize(("question", "fields", "everything"), FIELDS)
def test_fields_that_a_question_enumerates(
    question: str, fields: list[set[str]] | None, everything: bool | None
) -> None:
    assert enumerated_fields(question) == (None if fields is None else (fields, everything))


@pytest.mark.parametrize(
    ("at", "likely"),
    [(0.0, 0.5), (1.0, 1 / (1 + math.exp(-1))), (-3.0, 1 / (1 + math.exp(3))), (60.0, 1 - LEAST), (-1e9, LEAST)],
)
def test_a_logistic_regression_stays_between_nothing_and_all(at: float, likely: float) -> None:
    weights = {"constant": at / 2, "a": at / 4, "b": 7.0}
    assert logistic({"a": 2.0, "unweighted": 9.0}, weights) == pytest.approx(likely, rel=1e-12)
