"""Slices as `nl2sql runs compare` counts them, causes explained, SQL line by line, and notes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from chromium import Browser

from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.eval.causes import CAUSES
from nl2sql.eval.comparison import compare_scores
from nl2sql.eval.scoring import score_many
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs import report
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.export import failures
from nl2sql.runs.run import FILE, Run, add_note, notes_of

N = 12
SLICES = {"hardness": "hardness", "nested queries": "nesting", "set operation": "set_operation"}  # named otherwise


def made(out: Path, wrong_every: int) -> Run:
    questions = load_benchmark("packaged", split="quick").questions
    replies = {q.text: [q.gold[0] if n % wrong_every else "SELECT 1 AS one"] for n, q in enumerate(questions)}
    options: dict[str, Any] = {"split": "quick", "limit": N, "control": False, "progress": False}
    config = build_config({"eval": {"replicas": 0}})
    return evaluate("packaged", ScriptedModel(replies), "single_shot", config=config, out=out, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("slices")
    return [made(folder / "first", 2), made(folder / "second", 3)]


@pytest.fixture(scope="module")
def page(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "both.html"
    return report.write_report([run.folder for run in runs], out, progress=False).as_uri()


@pytest.fixture
def browser() -> Iterator[Browser]:
    if chromium.find() is None:
        pytest.skip(chromium.INSTALL)
    with Browser() as opened:
        yield opened
        assert opened.errors == []


def test_a_note_is_kept_taken_back_and_exported(runs: list[Run], tmp_path: Path) -> None:
    run = made(tmp_path / "run", 2)
    wrong = next(item for item in run.report["items"] if not item["ex"])
    where = (wrong["db_id"], wrong["id"])
    add_note(run, *where, ["first thought"], "")
    add_note(run, *where, [" wrong  column ", "", "wrong column", "gold?"], " asks for\nthe title ")
    assert notes_of(run) == {where: {"tags": ["wrong column", "gold?"], "note": "asks for\nthe title"}}
    row = next(row for row in failures(run) if row["id"] == wrong["id"])
    assert (row["label"], row["comment"]) == ("wrong column, gold?", "asks for\nthe title")
    assert {row["label"] for row in failures(run) if row["id"] != wrong["id"]} == {""}
    add_note(run, *where, [], "")
    assert notes_of(run) == {}
    with pytest.raises(UsageError, match="no question 'nothing'"):
        add_note(run, "shop", "nothing", ["x"], "")


def test_a_saved_file_of_notes_counts_for_its_run_only(runs: list[Run], tmp_path: Path) -> None:
    first, wrong = runs[0], next(item for item in runs[0].report["items"] if not item["ex"])
    line = {"run": first.manifest["key"], "db_id": wrong["db_id"], "id": wrong["id"], "tags": ["x"], "note": ""}
    saved = tmp_path / "notes.jsonl"
    saved.write_text(json.dumps(line) + "\n" + json.dumps({**line, "run": "another", "tags": ["y"]}) + "\n")
    assert [row["label"] for row in failures(first, notes=saved) if row["label"]] == ["x"]
    saved.write_text('{"id": "1"}\n')
    with pytest.raises(UsageError, match="line 1 is no note"):
        failures(first, notes=saved)
    with pytest.raises(UsageError, match="does not exist; save one with"):
        failures(first, notes=tmp_path / "nothing")


def test_each_cause_is_explained(page: str) -> None:
    text = Path(page.removeprefix("file://")).read_text(encoding="utf-8")
    shown = [cause for cause in CAUSES if f'data-cause="{cause}"' in text]
    assert shown and all(f'<div class="dim">{CAUSES[cause]}</div>' in text for cause in shown)


def test_slices_are_those_of_compare_and_list_their_questions(browser: Browser, runs: list[Run], page: str) -> None:
    benchmark = load_benchmark("packaged", split="quick")
    ids = {item["id"] for item in runs[0].report["items"]}
    asked = [question for question in benchmark.questions if question.id in ids]
    files = {label: {r["id"]: r["sql"] for r in run.predictions()} for label, run in zip("AB", runs, strict=True)}
    scores = score_many(benchmark, asked, files, replicas=0, progress=False)
    groups = compare_scores(scores["B"], scores["A"]).groups  # the page holds the second run against the first
    browser.open(page)
    rows = browser.run(
        "[...document.querySelectorAll('#slices-table tbody tr')].map(r => [...r.children].map(c => c.textContent))"
    )
    found: dict[str, dict[str, list[float]]] = {}
    name = ""
    for head, value, *numbers in rows:
        name = SLICES.get(head, head) or name
        found.setdefault(name, {})[value] = [float(number.replace("−", "-")) for number in numbers]
    expected = {
        name: {
            value: [g.n, round(100 * g.a, 1), round(100 * g.b, 1), round(100 * (g.a - g.b), 1), g.wins, g.losses]
            for value, g in values.items()
        }
        for name, values in groups.items()
    }
    assert found == expected
    won = browser.run(
        "(b => { b.click(); return Number(b.textContent); })([...document.querySelectorAll("
        "'#slices-table td:nth-child(7) button')][0])"
    )
    assert browser.run("document.querySelector('#count').textContent") == f"{won} of {N}"
    assert "answer=better" in browser.run("location.hash")
    address = browser.run("location.href")
    with Browser() as another:
        another.open(address)
        assert another.run("document.querySelector('#count').textContent") == f"{won} of {N}"


def test_gold_and_prediction_are_compared_line_by_line(browser: Browser, page: str) -> None:
    browser.open(page)
    gold, predicted = "SELECT a, b\nFROM t\nWHERE c = 1\nLIMIT 3", "SELECT a\nFROM t\nGROUP BY d\nLIMIT 3"
    left, right = browser.run(f"compareLines({json.dumps(gold)}, {json.dumps(predicted)}).map(b => b.innerHTML)")
    assert left.splitlines() == ["SELECT a<del>, b</del>", "FROM t", "<del>WHERE c = 1</del>", "", "LIMIT 3"]
    assert right.splitlines() == ["SELECT a", "FROM t", "", "<ins>GROUP BY d</ins>", "LIMIT 3"]


def test_a_note_in_a_file_is_kept_by_the_browser_and_saved(browser: Browser, page: str, runs: list[Run]) -> None:
    browser.open(page)
    assert browser.run("document.querySelector('#save-notes').hidden")
    browser.click(".row")
    browser.wait("document.querySelector('#episode .note')")
    browser.run(
        "(box => { box.open = true; const [tags] = box.getElementsByTagName('input'); tags.value = 'odd, gold?';"
        "tags.dispatchEvent(new Event('change')); })(document.querySelector('#episode .note'))"
    )
    browser.wait("document.querySelector('.row').textContent.includes('✎ odd, gold?')")
    browser.run("URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return '#'; }")
    browser.click("#save-notes")
    browser.wait("window.saved")
    line = json.loads(browser.run("window.saved"))
    assert line["run"] == runs[0].manifest["key"] and line["tags"] == ["odd", "gold?"]
    browser.open(page)
    browser.choose("#filter-answer", "noted")
    assert browser.run("document.querySelector('#count').textContent") == f"1 of {N}"


def test_attempts_that_say_the_same_are_one_line(browser: Browser, tmp_path: Path) -> None:
    replies = {"*": ["SELECT 1 AS one", "SELECT 1 AS one", "SELECT 2 AS two", "SELECT 2 AS two"]}
    config = build_config({"eval": {"replicas": 0}, "candidates": {"n": 4, "constrained": False}})
    options: dict[str, Any] = {"split": "quick", "limit": 1, "control": False, "progress": False}
    run = evaluate("packaged", ScriptedModel(replies), "candidates", config=config, out=tmp_path / "run", **options)
    browser.open(report.write_report([run.folder], tmp_path / "report.html", progress=False).as_uri())
    browser.click(".row")
    browser.wait("document.querySelector('#episode .attempt')")
    assert browser.run("document.querySelectorAll('#episode .attempt pre').length") == 2
    assert "step 1: the same again" in browser.run("document.querySelector('#episode').textContent")
    assert FILE not in {path.name for path in run.folder.iterdir()}
