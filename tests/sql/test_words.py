"""The words in names, sentences and statements."""

from __future__ import annotations

import pytest

from nl2sql.sql.text import letter_words, statement_words, words

NAMES = [
    ("num_floors2", "num floors 2"),
    ("numFloors", "num floors"),
    ("HTTPServerID", "http server id"),
    ("IDs", "i ds"),
    ("Größe", "größe"),
    ("How many, in 2020?", "how many in 2020"),
    ("__", ""),
]


@pytest.mark.parametrize(("text", "wanted"), NAMES)
def test_names_are_taken_apart(text: str, wanted: str) -> None:
    assert words(text) == wanted.split()
    assert letter_words(text) == [word for word in wanted.split() if not word.isdigit()]


STATEMENTS = [
    ("SELECT \"a b\", 'x y' FROM t -- why\nWHERE n>=1.5", "SELECT|a b|,|FROM|t|WHERE|n|>=|1.5"),
    ("SELECT 'open FROM t, u", "SELECT|'|open|FROM|t|,|u"),
]


@pytest.mark.parametrize(("sql", "wanted"), STATEMENTS)
def test_texts_and_comments_of_a_statement_are_no_words(sql: str, wanted: str) -> None:
    assert statement_words(sql, "sqlite") == wanted.split("|")
