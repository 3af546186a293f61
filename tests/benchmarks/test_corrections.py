"""Corrections laid over a benchmark: both scores, changed verdicts, ranks; and the first draft of such a file."""

import json
import shutil

import pytest
import yaml
from programs import command

QUESTIONS = {  # id -> (published gold, A's answer, B's answer)
    "q0": ("SELECT count(*) FROM customers", "SELECT 3", "SELECT 3"),
    "q1": ("SELECT name FROM customers ORDER BY city LIMIT 1", "SELECT 'Ben'", "SELECT 'Ada'"),
    "q2": ("SELECT max(total) FROM orders", "SELECT min(total) FROM orders", "SELECT 20"),
    "q3": ("SELECT count(*) FROM orders", "SELECT 3", "SELECT 4"),
    "q4": ("SELECT date('now')", "SELECT date('now')", "SELECT 1"),
}
CORRECTIONS = {
    "q2": {"gold": ["SELECT min(total) FROM orders"], "evidence": "largest means least"},
    "q3": {"gold": "SELECT count(*) FROM orders WHERE status = 'shipped'", "question": "How many were shipped?"},
    "q4": {"unfit": "it asks for today"},
}


@pytest.fixture
def place(tmp_path, shop, monkeypatch):
    monkeypatch.delenv("NL2SQL_BENCHMARKS", raising=False)
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "databases").mkdir()
    shutil.copy(shop, tmp_path / "databases/shop.sqlite")
    records = [{"id": id_, "question": id_, "query": gold, "db_id": "shop"} for id_, (gold, *_) in QUESTIONS.items()]
    (tmp_path / "questions.json").write_text(json.dumps(records))
    for place, name in enumerate(("a.json", "b.json"), 1):
        (tmp_path / name).write_text(json.dumps({id_: row[place] for id_, row in QUESTIONS.items()}))
    (tmp_path / "told.yaml").write_text(yaml.safe_dump(CORRECTIONS))
    return tmp_path


def test_both_scores_changed_verdicts_and_ranks(place):
    scored = ["score", "-b", ".", "-p", "a.json", "b.json", "--replicas", 0, "--corrections", "told.yaml"]
    report = json.loads(command(*scored, "--json", cwd=place).stdout)
    a, b = report["corrections"]["runs"]
    assert (a["published"]["value"], a["published"]["n"]) == (0.6, 5) == (report["metrics"]["EX[bag]"]["value"], 5)
    assert (a["corrected"]["value"], a["corrected"]["n"]) == (1.0, 4)
    assert (a["to_right"], a["to_wrong"], a["left_out"]) == (["q2", "q3"], [], ["q4"])
    assert (b["published"]["value"], b["to_right"], b["to_wrong"]) == (0.6, [], ["q2", "q3"])
    assert (a["rank"], b["rank"], report["corrections"]["questions"]) == ([1, 1], [1, 2], 3)
    assert "1 to 2" in command(*scored, cwd=place).stdout


def test_what_is_unfit_leaves_the_others_as_they_are(place):
    (place / "told.yaml").write_text("q4: {unfit: it asks for today}")
    scored = ["score", "-b", ".", "-p", "a.json", "--replicas", 0, "--corrections", "told.yaml", "--json"]
    (run,) = json.loads(command(*scored, cwd=place).stdout)["corrections"]["runs"]
    assert (run["corrected"]["value"], run["corrected"]["n"], run["left_out"]) == (0.5, 4, ["q4"])


def test_compare_is_as_corrected_and_gives_both(place):
    done = command("runs", "compare", "a.json", "b.json", "-b", ".", "--corrections", "told.yaml", "--json", cwd=place)
    report = json.loads(done.stdout)
    assert (report["n"], report["metrics"]["EX[bag]"]["wins"]) == (4, ["q1", "q2", "q3"])
    assert [run["rank"] for run in report["corrections"]["runs"]] == [[1, 1], [1, 2]]


def test_a_run_asks_the_corrected_questions_and_says_both(place):
    (place / "model.json").write_text(json.dumps({"replies": {"*": [QUESTIONS["q0"][0]]}}))
    run = ["eval", "--benchmark", ".", "--model", "scripted:model.json", "--controller", "single_shot", "--replicas", 0]
    done = command(*run, "--corrections", "told.yaml", "--out", "run", "--json", "--quiet", cwd=place)
    report = json.loads(done.stdout)
    assert (report["n"], report["left_out"]) == (4, {"unfit": 1})
    assert report["metrics"]["EX[bag]"]["value"] == 0.5  # q0 and q3
    assert (report["corrections"]["published"]["value"], report["corrections"]["to_right"]) == (0.25, ["q3"])
    traces = (place / "run/traces.jsonl").read_text()
    assert "How many were shipped?" in traces and "largest means least" in traces


def test_a_draft_names_what_a_check_finds_and_changes_nothing(place):
    done = command("data", "check", "-b", ".", "--draft", "draft.yaml", cwd=place)
    assert done.returncode == 1
    drafted = yaml.safe_load((place / "draft.yaml").read_text())
    assert list(drafted) == ["q4"]
    assert (drafted["q4"]["found"], drafted["q4"]["gold"]) == ("the answer depends on today's date", QUESTIONS["q4"][0])
    scored = ["score", "-b", ".", "-p", "a.json", "--replicas", 0, "--corrections", "draft.yaml", "--json"]
    (run,) = json.loads(command(*scored, cwd=place).stdout)["corrections"]["runs"]
    assert run["published"] == run["corrected"] and not run["to_right"] + run["to_wrong"] + run["left_out"]
    assert command("data", "check", "-b", ".", "--draft", "draft.yaml", cwd=place).returncode == 2


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("[q1]", "expected ID"),
        ("q1: SELECT 1", "q1: expected some of gold, question, evidence, unfit, found"),
        ("q1: {sql: SELECT 1}", "found 'sql'"),
        ("q1: {gold: 3}", "gold is a text or a list of texts"),
        ("q9: {gold: SELECT 1}", "no correction is for one of the 5 questions; their ids: q9"),
        ("q1: {gold: SELECT 1", "cannot be read"),
        ("\n".join(f"q{n}: {{unfit: bad}}" for n in range(5)), "the corrections leave no question to score"),
    ],
)
def test_a_broken_file_is_one_clear_line(place, told, said):
    (place / "told.yaml").write_text(told)
    done = command("score", "-b", ".", "-p", "a.json", "--replicas", 0, "--corrections", "told.yaml", cwd=place)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
