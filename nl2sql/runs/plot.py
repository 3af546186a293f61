"""A run's numbers as a matplotlib figure: EX by hardness, cost against accuracy, reliability of the confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nl2sql.eval.stats import wilson_interval
from nl2sql.runs.plan import systems_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

_FIRST, _OTHERS, _CONTROLS = "#2f6bd8", ("#d9822b", "#12927f", "#8757cf", "#c4447c"), ("#8a94a6", "#b9c0cc", "#d6dae1")
_WHISKER = "#3a4656"
_WIDTH = 0.8  # of a group of bars; groups stand 1 apart
MOST_BINS = 5  # of the confidence, equally many answers in each


def plot_reports(
    reports: Mapping[str, Mapping[str, Any]], metric: str, sure: Sequence[tuple[float, bool]] = ()
) -> Figure:
    """EX by hardness, cost against accuracy and, where the first run has confidences, their reliability.

    reports: by the names of their folders; the controls of the first stand beside it. metric: the name of EX in all of
    them. sure: of the first run's answers the confidence, between 0 and 1, and whether the answer is right. Intervals
    are 95%, as the reports have them; those of the reliability are Wilson's [30].
    """
    from matplotlib import pyplot

    systems, report = _systems(reports), next(iter(reports.values()))
    widths = (5, 3, 3) if sure else (5, 3)
    figure = pyplot.figure(figsize=(1.15 * sum(widths) + 1, 3.8), layout="constrained")  # loads a notebook's backend
    pyplot.close(figure)  # or the notebook shows it twice
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    _draw_ex(axes[0], systems, metric)
    labels = _draw_cost(axes[1], systems, metric)
    if sure:
        _draw_reliability(axes[2], sure)
    figure.suptitle(f"{report['benchmark']}, {report['n']} questions, {report['model']}", fontsize="medium")
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", color="#00000018")
        each.set_axisbelow(True)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(5, len(systems)))
    _set_apart(figure, labels)
    return figure


def _set_apart(figure: Figure, labels: Sequence[Annotation]) -> None:
    """Move labels of points down until none lies over another."""
    figure.draw_without_rendering()  # lays out the axes
    placed: list[Bbox] = []
    for label in sorted(labels, key=lambda each: -each.xy[1]):
        while any(label.get_window_extent().overlaps(other) for other in placed):
            x, y = label.get_position()
            label.set_position((x, y - 2))
        placed.append(label.get_window_extent())


def _systems(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Name -> colour and numbers: the first run, its controls, the other runs."""
    first = next(iter(reports.values()))
    name, *controls = systems_of(first)
    systems: dict[str, tuple[str, Mapping[str, Any]]] = {name: (_FIRST, first)}
    systems |= {name: (_CONTROLS[at % 3], systems_of(first)[name]) for at, name in enumerate(controls)}
    for at, (folder, report) in enumerate(list(reports.items())[1:]):
        label = str(report["controller"])
        label = f"{label} ({folder})" if label in systems else label
        systems[label] = (_OTHERS[at % len(_OTHERS)], report)
    return systems


def _draw_ex(axes: Axes, systems: Mapping[str, tuple[str, Mapping[str, Any]]], metric: str) -> None:
    _, first = next(iter(systems.values()))
    levels = ["all", *first["by_hardness"]]
    width = _WIDTH / len(systems)
    for number, (name, (colour, system)) in enumerate(systems.items()):
        parts = {"all": system["metrics"], **system["by_hardness"]}
        metrics = [parts[level][metric] if level in parts else {"n": 0} for level in levels]
        drawn = [(group, each) for group, each in enumerate(metrics) if each["n"]]
        axes.bar(
            [group + (number - (len(systems) - 1) / 2) * width for group, _ in drawn],
            [each["value"] for _, each in drawn],
            width,
            yerr=_reach([each for _, each in drawn]),
            capsize=2,
            color=colour,
            ecolor=_WHISKER,
            label=name,
        )
    sizes = [first["n"], *(first["by_hardness"][level][metric]["n"] for level in levels[1:])]
    axes.set_xticks(range(len(levels)), [f"{level}\nn = {n}" for level, n in zip(levels, sizes, strict=True)])
    _share_axis(axes, f"{metric}, 95% interval")
    axes.set_title("EX by hardness", fontsize="medium")


def _draw_cost(axes: Axes, systems: Mapping[str, tuple[str, Mapping[str, Any]]], metric: str) -> list[Annotation]:
    """A point per system at its tokens a question; its seconds a question stand beside it, in the labels returned."""
    from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator

    points: list[tuple[float, float]] = []
    labels: list[Annotation] = []
    for colour, system in reversed(list(systems.values())):  # the first run on top
        each, usage, n = system["metrics"][metric], system["usage"], max(1, system["n"])
        tokens = max(1.0, (usage["prompt_tokens"] + usage["completion_tokens"]) / n)
        axes.errorbar([tokens], [each["value"]], yerr=_reach([each]), fmt="o", capsize=3, color=colour, ecolor=colour)
        if (point := (tokens, each["value"])) not in points:
            points.append(point)
            seconds = f"{usage['seconds'] / n:.2g} s"
            labels.append(axes.annotate(seconds, point, (7, 4), textcoords="offset points", fontsize="small"))
    axes.set_xscale("log")
    axes.set_xlim(min(x for x, _ in points) / 2, 3 * max(x for x, _ in points))
    axes.xaxis.set_major_locator(FixedLocator([number * 10**power for power in range(8) for number in (1, 3)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("tokens a question (beside it: seconds)")
    _share_axis(axes, metric)
    axes.set_title("cost against accuracy", fontsize="medium")
    return labels


def _draw_reliability(axes: Axes, sure: Sequence[tuple[float, bool]]) -> None:
    """How many answers are right, over how sure the system was of them; on the diagonal it is as good as it says."""
    ordered = sorted(sure)
    bins = min(MOST_BINS, max(1, len(ordered) // 4))
    edges = [round(len(ordered) * at / bins) for at in range(bins + 1)]
    groups = [ordered[a:b] for a, b in pairwise(edges)]
    means = [sum(value for value, _ in group) / len(group) for group in groups]
    shares = [wilson_interval(sum(right for _, right in group) / len(group), len(group)) for group in groups]
    found = [{"value": one.value, "low": one.low, "high": one.high} for one in shares]
    axes.plot([0, 1], [0, 1], linestyle="--", linewidth=1, color="#8a94a6")
    values = [one["value"] for one in found]
    axes.errorbar(means, values, yerr=_reach(found), fmt="o-", capsize=3, color=_FIRST, linewidth=1)
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"confidence, {len(groups)} groups of {len(ordered) // len(groups)} answers")
    _share_axis(axes, "share that is right")
    axes.set_title("reliability of the confidence", fontsize="medium")


def _share_axis(axes: Axes, label: str) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel(label)


def _reach(intervals: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """How far the intervals reach below and above their values."""
    below = [max(0.0, each["value"] - each["low"]) for each in intervals]
    return [below, [max(0.0, each["high"] - each["value"]) for each in intervals]]
