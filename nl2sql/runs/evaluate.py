"""A controller and its control over a benchmark: checked, opened, carried out as one cell, or as one per seed.

``evaluate`` is what ``nl2sql eval``, the scripts and the notebooks call; ``nl2sql.runs.carry_out`` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nl2sql.agents.controllers import SAMPLERS, get_controller, with_preset
from nl2sql.agents.record import Episode
from nl2sql.config import Config
from nl2sql.errors import UsageError
from nl2sql.eval.scores import item_field
from nl2sql.eval.stats import MIN_CLUSTERS, clustered_interval, wilson_interval
from nl2sql.interfaces import DEFAULT_MODEL, Benchmark, Gate, Model, Tool
from nl2sql.runs.carry_out import carry_out
from nl2sql.runs.folder import (
    FORMAT,
    as_a_run_leaves,
    check_free,
    environment,
    locked,
    new_folder,
    read_manifest,
    seed_folder,
    write_json,
)
from nl2sql.runs.job import LOCAL, Cell, Executor, Opened, settled
from nl2sql.runs.named import Trust, check_code, check_named, check_same, code_files
from nl2sql.runs.plan import Plan, absolute, control_stores, plan_record, read_plan
from nl2sql.runs.run import Run

# -------------------------------------------------------------------------------- one cell per seed
# Seeds 1 and 2 of a plan give the cells ``seed-1`` and ``seed-2``; a plan without seeds gives the
# one cell "".

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


# ------------------------------------------------------------------------------------------ one run


def evaluate(
    benchmark: str | Path | Benchmark = "packaged",
    model: str | Model = DEFAULT_MODEL,
    controller: str | Callable[..., Episode] = "react",
    *,
    config: Config | None = None,
    split: str | None = None,
    engine_url: str = "",
    history: str = "",
    limit: int | None = None,
    sample_seed: int = 0,
    seeds: Sequence[int] = (),
    turns: str = "",
    device: str = "auto",
    dtype: str | None = None,
    batch_size: int = 32,
    engine: str = "auto",
    adapter: str = "auto",
    server: Sequence[str] = (),
    cache: bool | None = None,
    control: bool = True,
    equal_tokens: bool = False,
    tools: Mapping[str, Tool] | None = None,
    gates: Mapping[str, Gate] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    executor: Executor = LOCAL,
) -> Run:
    """Run ``controller`` (and the single-shot control) on a benchmark and score it; returns the finished Run.

    benchmark, model: a name as on the command line, or an object. controller: a name, or any callable
    ``(question, resources, config) -> Episode``. config: what is set in it goes before the controller's preset.
    engine_url: the benchmark's databases on another engine (docs/benchmarks.md); TS is of SQLite files only.
    history: of turns of dialogues, ``gold`` (default) or ``own`` (docs/benchmarks.md); limit counts dialogues there.
    turns: auto finds out on ten questions whether ``react.native_tools`` is to be on (``runs.turns``).
    tools, gates: added to those of the loop. adapter: as for ``load_model``. server: ``KEY=VALUE`` options of an HTTP
    model. cache: answer repeated calls from the response cache; None = for a model given by name, not for an object.
    executor: carries out episodes and scoring: this process, or a cluster (``nl2sql.runs.distributed.Ray``).
    Raises UsageError for bad arguments and Cancelled when interrupted (finished episodes are kept).
    """
    arguments = {"benchmark": benchmark, "model": model, "controller": controller, "tools": tools, "gates": gates}
    objects = tuple(name for name, value in arguments.items() if value and not isinstance(value, (str, Path)))
    named = get_controller(controller if callable(controller) else str(controller))
    plan = Plan(
        benchmark=str(getattr(benchmark, "name", benchmark) if "benchmark" in objects else benchmark),
        split=split,
        engine_url=engine_url,
        history=history,
        limit=limit,
        sample_seed=sample_seed,
        controller=named.name if "controller" in objects else str(controller),
        model=str(getattr(model, "name", model)),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        engine=engine,
        adapter=adapter,
        server=tuple(server),
        cache="model" not in objects if cache is None else cache,
        control=control,
        equal_tokens=equal_tokens,
        seeds=tuple(seeds),
        turns=turns,
        objects=objects,
    )
    settings = with_preset(named, config, timed=False)
    return start(absolute(plan), settings, objects=arguments, out=out, progress=progress, executor=executor)


def start(
    plan: Plan,
    config: Config,
    *,
    objects: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    executor: Executor = LOCAL,
) -> Run:
    """Carry out a plan in a new folder, once or once per seed. ``objects``: in place of the names of a plan."""
    executor.check(plan, config)
    check_free(out)  # before a model is loaded
    if len(set(plan.seeds)) < len(plan.seeds):
        raise UsageError(f"--seeds {','.join(map(str, plan.seeds))} names a seed twice")
    objects = objects or {}
    named = get_controller(objects.get("controller") or plan.controller)
    if plan.equal_tokens and not control_stores(plan, named):
        why = f"--controller {named.name} has none" if plan.control else "--no-control leaves controls out"
        raise UsageError(f"--equal-tokens adds a control, and {why}; leave one of the two out")
    with Opened(plan, objects, executor) as opened:
        model = opened.fit(cells_of(plan, config)[0])  # a mistake leaves no folder behind
        config, opened.turns = settled(plan, config, opened, model, progress)
        folder = new_folder(out, f"{named.name}-{opened.benchmark.name}")
        return _carried_out(plan, config, folder, opened, progress)


def _carried_out(plan: Plan, config: Config, folder: Path, opened: Opened, progress: bool) -> Run:
    """The one cell of a run, or those of its seeds, carried out in ``folder``."""
    cells = cells_of(plan, config)
    if not plan.seeds:
        return carry_out(cells[0], folder, opened, progress=progress)
    with locked(folder):
        _keep_pooled_manifest(folder, plan, config, opened)
        runs = {cell.name: carry_out(cell, folder / cell.name, opened, top=folder, progress=progress) for cell in cells}
        run = pooled(folder, plan, config, runs)
        write_json(folder / "report.json", run.report)
    return run


def _keep_pooled_manifest(folder: Path, plan: Plan, config: Config, opened: Opened) -> None:
    """Write once what a run with seeds was; all that the seeds do not share is in their manifests."""
    if (folder / "manifest.json").exists() and "model" in read_manifest(folder):
        return
    manifest = {
        "format": FORMAT,
        "key": "",
        "plan": plan_record(plan),
        "config": config.model_dump(),
        "model": opened.fit(cells_of(plan, config)[0]).describe(),
        "questions": [question.id for question in opened.questions],
        "environment": environment(),
        **({"code": code} if (code := code_files(plan)) else {}),
    }
    write_json(folder / "manifest.json", manifest)


def resume(
    folder: str | Path,
    *,
    benchmark: Benchmark | None = None,
    model: Model | None = None,
    controller: Callable[..., Episode] | None = None,
    tools: Mapping[str, Tool] | None = None,
    gates: Mapping[str, Gate] | None = None,
    progress: bool = True,
    executor: Executor = LOCAL,
    trust: Trust | bool = False,
) -> Run:
    """Continue an interrupted run from its manifest; what is finished is not done again.

    A run that was given a Python object (benchmark, model, controller, tools, gates) needs it again. trust: see
    ``runs.named``. Raises UsageError when there is nothing to resume, when what the run depends on has changed since,
    or for what the folder alone may not name.
    """
    path = Path(folder)
    plan, config = read_plan(path)
    check_same(path, plan, trust)
    check_named(path, plan, config, trust)
    check_code(path, read_manifest(path), plan)
    executor.check(plan, config)
    objects = {"benchmark": benchmark, "model": model, "controller": controller, "tools": tools, "gates": gates}
    missing = [name for name in plan.objects if not objects[name]]
    if missing:
        call = f"nl2sql.resume({str(path)!r}, {', '.join(f'{name}=...' for name in missing)})"
        raise UsageError(f"{path} was started from Python; continue it there: {call}")
    with as_a_run_leaves(path), Opened(plan, objects, executor) as opened:
        return _carried_out(plan, config, path, opened, progress)
