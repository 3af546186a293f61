"""Run.plot: the figure shows the report's numbers."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import evaluate
from nl2sql.runs.plots import plot_reports
from nl2sql.runs.run import Run

GATES = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
EX = "EX[bag]"


def made(out: Path, **options: Any) -> Run:
    """A run whose loop is right about two of three questions, and whose control about one of four."""
    replies: dict[str, Any] = {}
    for number, question in enumerate(load_benchmark("packaged", split="quick").questions):
        sql, shot = (question.gold[0] if right else "SELECT x FROM nowhere" for right in (number % 3, not number % 4))
        acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", sql, *GATES, *["no"] * 20]
        replies[question.text] = {"react": acts, "single_shot": [shot]}
    config = build_config({"eval": {"replicas": 0}})
    model = ScriptedModel(replies)
    return evaluate("packaged", model, split="quick", limit=16, config=config, out=out, progress=False, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("runs") / "run")


def test_bars_and_intervals_are_those_of_the_report(run: Run) -> None:
    report = run.report
    systems = {"react": report, "single_shot": report["control"]["with_guardrails"]}
    systems["single_shot, raw"] = report["control"]["without_guardrails"]
    accuracy, cost = run.plot().axes
    bars, lines = accuracy.containers[1::2], accuracy.collections
    assert [container.get_label() for container in bars] == list(systems)
    for drawn, line, system in zip(bars, lines, systems.values(), strict=True):
        found = [system["metrics"][EX], *(system["by_hardness"][level][EX] for level in report["by_hardness"])]
        assert [bar.get_height() for bar in drawn] == [each["value"] for each in found]
        reach = [[end for _, end in segment] for segment in line.get_segments()]
        assert reach == [pytest.approx([each["low"], each["high"]]) for each in found]
    assert 0 < report["control"]["with_guardrails"]["metrics"][EX]["value"] < report["metrics"][EX]["value"] < 1
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in cost.lines if len(line.get_xdata()) == 1]
    expected = []
    for system in reversed(systems.values()):
        tokens = (system["usage"]["prompt_tokens"] + system["usage"]["completion_tokens"]) / 16
        expected.append((pytest.approx(tokens), system["metrics"][EX]["value"]))
    assert [point for point in points if point in expected] == expected
    assert {f"{system['usage']['seconds'] / 16:.2g} s" for system in systems.values()} == {
        text.get_text() for text in cost.texts
    }


def test_axes_say_what_they_show(run: Run, tmp_path: Path) -> None:
    figure = run.plot()
    assert [axes.get_title() for axes in figure.axes] == ["EX by hardness", "cost against accuracy"]
    assert figure.axes[0].get_ylabel() == "EX[bag], 95% interval" and "seconds" in figure.axes[1].get_xlabel()
    sizes = {"all": 16} | {level: found[EX]["n"] for level, found in run.report["by_hardness"].items()}
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert ticks == [f"{level}\nn = {n}" for level, n in sizes.items()] and len(ticks) > 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["react", "single_shot", "single_shot, raw"]
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_labels_of_points_that_lie_together_do_not_overlap(run: Run) -> None:
    usage = run.report["usage"]
    close = {
        str(at): run.report | {"usage": usage | {"prompt_tokens": usage["prompt_tokens"] + at, "seconds": 1000.0 * at}}
        for at in (1, 2, 3)
    }
    texts = plot_reports({"run": run.report, **close}, EX).axes[1].texts
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) > 4 and not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_a_run_without_control_is_drawn_alone_and_beside_another(run: Run, tmp_path: Path) -> None:
    alone = made(tmp_path / "alone", control=False)
    assert len(alone.plot().axes[1].texts) == 1
    (legend,) = alone.plot(run).legends
    assert [text.get_text() for text in legend.get_texts()] == ["react", "react (run)"]


def test_the_reliability_of_the_confidence_is_drawn_where_a_run_has_one(run: Run, tmp_path: Path) -> None:
    assert run.confidences() == []
    copied = Run.load(shutil.copytree(run.folder, tmp_path / "sure"))
    right = {item["id"]: item["ex"] for item in copied.report["items"]}
    lines = [json.loads(line) for line in (copied.folder / "traces.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line["flags"]["confidence"] = number / 20
    (copied.folder / "traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert sorted(copied.confidences()) == [(n / 20, right[line["id"]]) for n, line in enumerate(lines)]
    axes = copied.plot().axes[2]
    drawn = next(line for line in axes.lines if len(line.get_xdata()) == 4)
    groups = [lines[at : at + 4] for at in range(0, 16, 4)]
    assert list(drawn.get_xdata()) == pytest.approx([sum(x["flags"]["confidence"] for x in g) / 4 for g in groups])
    assert list(drawn.get_ydata()) == [sum(right[x["id"]] for x in g) / 4 for g in groups]
    assert axes.get_xlabel() == "confidence, 4 groups of 4 answers"


def test_one_episode_of_a_run_is_shown_with_its_trace(run: Run) -> None:
    first = run.report["items"][0]["id"]
    assert "<details open>" in run.episode(first)._repr_html_() and first in repr(run.episode(first))
    with pytest.raises(UsageError, match="no question 'nothing'"):
        run.episode("nothing")


@pytest.mark.notebook
def test_a_notebook_shows_the_figure_once(run: Run) -> None:
    import nbclient
    import nbformat

    cell = nbformat.v4.new_code_cell(f"import nl2sql\nnl2sql.Run.load({str(run.folder)!r}).plot()")
    nbclient.NotebookClient(nbformat.v4.new_notebook(cells=[cell]), timeout=120).execute()
    assert ["image/png" in output.get("data", {}) for output in cell.outputs] == [True]
