"""The packaged benchmark: sizes and balance, golds that run, are stable and discriminate, and sound builds."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlglot
from sqlglot import exp

from nl2sql.benchmarks import packaged as questions
from nl2sql.databases import packaged
from nl2sql.errors import BenchmarkError, UsageError
from nl2sql.runs.plan import fingerprints
from nl2sql.sql.features import LEVELS, hardness

ROOT = Path(__file__).resolve().parents[2]
ITEMS = json.loads((ROOT / "data" / "questions.json").read_text(encoding="utf-8"))
DATABASES = sorted({item["db_id"] for item in ITEMS})
SPLITS = {"quick": (40, 40), "dev": (90, 110), "test": (100, 250)}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NL2SQL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def items_of(db_id: str) -> list[dict]:
    return [item for item in ITEMS if item["db_id"] == db_id]


def is_ordered(sql: str) -> bool:
    return sqlglot.parse_one(sql, read="sqlite").args.get("order") is not None


def answer(connection: sqlite3.Connection, sql: str) -> list[tuple]:
    """The rows: in their order where the query orders them, else sorted."""
    rows = connection.execute(sql).fetchall()
    return rows if is_ordered(sql) else sorted(rows, key=repr)


def shuffled_copy(path: Path, seed: int) -> sqlite3.Connection:
    """The same rows inserted in another order (seed 0: reversed)."""
    copy = sqlite3.connect(":memory:")
    with closing(sqlite3.connect(path)) as source:
        for name, sql in source.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
            copy.execute(sql)
            rows = source.execute(f'SELECT * FROM "{name}"').fetchall()
            rows = rows[::-1] if seed == 0 else random.Random(seed).sample(rows, len(rows))
            copy.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(rows[0]))})', rows)
    return copy


# ------------------------------------------------------------------------------------------ sizes and balance


def test_there_are_at_least_240_questions_with_unique_ids_and_texts() -> None:
    assert len(ITEMS) >= 240
    assert len({item["id"] for item in ITEMS}) == len(ITEMS)
    assert len({" ".join(re.findall(r"\w+", item["question"].lower())) for item in ITEMS}) == len(ITEMS)


def test_there_are_at_least_60_sql_skeletons() -> None:
    assert len(skeletons()) >= 60


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_has_its_size_all_databases_and_a_fifth_of_each_level(split: str) -> None:
    items = [item for item in ITEMS if item["split"] == split]
    low, high = SPLITS[split]
    assert low <= len(items) <= high
    assert {item["db_id"] for item in items} == set(DATABASES)
    levels = Counter(item["difficulty"] for item in items)
    assert min(levels[level] for level in LEVELS) >= 0.2 * len(items), levels


def test_quick_is_stratified_over_databases_and_levels() -> None:
    quick = [item for item in ITEMS if item["split"] == "quick"]
    databases = Counter(item["db_id"] for item in quick)
    assert max(databases.values()) - min(databases.values()) <= 1
    assert set(Counter(item["difficulty"] for item in quick).values()) == {10}


def test_near_duplicates_do_not_exist() -> None:
    """Two questions of a database never share their SQL up to literals, so no split can leak into another."""
    seen: dict[tuple[str, str], str] = {}
    for item in ITEMS:
        tree = sqlglot.parse_one(item["query"], read="sqlite")
        masked = tree.transform(lambda node: exp.Placeholder() if isinstance(node, exp.Literal) else node).sql("sqlite")
        other = seen.setdefault((item["db_id"], masked), item["id"])
        assert other == item["id"], f"{item['id']} repeats {other}"


def test_the_stored_difficulty_is_spiders_hardness() -> None:
    assert [item["id"] for item in ITEMS if hardness(item["query"]) != item["difficulty"]] == []


def test_the_dataset_card_shows_the_counted_numbers() -> None:
    card = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    count = Counter((item["split"], item["db_id"], item["difficulty"]) for item in ITEMS)
    for split, db_id in itertools.product(SPLITS, (*DATABASES, "all")):
        levels = [sum(n for key, n in count.items() if key in cells_of(split, db_id, level)) for level in LEVELS]
        assert f"| {split} | {db_id} | {' | '.join(map(str, [*levels, sum(levels)]))} |" in card
    for db_id in DATABASES:
        folder = ROOT / "data" / "databases" / db_id
        keys = (folder / "schema.sql").read_text(encoding="utf-8").count("REFERENCES")
        files = [path.read_bytes() for path in folder.glob("*.csv")]
        rows, size = sum(text.count(b"\n") - 1 for text in files), sum(map(len, files))
        assert f"| {db_id} | {len(files)} | {keys} | {rows} | {size} |" in card
    several = sum("alt_queries" in item for item in ITEMS)
    said = f"{len(ITEMS)} questions, {len(skeletons())} SQL skeletons, {several} questions with more than one gold."
    assert said in card


def skeletons() -> set[str]:
    """The golds with every identifier and literal masked, so that only their structure is left."""

    def masked(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Literal):
            return exp.Placeholder()
        return exp.to_identifier("x") if isinstance(node, exp.Identifier) else node

    return {sqlglot.parse_one(item["query"], read="sqlite").transform(masked).sql("sqlite") for item in ITEMS}


def cells_of(split: str, db_id: str, level: str) -> set[tuple[str, str, str]]:
    return {(split, name, level) for name in (DATABASES if db_id == "all" else [db_id])}


# ------------------------------------------------------------------------------------------------------ golds


@pytest.mark.parametrize("db_id", DATABASES)
def test_every_gold_returns_rows_and_no_column_of_nulls(db_id: str) -> None:
    with closing(sqlite3.connect(packaged.database_path(db_id))) as connection:
        for item in items_of(db_id):
            for sql in (item["query"], *item.get("alt_queries", ())):
                rows = connection.execute(sql).fetchall()
                assert rows, f"{item['id']}: no rows"
                assert rows != [(0,)], f"{item['id']}: counts nothing"
                columns = list(zip(*rows, strict=True))
                assert not any(all(value is None for value in column) for column in columns), item["id"]


@pytest.mark.parametrize("db_id", DATABASES)
def test_no_answer_depends_on_row_order(db_id: str) -> None:
    path = packaged.database_path(db_id)
    with closing(sqlite3.connect(path)) as original:
        answers = {item["id"]: answer(original, item["query"]) for item in items_of(db_id)}
    for seed in range(4):
        with closing(shuffled_copy(path, seed)) as copy:
            for item in items_of(db_id):
                assert answer(copy, item["query"]) == answers[item["id"]], f"{item['id']} (shuffle {seed})"


@pytest.mark.parametrize("db_id", DATABASES)
def test_an_order_by_leaves_no_ties_to_chance(db_id: str) -> None:
    with closing(sqlite3.connect(packaged.database_path(db_id))) as connection:
        for item in items_of(db_id):
            tree = sqlglot.parse_one(item["query"], read="sqlite")
            if not isinstance(tree, exp.Select) or not tree.args.get("order"):
                continue
            width = len(tree.expressions)
            aliases = {column.alias: column.this for column in tree.expressions if column.alias}
            limit = tree.args.get("limit")
            shown = int(limit.expression.name) + 1 if limit else None
            tree.set("limit", None)
            for key in tree.args["order"].expressions:
                named = isinstance(key.this, exp.Column) and not key.this.table
                tree.append("expressions", (aliases.get(key.this.name, key.this) if named else key.this).copy())
            keys = [row[width:] for row in connection.execute(tree.sql("sqlite"))][:shown]
            assert len(set(keys)) == len(keys), f"{item['id']}: ties in ORDER BY"


@pytest.mark.parametrize("db_id", DATABASES)
def test_alternative_golds_are_other_queries_with_the_same_answer(db_id: str) -> None:
    """The same up to types: a year may come as text or as a number."""
    with closing(sqlite3.connect(packaged.database_path(db_id))) as connection:
        for item in items_of(db_id):
            golds = [item["query"], *item.get("alt_queries", ())]
            assert len({" ".join(sql.lower().split()) for sql in golds}) == len(golds), item["id"]
            first, *others = (sorted(tuple(map(str, row)) for row in connection.execute(sql)) for sql in golds)
            assert all(other == first for other in others), item["id"]


def test_golds_only_read_and_never_ask_the_clock_or_chance() -> None:
    forbidden = re.compile(r"'now'|current_(date|time|timestamp)|random\s*\(", re.IGNORECASE)
    for item in ITEMS:
        for sql in (item["query"], *item.get("alt_queries", ())):
            assert isinstance(sqlglot.parse_one(sql, read="sqlite"), exp.Query), item["id"]
            assert not forbidden.search(sql), item["id"]


def without_distinct(tree: exp.Expression) -> exp.Expression:
    for node in tree.find_all(exp.Select):
        node.set("distinct", None)
    for node in tree.find_all(exp.Count):
        if isinstance(node.this, exp.Distinct):
            node.set("this", node.this.expressions[0])
    return tree


def with_inner_joins(tree: exp.Expression) -> exp.Expression:
    for node in tree.find_all(exp.Join):
        node.set("side", None)
    return tree


def without_conditions(tree: exp.Expression) -> exp.Expression:
    for node in tree.find_all(exp.Select):
        node.set("where", None)
    return tree


# the condition restates what the rest of the query implies (AVG ignores NULL, a completed enrolment has a grade)
IMPLIED = {
    "campus_registry-037", "library_network-039", "scale_models-050", "weather_network-037", "weather_network-038",
}  # fmt: skip


@pytest.mark.parametrize("mutate", [without_distinct, with_inner_joins, without_conditions])
def test_the_data_tells_a_gold_from_its_careless_variant(mutate) -> None:
    for db_id in DATABASES:
        with closing(sqlite3.connect(packaged.database_path(db_id))) as connection:
            for item in items_of(db_id):
                tree = sqlglot.parse_one(item["query"], read="sqlite")
                careless = mutate(tree.copy()).sql("sqlite")
                if careless == tree.sql("sqlite") or (mutate is without_conditions and item["id"] in IMPLIED):
                    continue
                assert answer(connection, careless) != answer(connection, item["query"]), item["id"]


def test_no_question_or_gold_is_copied_from_a_benchmark() -> None:
    folder = os.environ.get("NL2SQL_BENCHMARKS")
    if not folder:
        pytest.skip("NL2SQL_BENCHMARKS is not set")

    def words(text: str) -> str:
        return " ".join(re.findall(r"\w+", text.lower()))

    ours = {words(item["question"]) for item in ITEMS} | {words(item["query"]) for item in ITEMS}
    files = [*Path(folder).glob("*/questions.json"), *Path(folder).glob("*/train_spider.json")]
    assert files
    for path in files:
        for other in json.loads(path.read_text(encoding="utf-8")):
            texts = {words(other["question"]), words(other.get("query") or "x")}
            assert not texts & ours, f"{path.parent.name}: {other['question']}"


# ----------------------------------------------------------------------------------------------------- builds


def test_the_committed_data_stays_small() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "data").rglob("*") if path.is_file()) < 3_000_000


@pytest.mark.parametrize("db_id", DATABASES)
def test_a_database_is_sound(db_id: str) -> None:
    with closing(sqlite3.connect(packaged.database_path(db_id))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def _build_all(cache: str) -> list[str]:
    os.environ["NL2SQL_CACHE"] = cache
    return [str(packaged.database_path(db_id)) for db_id in packaged.database_ids()]


def test_concurrent_builders_agree_on_one_complete_file(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        first, *others = pool.map(_build_all, [str(tmp_path)] * 3)
    assert all(other == first for other in others)
    assert sorted(map(str, tmp_path.rglob("*.*"))) == sorted(first), "a builder left something behind"


def test_two_builds_have_the_same_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def built() -> dict[str, str]:
        benchmark = questions.load_packaged()
        return fingerprints(benchmark, benchmark.questions)

    first = built()
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path))
    assert built() == first
    assert set(first) == {"questions", *DATABASES}


def test_load_gives_questions_with_all_their_golds_and_splits() -> None:
    benchmark = questions.load_packaged()
    assert [question.id for question in benchmark.questions] == [item["id"] for item in ITEMS]
    assert sorted(id for ids in benchmark.splits.values() for id in ids) == sorted(item["id"] for item in ITEMS)
    several = next(question for question in benchmark.questions if len(question.gold) > 1)
    assert benchmark.database(several.db_id).run(several.gold[1]).success


TINY = "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT, price REAL);"


def _tiny(folder: Path, csv: str) -> Path:
    (folder / "schema.sql").write_text(TINY, encoding="utf-8")
    (folder / "t.csv").write_text(csv, encoding="utf-8")
    packaged.build_database(folder, folder / "out.sqlite")
    return folder / "out.sqlite"


def test_null_and_empty_string_are_told_apart(tmp_path: Path) -> None:
    path = _tiny(tmp_path, 'id,note,price\n1,\\N,2.5\n2,,\\N\n3,"a, ""b""\nc",4\n')
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT * FROM t").fetchall()
    assert rows == [(1, None, 2.5), (2, "", None), (3, 'a, "b"\nc', 4.0)]


@pytest.mark.parametrize("csv", ["id,note\n1,x\n", "id,note,price\n1,x\n", "id,note,price\n1,x,2\n1,y,3\n"])
def test_rows_that_do_not_fit_the_schema_are_one_clear_error(tmp_path: Path, csv: str) -> None:
    with pytest.raises(BenchmarkError, match="cannot be built"):
        _tiny(tmp_path, csv)


def test_an_unknown_database_is_a_usage_error_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="scale_models"):
        packaged.database_path("scale_model")
