"""The everyday questions (their shape, their golds) and the script that asks them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from first_answer import FOLDER, HALVES, LEVELS, everyday

from nl2sql.benchmarks import draw_sample
from nl2sql.benchmarks.check import check_questions
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.errors import BenchmarkError

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "first_answer.py"
FILES = sorted(FOLDER.glob("*.yaml"))
NAMES = ["clinic", "hotel", "library", "payroll", "school", "support_desk"]
BEFORE = ["extract_constraints", "generate_sql"]
AFTER = ["validate_sql", "validate_constraints", "run_sql", "finish"]


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NL2SQL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def benchmark() -> FolderBenchmark:
    return everyday()


def items_of(path: Path) -> list[dict[str, Any]]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["questions"]


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


# ------------------------------------------------------------------------------------------- data


def test_there_are_six_databases_with_at_least_22_questions_each() -> None:
    assert [path.stem for path in FILES] == NAMES
    items = [item for path in FILES for item in items_of(path)]
    assert len(items) >= 132 and all(len(items_of(path)) >= 22 for path in FILES)
    assert {tuple(item) for item in items} == {("id", "level", "half", "question", "gold")}
    for key in ("id", "question"):
        assert max(Counter(plain(item[key]) for item in items).values()) == 1, key


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_third_is_easy_half_is_medium_and_the_halves_are_even(path: Path) -> None:
    items = items_of(path)
    levels = Counter(item["level"] for item in items)
    assert set(levels) == set(LEVELS) and {item["half"] for item in items} == set(HALVES)
    assert abs(levels["easy"] - len(items) / 3) <= 1 and abs(levels["medium"] - len(items) / 2) <= 1
    for level in LEVELS:
        halves = Counter(item["half"] for item in items if item["level"] == level)
        assert abs(halves["tune"] - halves["final"]) <= 1, level


@pytest.mark.parametrize("name", NAMES)
def test_a_database_has_four_to_eight_keyed_tables(benchmark: FolderBenchmark, name: str) -> None:
    database = benchmark.database(name)
    tables = database.schema().tables
    assert 4 <= len(tables) <= 8
    assert all(any(column.primary_key for column in table.columns) for table in tables)
    assert sum(len(table.foreign_keys) for table in tables) >= 4
    sizes = [database.run(f"SELECT count(*) FROM {table.name}").rows[0][0] for table in tables]
    assert 150 <= sum(sizes) <= 400 and min(sizes) >= 3, sizes
    cells = [(table.name, column.name) for table in tables for column in table.columns]
    missing = [database.run(f"SELECT 1 FROM {t} WHERE {c} IS NULL LIMIT 1").rows for t, c in cells]
    assert any(missing), "no NULL anywhere"


def test_every_gold_runs_gives_rows_and_says_something(benchmark: FolderBenchmark) -> None:
    assert check_questions(benchmark, benchmark.questions) == []
    empty, nothing = [], []
    for question in benchmark.questions:
        results = [benchmark.database(question.db_id).run(gold).rows for gold in question.gold]
        empty += [question.id] if not all(results) else []
        nothing += [question.id] if any(rows in (((0,),), ((None,),)) for rows in results) else []
    assert not empty and len(nothing) <= 3, (empty, nothing)


def test_no_question_of_the_packaged_benchmark_is_repeated() -> None:
    packaged = json.loads((ROOT / "data" / "questions.json").read_text(encoding="utf-8"))
    texts = {plain(item["question"]) for item in packaged}
    items = [item for path in FILES for item in items_of(path)]
    assert len(texts) > 200
    assert not [item["id"] for item in items if plain(item["question"]) in texts]


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text("sql: CREATE TABLE a (b INTEGER);\n", encoding="utf-8")
    with pytest.raises(BenchmarkError, match=r"shop\.yaml: KeyError: 'questions'; expected sql"):
        everyday(tmp_path)
    broken = "CREATE TABLE a (b INTEGER PRIMARY KEY, c REFERENCES a); INSERT INTO a VALUES (1, 2);"
    text = yaml.safe_dump({"sql": broken, "questions": []})
    (tmp_path / "shop.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(BenchmarkError, match="database shop: 1 broken foreign key"):
        everyday(tmp_path)


# ----------------------------------------------------------------------------------------- script


def ask(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--model", "scripted:s.json", *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path: Path, benchmark: FolderBenchmark) -> Path:
    """Replies to two questions: asked once, the first is right; in the loop, the second."""
    of_half = [question for question in benchmark.questions if question.split == "tune"]
    first, second = draw_sample(of_half, 2)
    table = benchmark.database(first.db_id).schema().tables[0].name
    nothing = f"SELECT * FROM {table} WHERE 1 = 0"
    before, after = ([f"Action: {tool}[{{}}]" for tool in tools] for tools in (BEFORE, AFTER))
    broken = "SELECT x FROM nowhere"
    replies = {
        first.text: {"react": [*before, nothing, *after], "*": [first.gold[0]]},
        second.text: {"react": [*before, second.gold[0], *after], "*": [broken]},
    }
    script = {"on_exhausted": "repeat", "replies": replies}
    (tmp_path / "s.json").write_text(json.dumps(script), encoding="utf-8")
    return tmp_path


def test_the_script_counts_right_answers_errors_and_warnings(place: Path) -> None:
    given = ("--limit", "2", "--controller", "react", "single_shot", "--out", "out")
    done = ask(place, *given, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    loop, once = (data["controllers"][name]["all"] for name in ("react", "single_shot"))
    assert (loop["n"], loop["right"], loop["database_errors"]) == (2, 1, 0)
    assert (loop["wrong_ran"], loop["wrong_warned"], loop["right_warned"]) == (1, 1, 0)
    assert (once["right"], once["database_errors"], once["wrong_ran"]) == (1, 1, 0)
    assert once["no_query"] == 0
    assert min(loop["seconds_median"], loop["seconds_mean"]) > 0
    test = data["tests"]["single_shot"]
    assert (test["against"], test["wins"], test["losses"], test["n"]) == ("react", 1, 1, 2)
    items = [(item["right"], bool(item["suspicions"])) for item in data["items"]["react"]]
    assert items == [(False, True), (True, False)]
    lines = (place / "out" / "answers.jsonl").read_bytes()
    assert lines.count(b"\n") == 4
    tables = ask(place, *given).stdout.splitlines()
    assert (place / "out" / "answers.jsonl").read_bytes() == lines, "asked again"
    head, _, row = (line.strip("| ").split(" | ") for line in tables[:3])
    cells = dict(zip(head, row, strict=True))
    assert (cells["react"], cells["right"], cells["database errors"]) == ("all", "1 of 2", "0 (0%)")
    assert (cells["wrong, warned"], cells["right, warned"]) == ("1 of 1", "0 of 1")
    assert tables[-1] == "single_shot against react: 1 won, 1 lost, p 1, by database 1"


def test_what_is_torn_or_asked_otherwise_is_asked_again(place: Path) -> None:
    given = ("--limit", "2", "--controller", "single_shot", "--out", "out")
    assert ask(place, *given).returncode == 0
    answers = place / "out" / "answers.jsonl"
    answers.write_bytes(answers.read_bytes()[:-20])
    assert ask(place, *given).returncode == 0
    rows = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    assert len({row["key"] for row in rows}) == len(rows) == 2
    assert ask(place, *given, "-c", "schema_text.values=2").returncode == 0
    assert len(answers.read_text(encoding="utf-8").splitlines()) == 4


def test_the_check_needs_no_model_and_a_wrong_option_is_one_line(place: Path) -> None:
    done = ask(place, "--check")
    assert (done.returncode, done.stdout.splitlines()[-1][-8:]) == (0, "0 faults"), done.stdout
    wrong = ask(place, "--controller", "react", "react")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "expected different names" in wrong.stderr
