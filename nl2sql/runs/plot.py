"""A run's numbers as a matplotlib figure: EX beside its controls, and what a question cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nl2sql.runs.controls import systems_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS = ("#7fb0e0", "#b5b5b5", "#dcdcdc", "#ecc77e")  # the run, then its controls
_LINES = ("#1f5fa8", "#555555", "#8f8f8f", "#a8701a")  # their intervals, darker
_WIDTH = 0.8  # of a group of bars; groups stand 1 apart


def plot_report(report: Mapping[str, Any]) -> Figure:
    """Three axes: EX with 95% intervals, in all and by hardness; tokens and seconds a question."""
    from matplotlib import pyplot

    systems = systems_of(report)
    figure = pyplot.figure(figsize=(10, 4), layout="constrained")  # loads a notebook's backend
    pyplot.close(figure)  # or the notebook shows it twice
    accuracy, tokens, seconds = figure.subplots(1, 3, width_ratios=(4, 1, 1))
    _draw_ex(accuracy, systems, next(name for name in report["metrics"] if name.startswith("EX[")))
    _draw_cost(tokens, systems, ("prompt_tokens", "completion_tokens"), "tokens a question")
    _draw_cost(seconds, systems, ("seconds",), "seconds a question")
    figure.suptitle(f"{report['benchmark']}, {report['model']}", fontsize="medium")
    names = accuracy.get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=len(systems))
    return figure


def _draw_ex(axes: Axes, systems: Mapping[str, Mapping[str, Any]], metric: str) -> None:
    from matplotlib.ticker import PercentFormatter

    first = next(iter(systems.values()))
    levels = {"all": first["metrics"], **first["by_hardness"]}
    width = _WIDTH / len(systems)
    for number, (name, system) in enumerate(systems.items()):
        parts = {"all": system["metrics"], **system["by_hardness"]}
        metrics = [parts[level][metric] for level in levels]
        drawn = [(group, each) for group, each in enumerate(metrics) if each["n"]]
        axes.bar(
            [group + (number - (len(systems) - 1) / 2) * width for group, _ in drawn],
            [each["value"] for _, each in drawn],
            width,
            yerr=_reach([each for _, each in drawn]),
            capsize=2,
            color=_BARS[number],
            ecolor=_LINES[number],
            label=name,
        )
    sizes = [f"{level}\nn = {each[metric]['n']}" for level, each in levels.items()]
    axes.set_xticks(range(len(levels)), sizes)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel(f"{metric}, 95% interval")


def _reach(intervals: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """How far the intervals reach below and above their values."""
    below = [max(0.0, each["value"] - each["low"]) for each in intervals]
    return [below, [max(0.0, each["high"] - each["value"]) for each in intervals]]


def _draw_cost(axes: Axes, systems: Mapping[str, Mapping[str, Any]], keys: Sequence[str], label: str) -> None:
    sums = [sum(system["usage"][key] for key in keys) for system in systems.values()]
    costs = [whole / max(1, system["n"]) for whole, system in zip(sums, systems.values(), strict=True)]
    drawn = axes.bar(range(len(costs)), costs, color=_BARS[: len(costs)])
    labels = [f"{cost:,.0f}" if cost >= 10 else f"{cost:.2g}" for cost in costs]
    axes.bar_label(drawn, labels, fontsize="small")
    axes.margins(y=0.12)
    axes.set_xticks([])
    axes.set_ylabel(label)
