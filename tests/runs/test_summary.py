"""The report of a run scores everything that it compares in one go."""

import html
import json
from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents.record import Episode
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config, build_config
from nl2sql.eval import ItemScore, Scores
from nl2sql.eval.comparison import compare_scores
from nl2sql.interfaces import Question, Resources
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs import summary
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.export import Contents
from nl2sql.runs.report import report_html
from nl2sql.runs.run import collect


def test_run_control_and_refused_candidates_share_one_scoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    whole = summary.score_many

    def counted(benchmark: Any, questions: Any, files: Any, settings: Any) -> Any:
        found = whole(benchmark, questions, files, settings)
        calls.append({"files": list(files), "executed": next(iter(found.values())).executed})
        return found

    monkeypatch.setattr(summary, "score_many", counted)
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    question = next(q for q in load_benchmark("packaged", split="quick").questions if "SELECT" in q.gold[0])
    wrong = "SELECT 1 AS one FROM nowhere"
    acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", wrong, "Action: validate_sql[{}]"]
    good = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
    fixed = [*acts, "Action: repair_sql[{}]", question.gold[0], *good]
    model = ScriptedModel({question.text: {"react": fixed}, "*": {"single_shot": [wrong], "react": ["no"] * 99}})
    config = build_config({"eval": {"replicas": 0}})
    done = evaluate("packaged", model, split="quick", config=config, out=tmp_path / "r", progress=False)
    (call,) = calls
    assert {"run", "run, raw", "single_shot", "single_shot, raw", "refused, 1"} <= set(call["files"])
    assert done.report["flips"]["validate_sql"] == {"refused": 1, "right_to_wrong": 0, "wrong_to_right": 1}
    questions = len(done.report["items"])
    assert call["executed"] <= 3 * questions  # each gold once, the control's one answer, the run's


def scores_of(right: int, causes: list[str]) -> Scores:
    wrong = [ItemScore(f"w{i}", "d", "s", True, False, False, None, cause=cause) for i, cause in enumerate(causes)]
    return Scores([ItemScore(f"r{i}", "d", "s", True, True, True, True) for i in range(right)] + wrong)


@pytest.mark.parametrize(
    ("right", "causes", "alarm"),
    [
        (1, ["join_path"] * 15 + ["other"] * 15, "1 of 31 items are right"),
        (20, ["invalid:syntax"] * 19 + ["other"], "19 of 20 wrong items have the same cause, invalid:syntax"),
        (20, ["join_path"] * 18 + ["other"] * 2, None),
        (2, ["join_path"] * 19 + ["other"] * 19, None),
        (0, ["join_path"] * 9, None),  # too few to say
        (50, ["join_path"] * 9, None),
    ],
)
def test_a_suspect_pipeline_raises_an_alarm(right: int, causes: list[str], alarm: str | None) -> None:
    found = summary.alarms(scores_of(right, causes))
    assert (alarm is None and found == []) or any(alarm in line for line in found if alarm)


def test_a_cause_of_ts_alone_is_no_wrong_item_under_ex() -> None:
    scores = scores_of(60, ["join_path"] * 5 + ["other"] * 5)
    scores.items += [ItemScore(f"t{i}", "d", "s", True, False, True, False, cause="join_path") for i in range(8)]
    scores.ts_name = "TS[bag]"
    assert summary.alarms(scores) == []
    assert scores.failures() == {"join_path": 5, "other": 5}
    for metric, causes in (("EX[bag]", {"join_path": 5, "other": 5}), ("TS[bag]", {"join_path": 13, "other": 5})):
        assert compare_scores(scores, scores, metric=metric).failures_a == causes


def test_a_paired_test_over_few_items_says_what_it_misses() -> None:
    few, many = ({"wins": 3, "losses": 1, "n": n, "p": 0.6} for n in (40, 4000))
    assert "differences below 19 points are likely to be missed" in summary._detectable(few)
    assert summary._detectable(many) == ""
    assert "too few to find any difference" in summary._detectable({"wins": 1, "losses": 0, "n": 4, "p": 1.0})


def own_answer(question: Question, resources: Resources, config: Config) -> Episode:
    """A controller without a model, which says no more of its text than its SQL."""
    return Episode(question, "single_shot", sql=question.gold[0])


def test_a_controller_with_the_name_of_a_control_keeps_its_own_column(tmp_path: Path) -> None:
    own_answer.__name__ = "single_shot"
    model = ScriptedModel({"*": ["SELECT 1 AS one"]}, on_exhausted="repeat")
    config = build_config({"eval": {"replicas": 0}})
    done = evaluate("packaged", model, own_answer, split="quick", limit=3, config=config, out=tmp_path / "r")
    said = done.report["environment"]
    assert said["command"].split() and said["packages"]["sqlglot"] and said["python"] and said["platform"]
    assert f"command: {said['command']}" in summary.summary_text(done.report, verbose=True)
    page = report_html([done.folder], golds=False, progress=False)
    assert said["command"] in html.unescape(page) and f"sqlglot {said['packages']['sqlglot']}" in page
    assert "command: " not in summary.summary_text(done.report)
    heads, va, *_ = summary.summary_rows(done.report)
    assert heads == ["", "single_shot (the run)", "single_shot", "single_shot, raw"]
    assert (done.report["metrics"]["EX[bag]"]["value"], va[1].split()[0], va[2].split()[0]) == (1.0, "100.0", "0.0")
    assert [system.label for system in collect([done.folder]).systems] == ["r", "single_shot", "single_shot, raw"]
    exported = Contents.of(done.folder, content=False).numbers()
    assert (exported["EX[bag]"], exported["single_shot/EX[bag]"]) == (1.0, 0.0)
    assert done.report["flips"]["guardrails_final"] == {"right_to_wrong": 0, "wrong_to_right": 0}, "it has no raw SQL"


def test_a_structured_query_is_no_sql_that_guardrails_have_mended(tmp_path: Path) -> None:
    asked = load_benchmark("vizql", split="dev").questions[:3]
    model = ScriptedModel({q.text: {"vizql": [json.dumps(q.meta["vizql"])]} for q in asked} | {"*": ["no"] * 9})
    config = build_config({"eval": {"replicas": 0}, "vizql": {"draft": "json"}, "few_shot": {"k": 0}})
    done = evaluate("vizql", model, "vizql", split="dev", limit=12, control=False, config=config, out=tmp_path / "r")
    right = [item["id"] for item in done.report["items"] if item["ex"]]
    assert right and done.report["flips"]["guardrails_final"] == {"right_to_wrong": 0, "wrong_to_right": 0}
