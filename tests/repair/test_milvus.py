"""The vectors of a corpus in Milvus Lite: the same answers as the index in memory, and nothing lost."""

from __future__ import annotations

import random
import sys
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import pytest

from nl2sql.errors import DatabaseError
from nl2sql.repair.analyzer import ErrorAnalyzer
from nl2sql.repair.corpus import Corpus
from nl2sql.repair.store import SearchIndex, milvus

needs_milvus = pytest.mark.skipif(
    find_spec("pymilvus") is None or find_spec("milvus_lite") is None,
    reason="no Milvus Lite: pip install 'nl2sql-harness[milvus]'",
)
ERRORS = ("no such column: {a}", "no such table: {a}", "misuse of aggregate: SUM()")
WORDS = ("order", "customer", "total", "city", "name", "year", "status", "code")


def fill(corpus: Corpus, count: int, seed: int = 0) -> None:
    """Fixes of which many are the same but for names that are masked, so that scores are equal."""
    rng = random.Random(seed)
    with corpus.batch():
        for number in range(count):
            a, b = rng.choices(WORDS, k=2)
            error, sql = rng.choice(ERRORS).format(a=a), f"SELECT {a} FROM {b} WHERE {a}{number % 7} > 1"
            corpus.store_fix(error, sql, f"SELECT {number} FROM {b}", str(number), source=f"s{number % 5}")
            if number % 4 == 0:
                corpus.store_query(uuid4(), f"SELECT {b}, {a}{number % 7} FROM {b}", a, source=f"s{number % 5}")


def answers(corpus: Corpus) -> list[list[tuple[str, float]]]:
    asked = [
        ("no such column: nam", "SELECT nam FROM city"),
        ("no such table: x", ""),
        ("misuse of aggregate: SUM()", ""),
    ]
    return [
        [(fix.description, round(fix.similarity_score, 3)) for fix in corpus.search(*question, limit=5, **options)]
        for question in asked
        for options in ({}, {"threshold": 0.6}, {"exclude": "s1"})
    ]


@needs_milvus
def test_milvus_gives_the_same_answers(tmp_path: Path) -> None:
    here = Corpus(tmp_path / "corpus.db", create=True)
    fill(here, 120)
    there = Corpus(tmp_path / "corpus.db", index=milvus(str(tmp_path / "milvus.db")))
    assert answers(there) == answers(here)
    fill(here, 30, seed=1)
    assert answers(there) == answers(here), "new rows are added"
    here.prune(per_category=40)
    assert answers(there) == answers(here), "what is pruned is gone"


@needs_milvus
def test_milvus_that_cannot_be_reached_costs_the_fixes_only(tmp_path: Path) -> None:
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        fill(corpus, 5)
    with pytest.raises(DatabaseError, match=r"Milvus at http://127.0.0.1:1: .*the corpus file holds everything"):
        milvus("http://127.0.0.1:1")
    with Corpus(tmp_path / "corpus.db", index=_gone) as corpus:
        found = ErrorAnalyzer("sqlite", corpus).analyze_error("no such column: nam", "SELECT nam FROM t")
        assert found.category == "unknown_column" and found.similar_fixes == []
        assert corpus.stats()["fixes"] == 5


def _gone(content: str, size: int) -> SearchIndex:
    raise DatabaseError("Milvus is gone")


def test_without_pymilvus_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(DatabaseError, match=r"pip install .*\[milvus\]'"):
        milvus("x.db")
