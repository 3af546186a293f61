"""What docs/repair.md promises of patterns, analyzer, corpus and the valid part, rule by rule."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from nl2sql.errors import UsageError
from nl2sql.interfaces import Database
from nl2sql.repair import analyzer as analyzers
from nl2sql.repair.analyzer import ErrorAnalyzer, explain_analyze
from nl2sql.repair.corpus import Corpus
from nl2sql.repair.deterministic import valid_part
from nl2sql.repair.registry import ErrorPattern, Registry, fill, in_versions, read_registry

# ------------------------------------------------------------------------------------------------------ patterns

RANGES = [
    (">=3.39", "3.39", True),
    (">=3.39", "3.39.0", True),
    (">=3.39.0", "3.39", True),
    (">=3.39", "3.38.9", False),
    ("<25.8", "25.8", False),
    ("<25.8.0", "25.8", False),
    ("<25.8", "25.7.99", True),
    ("", "1", True),
]


@pytest.mark.parametrize(("versions", "version", "within"), RANGES)
def test_a_range_of_versions_includes_its_first_and_not_its_last(versions: str, version: str, within: bool) -> None:
    assert in_versions(versions, version) is within


FILLED = [
    ("Write {a}.[[ Or {b} of {c}.]]", {"a": "x", "b": "y", "c": "z"}, "Write x. Or y of z."),
    ("Write {a}.[[ Or {b} of {c}.]]", {"a": "x", "b": "y"}, "Write x."),
    ("Write {a}.[[ Or {b}.]][[ Or {c}.]]", {"a": "x", "c": "z"}, "Write x. Or z."),
]


@pytest.mark.parametrize(("template", "values", "wanted"), FILLED)
def test_an_optional_part_is_left_out_where_something_in_it_has_no_value(
    template: str, values: dict[str, str], wanted: str
) -> None:
    assert fill(template, values, {}) == wanted


def entry(name: str, pattern: str, **more: str) -> ErrorPattern:
    texts = dict.fromkeys(("constraint", "alternative", "example", "provoke", "works"), name)
    return ErrorPattern(id=name, pattern=pattern, category="unknown_column", **{**texts, **more})


MINE = Registry(
    "sqlite",
    (),
    (
        entry("first", r"no (?P<name>\w+) here", sql=r"\bFROM (?P<name>\w+)"),
        entry("second", "no shoes"),
        entry("third", "NO SHOES HERE"),
        entry("fourth", "unknown_column"),
    ),
)
FIRED = [  # (error, statement, the entry that fires)
    ("no shoes here", "SELECT 1 FROM Shoes", "first"),
    ("no shoes here", "SELECT 1 FROM hats", "second"),  # the captured names differ
    ("no shoes here", "", "second"),  # the statement lacks what the first one wants
    ("No Shoes", "SELECT 1 FROM shoes", "second"),
    ("no hats", "", None),
]


@pytest.mark.parametrize(("error", "sql", "wanted"), FIRED)
def test_the_first_entry_that_fires_decides(error: str, sql: str, wanted: str | None) -> None:
    found = MINE.find(error, sql)
    assert (found and found[0].id) == wanted


def test_the_engine_s_patterns_are_asked_before_the_loop_s() -> None:
    guided = ErrorAnalyzer(patterns=MINE).analyze_error("unknown_column:nam", "SELECT nam FROM t")
    assert guided.violated_constraint == "fourth"


def test_an_id_stands_once_in_a_pattern_file(tmp_path: Path) -> None:
    line = "{id: a, pattern: x, constraint: c, alternative: t, category: unknown, example: e, provoke: p, works: w}"
    (tmp_path / "mine.yaml").write_text(f"dialect: x\npatterns: [{line}, {line}]\n")
    with pytest.raises(UsageError, match="the id a is used twice"):
        read_registry(tmp_path / "mine.yaml")


# ------------------------------------------------------------------------------------------- analyzer and dry run


@pytest.fixture
def database(engine: Callable[[str], Database]) -> Database:
    return engine("sqlite")


JOINED = "SELECT {} FROM customers JOIN orders ON customers.name = orders.status"
KEY = "Join orders and customers ON orders.customer_id = customers.customer_id."
ADVISED = [  # (error, statement, the alternative, or what stands in it)
    ("a message that nobody knows", "SELECT 1 FROM custmers", "There is no table custmers; the closest is customers."),
    ("a message that nobody knows", "SELECT 1 FROM customers", None),
    ("no such column: nam", JOINED.format("nam"), KEY),
    (
        "a message that nobody knows",
        "SELECT nme, ctiy, totl, statsu FROM custmers",
        "There is no table custmers; the closest is customers. No table has a column nme; the closest is "
        "customers.name. No table has a column ctiy; the closest is customers.city.",
    ),
]


@pytest.mark.parametrize(("error", "sql", "wanted"), ADVISED)
def test_guidance_ends_with_what_the_schema_advises(
    error: str, sql: str, wanted: str | None, database: Database
) -> None:
    alternative = ErrorAnalyzer().analyze_error(error, sql, database.schema()).alternative_approach
    assert alternative == wanted if "nobody" in error else str(alternative).endswith(f" {wanted}")


DRY = [  # in double quotes SQLite takes for a text what is no column
    ('SELECT "nam" FROM customers', "no such column: nam"),
    ('SELECT "name" FROM customers', None),
    ("SELECT 'nam' FROM customers", None),
    ("SELECT json_extract('{', '$') FROM customers", None),  # fails in a run alone
]


@pytest.mark.parametrize(("sql", "error"), DRY)
def test_a_dry_run_checks_names_in_double_quotes_and_runs_nothing(
    sql: str, error: str | None, database: Database
) -> None:
    answer = explain_analyze(sql, database)
    assert (answer.error, answer.valid) == (error, error is None)
    assert (answer.repair_guidance is None) is bool(answer.explain and answer.explain["plan"]) is (error is None)


FAILED, ERROR = "SELECT nam FROM customers", "no such column: nam"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path / "corpus.db", create=True)


def test_three_similar_fixes_are_shown(corpus: Corpus) -> None:
    for number in range(5):
        corpus.store_fix(ERROR, f"{FAILED} LIMIT {number}", f"SELECT name FROM customers LIMIT {number}", "")
    assert len(ErrorAnalyzer(corpus=corpus).analyze_error(ERROR, FAILED).similar_fixes) == 3
    assert analyzers.CACHED == 256 and analyzers.SEARCH_S == 0.5


def test_a_frequent_error_stays_in_the_cache(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    plain = Corpus.search

    def counted(self: Corpus, error: str, *args: object, **options: object) -> object:
        searched.append(error)
        return plain(self, error, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Corpus, "search", counted)
    monkeypatch.setattr(analyzers, "CACHED", 2)
    analyzer = ErrorAnalyzer(corpus=corpus, search_s=60.0)
    for error in ("often", "once", "often", "twice", "often", "once"):
        analyzer.analyze_error(error)
    assert searched == ["often", "once", "twice", "once"]


# -------------------------------------------------------------------------------------------------------- corpus


def test_a_fix_is_another_one_by_its_type_of_error_and_by_both_statements(corpus: Corpus) -> None:
    right = "SELECT name FROM customers"
    pairs = [(ERROR, FAILED, right), (ERROR, "SELECT nme FROM customers", right), (ERROR, FAILED, "SELECT 1")]
    assert all(corpus.store_fix(*pair, "") for pair in [*pairs, ("no such function: NOW", FAILED, right)])
    assert not any(corpus.store_fix(*pair, "") for pair in [*pairs, ("no such column: other", FAILED, right)])


def test_pruning_keeps_so_many_of_each_dialect_and_category_the_youngest(corpus: Corpus) -> None:
    kinds = [(dialect, category) for dialect in ("sqlite", "mysql") for category in ("joins", "dates")]
    for dialect, category in kinds:
        for age in range(3):
            corpus.store_fix(
                ERROR, f"SELECT {age} {category}", f"SELECT {age}", str(age), category=category, dialect=dialect
            )
            corpus.store_query(uuid.uuid4(), f"SELECT {age} AS {category}", str(age), category, dialect=dialect)
            time.sleep(0.001)  # the youngest is told by the clock
    assert corpus.prune(per_category=2) == 8
    kept = {}
    for row in corpus.rows():
        text = row["description"] if row["kind"] == "query" else row["fix_description"]
        kept.setdefault((row["kind"], row["dialect"], row["category"]), []).append(text)
    assert len(kept) == 8
    assert set(map(tuple, kept.values())) == {("1", "2")}


# ---------------------------------------------------------------------------------------------------- valid parts

PARTS = [
    ("SELECT nam FROM customers", "FROM customers"),
    ("SELECT nam FROM customers WHERE city = 'Bern'", "FROM customers WHERE city = 'Bern'"),
    (
        "SELECT nam FROM customers WHERE city = 'Bern' GROUP BY city HAVING x > 1",
        "FROM customers WHERE city = 'Bern' GROUP BY city",
    ),
    ("SELECT nam FROM customers GROUP BY city", "FROM customers GROUP BY city"),
    ("SELECT nam FROM customers WHERE land = 'x' GROUP BY city", "FROM customers"),
    ("SELECT nam FROM customers WHERE city = 'Bern' GROUP BY land", "FROM customers WHERE city = 'Bern'"),
    ("SELECT nam FROM nowhere WHERE city = 'Bern'", ""),
    ("SELECT name FROM customers", ""),
]


@pytest.mark.parametrize(("sql", "wanted"), PARTS)
def test_the_valid_part_is_the_longest_beginning_of_from_where_group_by(
    sql: str, wanted: str, database: Database
) -> None:
    assert valid_part(sql, database) == wanted
