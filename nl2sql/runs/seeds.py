"""A run with seeds: one cell per seed, and one report of all of them.

Seeds 1 and 2 of a plan give the cells ``seed-1`` and ``seed-2``; a plan without seeds gives the one cell "".
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """The finished cells of a plan as one Run: the run itself, or the seeds' reports as one report."""
    if not plan.seeds:
        return runs[""]
    report = _pooled_report({seed: runs[seed_folder(seed)].report for seed in plan.seeds})
    if not config.react.do_sample and plan.controller not in SAMPLERS:
        report["warnings"].append(GREEDY)
    return Run(folder, read_manifest(folder), report | {"run": str(folder)})


def _pooled_report(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """One report over several seeds of the same questions; repeats are never counted as independent.

    A metric is the mean over seeds; its interval is clustered by database, by question where there are fewer than
    ten databases, and Wilson's over the questions where there are fewer than ten of those; ``n`` is the questions.
    ``usage`` is the mean of the seeds. ``control``, paired tests and flips are the first seed's, whose controls ran.
    """
    first = next(iter(reports.values()))
    items = [item for report in reports.values() for item in report["items"]]
    questions, databases = ({item[key] for item in items} for key in ("id", "db_id"))
    cluster = "db_id" if len(databases) >= MIN_CLUSTERS else "id"
    metrics = {}
    for name in first["metrics"]:
        values = [bool(item[item_field(name)]) for item in items]
        if len(questions) < MIN_CLUSTERS:
            interval = wilson_interval(sum(values) / len(values), len(questions))
        else:
            interval = clustered_interval(values, [item[cluster] for item in items])
        metrics[name] = {**interval.to_dict(), "n": len(questions)}
    usage = {key: sum(r["usage"][key] for r in reports.values()) / len(reports) for key in first["usage"]}
    seeds = {
        str(seed): {"run": r["run"], "metrics": r["metrics"], "usage": r["usage"], "counts": r["counts"]}
        for seed, r in reports.items()
    }
    return {**first, "metrics": metrics, "usage": usage, "seeds": seeds, "warnings": list(first["warnings"])}
