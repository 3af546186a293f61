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

HEAD = "model|benchmark|pipeline|n|VA|EX|TS|won|lost|p (clustered)|tokens / question|seconds / question"
MORE = "p (McNemar)|EM|calls / question"  # columns with --verbose


def paper_rows(reports: Iterable[Mapping[str, Any]], *, verbose: bool = False) -> list[list[str]]:
    """The table as text cells, its header first; a control that several runs share stands once.

    reports: the ``report`` of each run. p is the paired test by database. Where answers came from the response cache
    the seconds are no measurement, and ``cached`` stands in their place. verbose: with the columns of ``MORE``.
    """
    rows = [[*HEAD.split("|"), *(MORE.split("|") if verbose else [])]]
    for report in reports:
        for place, (name, system) in enumerate(systems_of(report).items()):
            test = report["paired"] if place == 0 else {}
            numbers = _numbers(report, system, test)
            row = [
                report["model"],
                report["benchmark"],
                name,
                *(numbers if verbose else numbers[: -len(MORE.split("|"))]),
            ]
            if row not in rows:
                rows.append(row)
    return rows


def _numbers(report: Mapping[str, Any], system: Mapping[str, Any], tests: Mapping[str, Any]) -> list[str]:
    """The cells of a row behind its names, those of ``MORE`` included."""
    n, usage = max(1, report["n"]), system["usage"]
    shown = {name[:2]: percent(metric) for name, metric in system["metrics"].items()}
    paired = next((test for name, test in tests.items() if name.startswith("EX")), None)
    against, mcnemar = [""] * 3, ""
    if paired:
        against = [str(paired["wins"]), str(paired["losses"]), f"{paired['p_databases']:.2g}"]
        mcnemar = f"{paired['p']:.2g}"
    tokens = f"{(usage['prompt_tokens'] + usage['completion_tokens']) / n:,.0f}"
    seconds = "cached" if usage.get("cached_calls") else f"{usage['seconds'] / n:.2f}"
    metrics = [shown.get(name, "") for name in ("VA", "EX", "TS")]
    more = [mcnemar, shown.get("EM", ""), f"{usage['model_calls'] / n:,.1f}"]
    return [str(report["n"]), *metrics, *against, tokens, seconds, *more]


def reports_of(folders: Iterable[Path]) -> list[Mapping[str, Any]]:
    """The report of each run folder. Raises UsageError for one that is no finished run."""
    from nl2sql.runs.run import Run

    return [Run.load(folder).report for folder in folders]
