"""Is it the same SQL? Each question has its own answer, and the table says which."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fixture_lines import read_cases

from nl2sql.sql.same import exact_match, query_key, same_sql, same_text, same_words, tree_key

QUESTIONS: dict[str, Callable[[str, str], bool]] = {
    "t": same_sql,
    "w": same_words,
    "c": lambda one, other: query_key(one) == query_key(other),
    "s": lambda one, other: tree_key(one) == tree_key(other),
    "e": exact_match,
}
PAIRS = read_cases("same_sql.txt")


@pytest.mark.parametrize(("same", "pair"), PAIRS, ids=[pair for _, pair in PAIRS])
def test_each_question_has_its_own_answer(same: str, pair: str) -> None:
    one, other = pair.replace("\\n", "\n").split(" ||| ")
    for first, second in ((one, other), (other, one)):
        assert "".join(name for name, ask in QUESTIONS.items() if ask(first, second)) == same.strip("-")
        assert same_text(first, second) is exact_match(first, second)


def test_a_dialect_that_tells_the_case_of_names_apart_keeps_it() -> None:
    assert query_key("SELECT a FROM t", "clickhouse") != query_key("SELECT A FROM t", "clickhouse")
    assert tree_key("SELECT a FROM t", "clickhouse") == tree_key("SELECT A FROM t", "clickhouse")
