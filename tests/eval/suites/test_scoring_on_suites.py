"""TS on suites, end to end: the packaged benchmark, a folder of suites, deaths while suites are built."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nl2sql.benchmarks import FolderBenchmark, load_benchmark, scorable
from nl2sql.cli import app
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.eval import score
from nl2sql.eval.suites import source_data
from nl2sql.interfaces import Question

SHOP = """
    CREATE TABLE shop (id INTEGER PRIMARY KEY, name TEXT, town TEXT, sales REAL);
    INSERT INTO shop VALUES (1, 'Kiosk', 'Bern', 12.5), (2, 'Laden', 'Basel', 40), (3, 'Markt', 'Bern', 7);
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(SHOP)
    connection.close()
    golds = ["SELECT town FROM shop WHERE sales > 10", "SELECT count(DISTINCT town) FROM shop"]
    questions = [Question(text="?", id=f"q{n}", db_id="shop", gold=(gold,)) for n, gold in enumerate(golds)]
    return FolderBenchmark("shops", questions, {}, {"shop": path})


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def packaged(tmp_path):
    """Two questions of each packaged database, and a file that answers them with their golds."""
    kept: dict[str, list[Question]] = {}
    for question in load_benchmark("packaged", split="quick").questions:
        if scorable(question) and len(kept.setdefault(question.db_id, [])) < 2:
            kept[question.db_id].append(question)
    questions = [question for group in kept.values() for question in group][:8]
    right = tmp_path / "right.jsonl"
    right.write_text("".join(json.dumps({"id": q.id, "sql": q.gold[0]}) + "\n" for q in questions))
    return questions, right


def test_golds_and_what_amounts_to_them_are_right_on_their_suites(packaged):
    benchmark = load_benchmark("packaged", split="quick")
    questions, _ = packaged
    scores = score(benchmark, questions, {q.id: q.gold[0] for q in questions}, method="suite", replicas=4)
    assert list(scores.metrics())[-1] == "TS[bag,suite,N=4]"
    assert all(item.ts for item in scores.items), [item.id for item in scores.items if not item.ts]
    assert sum(bool(item.ts_replicas) for item in scores.items) >= len(questions) - 1
    limited = {q.id: f"SELECT * FROM ({q.gold[0].rstrip(';')}) LIMIT 100000" for q in questions}
    assert all(item.ts for item in score(benchmark, questions, limited, method="suite", replicas=4).items)


def test_a_suite_belongs_to_one_question_and_finds_what_the_original_does_not_show(shop):
    given = {
        "q0": "SELECT town FROM shop WHERE sales >= 10",
        "q1": "SELECT count(DISTINCT town) FROM shop WHERE id > 0",
    }
    scores = score(shop, shop.questions, given, method="suite", replicas=6)
    by_id = {item.id: item for item in scores.items}
    assert by_id["q0"].ex and by_id["q0"].ts is False
    assert scores.metrics()["TS[bag,suite,N=6]"].value < scores.metrics()["EX[bag]"].value
    assert scores.warnings == []


def test_a_question_without_a_suite_rests_on_the_original_and_says_so(shop):
    questions = [Question(text="?", id="q", db_id="shop", gold=("VALUES (1)",))]
    scores = score(shop, questions, {"q": "SELECT 1"}, method="suite", replicas=3)
    assert scores.items[0].ts and scores.items[0].ts_replicas == 0
    assert "1 of 1 questions have no suite" in scores.warnings[0]


def test_the_command_line_scores_on_suites_and_uses_those_it_has(packaged, cache):
    questions, right = packaged
    chosen = ("-b", "packaged", "--split", "quick", "--only-answered", "--method", "suite", "--replicas", 3)
    arguments = ("score", "-p", right, *chosen)
    first = run(*arguments, "--json")
    assert "TS[bag,suite,N=3]" in first["metrics"]
    items = {item["id"]: item for item in first["items"]}
    assert all(items[question.id]["ts"] for question in questions)
    stamps = {file: file.stat().st_mtime_ns for file in cache.glob("suites/*/*")}
    assert stamps
    second = run(*arguments, "--json")
    timeless = [{k: v for k, v in item.items() if k != "seconds"} for item in first["items"]]
    assert [{k: v for k, v in item.items() if k != "seconds"} for item in second["items"]] == timeless
    assert {file: file.stat().st_mtime_ns for file in cache.glob("suites/*/*")} == stamps


@pytest.mark.parametrize("method", ["suite", "perturb"])
def test_what_build_writes_is_what_score_reads(method, shop, tmp_path):
    folder = tmp_path / "bench"
    (folder / "databases" / "shop").mkdir(parents=True)
    path = shop.database("shop").path
    (folder / "databases" / "shop" / "shop.sqlite").write_bytes(path.read_bytes())
    entries = [{"question": "?", "query": q.gold[0], "db_id": "shop", "id": q.id} for q in shop.questions]
    (folder / "questions.json").write_text(json.dumps(entries))
    out = tmp_path / "made"
    built = run("data", "replicas", "build", "-b", folder, "--method", method, "-n", 4, "--out", out, "--json")
    predictions = tmp_path / "p.jsonl"
    ids = list(built["files"])
    sql = ["SELECT town FROM shop WHERE sales >= 10", "SELECT count(DISTINCT town) FROM shop"]
    predictions.write_text("".join(json.dumps({"id": i, "sql": s}) + "\n" for i, s in zip(ids, sql, strict=True)))
    moved = out.rename(tmp_path / "moved")
    by_folder = run("score", "-b", folder, "-p", predictions, "--replicas", moved, "--json")
    by_method = run("score", "-b", folder, "-p", predictions, "--replicas", 4, "--method", method, "--json")
    assert [item["ts"] for item in by_folder["items"]] == [item["ts"] for item in by_method["items"]]
    assert "TS[bag,moved]" in by_folder["metrics"]


@pytest.mark.parametrize("damage", ["{", '["a"]', '{"q0": ["../../shop.sqlite"]}', '{"q0": ["gone.sqlite"]}'])
def test_a_damaged_index_is_refused_in_one_line(damage, shop, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "index.json").write_text(damage)
    with pytest.raises(UsageError, match=r"index\.json") as error:
        score(shop, shop.questions, {}, replicas=folder)
    assert "\n" not in str(error.value)


def test_questions_that_the_folder_does_not_know_are_told(shop, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "index.json").write_text('{"q0": []}')
    scores = score(shop, shop.questions, {"q0": shop.questions[0].gold[0]}, replicas=folder)
    assert "1 of 2 questions (the first: q1)" in scores.warnings[0]
    assert scores.items[0].ts


def test_one_database_that_cannot_be_used_spoils_no_other(shop, tmp_path, monkeypatch):
    from nl2sql.eval import suites as module

    def unreadable(path):
        if path.name == "bad.sqlite":
            raise DatabaseError("reading it took more than 30 s")
        return source_data(path)

    monkeypatch.setattr("nl2sql.eval.suites.source_data", unreadable)
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(shop.database("shop").path.read_bytes())
    asked = [*shop.questions, Question(text="?", id="q9", db_id="bad", gold=("SELECT name FROM shop",))]
    paths = {"shop": shop.database("shop").path, "bad": bad}
    with sqlite3.connect(bad) as connection:
        connection.execute("DELETE FROM shop WHERE id = 1")
    files, warnings = module.suites_of(asked, paths.get, 3)
    assert files["q9"] is None
    assert files["q0"]
    assert files["q1"]
    assert warnings == ["no suite for question 'q9', TS counts as failed there: reading it took more than 30 s"]


BUILD = (
    "from pathlib import Path; from nl2sql.eval.suites import SuiteOrder, build_suites\n"
    "golds = [f'SELECT name FROM shop WHERE sales > {n} AND id < 9' for n in range(40)]\n"
    "orders = [SuiteOrder(Path({path!r}), (gold,), 4) for gold in golds]\n"
    "for _, suite in build_suites(orders): print(len(suite.databases), flush=True)\n"
)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_is_stopped_leaves_only_whole_suites_and_goes_on(how, shop, cache):
    path = str(shop.database("shop").path)
    program = BUILD.replace("{path!r}", repr(path))
    building = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert building.stdout is not None
    for _ in range(3):
        assert building.stdout.readline()
    os.kill(building.pid, how)
    building.stdout.close()
    assert building.wait(30) != 0
    deadline = time.monotonic() + 20
    while _children_of(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    folders = [folder for folder in (cache / "suites").iterdir() if not folder.name.startswith(".")]
    assert 3 <= len(folders) < 40
    whole = {}
    for folder in folders:
        record = json.loads((folder / "suite.json").read_text())
        for name in record["files"]:
            connection = sqlite3.connect(f"file:{folder / name}?mode=ro", uri=True)
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.close()
            whole[folder / name] = (folder / name).stat().st_mtime_ns
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stderr
    assert len(again.stdout.split()) == 40
    assert {file: file.stat().st_mtime_ns for file in whole} == whole
    names = [folder.name for folder in (cache / "suites").iterdir()]
    assert len([name for name in names if not name.startswith(".")]) == 40


def _children_of(path: str) -> list[str]:
    """Building processes that outlived their parent; none is left a moment after it died."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if b"nl2sql.eval.suites.distil" in command and parent == 1:
            found.append(folder.name)
    return found
