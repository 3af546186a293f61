"""The report's figures as inline SVG: no library draws them, so that they follow the page's colours, light and dark.

Every function returns markup that is safe to put into a page: labels are escaped here. Colours are classes of
``page.css``: ``s0`` to ``s7`` for runs, ``c`` and ``c hollow`` for controls; ``right``, ``wrong`` and ``failed`` for
outcomes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from nl2sql.eval.stats import percent
from nl2sql.runs.report.collect import Collected, System

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 12, 40
SERIES = 8  # colours; further runs repeat them
MOST_RUNS = 4  # drawn one below the other
HARDNESS = ("easy", "medium", "hard", "extra", "unknown")
OUTCOMES = (("right", "right"), ("wrong", "wrong rows"), ("failed", "did not run"))


@dataclass(frozen=True)
class Figure:
    """A plot with its title, the sentence under it, and the classes and names of its legend."""

    title: str
    svg: Markup
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()


def figures(collected: Collected) -> list[Figure]:
    """All of them; those that have nothing to show are left out."""
    legend = [(css(collected, system), system.label) for system in collected.systems]
    drawn = [
        Figure("EX by hardness", ex_by_hardness(collected), "95% intervals; number of questions below.", legend),
        Figure("Cost against accuracy", cost_against_accuracy(collected), "Tokens of prompts and completions.", legend),
        Figure("Steps per question", steps(collected), "Share of each run's questions.", legend[: len(collected.runs)]),
        Figure(
            "Tokens per question",
            tokens_by_question(collected),
            "Share of each run's questions; each bin is twice the one before.",
            legend[: len(collected.runs)],
        ),
        Figure("What repair comes to", repair_outcomes(collected), "By repairs in the episode.", OUTCOMES),
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
    parts = [_share_axis()]
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
    parts = [_share_axis()]
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
    return _bars(shares, [str(a) if a == b else f"{a}–{b}" for a, b in bins], "steps", "Steps per question")


def tokens_by_question(collected: Collected) -> Markup:
    """How many tokens the questions of each run cost, prompts and completions, in bins of powers of two."""
    counts = []
    for run in collected.runs.values():
        spent = (row["usage"]["prompt_tokens"] + row["usage"]["completion_tokens"] for row in run.predictions())
        counts.append(Counter(int(math.log2(value)) if value else 0 for value in spent))
    powers = [power for count in counts for power in count]
    if not powers or max(powers) == 0:
        return Markup()
    bins = range(min(powers), max(powers) + 1)
    shares = [[count[power] / max(1, count.total()) for power in bins] for count in counts]
    return _bars(shares, [_short(2**power) for power in bins], "tokens, from", "Tokens per question")


def repair_outcomes(collected: Collected) -> Markup:
    """Of the episodes with 0, 1, 2, 3 or more repairs: right, wrong rows, did not run."""
    rows: list[tuple[str, Counter[str]]] = []
    for label, run in list(collected.runs.items())[:MOST_RUNS]:
        groups = _repairs(run)
        if set(groups) <= {0}:
            continue
        short = label if len(label) <= 14 else label[:13] + "…"
        prefix = f"{short}: " if len(collected.runs) > 1 else ""
        for count in sorted(groups):
            name = "no repair" if count == 0 else f"{count}{' or more' if count == 3 else ''} repair{'s' * (count > 1)}"
            rows.append((prefix + name, groups[count]))
    if not rows:
        return Markup()
    left, bar, step = (190 if len(collected.runs) > 1 else 120), 18, 30
    span = WIDTH - left - 60
    parts = []
    for number, (name, outcomes) in enumerate(rows):
        y, x, total = TOP + number * step, float(left), outcomes.total()
        parts.append(_text(left - 8, y + 13, name, "end"))
        for key, outcome in OUTCOMES:
            length = span * outcomes[key] / total
            if length:
                title = f"{name}: {outcomes[key]} of {total} {outcome}"
                parts.append(_rect(x, y, length, bar, key, title))
                if length > 26:
                    parts.append(_text(x + length / 2, y + 13, str(outcomes[key]), "middle", "on"))
                x += length
        parts.append(_text(left + span + 8, y + 13, f"n = {total}", "start", "dim"))
    return _svg(parts, "What repair comes to", height=TOP + step * len(rows) + 6)


def _repairs(run: Any) -> dict[int, Counter[str]]:
    items = {item["id"]: item for item in run.report["items"]}
    groups: dict[int, Counter[str]] = {}
    for trace in run.traces(("decision_log",)):
        item = items.get(trace["id"])
        if item is None:
            continue
        tried = [entry for entry in trace["decision_log"] if entry["decision"] == "repair_sql"]
        count = min(3, sum(entry["status"] in ("accept", "reject") for entry in tried))
        outcome = "right" if item["ex"] else ("wrong" if item["va"] else "failed")
        groups.setdefault(count, Counter())[outcome] += 1
    return groups


# -------------------------------------------------------------------------------------------------- drawing


def _bars(shares: Sequence[Sequence[float]], labels: Sequence[str], axis: str, title: str) -> Markup:
    """Grouped bars; ``shares[run][bin]`` between 0 and 1."""
    highest = max(max(row) for row in shares) or 1.0
    top = next(step for step in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if highest <= step + 1e-9)
    parts = [_share_axis(top)]
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
                what = f"{label} {axis.split(',')[0]}: {100 * row[column]:.1f}%"
                parts.append(_rect(x, y, bar - 1, HEIGHT - BOTTOM - y, f"s{number % SERIES}", what))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, axis, "middle", "dim"))
    return _svg(parts, title)


def _share_axis(top: float = 1.0) -> Markup:
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


def _svg(parts: Sequence[Markup], title: str, height: float = HEIGHT) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, round(height), title, Markup("").join(parts)
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
