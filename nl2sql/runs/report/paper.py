"""The numbers of several runs as one table for a paper: text, Markdown, LaTeX or CSV.

One row for each run and each of its controls; models and benchmarks may differ. *won* and *lost* count the questions
that only the run, or only its control with guardrails, has right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nl2sql.eval.stats import percent
from nl2sql.runs.controls import systems_of

HEAD = "model|benchmark|pipeline|n|VA|EX|TS|won|lost|p|p by database|tokens / question|seconds / question"


def paper_rows(reports: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """The table as text cells, its header first; a control that several runs share stands once.

    reports: the ``report`` of each run. The seconds of answers from the response cache are left out: they are no
    measurement.
    """
    rows = [HEAD.split("|")]
    for report in reports:
        for place, (name, system) in enumerate(systems_of(report).items()):
            test = report["paired"] if place == 0 else {}
            row = [report["model"], report["benchmark"], name, *_numbers(report, system, test)]
            if row not in rows:
                rows.append(row)
    return rows


def _numbers(report: Mapping[str, Any], system: Mapping[str, Any], tests: Mapping[str, Any]) -> list[str]:
    n, usage = max(1, report["n"]), system["usage"]
    shown = {name[:2]: percent(metric) for name, metric in system["metrics"].items()}
    paired = next((test for name, test in tests.items() if name.startswith("EX")), None)
    against = [""] * 4
    if paired:
        against = [str(paired[key]) for key in ("wins", "losses")]
        against += [f"{paired[key]:.2g}" for key in ("p", "p_databases")]
    tokens = f"{(usage['prompt_tokens'] + usage['completion_tokens']) / n:,.0f}"
    seconds = "" if usage.get("cached_calls") else f"{usage['seconds'] / n:.2f}"
    return [str(report["n"]), *(shown.get(name, "") for name in ("VA", "EX", "TS")), *against, tokens, seconds]


def reports_of(folders: Iterable[Path]) -> list[Mapping[str, Any]]:
    """The report of each run folder. Raises UsageError for one that is no finished run."""
    from nl2sql.runs.run import Run

    return [Run.load(folder).report for folder in folders]
