"""Run.plot: the figure shows the report's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.evaluate import evaluate
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
    accuracy, tokens, seconds = run.plot().axes
    bars, lines = accuracy.containers[1::2], accuracy.collections
    assert [container.get_label() for container in bars] == list(systems)
    for drawn, line, system in zip(bars, lines, systems.values(), strict=True):
        found = [system["metrics"][EX], *(system["by_hardness"][level][EX] for level in report["by_hardness"])]
        assert [bar.get_height() for bar in drawn] == [each["value"] for each in found]
        reach = [[end for _, end in segment] for segment in line.get_segments()]
        assert reach == [pytest.approx([each["low"], each["high"]]) for each in found]
    assert 0 < report["control"]["with_guardrails"]["metrics"][EX]["value"] < report["metrics"][EX]["value"] < 1
    for axes, keys in ((tokens, ("prompt_tokens", "completion_tokens")), (seconds, ("seconds",))):
        costs = [sum(system["usage"][key] for key in keys) / 16 for system in systems.values()]
        assert [bar.get_height() for bar in axes.containers[0]] == pytest.approx(costs) and min(costs) > 0


def test_axes_say_what_they_show(run: Run, tmp_path: Path) -> None:
    figure = run.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "EX[bag], 95% interval",
        "tokens a question",
        "seconds a question",
    ]
    sizes = {"all": 16} | {level: found[EX]["n"] for level, found in run.report["by_hardness"].items()}
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert ticks == [f"{level}\nn = {n}" for level, n in sizes.items()] and len(ticks) > 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["react", "single_shot", "single_shot, raw"]
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_a_run_without_control_is_drawn_alone(tmp_path: Path) -> None:
    figure = made(tmp_path / "run", control=False).plot()
    assert [len(axes.containers[-1]) for axes in figure.axes[1:]] == [1, 1]


@pytest.mark.notebook
def test_a_notebook_shows_the_figure_once(run: Run) -> None:
    import nbclient
    import nbformat

    cell = nbformat.v4.new_code_cell(f"import nl2sql\nnl2sql.Run.load({str(run.folder)!r}).plot()")
    nbclient.NotebookClient(nbformat.v4.new_notebook(cells=[cell]), timeout=120).execute()
    assert ["image/png" in output.get("data", {}) for output in cell.outputs] == [True]
