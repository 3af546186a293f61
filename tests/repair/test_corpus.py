"""The corpus: nothing stored twice, nothing lost, the same answer every time."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nl2sql.cli import app
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import DatabaseError, Nl2SqlError, UsageError
from nl2sql.repair.analyzer import SEARCH_S, ErrorAnalyzer, explanation
from nl2sql.repair.corpus import Corpus
from nl2sql.repair.store import FixIndex, HashedNgrams, Vectors, error_signature, mask_error
from nl2sql.sql.same import tree_key

FIXES = [
    ("no such column: nam", "SELECT nam FROM customers", "SELECT name FROM customers", "Names"),
    ("no such column: totl", "SELECT totl FROM orders", "SELECT total FROM orders", "Totals"),
    ("no such function: YEAR", "SELECT YEAR(d) FROM t", "SELECT strftime('%Y', d) FROM t", "Years"),
    (
        "misuse of aggregate function COUNT()",
        "SELECT a FROM t WHERE COUNT(*) > 1",
        "SELECT a FROM t GROUP BY a",
        "Groups",
    ),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    made = Corpus(tmp_path / "corpus.db", create=True)
    for fix in FIXES:
        made.store_fix(*fix)
    return made


MASKS = [
    ("no such column: nam", "SELECT nam FROM t", "no such column: total", "SELECT total FROM x"),
    ("no such table: a", "SELECT 1 FROM a", "no such table: b", "SELECT 2 FROM b"),
    ("no such column: c.nam", "SELECT c.nam FROM t c", "no such column: x", "SELECT x FROM t"),
    ('column "nam" does not exist', "SELECT nam FROM t", 'column "x" does not exist', "SELECT x FROM t"),
    ("1st ORDER BY term out of range - should be between 1 and 1", "", "1st ORDER BY term out of range - should be "
     "between 1 and 3", ""),
    ("unknown_column:orders.x", "", "unknown_column:y", ""),
]  # fmt: skip


@pytest.mark.parametrize(("one", "its_sql", "other", "other_sql"), MASKS)
def test_a_signature_is_the_type_of_an_error(one: str, its_sql: str, other: str, other_sql: str) -> None:
    assert mask_error(one, its_sql) == mask_error(other, other_sql)
    assert error_signature(one, its_sql) == error_signature(other, other_sql)
    assert len(error_signature(one)) == 16


def test_a_missing_function_keeps_its_name_in_the_signature() -> None:
    year = error_signature("no such function: YEAR", "SELECT YEAR(a) FROM t")
    assert year != error_signature("no such function: CONCAT", "SELECT CONCAT(a, b) FROM t")
    assert year == error_signature("no such function: YEAR", "SELECT YEAR(b) FROM u")


def test_the_same_pair_is_stored_once_however_it_is_written(corpus: Corpus) -> None:
    again = corpus.store_fix(
        "no such column: nam", 'select "NAM"\nfrom Customers', "SELECT Name FROM customers -- x", ""
    )
    assert again is None and corpus.stats()["fixes"] == len(FIXES)
    assert corpus.store_query(uuid.uuid4(), "SELECT 1 FROM t", "one")
    assert not corpus.store_query(uuid.uuid4(), "select 1\n from T", "one")
    used = uuid.uuid4()
    assert corpus.store_query(used, "SELECT 2 FROM t", "two") and not corpus.store_query(used, "SELECT 2 FROM t", "two")
    with pytest.raises(UsageError, match="that of another query in the corpus; give a new UUID"):
        corpus.store_query(used, "SELECT 3 FROM t", "three")
    assert tree_key("SELECT a FROM t WHERE b='X'") != tree_key("SELECT a FROM t WHERE b='x'")


def test_search_is_exact_and_closest_first(corpus: Corpus) -> None:
    found = corpus.search("no such column: nam", "SELECT nam FROM customers", limit=4)
    assert found[0].sql == "SELECT name FROM customers" and found[0].similarity_score > 0.99
    scores = [fix.similarity_score for fix in found]
    assert scores == sorted(scores, reverse=True) and scores[1] < 0.99
    assert found == corpus.search("no such column: nam", "SELECT nam FROM customers", limit=4)
    assert corpus.search("no such function: YEAR", limit=1)[0].similarity_score > 0.99  # an error alone
    assert corpus.search("no such column: nam", dialect="postgres") == []


def test_a_score_is_the_cosine_of_the_vectors(corpus: Corpus) -> None:
    embed = HashedNgrams()
    error, sql = "no such column: city", "SELECT city FROM orders"
    fixes = {row["id"]: row for row in corpus.rows() if row["kind"] == "fix"}
    for fix in corpus.search(error, sql, limit=4, threshold=0.0):
        stored = fixes[str(fix.query_id)]
        texts = [mask_error(error, sql), mask_error(stored["error_msg"], stored["failed_sql"])]
        by_error = float(np.dot(*embed(texts)))
        by_words = float(np.dot(*embed([" ".join(t.lower().split()) for t in (sql, stored["failed_sql"])])))
        assert fix.similarity_score <= 1.0
        if "(" not in stored["failed_sql"]:  # words and signs are apart in the skeleton
            assert fix.similarity_score == pytest.approx((by_error + by_words) / 2, abs=0.005)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_search_finds_what_comparing_one_by_one_finds(data: st.DataObject) -> None:
    """Made-up vectors, few errors and many statements, also stored in several portions."""
    size, random = 8, np.random.default_rng(data.draw(st.integers(0, 10**6)))

    def halves(count: int) -> np.ndarray:
        found = random.normal(size=(count, size))
        return (found / np.linalg.norm(found, axis=1, keepdims=True) * np.sqrt(0.5)).astype(np.float16)

    errors, count = halves(data.draw(st.integers(1, 6))), data.draw(st.integers(0, 60))
    mine, words = errors[random.integers(len(errors), size=count)], halves(count)
    rows = [(str(n), f"s{n % 4}", mine[n].tobytes() + words[n].tobytes()) for n in range(count)]
    index, cut = FixIndex(size), count // 3
    index.add(rows[:cut])
    index.search(errors[0].astype(np.float32), None, limit=1, threshold=0.0)
    index.add(rows[cut:])
    query = [half.astype(np.float32) for half in (halves(1)[0], halves(1)[0])]
    limit, threshold = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([-1.0, 0.0, 0.4]))
    exclude = data.draw(st.sampled_from(["", "s1"]))
    plain = mine.astype(np.float32) @ query[0] + words.astype(np.float32) @ query[1]
    order = [n for n in np.argsort(-plain, kind="stable") if f"s{n % 4}" != exclude and plain[n] >= threshold]
    found = index.search(query[0], query[1], limit=limit, threshold=threshold, exclude=exclude)
    assert [score for _, score in found] == pytest.approx([plain[n] for n in order[:limit]], abs=1e-5)


def test_equal_fixes_come_in_the_order_in_which_they_were_stored() -> None:
    """A product of many rows gives equal rows cosines that differ in their last bits."""
    random = np.random.default_rng(0)
    query = (random.normal(size=256) / 16).astype(np.float32)
    vectors = (random.normal(size=(3, 256)) / 16).astype(np.float16)
    index = FixIndex(128)
    index.add((str(n), f"s{n % 2}", vectors[n % 3].tobytes()) for n in range(1003))
    best_first = sorted(range(3), key=lambda kind: -float(vectors[kind].astype(np.float32) @ query))
    stored = [str(n) for kind in best_first for n in range(1003) if n % 3 == kind]
    hits = index.search(query[:128], query[128:], limit=1003, threshold=-1.0)
    assert [id for id, _ in hits] == stored
    hits = index.search(query[:128], query[128:], limit=5, threshold=-1.0, exclude="s0")
    assert [id for id, _ in hits] == [id for id in stored if int(id) % 2][:5]


def test_a_source_can_be_left_out(corpus: Corpus) -> None:
    corpus.store_fix("no such column: q", "SELECT q FROM t", "SELECT r FROM t", "mine", source="db/1")
    best = corpus.search("no such column: q", "SELECT q FROM t", limit=1)[0]
    assert best.description == "mine"
    assert all(
        fix.description != "mine" for fix in corpus.search("no such column: q", "SELECT q FROM t", exclude="db/1")
    )


def test_pruning_keeps_the_youngest_of_each_category(corpus: Corpus) -> None:
    time.sleep(0.01)
    corpus.store_fix("no such column: q", "SELECT q FROM t", "SELECT r FROM t", "the youngest")
    assert corpus.prune(per_category=1) == 4
    assert [row["fix_description"] for row in corpus.rows()] == ["the youngest"]
    assert corpus.prune(days=1) == 0
    time.sleep(0.01)
    assert corpus.prune(days=0) == 1 and corpus.search("no such column: q") == []


def test_the_same_statement_is_no_repair(corpus: Corpus) -> None:
    with pytest.raises(UsageError, match="nothing was repaired"):
        corpus.store_fix("e", "SELECT a FROM t", "select A from t", "")
    assert corpus.store_fix('near "FROM": syntax error', "SELECT a, FROM t", "SELECT a FROM t", "") is not None


WRITER = """
import sys
from nl2sql.repair.corpus import Corpus
with Corpus(sys.argv[1], create=True) as corpus:
    for i in range(15):
        corpus.store_fix("no such column: x", f"SELECT x{sys.argv[2]} FROM t{i}", f"SELECT y FROM t{i}", "")
"""


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    """Four processes make the file and write it at once, while this one searches."""
    path = tmp_path / "corpus.db"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n)]) for n in range(4)]
    seen = 0
    with Corpus(path, create=True) as reader:
        while any(writer.poll() is None for writer in writers):
            seen = max(seen, len(reader.search("no such column: x", limit=100)))
            time.sleep(0.02)
        assert [writer.returncode for writer in writers] == [0] * 4
        assert len(reader.search("no such column: x", limit=100)) == 60 == reader.stats()["fixes"]


def test_a_writer_that_holds_the_file_is_named(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus._connection.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(corpus.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseError, match="being written by another process"):
        corpus.store_fix("no such column: z", "SELECT z FROM t", "SELECT y FROM t", "")
    other.execute("ROLLBACK")
    assert corpus.store_fix("no such column: z", "SELECT z FROM t", "SELECT y FROM t", "") is not None


BROKEN = [
    (b"not a database at all, but some text" * 40, DatabaseError, "damaged"),
    ("other", UsageError, "no corpus"),
    ("bare", UsageError, "no corpus .*its tables: error_fix_history, successful_queries"),
    ("newer", DatabaseError, "newer nl2sql"),
    ("torn", DatabaseError, "damaged"),
]


@pytest.mark.parametrize(("content", "error", "wanted"), BROKEN)
def test_an_unusable_file_is_a_clear_error_and_stays_as_it_is(
    content: str | bytes, error: type[Nl2SqlError], wanted: str, corpus: Corpus, tmp_path: Path
) -> None:
    path = tmp_path / "broken.db"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "other":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE invoices (a)")
    elif content == "bare":  # the specification's tables, as others may have made them
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE successful_queries (query_id TEXT PRIMARY KEY, sql TEXT)")
            connection.execute("CREATE TABLE error_fix_history (id TEXT PRIMARY KEY, error_msg TEXT)")
    elif content == "newer":
        path.write_bytes(corpus.path.read_bytes())
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
    else:
        whole = bytearray(corpus.path.read_bytes())
        whole[4096 : 4096 * 6] = b"\x55" * (4096 * 5)
        path.write_bytes(whole)
    before = path.read_bytes()
    with pytest.raises(error, match=wanted) as raised:
        Corpus(path, create=True)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    assert path.read_bytes() == before


def test_a_corpus_with_vectors_of_another_kind_is_refused(corpus: Corpus) -> None:
    with closing(sqlite3.connect(corpus.path)) as connection, connection:
        connection.execute("UPDATE corpus_state SET value = 'all-MiniLM-L6-v2' WHERE name = 'embedding'")
    with pytest.raises(UsageError, match="vectors of 'all-MiniLM-L6-v2', not of 'hashed-ngrams-3-5-128'"):
        Corpus(corpus.path)


def test_a_transaction_that_breaks_stores_nothing(corpus: Corpus) -> None:
    before = corpus.content_hash()
    with pytest.raises(ZeroDivisionError), corpus.batch():
        corpus.store_query(uuid.uuid4(), "SELECT 'a', 'b'", "two")
        raise ZeroDivisionError
    assert corpus.content_hash() == before


def test_the_hash_of_a_corpus_is_that_of_its_rows(corpus: Corpus) -> None:
    hashes = [corpus.content_hash()]
    corpus.store_query(uuid.uuid4(), "SELECT 1", "one")
    hashes.append(corpus.content_hash())
    corpus.store_fix("no such column: q", "SELECT q FROM t", "SELECT r FROM t", "mine")
    assert len({*hashes, corpus.content_hash()}) == 3


LOGGED = [  # (error, failed statement, the descriptions that are found from 0.7 on)
    ("no such column: amuont", "SELECT id, amuont FROM payments", ["Amounts of payments"]),
    ("no such column: nam", "SELECT nam FROM customers", ["Names", "Totals"]),  # the fix shows Ann's query
    ("no such function: NOW", "SELECT id, amount FROM payments", []),  # what fails now is no example
    ("the amounts of payments", "", ["Amounts of payments"]),
]


@pytest.mark.parametrize(("error", "failed", "wanted"), LOGGED)
def test_a_query_that_worked_at_once_is_found_and_shown(
    error: str, failed: str, wanted: list[str], corpus: Corpus
) -> None:
    amounts, names = uuid.uuid4(), uuid.uuid4()
    corpus.store_query(amounts, "SELECT id, amount FROM payments", "Amounts of payments", source="db/1")
    corpus.store_query(names, "SELECT name\nFROM customers", "Ann's")
    found = corpus.search(error, failed, threshold=0.7)
    assert [fix.description for fix in found] == wanted
    if wanted == ["Amounts of payments"]:
        assert found[0].query_id == amounts and found[0].sql == "SELECT id, amount FROM payments"
        assert corpus.search(error, failed, threshold=0.7, exclude="db/1") == []
        assert corpus.search(error, failed, threshold=0.7, dialect="mysql") == []
        assert ErrorAnalyzer("sqlite", corpus).analyze_error(error, failed).similar_fixes == found


def test_fixes_and_queries_stand_in_one_order_and_within_one_limit(corpus: Corpus) -> None:
    for number in range(5):
        corpus.store_query(uuid.uuid4(), f"SELECT name, c{number} FROM customers", f"query {number}")
    found = corpus.search("no such column: nam", "SELECT nam, c3 FROM customers", limit=4)
    scores = [fix.similarity_score for fix in found]
    assert len(found) == 4 and scores == sorted(scores, reverse=True)
    assert {"Names", "query 3"} <= {fix.description for fix in found}


def test_guidance_falls_back_to_patterns_when_the_search_takes_too_long(corpus: Corpus) -> None:
    analyzer = ErrorAnalyzer("sqlite", corpus, search_s=0.05)
    with corpus._lock:  # another thread is busy with it
        found = analyzer.analyze_error("no such column: nam", "SELECT nam FROM customers")
    assert found.category == "unknown_column" and found.similar_fixes == []
    analyzer.search_s = 10.0
    found = analyzer.analyze_error("no such column: nam", "SELECT nam FROM customers")
    assert found.similar_fixes[0].similarity_score > 0.99
    analyzer.close()


def test_a_fix_that_is_stored_later_is_found_for_an_error_that_was_asked_before(corpus: Corpus) -> None:
    analyzer = ErrorAnalyzer("sqlite", corpus)
    error, sql = "no such column: qty", "SELECT qty FROM lines"
    before = analyzer.analyze_error(error, sql)
    assert analyzer.analyze_error(error, sql) == before
    with Corpus(corpus.path) as another:
        another.store_fix(error, sql, "SELECT quantity FROM lines", "Quantities")
    assert analyzer.analyze_error(error, sql).similar_fixes[0].description == "Quantities"
    analyzer.close()


def test_a_corpus_that_goes_bad_costs_the_fixes_only(corpus: Corpus) -> None:
    analyzer = ErrorAnalyzer("sqlite", corpus)
    with sqlite3.connect(corpus.path) as connection:
        connection.execute("DROP TABLE corpus_state")
    found = analyzer.analyze_error("no such column: nam", "SELECT nam FROM customers")
    assert found.category == "unknown_column" and found.similar_fixes == []
    analyzer.close()


def test_guidance_shows_only_fixes_above_the_threshold(corpus: Corpus) -> None:
    for threshold, most in ((0.0, 3), (0.99, 1)):
        analyzer = ErrorAnalyzer("sqlite", corpus, threshold=threshold)
        found = analyzer.analyze_error("no such column: nam", "SELECT nam FROM customers").similar_fixes
        assert 1 <= len(found) <= most and all(fix.similarity_score >= threshold for fix in found)
        analyzer.close()


def test_the_command_line_end_to_end(tmp_path: Path) -> None:
    path = str(tmp_path / "corpus.db")

    def nl2sql(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["corpus", *arguments, "--corpus", path], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    failure = ["--failed", "SELECT nam FROM t", "--error", "no such column: nam"]
    added = nl2sql("add", "SELECT name FROM t", *failure, "--description", "Names")
    assert "(unknown_column)" in added
    assert "already" in nl2sql("add", "SELECT name FROM t", *failure)
    assert "stored query" in nl2sql("add", "SELECT 1")
    id = added.split()[2]
    assert id in nl2sql("search", "no such column: x", "--failed", "SELECT x FROM t")
    assert json.loads(nl2sql("search", "no such column: x", "--json"))[0]["query_id"] == id
    assert "no fix" in nl2sql("search", "no such column: x", "--threshold", "1")
    assert "1 fixes of 1 types of error, 1 queries" in nl2sql("stats")
    assert "deleted 2 rows" in nl2sql("prune", "--days", "0")
    for arguments, wanted in ((["search", "x"], "no corpus at"), (["prune"], "what is to be pruned")):
        with pytest.raises(UsageError, match=wanted):
            CliRunner().invoke(app, ["corpus", *arguments, "--corpus", path + "2"], catch_exceptions=False)


REFUSED = [
    (["add", ""], "blank"),
    (["add", "SELECT 1", "--failed", " ", "--error", "x"], "blank"),
    (["add", "SELECT 1", "--failed", "select 1", "--error", "x"], "same statement"),
    (["add", "SELECT 1", "--dialect", "oracle"], "'oracle' is not one of"),
    (["import", "FOLDER"], "holds no run"),
    (["import", "FILE"], "holds no run"),
]


@pytest.mark.parametrize(("arguments", "wanted"), REFUSED, ids=lambda value: " ".join(value) if value else None)
def test_what_is_refused_leaves_no_new_corpus_behind(arguments: list[str], wanted: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("{}\n", encoding="utf-8")
    paths = {"FOLDER": str(tmp_path / "folder"), "FILE": str(tmp_path / "file")}
    command = ["corpus", *(paths.get(argument, argument) for argument in arguments), "--corpus", str(tmp_path / "c.db")]
    result = CliRunner().invoke(app, command)
    assert wanted in f"{result.exception} {result.output}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


EXPLAINED = [
    (["SELECT name FROM customers"], 0, ["valid"]),
    (["SELECT nam FROM customers"], 1, ["error: no such column: nam", "category: unknown_column", "customers.name"]),
    (["SELECT nam FROM customers", "--mend"], 1, ["mended: SELECT name FROM customers"]),
    (["SELECT nam FROM customers", "--mend", "--json"], 1, ['"mended": "SELECT name FROM customers"']),
    (["SELECT nam FROM customers", "--json"], 1, ['"valid": false', '"repair_guidance": {']),
    (["SELECT nam FROM customers", "--corpus", "FIXES"], 1, ["similar fix (1.000): SELECT name FROM customers"]),
    (["DROP TABLE customers", "--mend"], 1, ["category: not_read_only", "no repair without a model"]),
]


@pytest.mark.parametrize(("arguments", "code", "wanted"), EXPLAINED)
def test_explain_says_what_to_do(
    arguments: list[str], code: int, wanted: list[str], corpus: Corpus, shop: Path
) -> None:
    given = [str(corpus.path) if word == "FIXES" else word for word in arguments]
    result = CliRunner().invoke(app, ["data", "explain", *given, "--db", str(shop)], catch_exceptions=False)
    assert result.exit_code == code and [text for text in wanted if text not in result.output] == []


def test_explain_reads_a_statement_in_another_encoding(shop: Path) -> None:
    command = ["data", "explain", "-", "--db", str(shop)]
    statement = "SELECT count(*) FROM customers WHERE name = 'Zoë'".encode("cp1252")
    result = CliRunner().invoke(app, command, input=statement, catch_exceptions=False)
    assert (result.exit_code, result.output) == (0, "valid\n")


class LoadedSlowly(HashedNgrams):
    """Vectors that take a while."""

    def __call__(self, texts: Sequence[str]) -> Vectors:
        time.sleep(SEARCH_S)
        return super().__call__(texts)


def test_one_explanation_waits_for_its_similar_fixes(tmp_path: Path, shop: Path) -> None:
    with Corpus(tmp_path / "slow.db", create=True) as slow:
        slow.embedder = LoadedSlowly()
        slow.store_fix(*FIXES[0])
        known = explanation("SELECT nam FROM customers", SqliteDatabase(shop), corpus=slow, fix=False)
    assert known.response.repair_guidance and len(known.response.repair_guidance.similar_fixes) == 1
