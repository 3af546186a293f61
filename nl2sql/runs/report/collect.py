"""What a report shows of its runs, as plain data: systems, numbers, tests, failures; and a table for a paper."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from nl2sql.errors import UsageError, typed
from nl2sql.eval.stats import PairedTest, adjusted, paired_test, percent
from nl2sql.runs.folder import TABLE, QuestionKey, inside, read_json
from nl2sql.runs.plan import systems_of
from nl2sql.runs.run import Run, shared_ex

DATABASE = itemgetter(slice(2))  # of a question's key: its benchmark and database


@dataclass(frozen=True)
class System:
    """A line of the table: a run, or a control of runs. Usage and metrics are those of ``report.json``.

    The tests are of EX: against the run's own control, and against the first run, adjusted over all others.
    """

    label: str
    is_control: bool
    n: int
    metrics: Mapping[str, Mapping[str, Any]]
    usage: Mapping[str, float]
    by_hardness: Mapping[str, Mapping[str, Mapping[str, Any]]]
    against_control: PairedTest | None = None
    against_first: PairedTest | None = None

    @property
    def tokens(self) -> float:
        """Prompt and completion tokens per question."""
        return (self.usage["prompt_tokens"] + self.usage["completion_tokens"]) / max(1, self.n)


@dataclass(frozen=True)
class Collected:
    """Runs under unique labels, and the table's systems: each run, then the controls that differ."""

    runs: dict[str, Run]
    systems: list[System]
    metrics: list[str]
    ex: str  # the name of the EX metric, with its rule


def collect(folders: Iterable[str | Path]) -> Collected:
    """Read run folders: a run with seeds as one run per seed, an ablation's folder as its cells.

    Raises UsageError for what cannot stand in one table.
    """
    paths = [cell for folder in folders for cell in _cells_of(Path(folder))]
    if not paths:
        raise UsageError("no run given; example: nl2sql report runs/dev --out report.html")
    runs: dict[str, Run] = {}
    for path in paths:
        run = Run.load(path)
        for seed, part in run.parts().items():
            name = f"{path.resolve().name}/{seed}" if seed else path.resolve().name
            label, number = name, 1
            while label in runs:
                number += 1
                label = f"{name} ({number})"
            runs[label] = part
    ex = shared_ex(list(runs.values()))
    metrics = list(dict.fromkeys(name for run in runs.values() for name in run.report["metrics"]))
    order = ("VA", "EM", "EX", "TS")
    metrics.sort(key=lambda name: next((i for i, start in enumerate(order) if name.startswith(start)), len(order)))
    (first, baseline), *others = runs.items()
    tests = {label: paired_test(first, right_of(run), right_of(baseline), DATABASE) for label, run in others}
    tests = {label: test for label, test in tests.items() if test.n}  # not of other questions than the first run's
    by_label = dict(zip(tests, adjusted(list(tests.values())), strict=True))
    systems = [_system(label, run, by_label.get(label)) for label, run in runs.items()]
    systems += _controls(runs)
    return Collected(runs, systems, metrics, ex)


def _cells_of(folder: Path) -> list[Path]:
    """The folder itself, or the cells of a finished ablation, base first."""
    path = folder / TABLE
    if not path.exists():
        return [folder]
    try:
        data = read_json(path)
        cells = [inside(folder, cell["name"]) for cell in data["cells"]]
        command = data.get("command") or f"nl2sql ablate GRID --out {typed(folder)}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is not an ablation's; name the run folders in {folder} one by one") from None
    if owed := [cell.name for cell in cells if not (cell / "report.json").exists()]:
        raise UsageError(
            f"{folder} owes {len(owed)} of its {len(cells)} cells (first: {owed[0]}); finish it with: {command}, or "
            "name the run folders of finished cells"
        )
    return cells


def right_of(run: Run, key: str = "ex") -> dict[QuestionKey, bool]:
    """Question -> was it right, for the run (``ex``) or one of its controls (``ex_single_shot``, ...)."""
    return {run.key_of(item): bool(item[key]) for item in run.report["items"] if key in item}


def _system(label: str, run: Run, against_first: PairedTest | None) -> System:
    report, control = run.report, right_of(run, "ex_single_shot")
    against_control = paired_test("single_shot", right_of(run), control, DATABASE) if control else None
    numbers = (report["n"], report["metrics"], report["usage"], report["by_hardness"])
    return System(label, False, *numbers, against_control, against_first)


def _controls(runs: Mapping[str, Run]) -> list[System]:
    """The controls; those with the same numbers (the same model on the same questions) are one line."""
    systems: list[tuple[System, list[str]]] = []
    for label, run in runs.items():
        for name, control in list(systems_of(run.report).items())[1:]:
            same = [of for system, of in systems if system.label == name and system.metrics == control["metrics"]]
            if same:
                same[0].append(label)
                continue
            levels = control.get("by_hardness", {})
            systems.append((System(name, True, control["n"], control["metrics"], control["usage"], levels), [label]))
    counts = [*runs, *(system.label for system, _ in systems)]  # a run's folder may have the name of a control
    return [
        replace(system, label=f"{system.label} of {', '.join(of)}") if counts.count(system.label) > 1 else system
        for system, of in systems
    ]


# ---------------------------------------------------------------------------- the table for a paper
# One row for each run and each of its controls; models and benchmarks may differ. *won* and *lost*
# count the questions that only the run, or only its control with guardrails, has right.

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


def spread_rows(runs: Iterable[Run]) -> list[list[str]]:
    """Rows of mean ± standard deviation for runs that differ in nothing but their seed; none for single ones.

    runs: also those with ``--seeds``, each of whose seeds counts as one. The columns are those of ``HEAD``; ``n`` is
    the questions of each.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    reports: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        plan = {name: value for name, value in run.manifest["plan"].items() if name != "seeds"}
        config = {name: value for name, value in run.manifest["config"].items() if name != "seed"}
        key = json.dumps([plan, config, run.report["n"]], sort_keys=True)
        reports.setdefault(key, run.report)
        groups.setdefault(key, []).extend(run.report.get("seeds", {"": run.report}).values())
    return [_spread(reports[key], members) for key, members in groups.items() if len(members) > 1]


def _spread(report: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> list[str]:
    n = max(1, report["n"])
    drawn = [{name[:2]: metric["value"] for name, metric in of["metrics"].items()} for of in members]
    shown = [_mean([100 * of[name] for of in drawn]) if name in drawn[0] else "" for name in ("VA", "EX", "TS")]
    usages = [of["usage"] for of in members]
    tokens = _mean([(usage["prompt_tokens"] + usage["completion_tokens"]) / n for usage in usages], 0)
    cached = any(usage.get("cached_calls") for usage in usages)
    seconds = "cached" if cached else _mean([usage["seconds"] / n for usage in usages], 2)
    name = f"{report['controller']}, mean of {len(members)} seeds ± SD"
    return [report["model"], report["benchmark"], name, str(report["n"]), *shown, "", "", "", tokens, seconds]


def _mean(values: Sequence[float], digits: int = 1) -> str:
    return f"{mean(values):,.{digits}f} ± {stdev(values):,.{digits}f}"
