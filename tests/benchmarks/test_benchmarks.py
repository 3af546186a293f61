"""Layouts, names, splits, ids, flags, samples; data sets from disk; golds checked."""

import json
import os
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nl2sql.benchmarks import (
    FolderBenchmark,
    available_benchmarks,
    draw_sample,
    excluded_counts,
    load_benchmark,
    scorable,
)
from nl2sql.benchmarks.check import check_questions
from nl2sql.benchmarks.layouts import read_records, with_unique_ids
from nl2sql.benchmarks.load import OnEngine
from nl2sql.errors import BenchmarkError, DatabaseError, UsageError
from nl2sql.eval.suites import check_strength
from nl2sql.interfaces import Question
from nl2sql.runs.plan import fingerprints

SHARED = os.environ.get("NL2SQL_BENCHMARKS")  # read before the fixture below takes it away


@pytest.fixture(autouse=True)
def _own_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NL2SQL_BENCHMARKS", raising=False)
    monkeypatch.delenv("NL2SQL_DATABASES", raising=False)


def write(path: Path, data) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def record(number, db_id="shop", **more):
    return {"question": f"question {number}?", "query": "SELECT count(*) FROM orders", "db_id": db_id, **more}


@pytest.fixture
def spider(tmp_path, shop):
    root = tmp_path / "benchmarks" / "mini"
    write(root / "tables.json", [])
    train = [
        record(n, db_id=db, sql={"from": {}}, query_toks=["x"]) for n, db in enumerate(["shop", "shop", "held", "lost"])
    ]
    write(root / "train_spider.json", train)
    write(root / "dev.json", [record(9, difficulty="extra")])
    write(root / "splits.json", {"holdout": ["held"], "why": "a sentence"})
    for name in ("shop", "held"):
        target = root / "database" / name / f"{name}.sqlite"
        target.parent.mkdir(parents=True)
        shutil.copy(shop, target)
    return root


@pytest.fixture
def uniform(tmp_path, shop):
    root = tmp_path / "benchmarks" / "plain"
    questions = [
        record(0, alt_queries=["SELECT 4"], evidence="a hint", split="dev"),
        record(1, id="given", gold_rows=0),
        record(2, id="given", db_empty=True, time_dependent=False),
        record(3, gold_rows=1, difficulty="basic"),
    ]
    write(root / "questions.json", questions)
    (root / "databases" / "shop").mkdir(parents=True)
    shutil.copy(shop, root / "databases" / "shop" / "shop.sqlite")
    return root


def test_a_question_that_is_held_out_is_not_called_a_training_question(spider):
    """repair.learn goes by the question's own split."""
    questions = load_benchmark(str(spider), split="holdout").questions
    assert [(q.db_id, q.split) for q in questions] == [("held", "holdout")]
    assert {q.split for q in load_benchmark(str(spider), split="train").questions} == {"train"}


def test_spiders_layout(spider):
    benchmark = load_benchmark(spider)
    assert [q.id for q in benchmark.questions] == [*(f"mini-train-{n}" for n in range(4)), "mini-dev-0"]
    assert {q.difficulty for q in benchmark.questions} == {"easy", "extra"}  # computed, and as declared
    assert "query_toks" not in benchmark.questions[0].meta and "sql" not in benchmark.questions[0].meta
    assert benchmark.database("held").run("SELECT count(*) FROM orders").rows == ((4,),)


def test_a_held_out_split_is_never_part_of_train(spider):
    benchmark = load_benchmark(spider)
    assert {name: len(ids) for name, ids in benchmark.splits.items()} == {"train": 3, "dev": 1, "holdout": 1}
    assert [q.db_id for q in load_benchmark(spider, split="holdout").questions] == ["held"]
    assert len(load_benchmark(spider, split="all").questions) == 5


def test_questions_without_their_database_stay_and_are_flagged(spider):
    benchmark = load_benchmark(spider)
    assert benchmark.excluded == {"db_missing": 1}
    with pytest.raises(DatabaseError, match="lost"):
        benchmark.database("lost")


def test_birds_layout(tmp_path, shop):
    root = tmp_path / "bird"
    row = {
        "question_id": 7,
        "db_id": "shop",
        "question": "q?",
        "evidence": "a hint",
        "SQL": "SELECT 1",
        "difficulty": "moderate",
    }
    write(root / "dev.json", [row])
    (root / "dev_databases" / "shop").mkdir(parents=True)
    shutil.copy(shop, root / "dev_databases" / "shop" / "shop.sqlite")
    (question,) = load_benchmark(root).questions
    assert (question.id, question.gold, question.evidence, question.split) == ("7", ("SELECT 1",), "a hint", "dev")
    assert (question.difficulty, question.meta["benchmark_difficulty"]) == ("easy", "moderate")


@pytest.mark.parametrize(
    ("ids", "unique"),
    [("a b a a", "a b a#2 a#3"), ("a a#2 a", "a a#2 a#3"), ("a a a#2 a#2", "a a#3 a#2 a#2#2")],
)
def test_an_id_that_comes_twice_gets_one_that_nobody_has(ids, unique):
    questions = [Question("?", id=id_, db_id="shop") for id_ in ids.split()]
    assert " ".join(question.id for question in with_unique_ids(questions)) == unique


def test_splits_may_begin_with_a_byte_order_mark(spider):
    declared = spider / "splits.json"
    declared.write_bytes(b"\xef\xbb\xbf" + declared.read_bytes())
    assert set(load_benchmark(spider).splits) == {"train", "dev", "holdout"}


def test_the_uniform_layout(uniform):
    benchmark = load_benchmark(uniform)
    first, zero, _, kept = benchmark.questions
    assert first.gold == ("SELECT count(*) FROM orders", "SELECT 4") and first.evidence == "a hint"
    assert [q.id for q in benchmark.questions] == ["plain-0", "given", "given#2", "plain-3"]
    assert [scorable(q) for q in benchmark.questions] == [True, False, False, True]
    assert benchmark.excluded == {"db_empty": 1, "gold_rows=0": 1} and zero.meta["gold_rows"] == 0
    assert (kept.difficulty, kept.meta["benchmark_difficulty"]) == ("easy", "basic")
    assert set(fingerprints(benchmark, benchmark.questions)) == {"questions", "shop"}


def test_names_are_searched_in_the_environment(uniform, spider, monkeypatch):
    monkeypatch.setenv("NL2SQL_BENCHMARKS", f"/nowhere{os.pathsep}{uniform.parent}")
    assert available_benchmarks() == ["packaged", "packaged-dialogues", "vizql", "mini", "plain"]
    assert load_benchmark("plain").name == "plain"
    assert load_benchmark("plain", root=uniform.parent).name == "plain"


def test_an_unknown_name_lists_what_was_tried_and_what_exists(uniform, monkeypatch):
    with pytest.raises(
        UsageError, match=r"'plein' \(tried: plein\); known: packaged, packaged-dialogues, vizql; set NL2SQL_BENCHMARKS"
    ):
        load_benchmark("plein")
    monkeypatch.setenv("NL2SQL_BENCHMARKS", str(uniform.parent))
    with pytest.raises(UsageError, match="known: packaged, packaged-dialogues, vizql, plain"):
        load_benchmark("plein")


def test_an_unknown_split_lists_the_known_ones(spider):
    with pytest.raises(UsageError, match="no split 'tset'; it has: train, dev, holdout, all"):
        load_benchmark(spider, split="tset")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not a benchmark folder"),
        ("{", "cannot be read"),
        ('{"a": 1}', "not a list"),
        ('[{"q": 1}]', "no question text"),
    ],
)
def test_a_broken_folder_is_one_clear_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "questions.json").write_text(content)
    with pytest.raises(BenchmarkError, match=message):
        load_benchmark(tmp_path)


def test_a_folder_above_a_benchmark_names_it(tmp_path):
    write(tmp_path / "dev_20240627" / "dev.json", [record(0)])
    with pytest.raises(BenchmarkError, match=f"name the one inside: {tmp_path / 'dev_20240627'}$"):
        load_benchmark(tmp_path)


def test_a_missing_database_says_where_it_is_expected(tmp_path):
    write(tmp_path / "dev.json", [record(0)])
    with pytest.raises(DatabaseError, match=r"expected shop\.sqlite below .*: database/DB/DB.sqlite comes with"):
        load_benchmark(tmp_path).database("shop")


def test_a_database_id_cannot_leave_the_folder(tmp_path, shop):
    write(tmp_path / "b" / "questions.json", [record(0, db_id="../shop"), record(1, db_id="CREATE TABLE t (a); " * 20)])
    assert load_benchmark(tmp_path / "b").excluded == {"db_missing": 2}


# ------------------------------------------------------------------------------------------------- data sets


@pytest.fixture
def data_set(tmp_path, shop):
    import datasets

    folder = tmp_path / "saved"
    rows = [record(n, evidence="hint" if n else None) for n in range(3)]
    datasets.DatasetDict({"validation": datasets.Dataset.from_list(rows)}).save_to_disk(str(folder))
    (tmp_path / "files" / "shop").mkdir(parents=True)
    shutil.copy(shop, tmp_path / "files" / "shop" / "shop.sqlite")
    return folder


def test_a_saved_data_set_is_a_benchmark(data_set, tmp_path, monkeypatch):
    benchmark = load_benchmark(f"hf:{data_set}:validation", databases=tmp_path / "files")
    assert [q.id for q in benchmark.questions] == [f"saved-validation-{n}" for n in range(3)]
    assert [q.evidence for q in benchmark.questions] == ["", "hint", "hint"]
    monkeypatch.setenv("NL2SQL_DATABASES", str(tmp_path / "files"))
    assert len(load_benchmark(f"hf:{data_set}", split="validation").questions) == 3
    assert benchmark.database("shop").run("SELECT 1").success


def test_a_folder_of_json_lines_is_a_data_set_too(tmp_path, shop, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    folder = tmp_path / "lines"
    (folder / "databases").mkdir(parents=True)
    (folder / "test.jsonl").write_text("".join(json.dumps(record(n)) + "\n" for n in range(2)))
    shutil.copy(shop, folder / "databases" / "shop.sqlite")
    assert [q.split for q in load_benchmark(f"hf:{folder}").questions] == ["test", "test"]


def test_a_record_of_json_lines_ends_at_a_line_feed_alone(tmp_path):
    text = json.dumps({"question": "Which are\u2028named\x85so?"}, ensure_ascii=False)
    (tmp_path / "questions.jsonl").write_text(f"{text}\r\n{text}\n", encoding="utf-8")
    assert read_records(tmp_path / "questions.jsonl") == [json.loads(text)] * 2


def test_a_file_of_json_may_hold_json_lines(tmp_path, shop):
    lines = "\r\n".join(json.dumps(record(n)) for n in range(3))
    (tmp_path / "dev.json").write_text(f"\ufeff{lines}\r\n", encoding="utf-8")
    assert [q.text for q in load_benchmark(tmp_path, split="dev").questions] == [
        record(n)["question"] for n in range(3)
    ]


def test_a_data_set_says_what_it_lacks(data_set, tmp_path):
    import datasets

    with pytest.raises(BenchmarkError, match="set NL2SQL_DATABASES"):
        load_benchmark(f"hf:{data_set}")
    with pytest.raises(UsageError, match="it has: validation"):
        load_benchmark(f"hf:{data_set}:train", databases=tmp_path / "files")
    with pytest.raises(BenchmarkError, match="does not exist"):
        load_benchmark("hf:/no/such/folder")
    datasets.Dataset.from_list([{"question": "q?", "answer": 1}]).save_to_disk(str(tmp_path / "other"))
    with pytest.raises(BenchmarkError, match=r"no gold query: its fields are question, answer"):
        load_benchmark(f"hf:{tmp_path / 'other'}")


def test_a_hub_failure_names_the_next_command(monkeypatch):
    import datasets

    def offline(*args, **options):
        raise ConnectionError("Couldn't reach the Hugging Face Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(BenchmarkError, match=r"hf download --repo-type dataset org/name .* --benchmark hf:/folder:dev"):
        load_benchmark("hf:org/name:dev")


# --------------------------------------------------------------------------------------------------- samples


def questions_of(sizes):
    return [
        Question(text=f"{db}{n}", id=f"{db}{n}", db_id=str(db)) for db, size in enumerate(sizes) for n in range(size)
    ]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 60), st.integers(0, 3))
def test_a_sample_is_stratified_seeded_and_in_order(sizes, limit, seed):
    questions = questions_of(sizes)
    sample = draw_sample(questions, limit, seed)
    assert sample == draw_sample(questions, limit, seed)
    assert len(sample) == min(limit, len(questions))
    assert [q.id for q in sample] == [q.id for q in questions if q in sample]
    counts = Counter(q.db_id for q in sample)
    if limit >= len(sizes):
        assert len(counts) == len(sizes)
    else:
        assert set(counts.values()) == {1}


def test_a_sample_is_proportional():
    counts = Counter(q.db_id for q in draw_sample(questions_of([100, 50, 50]), 40, 1))
    assert abs(counts["0"] - 20) <= 1 and abs(counts["1"] - 10) <= 1


def test_seeds_draw_different_samples():
    questions = questions_of([20, 20])
    assert draw_sample(questions, 10, 1) != draw_sample(questions, 10, 2)


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_1_is_refused(limit):
    with pytest.raises(UsageError, match=str(limit)):
        draw_sample(questions_of([3]), limit, 0)


def test_no_limit_gives_all():
    assert len(draw_sample(questions_of([3, 2]), None, 0)) == 5


# ------------------------------------------------------------------------------------------------- check-data

LAPS = """CREATE TABLE laps (id INTEGER PRIMARY KEY, driver TEXT, time REAL, n TEXT, day TEXT);
    INSERT INTO laps VALUES (1, 'A', 91.5, '9', '2019-05-31'), (2, 'B', NULL, '10', '2019-12-01'),
      (3, '7 of 9', 90.2, '100', '2020-01-02'), (4, 'D', 95.0, '57', '2018-07-08');"""


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        (("SELECT name FROM customers ORDER BY name",), None),
        (("SELECT name, city FROM customers ORDER BY city",), None),
        (("SELECT broken FROM customers",), "does not run"),
        (("SELECT name FROM customers WHERE 0",), "returns no rows"),
        (("SELECT name FROM customers ORDER BY city LIMIT 1",), None),
        (("SELECT name FROM customers WHERE city = 'Bern' ORDER BY city LIMIT 1",), "depends on the order of rows"),
        (("SELECT name FROM customers LIMIT 2",), "depends on the order of rows"),
        (("SELECT name FROM customers ORDER BY city",), "leaves ties"),
        (("SELECT name FROM customers", "SELECT nope FROM customers"), "accepted gold 2: does not run"),
        ((), "has no gold"),
        (("SELECT driver FROM laps ORDER BY time LIMIT 1",), "NULL stands first"),
        (("SELECT driver FROM laps ORDER BY time DESC LIMIT 1",), None),
        (("SELECT max(id) FROM (SELECT id FROM laps ORDER BY time LIMIT 1)",), "NULL stands first"),
        (("SELECT driver FROM laps ORDER BY n DESC LIMIT 1",), "numbers stand as text"),
        (("SELECT driver, n FROM laps ORDER BY n",), "numbers stand as text"),
        (("SELECT min(n) FROM laps WHERE time > 1",), "numbers stand as text"),
        (("SELECT driver FROM laps WHERE n > '20'",), "numbers stand as text"),
        (("SELECT driver FROM laps WHERE n BETWEEN 10 AND 99",), "numbers stand as text"),
        (("SELECT max(CAST(n AS INTEGER)) FROM laps",), None),
        (("SELECT max(day), max(driver) FROM laps WHERE day > '2019-05-01' AND driver >= '7'",), None),
        (("SELECT count(*) FROM laps WHERE day < date('now')",), "today's date"),
        (("SELECT count(*) FROM laps WHERE day < CURRENT_DATE",), "today's date"),
        (("SELECT strftime('%Y') FROM laps",), "today's date"),
        (("SELECT strftime('%Y', day), date(day) FROM laps",), None),
    ],
)
def test_a_gold_is_checked(shop, gold, reason):
    with sqlite3.connect(shop) as connection:
        connection.executescript(LAPS)
    question = Question(text="?", id="q", db_id="shop", gold=gold)
    found = check_questions(FolderBenchmark("toy", [question], {}, {"shop": shop}), [question])
    assert [reason in fault.reason for fault in found] == ([True] if reason else [])


def test_a_gold_over_a_full_text_table_is_no_fault(tmp_path):
    path = tmp_path / "texts.sqlite"
    connection = sqlite3.connect(path)
    try:
        connection.executescript("CREATE VIRTUAL TABLE docs USING fts5(title); INSERT INTO docs VALUES ('a word');")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no fts5")
    finally:
        connection.close()
    golds = ("SELECT title FROM docs WHERE docs MATCH 'word'", "SELECT title FROM dox")
    first, second = (Question(text="?", id=gold[-4:], db_id="texts", gold=(gold,)) for gold in golds)
    (fault,) = check_questions(FolderBenchmark("toy", [first, second], {}, {"texts": path}), [first, second])
    assert "does not run: no such table: dox" in fault.reason


def test_golds_over_another_engine_are_not_checked(tmp_path):
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    duckdb.connect(str(tmp_path / "x.duckdb")).execute("CREATE TABLE t (n int)").close()
    question = Question(text="?", id="q", db_id="x", gold=("SELECT n FROM t",))
    elsewhere = OnEngine("toy", [question], {}, f"duckdb:{tmp_path}/x.duckdb")
    (fault,) = check_questions(elsewhere, [question])
    assert fault.reason == "its database is one of duckdb; golds are checked on SQLite files only"
    assert check_strength(elsewhere, [question], method="perturb").excluded == {"the database is no SQLite file": 1}


def test_a_declared_difficulty_is_checked(shop):
    question = Question(text="?", id="q", db_id="shop", gold=("SELECT name FROM customers",), difficulty="extra")
    (fault,) = check_questions(FolderBenchmark("toy", [question], {}, {"shop": shop}), [question])
    assert fault.reason == "difficulty is declared extra, its SQL is easy"


def test_flagged_items_are_passed_over_but_not_missing_databases():
    flagged = Question(text="?", id="a", db_id="x", gold=("SELECT 1",), meta={"gold_error": True})
    missing = Question(text="?", id="b", db_id="x", gold=("SELECT 1",), meta={"db_missing": True})
    benchmark = FolderBenchmark("toy", [flagged, missing], {}, {}, "here")
    assert [fault.id for fault in check_questions(benchmark, benchmark.questions)] == ["b"]


# -------------------------------------------------------------------------------------- the shared benchmarks


def test_the_shared_benchmarks_load():
    root = SHARED
    if not root or not (Path(root) / "spider" / "splits.json").is_file():
        pytest.skip("NL2SQL_BENCHMARKS is not set")
    for name in available_benchmarks(root)[1:]:
        benchmark = load_benchmark(name, root=root)
        assert len({q.id for q in benchmark.questions}) == len(benchmark.questions)
        assert any(scorable(q) for q in benchmark.questions)
    holdout = load_benchmark("spider", split="holdout", root=root)
    assert len(holdout.questions) == 974 and excluded_counts(holdout.questions) == {"gold_rows=0": 22}
