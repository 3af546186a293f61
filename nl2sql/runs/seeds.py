"""A run with seeds: one cell per seed, and one report of all of them.

Seeds 1 and 2 of a plan give the cells ``seed-1`` and ``seed-2``; a plan without seeds gives the one cell "".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nl2sql.agents.controllers import SAMPLERS
from nl2sql.config import Config
from nl2sql.eval.scores import item_field
from nl2sql.eval.stats import MIN_CLUSTERS, clustered_interval, wilson_interval
from nl2sql.runs.folder import read_manifest, seed_folder
from nl2sql.runs.job import Cell
from nl2sql.runs.plan import Plan
from nl2sql.runs.run import Run

SUMS = ("counts", "failures", "flips", "suspicions")  # parts of a report that are added up
OWN = ("dialogues", "vizql")  # not pooled
GREEDY = "greedy decoding: the seeds give identical runs; sample with -c react.do_sample=true"


def cells_of(plan: Plan, config: Config) -> list[Cell]:
    """The one cell of a run, or one per seed; the control, which is greedy, runs with the first seed only."""
    if not plan.seeds:
        return [Cell("", {}, plan, config)]
    cells: list[Cell] = []
    for seed in plan.seeds:
        seeded = replace(plan, seeds=(), control=plan.control and not cells)
        cells.append(Cell(seed_folder(seed), {"seed": seed}, seeded, config.model_copy(update={"seed": seed})))
    return cells


def pooled(folder: Path, plan: Plan, config: Config, runs: Mapping[str, Run]) -> Run:
    """The finished cells of a plan as one Run: the run itself, or the reports of those seeds as one report."""
    if not plan.seeds:
        return runs[""]
    report = _pooled_report({seed: runs[name].report for seed in plan.seeds if (name := seed_folder(seed)) in runs})
    if not config.react.do_sample and plan.controller not in SAMPLERS:
        report["warnings"].append(GREEDY)
    return Run(folder, read_manifest(folder), report | {"run": str(folder)})


def _pooled_report(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """One report over several seeds of the same questions; repeats are never counted as independent.

    A metric is the mean over seeds; its interval is clustered by database, by question where there are fewer than
    ten databases. It is Wilson's over the questions where there are fewer than ten of those, and at 0 and 1, where no
    clustering shows; ``n`` is the questions. ``usage`` is the mean of the seeds, ``SUMS`` are over all of them, and
    warnings and alarms name the seed that they are of, unless all have them. ``items``, ``control`` and the tests
    against it are the first seed's, whose controls ran; so are the parts of ``OWN``, and a warning says so.
    """
    number, first = next(iter(reports.items()))
    names, items = list(first["metrics"]), [item for report in reports.values() for item in report["items"]]
    levels = {
        level: [item for item in items if (item["hardness"] or "unknown") == level] for level in first["by_hardness"]
    }
    usage = {key: sum(r["usage"][key] for r in reports.values()) / len(reports) for key in first["usage"]}
    seeds = {
        str(seed): {part: r[part] for part in ("run", "metrics", "usage", "counts")} for seed, r in reports.items()
    }
    told = {part: _told({seed: report[part] for seed, report in reports.items()}) for part in ("warnings", "alarms")}
    told["warnings"] += [
        f"{part}: of seed {number}; the other seeds' are in their reports" for part in OWN if part in first
    ]
    return {
        **first,
        "metrics": _metrics(names, items),
        "by_hardness": {level: _metrics(names, of_level) for level, of_level in levels.items()},
        "usage": usage,
        "seeds": seeds,
        **{part: _sum([report[part] for report in reports.values()]) for part in SUMS},
        **told,
    }


def _metrics(names: Sequence[str], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metric name -> its value over the items of all seeds, with its interval."""
    questions, databases = ({item[key] for item in items} for key in ("id", "db_id"))
    cluster = "db_id" if len(databases) >= MIN_CLUSTERS else "id"
    metrics = {}
    for name in names:
        values = [bool(item[item_field(name)]) for item in items]
        if len(questions) < MIN_CLUSTERS or len(set(values)) == 1:
            interval = wilson_interval(sum(values) / len(values), len(questions))
        else:
            interval = clustered_interval(values, [item[cluster] for item in items])
        metrics[name] = {**interval.to_dict(), "n": len(questions)}
    return metrics


def _sum(parts: Sequence[Any]) -> Any:
    """Numbers added up, within mappings by key."""
    if not isinstance(parts[0], Mapping):
        return sum(parts)
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: _sum([part[key] for part in parts if key in part]) for key in keys}


def _told(texts: Mapping[int, Sequence[str]]) -> list[str]:
    """What is said of the seeds: once where it is said of all, else behind the seed's name."""
    every = [text for text in next(iter(texts.values())) if all(text in told for told in texts.values())]
    return every + [f"seed {seed}: {text}" for seed, told in texts.items() for text in told if text not in every]
