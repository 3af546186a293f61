"""The figures of runs: of the report as inline SVG, which follows the page's colours, and of a notebook by matplotlib.

The functions of the report return markup that is safe to put into a page: labels are escaped here. Colours are classes
of ``page.css``: ``s0`` to ``s7`` for runs, ``c`` and ``c hollow`` for controls.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from nl2sql.eval.stats import percent, wilson_interval
from nl2sql.runs.plan import systems_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    from nl2sql.runs.run import Collected, System

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 12, 40
SERIES = 8  # colours; further runs repeat them
HARDNESS = ("easy", "medium", "hard", "extra", "unknown")


@dataclass(frozen=True)
class Drawn:
    """A plot with its title, the sentence under it, and the classes and names of its legend."""

    title: str
    svg: Markup
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()


def figures(collected: Collected) -> list[Drawn]:
    """All of them; those that have nothing to show are left out."""
    legend = [(css(collected, system), system.label) for system in collected.systems]
    drawn = [
        Drawn("EX by hardness", ex_by_hardness(collected), "95% intervals; number of questions below.", legend),
        Drawn("Cost against accuracy", cost_against_accuracy(collected), "Tokens of prompts and completions.", legend),
        Drawn("Steps per question", steps(collected), "Share of each run's questions.", legend[: len(collected.runs)]),
    ]
    return [figure for figure in drawn if figure.svg]


def css(collected: Collected, system: System) -> str:
    """The colour class of a system."""
    if system.is_control:
        return "c" if system.label.split(" of ")[0] == "single_shot" else "c hollow"
    return f"s{list(collected.runs).index(system.label) % SERIES}"


def ex_by_hardness(collected: Collected) -> Markup:
    """EX of each system at each level, with its interval."""
    systems = [system for system in collected.systems if system.by_hardness]
    levels = [level for level in HARDNESS if any(level in system.by_hardness for system in systems)]
    if not levels:
        return Markup()
    parts = [_svg_axis()]
    band = (WIDTH - LEFT - RIGHT) / len(levels)
    gap = min(14.0, band * 0.7 / max(1, len(systems)))
    for column, level in enumerate(levels):
        centre = LEFT + band * (column + 0.5)
        n = max(system.by_hardness[level][collected.ex]["n"] for system in systems if level in system.by_hardness)
        parts.append(_text(centre, HEIGHT - BOTTOM + 16, level, "middle"))
        parts.append(_text(centre, HEIGHT - BOTTOM + 31, f"n = {n}", "middle", "dim"))
        for number, system in enumerate(systems):
            interval = system.by_hardness.get(level, {}).get(collected.ex)
            if interval and interval["n"]:
                x = centre + (number - (len(systems) - 1) / 2) * gap
                parts.append(_interval(x, interval, css(collected, system), f"{system.label}, {level}"))
    return _svg(parts, "EX by hardness")


def cost_against_accuracy(collected: Collected) -> Markup:
    """EX of each system over its tokens per question, on a logarithmic axis."""
    shown = [system for system in collected.systems if system.tokens > 0]
    if not shown:
        return Markup()
    low = math.floor(math.log10(min(system.tokens for system in shown)) * 2 - 0.3) / 2
    high = math.ceil(math.log10(max(system.tokens for system in shown)) * 2 + 0.3) / 2
    parts = [_svg_axis()]
    for power in range(math.ceil(low), math.floor(high) + 1):
        for factor in (1, 3):
            value = math.log10(factor) + power
            if low <= value <= high:
                x = _scale(value, low, high)
                parts.append(_line(x, TOP, x, HEIGHT - BOTTOM, "grid"))
                parts.append(_text(x, HEIGHT - BOTTOM + 16, _short(factor * 10**power), "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "tokens per question", "middle", "dim"))
    for system in shown:
        x = _scale(math.log10(system.tokens), low, high)
        what = f"{system.label}, {system.tokens:,.0f} tokens"
        parts.append(_interval(x, system.metrics[collected.ex], css(collected, system), what))
    return _svg(parts, "Cost against accuracy")


def steps(collected: Collected) -> Markup:
    """How many steps the episodes of each run took."""
    counts = [Counter(row["steps"] for row in run.predictions()) for run in collected.runs.values()]
    last = max((step for count in counts for step in count), default=0)
    if last <= 1:
        return Markup()
    width = max(1, math.ceil(last / 16))  # a loop of hundreds of steps is shown in bins
    bins = [(start, min(last, start + width - 1)) for start in range(1, last + 1, width)]
    shares = [
        [sum(count[step] for step in range(a, b + 1)) / max(1, count.total()) for a, b in bins] for count in counts
    ]
    labels = [str(a) if a == b else f"{a}–{b}" for a, b in bins]
    highest = max(max(row) for row in shares)
    top = next(step for step in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if highest <= step + 1e-9)
    parts = [_svg_axis(top)]
    band = (WIDTH - LEFT - RIGHT) / len(labels)
    bar = min(26.0, band * 0.8 / len(shares))
    for column, label in enumerate(labels):
        centre = LEFT + band * (column + 0.5)
        if len(labels) <= 10 or column % 2 == 0:
            parts.append(_text(centre, HEIGHT - BOTTOM + 16, label, "middle"))
        for number, row in enumerate(shares):
            y = _share(row[column], top)
            x = centre + (number - len(shares) / 2) * bar
            if row[column]:
                what = f"{label} steps: {100 * row[column]:.1f}%"
                parts.append(_rect(x, y, bar - 1, HEIGHT - BOTTOM - y, f"s{number % SERIES}", what))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "steps", "middle", "dim"))
    return _svg(parts, "Steps per question")


def _svg_axis(top: float = 1.0) -> Markup:
    parts = []
    for quarter in range(5):
        value = top * quarter / 4
        y = _share(value, top)
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "axis" if quarter == 0 else "grid"))
        parts.append(_text(LEFT - 6, y + 4, f"{100 * value:.3g}%", "end", "dim"))
    return Markup("").join(parts)


def _share(value: float, top: float = 1.0) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top


def _scale(value: float, low: float, high: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low)


def _interval(x: float, metric: Mapping[str, Any], name: str, what: str) -> Markup:
    """A dot at the value, a line from ``low`` to ``high``, and both in words under the pointer."""
    if metric["value"] is None:
        return Markup()
    words = f"{what}: {percent(metric)}, n = {metric['n']}"
    low, high = _share(metric["low"]), _share(metric["high"])
    ends = [_line(x - 3, y, x + 3, y, f"{name} whisker") for y in (low, high)]
    dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="4.5" class="{}"/>').format(x, _share(metric["value"]), name)
    inside = Markup("").join([_line(x, low, x, high, f"{name} whisker"), *ends, dot])
    return Markup("<g><title>{}</title>{}</g>").format(words, inside)


def _svg(parts: Sequence[Markup], title: str) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, title, Markup("").join(parts)
    )


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, name)


def _rect(x: float, y: float, width: float, height: float, name: str, title: str) -> Markup:
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"><title>{}</title></rect>'
    ).format(x, y, max(0.5, width), height, name, title)


def _text(x: float, y: float, text: str, anchor: str, name: str = "") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>').format(
        x, y, anchor, name, escape(text)
    )


def _short(value: float) -> str:
    """8192 as 8.2k."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit if value < 10 * size else f"{value / size:.0f}{unit}"
    return f"{value:.3g}"


# -------------------------------------------------------------------------- the figure of a notebook

_FIRST, _OTHERS, _CONTROLS = "#2f6bd8", ("#d9822b", "#12927f", "#8757cf", "#c4447c"), ("#8a94a6", "#b9c0cc", "#d6dae1")
MOST_BINS = 5  # of the confidence, equally many answers in each
Systems = Mapping[str, tuple[str, Mapping[str, Any]]]  # name -> colour and numbers


def plot_reports(
    reports: Mapping[str, Mapping[str, Any]], metric: str, confidences: Sequence[tuple[float, bool]] = ()
) -> Figure:
    """EX by hardness, cost against accuracy and, where the first run has confidences, their reliability.

    reports: by the names of their folders; the controls of the first stand beside it. metric: the name of EX in all of
    them. confidences: of the first run's answers the confidence, between 0 and 1, and whether the answer is right.
    Intervals are 95%, as the reports have them; those of the reliability are Wilson's [30].
    """
    from matplotlib import pyplot

    systems, report = _systems(reports), next(iter(reports.values()))
    widths = (5, 3, 3) if confidences else (5, 3)
    figure = pyplot.figure(figsize=(1.15 * sum(widths) + 1, 3.8), layout="constrained")  # loads a notebook's backend
    pyplot.close(figure)  # or the notebook shows it twice
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    _draw_ex(axes[0], systems, metric)
    labels = _draw_cost(axes[1], systems, metric)
    if confidences:
        _draw_reliability(axes[2], confidences)
    figure.suptitle(f"{report['benchmark']}, {report['n']} questions, {report['model']}", fontsize="medium")
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", color="#00000018")
        each.set_axisbelow(True)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(5, len(systems)))
    figure.draw_without_rendering()  # lays out the axes, before labels move down until none lies over another
    placed: list[Bbox] = []
    for label in sorted(labels, key=lambda each: -each.xy[1]):
        while any(label.get_window_extent().overlaps(other) for other in placed):
            x, y = label.get_position()
            label.set_position((x, y - 2))
        placed.append(label.get_window_extent())
    return figure


def _systems(reports: Mapping[str, Mapping[str, Any]]) -> Systems:
    """The first run, its controls, the other runs."""
    first = next(iter(reports.values()))
    name, *controls = systems_of(first)
    systems: dict[str, tuple[str, Mapping[str, Any]]] = {name: (_FIRST, first)}
    systems |= {name: (_CONTROLS[at % 3], systems_of(first)[name]) for at, name in enumerate(controls)}
    for at, (folder, report) in enumerate(list(reports.items())[1:]):
        label = str(report["controller"])
        label = f"{label} ({folder})" if label in systems else label
        systems[label] = (_OTHERS[at % len(_OTHERS)], report)
    return systems


def _draw_ex(axes: Axes, systems: Systems, metric: str) -> None:
    _, first = next(iter(systems.values()))
    levels = ["all", *first["by_hardness"]]
    width = 0.8 / len(systems)  # groups stand 1 apart
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
            ecolor="#3a4656",
            label=name,
        )
    sizes = [first["n"], *(first["by_hardness"][level][metric]["n"] for level in levels[1:])]
    axes.set_xticks(range(len(levels)), [f"{level}\nn = {n}" for level, n in zip(levels, sizes, strict=True)])
    _share_axis(axes, f"{metric}, 95% interval")
    axes.set_title("EX by hardness", fontsize="medium")


def _draw_cost(axes: Axes, systems: Systems, metric: str) -> list[Annotation]:
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


def _draw_reliability(axes: Axes, confidences: Sequence[tuple[float, bool]]) -> None:
    """How many answers are right, over how sure the system was of them; on the diagonal it is as good as it says."""
    ordered = sorted(confidences)
    bins = min(MOST_BINS, max(1, len(ordered) // 4))
    edges = [round(len(ordered) * at / bins) for at in range(bins + 1)]
    groups = [ordered[a:b] for a, b in pairwise(edges)]
    means = [sum(value for value, _ in group) / len(group) for group in groups]
    shares = [wilson_interval(sum(right for _, right in group) / len(group), len(group)) for group in groups]
    found = [share.to_dict() for share in shares]
    axes.plot([0, 1], [0, 1], linestyle="--", linewidth=1, color="#8a94a6")
    axes.errorbar(
        means, [share.value for share in shares], yerr=_reach(found), fmt="o-", capsize=3, color=_FIRST, linewidth=1
    )
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
