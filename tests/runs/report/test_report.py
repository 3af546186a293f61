"""The report as data and as text: what it says of runs, and that nothing in it can act."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import HOSTILE, write_run

from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs import report
from nl2sql.runs.evaluate import evaluate, start
from nl2sql.runs.plan import RunSpec
from nl2sql.runs.report import episodes as packing
from nl2sql.runs.report import settings, title
from nl2sql.runs.run import Run, collect
from nl2sql.sql.text import in_lines

NO_TS = build_config({"eval": {"replicas": 0}})
GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
GENERATE = ["Thought: demands first\nAction: extract_constraints[{}]", "Action: generate_sql[{}]"]


def run_of(folder: Path, right: int, **plan: Any) -> Path:
    """A run over the first twelve quick questions: so many right at once, three after a repair, the others wrong."""
    replies: dict[str, Any] = {}
    for number, question in enumerate(load_benchmark("packaged", split="quick").questions):
        gold, wrong = question.gold[0], "SELECT 1 AS one FROM nowhere"
        fixed = [wrong, GATES[0], "Action: repair_sql[{}]", gold, *GATES]
        acts = [gold, *GATES] if number % 12 < right else fixed if number % 12 < right + 3 else [wrong]
        replies[question.text] = {
            "react": [*GENERATE, *acts, *["no"] * 20],
            "single_shot": [gold if number % 2 else wrong],
        }
    script = folder.with_suffix(".json")
    script.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    chosen = RunSpec(split="quick", limit=12, model=f"scripted:{script}", **plan)
    start(chosen, NO_TS, out=folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("report")
    return run_of(folder / "base", 3), run_of(folder / "better", 8)


@pytest.fixture(scope="module")
def page(runs: tuple[Path, Path]) -> str:
    return report.report_html(runs, progress=False)


def unpack(page: str, name: str) -> Any:
    found = re.search(rf'<script type="application/octet-stream" id="{name}">([^<]*)</script>', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def episodes(page: str) -> dict[tuple[str, int], dict[str, Any]]:
    index = unpack(page, "index")
    found = {}
    for row in index["questions"]:
        for number, verdict in enumerate(row["r"]):
            if verdict:
                chunk, place = verdict["at"]
                found[(row["id"], number)] = unpack(page, f"chunk-{chunk}")[place]
    return found


def test_every_episode_of_every_run_can_be_opened(page: str, runs: tuple[Path, Path]) -> None:
    found = episodes(page)
    for number, folder in enumerate(runs):
        run = Run.load(folder)
        for trace in run.traces():
            episode = found[(trace["id"], number)]
            assert episode["sql"] == in_lines(trace["sql"]) and len(episode["trace"]) == len(trace["trace"])
    assert len(found) == 24


def test_gold_rows_stand_beside_the_predicted(page: str, runs: tuple[Path, Path]) -> None:
    golds = {question.id: question for question in load_benchmark("packaged").questions}
    for (id_, _), episode in episodes(page).items():
        assert episode["golds"][0] == in_lines(golds[id_].gold[0])
        if episode["sql"].rstrip(";") == in_lines(golds[id_].gold[0]):
            assert episode["gold_result"]["rows"] == episode["result"]["rows"]


def test_the_index_says_of_each_question_what_the_report_says(page: str, runs: tuple[Path, Path]) -> None:
    for number, folder in enumerate(runs):
        items = {item["id"]: item for item in Run.load(folder).report["items"]}
        for row in unpack(page, "index")["questions"]:
            verdict, item = row["r"][number], items[row["id"]]
            assert (verdict["ex"], verdict["va"], verdict["c"]) == (item["ex"], item["va"], item["cause"])
            assert verdict["s"] == item["ex_single_shot"]


def test_the_table_has_runs_controls_and_tests(runs: tuple[Path, Path]) -> None:
    collected = collect(runs)
    labels = [system.label for system in collected.systems]
    assert labels == ["base", "better", "single_shot", "single_shot, raw"]  # the same control is one line
    better = collected.systems[1]
    paired = Run.load(runs[1]).paired(Run.load(runs[0]))["EX[bag]"]
    for found, wanted in (
        (better.against_first, paired),
        (better.against_control, Run.load(runs[1]).report["paired"]["EX[bag]"]),
    ):
        assert found is not None
        assert {name: getattr(found, name) for name in wanted} == wanted
    assert collected.systems[0].against_first is None


def test_an_ablation_is_shown_cell_by_cell_with_the_base_first(runs: tuple[Path, Path], tmp_path: Path) -> None:
    for name, run in zip(("zero", "base"), runs, strict=True):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "ablation.json").write_text('{"cells": [{"name": "zero"}, {"name": "base"}]}')
    assert list(collect([tmp_path]).runs) == ["zero", "base"]


def test_an_unfinished_ablation_is_refused_with_the_command_that_finishes_it(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(runs[0], tmp_path / "base")
    begun = {"cells": [{"name": "base"}, {"name": "late"}], "command": "nl2sql ablate g.yaml --out x"}
    (tmp_path / "ablation.json").write_text(json.dumps(begun))
    with pytest.raises(UsageError, match=r"1 of its 2 cells \(first: late\); finish it with: nl2sql ablate g\.yaml"):
        collect([tmp_path])


def test_equal_ids_of_two_benchmarks_are_not_one_question(runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(runs[1], tmp_path / "other")
    path = tmp_path / "other" / "report.json"
    path.write_text(path.read_text().replace('"benchmark": "packaged"', '"benchmark": "other"'))
    first, second = collect([runs[0], tmp_path / "other"]).systems[:2]
    assert first.against_first is None and second.against_first is None and second.against_control is not None
    with pytest.raises(UsageError, match="no question in common"):
        Run.load(runs[0]).paired(Run.load(tmp_path / "other"))
    assert len(unpack(report.report_html([runs[0], tmp_path / "other"], progress=False), "index")["questions"]) == 24


def test_runs_under_one_name_are_told_apart(runs: tuple[Path, Path]) -> None:
    assert list(collect([runs[0], runs[0]]).runs) == ["base", "base (2)"]


def test_a_control_is_told_from_a_run_in_a_folder_of_its_name(runs: tuple[Path, Path], tmp_path: Path) -> None:
    own = Path(shutil.copytree(runs[1], tmp_path / "single_shot"))
    labels = [system.label for system in collect([runs[0], own]).systems]
    assert labels == ["base", "single_shot", "single_shot of base, single_shot", "single_shot, raw"]


def test_half_a_character_of_an_error_does_not_keep_a_report_from_its_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    told = json.loads((folder / "report.json").read_text())
    told["warnings"] = ["1 of 3 episodes failed; the first: model: no \ud83d"]
    (folder / "report.json").write_text(json.dumps(told))
    page = report.write_report([folder], tmp_path / "page.html", golds=False, progress=False)
    assert "model: no \\ud83d" in page.read_text(encoding="utf-8")


def test_a_run_with_seeds_is_shown_seed_by_seed(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "seeded", 3, seeds=(1, 2), control=False)
    assert list(collect([folder]).runs) == ["seeded/seed-1", "seeded/seed-2"]
    assert "seeded/seed-2" in report.report_html([folder], golds=False, progress=False)


class Tags(HTMLParser):
    """Every tag of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_hostile_names_are_text_and_the_only_script_is_ours(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run<img src=x onerror=alert(1)>", 3, question=HOSTILE)
    told = json.loads((folder / "report.json").read_text())
    told |= {"model": HOSTILE, "failures": {HOSTILE: 3}, "warnings": [HOSTILE], "alarms": [HOSTILE]}
    (folder / "report.json").write_text(json.dumps(told))
    page = report.report_html([folder], progress=False)
    assert HOSTILE not in page and "&lt;script&gt;alert(1)" in page
    tags = Tags(page).found
    data = [attributes for tag, attributes in tags if tag == "script" and "type" in attributes]
    assert len([tag for tag, _ in tags if tag == "script"]) == len(data) + 1 and not any(
        tag == "img" for tag, _ in tags
    )
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)


def test_the_page_names_nothing_outside_itself(page: str) -> None:
    for tag, attributes in Tags(page).found:
        assert not ({"src", "srcset", "action"} & set(attributes)), (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#"), (tag, attributes)
    assert "default-src 'none'" in page and "@import" not in page and "url(" not in page


def test_a_run_whose_benchmark_is_not_at_hand_is_shown_without_golds(tmp_path: Path) -> None:
    page = report.report_html([write_run(tmp_path / "run", 5)], progress=False)
    assert "no golds, because the benchmark is not at hand" in page
    assert all(episode["golds"] == [] for episode in episodes(page).values())


def test_long_texts_and_results_are_cut_and_say_so(tmp_path: Path) -> None:
    def rambling(question: Any, resources: Any, config: Any) -> Any:
        from nl2sql.agents.record import Episode

        rows = tuple((number, "x" * 5000) for number in range(500))
        long = [
            {"step": 0, "llm": "word " * 9000},
            {"step": 0, "action": "a", "args": {"k": "v" * 999}, "observation": "y" * 9000},
        ]
        return Episode(question, "rambling", sql="SELECT " + "1, " * 9000, columns=("n", "x"), rows=rows, trace=long)

    out = tmp_path / "run"
    evaluate("packaged", ScriptedModel([]), rambling, limit=1, config=NO_TS, control=False, out=out, progress=False)
    (episode,) = episodes(report.report_html([out], progress=False)).values()
    assert len(json.dumps(episode)) < 25_000
    assert episode["result"]["count"] == 500 and len(episode["result"]["rows"]) == 20
    assert episode["sql"].endswith("more characters]") and episode["trace"][0]["llm"].endswith("more characters]")


def test_an_attempt_keeps_its_query_apart_where_its_texts_are_cut(tmp_path: Path) -> None:
    """The page compares attempts by their SQL."""

    def repairing(question: Any, resources: Any, config: Any) -> Any:
        from nl2sql.agents.record import Episode

        seen = {"sql": "SELECT " + "1, " * 900, "raw_sql": "SELECT " + "2, " * 900, "error": "no", "other": "x" * 9000}
        record = {"step": 0, "action": "repair_sql", "args": {}, "observation": seen}
        return Episode(question, "repairing", sql="SELECT 1", trace=[record])

    out = tmp_path / "run"
    evaluate("packaged", ScriptedModel([]), repairing, limit=1, config=NO_TS, control=False, out=out, progress=False)
    (episode,) = episodes(report.report_html([out], progress=False)).values()
    seen = episode["trace"][0]["observation"]
    assert list(seen) == ["sql", "raw_sql", "error"] and seen["error"] == "no"
    assert seen["sql"].startswith("SELECT") and seen["raw_sql"].endswith("more characters]")


def test_whole_numbers_keep_their_digits_in_a_browser_and_a_cut_result_says_so(tmp_path: Path) -> None:
    big = 2**53 + 1

    def counting(question: Any, resources: Any, config: Any) -> Any:
        from nl2sql.agents.record import Episode

        return Episode(question, "counting", sql="SELECT 1", columns=("a", "b", "c"), rows=((big, -big, 2**53 - 1),))

    config = build_config({"eval": {"replicas": 0}, "execution": {"max_rows": 1}})
    out, options = tmp_path / "run", {"limit": 1, "control": False, "progress": False}
    evaluate("packaged", ScriptedModel([]), counting, config=config, out=out, **options)
    (episode,) = episodes(report.report_html([out], progress=False)).values()
    assert episode["result"]["rows"] == [[str(big), str(-big), 2**53 - 1]]
    assert episode["result"]["count"] == 1 and episode["result"]["more"]


def test_a_run_without_its_traces_shows_its_verdicts_and_says_what_is_missing(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copytree(runs[0], tmp_path / "run")
    traces = tmp_path / "run" / "traces.jsonl"
    [first, *_] = traces.read_text(encoding="utf-8").splitlines(keepends=True)
    traces.write_text(first, encoding="utf-8")
    page = report.report_html([tmp_path / "run"], progress=False)
    assert "run: 11 of 12 traces are missing" in page
    questions = unpack(page, "index")["questions"]
    items = {item["id"]: item for item in Run.load(runs[0]).report["items"]}
    assert {row["id"]: row["r"][0]["ex"] for row in questions} == {id_: item["ex"] for id_, item in items.items()}
    assert sum("at" in row["r"][0] for row in questions) == 1 and all(row["q"] for row in questions)


def test_a_page_that_would_grow_too_large_has_shorter_texts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", 60)
    whole = report.report_html([run], progress=False)
    monkeypatch.setattr(packing, "MOST_PER_EPISODE", 1_000)
    monkeypatch.setattr(packing, "MOST_BYTES", 0)
    monkeypatch.setattr(packing, "LONG", (2_000, 250, 40))
    page = report.report_html([run], progress=False)
    assert "texts are cut at 40 characters" in page and len(page) < len(whole)
    assert all(len(episode["sql"]) < 80 for episode in episodes(page).values())


def test_a_file_is_not_overwritten_unless_told_to(runs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    out.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        report.write_report(runs[:1], out, golds=False, progress=False)
    assert report.write_report(runs[:1], out, golds=False, progress=False, force=True).stat().st_size > 10_000


@pytest.mark.parametrize(("folders", "message"), [([], "no run given"), (["nowhere"], "holds no run")])
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, folders: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collect([tmp_path / name for name in folders])


def test_runs_scored_by_different_rules_do_not_share_a_table(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", 2), write_run(tmp_path / "b", 2)
    text = (second / "report.json").read_text().replace("EX[bag]", "EX[spider]")
    (second / "report.json").write_text(text)
    with pytest.raises(UsageError, match="different rules"):
        collect([first, second])


def test_a_notebook_shows_the_same_page_in_a_frame(runs: tuple[Path, Path]) -> None:
    shown = report.view(Run.load(runs[0]), golds=False)._repr_html_()
    assert "<iframe srcdoc=" in shown and 'sandbox="allow-scripts"' in shown
    assert "<script" not in shown  # escaped, in the attribute


def test_the_title_names_controllers_model_and_benchmark(page: str, runs: tuple[Path, Path]) -> None:
    model = Run.load(runs[0]).report["model"]
    assert title(collect(runs[:1])) == f"react · {model} · packaged/quick, 12 questions"
    assert f"<title>react · {model}" in page and "packaged/quick, 12 questions</h1>" in page


def test_seconds_are_per_question_and_the_whole_set_is_told(page: str, runs: tuple[Path, Path]) -> None:
    seconds = Run.load(runs[0]).report["usage"]["seconds"]
    assert f'title="{seconds:,.1f} s for the whole set">{seconds / 12:,.2f}</td>' in page


def test_settings_are_those_that_leave_the_defaults_and_differences_are_marked(tmp_path: Path) -> None:
    replies = ScriptedModel({"*": {"single_shot": ["SELECT 1 AS one"]}})
    for name, override in {"one": {}, "two": {"schema_text": {"values": 4}}}.items():
        config = build_config({"eval": {"replicas": 0}, **override})
        options = {"split": "quick", "limit": 1, "control": False, "progress": False}
        evaluate("packaged", replies, "single_shot", config=config, out=tmp_path / name, batch_size=4, **options)
    folders = [tmp_path / "one", tmp_path / "two"]
    header, *rows = settings(collect(folders))
    assert header == ["setting", "one", "two", "default"]
    assert ["schema_text.values", "0", "4", "0"] in rows and ["eval.replicas", "0", "0", "5"] in rows
    assert ["batch_size", "4", "4", "32"] in rows and not any(row[0] == "react.max_steps" for row in rows)
    page = report.report_html(folders, progress=False)
    differing = re.findall(r'<tr class="differs"><td>([^<]+)</td>', page)
    assert differing == ["schema_text.values"]
    assert "The whole configuration of two" in page and "max_steps: 8" in page
